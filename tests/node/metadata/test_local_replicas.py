"""Which replicas a node opens when it starts."""

from typing import cast

import pytest

from penstock.cluster import reassign
from penstock.config import TopicConfig
from penstock.node.metadata.local_replicas import LocalReplicas
from penstock.node.parts import TopicChanges
from penstock.node.replication.partition_table import PartitionTable
from penstock.node.workers import Workers
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

    def reconfigure(self, topic: str, config: TopicConfig) -> None: ...


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
