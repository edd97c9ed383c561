"""Which replicas a node opens, and that it opens and closes thousands of them in slices."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import cast
from uuid import uuid4

import pytest

from penstock.cluster import MetadataRecord, NewTopic, decisions
from penstock.cluster.reassignment import reassign
from penstock.config import Address, NodeConfig, TopicConfig
from penstock.node import Node
from penstock.node.metadata.local_replicas import STEPS_PER_SLICE, LocalReplicas
from penstock.node.parts import TopicChanges
from penstock.node.replication.partition_table import PartitionTable
from penstock.node.scheduling.workers import Workers
from penstock.raft import GroupConfig
from penstock.types import GroupId, Replica, TopicPartition
from tests.cluster.clusters import apply, assign, cluster_of, finish, group, replica


class Table:
    """A table of partitions of a node that has just started: `stored` are the groups that it has a log of."""

    def __init__(self, stored: set[GroupId]) -> None:
        self.stored = stored
        self.opened: list[str] = []

    def held(self, topic: str) -> list[int]:
        return []

    def had_log(self, group: GroupId) -> bool:
        return group in self.stored

    def replica(self, group: GroupId) -> Replica:
        return replica(4)

    def open(
        self, name: TopicPartition, group: GroupId, config: TopicConfig, founding: GroupConfig | None
    ) -> None:
        self.opened.append(str(name))

    def offline_reason(self, topic: str, index: int) -> None: ...

    def reconfigure(self, topic: str, index: int, config: TopicConfig) -> None: ...


@pytest.mark.parametrize("has_log", [True, False])
@pytest.mark.parametrize("is_over", [True, False])
def test_a_replica_of_a_replaced_move_is_opened_until_its_group_has_removed_it(
    has_log: bool, is_over: bool
) -> None:
    """The group may have made node 4 a voter before another move replaced the first one."""
    state = cluster_of(1, 2, 3, 4, 5)
    assign(state, "orders", [1, 2, 3])
    apply(state, reassign(state, "orders", 0, [1, 2, 4]))
    apply(state, reassign(state, "orders", 0, [1, 2, 5]))
    if is_over:
        finish(state, group("orders"))
    table = Table({group("orders")} if has_log else set())
    local = LocalReplicas(
        me=replica(4), state=state, partitions=cast(PartitionTable, table), workers=cast(Workers, None)
    )
    local.metadata_changed(TopicChanges(changed=("orders",)))
    assert table.opened == (["orders-0"] if has_log and not is_over else [])


# --- in slices

PARTITIONS = 5 * STEPS_PER_SLICE


def on_node(scenario: Callable[[Node], Awaitable[None]]) -> None:
    async def run() -> None:
        node = Node(NodeConfig(memory=True, kafka=Address("127.0.0.1", 1)))
        await node.start()
        try:
            await scenario(node)
        finally:
            await node.stop()

    asyncio.run(run())


def creation(node: Node, name: str, partitions: int) -> list[MetadataRecord]:
    new_topic = NewTopic(name=name, topic_id=uuid4(), partitions=partitions)
    return decisions.create_topic(node.metadata.state, new_topic, node.controller.rules)


def deletion(node: Node, name: str) -> list[MetadataRecord]:
    return decisions.delete_topic(node.metadata.state, name)


async def watched(node: Node, topic: str, records: Sequence[MetadataRecord]) -> list[int]:
    """Commits the records; how many replicas of the topic were open in each turn of the event loop meanwhile."""
    seen: list[int] = []
    change = asyncio.ensure_future(node.metadata.change(lambda _: records))
    while not change.done():
        seen.append(len(node.partitions.held(topic)))
        await asyncio.sleep(0)
    await change
    return seen


def steps(counts: Sequence[int]) -> list[int]:
    return [abs(after - before) for before, after in pairwise(counts)]


def test_the_replicas_of_a_large_topic_are_opened_in_slices_and_the_topic_is_there_as_a_whole() -> None:
    async def scenario(node: Node) -> None:
        seen = await watched(node, "wide", creation(node, "wide", PARTITIONS))
        assert 0 < max(steps(seen)) <= STEPS_PER_SLICE
        assert node.metadata.state.topics["wide"].partitions == PARTITIONS
        assert all(node.leader("wide", index).serves for index in range(PARTITIONS))

    on_node(scenario)


def test_the_replicas_of_a_deleted_topic_are_closed_in_slices() -> None:
    async def scenario(node: Node) -> None:
        await node.metadata.change(lambda _: creation(node, "wide", PARTITIONS))
        seen = await watched(node, "wide", deletion(node, "wide"))
        assert 0 < max(steps(seen)) <= STEPS_PER_SLICE
        assert node.partitions.held("wide") == []

    on_node(scenario)


def test_a_topic_that_is_created_again_in_the_middle_of_its_deletion_gets_new_replicas() -> None:
    async def scenario(node: Node) -> None:
        await node.metadata.change(lambda _: creation(node, "t", PARTITIONS))
        before = node.leader("t", 0)
        changes = TopicChanges(changed=("t",))
        node.metadata.state.apply(deletion(node, "t")[0])
        node.replicas.metadata_changed(changes)
        assert 0 < len(node.partitions.held("t")) < PARTITIONS
        new_topic = NewTopic(name="t", topic_id=uuid4(), partitions=3)
        rules = node.controller.rules
        node.metadata.state.apply(decisions.create_topic(node.metadata.state, new_topic, rules)[0])
        node.replicas.metadata_changed(changes)
        await node.settled()
        assert node.partitions.held("t") == [0, 1, 2]
        assert before.closed
        assert {node.leader("t", index).group.topic_id for index in range(3)} == {new_topic.topic_id}

    on_node(scenario)
