"""One beat for a pair of nodes instead of one for each of the groups that they share.

Every interval the sender makes one frame for a peer. It names only the groups whose beat is not what the last frame
said; the receiver remembers the others, and takes each frame as a beat of all that it remembers. So a thousand idle
groups cost one small message each way, and a look at each group.

What the receiver remembers is what the sender believes it does, or both start over:

- frames carry a session, made by the sender when it begins or starts over, and a sequence without gaps. A frame out of
  sequence is no beat for anybody: it might not say that a group has another leader by now. It is answered with
  `resync`.
- a frame with `reset` names all groups and begins a new memory. A session's first frame has it, and the first one
  after `resync`.
- a group that did not take its beat is named in the reply with its term, forgotten by the receiver, and named again in
  the next frame. A later term there ends the sender's reign; an equal one means "not yet".
- a row is from one replica to another. Most are what their nodes are (life 0 of their data folders); one that was made
  anew alone is named by its incarnation (`Replica.in_life`), and a beat for another life than the one that is here is
  not taken.
- a reply speaks only for those groups of which the sender has said the same since that frame; and what it is worth as
  a lease counts from when the frame was sent (invariant 5).
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, NamedTuple

import msgspec

from penstock.errors import ProtocolViolation
from penstock.raft.core import Raft
from penstock.raft.effects import Effect
from penstock.raft.messages import Beat, IndexField, TermField
from penstock.types import NO_TERM, GroupId, Replica

MAX_GROUPS = 100_000
"""Groups in one frame: ten times what a node should host."""
MAX_FRAME_BYTES = 8 << 20
MAX_UNANSWERED = 64
"""Frames whose time of sending is remembered: ten seconds of them. Older replies are worth nothing as a lease."""

Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
FindGroup = Callable[[GroupId], Raft | None]
Effects = list[tuple[GroupId, list[Effect]]]


class Pair(NamedTuple):
    """Who speaks to whom, by incarnation; 0 is the node's own."""

    leader: int = 0
    member: int = 0


NODES = Pair()
NOBODY_REBORN: Mapping[GroupId, Pair] = MappingProxyType({})


class GroupBeat(msgspec.Struct, frozen=True, array_like=True):
    group: GroupId
    term: TermField
    commit_index: IndexField
    start_offset: IndexField
    leader: Number = 0
    member: Number = 0
    """As in Pair."""


class BeatFrame(msgspec.Struct, frozen=True, array_like=True, tag=0):
    session: Number
    sequence: Number
    reset: bool
    changed: Annotated[list[GroupBeat], msgspec.Meta(max_length=MAX_GROUPS)]
    dropped: Annotated[list[GroupId], msgspec.Meta(max_length=MAX_GROUPS)]
    """Groups that the sender no longer leads."""


class BeatReply(msgspec.Struct, frozen=True, array_like=True, tag=1):
    session: Number
    sequence: Number
    resync: bool
    refused: Annotated[list[tuple[GroupId, TermField]], msgspec.Meta(max_length=MAX_GROUPS)]


_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_decoder = msgspec.msgpack.Decoder(BeatFrame | BeatReply)


def encode(frame: BeatFrame | BeatReply) -> bytes:
    return _encoder.encode(frame)


def decode(body: bytes | memoryview) -> BeatFrame | BeatReply:
    """Raises ProtocolViolation for whatever `encode` cannot have written."""
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolViolation(f"a beat of {len(body)} bytes: expected at most {MAX_FRAME_BYTES}")
    try:
        frame: BeatFrame | BeatReply = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise ProtocolViolation(f"a beat that does not parse: {problem}") from problem
    return frame


