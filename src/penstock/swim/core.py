"""SWIM with the Lifeguard refinements, without I/O: facts in, effects out.

Theory of operation. Every node probes one other in each interval (`probing.py`). A member that does not answer,
neither directly nor to others nor over the reliable channel, is suspected; a suspect that does not refute that in time
is dead (`suspicion.py`). Every new claim is gossiped: it is added to the packets of probes, and is sent to a few random
members five times a second until it was sent often enough (`broadcasts.py`). Every 30 s a node compares its whole table
with that of another. Every table follows one rule of precedence (`table.py`), so all of them converge.

Guarantees to the caller:

1. Nothing here decides which nodes belong to the cluster. It reports, in real time, which ones can be reached.
2. A node declares a member dead only if it had the member under suspicion for the whole of the given time, or if it
   heard so from such a node; and the member could learn of it: every ping to a suspect carries the accusation.
3. A table from another node never declares a member dead: one that is dead there and alive here becomes a suspect here.
4. This node's incarnation never goes back, across restarts too: `SaveIncarnation` reserves numbers in blocks, comes
   before the first packet that uses one of them, and the next start begins above the block.
5. While this node is paused or swapped out, no time passes for the others: deadlines move by as much.
6. Equal inputs and an equal seed give equal effects.

The caller passes seconds of a clock that never goes back, calls `tick` at `next_deadline` (or earlier; it costs
little), and carries the effects out in their order.
"""

from collections.abc import Callable, Iterable
from math import ceil, inf, log2
from typing import Any

import msgspec

from penstock.swim.contacts import Contacts
from penstock.swim.health import LocalHealth
from penstock.swim.packets import (
    ANY_RECEIVER,
    MAX_ALIVE_BYTES,
    Ack,
    Alive,
    Claim,
    Dead,
    IndirectPing,
    Left,
    Message,
    Nack,
    Ping,
    Row,
    Suspect,
    Table,
    encode_message,
)
from penstock.swim.probing import Prober, accusation
from penstock.swim.randomness import Randomness
from penstock.swim.receiver import PacketReceiver, ReceivedPacket
from penstock.swim.seal import Seal
from penstock.swim.sender import PacketSender
from penstock.swim.settings import SwimSettings
from penstock.swim.table import ClaimResult, MemberTable, claims_of
from penstock.swim.values import (
    MAX_INCARNATION,
    Effect,
    GossipEndpoint,
    Member,
    MemberChanged,
    MemberMeta,
    PacketRefusal,
    SaveIncarnation,
    Session,
    State,
    same_cluster,
)
from penstock.types import NodeId, Replica

RESERVED_INCARNATIONS = 64
"""Saved ahead, so that refuting an accusation does not wait for the disk: one write for so many of them."""
PUSH_PULL_GROWS_ABOVE = 32
"""Members. Each doubling above this adds one more interval between two comparisons: tables grow too."""
CONTACTS_AT_ONCE = 10
"""Contacts that a node without other members tries together."""


