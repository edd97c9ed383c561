"""Keys, slots, and sets of slots as bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.ring.slots import (
    BITMAP_BYTES,
    SLOTS,
    bitmap_of,
    common,
    has_slot,
    slot_of,
    slots_of,
    union,
    without,
)


def test_the_slot_of_a_key_is_the_same_for_ever() -> None:
    """XXH3, 64 bits, modulo 4,096: other languages and later versions must find the same slot."""
    assert slot_of(b"") == 0x2D06800538D394C2 % SLOTS, "the hash of nothing, as its authors give it"
    assert [slot_of(key) for key in (b"alice", b"bob", bytes(100))] == [1712, 2277, 140]


def test_keys_spread_over_all_slots() -> None:
    slots = {slot_of(str(number).encode()) for number in range(100_000)}
    assert slots == set(range(SLOTS))


@given(st.sets(st.integers(0, SLOTS - 1)))
def test_a_set_of_slots_survives_its_bitmap(slots) -> None:
    bitmap = bitmap_of(slots)
    assert len(bitmap) == (BITMAP_BYTES if slots else 0)
    assert slots_of(bitmap) == sorted(slots)
    assert {slot for slot in range(SLOTS) if has_slot(bitmap, slot)} == slots


SETS = st.sets(st.integers(0, SLOTS - 1), max_size=30)


@given(SETS, SETS)
def test_bitmaps_are_joined_and_subtracted_like_sets(one, other) -> None:
    assert slots_of(union((bitmap_of(one), bitmap_of(other)))) == sorted(one | other)
    assert slots_of(common(bitmap_of(one), bitmap_of(other))) == sorted(one & other)
    assert slots_of(without(bitmap_of(one), bitmap_of(other))) == sorted(one - other)


@pytest.mark.parametrize("size", [1, BITMAP_BYTES - 1, BITMAP_BYTES + 1])
def test_a_bitmap_of_another_size_is_refused(size) -> None:
    with pytest.raises(ValueError, match="512 bytes"):
        slots_of(bytes(size))
