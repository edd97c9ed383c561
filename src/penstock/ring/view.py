"""View: one member's picture of its clique, on a carrier that has neither a coordinator nor compare-and-set.

Members announce themselves to all, and each pings the others in turn. A member that does not answer is suspected, which
all are told; it refutes that with a higher incarnation, or is dead after the suspicion time. The table is a pure
function of the members that are alive and settled: members with the same picture have the same table. This gives
affinity as a best effort and not one owner at a time: two members can see different members for a while.

    view.take()                the messages to send: (worker, or None for all, gossip)
    view.received(gossip, now_ms)
    view.tick(now_ms)          at view.next_deadline_ms
    view.table                 who owns what, by this picture; None while this member does not know enough

These rules keep the picture sound:
 1. A member counts as alive only after a message of its own. A claim of another member that it is alive makes this one
    ask it. So old news, from a member that was away, do not bring back the dead.
 2. Dead members are remembered with their incarnation, so that a delayed message of theirs does not count as a sign of
    life. A member that is alive nevertheless is told so, and comes back with a higher incarnation.
 3. A claim that a member is dead only makes it a suspect here. It then has the whole suspicion time to answer, and is
    told at once.
 4. A newcomer gets no slots before it is settled: it has heard from every member that another one named, or no member
    has answered it for a whole suspicion time. The others count it from then on.
 5. A member that finds that it slept for longer than the suspicion time, or was declared dead, is a newcomer again.
"""

from collections.abc import Iterable
from math import inf

import msgspec

from penstock.ring.assignment import UNASSIGNED, rebalanced
from penstock.ring.gossip import CLAIMS_MAX, Claim, Gossip, GossipKind, PeerState
from penstock.ring.slots import SLOTS
from penstock.ring.table import Table, pack_indexes

TOMBSTONES_MAX = 1024
"""Dead members that are remembered; the oldest is forgotten."""


class ViewSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Times in milliseconds. The defaults take a crashed member out after some six seconds."""

    probe_ms: int = 1_000
    """How often one other member is pinged, and how long it has to answer."""
    suspicion_ms: int = 5_000
    """How long a suspect has to refute; several round trips, and the pauses of a busy process."""
    announce_ms: int = 2_000
    members_max: int = 512


Outgoing = tuple[str | None, Gossip]
"""A message, and the worker that it is for; None for all."""


class Peer:
    """Another member."""

    __slots__ = (
        "asked_ms",
        "heard_ms",
        "incarnation",
        "member_id",
        "settled",
        "state",
        "suspected_ms",
        "worker",
    )

    def __init__(self, gossip: Gossip, now_ms: float) -> None:
        self.worker = gossip.worker
        self.state = PeerState.ALIVE
        self.suspected_ms = now_ms
        self.asked_ms: float | None = None
        """When it was pinged and has not answered since."""
        self.heard(gossip, now_ms)

    def heard(self, gossip: Gossip, now_ms: float) -> None:
        self.member_id = gossip.member_id
        self.incarnation = gossip.incarnation
        self.settled = gossip.settled
        self.heard_ms = now_ms
        self.asked_ms = None


class View:
    """Times are milliseconds of a clock that never goes back and counts also while the process sleeps."""

    def __init__(
        self,
        *,
        worker: str,
        member_id: str,
        incarnation: int,
        now_ms: float,
        settings: ViewSettings | None = None,
    ) -> None:
        """`incarnation`: higher than in earlier runs under this name; wall milliseconds do."""
        self.worker = worker
        self.member_id = member_id
        self.incarnation = incarnation
        self.is_settled = False
        self.has_left = False
        self.is_replaced = False
        """Whether another process has taken this one's name: it must stop."""
        self._settings = settings or ViewSettings()
        self.peers: dict[str, Peer] = {}
        """All other members, by worker. Read-only for others."""
        self._dead: dict[str, int] = {}
        """The incarnations in which members died or left, oldest first (2)."""
        self._named: dict[str, float] = {}
        """Workers that others named and that were asked, with the time: not heard from yet (1)."""
        self._is_introduced = False
        """Whether a settled member has named the others."""
        self._settle_by_ms = now_ms + self._settings.suspicion_ms
        self._probe_at_ms = now_ms
        self._announce_at_ms = now_ms
        self._last_pinged = ""
        self._outbox: list[Outgoing] = []
        self._table: Table | None = None

    # --- the picture

    @property
    def members(self) -> frozenset[str]:
        """The workers that take a share: settled, and not known to be dead."""
        others = {peer.worker for peer in self.peers.values() if peer.settled}
        return frozenset(others | {self.worker} if self.is_settled else others)

    @property
    def table(self) -> Table | None:
        """None while this member is a newcomer (4). The epochs count the changes of this picture only."""
        if not self.is_settled:
            return None
        members = {peer.worker: peer.member_id for peer in self.peers.values() if peer.settled}
        members[self.worker] = self.member_id
        if self._table is None or self._table.members != sorted(members.items()):
            epoch = self._table.epoch + 1 if self._table is not None else 1
            self._table = _table(epoch, members)
        return self._table

    @property
    def next_deadline_ms(self) -> float:
        """When to call `tick`; infinite when this member is no longer one."""
        if self.has_left or self.is_replaced:
            return inf
        suspicion_ms = self._settings.suspicion_ms
        suspects = (peer for peer in self.peers.values() if peer.state is PeerState.SUSPECT)
        deadlines = [self._probe_at_ms, self._announce_at_ms]
        deadlines += [peer.suspected_ms + suspicion_ms for peer in suspects]
        return min(deadlines if self.is_settled else [*deadlines, self._settle_by_ms])

    def take(self) -> list[Outgoing]:
        """The messages since the last call."""
        taken, self._outbox = self._outbox, []
        return taken

    # --- inputs

    def leave(self) -> None:
        """Tells all that this member goes. Nothing more is to be done afterwards."""
        self.has_left = True
        self.is_settled = False
        self._outbox.append((None, self._gossip(GossipKind.ANNOUNCE, leaving=True)))

    def received(self, gossip: Gossip, now_ms: float) -> None:
        if self.has_left or self.is_replaced:
            return
        if gossip.worker == self.worker:
            self._met_namesake(gossip)
        elif gossip.incarnation <= self._dead.get(gossip.worker, -1):
            # A late message of a dead member, or one that does not know that it was declared dead (2). Its
            # claim about this member counts all the same: if both have declared each other dead, both must learn it.
            self._refute_any(gossip.claims, now_ms)
            self._ping(gossip.worker, self._claim_about(gossip.worker))
        elif gossip.leaving:
            self._hear_farewell(gossip)
        elif self._hear(gossip, now_ms):
            for claim in gossip.claims:
                self._hear_claim(claim, now_ms)
            self._answer(gossip)
            self._is_introduced |= gossip.kind is GossipKind.MEMBERS and gossip.settled
            self._settle_if_known(now_ms)

    def tick(self, now_ms: float) -> None:
        if self.has_left or self.is_replaced:
            return
        if now_ms - self.next_deadline_ms > self._settings.suspicion_ms:
            self._woke_up(now_ms)
        self._declare_dead(now_ms)
        if now_ms >= self._probe_at_ms:
            self._probe(now_ms)
        self._settle_if_known(now_ms)
        if now_ms >= self._announce_at_ms:
            self._announce(now_ms)

    # --- hearing

    def _met_namesake(self, gossip: Gossip) -> None:
        """Another process has this one's name: the one that was started later keeps it."""
        if gossip.member_id != self.member_id and gossip.incarnation >= self.incarnation:
            self.is_replaced = True
            self.is_settled = False

    def _hear(self, gossip: Gossip, now_ms: float) -> bool:
        """The sender lives. False if the message is older than what is known of it, or there are too many members."""
        peer = self.peers.get(gossip.worker)
        if peer is None:
            if len(self.peers) + 1 >= self._settings.members_max:
                return False
            self.peers[gossip.worker] = Peer(gossip, now_ms)
            self._dead.pop(gossip.worker, None)
            self._named.pop(gossip.worker, None)
            return True
        if gossip.incarnation < peer.incarnation:
            return False
        if gossip.incarnation > peer.incarnation:
            peer.state = PeerState.ALIVE
        peer.heard(gossip, now_ms)
        return True

    def _hear_farewell(self, gossip: Gossip) -> None:
        """The sender is gone, unless this comes late and its worker has been started again."""
        peer = self.peers.get(gossip.worker)
        if peer is None or gossip.incarnation >= peer.incarnation:
            self._remember_dead(gossip.worker, gossip.incarnation)

    def _refute_any(self, claims: Iterable[Claim], now_ms: float) -> None:
        for claim in claims:
            if claim.worker == self.worker:
                self._refute(claim, now_ms)

    def _hear_claim(self, claim: Claim, now_ms: float) -> None:
        peer = self.peers.get(claim.worker)
        if claim.worker == self.worker:
            self._refute(claim, now_ms)
        elif peer is None:
            if claim.state <= PeerState.SUSPECT and claim.incarnation > self._dead.get(claim.worker, -1):
                self._ask(claim.worker, now_ms)
        elif claim.state >= PeerState.SUSPECT and claim.incarnation >= peer.incarnation:
            self._suspect(peer, now_ms)

    def _refute(self, claim: Claim, now_ms: float) -> None:
        """Others think that this member is silent or gone: it says that it is not, with a higher incarnation."""
        if claim.state is PeerState.ALIVE or claim.incarnation < self.incarnation:
            return
        self.incarnation = claim.incarnation + 1
        if claim.state >= PeerState.DEAD:
            self._begin_again(now_ms)
        self._announce(now_ms)

    def _ask(self, worker: str, now_ms: float) -> None:
        """A member named a worker: it counts when it has answered (1)."""
        if worker not in self._named and len(self._named) < CLAIMS_MAX:
            self._named[worker] = now_ms
            self._ping(worker)

    # --- suspicion

    def _probe(self, now_ms: float) -> None:
        """Suspects those that have not answered, and pings the next one."""
        self._probe_at_ms = now_ms + self._settings.probe_ms
        for peer in self.peers.values():
            if peer.asked_ms is not None and now_ms - peer.asked_ms >= self._settings.probe_ms:
                self._suspect(peer, now_ms)
        self._named = {
            worker: asked_ms
            for worker, asked_ms in self._named.items()
            if now_ms - asked_ms < 2 * self._settings.probe_ms
        }
        names = sorted(self.peers)
        later = [name for name in names if name > self._last_pinged] or names
        if later:
            peer = self.peers[later[0]]
            self._last_pinged = peer.worker
            peer.asked_ms = now_ms if peer.asked_ms is None else peer.asked_ms
            self._ping(peer.worker, self._claim_about(peer.worker))

    def _suspect(self, peer: Peer, now_ms: float) -> None:
        """Tells all, and first of all the suspect (3)."""
        if peer.state is PeerState.ALIVE:
            peer.state = PeerState.SUSPECT
            peer.suspected_ms = now_ms
            claim = self._claim_about(peer.worker)
            self._ping(peer.worker, claim)
            self._outbox.append((None, self._gossip(GossipKind.ANNOUNCE, claim)))

    def _declare_dead(self, now_ms: float) -> None:
        for peer in list(self.peers.values()):
            silent_ms = now_ms - peer.suspected_ms
            if peer.state is PeerState.SUSPECT and silent_ms >= self._settings.suspicion_ms:
                self._remember_dead(peer.worker, peer.incarnation)
                self._outbox.append((None, self._gossip(GossipKind.ANNOUNCE, self._claim_about(peer.worker))))

    def _remember_dead(self, worker: str, incarnation: int) -> None:
        self.peers.pop(worker, None)
        self._named.pop(worker, None)
        self._dead[worker] = max(incarnation, self._dead.pop(worker, -1))
        while len(self._dead) > TOMBSTONES_MAX:
            del self._dead[next(iter(self._dead))]

    # --- being new

    def _settle_if_known(self, now_ms: float) -> None:
        """Takes a share from now on if this member knows the others, or has waited long enough (4)."""
        knows = self._is_introduced and not self._named
        if not self.is_settled and (knows or now_ms >= self._settle_by_ms):
            self.is_settled = True
            self._announce(now_ms)

    def _begin_again(self, now_ms: float) -> None:
        """This member knows too little to take a share (5)."""
        self.is_settled = False
        self._is_introduced = False
        self._named.clear()
        self._settle_by_ms = now_ms + self._settings.suspicion_ms
        for worker in self.peers:
            self._ping(worker)

    def _woke_up(self, now_ms: float) -> None:
        """The others had no chance to be heard while this process slept."""
        for peer in self.peers.values():
            peer.suspected_ms = now_ms
            peer.asked_ms = None
        self._begin_again(now_ms)

    # --- telling

    def _announce(self, now_ms: float) -> None:
        self._announce_at_ms = now_ms + self._settings.announce_ms
        suspects = (peer for peer in self.peers.values() if peer.state is PeerState.SUSPECT)
        claims = [self._claim_about(peer.worker) for peer in suspects]
        self._outbox.append((None, self._gossip(GossipKind.ANNOUNCE, *claims)))

    def _ping(self, worker: str, *claims: Claim) -> None:
        self._outbox.append((worker, self._gossip(GossipKind.PING, *claims)))

    def _answer(self, gossip: Gossip) -> None:
        """Newcomers are told who is there: by the member that they ask, and by one of those that hear them announce."""
        asks = gossip.kind is GossipKind.PING
        greets = gossip.kind is GossipKind.ANNOUNCE and self.is_settled and self.worker == min(self.members)
        if not gossip.settled and (asks or greets):
            claims = [self._claim_about(worker) for worker in list(self.peers)[:CLAIMS_MAX]]
            self._outbox.append((gossip.worker, self._gossip(GossipKind.MEMBERS, *claims)))
        elif asks:
            claim = self._claim_about(gossip.worker)
            self._outbox.append((gossip.worker, self._gossip(GossipKind.PONG, claim)))

    def _claim_about(self, worker: str) -> Claim:
        peer = self.peers.get(worker)
        if peer is None:
            return Claim(worker, self._dead[worker], PeerState.DEAD)
        return Claim(worker, peer.incarnation, peer.state)

    def _gossip(self, kind: GossipKind, *claims: Claim, leaving: bool = False) -> Gossip:
        return Gossip(
            kind=kind,
            worker=self.worker,
            member_id=self.member_id,
            incarnation=self.incarnation,
            settled=self.is_settled,
            leaving=leaving,
            claims=claims,
        )


def _table(epoch: int, members: dict[str, str]) -> Table:
    workers = sorted(members)
    index = {worker: at for at, worker in enumerate(workers)}
    owners = rebalanced(UNASSIGNED, workers)
    return Table(
        epoch=epoch,
        workers=tuple(workers),
        member_ids=tuple(members[worker] for worker in workers),
        owners=pack_indexes([index[owner] for owner in owners if owner is not None]),
        epochs=(epoch,),
        slot_epochs=pack_indexes([0] * SLOTS),
    )
