"""Credentials, SASLprep, and the rules for names and passwords."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ErrorCode, KafkaError
from penstock.security.credentials import (
    MAX_ITERATIONS,
    MAX_SALT_BYTES,
    MIN_ITERATIONS,
    MIN_SALT_BYTES,
    Decoys,
    ScramCredential,
    ScramMechanism,
    credential_from_salted,
    make_credential,
    salted_password,
    verify_password,
)
from penstock.security.passwords import (
    PASSWORD_RANDOM_BYTES,
    check_new_password,
    check_user_name,
    make_password,
)
from penstock.security.plain import MAX_PASSWORD_BYTES
from penstock.security.saslprep import saslprep
from penstock.security.scram_messages import MAX_USER_CHARACTERS
from tests.security.logins import SALT, SHA_256, SHA_512


@pytest.mark.parametrize(
    ("text", "prepared"),
    [
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
        ("ä", "ä"),
        ("a\u0308", "ä"),
    ],
)
def test_the_examples_of_rfc_4013_are_prepared(text, prepared) -> None:
    assert saslprep(text) == prepared


@pytest.mark.parametrize("text", ["\u0007", "\u0627\u0031", "ä\0", "\ud800", "\ue000", "\u0221"])
def test_texts_that_rfc_4013_prohibits_are_refused(text) -> None:
    with pytest.raises(ValueError):
        saslprep(text)


@given(st.text())
def test_a_prepared_text_stays_as_it_is(text) -> None:
    try:
        prepared = saslprep(text)
    except ValueError:
        return
    assert saslprep(prepared) == prepared


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
def test_a_credential_verifies_its_password_only(mechanism) -> None:
    credential = make_credential("pencil", SALT, MIN_ITERATIONS, mechanism)
    assert verify_password("pencil", credential, mechanism)
    assert not verify_password("pencil ", credential, mechanism)
    assert not verify_password("pencil\0", credential, mechanism)
    assert len(credential.stored_key) == len(credential.server_key) == mechanism.key_bytes


def test_a_salted_password_makes_the_same_credential() -> None:
    """kafka-configs salts the password itself."""
    salted = salted_password("pencil", SALT, MIN_ITERATIONS, SHA_256)
    made = credential_from_salted(salted, SALT, MIN_ITERATIONS, SHA_256)
    assert made == make_credential("pencil", SALT, MIN_ITERATIONS, SHA_256)
    with pytest.raises(KafkaError, match="salted password of 31 bytes"):
        credential_from_salted(salted[:-1], SALT, MIN_ITERATIONS, SHA_256)


@pytest.mark.parametrize(
    ("salt", "iterations"),
    [
        (SALT, MIN_ITERATIONS - 1),
        (SALT, MAX_ITERATIONS + 1),
        (SALT, -1),
        (bytes(MIN_SALT_BYTES - 1), MIN_ITERATIONS),
        (bytes(MAX_SALT_BYTES + 1), MIN_ITERATIONS),
    ],
)
def test_parameters_beyond_their_bounds_are_refused(salt, iterations) -> None:
    with pytest.raises(KafkaError) as caught:
        make_credential("pencil", salt, iterations, SHA_256)
    assert caught.value.code == ErrorCode.UNACCEPTABLE_CREDENTIAL


def test_a_password_that_cannot_be_prepared_is_refused_without_quoting_it() -> None:
    with pytest.raises(KafkaError) as caught:
        make_credential("secret\x07", SALT, MIN_ITERATIONS, SHA_256)
    assert "secret" not in str(caught.value)


def test_secrets_are_not_shown() -> None:
    credential = make_credential("pencil", SALT, MIN_ITERATIONS, SHA_256)
    assert repr(credential) == "ScramCredential(iterations=4096)"
    assert repr(Decoys(b"hidden")) == "Decoys()"


def test_a_credential_survives_its_stored_form() -> None:
    credential = make_credential("pencil", SALT, MIN_ITERATIONS, SHA_256)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(credential), type=ScramCredential) == credential


def test_the_mechanisms_have_kafkas_numbers_and_names() -> None:
    assert [(one.value, one.sasl_name) for one in ScramMechanism if one] == [
        (1, "SCRAM-SHA-256"),
        (2, "SCRAM-SHA-512"),
    ]


# --- rules


@pytest.mark.parametrize(
    "name", ["alice", "Ünal", "svc-1", "a.b@c", "CN=web", "a,b", "x" * MAX_USER_CHARACTERS]
)
def test_users_may_have_these_names(name) -> None:
    assert check_user_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "*",
        "ANONYMOUS",
        "<default>",
        "a:b",
        " a",
        "a\n",
        "\u2168",
        "x\u00ady",
        "x" * (MAX_USER_CHARACTERS + 1),
    ],
)
def test_users_may_not_have_these_names(name) -> None:
    with pytest.raises(KafkaError) as caught:
        check_user_name(name)
    assert caught.value.code == ErrorCode.UNACCEPTABLE_CREDENTIAL


@pytest.mark.parametrize("password", ["12345678", "Straße 12", "x" * MAX_PASSWORD_BYTES])
def test_users_may_have_these_passwords(password) -> None:
    assert check_new_password(password) == password


@pytest.mark.parametrize(
    "password", ["1234567", "x" * (MAX_PASSWORD_BYTES + 1), "12345678\n", "1234567\u00a0", "\ud800" * 8]
)
def test_users_may_not_have_these_passwords(password) -> None:
    with pytest.raises(KafkaError) as caught:
        check_new_password(password)
    assert password not in str(caught.value)


@given(st.binary(min_size=PASSWORD_RANDOM_BYTES, max_size=PASSWORD_RANDOM_BYTES))
def test_a_generated_password_is_acceptable_and_has_all_the_randomness(random) -> None:
    password = make_password(random)
    assert check_new_password(password) == password
    assert len(password) == 24
    assert password.isalnum()
