"""Connects the groups of this node with their peers: all messages of one turn of the event loop to a peer go into one
frame.

One timer checks the deadlines of all groups, and one heartbeat per peer and interval covers all groups that this node
leads. So a thousand idle groups cost a node a few frames a second and a comparison of a thousand numbers.

A timer that is very late tells of a node that stood still: its machine was suspended, or too busy. The silence of its
peers is then its own. It sends a heartbeat at once, and listens for CATCH_UP_HEARTBEATS before it acts on deadlines.
Otherwise every such pause would depose leaders: they would miss the answers of their followers, and followers the
heartbeats of leaders on the same machine. Acting late is always safe: leases are compared with the clock.
"""

import asyncio
import logging
from collections.abc import Callable
from random import Random
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import msgspec
from msgspec.structs import replace

from penstock.errors import PenstockError, ProtocolViolation
from penstock.node import frame_kinds
from penstock.node.parts import Part
from penstock.node.replication.hard_states import HardStates
from penstock.node.replication.raft_driver import RaftDriver
from penstock.node.scheduling.clock import Clock
from penstock.raft import Append, Heartbeat, Message, Raft, RaftSettings, Role, heartbeats
from penstock.raft.messages import check
from penstock.types import GroupId, NodeId, Replica

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.node.peers import Buffer, Transport
    from penstock.raft import Effect, GroupConfig

log = logging.getLogger("penstock.node")

TICKS_PER_HEARTBEAT = 3
"""Deadlines are checked this many times per heartbeat interval."""
CATCH_UP_HEARTBEATS = 2
"""How long a node that stood still listens: a heartbeat and its answer, and another one if the first was lost."""
UUID_BYTES = 16
FRAME_BYTES = 4 * 1024 * 1024
"""A frame is sent when it has this size, so that the peer can work on it while the rest is being read."""
FRAME_MESSAGES = 100
"""The peer handles a frame without a pause. The first entry of a new partition makes it create files, which takes some
hundred microseconds."""


class RaftEnvelope(msgspec.Struct, frozen=True, array_like=True):
    """One message to one group's member on the node that the frame goes to."""

    topic_id: bytes
    partition: int
    incarnation: int
    """Incarnation of the receiving replica: a node that has lost its data meanwhile is another replica."""
    message: Message
    entries_bytes: int = 0
    """The entries of an append follow all envelopes, outside the message, so that they need not be copied."""
    sender: int = 0
    """Incarnation of the sending replica if it differs from its node's: the replica was rebuilt."""


class Posted(NamedTuple):
    """A message that waits for its frame. `sender` is set at once, because the replica may be rebuilt before the frame
    is sent."""

    to: Replica
    group: GroupId
    message: Message
    sender: int = 0


_LENGTH = Struct(">I")
"""A frame of messages: the length of the envelopes, the envelopes, then the entries, in the same order."""
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(list[RaftEnvelope])


def pack(envelopes: "Iterable[Posted]") -> "list[Buffer]":
    """The frame's body in pieces."""
    rows, pieces = [], []
    for to, group, message, sender in envelopes:
        size = 0
        if type(message) is Append and message.entries:
            size = len(message.entries)
            pieces.append(message.entries)
            message = replace(message, entries=b"")
        rows.append(
            RaftEnvelope(group.topic_id.bytes, group.partition, to.incarnation, message, size, sender)
        )
    head = _ENCODER.encode(rows)
    return [_LENGTH.pack(len(head)) + head, *pieces]


def unpack(body: memoryview) -> list[RaftEnvelope]:
    """ProtocolViolation for what `pack` cannot have made. Entries stay where they are: views of the body."""
    if len(body) < _LENGTH.size:
        raise ProtocolViolation("a frame of messages without a length")
    (length,) = _LENGTH.unpack_from(body)
    position = _LENGTH.size + length
    try:
        envelopes = _DECODER.decode(body[_LENGTH.size : position])
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise ProtocolViolation(f"messages that do not parse: {wrong}") from None
    for number, envelope in enumerate(envelopes):
        if envelope.entries_bytes:
            end = position + envelope.entries_bytes
            message = envelope.message
            if envelope.entries_bytes < 0 or end > len(body) or type(message) is not Append:
                raise ProtocolViolation(f"{envelope.entries_bytes} bytes of entries that are not there")
            message = replace(message, entries=body[position:end])
            envelopes[number] = replace(envelope, message=message)
            position = end
        check(envelopes[number].message)
    return envelopes


