"""Who is attached to which subscription, at the subscription's home.

The home is the node that coordinates the group of the subscription's name: it alone can write down its positions, and
so it alone serves it. One connection at a time: a second is refused, or takes over when it says so; then the first one
is ended, and what it has acked is durable, before the second begins.

When the home moves, its subscribers are sent away and find the new one. A home that was cut off goes on pushing for the
moment that it takes to find out; what is acked to it then is not stored, and comes again.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from uuid import UUID

from penstock.cluster import Topic
from penstock.errors import ErrorCode, KafkaError, PenstockError
from penstock.node.clock import SteadyClock
from penstock.node.subscriptions.attachment import INACTIVE, MOVED, Attachment
from penstock.node.subscriptions.feeds import Feeds
from penstock.node.subscriptions.stats import PushCounts, PushFigures
from penstock.node.subscriptions.store import SubscriptionStore
from penstock.node.subscriptions.values import Bounds, Elsewhere, Ending, Reader, Refused, Wish
from penstock.queue.subscription import Position
from penstock.types import TopicPartition

if TYPE_CHECKING:
    from penstock.node import Node

PATIENCE_SECONDS = 5.0
"""How long a home is looked for: an election with the usual settings, and then some."""
LOOK_AGAIN_SECONDS = 0.05
LOOK_SECONDS = 1.0
"""How often a home looks whether it still is one, and whether topics have grown or gone."""

log = logging.getLogger("penstock.subscriptions")


class Subscriptions:
    """All subscribers that are connected to one node. Lives on its event loop."""

    def __init__(self, node: "Node", reader: Reader) -> None:
        self._node = node
        self._reader = reader
        self.feeds = Feeds(reader, self._topic_id)
        self.store = SubscriptionStore(node.groups, node.clock, node.config.limits)
        self._attached: dict[str, Attachment] = {}
        self._counts = PushCounts()
        self._locks: dict[str, _Lock] = {}
        self._loop = asyncio.get_running_loop()
        self.now_ms = SteadyClock(node.clock).now_ms
        self._watching: asyncio.Task[None] | None = None

    def attached(self) -> Iterator[Attachment]:
        return iter(list(self._attached.values()))

    def figures(self) -> PushFigures:
        counts = self._counts
        return PushFigures(
            subscribers=len(self._attached), pushed=counts.pushed, acks=counts.acks, ended=dict(counts.ended)
        )

    def find(self, name: str) -> Attachment | None:
        return self._attached.get(name)

    def home_of(self, name: str) -> int:
        """The node that a subscription is at home at; KafkaError while nobody knows."""
        return self._node.view.coordinator(name).node_id

    # --- coming and going

    async def attach(self, wish: Wish) -> tuple[Attachment, bool]:
        """The subscriber, and whether it goes on where it was. Refused or Elsewhere if it cannot be served here."""
        deadline = self._loop.time() + PATIENCE_SECONDS
        while True:
            try:
                await self._node.groups.cores.ensure_topic()
                home = self.home_of(wish.name)
                if home != self._node.node_id:
                    raise Elsewhere(home)
                async with self._alone(wish.name):
                    return await self._attach(wish)
            except (Refused, Elsewhere):
                raise
            except PenstockError as trouble:
                # The very first subscriptions make the topic that keeps them; later ones may meet an election.
                if self._loop.time() > deadline:
                    raise Refused(MOVED, f"{trouble}; try again in a moment") from trouble
            await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def _attach(self, wish: Wish) -> tuple[Attachment, bool]:
        topics = self._topics(wish)
        await self._make_way(wish)
        terms = self._terms(
            topics
        )  # before the logs are looked at: an older one only makes the next look stricter
        stored = self.store.load(wish.name)
        positions = await self._positions(wish, topics, stored)
        resumed = any(position.key in stored for position in positions)
        topic_ids = {topic.name: topic.topic_id for topic in topics}
        attachment = Attachment(
            wish,
            positions,
            topic_ids,
            terms=terms,
            feeds=self.feeds,
            store=self.store,
            now_ms=self.now_ms,
            counts=self._counts,
        )
        # Durable before anything is sent: whoever subscribes now and comes back later misses nothing in between.
        gone = await self.store.save(
            wish.name,
            positions,
            topic_ids=topic_ids,
            ttl_ms=wish.ttl_ms,
            keep_ms=attachment.keep_ms,
            terms=terms,
        )
        if gone:  # while its positions were looked for; there may be a new one, with positions of its own
            message = f"topic {gone[0].topic!r} was deleted a moment ago"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        self._attached[wish.name] = attachment
        self.store.reserve(wish.name)
        if self._watching is None:
            self._watching = self._loop.create_task(self._watch())
        topics_read = [topic.name for topic in topics]
        self._node.events.tell(
            "subscription.attached", subscription=wish.name, topics=topics_read, resumed=resumed
        )
        return attachment, resumed

    async def _make_way(self, wish: Wish) -> None:
        other = self._attached.get(wish.name)
        if other is None:
            return
        if not wish.take_over and other.ending is None:
            message = f"{wish.name!r} has a subscriber; say take_over to have it sent away"
            raise Refused("already_active", message)
        other.end(Ending("taken_over", f"another subscriber has taken over {wish.name!r}"))
        await other.closed()

    async def detach(self, attachment: Attachment) -> None:
        """Returns when the subscriber's last acks are durable, and the next one may come."""
        try:
            await attachment.close()
        finally:
            self._tell_detached(attachment)
            if self._attached.get(attachment.wish.name) is attachment:
                del self._attached[attachment.wish.name]
                self.store.release(attachment.wish.name)
            if not self._attached and self._watching is not None:
                self._watching.cancel()
                self._watching = None

    async def forget(self, attachment: Attachment) -> None:
        """Its subscription ends for good. The attachment has been told so."""
        name = attachment.wish.name
        await self.detach(attachment)
        async with self._alone(name):
            await self._forget(name)

    async def remove(self, name: str, *, force: bool) -> None:
        """A subscription ends for good by somebody else's word. NON_EMPTY_GROUP if it has a subscriber, unless `force`
        sends that one away."""
        while True:
            other = self._attached.get(name)
            if other is not None and not force:
                raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"{name!r} has a subscriber")
            if other is not None:
                other.end(Ending("unsubscribed", "the subscription was deleted", is_home=False))
                await other.closed()
            async with self._alone(name):
                if name not in self._attached:  # or somebody was just coming in
                    return await self._forget(name)

    async def _forget(self, name: str) -> None:
        if name in self._attached:  # somebody else may have taken it over, and wants it
            return
        if await self.store.forget(name):
            self._node.events.tell("subscription.forgotten", subscription=name)

    def _tell_detached(self, attachment: Attachment) -> None:
        ending = attachment.ending
        assert ending is not None  # `close` gives a reason where nobody else did
        self._counts.end(ending.code)
        kind = "subscription.inactive" if ending.code == INACTIVE else "subscription.detached"
        self._node.events.tell(kind, subscription=attachment.wish.name, reason=ending.message)

    @asynccontextmanager
    async def _alone(self, name: str) -> AsyncIterator[None]:
        """One after the other, for each name."""
        lock = self._locks.setdefault(name, _Lock())
        lock.users += 1
        try:
            async with lock.lock:
                yield
        finally:
            lock.users -= 1
            if not lock.users:
                del self._locks[name]

    # --- where it begins

    def _topics(self, wish: Wish) -> list[Topic]:
        known = self._node.metadata.state.topics
        found = []
        for name in dict.fromkeys(wish.topics):
            topic = known.get(name)
            if topic is None or topic.internal:
                raise Refused("unknown_topic", f"there is no topic {name!r}: create it before you subscribe")
            found.append(topic)
        count = sum(topic.partitions for topic in found)
        most = self._node.config.limits.max_partitions_per_subscription
        if count > most:
            message = f"{count} partitions: expected at most {most} (limits.max_partitions_per_subscription)"
            raise Refused("too_many_partitions", message)
        return found

    async def _positions(
        self, wish: Wish, topics: list[Topic], stored: Mapping[TopicPartition, Position]
    ) -> list[Position]:
        positions = []
        for topic in topics:
            keys = [TopicPartition(topic.name, index) for index in range(topic.partitions)]
            known = {key: stored[key] for key in keys if key in stored}
            if known:
                # Partitions that are new since then are new altogether, and so are logs that began anew.
                true = await self._of_these_logs(wish.name, topic, known)
                positions += [true.get(key, Position(key, 0)) for key in keys]
            else:
                bounds = await self._reader.bounds(topic.name, range(topic.partitions))
                for key in keys:
                    start, end = bounds[key.partition]
                    positions.append(Position(key, start if wish.read_old else end))
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

    # --- looking after those who are attached

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now_ms = self.now_ms()
            for attachment in self.attached():
                if attachment.ending is None:
                    self._look_after(attachment, now_ms)

    def _look_after(self, attachment: Attachment, now_ms: int) -> None:
        try:
            self.store.check_home(attachment.wish.name)
        except KafkaError as moved:
            attachment.end(Ending(MOVED, f"{moved.message}; subscribe again", is_home=False))
            return
        for topic, topic_id in list(attachment.topic_ids.items()):
            if self._topic_id(topic) != topic_id:
                attachment.drop_topic(topic)
            else:
                self._grow(attachment, topic)
                self._check_logs(attachment, topic)
        if now_ms - attachment.touched_ms >= attachment.touch_ms:
            attachment.touch()

    def _grow(self, attachment: Attachment, topic: str) -> None:
        count = self._node.metadata.state.topics[topic].partitions
        for index in range(count - 1, -1, -1):
            key = TopicPartition(topic, index)
            if attachment.core.next_offset(key) is not None:
                break
            attachment.add_partition(key)

    def _check_logs(self, attachment: Attachment, topic: str) -> None:
        """A log in memory that has a new leader may be a new log: where to go on is found out by subscribing again."""
        for key, term in self._terms([self._node.metadata.state.topics[topic]]).items():
            if term > attachment.terms.setdefault(key, term):
                attachment.end(
                    Ending(MOVED, f"{key} has a new leader, and may have begun anew; subscribe again")
                )
                return


def _reach(position: Position) -> int:
    return position.done[-1][1] if position.done else position.offset


def _end(key: TopicPartition, ends: Mapping[int, int], bounds: Mapping[int, Bounds]) -> int:
    end = ends[key.partition]
    return end if end >= 0 else bounds[key.partition].end


class _Lock:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
