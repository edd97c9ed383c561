"""Rounds of the reconciler: they leave a partition alone while nothing changes, and notice when something does."""

from tests.kafka.requests import create, write
from tests.kafka.trio import Trio


def in_sync(trio: Trio, leader: int) -> tuple[int, ...]:
    """The nodes in sync, as the leader last announced them."""
    node = trio.node(leader)
    return node.leaders.get(trio.replica(leader, "orders").group).in_sync


def test_an_idle_partition_is_left_alone_until_its_replicas_or_its_log_change() -> None:
    with Trio() as trio:
        with trio.client(1) as client:
            create(client, "orders", partitions=1)
        leader = trio.leader("orders")
        replica = trio.replica(leader, "orders").replica
        trio.eventually(lambda: replica.is_still_in_sync() and set(in_sync(trio, leader)) == {1, 2, 3})
        silent = trio.followers("orders")[0]
        with trio.cut_off(silent):
            trio.eventually(lambda: silent not in in_sync(trio, leader))
            assert not trio.call(replica.is_still_in_sync)
        trio.eventually(lambda: silent in in_sync(trio, leader))
        trio.eventually(replica.is_still_in_sync)
        with trio.client(leader) as client:
            write(client, "orders")
        committed = trio.call(lambda: replica.consensus.core.commit_index)
        trio.eventually(lambda: replica.is_still_in_sync() and replica._sampled_commit == committed)
