"""One heartbeat for a pair of nodes instead of one for each of the groups that they share.

Every interval the sender makes one frame for a peer. It names only the groups whose heartbeat has changed since the
last frame; the receiver remembers the others, and takes each frame as a heartbeat of all groups that it remembers. So a
thousand idle groups cost one small message each way, and a comparison for each group.

Both sides must agree on what the receiver remembers. If they may not, they start over:

- frames carry a session, drawn by the sender when it begins or starts over, and a sequence number without gaps. A frame
  out of sequence is no heartbeat for any group: the lost frame may have said that a group has another leader now. The
  receiver answers it with `resync`.
- a frame with `reset` names all groups, and the receiver forgets everything before it. The first frame of a session
  has it, and the first one after `resync`.
- the reply names each group that did not take its heartbeat, with the receiver's term. The receiver forgets this group,
  and the next frame names it again. A later term ends the sender's term; an equal one means "not yet".
- a row goes from one replica to another. Most replicas have the incarnation of their node. A replica that was rebuilt
  alone has another one (`Replica.in_life`), which the row then names; a replica takes no heartbeat for another
  incarnation.
- a reply that does not follow the one before gives no lease, and the sender starts over: the lost reply may have named
  a group that did not take its heartbeat, and later replies do not name it again.
- a reply counts only for the groups whose heartbeat has not changed since that frame, and as a lease it counts from the
  time at which the frame was sent, for the time that the frame names (invariant 5).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Annotated, NamedTuple

import msgspec

from penstock.errors import ProtocolViolation
from penstock.raft.core import Raft
from penstock.raft.effects import Effect
from penstock.raft.messages import Heartbeat, IndexField, TermField
from penstock.raft.settings import MAX_LEASE_S
from penstock.types import NO_TERM, GroupId, Replica

MAX_GROUPS = 100_000
"""Groups in one frame: ten times as many as a node should host."""
MAX_FRAME_BYTES = 8 << 20
MAX_UNANSWERED = 64
"""Frames whose sending time is remembered: those of ten seconds. A reply to an older frame gives no lease."""

LeaseTime = Annotated[float, msgspec.Meta(gt=0, le=MAX_LEASE_S)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
FindGroup = Callable[[GroupId], Raft | None]
Effects = list[tuple[GroupId, list[Effect]]]
Decide = Callable[[GroupId, Callable[[], list[Effect]]], list[Effect]]
"""Asks one group for its effects. The host's own keeps an exception of one group from the others: they have decided, so
their effects must be carried out."""


def decide(group: GroupId, question: Callable[[], list[Effect]]) -> list[Effect]:
    return question()


class Pair(NamedTuple):
    """The incarnations of the sending and the receiving replica; 0 is that of the node."""

    leader: int = 0
    member: int = 0


NODES = Pair()
NO_REBORN: Mapping[GroupId, Pair] = MappingProxyType({})


class GroupHeartbeat(msgspec.Struct, frozen=True, array_like=True):
    group: GroupId
    term: TermField
    commit_index: IndexField
    start_offset: IndexField
    leader: Number = 0
    member: Number = 0
    """As in Pair."""


class HeartbeatFrame(msgspec.Struct, frozen=True, array_like=True, tag=0):
    session: Number
    sequence: Number
    reset: bool
    changed: Annotated[list[GroupHeartbeat], msgspec.Meta(max_length=MAX_GROUPS)]
    dropped: Annotated[list[GroupId], msgspec.Meta(max_length=MAX_GROUPS)]
    """Groups that the sender no longer leads."""
    lease_s: LeaseTime | None = None
    """How long the sender counts on an answer to this frame (invariant 5). None from a node of an earlier version,
    during a rolling update: it counts on an election timeout."""


class HeartbeatReply(msgspec.Struct, frozen=True, array_like=True, tag=1):
    session: Number
    sequence: Number
    resync: bool
    refused: Annotated[list[tuple[GroupId, TermField]], msgspec.Meta(max_length=MAX_GROUPS)]


_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_decoder = msgspec.msgpack.Decoder(HeartbeatFrame | HeartbeatReply)


def encode(frame: HeartbeatFrame | HeartbeatReply) -> bytes:
    return _encoder.encode(frame)


def decode(body: bytes | memoryview) -> HeartbeatFrame | HeartbeatReply:
    """Raises ProtocolViolation for bytes that `encode` cannot have written."""
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolViolation(f"a heartbeat of {len(body)} bytes: expected at most {MAX_FRAME_BYTES}")
    try:
        frame: HeartbeatFrame | HeartbeatReply = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise ProtocolViolation(f"a heartbeat that does not parse: {problem}") from problem
    return frame


class HeartbeatSender:
    """Heartbeats from this node to one peer, for all groups that this node leads and the peer has a replica of."""

    def __init__(self, peer: Replica, session: int, lease_s: float) -> None:
        """`session` must differ from every earlier one between these two."""
        self.peer = peer
        self._session = session
        self._lease_s = lease_s
        self._sequence = 0
        self._reset = True
        self._told: dict[GroupId, tuple[Heartbeat, int, Pair]] = {}
        """The last heartbeat of each group that the peer was sent, the frame that had it, and the two incarnations."""
        self._sent_at: dict[int, float] = {}
        self._answered = 0
        """The last frame that was answered, or that is not waited for."""

    def frame(
        self,
        now: float,
        heartbeats: Sequence[tuple[GroupId, Heartbeat]],
        reborn: Mapping[GroupId, Pair] = NO_REBORN,
    ) -> HeartbeatFrame | None:
        """The next frame, with the heartbeats of all groups of which the peer is a member; None if there are none and
        were none. `reborn`: the groups in which one of the two replicas does not have its node's incarnation."""
        told, sequence = self._told, self._sequence + 1
        changed: list[GroupHeartbeat] = []
        count = 0
        for group, heartbeat in heartbeats:
            count += 1
            known = told.get(group)
            pair = reborn.get(group, NODES) if reborn else NODES
            if known is None or known[0] is not heartbeat or known[2] != pair:
                told[group] = (heartbeat, sequence, pair)
                changed.append(
                    GroupHeartbeat(
                        group, heartbeat.term, heartbeat.commit_index, heartbeat.start_offset, *pair
                    )
                )
        dropped = self._forget_others(heartbeats) if len(told) != count else []
        if not told and not dropped:
            return None
        return self._number(now, changed, dropped)

    def _forget_others(self, heartbeats: Sequence[tuple[GroupId, Heartbeat]]) -> list[GroupId]:
        led = {group for group, _ in heartbeats}
        gone = [group for group in self._told if group not in led]
        for group in gone:
            del self._told[group]
        return gone

    def _number(self, now: float, changed: list[GroupHeartbeat], dropped: list[GroupId]) -> HeartbeatFrame:
        self._sequence += 1
        self._sent_at[self._sequence] = now
        if len(self._sent_at) > MAX_UNANSWERED:
            del self._sent_at[next(iter(self._sent_at))]
        frame = HeartbeatFrame(self._session, self._sequence, self._reset, changed, dropped, self._lease_s)
        self._reset = False
        return frame

    def start_over(self) -> None:
        """The next frame names all groups: for a new connection."""
        self._told.clear()
        self._reset = True
        self._answered = self._sequence

    def receive(self, now: float, reply: HeartbeatReply, find: FindGroup, decide: Decide = decide) -> Effects:
        """Tells the groups that the peer has answered. The effects are those of groups that step down."""
        sent_at = self._sent_at.pop(reply.sequence, None)
        if reply.session != self._session or sent_at is None:
            return []
        is_next = reply.sequence <= self._answered + 1
        self._answered = max(self._answered, reply.sequence)
        if reply.resync:
            self.start_over()
            return []
        effects = self._take_refusals(now, reply, find, decide)
        if not is_next:
            self.start_over()
            return effects
        for group, (heartbeat, since, pair) in self._told.items():
            core = find(group)
            if core is not None and since <= reply.sequence:
                core.answered(sent_at, as_named(self.peer, pair.member), heartbeat.term)
        return effects

    def _take_refusals(self, now: float, reply: HeartbeatReply, find: FindGroup, decide: Decide) -> Effects:
        effects: Effects = []
        for group, term in reply.refused:
            member = self.peer
            if group in self._told and self._told[group][1] <= reply.sequence:
                member = as_named(self.peer, self._told.pop(group)[2].member)
            core = find(group)
            if core is not None:
                effects.append((group, decide(group, partial(core.refused, now, member, term))))
        return [(group, some) for group, some in effects if some]


