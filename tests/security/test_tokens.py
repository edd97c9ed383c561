"""API tokens."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import KafkaError
from penstock.security.errors import AuthenticationError
from penstock.security.tokens import (
    MAX_DESCRIPTION_CHARACTERS,
    TOKEN_RANDOM_BYTES,
    ApiToken,
    check_token,
    is_api_token,
    make_token,
    parse_token,
)

RANDOM = bytes(range(TOKEN_RANDOM_BYTES))
NOW_MS = 1_000


@given(st.binary(min_size=TOKEN_RANDOM_BYTES, max_size=TOKEN_RANDOM_BYTES))
def test_a_token_is_found_by_its_id_and_proved_by_its_secret(random) -> None:
    text, stored = make_token(random, "alice", NOW_MS)
    token_id, secret = parse_token(text)
    assert text == f"pst_{token_id}_{secret}"
    assert is_api_token(text)
    assert stored.token_id == token_id
    assert check_token(secret, stored, NOW_MS) == stored


def test_the_secret_is_neither_stored_nor_shown() -> None:
    text, stored = make_token(RANDOM, "alice", NOW_MS, description="ci")
    secret = parse_token(text)[1]
    assert secret.encode() not in msgspec.msgpack.encode(stored)
    assert stored.secret_hash.hex() not in repr(stored)
    assert str(stored.secret_hash) not in repr(stored)


def test_a_stored_token_survives_its_stored_form() -> None:
    stored = make_token(RANDOM, "alice", NOW_MS, NOW_MS + 1, "ci")[1]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(stored), type=ApiToken) == stored


def test_a_wrong_secret_and_an_unknown_id_look_alike() -> None:
    stored = make_token(RANDOM, "alice", NOW_MS)[1]
    for token in (stored, None):
        with pytest.raises(AuthenticationError) as caught:
            check_token("a" * 32, token, NOW_MS)
        assert caught.value.message == "invalid credentials"
    with pytest.raises(AuthenticationError):
        check_token("", None, NOW_MS)


def test_a_token_expires() -> None:
    text, stored = make_token(RANDOM, "alice", NOW_MS, NOW_MS + 10)
    secret = parse_token(text)[1]
    assert check_token(secret, stored, NOW_MS + 9)
    with pytest.raises(AuthenticationError, match="expired"):
        check_token(secret, stored, NOW_MS + 10)
    with pytest.raises(KafkaError, match="expired"):
        make_token(RANDOM, "alice", NOW_MS, NOW_MS)


def test_a_description_is_short_and_printable() -> None:
    assert make_token(RANDOM, "alice", NOW_MS, description="x" * MAX_DESCRIPTION_CHARACTERS)
    for description in ("x" * (MAX_DESCRIPTION_CHARACTERS + 1), "a\nb"):
        with pytest.raises(KafkaError, match="description"):
            make_token(RANDOM, "alice", NOW_MS, description=description)


@given(st.text() | st.text("pst_a2", max_size=60) | st.text("a2", min_size=50).map("pst_{}".format))
def test_any_text_is_a_token_or_refused(text) -> None:
    with contextlib.suppress(AuthenticationError):
        token_id, secret = parse_token(text)
        assert f"pst_{token_id}_{secret}" == text
