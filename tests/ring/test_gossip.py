"""Gossip as bytes: everything that arrives is bounded, and anything else is refused."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.ring.gossip import (
    CLAIMS_MAX,
    GOSSIP_BYTES_MAX,
    Claim,
    Gossip,
    GossipKind,
    PeerState,
    decode_gossip,
    encode_gossip,
)

NAMES = st.text(min_size=1, max_size=20, alphabet=st.characters(codec="utf-8"))
NUMBERS = st.integers(0, 2**63 - 1)
CLAIMS = st.builds(Claim, NAMES, NUMBERS, st.sampled_from(PeerState))
GOSSIP = st.builds(
    Gossip,
    kind=st.sampled_from(GossipKind),
    worker=NAMES,
    member_id=NAMES,
    incarnation=NUMBERS,
    settled=st.booleans(),
    leaving=st.booleans(),
    claims=st.lists(CLAIMS, max_size=5).map(tuple),
)
HELLO = Gossip(kind=GossipKind.ANNOUNCE, worker="a", member_id="1", incarnation=0, settled=True)


@given(GOSSIP)
def test_gossip_survives(gossip) -> None:
    assert decode_gossip(encode_gossip(gossip)) == gossip


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data) -> None:
    with pytest.raises(ValueError, match="not gossip"):
        decode_gossip(data)


@given(GOSSIP, st.data())
def test_damaged_gossip_is_refused_or_within_all_limits(gossip, data) -> None:
    damaged = bytearray(encode_gossip(gossip))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        read = decode_gossip(bytes(damaged))
    except ValueError:
        return
    assert 0 <= read.incarnation < 2**63
    assert all(claim.state in PeerState for claim in read.claims)


@pytest.mark.parametrize(
    "wrong",
    [
        {"worker": ""},
        {"worker": "x" * 250},
        {"member_id": ""},
        {"incarnation": -1},
        {"incarnation": 2**63},
        {"claims": (Claim("", 0, PeerState.DEAD),)},
        {"claims": (Claim("a", -1, PeerState.DEAD),)},
        {"claims": (Claim("a", 0, PeerState.DEAD),) * (CLAIMS_MAX + 1)},
    ],
)
def test_gossip_beyond_a_limit_is_refused(wrong) -> None:
    with pytest.raises(ValueError, match=r"expected|not a number"):
        decode_gossip(encode_gossip(msgspec.structs.replace(HELLO, **wrong)))


def test_the_largest_gossip_fits_and_a_larger_one_is_refused() -> None:
    claims = tuple(Claim("x" * 249, 2**63 - 1, PeerState.SUSPECT) for _ in range(CLAIMS_MAX))
    data = encode_gossip(msgspec.structs.replace(HELLO, claims=claims))
    decode_gossip(data)
    with pytest.raises(ValueError, match="at most"):
        decode_gossip(data + bytes(GOSSIP_BYTES_MAX - len(data) + 1))
