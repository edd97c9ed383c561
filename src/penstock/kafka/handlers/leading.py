"""Hints for clients that asked the wrong node: the leader of the partition, its epoch and its address.

Newer clients take the hint with the refusal and move at once, without asking for metadata first.
"""

from typing import NamedTuple
from uuid import UUID

from penstock.errors import ErrorCode, KafkaError
from penstock.kafka.handlers.context import RequestContext
from penstock.node.metadata.cluster_view import BrokerEndpoint

MOVED = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
"""Errors for a client that should ask another node, or come back with a newer epoch."""


class Hint(NamedTuple):
    """The leader that the client should ask instead."""

    leader: BrokerEndpoint
    epoch: int


class Hints:
    """Collects the leaders that one response points to."""

    __slots__ = ("_context", "_leaders")

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._leaders: dict[int, BrokerEndpoint] = {}

    def find(self, code: int, name: str | None, topic_id: UUID, index: int) -> Hint | None:
        """The leader that this refusal should send the client to, if this node knows one."""
        if code not in MOVED:
            return None
        node = self._context.node
        try:
            topic = self._context.named_topic(name, topic_id)
        except KafkaError:
            return None  # deleted since
        if not 0 <= index < topic.partitions:
            return None
        facts = node.view.partition(topic, index)
        leader = node.view.broker(facts.leader, self._context.connection.listener_name)
        if leader is None or (code == ErrorCode.NOT_LEADER_OR_FOLLOWER and leader.node_id == node.node_id):
            return None
        self._leaders[leader.node_id] = leader
        return Hint(leader, facts.term)

    def leaders(self) -> list[BrokerEndpoint]:
        """All leaders that were found."""
        return list(self._leaders.values())
