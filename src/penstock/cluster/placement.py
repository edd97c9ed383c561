"""Which nodes hold a new partition: chosen by load, or assigned by a client.

The choice by load follows these rules, in this order:

1. Replicas of one partition are never on one machine: nodes that name the same machine (the processes of `penstock
   serve --processes`) hold at most one of them together, also where a client assigns them. A node that names no machine
   counts as its own.
2. They are on as many racks as possible. A node without a rack counts as its own rack.
3. No node gets more than its share of one topic, rounded up: a node that has just joined is empty, and without this
   rule a new topic would go there as a whole, with all of its load on one machine.
4. The node with the fewest replicas, counted over all topics, gets the next one, and of a partition's nodes the one
   that leads the least leads.

If loads are level at the start and racks do not matter, the nodes' numbers of replicas stay within one of each other.
Fenced nodes and nodes that are being decommissioned get nothing.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from penstock.cluster.levelling import level_leaders
from penstock.cluster.nodes import Machine, Rack, machine_of, rack_of
from penstock.cluster.records import Assignments
from penstock.cluster.state import ClusterState
from penstock.config import Limits
from penstock.errors import ErrorCode, KafkaError


class PlacementRules(msgspec.Struct, frozen=True, kw_only=True):
    """Placement settings besides the state: defaults for clients that leave the choice to the broker, and the nodes
    that exist while none has registered."""

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
    """The replicas of `partitions` new partitions; `present` are the replicas of the topic's other partitions."""
    nodes = placement_nodes(state, rules)
    if manual is not None:
        return _check_manual(state, manual, nodes)
    if not 1 <= replication_factor <= machine_count(state, nodes):
        message = f"replication factor {replication_factor} is not possible: {_known(state, nodes)}"
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    if len(nodes) == 1:
        return [[nodes[0]] for _ in range(partitions)]
    return _Placement(state, nodes, partitions + len(present), present).place(partitions, replication_factor)


def placement_nodes(state: ClusterState, rules: PlacementRules) -> tuple[int, ...]:
    return state.usable_nodes() if state.nodes else tuple(sorted(rules.nodes))


def machine_count(state: ClusterState, nodes: Iterable[int]) -> int:
    """How many replicas of one partition these nodes can hold (1)."""
    return len({machine_of(node, state.nodes.get(node)) for node in nodes})


def incarnations_of(state: ClusterState, assignments: Assignments) -> Assignments:
    """The incarnations of the nodes in `assignments`; empty if no node has registered."""
    if not state.nodes:
        return []
    return [[state.nodes[node].incarnation for node in replicas] for replicas in assignments]


class _Placement:
    """Places the partitions of one topic."""

    def __init__(
        self, state: ClusterState, nodes: Sequence[int], partitions: int, present: Sequence[Sequence[int]]
    ) -> None:
        self._nodes = nodes
        self._partitions = partitions
        self._racks: dict[int, Rack] = {node: rack_of(node, state.nodes.get(node)) for node in nodes}
        self._machines: dict[int, Machine] = {node: machine_of(node, state.nodes.get(node)) for node in nodes}
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
        # Each leader was chosen before the later partitions were placed.
        for _ in level_leaders(placed, self._led_here):
            pass
        return [list(placed[partition]) for partition in range(partitions)]

    def _choose(self, factor: int, share: int) -> list[int]:
        chosen: list[int] = []
        per_rack: dict[Rack, int] = {}
        taken: set[Machine] = set()
        for _ in range(factor):
            node = min(
                (node for node in self._nodes if self._machines[node] not in taken),
                key=lambda node: (
                    per_rack.get(self._racks[node], 0),
                    self._held_here[node] >= share,
                    self._held[node],
                    self._held_here[node],
                    node,
                ),
            )
            chosen.append(node)
            taken.add(self._machines[node])
            per_rack[self._racks[node]] = per_rack.get(self._racks[node], 0) + 1
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
    machines = machine_count(state, nodes)
    if machines < len(nodes):
        where = "1 machine" if machines == 1 else f"{machines} machines"
        known += f" on {where} (a machine holds one replica of a partition)"
    useless = [str(node) for node, info in sorted(state.nodes.items()) if not info.usable]
    if not useless:
        return f"the cluster has {known}"
    which = f"node {useless[0]} is" if len(useless) == 1 else f"nodes {', '.join(useless)} are"
    return f"the cluster has {known} that can take replicas ({which} gone or leaving)"


def _check_manual(
    state: ClusterState, manual: Mapping[int, Sequence[int]], nodes: Sequence[int]
) -> Assignments:
    if sorted(manual) != list(range(len(manual))):
        raise wrong_assignment("partitions must be numbered from 0 without a gap")
    factor = len(manual[0])
    for partition, replicas in manual.items():
        check_replicas(partition, replicas, nodes)
        check_machines(state, partition, replicas)
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


def check_machines(state: ClusterState, partition: int, replicas: Sequence[int]) -> None:
    """Raises INVALID_REPLICA_ASSIGNMENT if two of them share a machine (1): the loss of one machine would cost both."""
    first: dict[Machine, int] = {}
    for node in replicas:
        machine = machine_of(node, state.nodes.get(node))
        other = first.setdefault(machine, node)
        if other != node:
            raise wrong_assignment(
                f"partition {partition} names nodes {other} and {node}, which share the machine {machine[0]}: one "
                "machine holds one replica of a partition"
            )


def wrong_assignment(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
