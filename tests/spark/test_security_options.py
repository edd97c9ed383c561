"""TLS and logins by the names of Kafka's Java clients."""

import pytest

from penstock.client.security_settings import NO_SECURITY
from penstock.errors import ConfigError
from penstock.spark import options as source_options
from penstock.spark.security_options import security_of, security_options
from penstock.spark.sink_options import SinkOptions

SECRET = "s3cret"
SCRAM = (
    f'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="{SECRET}";'
)
PLAIN = (
    f"org.apache.kafka.common.security.plain.PlainLoginModule required\n username='al' password={SECRET} ;"
)
LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": SCRAM}


def test_without_settings_there_is_no_security() -> None:
    assert security_of({}) == NO_SECURITY
    assert security_of({"security.protocol": "plaintext", "ssl.truststore.location": "unused"}) == NO_SECURITY


def test_a_jaas_config_has_user_and_password() -> None:
    made = security_of(LOGIN)
    assert (made.mechanism, made.user, made.password) == ("SCRAM-SHA-512", "alice", SECRET)
    plain = security_of({**LOGIN, "sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN})
    assert (plain.user, plain.password) == ("al", SECRET)
    escaped = r'x.ScramLoginModule required username="a\"b" password="c\\d" tokenauth=false;'
    made = security_of({**LOGIN, "sasl.jaas.config": escaped})
    assert (made.user, made.password) == ('a"b', "c\\d")


def test_a_token_may_be_given() -> None:
    token = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token": "t"}
    assert security_of(token).token == "t"


def test_stores_are_pem_files_or_texts() -> None:
    files = security_of(
        {
            "security.protocol": "SSL",
            "ssl.truststore.type": "pem",
            "ssl.truststore.location": "/ca.pem",
            "ssl.keystore.location": "/client.pem",
            "ssl.key.password": SECRET,
            "ssl.endpoint.identification.algorithm": "",
        }
    )
    assert (files.tls, files.ca_file, files.cert_file, files.check_hostname) == (
        True,
        "/ca.pem",
        "/client.pem",
        False,
    )
    texts = security_of(
        {
            "security.protocol": "SSL",
            "ssl.truststore.certificates": "ca",
            "ssl.keystore.certificate.chain": "cert",
            "ssl.keystore.key": "key",
        }
    )
    assert (texts.ca_pem, texts.cert_pem, texts.key_pem) == ("ca", "cert", "key")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sasl.mechanism": "GSSAPI"}, "one of PLAIN, SCRAM"),
        ({"sasl.mechanism": "PLAIN"}, "SCRAM-SHA-256 or SCRAM-SHA-512, as ScramLoginModule"),
        ({"sasl.jaas.config": f"com.sun.Krb5LoginModule required password={SECRET};"}, "PlainLoginModule"),
        ({"sasl.jaas.config": SCRAM[:-1]}, r'MODULE required username="\.\.\."'),
        ({"sasl.jaas.config": SCRAM.replace("username", "user")}, r'username="\.\.\." and password'),
        (
            {"sasl.jaas.config": f'ScramLoginModule required username="a password="{SECRET}";'},
            "pairs of name",
        ),
        ({"security.protocol": "TLS"}, "one of PLAINTEXT"),
        ({"security.protocol": "SASL_SSL", "ssl.truststore.type": "JKS"}, "PEM: this is no JVM"),
        ({"security.protocol": "SSL", "ssl.keystore.key": SECRET}, "a certificate"),
    ],
)
def test_what_cannot_be_meant_is_told_without_secrets(changes: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        security_of({**LOGIN, **changes})
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "name", ["kafka.sasl.jaas.confg", "kafka.ssl.keystore.keys", "kafka.sasl.pasword", "password"]
)
def test_a_mistyped_name_does_not_show_its_value(name: str) -> None:
    given = {"kafka.bootstrap.servers": "h:1", name: SECRET if "pasword" not in name else "x"}
    for parse in (
        lambda: SinkOptions.from_options({**given, "topic": "t"}),
        lambda: source_options.parse({**given, "subscribe": "t"}, streaming=False),
    ):
        with pytest.raises(ConfigError) as refused:
            parse()
        assert SECRET not in str(refused.value)


def test_readers_and_writers_have_the_settings_and_do_not_show_them() -> None:
    given = {"kafka.bootstrap.servers": "h:1", **{f"kafka.{name}": value for name, value in LOGIN.items()}}
    sink = SinkOptions.from_options({**given, "topic": "t"})
    source = source_options.parse({**given, "subscribe": "t"}, streaming=True)
    assert sink.client.security == source.driver.security == source.executor.security == security_of(LOGIN)
    assert SECRET not in f"{sink!r} {source!r}"
    assert security_options({**given, "subscribe": "t"}) == {
        f"kafka.{name}": value for name, value in LOGIN.items()
    }
