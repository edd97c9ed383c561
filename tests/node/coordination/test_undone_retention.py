"""`penstock.retention.keep.undone` on one node: which records retention keeps and deletes, and what it reports."""

import asyncio
from collections.abc import Awaitable, Callable
from uuid import uuid4

from penstock.batch import EndMarker, Record, build_batch, check_batch
from penstock.cluster import STATE_TOPIC, NewTopic, TopicConfigsChanged, decisions
from penstock.config import Address, GroupSettings, NodeConfig
from penstock.errors import ErrorCode, KafkaError
from penstock.groups import CommitRequest, OffsetToCommit
from penstock.node import Node, Partition
from penstock.node.calls import BROKER
from penstock.node.coordination.undone_retention import HeldBack
from penstock.node.housekeeping import RETENTION_GRACE_MS
from penstock.node.queues import Acknowledgement, QueueDriver
from penstock.queue.values import AckKind
from penstock.types import Offset

NOW_MS = 1_700_000_000_000
DAY_MS = 24 * 3600 * 1000
ACCEPT, RELEASE = bytes([AckKind.ACCEPT]), bytes([AckKind.RELEASE])
KEEP = {"penstock.retention.keep.undone": "true"}


class SetClock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def wall_ms(self) -> int:
        return self.now_ms


class Events:
    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, object]]] = []

    def tell(self, kind: str, /, **facts: object) -> None:
        self.told.append((kind, facts))

    def of(self, kind: str) -> list[dict[str, object]]:
        return [facts for one, facts in self.told if one == kind]


