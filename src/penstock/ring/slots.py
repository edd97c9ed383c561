"""Slots: a key belongs to one of 4,096, and a worker owns slots, never single keys.

A set of slots travels as a bitmap of 512 bytes: slot s is bit `s % 8` of byte `s // 8`. No bytes at all mean the empty
set. JSON has the bitmap in base64 (msgspec does that for every field of bytes).
"""

from collections.abc import Iterable

from xxhash import xxh3_64_intdigest

SLOTS = 4096
"""Fixed for ever: another number would move every key to another slot, on workers and leaders at different times."""
BITMAP_BYTES = SLOTS // 8


def slot_of(key: bytes) -> int:
    """The slot of a key: the same in every process and version."""
    return xxh3_64_intdigest(key) % SLOTS


def bitmap_of(slots: Iterable[int]) -> bytes:
    """The bitmap of these slots; b"" if there are none."""
    bitmap = bytearray(BITMAP_BYTES)
    for slot in slots:
        bitmap[slot >> 3] |= 1 << (slot & 7)
    return bytes(bitmap) if any(bitmap) else b""


def has_slot(bitmap: bytes, slot: int) -> bool:
    return bool(bitmap) and bool(bitmap[slot >> 3] & 1 << (slot & 7))


def slots_of(bitmap: bytes) -> list[int]:
    """The slots of a bitmap, ascending. ValueError if it is not one."""
    check_bitmap(bitmap)
    return [
        slot
        for at, byte in enumerate(bitmap)
        if byte
        for slot in range(at << 3, (at << 3) + 8)
        if byte & 1 << (slot & 7)
    ]


def union(bitmaps: Iterable[bytes]) -> bytes:
    """All slots of these bitmaps."""
    bits = 0
    for bitmap in bitmaps:
        bits |= int.from_bytes(bitmap, "little")
    return bits.to_bytes(BITMAP_BYTES, "little") if bits else b""


def common(bitmap: bytes, other: bytes) -> bytes:
    """The slots that are in both."""
    bits = int.from_bytes(bitmap, "little") & int.from_bytes(other, "little")
    return bits.to_bytes(BITMAP_BYTES, "little") if bits else b""


def without(bitmap: bytes, other: bytes) -> bytes:
    """The slots of a bitmap that are not in another."""
    bits = int.from_bytes(bitmap, "little") & ~int.from_bytes(other, "little")
    return bits.to_bytes(BITMAP_BYTES, "little") if bits else b""


def check_bitmap(bitmap: bytes) -> None:
    """ValueError unless these bytes are a bitmap of slots."""
    if len(bitmap) not in (0, BITMAP_BYTES):
        raise ValueError(f"a bitmap of slots has {BITMAP_BYTES} bytes or none, not {len(bitmap)}")