class HeartbeatReceiver:
    """Heartbeats from one peer to this node."""

    def __init__(self, peer: Replica, me: Replica | None = None) -> None:
        """`me`: this node. Without it, rows are not compared with the incarnation of the replica here."""
        self.peer = peer
        self._me = me
        self._session = -1
        self._sequence = 0
        self._covered: dict[GroupId, tuple[int, Replica, int]] = {}
        """Group -> the term in which the peer leads it, the leading replica, and the incarnation it sends to (as in
        Pair)."""

    def receive(
        self, now: float, frame: HeartbeatFrame, find: FindGroup, decide: Decide = decide
    ) -> tuple[HeartbeatReply | None, Effects]:
        """The reply, None for a frame that came before, and the effects of the groups' cores."""
        if frame.session == self._session and frame.sequence <= self._sequence:
            return None, []
        if not frame.reset and (frame.session != self._session or frame.sequence != self._sequence + 1):
            return HeartbeatReply(frame.session, frame.sequence, True, []), []
        if frame.reset:
            self._covered.clear()
        self._session, self._sequence = frame.session, frame.sequence
        effects = self._take_changes(now, frame, find, decide)
        refused = self._hear(now, frame.lease_s, find, effects, decide)
        return HeartbeatReply(frame.session, frame.sequence, False, refused), effects

    def _take_changes(self, now: float, frame: HeartbeatFrame, find: FindGroup, decide: Decide) -> Effects:
        effects: Effects = []
        for group in frame.dropped:
            self._covered.pop(group, None)
        for heartbeat in frame.changed:
            leader = as_named(self.peer, heartbeat.leader)
            self._covered[heartbeat.group] = (heartbeat.term, leader, heartbeat.member)
            core = self._addressee(find(heartbeat.group), heartbeat.member)
            if core is not None:
                news = Heartbeat(heartbeat.term, heartbeat.commit_index, heartbeat.start_offset)
                question = partial(core.step_heartbeat, now, leader, news)
                effects.append((heartbeat.group, decide(heartbeat.group, question)))
        return [(group, some) for group, some in effects if some]

    def _hear(
        self, now: float, lease_s: float | None, find: FindGroup, effects: Effects, decide: Decide
    ) -> list[tuple[GroupId, int]]:
        """The groups that did not take the heartbeat, each with its term."""
        refused: list[tuple[GroupId, int]] = []
        me = self._me
        for group, (term, leader, member) in self._covered.items():
            core = find(group)
            if core is None or (me is not None and core.me != (as_named(me, member) if member else me)):
                refused.append((group, NO_TERM))
            elif not core.heard(now, leader, term, lease_s or core.settings.election_timeout_s):
                refused.append((group, core.term))
            elif core.part.lost:
                effects.append((group, decide(group, core.plead)))
        for group, _ in refused:
            del self._covered[group]
        return refused

    def _addressee(self, core: Raft | None, member: int) -> Raft | None:
        """The replica here, if the row is for its incarnation."""
        if core is None or self._me is None or core.me == as_named(self._me, member):
            return core
        return None


def as_named(node: Replica, incarnation: int) -> Replica:
    return Replica(node.node, incarnation) if incarnation else node
