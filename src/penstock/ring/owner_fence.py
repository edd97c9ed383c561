"""OwnerFence: what the leader of a partition allows to the members of one clique, by the newest table that it knows.

    lost = fence.take(table)                         a newer table: release the leases of these owners on these slots
    slots = fence.deliverable(worker, member_id)     the slots whose messages this member may be given, with their
    epochs fence.may_settle(member_id, slot, epoch)         whether an acknowledgement counts; `epoch` is that of the
    delivery

A leader may know an older table than the worker. That delays deliveries and never allows too much: a worker starts
handlers by the table that *it* knows and while its lease lasts (`member.py`), and this fence only takes away. A worker
that names a newer epoch than the fence has makes the leader fetch the table first.

Invariants:
 1. Messages of a slot go only to its owner, and to none while the slot is being handed over: they would have to drain.
 2. Leases belong to one owner in one slot epoch. When either changes they are released, before the next owner is given
    anything; so a slot's messages are handed out in their order by each owner, and from the first that is not settled.
 3. An acknowledgement from an earlier owner, or from an earlier epoch of the same one, is refused: the message is, or
    will be, handled by the present owner.
"""

from penstock.ring.table import NO_EPOCH, Holder, Table


class OwnerFence:
    """One clique as one leader sees it."""

    def __init__(self) -> None:
        self.table: Table | None = None

    @property
    def epoch(self) -> int:
        return self.table.epoch if self.table is not None else NO_EPOCH

    def take(self, table: Table) -> dict[int, Holder]:
        """Takes up a table if it is newer than the known one: the slots whose owner or epoch changed, with the owner
        that lost them (2)."""
        before = self.table
        if table.epoch <= self.epoch:
            return {}
        self.table = table
        if before is None:
            return {}
        now = table.holders()
        return {slot: owner for slot, owner in enumerate(before.holders()) if owner and owner != now[slot]}

    def deliverable(self, worker: str, member_id: str) -> dict[int, int]:
        """The slots that this member owns and need not hand over, with their epochs (1)."""
        if self.table is None or not self.is_member(worker, member_id):
            return {}
        return self.table.granted_to(member_id)

    def is_member(self, worker: str, member_id: str) -> bool:
        """Whether the table has this incarnation of the worker."""
        return self.table is not None and (worker, member_id) in self.table.members

    def may_settle(self, member_id: str, slot: int, epoch: int) -> bool:
        """Whether this member has owned the slot without interruption since it was given the message (3)."""
        owner = self.table.owner_of(slot) if self.table is not None else None
        return owner is not None and owner.member_id == member_id and owner.epoch == epoch
