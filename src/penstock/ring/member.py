"""MemberCore: a worker's side of its clique, without I/O: which slots it may work on, and for how long.

The worker's runtime drives it. Times are milliseconds of one clock that never goes back and that counts also while the
process or the machine sleeps (on Linux CLOCK_BOOTTIME); nothing here waits or locks, so the runtime guards it if it
calls from several threads.

    core = MemberCore(worker="w1", new_member_id=lambda: secrets.token_hex(16), now_ms=now())

    at core.next_heartbeat_ms     heartbeat = core.heartbeat(now()), send it, then core.replied(reply, now());
                                  without a reply core.unanswered(now())
    after a reply or `released`   slots = core.take_acquired(), run on_acquire, then core.acquired(slots)
    after a reply or `finish`     slots = core.take_releasable(), run on_release, then core.released(slots, now())
    for each message              epoch = core.start(slot, now()) just before its handler; None: it must not run.
                                  Afterwards core.finish(slot). core.start_nested for requests from inside a handler
    at core.lease_ends_ms         cancel the handlers that run, as far as that is possible
    to go                         core.leave(now()), and go on as before until core.has_left

`finish` belongs after the acknowledgement of the message, not before: until then the slot counts as held, and the next
owner would be given the message again.

Invariants:
 1. A handler starts only for a slot that the newest known table grants to this member (owned, not revoked), after
    on_acquire has finished, and before the lease has ended.
 2. The lease counts from the moment at which the heartbeat was *sent* whose reply says that this is a member, by this
    clock, less LEASE_MARGIN for clocks that run at different speeds. The one that judges counts from the receipt of
    that heartbeat or of a later one. So the lease ends here before any other member can consider it ended, however late
    the reply came, and a process that was paused finds it ended when it wakes.
 3. Tables are taken up only forwards: a reply that was overtaken changes nothing. Together with invariant 4 of
    `clique_state.py` this makes a release final.
 4. `held` in a heartbeat covers every slot that a handler, on_acquire or on_release may still touch, as of the same
    moment as the epoch in that heartbeat.
 5. A slot that was lost and granted again, seen by its other slot epoch, is released and acquired again: another
    worker may have changed in between what on_acquire had loaded.
 6. After `fenced` this is another member: it owns nothing, and replies to heartbeats of its former self are ignored.
    Handlers of the former self that still run keep their slots held, so that they do not overlap with new ones in
    this process.
"""

from collections.abc import Callable, Collection, Mapping
from enum import Enum, auto
from math import inf

from penstock.ring.heartbeats import DEFAULT_LEASE_MS, Heartbeat, HeartbeatReply, HeartbeatStatus
from penstock.ring.slots import bitmap_of
from penstock.ring.table import NO_EPOCH, Table

LEASE_MARGIN = 0.05
"""The part of the lease that is given up. Clocks of machines differ by less than 0.1 %; the rest is for cancelling the
handlers that run."""
HEARTBEATS_PER_LEASE = 4
RETRIES_PER_LEASE = 16
"""How often a heartbeat without an answer is repeated."""
SENT_MAX = 64
"""Heartbeats whose replies are awaited: older ones could not make the lease longer."""


class Phase(Enum):
    """What happens to a slot that is held."""

    ACQUIRING = auto()
    """on_acquire runs."""
    READY = auto()
    """Handlers run, or may start while the slot is granted."""
    RELEASING = auto()
    """on_release runs."""


class Holding:
    """A slot that this worker has not let go of."""

    __slots__ = ("epoch", "phase", "running")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.phase = Phase.ACQUIRING
        self.running = 0


