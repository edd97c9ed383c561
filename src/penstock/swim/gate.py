"""The way in: only packets with the key, of this cluster, for this node, and for the first time get through.

Whatever is turned away is counted by its reason. It is told too, but not often (`notices.py`)."""

from penstock.swim.notices import Notices
from penstock.swim.packets import (
    ANYBODY,
    MAX_RELIABLE_BYTES,
    Envelope,
    Message,
    PacketError,
    Ping,
    Seal,
    decode_messages,
)
from penstock.swim.post import Post
from penstock.swim.replay import ReplayGuard
from penstock.swim.settings import SwimSettings
from penstock.swim.values import Conflict, Endpoint, MemberMeta, Refusal, Refused, Session, same_cluster
from penstock.types import NodeId, Replica

SENDERS_PER_MEMBER = 2
"""Replay windows are kept for more senders than there may be members: nodes come and go while their packets travel."""
QUIET = (Refusal.MISDIRECTED,)
"""Counted and never told: while a wiped node takes the place of its former self, pings to that one are normal."""


class Letter:
    """A packet that got through."""

    def __init__(self, source: Endpoint | NodeId, envelope: Envelope, messages: list[Message]) -> None:
        self.source = source
        """Where the answer goes: the way that the packet came."""
        self.sender = envelope.sender
        self.receiver = envelope.receiver
        self.epoch = envelope.epoch
        self.messages = messages
        self.accuses_me = False
        """Something in it must be contradicted: the answer carries this node's own Alive."""


class Gate:
    """Checks what comes in; refuses in words."""

    def __init__(self, *, me: Replica, seal: Seal, post: Post, settings: SwimSettings) -> None:
        self._me = me
        self._seal = seal
        self._post = post
        self._max_packet_bytes = settings.max_packet_bytes
        self._guard = ReplayGuard(SENDERS_PER_MEMBER * settings.max_members)
        self._notices = Notices(settings.notice_interval_ms / 1000)
        self.refused: dict[Refusal, int] = dict.fromkeys(Refusal, 0)

    def open(self, now: float, source: Endpoint | NodeId, data: bytes, my_cluster: str) -> Letter | None:
        max_bytes = self._max_packet_bytes if isinstance(source, Endpoint) else MAX_RELIABLE_BYTES
        try:
            envelope = self._seal.open(data, max_bytes)
            letter = Letter(source, envelope, decode_messages(envelope))
            if not isinstance(source, Endpoint) and source != envelope.sender.node:
                detail = f"it came over the connection of node {source} and says node {envelope.sender}"
                raise PacketError(Refusal.MALFORMED, detail)
            if not same_cluster(envelope.cluster_id, my_cluster):
                self._turn_away(letter, envelope.cluster_id, my_cluster)
            if envelope.receiver not in (self._me, ANYBODY):
                raise PacketError(Refusal.MISDIRECTED, f"for {envelope.receiver}")
            # A node's own packets come back to it from its own address among the seeds: they are no replay.
            if envelope.sender != self._me:
                self._check_fresh(envelope)
        except PacketError as problem:
            self.refuse(now, problem.reason, source, problem.detail)
            return None
        return letter

    def connected(self, session: Session) -> None:
        """The connection between nodes shows which process is the node (`replay.py`, rule 4)."""
        self._guard.connected(session)

    def disconnected(self, node: NodeId) -> None:
        self._guard.disconnected(node)

    def _check_fresh(self, envelope: Envelope) -> None:
        sender, epoch, sequence = envelope.sender, envelope.epoch, envelope.sequence
        if self._guard.rival(sender, epoch) is not None:
            why = (
                "a copied data folder, an id used twice, or a restart whose former connection has yet to end"
            )
            raise PacketError(Refusal.RIVAL, f"node {sender.node}: {why}")
        if not self._guard.accept(sender, epoch, sequence):
            raise PacketError(Refusal.REPLAYED, f"sequence {sequence} of node {sender}")

    def _turn_away(self, letter: Letter, their_cluster: str, my_cluster: str) -> None:
        """A ping gets an empty answer that names this cluster, so that the other side can tell what is wrong too.
        Only a ping: two clusters must not turn each other away for ever."""
        if any(isinstance(message, Ping) for message in letter.messages):
            self._post.send(letter.source, letter.sender, gossip=False)
        detail = f"node {letter.sender} is of cluster {their_cluster!r}, this node of {my_cluster!r}"
        raise PacketError(Refusal.FOREIGN_CLUSTER, detail)

    def refuse(self, now: float, reason: Refusal, source: object, detail: str) -> None:
        self.refused[reason] += 1
        if reason in QUIET:
            return
        suppressed = self._notices.due(reason, now)
        if suppressed is not None:
            self._post.emit(Refused(reason, str(source), detail, suppressed))

    def report_conflict(self, now: float, first: MemberMeta, second: MemberMeta) -> None:
        if self._notices.due(("conflict", first.node), now) is not None:
            self._post.emit(Conflict(first, second))
