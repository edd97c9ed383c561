"""CliqueState: the members of one clique and the owner of each slot, as a value with transitions.

Two kinds of callers apply transitions and make the new state durable before they tell anyone of it: the broker's
coordinator (`coordinator.py`), and members that share a cell with compare-and-set (`observer.py`):

    state, reply = state.heartbeat(heartbeat, now_ms)          a worker reports: it joins, goes on, hands over or leaves
    state = state.expire(worker, member_id, now_ms)  the caller has judged that a member's lease is over
    state = state.succeed(member_id, heartbeat, now_ms)   the same, and a newcomer of the same name takes its place

A transition returns the same object if nothing changed that must be durable. The object may still have the number of
the new heartbeat, so members that share a cell store it in any case.

The life of a slot that changes hands, with the epochs in which things become so:

    epoch 7   A owns the slot (its slot epoch is 5)
    epoch 8   B has joined and should have it: it is *revoked*, A still owns it
              A learns of table 8, starts nothing new, finishes what runs, and reports that it holds the slot no more
    epoch 9   B owns it, slot epoch 9, and starts when it has been told table 9

One owner at a time follows from these invariants, which the code below cites:

 1. Each slot has one owner at most, and only an owner that knows a table in which it owns the slot starts handlers.
 2. A slot changes its owner only after the owner has let go of it (4), or has left without any slot, or its lease was
    judged to be over. A worker's lease ends by the worker's clock before it ends by the clock of the caller who judges
    it (`member.py`).
 3. The epoch grows with every change, the slot epoch with every change of the owner (also to another incarnation under
    the same name, and back to an owner that was to hand the slot over and may have let go of it already). A table of
    one epoch has one content. So a handler's fencing token grows from owner to owner.
 4. A heartbeat releases a slot if it does not list the slot as held *and* its sender knew that the slot was revoked:
    `heartbeat.epoch` is not below the epoch of the revocation. The sender then does not start handlers for the slot,
    because every table since then has it as revoked. This holds for a heartbeat of any age: late, doubled and reordered
    heartbeats are harmless, also for a coordinator that took over and does not know the last sequence number. If a
    member that does not know the table could release by silence, a slot that it was given and takes up a moment later
    would have two owners.
 5. A removed member never comes back under its member id. A heartbeat joins only if it names an epoch since the last
    removal of any member (`removed_epoch`), and a member that was removed knows only earlier ones. So delayed
    heartbeats of a dead member do not bring it back, and no list of the dead is needed.
 6. A newcomer knows the clique before it takes part: its first heartbeat only tells it the epoch, a later one joins,
    and it starts nothing before it has been told a table that has it as a member.
 7. A member that knows an epoch which this state has not reached is fenced: the state was lost or set back, and the
    member's table must not be trusted.

A slot's *target* is the worker that should own it (`assignment.py`); it changes when members come and go. The *homes*
of a worker that left are the slots that it had: it gets them back if it returns.
"""

from collections.abc import Collection, Iterable, Sequence
from functools import cached_property

import msgspec

from penstock.ring.assignment import UNASSIGNED, rebalanced
from penstock.ring.heartbeats import LIMITS, CliqueLimits, Heartbeat, HeartbeatReply, HeartbeatStatus
from penstock.ring.slots import SLOTS, bitmap_of, common, has_slot, union, without
from penstock.ring.table import NO_EPOCH, NO_OWNER, Table, pack_indexes

HOMES_MAX = 64
"""Workers that left and whose slots are remembered. Those with random names never come back: the oldest is
forgotten."""
FULL_RETRY_MS = 5_000

_NO_EPOCHS = (NO_EPOCH,) * SLOTS


class Member(msgspec.Struct, kw_only=True):
    """One incarnation of a worker."""

    member_id: str
    lease_ms: int
    since_ms: int
    sequence: int
    """Of its last heartbeat. Only this field changes in place."""
    leaving: bool = False
    streams: tuple[str, ...] = ()


