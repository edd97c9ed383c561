"""OAUTHBEARER: the messages, and how a login fails."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security.bearer_tokens import VerifiedToken
from penstock.security.errors import AuthenticationError
from penstock.security.exchange import Accepted, Challenge, Rejected
from penstock.security.oauth import MAX_OAUTH_BYTES, MAX_PAIRS, OAuthServer, parse_client_first


def verify(token):
    if token != "good.to.ken":
        raise AuthenticationError("the token's signature is wrong")
    return VerifiedToken("User:alice", ("Group:ops",), 1_000)


def first(token="good.to.ken", header="n,,", extensions=""):
    return f"{header}\x01auth=Bearer {token}\x01{extensions}\x01".encode()


@pytest.mark.parametrize(
    "message",
    [
        first(),
        first(header="y,,"),
        first(header="n,a=alice,"),
        first(extensions="logicalCluster=lkc-1\x01poolId=p 1\x01"),
        first().replace(b"Bearer", b"bearer"),
        first("  good.to.ken "),
    ],
)
def test_a_good_token_is_accepted(message) -> None:
    assert OAuthServer(verify).step(message) == Accepted(b"", "User:alice", ("Group:ops",), 1_000)


def test_a_client_acts_for_its_user_and_its_groups() -> None:
    assert OAuthServer(verify).step(first()).principals == ("User:alice", "Group:ops")


@pytest.mark.parametrize(
    ("message", "reason"),
    [(first("bad.to.ken"), "signature"), (first(header="n,a=bob,"), "another user")],
)
def test_a_bad_token_is_told_as_a_challenge_and_fails_after_the_clients_consent(message, reason) -> None:
    exchange = OAuthServer(verify)
    assert exchange.step(message) == Challenge(b'{"status":"invalid_token"}')
    result = exchange.step(b"\x01")
    assert isinstance(result, Rejected)
    assert reason in result.reason
    assert result.message == "invalid credentials"


def test_after_a_failure_a_good_token_comes_too_late() -> None:
    exchange = OAuthServer(verify)
    exchange.step(first("bad.to.ken"))
    assert isinstance(exchange.step(first()), Rejected)
    assert isinstance(exchange.step(first()), Rejected)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", "pairs"),
        (b"n,,", "pairs"),
        (b"n,,\x01\x01", "pairs"),
        (b"n,,\x01auth=Bearer x\x01", "pairs"),
        (first() + b"x", "pairs"),
        (first(extensions="a=1\x01" * (MAX_PAIRS + 5)), "pairs"),
        (first(header="p=tls,,"), "channel binding"),
        (first(header="n"), "channel binding"),
        (first(header="n,x,"), "a=NAME"),
        (first(extensions="noequals\x01"), "pairs"),
        (first(extensions="a1=x\x01"), "pairs"),
        (first(extensions="auth=Bearer x\x01"), "once"),
        (b"n,,\x01other=1\x01\x01", "auth=Bearer"),
        (b"n,,\x01auth=Basic x\x01\x01", "auth=Bearer"),
        (first(token=""), "auth=Bearer"),
        (first(token="a b"), "auth=Bearer"),
        (first(token="ü"), "auth=Bearer"),
        (b"\xff", "UTF-8"),
        (b"n" * (MAX_OAUTH_BYTES + 1), "bytes"),
    ],
    ids=range(19),
)
def test_a_message_that_is_not_oauthbearer_is_refused_with_a_reason(message, why) -> None:
    result = OAuthServer(verify).step(message)
    assert isinstance(result, Rejected)
    assert why in result.message


PIECES = st.sampled_from(["n", "y", ",", "\x01", "auth=", "Bearer ", "x.y.z", "a=", "=", "é", "\0"])


@given(st.binary(max_size=80) | st.lists(PIECES, max_size=14).map(lambda parts: "".join(parts).encode()))
def test_any_bytes_are_answered(data) -> None:
    assert isinstance(OAuthServer(verify).step(data), Challenge | Rejected)
    with contextlib.suppress(AuthenticationError):
        assert all(isinstance(part, str) for part in parse_client_first(data))
