"""The table of a clique: which member owns each slot, since which epoch, and which slots are being handed over.

A table is what workers and leaders are told. It has one content for each epoch: every change of members, owners or
handovers makes a new epoch, and no worker or leader is told a table before it is durable. So of two tables of a
clique the one with the higher epoch is newer, and those who know the same epoch know the same table.
"""

from collections.abc import Sequence
from struct import Struct

import msgspec

from penstock.ring.slots import SLOTS, check_bitmap, has_slot

NO_EPOCH = 0
"""Knows no table yet."""
NO_OWNER = 0xFFFF

_INDEXES = Struct(f"<{SLOTS}H")


Holder = tuple[str, int]
"""The id of the member that owns a slot, and the slot's epoch: leases and fencing go by both."""


class SlotOwner(msgspec.Struct, frozen=True, kw_only=True):
    """The member that may run handlers for a slot, and the slot's fencing token."""

    worker: str
    member_id: str
    epoch: int
    """The epoch in which this member became the owner: higher than that of every owner before it."""
    revoked: bool
    """Whether it was told to hand the slot over: it finishes what runs, and starts nothing new."""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Owners by slot. `owners` and `slot_epochs` are 4,096 numbers of two bytes each, little-endian."""

    epoch: int
    workers: tuple[str, ...] = ()
    """The names of all members, ascending."""
    member_ids: tuple[str, ...] = ()
    """The incarnation under each name."""
    owners: bytes
    """Indexes into `workers`; NO_OWNER for a slot without an owner."""
    epochs: tuple[int, ...] = ()
    """The slot epochs that occur, ascending."""
    slot_epochs: bytes
    """Indexes into `epochs`: the epoch in which the slot's owner became its owner."""
    revoked: bytes = b""
    """The slots whose owner must hand them over, as a bitmap."""

    def check(self) -> "Table":
        """Raises ValueError for a table from a peer that is not one; gives the table back otherwise."""
        if len(self.workers) != len(self.member_ids):
            raise ValueError(f"a table has {len(self.workers)} workers and {len(self.member_ids)} member ids")
        if len(self.owners) != _INDEXES.size or len(self.slot_epochs) != _INDEXES.size:
            raise ValueError(f"a table has {_INDEXES.size} bytes of owners and of slot epochs")
        if any(owner >= len(self.workers) for owner in self.owner_indexes if owner != NO_OWNER):
            raise ValueError("a table names an owner that is not among its workers")
        if any(at >= len(self.epochs) for at in _INDEXES.unpack(self.slot_epochs)):
            raise ValueError("a table names a slot epoch that is not among its epochs")
        check_bitmap(self.revoked)
        return self

    @property
    def owner_indexes(self) -> Sequence[int]:
        """For each slot the index of its owner in `workers`, or NO_OWNER."""
        return unpack_indexes(self.owners)

    def owner_of(self, slot: int) -> SlotOwner | None:
        """None while the slot has no owner."""
        at = int.from_bytes(self.owners[2 * slot : 2 * slot + 2], "little")
        if at == NO_OWNER:
            return None
        return SlotOwner(
            worker=self.workers[at],
            member_id=self.member_ids[at],
            epoch=self.epochs[int.from_bytes(self.slot_epochs[2 * slot : 2 * slot + 2], "little")],
            revoked=has_slot(self.revoked, slot),
        )

    @property
    def members(self) -> list[tuple[str, str]]:
        """Each worker with its member id."""
        return list(zip(self.workers, self.member_ids, strict=True))

    def has_member(self, member_id: str) -> bool:
        return member_id in self.member_ids

    def holders(self) -> list[Holder | None]:
        """The owner of each slot and its epoch; None for a slot without one."""
        epochs = unpack_indexes(self.slot_epochs)
        return [
            None if owner == NO_OWNER else (self.member_ids[owner], self.epochs[epochs[slot]])
            for slot, owner in enumerate(self.owner_indexes)
        ]

    def granted_to(self, member_id: str) -> dict[int, int]:
        """The slots for which this member may start handlers, with their epochs: its own without the revoked ones."""
        epochs = unpack_indexes(self.slot_epochs)
        return {
            slot: self.epochs[epochs[slot]]
            for slot in self._owned_by(member_id)
            if not has_slot(self.revoked, slot)
        }

    def revoked_from(self, member_id: str) -> list[int]:
        """The slots that this member owns and has to hand over."""
        return (
            [slot for slot in self._owned_by(member_id) if has_slot(self.revoked, slot)]
            if self.revoked
            else []
        )

    def _owned_by(self, member_id: str) -> list[int]:
        if member_id not in self.member_ids:
            return []
        me = self.member_ids.index(member_id)
        return [slot for slot, owner in enumerate(self.owner_indexes) if owner == me]


def pack_indexes(indexes: Sequence[int]) -> bytes:
    """One number of two bytes for each slot."""
    return _INDEXES.pack(*indexes)


def unpack_indexes(data: bytes) -> Sequence[int]:
    """ValueError if these are not 4,096 numbers of two bytes."""
    if len(data) != _INDEXES.size:
        raise ValueError(f"expected {_INDEXES.size} bytes, two for each slot, not {len(data)}")
    return _INDEXES.unpack(data)
