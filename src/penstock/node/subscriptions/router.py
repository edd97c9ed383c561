"""Subscriptions of the whole cluster: descriptions and deletion, on any node.

Only the coordinator of the group of a subscription's name knows its stored progress and its subscriber. All nodes
together know all subscriptions; each is asked page by page, so that no response outgrows a frame.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice

from penstock.cluster import OFFSETS_TOPIC, ClusterState
from penstock.errors import KafkaError, NotExecuted
from penstock.groups import CommittedOffset
from penstock.node.calls import AtNode, Calls, CoordinatorOf, methods
from penstock.node.calls.messages.subscriptions import (
    DeleteSubscription,
    DescribeSubscription,
    ListSubscriptions,
    PositionDescription,
    SubscriptionDescription,
    SubscriptionPage,
)
from penstock.node.subscriptions.manager import SubscriptionManager
from penstock.node.subscriptions.session import MAX_LISTED_RANGES, SubscriberSession
from penstock.node.subscriptions.stats import NO_PUSH, PushFigures
from penstock.node.subscriptions.store import SubscriptionStore
from penstock.queue.subscription_metadata import decode_done, decode_ttl
from penstock.types import Caller, EventSink, NodeId, TopicPartition

PAGE_POSITIONS = 5_000
"""Partitions, and ranges of them, in one page: some hundred kilobytes, a tenth of a second at most to make."""

DETACH_SECONDS = 1.0
"""How long the deletion of a group waits for a subscriber that may just have closed its connection."""


class SubscriptionRouter:
    """Asks coordinators, and answers for the subscriptions that this node coordinates. Lives on its event loop."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        state: ClusterState,
        store: SubscriptionStore,
        open_live: Callable[[], SubscriptionManager | None],
        events: EventSink,
        calls: Calls,
    ) -> None:
        """`open_live` makes what holds the attached subscribers, as soon as the node has ports."""
        self._node_id = node_id
        self._state = state
        self._store = store
        self._events = events
        self._calls = calls
        self._open_live = open_live
        self._live: SubscriptionManager | None = None
        calls.serve(methods.LIST_SUBSCRIPTIONS, self._list)
        calls.serve(methods.DESCRIBE_SUBSCRIPTION, self._describe)
        calls.serve(methods.DELETE_SUBSCRIPTION, self._delete)

    @property
    def live(self) -> SubscriptionManager | None:
        """The attached subscribers of this node. None while the node has no ports, and so no subscribers."""
        if self._live is None:
            self._live = self._open_live()
        return self._live

    # --- asking

    async def browse(self, node: int, after: str, *, caller: Caller) -> SubscriptionPage:
        """Subscriptions that a node coordinates, in the order of their names. KafkaError if it does not answer."""
        target, request = AtNode(NodeId(node)), ListSubscriptions(after)
        return await self._calls.ask(target, methods.LIST_SUBSCRIPTIONS, request, caller=caller)

    async def look(self, name: str, *, caller: Caller) -> SubscriptionDescription | None:
        """None: there is no such subscription. KafkaError if that cannot be known now."""
        if OFFSETS_TOPIC not in self._state.topics:
            return None
        target, request = CoordinatorOf(name), DescribeSubscription(name)
        page = await self._calls.ask(target, methods.DESCRIBE_SUBSCRIPTION, request, caller=caller)
        return page.descriptions[0] if page.descriptions else None

    async def forget(self, name: str, *, force: bool, caller: Caller) -> bool:
        """Deletes a subscription; False if there was none. NON_EMPTY_GROUP: it has a subscriber."""
        if OFFSETS_TOPIC not in self._state.topics:
            return False
        target, request = CoordinatorOf(name), DeleteSubscription(name, force)
        return await self._calls.ask(target, methods.DELETE_SUBSCRIPTION, request, caller=caller)

    # --- answering

    def _list(self, caller: Caller, request: ListSubscriptions) -> SubscriptionPage:
        return self._page(request.after)

    def _describe(self, caller: Caller, request: DescribeSubscription) -> SubscriptionPage:
        description = self._description_of(request.name)
        return SubscriptionPage([] if description is None else [description], True)

    def _page(self, after: str) -> SubscriptionPage:
        descriptions: list[SubscriptionDescription] = []
        positions_left = PAGE_POSITIONS
        for name in sorted(name for name in self._store.names() if name > after):
            if positions_left <= 0:
                return SubscriptionPage(descriptions, False)
            if (description := self._description_of(name)) is not None:
                descriptions.append(description)
                positions_left -= sum(1 + len(position.done) for position in description.positions) + 1
        return SubscriptionPage(descriptions, True)

    def _description_of(self, name: str) -> SubscriptionDescription | None:
        stored = self._store.stored(name)
        session = self._session(name)
        if not stored:
            return None
        committed = stored.values()
        ttls = (decode_ttl(one.metadata) or 0 for one in committed)
        since_ms = max(one.commit_timestamp_ms for one in committed)  # the last commit of the last subscriber
        return SubscriptionDescription(
            name=name,
            coordinator=self._node_id,
            topics=sorted({key.topic for key in stored}),
            is_attached=session is not None,
            since_ms=session.since_ms if session is not None else since_ms,
            ttl_ms=max(ttls),
            expires_ms=None if session is not None else max(one.expire_timestamp_ms for one in committed),
            deferred=session.core.deferred_count if session is not None else 0,
            positions=[_position(key, stored[key], session) for key in sorted(stored)],
        )

    async def wait_detached(self, name: str) -> bool:
        """Whether this node has no subscriber of that name. One that has closed its connection is still attached until
        its last acks are durable, and would store a deleted group again: it is waited for."""
        if (session := self._session(name)) is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(session.closed(), DETACH_SECONDS)
        return self._session(name) is None

    def figures(self) -> PushFigures:
        """The figures of this node only."""
        return self.live.figures() if self.live is not None else NO_PUSH

    def _session(self, name: str) -> SubscriberSession | None:
        return self.live.find(name) if self.live is not None else None

    async def _delete(self, caller: Caller, request: DeleteSubscription) -> bool:
        name = request.name
        try:
            if not self._store.stored(name):
                return False
        except KafkaError as refused:
            raise NotExecuted(refused.code, refused.message) from refused
        if self.live is not None:
            await self.live.remove(name, force=request.is_forced)
        elif await self._store.forget(name):
            self._events.tell("subscription.forgotten", subscription=name)
        return True


def _position(
    key: TopicPartition, committed: CommittedOffset, session: SubscriberSession | None
) -> PositionDescription:
    done = [(first, end - 1) for first, end in decode_done(committed.offset, committed.metadata)]
    return PositionDescription(
        topic=key.topic,
        partition=key.partition,
        offset=committed.offset,
        done=done[:MAX_LISTED_RANGES],
        done_beyond=_count(islice(done, MAX_LISTED_RANGES, None)),
        unacked=session.core.unacked_on(key) if session is not None else 0,
    )


def _count(ranges: Iterable[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in ranges)