class CliqueState:
    """Read-only for its users, except through the transitions."""

    def __init__(self, *, epoch: int) -> None:
        self.epoch = epoch
        self.removed_epoch = NO_EPOCH
        """The epoch in which a member was removed last (5)."""
        self.changed_ms = 0
        """When the last transition was made, by the clock of the one that made it."""
        self.members: dict[str, Member] = {}
        """By the names of the workers."""
        self.homes: dict[str, bytes] = {}
        """The slots of workers that left, as bitmaps; oldest departure first."""
        self.owners: Sequence[str | None] = UNASSIGNED
        """For each slot the worker whose member owns it now."""
        self.targets: Sequence[str | None] = UNASSIGNED
        """For each slot the worker that should own it."""
        self.slot_epochs: Sequence[int] = _NO_EPOCHS
        self.revoked: dict[int, int] = {}
        """The slots whose owner is not their target, and the epoch since when without interruption (4)."""

    @classmethod
    def begin(cls, now_ms: int) -> "CliqueState":
        """A clique that is not stored. Its epochs begin with the seconds of the wall clock: if there was a clique of
        this name whose state is forgotten, its fencing tokens were lower, unless it changed every second."""
        return cls(epoch=max(1, now_ms // 1000))

    # --- transitions

    def heartbeat(
        self, heartbeat: Heartbeat, now_ms: int, limits: CliqueLimits = LIMITS
    ) -> "tuple[CliqueState, HeartbeatReply]":
        """A worker's report. The reply may be sent when the state that comes with it is durable."""
        member = self.members.get(heartbeat.worker)
        state = self
        if member is None:
            if self.may_join(heartbeat) and len(self.members) < limits.max_members:
                state = self._join(heartbeat, now_ms)
        elif self._is_news(member, heartbeat):
            state = self._hear(member, heartbeat, now_ms)
        return state, state.answer(heartbeat)

    def answer(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """The reply to a heartbeat that `heartbeat` has taken, by the state as it is now."""
        member = self.members.get(heartbeat.worker)
        if not self._knows(heartbeat.epoch):
            return self._reply(heartbeat, HeartbeatStatus.FENCED)
        if member is not None and member.member_id == heartbeat.member_id:
            table = None if heartbeat.epoch == self.epoch else self.table
            return self._reply(heartbeat, HeartbeatStatus.OK, lease_ms=member.lease_ms, table=table)
        if heartbeat.leaving or NO_EPOCH < heartbeat.epoch < self.removed_epoch:
            return self._reply(heartbeat, HeartbeatStatus.FENCED)
        if member is not None:
            return self._reply(heartbeat, HeartbeatStatus.NAME_TAKEN, retry_ms=member.lease_ms)
        if heartbeat.epoch == NO_EPOCH:
            return self._reply(heartbeat, HeartbeatStatus.INTRODUCED)
        return self._reply(heartbeat, HeartbeatStatus.FULL, retry_ms=FULL_RETRY_MS)

    def expire(self, worker: str, member_id: str, now_ms: int) -> "CliqueState":
        """Removes a member whose lease is over: its slots go to others at once."""
        if not self.has_member(worker, member_id):
            return self
        draft = self._draft(now_ms)
        draft._remove(worker)
        draft._retarget()
        return draft._settle()

    def succeed(self, member_id: str, heartbeat: Heartbeat, now_ms: int) -> "CliqueState":
        """Removes the member of the heartbeat's name, whose lease is over; the sender of the heartbeat takes its place
        and its slots. Without this they would go to others, and back to the newcomer a moment later."""
        if not self.has_member(heartbeat.worker, member_id) or not self.may_join(heartbeat):
            return self
        draft = self._draft(now_ms)
        draft._remove(heartbeat.worker)
        draft._add(heartbeat, now_ms)
        draft._retarget()
        return draft._settle()

    # --- facts

    def has_member(self, worker: str, member_id: str) -> bool:
        member = self.members.get(worker)
        return member is not None and member.member_id == member_id

    def may_join(self, heartbeat: Heartbeat) -> bool:
        """Whether the sender has been introduced since the last removal (5, 6)."""
        informed = heartbeat.epoch != NO_EPOCH and self.removed_epoch <= heartbeat.epoch
        return informed and self._knows(heartbeat.epoch) and not heartbeat.leaving

    def share_of(self, worker: str) -> int:
        """How many slots the worker owns."""
        return self.owners.count(worker)

    @cached_property
    def table(self) -> Table:
        """What members and leaders are told."""
        workers = sorted(self.members)
        index: dict[str | None, int] = {worker: at for at, worker in enumerate(workers)}
        epochs = sorted(set(self.slot_epochs))
        epoch_index = {epoch: at for at, epoch in enumerate(epochs)}
        return Table(
            epoch=self.epoch,
            workers=tuple(workers),
            member_ids=tuple(self.members[worker].member_id for worker in workers),
            owners=pack_indexes([index.get(owner, NO_OWNER) for owner in self.owners]),
            epochs=tuple(epochs),
            slot_epochs=pack_indexes([epoch_index[epoch] for epoch in self.slot_epochs]),
            revoked=bitmap_of(self.revoked),
        )

    # --- decisions

    def _knows(self, epoch: int) -> bool:
        """Whether this state has reached an epoch that a worker knows (7)."""
        return epoch <= self.epoch

    def _is_news(self, member: Member, heartbeat: Heartbeat) -> bool:
        same = member.member_id == heartbeat.member_id
        return same and self._knows(heartbeat.epoch) and heartbeat.sequence > member.sequence

    def _join(self, heartbeat: Heartbeat, now_ms: int) -> "CliqueState":
        draft = self._draft(now_ms)
        draft._add(heartbeat, now_ms)
        draft._retarget()
        return draft._settle()

    def _hear(self, member: Member, heartbeat: Heartbeat, now_ms: int) -> "CliqueState":
        """The next heartbeat of a member."""
        released = self._released_by(heartbeat)
        leaves = heartbeat.leaving and not member.leaving
        if not released and not leaves and heartbeat.streams == member.streams:
            member.sequence = heartbeat.sequence
            return self
        draft = self._draft(now_ms)
        draft.members[heartbeat.worker] = msgspec.structs.replace(
            member, sequence=heartbeat.sequence, streams=heartbeat.streams, leaving=member.leaving or leaves
        )
        draft._free(released)
        if leaves:
            draft._remember_home(heartbeat.worker)
            draft._retarget()
        if draft.members[heartbeat.worker].leaving and heartbeat.worker not in draft.owners:
            draft._remove(heartbeat.worker)
        return draft._settle()

    def _released_by(self, heartbeat: Heartbeat) -> list[int]:
        """The slots that the sender owned, and has let go of knowing that they are revoked (4)."""
        return [
            slot
            for slot, since in self.revoked.items()
            if self.owners[slot] == heartbeat.worker
            and since <= heartbeat.epoch
            and not has_slot(heartbeat.held, slot)
        ]

    # --- a draft is changed until it is settled

    def _draft(self, now_ms: int) -> "CliqueState":
        """A copy with the next epoch (3)."""
        draft = CliqueState(epoch=self.epoch + 1)
        draft.removed_epoch = self.removed_epoch
        draft.changed_ms = max(now_ms, self.changed_ms)
        draft.members = dict(self.members)
        draft.owners = self.owners
        draft.targets = self.targets
        draft.slot_epochs = self.slot_epochs
        draft.revoked = dict(self.revoked)
        draft.homes = dict(self.homes)
        return draft

    def _add(self, heartbeat: Heartbeat, now_ms: int) -> None:
        self.members[heartbeat.worker] = Member(
            member_id=heartbeat.member_id,
            lease_ms=heartbeat.lease_ms,
            since_ms=now_ms,
            sequence=heartbeat.sequence,
            streams=heartbeat.streams,
        )

    def _remove(self, worker: str) -> None:
        """The member is gone, and what it owned is free."""
        member = self.members.pop(worker)
        if not member.leaving:
            self._remember_home(worker)
        self._free([slot for slot, owner in enumerate(self.owners) if owner == worker])
        self.removed_epoch = self.epoch

    def _free(self, slots: Iterable[int]) -> None:
        owners = list(self.owners)
        for slot in slots:
            owners[slot] = None
        self.owners = owners

    def _remember_home(self, worker: str) -> None:
        self.homes.pop(worker, None)
        self.homes[worker] = self._slots_targeted_at(worker)
        while len(self.homes) > HOMES_MAX:
            del self.homes[next(iter(self.homes))]

    def _retarget(self) -> None:
        """The members have changed: decides who should own each slot."""
        staying = {worker for worker, member in self.members.items() if not member.leaving}
        self.targets = rebalanced(self.targets, staying, self.homes, self.owners)
        self._forget_homes(staying)

    def _forget_homes(self, workers: Collection[str]) -> None:
        """Those who are here need no memory. A slot that is back at home is no longer the home of those who left later:
        they had it only as substitutes. Those who left earlier may still claim it."""
        homes: dict[str, bytes] = {}
        back = b""
        for worker, slots in self.homes.items():
            if worker in workers:
                back = union((back, common(slots, self._slots_targeted_at(worker))))
            else:
                homes[worker] = without(slots, back)
        self.homes = homes

    def _slots_targeted_at(self, worker: str) -> bytes:
        return bitmap_of(slot for slot, target in enumerate(self.targets) if target == worker)

    def _settle(self) -> "CliqueState":
        """Gives free slots to their targets, and notes which slots must be handed over. An owner that need not hand a
        slot over any more counts as a new one: it may have dropped the messages that it was given before (3)."""
        epochs = list(self.slot_epochs)
        owners: list[str | None] = []
        for slot, (owner, target) in enumerate(zip(self.owners, self.targets, strict=True)):
            if owner is not None and owner != target:
                self.revoked.setdefault(slot, self.epoch)
                owners.append(owner)
            else:
                if self.revoked.pop(slot, None) is not None or owner != target:
                    epochs[slot] = self.epoch
                owners.append(target)
        self.owners, self.slot_epochs = owners, epochs
        return self if self.members else self._emptied()

    def _emptied(self) -> "CliqueState":
        """Without members all states have the same slots, and little memory."""
        self.owners = self.targets = UNASSIGNED
        self.slot_epochs = _NO_EPOCHS
        return self

    def _reply(
        self,
        heartbeat: Heartbeat,
        status: HeartbeatStatus,
        *,
        lease_ms: int = 0,
        retry_ms: int = 0,
        table: Table | None = None,
    ) -> HeartbeatReply:
        return HeartbeatReply(
            status=status,
            sequence=heartbeat.sequence,
            epoch=self.epoch,
            lease_ms=lease_ms,
            retry_ms=retry_ms,
            table=table,
        )


def changed_workers(before: CliqueState, after: CliqueState) -> set[str]:
    """The workers that were given slots, or lost some, or are to hand some over, or need not any more; and those that
    have gone."""
    changed = {
        worker
        for slot in range(SLOTS)
        if before.slot_epochs[slot] != after.slot_epochs[slot]
        for worker in (before.owners[slot], after.owners[slot])
        if worker is not None
    }
    changed |= {str(after.owners[slot]) for slot in before.revoked.keys() ^ after.revoked.keys()}
    return changed | (before.members.keys() - after.members.keys())
