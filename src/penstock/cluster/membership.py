"""Decisions on nodes: registration, fencing, decommissioning, removal.

Gossip alone decides nothing: the metadata has the state of a node, and the controller changes it after a grace period.
No two clocks are compared: the input is for how long the *controller* has not seen a node. A new controller starts to
count at 0, so it waits longer, never shorter.
"""

from collections.abc import Collection, Mapping

import msgspec

from penstock.cluster.placement import machine_count
from penstock.cluster.records import (
    MetadataRecord,
    NodeDecommissioning,
    NodeFenced,
    NodeRegistered,
    NodeRemoved,
    NodeUnfenced,
)
from penstock.cluster.state import ClusterState
from penstock.errors import ErrorCode, KafkaError

NEVER = 0


class NodeTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long a node may be unseen before it is fenced (equal to Kafka's broker session timeout), and before its
    replicas are rebuilt elsewhere (long enough for a machine to restart; 0 for never)."""

    fence_after_ms: int = 9_000
    replace_after_ms: int = 600_000


class Sightings:
    """Counts how long each node has not been seen, on the controller's own clock."""

    def __init__(self) -> None:
        self._last_ms: dict[int, int] = {}

    def see(self, now_ms: int, nodes: Collection[int], alive: Collection[int]) -> dict[int, int]:
        """Records which nodes are seen at this moment; returns for how many milliseconds each was not seen, 0 only for
        those seen. The time of a node that was never seen counts from a millisecond ago: it must not look like one that
        is back, or a new controller would unfence every dead node.
        """
        first_ms = now_ms - 1
        known = {
            node: now_ms if node in alive else self._last_ms.get(node, first_ms) for node in sorted(nodes)
        }
        self._last_ms = known
        return {node: now_ms - last_ms for node, last_ms in known.items()}


def register_node(
    state: ClusterState, wanted: NodeRegistered, seen: Mapping[int, int]
) -> list[MetadataRecord]:
    """Registers a node. `seen` are the nodes that gossip sees now, with their incarnations.

    A node with another incarnation than before has lost its data. It is registered again, and moves rebuild its
    replicas; unless the earlier incarnation is still seen: then two machines have the same id.
    """
    if wanted.node_id < 0 or wanted.incarnation <= 0:
        message = (
            f"node {wanted.node_id}, incarnation {wanted.incarnation}: an id is not negative, and an incarnation is "
            "positive"
        )
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    known = state.nodes.get(wanted.node_id)
    if known is None:
        return [wanted]
    if known.incarnation != wanted.incarnation and seen.get(known.node_id) == known.incarnation:
        message = (
            f"node id {known.node_id} belongs to the node at {known.cluster}, which is running: give the node at "
            f"{wanted.cluster} another id"
        )
        raise KafkaError(ErrorCode.DUPLICATE_RESOURCE, message)
    return [] if known.as_record() == wanted and known.alive else [wanted]


def watch_nodes(
    state: ClusterState, unseen_ms: Mapping[int, int], timeouts: NodeTimeouts
) -> list[MetadataRecord]:
    """Fences and unfences nodes. A node that is not in `unseen_ms` stays as it is."""
    records: list[MetadataRecord] = []
    for node_id, info in sorted(state.nodes.items()):
        silent_ms = unseen_ms.get(node_id)
        if silent_ms is None:
            continue
        if info.fenced and silent_ms == 0:
            records.append(NodeUnfenced(node_id=node_id))
        elif info.alive and silent_ms >= timeouts.fence_after_ms:
            records.append(NodeFenced(node_id=node_id))
    return records


def gone_nodes(state: ClusterState, unseen_ms: Mapping[int, int], timeouts: NodeTimeouts) -> tuple[int, ...]:
    """Fenced nodes that have been unseen for so long that their replicas are to be rebuilt elsewhere."""
    if timeouts.replace_after_ms == NEVER:
        return ()
    return tuple(
        node_id
        for node_id, info in sorted(state.nodes.items())
        if info.fenced and unseen_ms.get(node_id, 0) >= timeouts.replace_after_ms
    )


def decommission_node(state: ClusterState, node_id: int, *, on: bool = True) -> list[MetadataRecord]:
    """An operator wants a node emptied and removed, or (not `on`) cancels that."""
    info = state.nodes.get(node_id)
    if info is None:
        known = ", ".join(str(known) for known in sorted(state.nodes)) or "none"
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"there is no node {node_id}; nodes: {known}")
    if info.decommissioning == on:
        return []
    if on:
        _check_remaining_nodes(state, node_id)
    return [NodeDecommissioning(node_id=node_id, on=on)]


def _check_remaining_nodes(state: ClusterState, node_id: int) -> None:
    left = [node for node in state.usable_nodes() if node != node_id]
    if not left:
        message = f"node {node_id} is the last one that can hold data; it cannot leave"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    machines = machine_count(state, left)
    for topic, group, assignment in state.groups():
        if node_id in assignment.shown and len(assignment.future) > machines:
            nodes = "1 node" if len(left) == 1 else f"{len(left)} nodes"
            nodes += "" if machines == len(left) else f" on {machines} machine{'s' * (machines > 1)}"
            message = (
                f"{topic.name}-{group.partition} has {len(assignment.future)} replicas, and without node {node_id} "
                f"only {nodes} could hold them ({', '.join(map(str, left))}): add a node first, or lower the factor"
            )
            raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)


def remove_empty_nodes(state: ClusterState, voting: Collection[int] = ()) -> list[MetadataRecord]:
    """Removes decommissioned nodes that are empty. `voting` are the nodes in the metadata group's present
    configuration: one that still votes there stays until it has been replaced.

    While any move is under way, no node is removed: the move may have replaced another one whose target the group had
    already reached, and a leader that is cut off from the metadata would then never leave the removed node."""
    if not any(info.decommissioning for info in state.nodes.values()):
        return []
    if any(assignment.target is not None for _, _, assignment in state.groups()):
        return []
    needed = {node for _, _, assignment in state.groups() for node in assignment.shown}
    needed.update(voting, (voter.node for voter in state.metadata_voters))
    return [
        NodeRemoved(node_id=node_id)
        for node_id, info in sorted(state.nodes.items())
        if info.decommissioning and node_id not in needed
    ]
