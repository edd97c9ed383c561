"""Security settings as people write them, for `Client` and in librdkafka's names."""

import pickle
import time
from pathlib import Path

import jwt
import pytest

from penstock.client import Client
from penstock.client.security_arguments import client_security
from penstock.client.security_settings import NO_SECURITY
from penstock.errors import ConfigError

SECRET = "a-secret-password"


@pytest.fixture
def ca(tmp_path: Path) -> str:
    file = tmp_path / "ca.pem"
    file.write_text("a certificate")
    return str(file)


def test_without_arguments_there_is_no_security_and_librdkafka_gets_its_settings_as_they_are() -> None:
    made = client_security({}, {"linger.ms": 5})
    assert made.settings == NO_SECURITY
    assert made.librdkafka == {"linger.ms": 5}


def test_a_user_logs_in_by_scram(ca: str) -> None:
    made = client_security({"user": "alice", "password": SECRET}, {})
    assert (made.settings.protocol, made.settings.mechanism) == ("SASL_PLAINTEXT", "SCRAM-SHA-256")
    assert made.librdkafka == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "alice",
        "sasl.password": SECRET,
    }
    assert (
        client_security({"user": "alice", "password": SECRET, "tls_ca": ca}, {}).settings.protocol
        == "SASL_SSL"
    )


def test_both_forms_give_the_same_settings(ca: str) -> None:
    by_arguments = client_security({"user": "alice", "password": SECRET, "tls_ca": Path(ca)}, {})
    names = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanisms": "scram-sha-256",
        "sasl.username": "alice",
        "sasl.password": SECRET,
        "ssl.ca.location": ca,
    }
    assert client_security({}, names).settings == by_arguments.settings
    mixed = client_security({"user": "alice", "password": SECRET}, {"sasl.mechanism": "PLAIN"})
    assert mixed.settings.mechanism == "PLAIN"


def test_settings_that_only_librdkafka_knows_are_passed_on() -> None:
    kerberos = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.keytab": "k",
    }
    made = client_security({}, kerberos)
    assert made.librdkafka["sasl.kerberos.keytab"] == "k"
    assert client_security({"tls": True}, {"ssl.ca.location": "probe"}).settings.ca_file == ""


def test_an_authority_may_be_for_https_alone(ca: str) -> None:
    names = {"security.protocol": "SASL_PLAINTEXT"}
    made = client_security({"user": "alice", "password": SECRET, "tls_ca": ca}, names)
    assert (made.settings.protocol, made.settings.ca_file) == ("SASL_PLAINTEXT", ca)


def test_a_certificate_of_the_client_needs_no_login(ca: str) -> None:
    made = client_security({"tls_ca": ca, "tls_cert": ca, "tls_key": ca}, {})
    assert made.settings.protocol == "SSL"
    assert made.librdkafka["ssl.key.location"] == ca


def test_a_token_is_for_the_kafka_port_and_for_http() -> None:
    expires = int(time.time()) + 300
    text = jwt.encode({"sub": "alice", "exp": expires}, "x" * 32)
    made = client_security({"token": text}, {})
    assert made.settings.mechanism == "OAUTHBEARER"
    assert made.librdkafka["oauth_cb"]("") == (text, expires)
    assert made.current().token == text


def test_a_function_returns_a_fresh_token_each_time() -> None:
    numbers = iter("123")
    made = client_security({"token": lambda: f"token-{next(numbers)}"}, {})
    assert [made.current().token, made.librdkafka["oauth_cb"]("")[0]] == ["token-1", "token-2"]
    by_callback = client_security({}, {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": lambda _: ("other", 0)})
    assert by_callback.current().token == "other"


def test_an_api_token_is_for_http_alone() -> None:
    made = client_security({"token": "pst_abc", "user": "alice", "password": SECRET}, {})
    assert made.settings.mechanism == "SCRAM-SHA-256"
    assert "oauth_cb" not in made.librdkafka
    assert made.current().token == "pst_abc"
    assert client_security({"token": "pst_abc"}, {}).settings.mechanism == ""


@pytest.mark.parametrize(
    ("arguments", "kafka", "words"),
    [
        ({"user": "alice"}, {}, "a user without a password"),
        ({"user": "alice", "password": ""}, {}, "password='?.hidden.*text, and not an empty one"),
        ({"user": "alice", "password": SECRET}, {"sasl.username": "bob"}, "no sasl.username in kafka"),
        ({}, {"security.protocol": "tls"}, "one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({}, {"security.protocol": "SASL_SSL"}, "a user and a password, or a token"),
        ({}, {"sasl.mechanism": "OAUTHBEARER"}, "a token of the identity provider"),
        ({"token": "pst_abc"}, {"sasl.mechanism": "OAUTHBEARER"}, "a token of the identity provider"),
        ({"token": "abc"}, {"oauth_cb": print}, "no oauth_cb in kafka"),
        ({"tls_ca": "/nowhere/ca.pem"}, {}, "tls_ca='/nowhere/ca.pem': expected a file that exists"),
        ({"tls_key": __file__}, {}, "a certificate"),
    ],
)
def test_contradictions_are_told_without_secrets(arguments: dict, kafka: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        client_security(arguments, kafka)
    assert SECRET not in str(refused.value)


def test_an_argument_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="pasword"):
        Client("127.0.0.1:1", user="alice", pasword="x")  # type: ignore[call-arg]


def test_secrets_are_in_no_text_of_the_objects() -> None:
    made = client_security(
        {"user": "alice", "password": SECRET}, {"ssl.key.pem": SECRET, "ssl.certificate.pem": "c"}
    )
    client = Client("127.0.0.1:1", user="alice", password=SECRET, token=f"{SECRET}-token")
    client.close()
    for one in (made, made.settings, client, client._security, client.http_nodes, client._diagnosis):
        assert SECRET not in f"{one!r} {one!s}"
    assert pickle.loads(pickle.dumps(made.settings)) == made.settings
