"""Which nodes hold a new partition: chosen by load, or as a client assigned them.

Chosen by load means, in this order:

1. Replicas of one partition are on different nodes, and on as many racks as there are. A node that names no rack is a
   rack of its own.
2. No node gets more than its share of one topic, rounded up: a node that has just joined is empty, and a new topic
   that went there as a whole would find all of its load on one machine.
3. Nodes that hold the least get the next replica, counted over all topics, and of a partition's nodes the one that
   leads the least leads.

From a level start, with nodes alone to consider, the nodes' numbers of replicas stay within one of each other.
Fenced nodes and those that are about to leave get nothing.
"""

from collections.abc import Mapping, Sequence

import msgspec

from penstock.cluster.levelling import level_leaders
from penstock.cluster.nodes import Rack, rack_of
from penstock.cluster.records import Assignments
from penstock.cluster.state import ClusterState
from penstock.config import Limits
from penstock.errors import ErrorCode, KafkaError


class PlacementRules(msgspec.Struct, frozen=True, kw_only=True):
    """What placing needs besides the state: what a client gets that leaves the choice to us, and the nodes there are
    as long as none has registered."""

    nodes: tuple[int, ...]
    default_partitions: int = 1
    default_replication_factor: int = 1
    limits: Limits = Limits()


def place(
    state: ClusterState,
    partitions: int,
    replication_factor: int,
    manual: Mapping[int, Sequence[int]] | None,
    rules: PlacementRules,
    *,
    present: Sequence[Sequence[int]] = (),
) -> Assignments:
    """The replicas of `partitions` new partitions; `present` are those that the topic has already."""
    nodes = placement_nodes(state, rules)
    if manual is not None:
        return _check_manual(manual, nodes)
    if not 1 <= replication_factor <= len(nodes):
        message = f"replication factor {replication_factor} is not possible: {_known(state, nodes)}"
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    if len(nodes) == 1:
        return [[nodes[0]] for _ in range(partitions)]
    return _Sheet(state, nodes, partitions + len(present), present).place(partitions, replication_factor)


def placement_nodes(state: ClusterState, rules: PlacementRules) -> tuple[int, ...]:
    return state.usable_nodes() if state.nodes else tuple(sorted(rules.nodes))


def rack_warning(state: ClusterState, replication_factor: int) -> str | None:
    """What to tell whoever asks for more replicas than there are racks; None when all is well."""
    racks = {rack_of(node, state.nodes[node]) for node in state.usable_nodes()}
    if not racks or replication_factor <= len(racks):
        return None
    return (
        f"{replication_factor} replicas on {len(racks)} {'rack' if len(racks) == 1 else 'racks'}: they are on "
        "different nodes, but the loss of one rack takes several of them at once"
    )


def incarnations_of(state: ClusterState, assignments: Assignments) -> Assignments:
    """As which incarnation each node holds its partition; none where nobody has registered."""
    if not state.nodes:
        return []
    return [[state.nodes[node].incarnation for node in replicas] for replicas in assignments]


class _Sheet:
    """Counts while the partitions of one topic are placed."""

    def __init__(
        self, state: ClusterState, nodes: Sequence[int], partitions: int, present: Sequence[Sequence[int]]
    ) -> None:
        self._nodes = nodes
        self._partitions = partitions
        self._racks: dict[int, Rack] = {node: rack_of(node, state.nodes.get(node)) for node in nodes}
        self._held = {node: state.replica_counts.get(node, 0) for node in nodes}
        self._led = {node: state.leader_counts.get(node, 0) for node in nodes}
        self._held_here = {node: sum(node in replicas for replicas in present) for node in nodes}
        self._led_here = {node: sum(node == replicas[0] for replicas in present) for node in nodes}

    def place(self, partitions: int, factor: int) -> Assignments:
        share = -(-self._partitions * factor // len(self._nodes))
        lead_share = -(-self._partitions // len(self._nodes))
        placed: dict[int, tuple[int, ...]] = {}
        for partition in range(partitions):
            placed[partition] = self._led_first(self._choose(factor, share), lead_share)
        # Each leader was chosen without knowing the sets to come.
        for _ in level_leaders(placed, self._led_here):
            pass
        return [list(placed[partition]) for partition in range(partitions)]

    def _choose(self, factor: int, share: int) -> list[int]:
        chosen: list[int] = []
        crowd: dict[Rack, int] = {}
        for _ in range(factor):
            node = min(
                (node for node in self._nodes if node not in chosen),
                key=lambda node: (
                    crowd.get(self._racks[node], 0),
                    self._held_here[node] >= share,
                    self._held[node],
                    self._held_here[node],
                    node,
                ),
            )
            chosen.append(node)
            crowd[self._racks[node]] = crowd.get(self._racks[node], 0) + 1
            self._held[node] += 1
            self._held_here[node] += 1
        return chosen

    def _led_first(self, chosen: list[int], share: int) -> tuple[int, ...]:
        leader = min(chosen, key=lambda node: (self._led_here[node] >= share, self._led[node], node))
        self._led[leader] += 1
        self._led_here[leader] += 1
        return (leader, *(node for node in chosen if node != leader))


def _known(state: ClusterState, nodes: Sequence[int]) -> str:
    known = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
    useless = [str(node) for node, info in sorted(state.nodes.items()) if not info.usable]
    if not useless:
        return f"the cluster has {known}"
    which = f"node {useless[0]} is" if len(useless) == 1 else f"nodes {', '.join(useless)} are"
    return f"the cluster has {known} that can take replicas ({which} gone or about to leave)"


def _check_manual(manual: Mapping[int, Sequence[int]], nodes: Sequence[int]) -> Assignments:
    if sorted(manual) != list(range(len(manual))):
        raise wrong_assignment("partitions must be numbered from 0 without a gap")
    factor = len(manual[0])
    for partition, replicas in manual.items():
        check_replicas(partition, replicas, nodes)
        if len(replicas) != factor:
            raise wrong_assignment(
                f"partition {partition} has {len(replicas)} replicas, partition 0 has {factor}"
            )
    return [list(manual[partition]) for partition in sorted(manual)]


def check_replicas(partition: int, replicas: Sequence[int], nodes: Sequence[int]) -> None:
    """Raises INVALID_REPLICA_ASSIGNMENT unless these are distinct nodes out of `nodes`."""
    if not replicas:
        raise wrong_assignment(f"partition {partition} has no replicas")
    if len(set(replicas)) != len(replicas):
        raise wrong_assignment(f"partition {partition} names a node twice: {list(replicas)}")
    unknown = sorted(set(replicas) - set(nodes))
    if unknown:
        raise wrong_assignment(
            f"partition {partition} names nodes {unknown}; the cluster has {sorted(nodes)}"
        )


def wrong_assignment(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