class Harness:
    """One node with the topic `t` of one partition, where each record has a segment of its own."""

    def __init__(self, node: Node, clock: SetClock, events: Events) -> None:
        self.node = node
        self.clock = clock
        self.events = events
        self._sequence = 0

    @property
    def partition(self) -> Partition:
        return self.node.leader("t", 0)

    @property
    def start(self) -> int:
        return self.partition.start_offset

    @property
    def held(self) -> list[HeldBack]:
        return [held for _, held in self.node.undone_retention.held_back()]

    async def write(self, count: int, **headers: int) -> None:
        """Headers are written with underscores for their hyphens."""
        for _ in range(count):
            rows = [
                (f"penstock-{name.replace('_', '-')}", str(value).encode()) for name, value in headers.items()
            ]
            batch = build_batch([Record(0, self.clock.now_ms, None, bytes(100), tuple(rows))])
            changed = memoryview(bytearray(batch))
            self.partition.append(changed, check_batch(changed))
        await self.node.storage.flusher.drain()

    async def write_transaction(self, *, commit: bool) -> None:
        """A record of a transaction, and its marker."""
        batch = memoryview(
            bytearray(
                build_batch(
                    [Record(0, self.clock.now_ms, None, bytes(100), ())],
                    producer_id=7,
                    producer_epoch=0,
                    base_sequence=self._sequence,
                    transactional=True,
                )
            )
        )
        self._sequence += 1
        self.partition.append(batch, check_batch(batch))
        self.partition.append_marker(EndMarker(commit, 1), producer_id=7, producer_epoch=0)
        await self.node.storage.flusher.drain()

    async def queue(self, name: str = "workers", start: int = 0) -> QueueDriver:
        """Begins at this offset if it is new."""
        topic = self.node.metadata.state.topics["t"]
        if not await self.node.queues.overview.descriptions(name, caller=BROKER):
            await self.node.queues.overview.reset(name, topic, 0, start, caller=BROKER)
        return await self.node.queues.manager.driver(name, topic.topic_id, self.partition)

    async def reopened(self, driver: QueueDriver) -> QueueDriver:
        """The queue with the time of now: a driver does not follow a clock that is set."""
        await driver.settled()
        driver.end(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the clock was set"))
        return await self.queue(driver.key.group_id)

    async def accept(self, driver: QueueDriver, first: int, last: int) -> None:
        driver.deliver("member", 1000, 1 << 20)
        await driver.acknowledge("member", [Acknowledgement(first, last, ACCEPT)])

    async def tidy(self, *, days: int = 0) -> int:
        """Lets time pass, then lets retention work; returns the log start. A queue has counted by then."""
        self.clock.now_ms += days * DAY_MS
        await self.node.housekeeping.tidy()
        self.clock.now_ms += RETENTION_GRACE_MS
        await self.node.housekeeping.tidy()
        while (counting := self.node.queues._counting) is not None and not counting.done():
            await asyncio.sleep(0)
        return self.start

    async def alter(self, **configs: str) -> None:
        topic = self.node.metadata.state.topics["t"]
        changed = topic.configs | {name.replace("_", "."): value for name, value in configs.items()}
        await self.node.metadata.change(
            lambda state: [TopicConfigsChanged(name="t", topic_id=topic.topic_id, configs=changed)]
        )


def play(act: Callable[[Harness], Awaitable[None]], configs: dict[str, str] = KEEP) -> None:
    async def run() -> None:
        clock, events = SetClock(), Events()
        groups = GroupSettings(offsets_topic_partitions=1, state_topic_partitions=2)
        settings = NodeConfig(memory=True, http=None, kafka=Address("127.0.0.1", 1), groups=groups)
        node = Node(settings, clock=clock, events=events)
        await node.start()
        try:
            whole = {"internal.segment.bytes": "250", "retention.ms": str(7 * DAY_MS), **configs}
            new_topic = NewTopic(name="t", topic_id=uuid4(), partitions=1, configs=whole)
            await node.metadata.change(
                lambda state: decisions.create_topic(state, new_topic, node.controller.rules)
            )
            await node.settled()
            await act(Harness(node, clock, events))
        finally:
            await node.stop()

    asyncio.run(run())


# --- topics that keep undone messages


def test_a_message_due_in_30_days_outlives_a_retention_of_7() -> None:
    async def act(harness: Harness) -> None:
        await harness.write(1, delay_ms=30 * DAY_MS)
        await harness.write(3)
        driver = await harness.queue()
        await harness.accept(driver, 1, 3)
        assert await harness.tidy(days=29) == 0
        driver = await harness.reopened(driver)
        assert not driver.deliver("member", 10, 1 << 20).acquired
        harness.clock.now_ms += DAY_MS
        driver = await harness.reopened(driver)
        assert [one.first for one in driver.deliver("member", 10, 1 << 20).acquired] == [0]
        assert await harness.tidy() == 0  # it is leased
        await driver.acknowledge("member", [Acknowledgement(0, 0, ACCEPT)])
        assert await harness.tidy() == 4

    play(act)


def test_available_messages_and_retries_are_kept() -> None:
    async def act(harness: Harness) -> None:
        await harness.write(4)
        driver = await harness.queue()
        await harness.accept(driver, 0, 0)
        await driver.acknowledge("member", [Acknowledgement(1, 1, RELEASE, 6 * DAY_MS)])
        assert await harness.tidy(days=8) == 1
        await harness.accept(await harness.reopened(driver), 1, 1)
        assert await harness.tidy() == 2

    play(act)


def test_settled_messages_are_kept_for_replay_until_they_expire() -> None:
    async def act(harness: Harness) -> None:
        await harness.write(4)
        await harness.accept(await harness.queue(), 0, 3)
        assert await harness.tidy(days=6) == 0
        assert await harness.tidy(days=2) == 4

    play(act)


def test_markers_between_and_behind_undone_messages_hold_nothing_back() -> None:
    """0 record of a transaction  1 commit  2 record of a transaction  3 commit  4 record"""

    async def act(harness: Harness) -> None:
        await harness.write_transaction(commit=True)
        await harness.write_transaction(commit=True)
        await harness.write(1)
        driver = await harness.queue()
        await harness.accept(driver, 0, 0)
        assert await harness.tidy(days=8) in (1, 2), "the marker goes with the record before or behind it"
        driver = await harness.reopened(driver)
        await harness.accept(driver, 2, 2)
        await harness.accept(driver, 4, 4)
        assert await harness.tidy() == 5
        assert harness.held == []

    play(act)


def test_the_slowest_queue_decides_and_groups_do_not_count() -> None:
    async def act(harness: Harness) -> None:
        await harness.write(6)
        await harness.accept(await harness.queue("quick"), 0, 5)
        await harness.accept(await harness.queue("slow"), 0, 2)
        row = OffsetToCommit(topic="t", partition=0, offset=1, metadata="")
        committed = await harness.node.groups.commit(CommitRequest(group_id="group", offsets=(row,)))
        assert list(committed.errors.values()) == [ErrorCode.NONE]
        assert await harness.tidy(days=8) == 3
        assert [held.queue for held in harness.held] == ["slow"]

    play(act)


def test_a_queue_that_no_consumer_uses_counts() -> None:
    async def act(harness: Harness) -> None:
        await harness.write(4)
        topic = harness.node.metadata.state.topics["t"]
        await harness.node.queues.overview.reset("forgotten", topic, 0, 2, caller=BROKER)
        assert not harness.node.queues.manager.drivers()
        assert await harness.tidy(days=8) == 2
        await harness.node.queues.overview.forget("forgotten", caller=BROKER)
        assert await harness.tidy() == 4

    play(act)


def test_retention_by_size_keeps_undone_messages_too() -> None:
    async def act(harness: Harness) -> None:
        await harness.write(6)
        await harness.accept(await harness.queue(), 0, 1)
        assert await harness.tidy() == 2
        assert harness.held[0].overdue_ms == 0
        await harness.accept(await harness.queue(), 2, 4)
        assert await harness.tidy() == 5

    play(act, KEEP | {"retention.bytes": "100"})


def test_a_shorter_retention_that_is_set_later_does_not_delete_undone_messages() -> None:
    async def act(harness: Harness) -> None:
        await harness.write(4)
        await harness.accept(await harness.queue(), 0, 0)
        await harness.alter(retention_ms="1000")
        assert await harness.tidy(days=1) == 1
        await harness.alter(penstock_retention_keep_undone="false")
        assert await harness.tidy(days=1) == 4

    play(act)


def test_a_topic_without_queues_expires_as_any_other() -> None:
    async def act(harness: Harness) -> None:
        await harness.write(4)
        assert STATE_TOPIC not in harness.node.metadata.state.topics
        assert await harness.tidy(days=8) == 4

    play(act)


def test_an_operator_may_delete_undone_messages() -> None:
    async def act(harness: Harness) -> None:
        await harness.write(4)
        driver = await harness.queue()
        harness.partition.delete_records(Offset(3))
        driver.deliver("member", 10, 1 << 20)
        [deleted] = harness.events.of("queue.undone_deleted")
        assert (deleted["count"], deleted["last_offset"]) == (3, 2)

    play(act)


def test_a_topic_that_is_held_back_is_reported_until_it_is_not() -> None:
    async def act(harness: Harness) -> None:
        await harness.write(4)
        driver = await harness.queue()
        await harness.accept(driver, 0, 0)
        await harness.tidy(days=10)
        [held] = harness.held
        assert (held.topic, held.partition, held.queue, held.records) == ("t", 0, "workers", 3)
        assert held.size_bytes == harness.partition.log.size_bytes
        assert 3 * DAY_MS <= held.overdue_ms < 4 * DAY_MS
        await harness.tidy()
        [told] = harness.events.of("retention.held_back")
        assert (told["topic"], told["group"], told["count"]) == ("t", "workers", 3)
        [row] = (await harness.node.status.snapshot()).held_back
        assert (row.topic, row.queue, row.records) == ("t", "workers", 3)
        await harness.accept(await harness.queue(), 1, 3)
        assert await harness.tidy() == 4
        assert not harness.held

    play(act)


# --- other topics


def test_undone_messages_that_retention_deletes_are_counted() -> None:
    async def act(harness: Harness) -> None:
        await harness.write(5)
        await harness.accept(await harness.queue(), 1, 1)
        assert await harness.tidy(days=8) == 5
        [deleted] = harness.events.of("queue.undone_deleted")
        assert (deleted["group"], deleted["topic"], deleted["count"]) == ("workers", "t", 4)
        [row] = await harness.node.queues.overview.descriptions("workers", caller=BROKER)
        assert (row.deleted_undone, row.undone, row.start_offset) == (4, 0, 5)
        [figures] = await harness.node.queues.manager.figures()
        assert figures.deleted == 4

    play(act, {})


def test_those_of_a_queue_without_consumers_are_counted_too_and_once() -> None:
    async def act(harness: Harness) -> None:
        await harness.write(5)
        topic = harness.node.metadata.state.topics["t"]
        await harness.node.queues.overview.reset("forgotten", topic, 0, 2, caller=BROKER)
        assert await harness.tidy(days=8) == 5
        await harness.write(1)
        await harness.tidy(days=8)
        assert [event["count"] for event in harness.events.of("queue.undone_deleted")] == [3, 1]

    play(act, {})


def test_messages_that_were_done_are_not_counted() -> None:
    async def act(harness: Harness) -> None:
        await harness.write(5)
        await harness.accept(await harness.queue(), 0, 4)
        assert await harness.tidy(days=8) == 5
        assert not harness.events.of("queue.undone_deleted")

    play(act, {})


def test_a_delay_beyond_retention_is_reported_when_the_queue_reads_it() -> None:
    """A Kafka client has its answer by then; the report is for the operator, and comes once an hour at most."""

    async def act(harness: Harness) -> None:
        await harness.write(1, delay_ms=6 * DAY_MS)
        driver = await harness.queue()
        driver.deliver("member", 10, 1 << 20)
        assert not harness.events.of("queue.delay_beyond_retention")
        await harness.write(2, delay_ms=8 * DAY_MS)
        driver.deliver("member", 10, 1 << 20)
        await harness.write(1, deliver_at=NOW_MS + 9 * DAY_MS)
        driver.deliver("member", 10, 1 << 20)
        [told] = harness.events.of("queue.delay_beyond_retention")
        assert (told["group"], told["topic"], told["due_ms"]) == ("workers", "t", NOW_MS + 8 * DAY_MS)

    play(act, {})