class Swim:
    """One node's view of the members."""

    def __init__(
        self,
        *,
        meta: MemberMeta,
        last_incarnation: int,
        epoch: int,
        key: bytes | None,
        salt: bytes = b"",
        settings: SwimSettings,
        random: Randomness,
        now: float,
    ) -> None:
        """`last_incarnation`: the last that was saved, -1 if none was. `epoch`: greater than in any earlier run.
        `salt`: see `seal.py`; needed with a key."""
        self._settings = settings.validate()
        self._random = random
        self._now = now
        self.me = meta.replica
        self._reserved = last_incarnation
        me = Member(meta=meta.validate(), incarnation=last_incarnation + 1, state=State.ALIVE)
        self._table = MemberTable(me, settings)
        seal = Seal(key, salt)
        self._sender = PacketSender(me=self.me, epoch=epoch, seal=seal, table=self._table, settings=settings)
        self._receiver = PacketReceiver(me=self.me, seal=seal, sender=self._sender, settings=settings)
        self._health = LocalHealth(settings.max_health_score)
        self._contacts = Contacts(self.me, meta.cluster)
        self._prober = Prober(
            me=self.me,
            table=self._table,
            sender=self._sender,
            health=self._health,
            settings=settings,
            random=random,
            now=now,
        )
        self._leaving = False
        self._merged = False
        """Whether a table has ever been compared: until then this node has not completely joined."""
        self._merge_with: dict[NodeId, Replica] = {}
        self._push_pull_at = now + random.random() * settings.join_retry_ms / 1000
        self._gossip_at = now
        self._rejoin_at = now
        self.next_deadline = inf
        """When `tick` is to be called, in seconds of the caller's clock; inf if there is nothing to wait for."""

    # --- state

    @property
    def members(self) -> dict[Replica, Member]:
        """All known members, this node included. Read-only; a member that changes is replaced."""
        return self._table.rows

    @property
    def incarnation(self) -> int:
        return self._table.rows[self.me].incarnation

    @property
    def health_score(self) -> int:
        """0 is healthy; see health.py."""
        return self._health.score

    @property
    def refused(self) -> dict[PacketRefusal, int]:
        """How many packets or claims were dropped, by reason."""
        return self._receiver.refused

    @property
    def has_left(self) -> bool:
        """After `leave`: whether the Left claim has been sent often enough."""
        return self._leaving and (self.me not in self._sender.broadcasts or not self._gossip_targets())

    # --- inputs

    def start(self, now: float) -> list[Effect]:
        """To be called first: reserves incarnations, and begins to announce this node."""
        self._begin(now)
        self._set_incarnation(self.incarnation)
        return self._end()

    def join(self, now: float, addresses: Iterable[GossipEndpoint]) -> list[Effect]:
        """Adds seeds. They are tried at once, and then for ever while no member is known there. This node's own address
        may be among them."""
        self._begin(now)
        self._contacts.add_seeds(addresses)
        self._rejoin_at = now
        self._rejoin()
        return self._end()

    def leave(self, now: float) -> list[Effect]:
        """Announces that this node leaves. The caller goes on with `tick` until `has_left`, or as long as it has
        time."""
        self._begin(now)
        if not self._leaving:
            self._leaving = True
            member = self._table.rows[self.me]
            self._table.put(msgspec.structs.replace(member, state=State.LEFT))
            self._sender.broadcasts.add(self.me, encode_message(Left(member.incarnation, self.me)))
        return self._end()

    def set_meta(self, now: float, meta: MemberMeta) -> list[Effect]:
        """Changes this node's metadata. Its identity cannot change. After `leave` this has no effect."""
        assert meta.replica == self.me
        self._begin(now)
        if not self._leaving:
            member = self._table.rows[self.me]
            self._table.put(msgspec.structs.replace(member, meta=meta.validate()))
            self._contacts.own_address = meta.cluster
            self._drop_other_clusters(meta.cluster_id)
            self._set_incarnation(member.incarnation + 1)
        return self._end()

    def forget(self, now: float, replica: Replica) -> list[Effect]:
        """The caller knows that this dead member will not come back: it is no longer searched for."""
        self._begin(now)
        if replica in self._table.ended_at:
            self._table.forget(replica)
            self._sender.broadcasts.forget(replica)
        return self._end()

    def connected(
        self, now: float, node: NodeId, session: Session | None = None, *, decrypts: bool = True
    ) -> list[Effect]:
        """The reliable channel to a node has come up. If the node is not present yet, tables are compared: so nodes
        find each other also where datagrams do not get through. `session`: as the handshake named it; until
        `disconnected`, packets of other sessions under that node's id are refused. `decrypts`: False for a node of the
        version before, which reads no encrypted packets."""
        self._begin(now)
        self._sender.set_decrypts(node, decrypts)
        if session is not None:
            self._receiver.connected(session)
        known = any(self._table.rows[each].state.is_present for each in self._table.named(node))
        if not self._leaving and not (known and self._merged):
            self._merge_with.setdefault(node, ANY_RECEIVER)
        return self._end()

    def disconnected(self, now: float, node: NodeId) -> list[Effect]:
        """The reliable channel to a node has ended: a process with the key and a later boot may now be that node."""
        self._begin(now)
        self._receiver.disconnected(node)
        return self._end()

    def step(self, now: float, source: GossipEndpoint, packet: bytes) -> list[Effect]:
        """A datagram was received."""
        self._begin(now)
        self._receive(source, packet)
        return self._end()

    def step_reliable(self, now: float, sender: NodeId, data: bytes) -> list[Effect]:
        """A frame was received over the connection with a node; answers go back over it."""
        self._begin(now)
        self._receive(sender, data)
        return self._end()

    def tick(self, now: float) -> list[Effect]:
        self._begin(now)
        self._declare_dead()
        self._probe()
        self._rejoin()
        self._push_pull()
        self._gossip()
        return self._end()

    # --- begin and end of every input

    def _begin(self, now: float) -> None:
        late_by = now - max(self.next_deadline, self._now)
        self._now = max(self._now, now)
        if late_by * 1000 > self._settings.pause_tolerance_ms:
            self._health.worsen()
            self._prober.extend(late_by)
            for suspicion in self._table.suspicions.values():
                suspicion.extend(late_by)

    def _end(self) -> list[Effect]:
        for node, replica in self._merge_with.items():
            self._sender.send_reliable(node, replica, self._own_table(is_reply=False))
        self._merge_with.clear()
        self.next_deadline = min(self._deadlines(), default=inf)
        return self._sender.collect()

    def _deadlines(self) -> Iterable[float]:
        if self._sender.broadcasts and self._gossip_targets():
            yield self._gossip_at
        yield from self._prober.deadlines()
        yield from (suspicion.deadline for suspicion in self._table.suspicions.values())
        if self._leaving:
            return
        if self._table.present_count > 1:
            yield self._push_pull_at
            yield self._prober.next_start
        if self._contacts.has_seeds or self._table.ended_at:
            yield self._rejoin_at

    # --- incoming packets

    def _receive(self, source: GossipEndpoint | NodeId, data: bytes) -> None:
        packet = self._receiver.open(self._now, source, data, self._my_meta.cluster_id)
        if packet is None:
            return
        if packet.sender == self.me:
            self._received_own_packet(packet)
            return
        was_here = self._table.is_present(packet.sender)
        # Claims first: the answer to a ping must refute the accusations in the same packet.
        claims = [message for message in packet.messages if isinstance(message, Claim)]
        for claim in claims:
            self._hear(packet, claim)
        for message in packet.messages:
            answer = _ANSWERS.get(type(message))
            if answer is not None:
                answer(self, packet, message)
        if not was_here and self._table.is_present(packet.sender):
            self._member_appeared(packet)

    def _received_own_packet(self, packet: ReceivedPacket) -> None:
        """Either this node's own address is among the seeds, or another process runs a copy of its folder. Only a later
        boot proves the latter: a packet of an earlier boot may be a replay."""
        if packet.epoch > self._sender.epoch:
            address = packet.source if isinstance(packet.source, GossipEndpoint) else self._my_meta.cluster
            copy = msgspec.structs.replace(self._my_meta, cluster=address)
            self._receiver.report_conflict(self._now, self._my_meta, copy)
            return
        for message in packet.messages:
            if isinstance(message, Ping):
                self._contacts.came_back(message.number)

    def _member_appeared(self, packet: ReceivedPacket) -> None:
        """A member has appeared. The side whose ping was answered begins the comparison of tables."""
        if any(isinstance(message, Ack) for message in packet.messages):
            self._merge_with[packet.sender.node] = packet.sender

    def _answer_ping(self, packet: ReceivedPacket, ping: Ping) -> None:
        introduce = packet.contradicts_me or packet.receiver == ANY_RECEIVER
        own = (self._own_alive(),) if introduce and not self._leaving else ()
        # A node that lost its incarnation announces itself without effect until it learns the one that it must exceed.
        sender = self._table.rows.get(packet.sender)
        against = accusation(sender, self.me.node) if sender is not None else ()
        self._sender.send(packet.source, packet.sender, Ack(ping.number), *own, *against)

    def _answer_indirect_ping(self, packet: ReceivedPacket, request: IndirectPing) -> None:
        self._prober.help(self._now, packet.source, packet.sender, request)

    def _answer_ack(self, packet: ReceivedPacket, ack: Ack) -> None:
        if not self._prober.heard_ack(ack):
            self._contacts.answered(ack.number, packet.sender)

    def _answer_nack(self, packet: ReceivedPacket, nack: Nack) -> None:
        self._prober.heard_nack(packet.sender, nack)

    def _answer_table(self, packet: ReceivedPacket, table: Table) -> None:
        if not self._merged:
            self._merged = True
            # Nodes that joined together would otherwise always compare at the same time.
            self._push_pull_at = (
                self._now + self._random.random() * self._settings.push_pull_interval_ms / 1000
            )
        for row in table.rows:
            for claim in claims_of(row, by=packet.sender.node):
                self._hear(packet, claim)
        if not table.is_reply:
            self._sender.send(packet.source, packet.sender, self._own_table(is_reply=True))

    # --- claims

    def _hear(self, packet: ReceivedPacket, claim: Claim) -> None:
        if claim.subject == self.me:
            self._hear_about_self(packet, claim)
            return
        result = self._table.evaluate(claim)
        if result is ClaimResult.OLD:
            return
        encoded = encode_message(claim)
        if result is ClaimResult.CONFIRMED:
            self._sender.broadcasts.add(claim.subject, encoded)
        elif self._is_acceptable(packet, claim, result, len(encoded)):
            self._apply(claim, encoded)

    def _is_acceptable(self, packet: ReceivedPacket, claim: Claim, result: ClaimResult, size: int) -> bool:
        if not isinstance(claim, Alive):
            return True
        meta, mine = claim.meta, self._my_meta
        if not same_cluster(meta.cluster_id, mine.cluster_id):
            detail = f"node {meta.node} at {meta.cluster} belongs to cluster {meta.cluster_id!r}"
            self._receiver.refuse(self._now, PacketRefusal.FOREIGN_CLUSTER, packet.source, detail)
        elif result is ClaimResult.FULL:
            detail = f"no space for node {meta.node} at {meta.cluster}"
            self._receiver.refuse(self._now, PacketRefusal.TOO_MANY_MEMBERS, packet.source, detail)
        elif size > MAX_ALIVE_BYTES:
            # It would never fit beside an ack, so it would stay in the queue of broadcasts for ever.
            detail = f"node {meta.node} has metadata of {size} bytes"
            self._receiver.refuse(self._now, PacketRefusal.MALFORMED, packet.source, detail)
        else:
            return True
        return False

    def _apply(self, claim: Claim, encoded: bytes) -> None:
        was_here = self._table.is_present(claim.subject)
        member = self._table.apply(self._now, claim)
        self._sender.broadcasts.add(claim.subject, encoded)
        self._sender.emit(MemberChanged(member, member.state))
        if not member.state.is_present:
            return
        if not was_here:
            self._prober.order.add(claim.subject)
        for other in self._table.id_conflicts(member.meta):
            self._receiver.report_conflict(self._now, other.meta, member.meta)

    def _hear_about_self(self, packet: ReceivedPacket, claim: Claim) -> None:
        """A claim about this node itself. If it is wrong, this node overrides it with a greater incarnation."""
        mine = self._table.rows[self.me]
        if isinstance(claim, Alive) and (claim.incarnation, claim.meta) == (mine.incarnation, mine.meta):
            return
        packet.contradicts_me = True
        if claim.incarnation >= mine.incarnation and not self._leaving:
            self._health.worsen()
            self._set_incarnation(claim.incarnation + 1)

    def _set_incarnation(self, incarnation: int) -> None:
        if incarnation >= MAX_INCARNATION:
            return  # only a faulty peer causes this, and there is no greater incarnation
        if incarnation > self._reserved:
            self._reserved = min(incarnation + RESERVED_INCARNATIONS, MAX_INCARNATION - 2)
            self._sender.emit(SaveIncarnation(self._reserved))
        member = self._table.rows[self.me]
        self._table.put(msgspec.structs.replace(member, incarnation=incarnation))
        self._sender.broadcasts.add(self.me, encode_message(self._own_alive()))

    def _drop_other_clusters(self, cluster_id: str) -> None:
        """Before a node belongs to a cluster it may have met members of several: drops those of others."""
        for replica, member in list(self._table.rows.items()):
            if not same_cluster(member.meta.cluster_id, cluster_id):
                self._table.forget(replica)
                self._sender.broadcasts.forget(replica)
                gone = msgspec.structs.replace(member, state=State.LEFT)
                self._sender.emit(MemberChanged(gone, State.LEFT))

    # --- timers

    def _declare_dead(self) -> None:
        for member in self._table.overdue(self._now):
            claim = Dead(member.incarnation, member.replica)
            self._apply(claim, encode_message(claim))

    def _probe(self) -> None:
        failed = self._prober.take_failed(self._now)
        if failed is not None:
            self._suspect(self._table.rows[failed])
        # Only now: the ping to a new suspect must carry the accusation.
        self._prober.advance(self._now, may_start=not self._leaving)

    def _suspect(self, member: Member) -> None:
        claim = Suspect(member.incarnation, member.replica, self.me.node)
        result = self._table.evaluate(claim)
        if result is ClaimResult.NEW:
            self._apply(claim, encode_message(claim))
        elif result is ClaimResult.CONFIRMED:
            self._sender.broadcasts.add(member.replica, encode_message(claim))

    def _rejoin(self) -> None:
        if self._leaving or self._now < self._rejoin_at:
            return
        candidates = self._contacts.to_try(self._table)
        alone = self._table.present_count == 1 or not self._merged
        hurry = alone and candidates
        wait_ms = self._settings.join_retry_ms if hurry else self._settings.rejoin_interval_ms
        self._rejoin_at = self._now + wait_ms / 1000
        at_once = CONTACTS_AT_ONCE if alone else 1
        for address, receiver in self._random.sample(candidates, min(at_once, len(candidates))):
            self._contact(address, receiver)
            if receiver == ANY_RECEIVER and not self._merged:
                # UDP may not get through, and it saves a round trip.
                self._sender.send_reliable(address, ANY_RECEIVER, self._own_table(is_reply=False))

    def _contact(self, address: GossipEndpoint, receiver: Replica) -> None:
        number = self._prober.new_number()
        self._contacts.tried(number, address)
        dead = self._table.rows.get(receiver)
        claims = accusation(dead, self.me.node) if dead is not None else ()
        self._sender.send(address, receiver, Ping(number), self._own_alive(), *claims, gossip=False)

    def _push_pull(self) -> None:
        if self._leaving or self._now < self._push_pull_at or self._table.present_count == 1:
            return
        doublings = log2(max(1, self._table.present_count / PUSH_PULL_GROWS_ABOVE))
        # By the first comparison this node learns the members: if it got lost, it is repeated soon.
        wait_ms = self._settings.push_pull_interval_ms if self._merged else self._settings.join_retry_ms
        self._push_pull_at = self._now + wait_ms / 1000 * (1 + ceil(doublings))
        alive = [each for each in self._table.present(but=self.me) if each.state is State.ALIVE]
        for member in self._random.sample(alive, min(1, len(alive))):
            self._merge_with[member.node] = member.replica

    def _gossip(self) -> None:
        if self._now < self._gossip_at or not self._sender.broadcasts:
            return
        self._gossip_at = self._now + self._settings.gossip_interval_ms / 1000
        targets = self._gossip_targets()
        for member in self._random.sample(targets, min(self._settings.gossip_nodes, len(targets))):
            self._sender.send_gossip(member.meta.cluster, member.replica)

    def _gossip_targets(self) -> list[Member]:
        recently = self._now - self._settings.gossip_to_the_dead_ms / 1000
        return self._table.present(but=self.me) + self._table.dead(since=recently)

    # --- helpers

    @property
    def _my_meta(self) -> MemberMeta:
        return self._table.rows[self.me].meta

    def _own_alive(self) -> Alive:
        return Alive(self.incarnation, self._my_meta)

    def _own_table(self, *, is_reply: bool) -> Table:
        rows = self._table.rows.values()
        return Table(is_reply, tuple(Row(each.state, each.incarnation, each.meta) for each in rows))


_ANSWERS: dict[type[Message], Callable[[Swim, ReceivedPacket, Any], None]] = {
    Ping: Swim._answer_ping,
    IndirectPing: Swim._answer_indirect_ping,
    Ack: Swim._answer_ack,
    Nack: Swim._answer_nack,
    Table: Swim._answer_table,
}
