"""PLAIN, and the table of mechanisms."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.security.credentials import ScramMechanism
from penstock.security.errors import AuthenticationError
from penstock.security.exchange import Accepted, Rejected
from penstock.security.plain import MAX_PASSWORD_BYTES, MAX_PLAIN_BYTES, PlainServer, check_password
from penstock.security.sasl import MECHANISMS, start_exchange
from penstock.security.scram import ScramClient
from penstock.security.scram_messages import MAX_USER_CHARACTERS
from tests.security.logins import DECOYS, SHA_512, USERS, VERIFIERS, store


def plain(message, users=USERS):
    return PlainServer(users, DECOYS).step(message)


@pytest.mark.parametrize("message", [b"\0alice\0pencil-1234", b"alice\0alice\0pencil-1234"])
def test_the_right_password_is_accepted(message) -> None:
    assert plain(message) == Accepted(b"", "User:alice")


def test_a_user_with_either_kind_of_credential_may_use_plain() -> None:
    assert plain(b"\0alice\0pencil-1234", store(SHA_512, alice="pencil-1234")).principal == "User:alice"


def test_a_client_sees_no_difference_between_an_unknown_user_and_a_wrong_password() -> None:
    wrong, unknown = plain(b"\0alice\0x"), plain(b"\0carol\0x")
    assert (wrong.message, unknown.message) == ("invalid credentials", "invalid credentials")
    assert wrong.reason == "wrong password for User:alice"
    assert "carol" not in unknown.reason


def test_an_unknown_user_costs_one_hashing_of_the_password_as_a_known_one(monkeypatch) -> None:
    from penstock.security import credentials

    hashed = []
    real = credentials.salted_password
    monkeypatch.setattr(credentials, "salted_password", lambda *a: hashed.append(a[1:]) or real(*a))
    for name in (b"alice", b"carol", b"*"):
        hashed.clear()
        plain(b"\0" + name + b"\0wrong")
        assert [(len(salt), iterations) for salt, iterations, _ in hashed] == [(16, 4096)]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", "NUL"),
        (b"alice\0pencil", "NUL"),
        (b"\0alice\0", "NUL"),
        (b"\0\0pencil", "NUL"),
        (b"\0alice\0pen\0cil", "NUL"),
        (b"\0\xff\0x", "UTF-8"),
        (b"\0" + b"a" * (MAX_USER_CHARACTERS + 1) + b"\0x", "too long"),
        (b"\0a\0" + b"x" * (MAX_PASSWORD_BYTES + 1), "too long"),
        (b"x" * (MAX_PLAIN_BYTES + 1), "bytes"),
    ],
    ids=range(9),
)
def test_a_message_that_is_not_plain_is_refused_with_a_reason(message, why) -> None:
    result = plain(message)
    assert isinstance(result, Rejected)
    assert why in result.message


def test_nobody_acts_as_another() -> None:
    assert isinstance(plain(b"bob\0alice\0pencil-1234"), Rejected)


def test_a_login_has_one_try() -> None:
    exchange = PlainServer(USERS, DECOYS)
    assert isinstance(exchange.step(b"\0alice\0wrong"), Rejected)
    assert "over" in exchange.step(b"\0alice\0pencil-1234").message


def test_http_basic_checks_the_same_passwords() -> None:
    assert check_password("alice", "pencil-1234", USERS, DECOYS) == "User:alice"
    for name, password in (
        ("alice", "x"),
        ("x" * 10_000, "y"),
        ("ANONYMOUS", "pencil-1234"),
        ("alice", "\ud800"),
    ):
        with pytest.raises(AuthenticationError) as caught:
            check_password(name, password, USERS, DECOYS)
        assert caught.value.message == "invalid credentials"


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=100) | st.text("\0aä", max_size=9).map(str.encode))
def test_any_bytes_are_answered(data) -> None:
    assert isinstance(plain(data), Rejected)


# --- the table


def test_four_mechanisms_are_offered() -> None:
    assert list(MECHANISMS) == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]


def test_each_mechanism_logs_in_by_one_interface() -> None:
    exchange = start_exchange("PLAIN", VERIFIERS, "n")
    assert exchange.step(b"\0alice\0pencil-1234").principals == ("User:alice",)
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        exchange = start_exchange(mechanism.sasl_name, VERIFIERS, "server")
        client = ScramClient(mechanism, "alice", "pencil-1234", "client")
        assert exchange.step(client.final(exchange.step(client.first()).data)).principal == "User:alice"


def test_without_an_identity_provider_tokens_are_refused() -> None:
    exchange = start_exchange("OAUTHBEARER", VERIFIERS, "n")
    exchange.step(b"n,,\x01auth=Bearer a.b.c\x01\x01")
    assert exchange.step(b"\x01").reason == "no identity provider is configured"


@pytest.mark.parametrize("mechanism", MECHANISMS)
@settings(max_examples=60, deadline=None)
@given(messages=st.lists(st.binary(max_size=60), min_size=1, max_size=4))
def test_no_mechanism_accepts_or_raises_for_any_bytes(mechanism, messages) -> None:
    exchange = start_exchange(mechanism, VERIFIERS, "n")
    assert not any(isinstance(exchange.step(message), Accepted) for message in messages)
