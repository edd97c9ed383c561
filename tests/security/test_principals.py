"""Principals as texts."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ErrorCode, KafkaError
from penstock.security.principals import (
    EVERYBODY,
    MAX_PRINCIPAL_CHARACTERS,
    Principal,
    group,
    is_login_name,
    name_of,
    parse_principal,
    user,
)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("User:alice", ("User", "alice")),
        ("Group:ops", ("Group", "ops")),
        ("User:ANONYMOUS", ("User", "ANONYMOUS")),
        ("User:*", ("User", "*")),
        ("User:CN=web,O=Example", ("User", "CN=web,O=Example")),
        ("User:urn:service:1", ("User", "urn:service:1")),
    ],
)
def test_a_principal_is_split_at_its_first_colon(text, parts) -> None:
    parsed = parse_principal(text)
    assert parsed == Principal(*parts)
    assert str(parsed) == text


@pytest.mark.parametrize(
    "text", ["", "alice", "User:", ":alice", "user:alice", "Role:x", "Group:*", "User:a\nb", "User:a\0"]
)
def test_other_texts_are_refused_with_a_reason(text) -> None:
    with pytest.raises(KafkaError, match="principal") as caught:
        parse_principal(text)
    assert caught.value.code == ErrorCode.INVALID_REQUEST


def test_a_principal_has_a_longest_length() -> None:
    longest = "User:" + "x" * (MAX_PRINCIPAL_CHARACTERS - 5)
    assert parse_principal(longest).name == longest[5:]
    with pytest.raises(KafkaError, match="at most 1024"):
        parse_principal(longest + "x")


@given(st.text())
def test_any_text_is_a_principal_or_refused(text) -> None:
    with contextlib.suppress(KafkaError):
        assert str(parse_principal(text)) == text


@pytest.mark.parametrize("name", ["", "*", "ANONYMOUS", "a\nb", "x" * MAX_PRINCIPAL_CHARACTERS])
def test_nobody_logs_in_by_a_name_that_rules_reserve(name) -> None:
    assert not is_login_name(name)


def test_names_and_principals_convert() -> None:
    assert user("alice") == "User:alice"
    assert group("ops") == "Group:ops"
    assert name_of("User:urn:1") == "urn:1"
    assert user("*") == EVERYBODY
