"""SWIM with the Lifeguard refinements, without I/O: facts in, effects out.

Theory of operation. Every node probes one other in each interval (`probing.py`). Who does not answer, neither
directly nor to others nor over the reliable channel, is suspected; a suspect that does not object in time is dead
(`suspicion.py`). Whatever is learnt is gossiped: it rides on the probes' own packets, and is sent to a few random
members five times a second while there is something to tell (`broadcasts.py`). Now and then two nodes compare their
whole tables. Every table follows one rule of precedence (`table.py`), so all of them converge.

What the caller may rely on:

1. Nothing here decides who belongs to the cluster. It is a hint, in real time, of who can be reached.
2. A member is called dead only by a node that had it under suspicion for the whole of the time it was given, or that
   heard so from such a node; and it had the chance to hear of that: the accusation goes with the very pings that are
   sent to it.
3. A table from another node never kills: a member that is dead there and alive here becomes a suspect here.
4. This node's incarnation never goes back, across restarts too: `SaveIncarnation` reserves numbers in blocks, comes
   before the first packet that uses one of them, and the next start begins above the block.
5. While this node was asleep (paused, swapped out) no time passes for the others: deadlines move by as much.
6. Equal inputs and an equal seed give equal effects.

The caller passes seconds of a clock that never goes back, calls `tick` at `next_deadline` (or earlier; it costs
little), and carries the effects out in their order.
"""

from collections.abc import Callable, Iterable
from math import ceil, inf, log2
from typing import Any

import msgspec

from penstock.swim.chance import Chance
from penstock.swim.contacts import Contacts
from penstock.swim.gate import Gate, Letter
from penstock.swim.health import LocalHealth
from penstock.swim.packets import (
    ANYBODY,
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
    Seal,
    Suspect,
    Table,
    encode_message,
)
from penstock.swim.post import Post
from penstock.swim.probing import Prober, accusation
from penstock.swim.settings import SwimSettings
from penstock.swim.table import MemberTable, Verdict
from penstock.swim.values import (
    MAX_INCARNATION,
    Effect,
    Endpoint,
    Member,
    MemberChanged,
    MemberMeta,
    Refusal,
    SaveIncarnation,
    Session,
    State,
    same_cluster,
)
from penstock.types import NodeId, Replica

RESERVED_INCARNATIONS = 64
"""Saved ahead, so that contradicting an accusation does not wait for the disk: one write for so many of them."""
PUSH_PULL_GROWS_ABOVE = 32
"""Members. Each doubling above this adds one more interval between two comparisons: tables grow too."""
CONTACTS_AT_ONCE = 10
"""Tried together by a node that knows nobody."""


