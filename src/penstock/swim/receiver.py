"""Receiving: accepts only packets with the cluster's key, of this cluster, for this node, and not seen before.

Every refused packet is counted by its reason, and reported at a limited rate (`notice_limiter.py`)."""

from penstock.swim.notice_limiter import NoticeLimiter
from penstock.swim.packets import (
    ANY_RECEIVER,
    MAX_RELIABLE_BYTES,
    Envelope,
    Message,
    PacketError,
    Ping,
    decode_messages,
)
from penstock.swim.replay import ReplayGuard
from penstock.swim.seal import Seal
from penstock.swim.sender import PacketSender
from penstock.swim.settings import SwimSettings
from penstock.swim.values import (
    Conflict,
    GossipEndpoint,
    MemberMeta,
    PacketRefusal,
    PacketRefused,
    Session,
    same_cluster,
)
from penstock.types import NodeId, Replica

SENDERS_PER_MEMBER = 2
"""Replay windows are kept for more senders than there may be members: nodes join and leave while their packets are
under way."""
NOT_REPORTED = (PacketRefusal.MISDIRECTED,)
"""Counted and never reported: after a node was wiped, pings to its earlier incarnation are normal for a while."""


class ReceivedPacket:
    """A packet that was accepted."""

    def __init__(self, source: GossipEndpoint | NodeId, envelope: Envelope, messages: list[Message]) -> None:
        self.source = source
        """Where the answer goes: back to where the packet came from."""
        self.sender = envelope.sender
        self.receiver = envelope.receiver
        self.epoch = envelope.epoch
        self.messages = messages
        self.contradicts_me = False
        """It has a false claim about this node: the answer carries this node's own Alive."""


class PacketReceiver:
    """Checks incoming packets."""

    def __init__(self, *, me: Replica, seal: Seal, sender: PacketSender, settings: SwimSettings) -> None:
        self._me = me
        self._seal = seal
        self._sender = sender
        self._max_packet_bytes = settings.max_packet_bytes
        self._guard = ReplayGuard(SENDERS_PER_MEMBER * settings.max_members)
        self._notice_limiter = NoticeLimiter(settings.notice_interval_ms / 1000)
        self.refused: dict[PacketRefusal, int] = dict.fromkeys(PacketRefusal, 0)

    def open(
        self, now: float, source: GossipEndpoint | NodeId, data: bytes, my_cluster: str
    ) -> ReceivedPacket | None:
        max_bytes = self._max_packet_bytes if isinstance(source, GossipEndpoint) else MAX_RELIABLE_BYTES
        try:
            envelope = self._seal.open(data, max_bytes)
            packet = ReceivedPacket(source, envelope, decode_messages(envelope))
            if not isinstance(source, GossipEndpoint) and source != envelope.sender.node:
                detail = f"it came over the connection of node {source} and names node {envelope.sender} as its sender"
                raise PacketError(PacketRefusal.MALFORMED, detail)
            if not same_cluster(envelope.cluster_id, my_cluster):
                self._refuse_cluster(packet, envelope.cluster_id, my_cluster)
            if envelope.receiver not in (self._me, ANY_RECEIVER):
                raise PacketError(PacketRefusal.MISDIRECTED, f"for {envelope.receiver}")
            # If the node's own address is among the seeds, its packets come back to it: they are no replay.
            if envelope.sender != self._me:
                self._check_fresh(envelope)
        except PacketError as problem:
            self.refuse(now, problem.reason, source, problem.detail)
            return None
        return packet

    def connected(self, session: Session) -> None:
        """The connection between nodes proves which process is the node (`replay.py`, rule 4)."""
        self._guard.connected(session)

    def disconnected(self, node: NodeId) -> None:
        self._guard.disconnected(node)

    def _check_fresh(self, envelope: Envelope) -> None:
        sender, epoch, sequence = envelope.sender, envelope.epoch, envelope.sequence
        if self._guard.rival(sender, epoch) is not None:
            why = "a copied data folder, an id used twice, or a restart whose former connection has not ended yet"
            raise PacketError(PacketRefusal.RIVAL, f"node {sender.node}: {why}")
        if not self._guard.accept(sender, epoch, sequence):
            raise PacketError(PacketRefusal.REPLAYED, f"sequence {sequence} of node {sender}")

    def _refuse_cluster(self, packet: ReceivedPacket, their_cluster: str, my_cluster: str) -> None:
        """A ping gets an empty answer that names this cluster, so that the other side can report the problem too. Only
        a ping: otherwise two clusters would refuse each other's answers for ever."""
        if any(isinstance(message, Ping) for message in packet.messages):
            self._sender.send(packet.source, packet.sender, gossip=False)
        detail = f"node {packet.sender} belongs to cluster {their_cluster!r}, this node to {my_cluster!r}"
        raise PacketError(PacketRefusal.FOREIGN_CLUSTER, detail)

    def refuse(self, now: float, reason: PacketRefusal, source: object, detail: str) -> None:
        self.refused[reason] += 1
        if reason in NOT_REPORTED:
            return
        suppressed = self._notice_limiter.due(reason, now)
        if suppressed is not None:
            self._sender.emit(PacketRefused(reason, str(source), detail, suppressed))

    def report_conflict(self, now: float, first: MemberMeta, second: MemberMeta) -> None:
        if self._notice_limiter.due(("conflict", first.node), now) is not None:
            self._sender.emit(Conflict(first, second))
