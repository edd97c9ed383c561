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