class Swim:
    """One node's view of who is there."""

    def __init__(
        self,
        *,
        meta: MemberMeta,
        last_incarnation: int,
        epoch: int,
        key: bytes | None,
        settings: SwimSettings,
        chance: Chance,
        now: float,
    ) -> None:
        """`last_incarnation`: the last that was saved, -1 if none was. `epoch`: greater than in any earlier run."""
        self._settings = settings.validate()
        self._chance = chance
        self._now = now
        self.me = meta.replica
        self._reserved = last_incarnation
        me = Member(meta=meta.validate(), incarnation=last_incarnation + 1, state=State.ALIVE)
        self._table = MemberTable(me, settings)
        seal = Seal(key)
        self._post = Post(me=self.me, epoch=epoch, seal=seal, table=self._table, settings=settings)
        self._gate = Gate(me=self.me, seal=seal, post=self._post, settings=settings)
        self._health = LocalHealth(settings.max_health_score)
        self._contacts = Contacts(self.me, meta.cluster)
        self._prober = Prober(
            me=self.me,
            table=self._table,
            post=self._post,
            health=self._health,
            settings=settings,
            chance=chance,
            now=now,
        )
        self._leaving = False
        self._merged = False
        """Whether a table has ever been compared: until then this node has not really joined."""
        self._merge_with: dict[NodeId, Replica] = {}
        self._push_pull_at = now + chance.random() * settings.join_retry_ms / 1000
        self._gossip_at = now
        self._rejoin_at = now
        self.next_deadline = inf
        """When `tick` wants to be called, in seconds of the caller's clock; inf while there is nothing to wait for."""

    # --- what is known

    @property
    def members(self) -> dict[Replica, Member]:
        """Everybody that is known, this node included. Not to be changed; a member that changes is replaced."""
        return self._table.rows

    @property
    def incarnation(self) -> int:
        return self._table.rows[self.me].incarnation

    @property
    def health_score(self) -> int:
        """0 is healthy; see health.py."""
        return self._health.score

    @property
    def refused(self) -> dict[Refusal, int]:
        """How many packets or claims were dropped, by reason."""
        return self._gate.refused

    @property
    def has_left(self) -> bool:
        """After `leave`: whether the farewell has been told often enough."""
        return self._leaving and (self.me not in self._post.broadcasts or not self._audience())

    # --- inputs

    def start(self, now: float) -> list[Effect]:
        """To be called first: reserves incarnations, and tells of this node from here on."""
        self._begin(now)
        self._set_incarnation(self.incarnation)
        return self._end()

    def join(self, now: float, addresses: Iterable[Endpoint]) -> list[Effect]:
        """Seeds: tried at once, then for ever whenever nobody is known to be there. Naming oneself is fine."""
        self._begin(now)
        self._contacts.add_seeds(addresses)
        self._rejoin_at = now
        self._rejoin()
        return self._end()

    def leave(self, now: float) -> list[Effect]:
        """Says farewell. To be ticked on until `has_left`, or for as long as the caller has time."""
        self._begin(now)
        if not self._leaving:
            self._leaving = True
            member = self._table.rows[self.me]
            self._table.put(msgspec.structs.replace(member, state=State.LEFT))
            self._post.broadcasts.add(self.me, encode_message(Left(member.incarnation, self.me)))
        return self._end()

    def set_meta(self, now: float, meta: MemberMeta) -> list[Effect]:
        """This node says something else of itself. Who it is cannot change, and who has left says no more."""
        assert meta.replica == self.me
        self._begin(now)
        if not self._leaving:
            member = self._table.rows[self.me]
            self._table.put(msgspec.structs.replace(member, meta=meta.validate()))
            self._contacts.own_address = meta.cluster
            self._drop_foreigners(meta.cluster_id)
            self._set_incarnation(member.incarnation + 1)
        return self._end()

    def forget(self, now: float, replica: Replica) -> list[Effect]:
        """Somebody with authority says that this dead member will not come back: it is no longer looked for."""
        self._begin(now)
        if replica in self._table.ended_at:
            self._table.forget(replica)
            self._post.broadcasts.forget(replica)
        return self._end()

    def connected(self, now: float, node: NodeId, session: Session | None = None) -> list[Effect]:
        """The reliable channel to a node has come up. If that is news, tables are compared: so nodes find each other
        where datagrams do not get through, too. `session`: as the handshake named it; until `disconnected` nobody else
        is heard under that node's id."""
        self._begin(now)
        if session is not None:
            self._gate.connected(session)
        known = any(self._table.rows[each].state.is_here for each in self._table.named(node))
        if not self._leaving and not (known and self._merged):
            self._merge_with.setdefault(node, ANYBODY)
        return self._end()

    def disconnected(self, now: float, node: NodeId) -> list[Effect]:
        """The reliable channel to a node has ended: whoever has the key and a later boot may be that node now."""
        self._begin(now)
        self._gate.disconnected(node)
        return self._end()

    def step(self, now: float, source: Endpoint, packet: bytes) -> list[Effect]:
        """A datagram came."""
        self._begin(now)
        self._receive(source, packet)
        return self._end()

    def step_reliable(self, now: float, sender: NodeId, data: bytes) -> list[Effect]:
        """A frame came over the connection with a node; answers go back the same way."""
        self._begin(now)
        self._receive(sender, data)
        return self._end()

    def tick(self, now: float) -> list[Effect]:
        self._begin(now)
        self._bury()
        self._probe()
        self._rejoin()
        self._push_pull()
        self._gossip()
        return self._end()

    # --- every input begins and ends with these

    def _begin(self, now: float) -> None:
        overslept = now - max(self.next_deadline, self._now)
        self._now = max(self._now, now)
        if overslept * 1000 > self._settings.pause_tolerance_ms:
            self._health.worsen()
            self._prober.excuse(overslept)
            for suspicion in self._table.suspicions.values():
                suspicion.excuse(overslept)

    def _end(self) -> list[Effect]:
        for node, replica in self._merge_with.items():
            self._post.send_reliable(node, replica, self._own_table(is_reply=False))
        self._merge_with.clear()
        self.next_deadline = min(self._deadlines(), default=inf)
        return self._post.collect()

    def _deadlines(self) -> Iterable[float]:
        if self._post.broadcasts and self._audience():
            yield self._gossip_at
        yield from self._prober.deadlines()
        yield from (suspicion.deadline for suspicion in self._table.suspicions.values())
        if self._leaving:
            return
        if self._table.here_count > 1:
            yield self._push_pull_at
            yield self._prober.next_start
        if self._contacts.has_seeds or self._table.ended_at:
            yield self._rejoin_at

    # --- what comes in

    def _receive(self, source: Endpoint | NodeId, data: bytes) -> None:
        letter = self._gate.open(self._now, source, data, self._my_meta.cluster_id)
        if letter is None:
            return
        if letter.sender == self.me:
            self._met_myself(letter)
            return
        was_here = self._table.is_here(letter.sender)
        # Claims first: the answer to a ping is to contradict what comes with the ping.
        claims = [message for message in letter.messages if isinstance(message, Claim)]
        for claim in claims:
            self._hear(letter, claim)
        for message in letter.messages:
            answer = _ANSWERS.get(type(message))
            if answer is not None:
                answer(self, letter, message)
        if not was_here and self._table.is_here(letter.sender):
            self._met(letter)

    def _met_myself(self, letter: Letter) -> None:
        """Either this node's own address was among the seeds, or somebody runs a copy of its folder. Only a later boot
        is that for certain: a packet of an earlier one may just have been kept and sent again."""
        if letter.epoch > self._post.epoch:
            place = letter.source if isinstance(letter.source, Endpoint) else self._my_meta.cluster
            copy = msgspec.structs.replace(self._my_meta, cluster=place)
            self._gate.report_conflict(self._now, self._my_meta, copy)
            return
        for message in letter.messages:
            if isinstance(message, Ping):
                self._contacts.came_back(message.number)

    def _met(self, letter: Letter) -> None:
        """Somebody that was not here is: what both know is compared, by the one that was answered."""
        if any(isinstance(message, Ack) for message in letter.messages):
            self._merge_with[letter.sender.node] = letter.sender

    def _answer_ping(self, letter: Letter, ping: Ping) -> None:
        introduce = letter.accuses_me or letter.receiver == ANYBODY
        own = (self._own_alive(),) if introduce and not self._leaving else ()
        # A node that lost its incarnation greets in vain until it hears it has to outdo.
        sender = self._table.rows.get(letter.sender)
        against = accusation(sender, self.me.node) if sender is not None else ()
        self._post.send(letter.source, letter.sender, Ack(ping.number), *own, *against)

    def _answer_indirect_ping(self, letter: Letter, request: IndirectPing) -> None:
        self._prober.help(self._now, letter.source, letter.sender, request)

    def _answer_ack(self, letter: Letter, ack: Ack) -> None:
        if not self._prober.heard_ack(ack):
            self._contacts.answered(ack.number, letter.sender)

    def _answer_nack(self, letter: Letter, nack: Nack) -> None:
        self._prober.heard_nack(letter.sender, nack)

    def _answer_table(self, letter: Letter, table: Table) -> None:
        if not self._merged:
            self._merged = True
            # Nodes that joined together would otherwise compare in step for ever.
            self._push_pull_at = (
                self._now + self._chance.random() * self._settings.push_pull_interval_ms / 1000
            )
        for row in table.rows:
            for claim in _claims_of(row, by=letter.sender.node):
                self._hear(letter, claim)
        if not table.is_reply:
            self._post.send(letter.source, letter.sender, self._own_table(is_reply=True))

    # --- claims

    def _hear(self, letter: Letter, claim: Claim) -> None:
        if claim.subject == self.me:
            self._hear_of_myself(letter, claim)
            return
        verdict = self._table.weigh(claim)
        if verdict is Verdict.OLD:
            return
        encoded = encode_message(claim)
        if verdict is Verdict.CONFIRMED:
            self._post.broadcasts.add(claim.subject, encoded)
        elif self._is_acceptable(letter, claim, verdict, len(encoded)):
            self._believe(claim, encoded)

    def _is_acceptable(self, letter: Letter, claim: Claim, verdict: Verdict, size: int) -> bool:
        if not isinstance(claim, Alive):
            return True
        meta, mine = claim.meta, self._my_meta
        if not same_cluster(meta.cluster_id, mine.cluster_id):
            detail = f"node {meta.node} at {meta.cluster} is of cluster {meta.cluster_id!r}"
            self._gate.refuse(self._now, Refusal.FOREIGN_CLUSTER, letter.source, detail)
        elif verdict is Verdict.FULL:
            detail = f"no room for node {meta.node} at {meta.cluster}"
            self._gate.refuse(self._now, Refusal.TOO_MANY_MEMBERS, letter.source, detail)
        elif size > MAX_ALIVE_BYTES:
            # It would never fit beside an ack, so it would stay in the queue of broadcasts for ever.
            detail = f"node {meta.node} says {size} bytes of itself"
            self._gate.refuse(self._now, Refusal.MALFORMED, letter.source, detail)
        else:
            return True
        return False

    def _believe(self, claim: Claim, encoded: bytes) -> None:
        was_here = self._table.is_here(claim.subject)
        member = self._table.believe(self._now, claim)
        self._post.broadcasts.add(claim.subject, encoded)
        self._post.emit(MemberChanged(member, member.state))
        if not member.state.is_here:
            return
        if not was_here:
            self._prober.order.add(claim.subject)
        for namesake in self._table.namesakes(member.meta):
            self._gate.report_conflict(self._now, namesake.meta, member.meta)

    def _hear_of_myself(self, letter: Letter, claim: Claim) -> None:
        """Only this node knows best about itself: what is wrong is outdone by a greater incarnation."""
        mine = self._table.rows[self.me]
        if isinstance(claim, Alive) and (claim.incarnation, claim.meta) == (mine.incarnation, mine.meta):
            return
        letter.accuses_me = True
        if claim.incarnation >= mine.incarnation and not self._leaving:
            self._health.worsen()
            self._set_incarnation(claim.incarnation + 1)

    def _set_incarnation(self, incarnation: int) -> None:
        if incarnation >= MAX_INCARNATION:
            return  # only a broken peer gets us here, and there is nothing greater to say
        if incarnation > self._reserved:
            self._reserved = min(incarnation + RESERVED_INCARNATIONS, MAX_INCARNATION - 2)
            self._post.emit(SaveIncarnation(self._reserved))
        member = self._table.rows[self.me]
        self._table.put(msgspec.structs.replace(member, incarnation=incarnation))
        self._post.broadcasts.add(self.me, encode_message(self._own_alive()))

    def _drop_foreigners(self, cluster_id: str) -> None:
        """A node that has just become part of a cluster may have met members of another one."""
        for replica, member in list(self._table.rows.items()):
            if not same_cluster(member.meta.cluster_id, cluster_id):
                self._table.forget(replica)
                self._post.broadcasts.forget(replica)
                gone = msgspec.structs.replace(member, state=State.LEFT)
                self._post.emit(MemberChanged(gone, State.LEFT))

    # --- what time brings

    def _bury(self) -> None:
        for member in self._table.overdue(self._now):
            claim = Dead(member.incarnation, member.replica)
            self._believe(claim, encode_message(claim))

    def _probe(self) -> None:
        failed = self._prober.take_failed(self._now)
        if failed is not None:
            self._suspect(self._table.rows[failed])
        # Only now: the ping to a new suspect is to tell it so.
        self._prober.advance(self._now, may_start=not self._leaving)

    def _suspect(self, member: Member) -> None:
        claim = Suspect(member.incarnation, member.replica, self.me.node)
        verdict = self._table.weigh(claim)
        if verdict is Verdict.NEWS:
            self._believe(claim, encode_message(claim))
        elif verdict is Verdict.CONFIRMED:
            self._post.broadcasts.add(member.replica, encode_message(claim))

    def _rejoin(self) -> None:
        if self._leaving or self._now < self._rejoin_at:
            return
        candidates = self._contacts.to_try(self._table)
        alone = self._table.here_count == 1 or not self._merged
        hurry = alone and candidates
        wait_ms = self._settings.join_retry_ms if hurry else self._settings.rejoin_interval_ms
        self._rejoin_at = self._now + wait_ms / 1000
        at_once = CONTACTS_AT_ONCE if alone else 1
        for address, receiver in self._chance.sample(candidates, min(at_once, len(candidates))):
            self._contact(address, receiver)
            if receiver == ANYBODY and not self._merged:
                # In case that UDP does not get through, and because it saves a round trip.
                self._post.send_reliable(address, ANYBODY, self._own_table(is_reply=False))

    def _contact(self, address: Endpoint, receiver: Replica) -> None:
        number = self._prober.new_number()
        self._contacts.tried(number, address)
        dead = self._table.rows.get(receiver)
        claims = accusation(dead, self.me.node) if dead is not None else ()
        self._post.send(address, receiver, Ping(number), self._own_alive(), *claims, gossip=False)

    def _push_pull(self) -> None:
        if self._leaving or self._now < self._push_pull_at or self._table.here_count == 1:
            return
        doublings = log2(max(1, self._table.here_count / PUSH_PULL_GROWS_ABOVE))
        # The first comparison is how this node learns who is there: one that got lost is tried again soon.
        wait_ms = self._settings.push_pull_interval_ms if self._merged else self._settings.join_retry_ms
        self._push_pull_at = self._now + wait_ms / 1000 * (1 + ceil(doublings))
        alive = [each for each in self._table.here(but=self.me) if each.state is State.ALIVE]
        for member in self._chance.sample(alive, min(1, len(alive))):
            self._merge_with[member.node] = member.replica

    def _gossip(self) -> None:
        if self._now < self._gossip_at or not self._post.broadcasts:
            return
        self._gossip_at = self._now + self._settings.gossip_interval_ms / 1000
        audience = self._audience()
        for member in self._chance.sample(audience, min(self._settings.gossip_nodes, len(audience))):
            self._post.send_gossip(member.meta.cluster, member.replica)

    def _audience(self) -> list[Member]:
        recently = self._now - self._settings.gossip_to_the_dead_ms / 1000
        return self._table.here(but=self.me) + self._table.dead(since=recently)

    # --- small things

    @property
    def _my_meta(self) -> MemberMeta:
        return self._table.rows[self.me].meta

    def _own_alive(self) -> Alive:
        return Alive(self.incarnation, self._my_meta)

    def _own_table(self, *, is_reply: bool) -> Table:
        rows = self._table.rows.values()
        return Table(is_reply, tuple(Row(each.state, each.incarnation, each.meta) for each in rows))


def _claims_of(row: Row, by: NodeId) -> list[Claim]:
    """What a row of another node's table claims (guarantee 3)."""
    subject = row.meta.replica
    alive = Alive(row.incarnation, row.meta)
    suspect = Suspect(row.incarnation, subject, by)
    match row.state:
        case State.ALIVE:
            return [alive]
        case State.SUSPECT:
            return [alive, suspect]
        case State.DEAD:
            # Without the Alive: whom only others knew, and hold for dead, need not be introduced.
            return [suspect]
        case State.LEFT:
            return [Left(row.incarnation, subject)]


_ANSWERS: dict[type[Message], Callable[[Swim, Letter, Any], None]] = {
    Ping: Swim._answer_ping,
    IndirectPing: Swim._answer_indirect_ping,
    Ack: Swim._answer_ack,
    Nack: Swim._answer_nack,
    Table: Swim._answer_table,
}
