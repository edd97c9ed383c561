"""Listeners and TLS: the common case by a few settings, several listeners by tables, and errors that say what to do."""

import pytest

from penstock.config import Address, Listener, NodeConfig, TlsSettings
from penstock.config.broker import static_broker_configs
from penstock.config.listeners import MAX_LISTENERS
from penstock.config.loading import load_node_config
from penstock.errors import ConfigError

TWO = """
[[listeners]]
name = "internal"
bind = "127.0.0.1:9092"

[[listeners]]
name = "external"
bind = "0.0.0.0:9093"
advertise = "broker.example:9093"
tls = { cert = "broker.pem", key = "broker.key", ca = "clients.pem", client_auth = "wanted" }
mechanisms = ["SCRAM-SHA-512"]
"""
TLS = {"tls_cert": "broker.pem", "tls_key": "broker.key"}


def test_without_tables_there_is_one_listener_of_the_simple_settings() -> None:
    config = load_node_config(flags={"kafka": "0.0.0.0:9092", "advertise": "broker.example:9092"})
    (listener,) = config.kafka_listeners
    assert (listener.name, str(listener.bind), str(listener.advertised), listener.protocol) == (
        "default",
        "0.0.0.0:9092",
        "broker.example:9092",
        "PLAINTEXT",
    )
    assert config.http_encryption is None


def test_tls_flags_are_for_the_kafka_port_and_the_http_port() -> None:
    config = load_node_config(flags=TLS)
    assert config.kafka_listeners[0].tls == config.http_encryption
    assert config.http_encryption == TlsSettings(cert="broker.pem", key="broker.key")
    assert static_broker_configs(config)["penstock.http.url"] == "https://127.0.0.1:8080"


def test_the_http_port_can_have_other_files_or_no_tls() -> None:
    assert load_node_config(flags=TLS, toml_text="http_tls = false").http_encryption is None
    other = load_node_config(flags=TLS, toml_text='[http_tls]\ncert = "web.pem"\nkey = "web.key"')
    assert other.http_encryption == TlsSettings(cert="web.pem", key="web.key")


@pytest.mark.parametrize(("login", "expected"), [(False, "required"), (True, "wanted")])
def test_a_client_ca_demands_certificates_unless_clients_can_log_in(login: bool, expected: str) -> None:
    config = load_node_config(flags={**TLS, "tls_ca": "clients.pem", "require_login": login})
    tls = config.kafka_listeners[0].tls
    assert tls is not None
    assert tls.client_certificates == expected


def test_tables_describe_several_listeners() -> None:
    internal, external = load_node_config(toml_text=TWO).kafka_listeners
    assert (internal.protocol, internal.mechanisms) == ("PLAINTEXT", ())
    assert (external.protocol, external.mechanisms) == ("SASL_SSL", ("SCRAM-SHA-512",))
    assert external.advertised == Address("broker.example", 9093)
    assert load_node_config(toml_text=TWO).advertised == internal.bind


def test_listeners_are_shown_as_broker_configs_like_those_of_kafka() -> None:
    configs = static_broker_configs(load_node_config(toml_text=TWO))
    assert configs["listeners"] == "INTERNAL://127.0.0.1:9092,EXTERNAL://0.0.0.0:9093"
    assert configs["advertised.listeners"] == "INTERNAL://127.0.0.1:9092,EXTERNAL://broker.example:9093"
    assert configs["listener.security.protocol.map"] == "INTERNAL:PLAINTEXT,EXTERNAL:SASL_SSL"


def test_required_login_offers_passwords_and_plain_only_where_it_cannot_be_read() -> None:
    here = load_node_config(flags={"require_login": True})
    far = {"kafka": "10.0.0.1:9092", "require_login": True}
    assert here.kafka_listeners[0].mechanisms == ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
    assert "PLAIN" not in (load_node_config(flags=far).kafka_listeners[0].mechanisms or ())
    for enough in (TLS, {"plain_without_tls": True}):
        assert "PLAIN" in (load_node_config(flags={**far, **enough}).kafka_listeners[0].mechanisms or ())


