"""Which nodes hold a partition: chosen in turn, or as a client assigned them.

In turn means: partition p of a topic starts at node p (counted round), and its further replicas follow. Every
node leads and holds as many partitions as every other, plus or minus one per topic.
"""

from collections.abc import Mapping, Sequence

import msgspec

from penstock.cluster.records import Assignments
from penstock.config import Limits
from penstock.errors import ErrorCode, KafkaError


class PlacementRules(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that placing needs: the nodes there are, and what a client gets that leaves the choice to us."""

    nodes: tuple[int, ...]
    default_partitions: int = 1
    default_replication_factor: int = 1
    limits: Limits = Limits()


def place(
    partitions: int,
    replication_factor: int,
    manual: Mapping[int, Sequence[int]] | None,
    rules: PlacementRules,
    *,
    first: int = 0,
) -> Assignments:
    """The replicas of `partitions` partitions. `first` shifts the turn."""
    if manual is not None:
        return _check_manual(manual, rules.nodes)
    _check_factor(replication_factor, rules.nodes)
    nodes = sorted(rules.nodes)
    return [
        [nodes[(first + partition + replica) % len(nodes)] for replica in range(replication_factor)]
        for partition in range(partitions)
    ]


def _check_factor(replication_factor: int, nodes: Sequence[int]) -> None:
    if not 1 <= replication_factor <= len(nodes):
        known = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
        message = f"replication factor {replication_factor} is not possible: the cluster has {known}"
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)


def _check_manual(manual: Mapping[int, Sequence[int]], nodes: Sequence[int]) -> Assignments:
    if sorted(manual) != list(range(len(manual))):
        raise _wrong("partitions must be numbered from 0 without a gap")
    factor = len(manual[0])
    for partition, replicas in manual.items():
        if not replicas:
            raise _wrong(f"partition {partition} has no replicas")
        if len(set(replicas)) != len(replicas):
            raise _wrong(f"partition {partition} names a node twice: {list(replicas)}")
        if len(replicas) != factor:
            raise _wrong(f"partition {partition} has {len(replicas)} replicas, partition 0 has {factor}")
        unknown = sorted(set(replicas) - set(nodes))
        if unknown:
            raise _wrong(f"partition {partition} names nodes {unknown}; the cluster has {sorted(nodes)}")
    return [list(manual[partition]) for partition in sorted(manual)]


def _wrong(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
