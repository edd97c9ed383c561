"""Announces to all nodes which partitions this one leads, and receives their announcements (see `leaders`)."""

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from penstock.cluster import ClusterState
from penstock.errors import ProtocolViolation
from penstock.node import frame_kinds
from penstock.node.parts import Part, TopicChanges
from penstock.node.replication.leaders import Leadership, LeaderTable, decode_rows, encode_rows
from penstock.node.replication.partition import Partition
from penstock.types import GroupId, NodeId, Term

if TYPE_CHECKING:
    from penstock.node.peers import Transport


TELL_AGAIN_SECONDS = 0.5
"""An announcement is sent again after this time if the node's connection was full."""


class LeaderAnnouncer(Part):
    """Sends and receives announcements of leaders."""

    def __init__(
        self, *, node_id: NodeId, state: ClusterState, leaders: LeaderTable, transport: "Transport"
    ) -> None:
        self._state = state
        self._node_id = node_id
        self._leaders = leaders
        self._transport = transport
        self._topic_ids: dict[str, UUID] = {}
        """The topic that each name stood for when the metadata last changed."""
        self._uninformed: dict[NodeId, None] = {}
        """Connected nodes that missed an announcement."""

    def role_changed(self, partition: Partition) -> None:
        """This node began or ceased to serve a partition, or its replica has a new leader."""
        group = partition.group
        if partition.serves:
            self.announce(group, partition.term, partition.replica.in_sync_nodes())
        elif partition.leads or partition.leader is None:
            self._leaders.lost(group, partition.term, self._node_id)

    def metadata_changed(self, topics: TopicChanges) -> None:
        """Forgets the leaders of deleted topics. Those of topics that this node does not know stay: a leader may
        announce itself before this node has applied the creation of its topic, and does not do so again."""
        gone = {self._replaced(name) for name in (*topics.changed, *topics.vanished)} - {None}
        if gone:
            self._leaders.forget(gone)

    def _replaced(self, name: str) -> UUID | None:
        """The id of the topic that had this name until now, if it is gone; another topic may have the name."""
        before, topic = self._topic_ids.pop(name, None), self._state.topics.get(name)
        if topic is not None:
            self._topic_ids[name] = topic.topic_id
        return before if topic is None or topic.topic_id != before else None

    def announce(self, group: GroupId, term: Term, in_sync: tuple[int, ...]) -> None:
        leadership = Leadership(self._node_id, term, in_sync)
        if self._leaders.learn(group, leadership):
            body = encode_rows([(group, leadership)])
            for node in self._transport.connected():
                self._send(node, body)

    def peer_up(self, node: NodeId) -> None:
        """Sends all announcements again: the node may have missed any of them."""
        rows = list(self._leaders.led_by(self._node_id))
        if rows:
            self._send(node, encode_rows(rows))

    def _send(self, node: NodeId, body: bytes) -> None:
        if not self._transport.send(node, frame_kinds.LEADERS, body):
            if not self._uninformed:
                asyncio.get_running_loop().call_later(TELL_AGAIN_SECONDS, self._tell_again)
            self._uninformed[node] = None

    def _tell_again(self) -> None:
        missed, self._uninformed = self._uninformed, {}
        for node in missed:
            if node in self._transport.connected():  # otherwise `peer_up` sends them when it connects again
                self.peer_up(node)

    def heard(self, sender: NodeId, body: memoryview) -> None:
        try:
            rows = decode_rows(body)
        except (msgspec.DecodeError, ValueError) as wrong:
            raise ProtocolViolation(f"leaders from node {sender}: {wrong}") from wrong
        for row in rows:
            if row.leadership.leader != sender or len(row.topic_id) != 16:
                raise ProtocolViolation(f"node {sender} speaks for node {row.leadership.leader}")
            self._leaders.learn(GroupId(UUID(bytes=row.topic_id), row.partition), row.leadership)
