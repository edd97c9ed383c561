"""The stored form of a CliqueState: a version byte, then msgpack.

    byte    what
    0       version 1
    1...    a map with the fields of `_Stored`

Sets of slots and tables of owners are as in `slots.py` and `table.py`: `owners`, `targets` and `slot_epochs` have two
bytes per slot. They are left out where they say nothing: `targets` if every slot is with its target, all of them if the
clique has no members. Another version is an UnknownFormat, and bytes that do not fit together are too: never a silent
skip, which would give away slots that have an owner.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.errors import UnknownFormat
from penstock.ring.clique_state import HOMES_MAX, CliqueState, Member
from penstock.ring.slots import check_bitmap
from penstock.ring.table import NO_EPOCH, NO_OWNER, pack_indexes, unpack_indexes

VERSION = 1


class _StoredMember(msgspec.Struct, kw_only=True, frozen=True, array_like=True):
    worker: str
    member_id: str
    lease_ms: int
    since_ms: int
    sequence: int
    leaving: bool
    streams: tuple[str, ...]


class _Stored(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    epoch: int
    removed_epoch: int = NO_EPOCH
    changed_ms: int = 0
    members: tuple[_StoredMember, ...] = ()
    """In the order of their names: the indexes below count them."""
    owners: bytes = b""
    targets: bytes = b""
    epochs: tuple[int, ...] = ()
    slot_epochs: bytes = b""
    revoked: tuple[tuple[int, bytes], ...] = ()
    """Epochs, and the slots that are being handed over since then: two bytes each."""
    homes: tuple[tuple[str, bytes], ...] = ()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Stored)


def encode_state(state: CliqueState) -> bytes:
    workers = sorted(state.members)
    stored = _Stored(
        epoch=state.epoch,
        removed_epoch=state.removed_epoch,
        changed_ms=state.changed_ms,
        members=tuple(_stored_member(worker, state.members[worker]) for worker in workers),
        homes=tuple(state.homes.items()),
        **_stored_slots(state, workers),
    )
    return bytes((VERSION,)) + _encoder.encode(stored)


def _stored_member(worker: str, member: Member) -> _StoredMember:
    return _StoredMember(worker=worker, **msgspec.structs.asdict(member))


def _stored_slots(state: CliqueState, workers: Sequence[str]) -> dict[str, Any]:
    if not workers:
        return {}
    index: dict[str | None, int] = {worker: at for at, worker in enumerate(workers)}
    table = state.table
    moved = state.targets != state.owners
    return {
        "owners": table.owners,
        "targets": pack_indexes([index.get(target, NO_OWNER) for target in state.targets]) if moved else b"",
        "epochs": table.epochs,
        "slot_epochs": table.slot_epochs,
        "revoked": tuple((epoch, _pack_slots(slots)) for epoch, slots in _by_epoch(state.revoked).items()),
    }


def _by_epoch(revoked: Mapping[int, int]) -> dict[int, list[int]]:
    slots: dict[int, list[int]] = {}
    for slot, epoch in sorted(revoked.items()):
        slots.setdefault(epoch, []).append(slot)
    return slots


def decode_state(data: bytes) -> CliqueState:
    """UnknownFormat for bytes that `encode_state` of this version did not write."""
    if data[:1] != bytes((VERSION,)):
        raise UnknownFormat(
            f"the state of a clique has format {data[:1].hex() or 'none'}: expected {VERSION:02x}"
        )
    try:
        return _state(_decoder.decode(memoryview(data)[1:]))
    except (msgspec.MsgspecError, ValueError, IndexError, struct.error) as wrong:
        raise UnknownFormat(f"the state of a clique cannot be read: {wrong}") from None


def _state(stored: _Stored) -> CliqueState:
    state = CliqueState(epoch=stored.epoch)
    state.removed_epoch = stored.removed_epoch
    state.changed_ms = stored.changed_ms
    state.members = {each.worker: _member(each) for each in stored.members}
    state.homes = dict(stored.homes)
    if stored.members:
        workers = [each.worker for each in stored.members]
        state.owners = _workers(stored.owners, workers)
        state.targets = _workers(stored.targets, workers) if stored.targets else state.owners
        state.slot_epochs = [stored.epochs[at] for at in unpack_indexes(stored.slot_epochs)]
        state.revoked = {slot: epoch for epoch, slots in stored.revoked for slot in _unpack_slots(slots)}
    _check(state)
    return state


def _member(stored: _StoredMember) -> Member:
    fields = msgspec.structs.asdict(stored)
    del fields["worker"]
    return Member(**fields)


def _workers(indexes: bytes, workers: Sequence[str]) -> list[str | None]:
    named = {NO_OWNER: None, **dict(enumerate(workers))}
    try:
        return [named[at] for at in unpack_indexes(indexes)]
    except KeyError as unknown:
        raise ValueError(f"a slot belongs to member {unknown}, of {len(workers)}") from None


def _pack_slots(slots: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(slots)}H", *slots)


def _unpack_slots(data: bytes) -> Sequence[int]:
    return struct.unpack(f"<{len(data) // 2}H", data)


def _check(state: CliqueState) -> None:
    """ValueError unless the parts fit together: transitions rely on it."""
    moving = [
        slot
        for slot, (owner, target) in enumerate(zip(state.owners, state.targets, strict=True))
        if owner != target
    ]
    if sorted(state.revoked) != moving:
        raise ValueError("the slots that are handed over are not those whose owner differs from their target")
    latest = max((state.removed_epoch, *state.slot_epochs, *state.revoked.values()))
    if latest > state.epoch:
        raise ValueError(f"epoch {latest} occurs in a state of epoch {state.epoch}")
    for slots in state.homes.values():
        check_bitmap(slots)
    if len(state.homes) > HOMES_MAX:
        raise ValueError(f"{len(state.homes)} homes: expected at most {HOMES_MAX}")