class MemberCore:
    """The worker as a member of its clique, through all its incarnations."""

    def __init__(
        self,
        *,
        worker: str,
        new_member_id: Callable[[], str],
        now_ms: float,
        lease_ms: int = DEFAULT_LEASE_MS,
        streams: Collection[str] = (),
    ) -> None:
        self.worker = worker
        self.streams = tuple(sorted(streams))
        self._new_member_id = new_member_id
        self.member_id = new_member_id()
        self._asked_lease_ms = lease_ms
        self._sequence = 0
        self._sent: dict[int, float] = {}
        """When each heartbeat of this incarnation was sent."""
        self.table: Table | None = None
        """The newest table that this incarnation knows."""
        self._introduced_epoch = NO_EPOCH
        self.status: HeartbeatStatus | None = None
        """Of the last reply."""
        self.lease_ends_ms = -inf
        """From then on nothing starts (2)."""
        self._granted: dict[int, int] = {}
        """The slots that the newest table grants, with their epochs."""
        self._holdings: dict[int, Holding] = {}
        self._ungranted: set[int] = set()
        """The slots that are held, and not granted in the epoch in which they are held."""
        self._unheld: set[int] = set()
        """The slots that are granted and not held."""
        self.leaving = False
        self.has_left = False
        """Whether the clique has confirmed that this worker has gone."""
        self.overdue = 0
        """Slots whose on_release has not returned in time: the worker's runtime sets it."""
        self.next_heartbeat_ms: float = now_ms
        """When to call `heartbeat`; earlier does no harm."""

    # --- the clique

    @property
    def is_member(self) -> bool:
        return self.table is not None

    @property
    def epoch(self) -> int:
        """Of the newest table that it knows; 0 if it knows none."""
        return self.table.epoch if self.table is not None else NO_EPOCH

    def heartbeat(self, now_ms: float) -> Heartbeat:
        """The next heartbeat. It must be sent at once: its lease counts from now (2)."""
        self._sequence += 1
        self._sent[self._sequence] = now_ms
        while len(self._sent) > SENT_MAX:
            del self._sent[next(iter(self._sent))]
        self.next_heartbeat_ms = now_ms + self._asked_lease_ms / HEARTBEATS_PER_LEASE
        return Heartbeat(
            worker=self.worker,
            member_id=self.member_id,
            sequence=self._sequence,
            lease_ms=self._asked_lease_ms,
            epoch=self.epoch or self._introduced_epoch,
            held=bitmap_of(self._holdings),
            leaving=self.leaving,
            streams=self.streams,
            overdue=self.overdue,
        )

    def replied(self, reply: HeartbeatReply, now_ms: float) -> None:
        """Takes a reply. Replies may be lost, doubled and overtake each other."""
        sent_ms = self._sent.get(reply.sequence)
        if sent_ms is None or self.has_left:
            return
        self.status = reply.status
        match reply.status:
            case HeartbeatStatus.OK:
                self._confirmed(reply, sent_ms, now_ms)
            case HeartbeatStatus.FENCED:
                self._fenced(now_ms)
            case _ if not self.is_member:
                self._introduced_epoch = reply.epoch
                self._hurry(now_ms + min(reply.retry_ms, self._asked_lease_ms / HEARTBEATS_PER_LEASE))

    def unanswered(self, now_ms: float) -> None:
        """A heartbeat failed, or its reply did not come in time: tries again soon."""
        self._hurry(now_ms + self._asked_lease_ms / RETRIES_PER_LEASE)

    def learned(self, table: Table, now_ms: float) -> None:
        """Takes a table that came on another way than in a reply. It does not make the lease longer."""
        if self.table is None or table.epoch <= self.table.epoch:
            return
        if table.has_member(self.member_id):
            self._take_up(table, now_ms)
        else:
            self._fenced(now_ms)

    def leave(self, now_ms: float) -> None:
        """Begins to hand everything over: no slot is acquired any more, and those that are held drain."""
        self.leaving = True
        self._hurry(now_ms)

    def _confirmed(self, reply: HeartbeatReply, sent_ms: float, now_ms: float) -> None:
        lease_ends_ms = sent_ms + reply.lease_ms * (1 - LEASE_MARGIN)
        self.lease_ends_ms = max(self.lease_ends_ms, lease_ends_ms)
        if reply.table is not None and reply.table.epoch > self.epoch:
            self._take_up(reply.table, now_ms)

    def _take_up(self, table: Table, now_ms: float) -> None:
        self.table = table
        self._grant(table.granted_to(self.member_id))
        if any(slot not in self._holdings for slot in table.revoked_from(self.member_id)):
            # It has nothing to finish there, and the next owner waits.
            self._hurry(now_ms)

    def _fenced(self, now_ms: float) -> None:
        """Begins again as another member; as one that leaves, it has left."""
        self.has_left = self.leaving
        self.member_id = self._new_member_id()
        self._sent.clear()
        self.table = None
        self._introduced_epoch = NO_EPOCH
        self._grant({})
        self.lease_ends_ms = -inf
        self._hurry(now_ms)

    def _grant(self, granted: dict[int, int]) -> None:
        holdings = self._holdings
        self._granted = granted
        self._unheld = granted.keys() - holdings.keys()
        self._ungranted = {slot for slot in holdings if granted.get(slot) != holdings[slot].epoch}

    def _hurry(self, when_ms: float) -> None:
        self.next_heartbeat_ms = min(self.next_heartbeat_ms, when_ms)

    # --- slots

    @property
    def granted(self) -> Mapping[int, int]:
        """The slots that the newest known table grants to this member, with their epochs."""
        return self._granted

    @property
    def held(self) -> Collection[int]:
        """The slots that this worker has not let go of."""
        return self._holdings.keys()

    @property
    def running(self) -> int:
        """How many handlers run."""
        return sum(holding.running for holding in self._holdings.values())

    def take_acquired(self) -> dict[int, int]:
        """The slots that are granted and not held yet, with their epochs. They are held from now on, and handlers may
        start when `acquired` has been called for them."""
        if self.leaving:
            return {}
        taken = {slot: self._granted[slot] for slot in sorted(self._unheld)}
        for slot, epoch in taken.items():
            self._holdings[slot] = Holding(epoch)
        self._unheld.clear()
        return taken

    def acquired(self, slots: Collection[int]) -> None:
        """on_acquire has finished for these."""
        for slot in slots:
            self._holdings[slot].phase = Phase.READY

    def may_start(self, slot: int, now_ms: float) -> int | None:
        """The slot's epoch if a handler may start now, else None (1)."""
        holding = self._holdings.get(slot)
        if holding is None or holding.phase is not Phase.READY or now_ms >= self.lease_ends_ms:
            return None
        return None if slot in self._ungranted else holding.epoch

    def start(self, slot: int, now_ms: float) -> int | None:
        """As `may_start`; if it gives an epoch, the handler counts as running until `finish`."""
        epoch = self.may_start(slot, now_ms)
        if epoch is not None:
            self._holdings[slot].running += 1
        return epoch

    def start_nested(self, slot: int, now_ms: float) -> int | None:
        """The same for a request from inside a handler that runs for the slot. It may also start while the slot is
        being handed over: the handover waits for that handler, and the handler for the request."""
        holding = self._holdings.get(slot)
        if holding is None or not holding.running or now_ms >= self.lease_ends_ms:
            return None
        if not self.owns(slot):
            return None
        holding.running += 1
        return holding.epoch

    def finish(self, slot: int) -> bool:
        """A handler has ended, and the acknowledgement of its message is confirmed or given up. Returns whether the
        slot can be released now."""
        self._holdings[slot].running -= 1
        return self._is_releasable(slot)

    def owns(self, slot: int) -> bool:
        """Whether the newest known table has this member as the owner of a slot that it holds, revoked or not."""
        owner = self.table.owner_of(slot) if self.table is not None else None
        return (
            owner is not None
            and owner.member_id == self.member_id
            and owner.epoch == self._holdings[slot].epoch
        )

    def epoch_of(self, slot: int) -> int:
        """The epoch in which this worker got a slot that it holds."""
        return self._holdings[slot].epoch

    def is_granted(self, slot: int) -> bool:
        """Whether handlers run for this slot, or will as soon as it is acquired."""
        return slot in self._granted and (slot in self._holdings or not self.leaving)

    def take_releasable(self) -> list[int]:
        """The slots that are no longer granted and where nothing runs any more. They are held until `released` has been
        called for them."""
        done = [slot for slot in sorted(self._ungranted) if self._is_releasable(slot)]
        for slot in done:
            self._holdings[slot].phase = Phase.RELEASING
        return done

    def _is_releasable(self, slot: int) -> bool:
        holding = self._holdings[slot]
        return slot in self._ungranted and holding.phase is Phase.READY and not holding.running

    def released(self, slots: Collection[int], now_ms: float) -> None:
        """on_release has finished for these: the next heartbeat says so, and it is due at once."""
        for slot in slots:
            del self._holdings[slot]
            self._ungranted.discard(slot)
            if slot in self._granted:
                self._unheld.add(slot)
        if slots:
            self._hurry(now_ms)
