"""Thousands of dirty partitions are flushed by several cycles, each of which takes the event loop a bounded time."""

import asyncio
from collections.abc import Callable
from functools import partial
from uuid import uuid4

import pytest

from penstock.batch import Record, build_batch, check_batch
from penstock.cluster import NewTopic, decisions
from penstock.config import Address, NodeConfig
from penstock.errors import ErrorCode, KafkaError, StorageError
from penstock.node import Node, Partition
from penstock.node.replication import flusher
from penstock.node.replication.replica import PartitionReplica
from tests.log_records import own_records

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


@pytest.mark.parametrize(
    ("part_of", "method"),
    [
        (lambda replica: replica.log.maintenance, "is_capture_due"),  # `begin`, when the ticket is issued
        (lambda replica: replica.log.files.flushed, "finish"),  # `finish`, before the ticket is back
        (lambda replica: replica, "flushed"),  # after that
    ],
    ids=["begin", "finish", "flushed"],
)
def test_a_bug_in_the_flush_of_one_partition_takes_it_offline_and_stops_no_flush_of_another_one(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    part_of: Callable[[PartitionReplica], object],
    method: str,
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
        faulty = part_of(node.leader("t", 0).replica)
        original = getattr(type(faulty), method)

        def fails_once(part: object, *args: object, **options: object) -> object:
            if part is faulty and not own_records(caplog):
                raise ZeroDivisionError
            return original(part, *args, **options)

        monkeypatch.setattr(type(faulty), method, fails_once)
        waiting = [append(node.leader("t", index)) for index in range(4)]
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(*(one for one in waiting[1:] if one is not None))
            assert waiting[0] is not None
            with pytest.raises(StorageError, match="a bug in its flush: ZeroDivisionError"):
                await waiting[0]
        assert "a bug in its flush: ZeroDivisionError" in str(node.leader("t", 0).offline_reason)
        with pytest.raises(KafkaError) as refused:
            append(node.leader("t", 0))
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        again = [append(node.leader("t", index)) for index in range(1, 4)]
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(*(one for one in again if one is not None))
            await node.stop()

    asyncio.run(scenario())
    bug, offline = own_records(caplog)
    assert bug.getMessage().startswith("t-0: a bug in its flush")
    assert bug.exc_info is not None
    assert isinstance(bug.exc_info[1], ZeroDivisionError)
    assert offline.getMessage().startswith("t-0 takes no part until the next start")