class MultiRaft(Part):
    """All cores of one node. Everything happens on the event loop."""

    def __init__(
        self,
        *,
        me: Replica,
        transport: "Transport",
        hard_states: HardStates,
        settings: RaftSettings,
        clock: Clock,
        random: Random,
    ) -> None:
        self.me = me
        self.hard_states = hard_states
        self.settings = settings
        self.jitter: Callable[[], float] = random.random
        self.transport = transport
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._groups: dict[GroupId, RaftDriver] = {}
        self._cores: dict[GroupId, Raft] = {}
        """The cores of these groups: heartbeats look up all of them, several times a second."""
        self._reborn: dict[GroupId, int] = {}
        """Incarnations of replicas that differ from this node's: they were rebuilt after lost or damaged files."""
        self._outbox: dict[Replica, list[Posted]] = {}
        self._outbox_bytes = 0
        self._scheduled = False
        self._senders: dict[Replica, heartbeats.HeartbeatSender] = {}
        self._receivers: dict[Replica, heartbeats.HeartbeatReceiver] = {}
        self._nodes: dict[NodeId, Replica] = {}
        """The connected nodes at the last heartbeat: another object when they have changed."""
        self._session: Callable[[], int] = lambda: random.getrandbits(62)
        self._timer: asyncio.TimerHandle | None = None
        self._ticks = 0
        self._ticked_at = self._loop.time()
        self._listens_until = 0.0
        """Deadlines count again from then on, after the node stood still."""

    # --- facts that cores ask for

    def now(self) -> float:
        """Seconds, of a clock that never goes back."""
        return self._loop.time()

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def replica(self, group: GroupId) -> Replica:
        """This node's replica of the group, in its present life."""
        return self.me.in_life(self.hard_states.life(group))

    def find(self, group: GroupId) -> RaftDriver | None:
        return self._groups.get(group)

    # --- life

    async def start(self) -> None:
        """Starts the timer. A node that runs alone needs none and never calls this."""
        self._ticked_at = self.now()
        self._timer = self._loop.call_later(self._tick_seconds, self._tick)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def add(self, consensus: RaftDriver) -> None:
        self._groups[consensus.group] = consensus
        self._cores[consensus.group] = consensus.core
        if consensus.core.me != self.me:
            self._reborn[consensus.group] = consensus.core.me.incarnation

    def remove(self, consensus: RaftDriver) -> None:
        if self._groups.get(consensus.group) is consensus:
            del self._groups[consensus.group]
            del self._cores[consensus.group]
            self._reborn.pop(consensus.group, None)

    @property
    def _tick_seconds(self) -> float:
        return self.settings.heartbeat_interval_s / TICKS_PER_HEARTBEAT

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._tick_seconds, self._tick)
        now = self.now()
        stood_still = now - self._ticked_at >= self.settings.lease_s / 2
        self._ticked_at = now
        if stood_still:
            self._listens_until = now + CATCH_UP_HEARTBEATS * self.settings.heartbeat_interval_s
        if now >= self._listens_until:
            for member in [one for one in self._groups.values() if one.core.next_deadline <= now]:
                member.tick()
        self._ticks += 1
        if stood_still or self._ticks % TICKS_PER_HEARTBEAT == 0:
            self._heartbeat()

    # --- messages

    def post(self, to: Replica, group: GroupId, message: Message) -> None:
        """Sends the message at the end of this turn of the event loop, together with all others for that node."""
        posted = Posted(to, group, message, self._reborn.get(group, 0))
        self._outbox.setdefault(to, []).append(posted)
        if type(message) is Append:
            self._outbox_bytes += len(message.entries)
        if self._outbox_bytes >= FRAME_BYTES:
            self._send_all()
        elif not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._send_all)

    def _send_all(self) -> None:
        self._scheduled = False
        outbox, self._outbox = self._outbox, {}
        self._outbox_bytes = 0
        for to, messages in outbox.items():
            for first in range(0, len(messages), FRAME_MESSAGES):
                frame = pack(messages[first : first + FRAME_MESSAGES])
                self.transport.send(to.node, frame_kinds.RAFT, frame)

    def on_messages(self, sender: NodeId, body: memoryview) -> None:
        """Raft messages of a peer. Raises ProtocolViolation if they are malformed: then the connection is closed."""
        envelopes = unpack(body)
        node = self.transport.connected()[sender].replica
        for envelope in envelopes:
            replica = heartbeats.as_named(node, envelope.sender)
            if envelope.sender and replica.life_of(node) is None:
                raise ProtocolViolation(
                    f"a message of incarnation {envelope.sender}, which is none of its sender's"
                )
            member = self._addressee(envelope)
            # A group that this node does not know yet was just created: its leader sends again.
            if member is not None:
                member.step(replica, envelope.message)

    def _addressee(self, envelope: RaftEnvelope) -> RaftDriver | None:
        if len(envelope.topic_id) != UUID_BYTES:
            return None
        member = self._groups.get(GroupId(UUID(bytes=envelope.topic_id), envelope.partition))
        return member if member is not None and member.core.me.incarnation == envelope.incarnation else None

    # --- heartbeats

    def peer_up(self, node: NodeId) -> None:
        """A connection begins: heartbeats start a new session."""
        for replica in [known for known in self._senders if known.node == node]:
            del self._senders[replica]

    def peer_down(self, node: NodeId) -> None:
        """A connection ended: replicas that follow a leader on that node need not wait for its next heartbeat."""
        now = self.now()
        for member in self._groups.values():
            leader = member.core.leader
            if leader is not None and leader.node == node:
                member.core.leader_lost(now)

    def _heartbeat(self) -> None:
        """Sends every peer one heartbeat for all groups that this node leads and that the peer is a member of."""
        nodes = {hello.node: hello.replica for hello in self.transport.connected().values()}
        if nodes != self._nodes:
            self._nodes = nodes
        led: dict[Replica, list[tuple[GroupId, Heartbeat]]] = {replica: [] for replica in self._senders}
        reborn: dict[Replica, dict[GroupId, heartbeats.Pair]] = {}
        for group, member in self._groups.items():
            core = member.core
            if core.role is Role.LEADER and core.config is not None:
                row = (group, core.heartbeat())
                leader = self._reborn.get(group, 0) if self._reborn else 0
                for node, named in self._addressees(member, core.config).items():
                    led.setdefault(node, []).append(row)
                    if leader or named:
                        reborn.setdefault(node, {})[group] = heartbeats.Pair(leader, named)
        for node, rows in led.items():
            self._heartbeat_to(node, rows, reborn.get(node, {}))

    def _addressees(self, member: RaftDriver, config: "GroupConfig") -> dict[Replica, int]:
        known = member.addressees
        if known is None or known[0] is not config or known[1] is not self._nodes:
            found = addressees(config.members, self._nodes)
            known = member.addressees = (config, self._nodes, found)
        return known[2]

    def _heartbeat_to(
        self, replica: Replica, rows: list[tuple[GroupId, Heartbeat]], reborn: dict[GroupId, heartbeats.Pair]
    ) -> None:
        sender = self._senders.get(replica)
        if sender is None:
            sender = heartbeats.HeartbeatSender(replica, self._session(), self.settings.lease_s)
            self._senders[replica] = sender
        frame = sender.frame(self.now(), rows, reborn)
        if frame is not None:
            self.transport.send(replica.node, frame_kinds.HEARTBEAT, heartbeats.encode(frame))

    def on_heartbeat(self, sender: NodeId, body: memoryview) -> None:
        """Heartbeats or replies of a peer, for many groups. Raises ProtocolViolation if one was malformed, when the
        effects of the others have been carried out."""
        broken: list[tuple[GroupId, Exception]] = []

        def decide(group: GroupId, question: "Callable[[], list[Effect]]") -> "list[Effect]":
            try:
                return question()
            except Exception as problem:  # noqa: BLE001 - below, when the other groups have had their turn
                broken.append((group, problem))
                return []

        for group, effects in self._heard(sender, body, decide):
            member = self._groups.get(group)  # the effects of one group may close another one
            if member is not None:
                member.carry_out(effects)
        refused: PenstockError | None = None
        for group, problem in broken:
            member = self._groups.get(group)
            try:
                if member is not None:
                    member.broke_off(problem)
            except PenstockError as on_purpose:
                refused = on_purpose
        if refused is not None:
            raise refused

    def _heard(self, sender: NodeId, body: memoryview, decide: heartbeats.Decide) -> heartbeats.Effects:
        frame = heartbeats.decode(body)
        replica = self.transport.connected()[sender].replica
        if isinstance(frame, heartbeats.HeartbeatFrame):
            receiver = self._receivers.get(replica)
            if receiver is None:
                receiver = self._receivers[replica] = heartbeats.HeartbeatReceiver(replica, self.me)
            reply, effects = receiver.receive(self.now(), frame, self._cores.get, decide)
            if reply is not None:
                self.transport.send(sender, frame_kinds.HEARTBEAT, heartbeats.encode(reply))
            return effects
        speaker = self._senders.get(replica)
        return speaker.receive(self.now(), frame, self._cores.get, decide) if speaker is not None else []


def addressees(members: "Iterable[Replica]", nodes: "Mapping[NodeId, Replica]") -> dict[Replica, int]:
    """The nodes, as they are now, that get a heartbeat, each with the incarnation that it is for (0: the node's own).
    While a replica is being rebuilt there are two on its node, of which the older one has ended for good."""
    found: dict[Replica, int] = {}
    for member in members:
        node = nodes.get(member.node)
        if node == member:
            found.setdefault(member, 0)
        elif node is not None and (life := member.life_of(node)) is not None:
            known = heartbeats.as_named(node, found.get(node, 0))
            if life > (known.life_of(node) or 0):
                found[node] = member.incarnation
    return found
