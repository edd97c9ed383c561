"""Housekeeping of a node: when expired records are deleted, and how much a scrub reads at a time."""

import asyncio
from collections.abc import Awaitable, Callable
from uuid import uuid4

import pytest

from penstock.batch import Record, build_batch, check_batch
from penstock.cluster import NewTopic, decisions
from penstock.config import NodeConfig
from penstock.node import Node, Partition
from penstock.node import housekeeping as housekeeping_room
from penstock.node.housekeeping import RETENTION_GRACE_MS, Housekeeping
from penstock.node.scheduling.workers import Workers
from penstock.types import Offset

NOW_MS = 1_700_000_000_000
LONG_AGO_MS = 1000
DAY_MS = 24 * 3600 * 1000
Scenario = Callable[[Partition, Housekeeping, "SetClock"], Awaitable[None]]


class SetClock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def wall_ms(self) -> int:
        return self.now_ms


def play(scenario: Scenario, **configs: str) -> None:
    """Runs a scenario on a node with one topic of one partition, which has an old record."""

    async def run() -> None:
        clock = SetClock()
        node = Node(NodeConfig(memory=True, http=None), clock=clock)
        await node.start()
        new_topic = NewTopic(name="t", topic_id=uuid4(), partitions=1, configs=configs)
        await node.metadata.change(
            lambda state: decisions.create_topic(state, new_topic, node.controller.rules)
        )
        partition = node.leader("t", 0)
        batch = memoryview(bytearray(build_batch([Record(0, LONG_AGO_MS, b"k", bytes(1000), ())])))
        partition.append(batch, check_batch(batch))
        await node.storage.flusher.drain()
        workers = Workers()
        await scenario(partition, Housekeeping(node.partitions, workers, clock, node.metrics), clock)
        workers.stop()
        await node.stop()

    asyncio.run(run())


@pytest.mark.parametrize(("retention_ms", "grace_ms"), [(7 * DAY_MS, RETENTION_GRACE_MS), (1000, 1000)])
def test_expired_records_can_be_read_until_their_grace_is_over(retention_ms: int, grace_ms: int) -> None:
    async def scenario(partition: Partition, housekeeping: Housekeeping, clock: SetClock) -> None:
        for _ in range(2):
            await housekeeping.tidy()
            assert partition.read(Offset(0), 10_000, end=partition.high_watermark, at_least_one=True)
            clock.now_ms += grace_ms - 1
        await housekeeping.tidy()
        assert partition.start_offset == partition.high_watermark == 1

    play(scenario, **{"retention.ms": str(retention_ms)})


def test_records_above_retention_bytes_are_deleted_at_once() -> None:
    async def scenario(partition: Partition, housekeeping: Housekeeping, clock: SetClock) -> None:
        await housekeeping.tidy()
        assert partition.start_offset == 1

    play(scenario, **{"retention.ms": str(7 * DAY_MS), "retention.bytes": "100"})


def test_a_topic_without_retention_keeps_old_records() -> None:
    async def scenario(partition: Partition, housekeeping: Housekeeping, clock: SetClock) -> None:
        for _ in range(3):
            await housekeeping.tidy()
            clock.now_ms += 30 * DAY_MS
        assert partition.start_offset == 0

    play(scenario, **{"retention.ms": "-1"})


# --- scrubbing


def scrub_once(partitions: int, monkeypatch: pytest.MonkeyPatch, **limits: int) -> list[int]:
    """How many bytes of each of these small partitions one turn has read."""
    for name, value in limits.items():
        monkeypatch.setattr(housekeeping_room, name, value)
    read: dict[Partition, int] = {}

    async def run() -> None:
        clock = SetClock()
        node = Node(NodeConfig(memory=True, http=None), clock=clock)
        await node.start()
        configs = {"internal.segment.bytes": "2000"}
        new_topic = NewTopic(name="t", topic_id=uuid4(), partitions=partitions, configs=configs)
        await node.metadata.change(
            lambda state: decisions.create_topic(state, new_topic, node.controller.rules)
        )
        for index in range(partitions):
            fill(node.leader("t", index))
        await node.storage.flusher.drain()
        workers = Workers()
        keeping = Housekeeping(node.partitions, workers, clock, node.metrics)
        count(keeping, read)
        await keeping.scrub()
        workers.stop()
        await node.stop()

    asyncio.run(run())
    return list(read.values())


def fill(partition: Partition) -> None:
    """Two sealed segments, and an active one."""
    for _ in range(5):
        batch = memoryview(bytearray(build_batch([Record(0, NOW_MS, b"k", bytes(1000), ())])))
        partition.append(batch, check_batch(batch))


def count(keeping: Housekeeping, read: dict[Partition, int]) -> None:
    scrub = keeping._scrub

    async def counted(partition: Partition, max_bytes: int) -> int:
        found = await scrub(partition, max_bytes)
        if found:
            read[partition] = read.get(partition, 0) + found
        return found

    keeping._scrub = counted  # type: ignore[method-assign]


def test_one_turn_scrubs_all_small_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    found = scrub_once(60, monkeypatch)
    assert len(found) == 60
    assert min(found) > 2000


def test_a_turn_ends_when_enough_bytes_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    found = scrub_once(20, monkeypatch, SCRUB_BYTES=5000)
    assert 1 < len(found) < 5
    assert sum(found) >= 5000


def test_a_turn_ends_after_a_number_of_partitions_however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(scrub_once(20, monkeypatch, SCRUBS_PER_TURN=7)) == 7
