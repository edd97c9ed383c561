"""The subscribers that are attached to this node.

A subscription is served by the coordinator of the group of its name, because only this node can commit its positions.
It has one connection at a time: a second one is refused, or takes over if it asks for that; then the first one is
ended, and its acks are durable, before the second begins.

When the coordinator changes, its subscribers are disconnected and find the new one. A coordinator that was cut off goes
on pushing until it notices that; acks that it receives meanwhile are not stored, and the messages are pushed again.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from uuid import UUID

from penstock.cluster import Topic
from penstock.errors import ErrorCode, KafkaError, PenstockError
from penstock.node.calls import BROKER
from penstock.node.calls.retry import may_repeat
from penstock.node.scheduling.clock import SteadyClock
from penstock.node.scheduling.logged_bugs import logged_bugs
from penstock.node.subscriptions.local_reads import LocalReads
from penstock.node.subscriptions.page_reader import PageReader
from penstock.node.subscriptions.session import INACTIVE, MOVED, SubscriberSession
from penstock.node.subscriptions.stats import PushCounts, PushFigures
from penstock.node.subscriptions.store import SubscriptionStore
from penstock.node.subscriptions.values import (
    Bounds,
    EndReason,
    PartitionReader,
    Redirect,
    SubscribeRefused,
    SubscribeRequest,
)
from penstock.queue.subscription import Position
from penstock.types import TopicPartition

if TYPE_CHECKING:
    from penstock.node import Node

CHECK_SECONDS = 1.0
"""How often this node checks that it still is the coordinator, and whether topics have grown or were deleted."""

CheckStored = Callable[[Collection[str]], None]
"""Is told the topics that a subscription has when a subscriber attaches, none if it is new; raises to refuse it."""

log = logging.getLogger("penstock.subscriptions")


class SubscriptionManager:
    """All subscribers that are connected to one node. Lives on its event loop."""

    def __init__(self, node: "Node", reader: PartitionReader) -> None:
        self._node = node
        self._reader = LocalReads(node, reader)
        self.page_reader = PageReader(self._reader, self._topic_id, node.calls.retry)
        self.store = SubscriptionStore(node.groups, node.clock, node.config.limits)
        self._attached: dict[str, SubscriberSession] = {}
        self._counts = PushCounts()
        self._locks: dict[str, _Lock] = {}
        self._loop = asyncio.get_running_loop()
        self.now_ms = SteadyClock(node.clock).now_ms
        self._watching: asyncio.Task[None] | None = None

    def attached(self) -> Iterator[SubscriberSession]:
        return iter(list(self._attached.values()))

    def figures(self) -> PushFigures:
        counts = self._counts
        return PushFigures(
            subscribers=len(self._attached), pushed=counts.pushed, acks=counts.acks, ended=dict(counts.ended)
        )

    def find(self, name: str) -> SubscriberSession | None:
        return self._attached.get(name)

    def coordinator_of(self, name: str) -> int:
        """The node that serves a subscription; KafkaError while that is unknown."""
        return self._node.view.coordinator(name).node_id

    # --- attaching and detaching

    async def attach(
        self, request: SubscribeRequest, check_stored: CheckStored = lambda topics: None
    ) -> tuple[SubscriberSession, bool]:
        """The session, and whether it continues a stored subscription. SubscribeRefused, or Redirect if another node
        serves it; or the error of `check_stored`, which then leaves the subscription and its subscriber as they are."""
        retry = self._node.calls.retry()
        while True:
            try:
                await self._node.groups.cores.ensure_topic()
                coordinator = self.coordinator_of(request.name)
                if coordinator != self._node.node_id:
                    raise Redirect(coordinator)
                async with self._exclusively(request.name):
                    check_stored({key.topic for key in self.store.load(request.name)})
                    return await self._attach(request)
            except (SubscribeRefused, Redirect):
                raise
            except PenstockError as trouble:
                # The first subscription creates the topic of committed offsets; later ones may meet an election.
                if retry.is_over or not _may_pass(trouble):
                    raise SubscribeRefused(MOVED, f"{trouble}; try again in a moment") from trouble
            await retry.pause()

    async def _attach(self, request: SubscribeRequest) -> tuple[SubscriberSession, bool]:
        topics = self._topics(request)
        await self._replace(request)
        terms = self._terms(
            topics
        )  # before the logs are read: an older term only makes the next check stricter
        stored = self.store.load(request.name)
        positions = await self._positions(request, topics, stored)
        resumed = any(position.key in stored for position in positions)
        topic_ids = {topic.name: topic.topic_id for topic in topics}
        session = SubscriberSession(
            request,
            positions,
            topic_ids,
            terms=terms,
            reader=self.page_reader,
            store=self.store,
            now_ms=self.now_ms,
            counts=self._counts,
        )
        # Durable before anything is sent: a subscriber that reconnects later misses nothing in between.
        gone = await self.store.save(
            request.name,
            positions,
            topic_ids=topic_ids,
            ttl_ms=request.ttl_ms,
            retention_ms=session.retention_ms,
            terms=terms,
        )
        if gone:  # meanwhile; a new topic of the same name would have positions of its own
            message = f"topic {gone[0].topic!r} was deleted a moment ago"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        self._attached[request.name] = session
        self.store.reserve(request.name)
        if self._watching is None:
            self._watching = self._loop.create_task(self._watch())
        topics_read = [topic.name for topic in topics]
        self._node.events.tell(
            "subscription.attached", subscription=request.name, topics=topics_read, resumed=resumed
        )
        return session, resumed

    async def _replace(self, request: SubscribeRequest) -> None:
        other = self._attached.get(request.name)
        if other is None:
            return
        if not request.take_over and other.ending is None:
            message = f"{request.name!r} has a subscriber; set take_over to disconnect it"
            raise SubscribeRefused("already_active", message)
        other.end(EndReason("taken_over", f"another subscriber has taken over {request.name!r}"))
        await other.closed()

    async def detach(self, session: SubscriberSession) -> None:
        """Returns when the subscriber's last acks are durable, and another one may attach."""
        try:
            await session.close()
        finally:
            self._tell_detached(session)
            if self._attached.get(session.request.name) is session:
                del self._attached[session.request.name]
                self.store.release(session.request.name)
            if not self._attached and self._watching is not None:
                self._watching.cancel()
                self._watching = None

    async def forget(self, session: SubscriberSession) -> None:
        """Deletes the subscription of a session, which has been told so."""
        name = session.request.name
        await self.detach(session)
        async with self._exclusively(name):
            await self._forget(name)

    async def remove(self, name: str, *, force: bool) -> None:
        """Deletes a subscription on behalf of another client. NON_EMPTY_GROUP if it has a subscriber, unless `force`
        disconnects it."""
        while True:
            other = self._attached.get(name)
            if other is not None and not force:
                raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"{name!r} has a subscriber")
            if other is not None:
                other.end(EndReason("unsubscribed", "the subscription was deleted", may_save=False))
                await other.closed()
            async with self._exclusively(name):
                if name not in self._attached:  # otherwise another subscriber has just attached
                    return await self._forget(name)

    async def _forget(self, name: str) -> None:
        if name in self._attached:  # another subscriber may have taken it over
            return
        if await self.store.forget(name):
            self._node.events.tell("subscription.forgotten", subscription=name)

    def _tell_detached(self, session: SubscriberSession) -> None:
        ending = session.ending
        assert ending is not None  # `close` sets a reason if there is none
        self._counts.end(ending.code)
        kind = "subscription.inactive" if ending.code == INACTIVE else "subscription.detached"
        self._node.events.tell(kind, subscription=session.request.name, reason=ending.message)

    @asynccontextmanager
    async def _exclusively(self, name: str) -> AsyncIterator[None]:
        """One operation at a time for each name."""
        lock = self._locks.setdefault(name, _Lock())
        lock.users += 1
        try:
            async with lock.lock:
                yield
        finally:
            lock.users -= 1
            if not lock.users:
                del self._locks[name]

    # --- where a subscription begins

    def _topics(self, request: SubscribeRequest) -> list[Topic]:
        """Those that the subscriber asks for. Its port has checked that it may read them."""
        found = []
        for name in dict.fromkeys(request.topics):
            topic = self._node.resources.visible_topic(BROKER, name)
            if topic is None or topic.internal:
                raise SubscribeRefused(
                    "unknown_topic", f"there is no topic {name!r}: create it before you subscribe"
                )
            found.append(topic)
        count = sum(topic.partitions for topic in found)
        most = self._node.config.limits.max_partitions_per_subscription
        if count > most:
            message = f"{count} partitions: expected at most {most} (limits.max_partitions_per_subscription)"
            raise SubscribeRefused("too_many_partitions", message)
        return found

    async def _positions(
        self, request: SubscribeRequest, topics: list[Topic], stored: Mapping[TopicPartition, Position]
    ) -> list[Position]:
        positions = []
        for topic in topics:
            keys = [TopicPartition(topic.name, index) for index in range(topic.partitions)]
            known = {key: stored[key] for key in keys if key in stored}
            if known:
                # Partitions that were added since then are read from their start, and so are logs that were replaced.
                true = await self._of_these_logs(request.name, topic, known)
                positions += [true.get(key, Position(key, 0)) for key in keys]
            else:
                partitions = range(topic.partitions)
                bounds = await self._reader.bounds(topic.name, partitions, request.isolation)
                for key in keys:
                    start, end = bounds[key.partition]
                    positions.append(Position(key, start if request.read_old else end))
        return positions

    async def _of_these_logs(
        self, name: str, topic: Topic, stored: Mapping[TopicPartition, Position]
    ) -> Mapping[TopicPartition, Position]:
        """Without positions in logs that no longer exist: a topic in memory starts at 0 again when its node restarts.
        Terms do not, so a position behind the start of the terms after its own was never one of this log."""
        if not topic.config.memory:
            return stored
        terms = self.store.terms(name)
        indexes = [key.partition for key in stored]
        bounds = await self._reader.bounds(topic.name, indexes)
        ends = await self._reader.ends_of_terms(topic.name, {key.partition: terms[key] for key in stored})
        return {
            key: position for key, position in stored.items() if _reach(position) <= _end(key, ends, bounds)
        }

    def _terms(self, topics: list[Topic]) -> dict[TopicPartition, int]:
        return {
            TopicPartition(topic.name, index): self._node.view.partition(topic, index).term
            for topic in topics
            if topic.config.memory
            for index in range(topic.partitions)
        }

    def _topic_id(self, name: str) -> UUID | None:
        topic = self._node.metadata.state.topics.get(name)
        return topic.topic_id if topic is not None else None

    # --- checking attached subscribers

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            now_ms = self.now_ms()
            for session in self.attached():
                if session.ending is None:
                    with logged_bugs(f"the check of subscription {session.request.name!r}"):
                        self._check(session, now_ms)

    def _check(self, session: SubscriberSession, now_ms: int) -> None:
        try:
            self.store.check_coordinator(session.request.name)
        except KafkaError as moved:
            session.end(EndReason(MOVED, f"{moved.message}; subscribe again", may_save=False))
            return
        for topic, topic_id in list(session.topic_ids.items()):
            if self._topic_id(topic) != topic_id:
                session.drop_topic(topic)
            else:
                self._grow(session, topic)
                self._check_logs(session, topic)
        if now_ms - session.renewed_ms >= session.renew_ms:
            session.renew_ttl()

    def _grow(self, session: SubscriberSession, topic: str) -> None:
        count = self._node.metadata.state.topics[topic].partitions
        for index in range(count - 1, -1, -1):
            key = TopicPartition(topic, index)
            if session.core.next_offset(key) is not None:
                break
            session.add_partition(key)

    def _check_logs(self, session: SubscriberSession, topic: str) -> None:
        """A log in memory with a new leader may be a new log: subscribing again finds out where to continue."""
        for key, term in self._terms([self._node.metadata.state.topics[topic]]).items():
            if term > session.terms.setdefault(key, term):
                session.end(
                    EndReason(MOVED, f"{key} has a new leader, and its log may be a new one; subscribe again")
                )
                return


def _may_pass(trouble: PenstockError) -> bool:
    return isinstance(trouble, KafkaError) and may_repeat(trouble, repeatable=True)


def _reach(position: Position) -> int:
    return position.done[-1][1] if position.done else position.offset


def _end(key: TopicPartition, ends: Mapping[int, int], bounds: Mapping[int, Bounds]) -> int:
    end = ends[key.partition]
    return end if end >= 0 else bounds[key.partition].end


class _Lock:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
