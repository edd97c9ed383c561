"""Beats and replies as bytes, and the limits of a beat."""

import msgspec
import pytest

from penstock.errors import KafkaError
from penstock.ring import Beat, BeatReply, CliqueLimits, CliqueState, bitmap_of, check_clique_name

LIMITS = CliqueLimits(max_name_bytes=10, max_member_id_bytes=4, max_streams=2, max_streams_bytes=8)
GOOD = Beat(worker="w", member_id="1", sequence=1, held=bitmap_of([1]), streams=("a", "b"))


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"worker": ""}, "worker"),
        ({"worker": "x" * 11}, "worker"),
        ({"worker": "\u20ac" * 4}, "worker"),
        ({"member_id": ""}, "member_id"),
        ({"member_id": "12345"}, "member_id"),
        ({"sequence": 0}, "sequence"),
        ({"epoch": -1}, "epoch"),
        ({"epoch": 2**63}, "epoch"),
        ({"lease_ms": 499}, "lease_ms"),
        ({"lease_ms": 600_001}, "lease_ms"),
        ({"held": b"123"}, "held"),
        ({"streams": ("a", "b", "c")}, "streams"),
        ({"streams": ("12345", "6789")}, "streams"),
        ({"streams": ("",)}, "streams"),
    ],
)
def test_a_beat_beyond_a_limit_is_refused_and_the_error_names_the_field(wrong, field) -> None:
    GOOD.check(LIMITS)
    with pytest.raises(KafkaError, match=f"^{field}"):
        msgspec.structs.replace(GOOD, **wrong).check(LIMITS)


@pytest.mark.parametrize("name", ["", "x" * 11])
def test_the_name_of_a_clique_is_bounded(name) -> None:
    with pytest.raises(KafkaError, match="clique"):
        check_clique_name(name, LIMITS)


@pytest.mark.parametrize("codec", [msgspec.json, msgspec.msgpack])
def test_beats_and_replies_survive_the_wire(codec) -> None:
    state = CliqueState.begin(1_000_000)
    beat = msgspec.structs.replace(GOOD, epoch=state.epoch)
    state, reply = state.beat(beat, 0)
    assert reply.table is not None
    assert codec.decode(codec.encode(beat), type=Beat) == beat
    assert codec.decode(codec.encode(reply), type=BeatReply) == reply