def test_an_identity_provider_offers_its_tokens_where_they_cannot_be_read() -> None:
    provider = '[oidc]\njwks = "keys.json"\nissuer = "https://id.example"\naudience = "penstock"'

    def offered(**flags: object) -> tuple[str, ...]:
        config = load_node_config(flags={"require_login": True, **flags}, toml_text=provider)
        return config.kafka_listeners[0].mechanisms or ()

    assert offered() == ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER")
    assert offered(require_login=False) == ()
    far = {"kafka": "10.0.0.1:9092"}
    assert "OAUTHBEARER" not in offered(**far)
    for enough in (TLS, {"plain_without_tls": True}):
        assert "OAUTHBEARER" in offered(**far, **enough)


def test_super_users_are_separated_by_semicolons_because_subjects_have_commas() -> None:
    config = load_node_config(environment={"PENSTOCK_SUPER_USERS": "User:admin; User:CN=ops,O=Example"})
    assert config.super_users == ("User:admin", "User:CN=ops,O=Example")
    assert load_node_config(toml_text='super_users = ["User:a"]').super_users == ("User:a",)
    assert NodeConfig().super_users == ("User:admin",)


def _table(text: str) -> dict[str, object]:
    return {"toml_text": f"[[listeners]]\n{text}"}


@pytest.mark.parametrize(
    ("layers", "field", "expected"),
    [
        ({"flags": {"tls_cert": "a"}}, "tls_key", "belong together"),
        ({"flags": {"tls_key": "a"}}, "tls_cert", "belong together"),
        ({"flags": {"tls_ca": "a"}}, "tls_ca", "--tls-cert"),
        ({"flags": {"tls_principal_rules": "RULE:^CN=(.*)$/$1/"}}, "tls_principal_rules", "--tls-cert"),
        ({"flags": {**TLS, "tls_client_auth": "required"}}, "tls.client_auth", "`ca` as well"),
        ({"toml_text": "listeners = 3"}, "listeners", r"\[\[listeners\]\]"),
        ({"toml_text": "http_tls = true"}, "http_tls", "object"),
        ({"toml_text": '[inter_node_tls]\ncert = "a"\nkey = "b"'}, "inter_node_tls", "`ca`"),
        (_table('name = "a"'), "listeners", "`bind`"),
        (_table('bind = "x"'), "bind of listeners", "HOST:PORT"),
        (_table('bind = "0.0.0.0:1"'), "listener default: bind", "--advertise"),
        (_table('bind = "127.0.0.1:1"\nname = "a b"'), "listeners", "regex"),
        (_table('bind = "127.0.0.1:1"\ncolour = "red"'), "listeners", "colour"),
        (_table('bind = "127.0.0.1:1"\ntls = true'), "tls of listeners", "cert and key"),
        (_table('bind = "127.0.0.1:1"\ntls = { cert = "a" }'), "listeners", "`key`"),
        (_table('bind = "127.0.0.1:1"\nmechanisms = ["GSSAPI"]'), "listeners", "GSSAPI"),
        (_table('bind = "10.0.0.1:1"\nmechanisms = ["PLAIN"]'), "listener default", "plain_without_tls"),
        (_table('bind = "10.0.0.1:1"\nmechanisms = ["OAUTHBEARER"]'), "listener default", "sends tokens"),
        (
            _table('bind = "127.0.0.1:1"\n[[listeners]]\nbind = "127.0.0.1:2"'),
            "listeners",
            "name of its own",
        ),
        (
            _table('bind = "127.0.0.1:1"\n[[listeners]]\nname = "b"\nbind = "127.0.0.1:1"'),
            "listeners",
            "address of its own",
        ),
        ({"flags": {"kafka": "127.0.0.1:1"}, **_table('bind = "127.0.0.1:2"')}, "kafka", "each has its own"),
    ],
)
def test_an_impossible_listener_is_named_with_what_was_expected(
    layers: dict[str, object], field: str, expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        load_node_config(**layers)  # type: ignore[arg-type]
    assert caught.value.field.startswith(field)


def test_a_listener_that_a_program_makes_is_checked_too() -> None:
    with pytest.raises(ConfigError, match="regex"):
        NodeConfig(listeners=(Listener(name="a b", bind=Address("127.0.0.1", 0)),)).validate()


def test_there_are_not_more_listeners_than_the_limit() -> None:
    many = tuple(Listener(name=f"n{i}", bind=Address("127.0.0.1", 0)) for i in range(MAX_LISTENERS + 1))
    assert NodeConfig(listeners=many[1:]).validate().kafka_listeners
    with pytest.raises(ConfigError, match="at most"):
        NodeConfig(listeners=many).validate()
