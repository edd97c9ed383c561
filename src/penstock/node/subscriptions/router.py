"""Subscriptions as people see and end them, asked of any node.

What is stored of a subscription, and who is attached to it, only its home knows: the coordinator of the group of its
name. All nodes together know all subscriptions; each is asked page by page, so that no answer outgrows a frame.
"""

import asyncio
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import msgspec

from penstock.cluster import OFFSETS_TOPIC, ClusterState
from penstock.errors import ErrorCode, KafkaError
from penstock.groups import CommittedOffset
from penstock.node.metadata.cluster_view import ClusterView
from penstock.node.subscriptions.attachment import RANGES_TOLD, Attachment
from penstock.node.subscriptions.manager import LOOK_AGAIN_SECONDS, PATIENCE_SECONDS, Subscriptions
from penstock.node.subscriptions.stats import NO_PUSH, PushFigures
from penstock.node.subscriptions.store import TRANSIENT, SubscriptionStore
from penstock.queue.subscription_storage import decode_done, decode_ttl
from penstock.types import EventSink, NodeId, TopicPartition

if TYPE_CHECKING:
    from penstock.node.peers import Rpc

ASK = 34
"""The method of the inter-node port, for all three questions."""
ANSWER_MS = 10_000
PAGE_PLACES = 5_000
"""Partitions, and ranges of them, in one page: some hundred kilobytes, a tenth of a second at most to make."""

T = TypeVar("T")