class BeatSender:
    """Beats from this node to one peer, for all groups that this node leads and the peer has a replica of."""

    def __init__(self, peer: Replica, session: int) -> None:
        """`session` must differ from every earlier one between these two."""
        self.peer = peer
        self._session = session
        self._sequence = 0
        self._reset = True
        self._told: dict[GroupId, tuple[Beat, int, Pair]] = {}
        """What the peer was told last of each group, in which frame, and from whom to whom."""
        self._sent_at: dict[int, float] = {}

    def frame(
        self,
        now: float,
        beats: Sequence[tuple[GroupId, Beat]],
        reborn: Mapping[GroupId, Pair] = NOBODY_REBORN,
    ) -> BeatFrame | None:
        """The next frame, of the beats of all groups that concern the peer; None if there are none, as before.
        `reborn`: where one of the two is not what its node is."""
        told, sequence = self._told, self._sequence + 1
        changed: list[GroupBeat] = []
        count = 0
        for group, beat in beats:
            count += 1
            known, pair = told.get(group), reborn.get(group, NODES)
            if known is None or known[0] is not beat or known[2] != pair:
                told[group] = (beat, sequence, pair)
                changed.append(GroupBeat(group, beat.term, beat.commit_index, beat.start_offset, *pair))
        dropped = self._forget_others(beats) if len(told) != count else []
        if not told and not dropped:
            return None
        return self._number(now, changed, dropped)

    def _forget_others(self, beats: Sequence[tuple[GroupId, Beat]]) -> list[GroupId]:
        led = {group for group, _ in beats}
        gone = [group for group in self._told if group not in led]
        for group in gone:
            del self._told[group]
        return gone

    def _number(self, now: float, changed: list[GroupBeat], dropped: list[GroupId]) -> BeatFrame:
        self._sequence += 1
        self._sent_at[self._sequence] = now
        if len(self._sent_at) > MAX_UNANSWERED:
            del self._sent_at[next(iter(self._sent_at))]
        frame = BeatFrame(self._session, self._sequence, self._reset, changed, dropped)
        self._reset = False
        return frame

    def start_over(self) -> None:
        """The next frame names everything: for a new connection."""
        self._told.clear()
        self._reset = True

    def receive(self, now: float, reply: BeatReply, find: FindGroup) -> Effects:
        """Tells the groups who has answered. The effects are those of groups that lead no more."""
        sent_at = self._sent_at.pop(reply.sequence, None)
        if reply.session != self._session or sent_at is None:
            return []
        if reply.resync:
            self.start_over()
            return []
        effects = self._take_refusals(now, reply, find)
        for group, (beat, since, pair) in self._told.items():
            core = find(group)
            if core is not None and since <= reply.sequence:
                core.answered(sent_at, as_named(self.peer, pair.member), beat.term)
        return effects

    def _take_refusals(self, now: float, reply: BeatReply, find: FindGroup) -> Effects:
        effects: Effects = []
        for group, term in reply.refused:
            member = self.peer
            if group in self._told and self._told[group][1] <= reply.sequence:
                member = as_named(self.peer, self._told.pop(group)[2].member)
            core = find(group)
            if core is not None:
                effects.append((group, core.refused(now, member, term)))
        return [(group, some) for group, some in effects if some]


class BeatReceiver:
    """Beats from one peer to this node."""

    def __init__(self, peer: Replica, me: Replica | None = None) -> None:
        """`me`: this node. Without it, whoever is here is meant."""
        self.peer = peer
        self._me = me
        self._session = -1
        self._sequence = 0
        self._covered: dict[GroupId, tuple[int, Replica, int]] = {}
        """Group -> the term in which the peer leads it, as which replica, and which one it speaks to (as in Pair)."""

    def receive(self, now: float, frame: BeatFrame, find: FindGroup) -> tuple[BeatReply | None, Effects]:
        """The reply, if the frame is worth one, and what the groups' cores ask for."""
        if frame.session == self._session and frame.sequence <= self._sequence:
            return None, []
        if not frame.reset and (frame.session != self._session or frame.sequence != self._sequence + 1):
            return BeatReply(frame.session, frame.sequence, True, []), []
        if frame.reset:
            self._covered.clear()
        self._session, self._sequence = frame.session, frame.sequence
        effects = self._take_changes(now, frame, find)
        refused = self._hear(now, find, effects)
        return BeatReply(frame.session, frame.sequence, False, refused), effects

    def _take_changes(self, now: float, frame: BeatFrame, find: FindGroup) -> Effects:
        effects: Effects = []
        for group in frame.dropped:
            self._covered.pop(group, None)
        for beat in frame.changed:
            leader = as_named(self.peer, beat.leader)
            self._covered[beat.group] = (beat.term, leader, beat.member)
            core = self._meant(find(beat.group), beat.member)
            if core is not None:
                news = Beat(beat.term, beat.commit_index, beat.start_offset)
                effects.append((beat.group, core.step_beat(now, leader, news)))
        return [(group, some) for group, some in effects if some]

    def _hear(self, now: float, find: FindGroup, effects: Effects) -> list[tuple[GroupId, int]]:
        """Who did not take the beat, with the term that it is in."""
        refused: list[tuple[GroupId, int]] = []
        for group, (term, leader, member) in self._covered.items():
            core = self._meant(find(group), member)
            if core is None:
                refused.append((group, NO_TERM))
            elif not core.heard(now, leader, term):
                refused.append((group, core.term))
            elif core.part.lost:
                effects.append((group, core.plead()))
        for group, _ in refused:
            del self._covered[group]
        return refused

    def _meant(self, core: Raft | None, member: int) -> Raft | None:
        """The replica here, if it is the one that was spoken to."""
        if core is None or self._me is None or core.me == as_named(self._me, member):
            return core
        return None


def as_named(node: Replica, incarnation: int) -> Replica:
    return Replica(node.node, incarnation) if incarnation else node
