"""Thousands of dirty partitions are flushed by several cycles, each of which takes the event loop a bounded time."""

import asyncio
from functools import partial
from uuid import uuid4

import pytest

from penstock.batch import Record, build_batch, check_batch
from penstock.cluster import NewTopic, decisions
from penstock.config import Address, NodeConfig
from penstock.node import Node, Partition
from penstock.node.replication import flusher
from penstock.node.replication.replica import PartitionReplica

PATIENCE_SECONDS = 20.0


def append(partition: Partition) -> "asyncio.Future[None] | None":
    batch = memoryview(bytearray(build_batch([Record(0, 0, None, b"x", ())])))
    return partition.committed_at(partition.append(batch, check_batch(batch)))


def note(order: list[int], index: int, committed: "asyncio.Future[None]") -> None:
    order.append(index)


def test_a_cycle_takes_the_partitions_that_have_waited_longest_and_the_next_ones_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flusher, "PARTITIONS_PER_CYCLE", 2)

    async def scenario() -> None:
        node = Node(NodeConfig(memory=True, kafka=Address("127.0.0.1", 1)))
        await node.start()
        new_topic = NewTopic(name="t", topic_id=uuid4(), partitions=5)
        await node.metadata.change(
            lambda state: decisions.create_topic(state, new_topic, node.controller.rules)
        )
        await node.storage.flusher.drain()
        before = node.storage.flusher.cycles
        order: list[int] = []
        for index in (3, 1, 4, 0, 2):
            committed = append(node.leader("t", index))
            assert committed is not None
            committed.add_done_callback(partial(note, order, index))
        await node.storage.flusher.drain()
        await asyncio.sleep(0)
        assert order == [3, 1, 4, 0, 2]
        assert node.storage.flusher.cycles - before == 3
        await node.stop()

    asyncio.run(scenario())


def test_a_bug_in_one_partition_stops_no_flush_of_another_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(flusher, "PARTITIONS_PER_CYCLE", 2)

    async def scenario() -> None:
        node = Node(NodeConfig(memory=True, kafka=Address("127.0.0.1", 1)))
        await node.start()
        new_topic = NewTopic(name="t", topic_id=uuid4(), partitions=4)
        await node.metadata.change(
            lambda state: decisions.create_topic(state, new_topic, node.controller.rules)
        )
        await node.storage.flusher.drain()
        faulty = node.leader("t", 0).replica
        flushed = PartitionReplica.flushed

        def fails_once(replica: PartitionReplica) -> None:
            if replica is faulty and not caplog.records:
                raise ZeroDivisionError
            flushed(replica)

        monkeypatch.setattr(PartitionReplica, "flushed", fails_once)
        for _ in range(2):
            waiting = [append(node.leader("t", index)) for index in range(4)]
            async with asyncio.timeout(PATIENCE_SECONDS):
                await asyncio.gather(*(one for one in waiting[1:] if one is not None))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await node.stop()

    asyncio.run(scenario())
    (line,) = caplog.records
    assert line.getMessage().startswith("t-0: a bug in its flush")
    assert line.exc_info is not None
    assert isinstance(line.exc_info[1], ZeroDivisionError)