class Browse(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Asks for subscriptions by name, from behind this one on."""

    after: str


class Look(msgspec.Struct, frozen=True, array_like=True, tag=True):
    name: str


class Forget(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """`is_forced`: also one that has a subscriber, who is sent away."""

    name: str
    is_forced: bool


class PlacePicture(msgspec.Struct, frozen=True, array_like=True):
    """How far a subscription is on one partition, by what is stored."""

    topic: str
    partition: int
    offset: int
    """The first that is not acked."""
    done: list[tuple[int, int]]
    """First and last of what is acked beyond it; the lowest ranges, if there are many."""
    done_beyond: int
    """How many are acked beyond these ranges."""
    unacked: int
    """Pushed to whoever is attached, and not acked."""


class SubscriptionPicture(msgspec.Struct, frozen=True, array_like=True):
    name: str
    home: int
    topics: list[str]
    is_attached: bool
    since_ms: int
    """It is so since then."""
    ttl_ms: int
    expires_ms: int | None
    """When it will be forgotten; None while somebody is attached."""
    deferred: int
    """Messages that whoever is attached waits for, because they are not due."""
    places: list[PlacePicture]


class Page(msgspec.Struct, frozen=True, array_like=True):
    pictures: list[SubscriptionPicture]
    is_last: bool


Question = Browse | Look | Forget


class SubscriptionRouter:
    """Asks and answers. Lives on its node's event loop."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        state: ClusterState,
        view: ClusterView,
        store: SubscriptionStore,
        events: EventSink,
        rpc: "Rpc | None",
    ) -> None:
        self._node_id = node_id
        self._state = state
        self._view = view
        self._store = store
        self._events = events
        self._rpc = rpc
        self.live: Subscriptions | None = None
        """Who is attached here. None before the first subscriber came."""
        if rpc is not None:
            rpc.handle(ASK, self._serve)

    # --- asking

    async def browse(self, node: int, after: str) -> Page:
        """Subscriptions that are at home at a node, in the order of their names. PenstockError if it does not tell."""
        return await self._ask(node, Browse(after), Page)

    async def look(self, name: str) -> SubscriptionPicture | None:
        """None: there is no such subscription. PenstockError if that cannot be known now."""
        if OFFSETS_TOPIC not in self._state.topics:
            return None
        page = await self._ask_home(name, Look(name), Page)
        return page.pictures[0] if page.pictures else None

    async def forget(self, name: str, *, force: bool) -> bool:
        """As if it had never been, when this returns; False if it never was. NON_EMPTY_GROUP: it has a subscriber."""
        if OFFSETS_TOPIC not in self._state.topics:
            return False
        return await self._ask_home(name, Forget(name, force), bool)

    async def _ask_home(self, name: str, question: Question, kind: type[T]) -> T:
        """Asks again only while nobody has taken the question on."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_SECONDS
        while True:
            try:
                return await self._ask(self._view.coordinator(name).node_id, question, kind)
            except KafkaError as refused:
                if refused.code not in TRANSIENT or loop.time() > deadline:
                    raise
            await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def _ask(self, node: int, question: Question, kind: type[T]) -> T:
        packed = msgspec.msgpack.encode(question)
        if node == self._node_id:
            told: bytes | memoryview = await self._serve(self._node_id, memoryview(packed))
        elif self._rpc is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"node {node} cannot be asked")
        else:
            told = await self._rpc.call(NodeId(node), ASK, packed, ANSWER_MS)
        return msgspec.msgpack.decode(told, type=kind)

    # --- answering

    async def _serve(self, sender: NodeId, packed: memoryview) -> bytes:
        question: Question = msgspec.msgpack.decode(packed, type=Question)
        match question:
            case Browse(after=after):
                return msgspec.msgpack.encode(self._page(after))
            case Look(name=name):
                picture = self._picture(name)
                return msgspec.msgpack.encode(Page([] if picture is None else [picture], True))
            case Forget(name=name, is_forced=is_forced):
                return msgspec.msgpack.encode(await self._forget(name, is_forced))

    def _page(self, after: str) -> Page:
        pictures: list[SubscriptionPicture] = []
        room = PAGE_PLACES
        for name in sorted(name for name in self._store.names() if name > after):
            if room <= 0:
                return Page(pictures, False)
            if (picture := self._picture(name)) is not None:
                pictures.append(picture)
                room -= sum(1 + len(place.done) for place in picture.places) + 1
        return Page(pictures, True)

    def _picture(self, name: str) -> SubscriptionPicture | None:
        stored = self._store.stored(name)
        attachment = self._attachment(name)
        if not stored:
            return None
        committed = stored.values()
        ttls = (decode_ttl(one.metadata) or 0 for one in committed)
        since_ms = max(one.commit_timestamp_ms for one in committed)  # the last word of who was attached
        return SubscriptionPicture(
            name=name,
            home=self._node_id,
            topics=sorted({key.topic for key in stored}),
            is_attached=attachment is not None,
            since_ms=attachment.since_ms if attachment is not None else since_ms,
            ttl_ms=max(ttls),
            expires_ms=None if attachment is not None else max(one.expire_timestamp_ms for one in committed),
            deferred=attachment.core.deferred_count if attachment is not None else 0,
            places=[_place(key, stored[key], attachment) for key in sorted(stored)],
        )

    def figures(self) -> PushFigures:
        """Of this node alone."""
        return self.live.figures() if self.live is not None else NO_PUSH

    def _attachment(self, name: str) -> Attachment | None:
        return self.live.find(name) if self.live is not None else None

    async def _forget(self, name: str, is_forced: bool) -> bool:
        if not self._store.stored(name):
            return False
        if self.live is not None:
            await self.live.remove(name, force=is_forced)
        elif await self._store.forget(name):
            self._events.tell("subscription.forgotten", subscription=name)
        return True


def _place(key: TopicPartition, committed: CommittedOffset, attachment: Attachment | None) -> PlacePicture:
    done = [(first, end - 1) for first, end in decode_done(committed.offset, committed.metadata)]
    return PlacePicture(
        topic=key.topic,
        partition=key.partition,
        offset=committed.offset,
        done=done[:RANGES_TOLD],
        done_beyond=_count(islice(done, RANGES_TOLD, None)),
        unacked=attachment.core.unacked_on(key) if attachment is not None else 0,
    )


def _count(ranges: Iterable[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in ranges)
