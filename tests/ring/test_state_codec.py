"""The stored state of a clique: it survives, and bytes that are not one are refused."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UnknownFormat
from penstock.ring import SLOTS, Heartbeat, bitmap_of
from penstock.ring.clique_state import CliqueState
from penstock.ring.state_codec import decode_state, encode_state


def _busy_state() -> CliqueState:
    """Members, one that leaves, slots on their way, and a home."""
    state = CliqueState.begin(1_000_000)
    for worker in ("a", "b", "c", "d"):
        heartbeat = Heartbeat(
            worker=worker, member_id=worker, sequence=1, epoch=state.epoch, streams=("orders",)
        )
        state, _ = state.heartbeat(heartbeat, 5)
    state = state.expire("b", "b", 6)
    held = bitmap_of(range(0, SLOTS, 3))
    state, _ = state.heartbeat(
        Heartbeat(worker="a", member_id="a", sequence=2, epoch=state.epoch, held=held), 7
    )
    leaving = Heartbeat(worker="c", member_id="c", sequence=2, epoch=state.epoch, held=held, leaving=True)
    return state.heartbeat(leaving, 8)[0]


STATE = _busy_state()
STORED = encode_state(STATE)


def test_a_state_survives() -> None:
    again = decode_state(STORED)
    assert again.table == STATE.table
    assert again.members == STATE.members
    assert list(again.targets) == list(STATE.targets)
    assert again.revoked == STATE.revoked
    assert again.homes == STATE.homes
    assert (again.epoch, again.removed_epoch, again.changed_ms) == (STATE.epoch, STATE.removed_epoch, 8)
    assert encode_state(again) == STORED


def test_a_usual_state_is_small() -> None:
    state = CliqueState.begin(1_000_000)
    state, _ = state.heartbeat(Heartbeat(worker="a", member_id="a", sequence=1, epoch=state.epoch), 5)
    assert len(encode_state(state)) < 17_000
    assert len(encode_state(state.expire("a", "a", 6))) < 1_000


@pytest.mark.parametrize("size", [0, 1, 2, len(STORED) // 2, len(STORED) - 1])
def test_a_part_of_a_state_is_refused(size) -> None:
    with pytest.raises(UnknownFormat):
        decode_state(STORED[:size])


@given(st.data())
def test_damaged_bytes_are_refused_or_give_a_state_that_fits_together(data) -> None:
    damaged = bytearray(STORED)
    for _ in range(data.draw(st.integers(1, 5))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        state = decode_state(bytes(damaged))
    except UnknownFormat:
        return
    assert set(state.owners) - {None} <= state.members.keys()
    assert set(state.targets) - {None} <= state.members.keys()
    assert decode_state(encode_state(state)).table == state.table


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data) -> None:
    with pytest.raises(UnknownFormat):
        decode_state(b"\x01" + data)


@pytest.mark.parametrize(
    "wrong",
    [
        {"owners": bytes(10)},
        {"owners": b"\x09\x00" * SLOTS},
        {"slot_epochs": b"\x09\x00" * SLOTS, "epochs": [1]},
        {"epoch": 1},
        {"targets": b""},
        {"revoked": [[1, b"\x01"]]},
        {"homes": [[f"w{number}", b""] for number in range(65)]},
        {"homes": [["w", b"123"]]},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_parts_that_do_not_fit_together_are_refused(wrong) -> None:
    fields = msgspec.msgpack.decode(STORED[1:])
    with pytest.raises(UnknownFormat):
        decode_state(b"\x01" + msgspec.msgpack.encode(fields | wrong))
