"""Partitions that are deleted are freed at once: a search for garbage among all objects would hold up everybody."""

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from penstock.cluster import NewTopic, decisions
from penstock.config import Address, NodeConfig
from penstock.node import Node
from penstock.node.metadata import local_replicas


@pytest.fixture
def _no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


async def node_with_topic(name: str, partitions: int, on_growth: Callable[[int], None] | None = None) -> Node:
    node = Node(NodeConfig(memory=True, kafka=Address("127.0.0.1", 1)), on_growth=on_growth)
    await node.start()
    await create(node, name, partitions)
    return node


async def create(node: Node, name: str, partitions: int) -> None:
    new_topic = NewTopic(name=name, topic_id=uuid4(), partitions=partitions)
    await node.metadata.change(lambda state: decisions.create_topic(state, new_topic, node.controller.rules))


async def delete(node: Node, name: str) -> None:
    await node.metadata.change(lambda state: decisions.delete_topic(state, name))


@pytest.mark.usefixtures("_no_collection")
def test_a_deleted_partition_is_freed_without_a_search_for_garbage() -> None:
    async def scenario() -> None:
        node = await node_with_topic("t", 3)
        partitions = [weakref.ref(node.leader("t", index)) for index in range(3)]
        await delete(node, "t")
        await node.replicas.stop()  # files are removed in a thread, which refers to the log
        assert [partition() for partition in partitions] == [None, None, None]
        await node.stop()

    asyncio.run(scenario())


def test_a_closed_partition_can_still_be_asked_by_code_that_holds_it() -> None:
    async def scenario() -> None:
        node = await node_with_topic("t", 1)
        partition = node.leader("t", 0)
        await delete(node, "t")
        assert not partition.serves
        assert partition.replica.label == "t-0"
        assert partition.replica.in_sync_nodes() == (1,)
        assert [row.node_id for row in partition.replica.progress()] == [1]
        await node.stop()

    asyncio.run(scenario())


def test_growth_is_told_once_for_so_many_new_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_replicas, "GROWN_BY", 10)

    async def scenario() -> None:
        told: list[int] = []
        node = await node_with_topic("t", 9, on_growth=told.append)
        assert told == []
        await create(node, "u", 2)
        assert told == [10]
        await delete(node, "t")
        await create(node, "t", 9)
        assert told == [10]
        await create(node, "v", 9)
        assert told == [10, 12]
        await node.stop()

    asyncio.run(scenario())
