"""Heartbeats and replies as bytes, and the limits of a heartbeat."""

import msgspec
import pytest

from penstock.clique.names import checked_clique, checked_stream, checked_worker
from penstock.errors import KafkaError
from penstock.ring import CliqueLimits, Heartbeat, HeartbeatReply, bitmap_of, check_clique_name
from penstock.ring.clique_state import CliqueState

LIMITS = CliqueLimits(max_member_id_bytes=4, max_streams=2, max_streams_bytes=8)
BAD_NAMES = ["", "x" * 201, "a b", ".", ".a", "a.", "a..b", "a\n", "a/b", "caf\u00e9", "a*", "\x00"]
GOOD = Heartbeat(worker="w", member_id="1", sequence=1, held=bitmap_of([1]), streams=("a", "b"))


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"worker": ""}, "worker"),
        ({"worker": "x" * 201}, "worker"),
        ({"worker": "a b"}, "worker"),
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
        ({"streams": (".",)}, "streams"),
    ],
)
def test_a_heartbeat_beyond_a_limit_is_refused_and_the_error_names_the_field(wrong, field) -> None:
    GOOD.check(LIMITS)
    with pytest.raises(KafkaError, match=f"^{field}"):
        msgspec.structs.replace(GOOD, **wrong).check(LIMITS)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_the_coordinator_and_the_client_refuse_the_same_names(name: str) -> None:
    with pytest.raises(KafkaError, match=r"^clique is .*: expected 1 to 200 of a-z"):
        check_clique_name(name)
    for check in (checked_clique, checked_worker, checked_stream):
        with pytest.raises(ValueError, match=": expected 1 to 200 of a-z"):
            check(name)


@pytest.mark.parametrize("name", ["x", "x" * 200, "a.b.c", "_", "-", "eu-1.prices_v2"])
def test_the_coordinator_and_the_client_take_the_same_names(name: str) -> None:
    assert check_clique_name(name) == checked_clique(name) == checked_worker(name) == checked_stream(name)


@pytest.mark.parametrize("codec", [msgspec.json, msgspec.msgpack])
def test_heartbeats_and_replies_survive_the_wire(codec) -> None:
    state = CliqueState.begin(1_000_000)
    heartbeat = msgspec.structs.replace(GOOD, epoch=state.epoch)
    state, reply = state.heartbeat(heartbeat, 0)
    assert reply.table is not None
    assert codec.decode(codec.encode(heartbeat), type=Heartbeat) == heartbeat
    assert codec.decode(codec.encode(reply), type=HeartbeatReply) == reply
