"""Partitions that this node leads, for those who may read; and for those who may not, where to go instead.

Newer clients take a hint with the refusal (who leads, under which epoch, at which address) and move at once, without
asking for metadata first.
"""

from typing import NamedTuple

from penstock.errors import ErrorCode, KafkaError
from penstock.node import Node, Partition
from penstock.node.metadata.cluster_view import Broker

MOVED = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
"""What a client is told that should go elsewhere, or come back with a newer epoch."""


def led_partition(node: Node, topic: str, index: int, client_epoch: int) -> Partition:
    """The partition, if this node leads it in the epoch that the client has in mind. As in Kafka, an epoch that is
    outdated or not known here yet is told even by a node that does not lead."""
    known = node.metadata.state.topics.get(topic)
    if known is None or not 0 <= index < known.partitions:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{index}")
    partition = node.partitions.get(topic, index)
    partition.check_epoch(client_epoch)
    partition.check_leads()
    return partition


class Hint(NamedTuple):
    """Who leads instead."""

    leader: Broker
    epoch: int


class Hints:
    """Collects what one answer tells of leaders elsewhere."""

    __slots__ = ("_leaders", "_node")

    def __init__(self, node: Node) -> None:
        self._node = node
        self._leaders: dict[int, Broker] = {}

    def find(self, code: ErrorCode, topic: str, index: int) -> Hint | None:
        """The leader that this refusal should send the client to, if this node knows one."""
        known = self._node.metadata.state.topics.get(topic)
        if code not in MOVED or known is None or not 0 <= index < known.partitions:
            return None
        facts = self._node.view.partition(known, index)
        leader = self._node.view.broker(facts.leader)
        if leader is None or (
            code == ErrorCode.NOT_LEADER_OR_FOLLOWER and leader.node_id == self._node.node_id
        ):
            return None
        self._leaders[leader.node_id] = leader
        return Hint(leader, facts.term)

    def leaders(self) -> list[Broker]:
        """Everyone that was hinted at."""
        return list(self._leaders.values())
