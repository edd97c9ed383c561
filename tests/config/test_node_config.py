"""A node's settings: four layers, and errors that name the field, the value and what to do."""

import pytest

from penstock.config import Address, GroupSettings, Limits, NodeConfig
from penstock.config.loading import SERVICE_LINK, _hints, load_node_config
from penstock.errors import ConfigError

FILE = """
[groups]
initial_rebalance_delay_ms = 1500

[topic_defaults]
"cleanup.policy" = ["compact", "delete"]
"retention.ms" = 1000
"""


def test_the_defaults_are_those_of_the_manual() -> None:
    config = load_node_config()
    assert config == NodeConfig()
    assert (str(config.kafka), str(config.http), config.data_dir) == (
        "127.0.0.1:9092",
        "127.0.0.1:8080",
        "penstock-data",
    )


def test_flags_win_over_the_environment_and_the_environment_over_the_file() -> None:
    config = load_node_config(
        toml_text='node-id = 2\nnum_partitions = 3\nkafka = "127.0.0.1:1"',
        environment={"PENSTOCK_NUM_PARTITIONS": "4", "PENSTOCK_KAFKA": "127.0.0.1:2", "HOME": "/"},
        flags={"kafka": "127.0.0.1:3", "http": None},
    )
    assert (config.node_id, config.num_partitions, config.kafka.port) == (2, 4, 3)


def test_the_authority_of_clients_and_the_one_that_commands_trust_are_two_variables() -> None:
    """One for both would start nodes that want certificates of everybody, in a shell that is set up for commands."""
    files = {"PENSTOCK_TLS_CERT": "broker.pem", "PENSTOCK_TLS_KEY": "broker.key"}
    trusted = {"PENSTOCK_CLIENT_TLS_CA": "nodes.pem"}
    assert load_node_config(environment={**files, **trusted}).tls_ca is None
    assert (
        load_node_config(environment={**files, **trusted, "PENSTOCK_TLS_CA": "clients.pem"}).tls_ca
        == "clients.pem"
    )


def test_tables_reach_groups_limits_and_topic_defaults_from_file_and_environment() -> None:
    config = load_node_config(
        toml_text=FILE,
        environment={
            "PENSTOCK_LIMITS_MAX_CONNECTIONS": "7",
            "PENSTOCK_TOPIC_DEFAULTS_RETENTION_MS": "2000",
            "PENSTOCK_AUTO_CREATE_TOPICS": "false",
        },
    )
    assert config.groups == GroupSettings(initial_rebalance_delay_ms=1500)
    assert config.limits == Limits(max_connections=7)
    assert config.topic_defaults == {"cleanup.policy": "compact,delete", "retention.ms": "2000"}
    assert config.auto_create_topics is False


@pytest.mark.parametrize("off", ["off", "none", "OFF", ""])
def test_the_http_port_can_be_switched_off(off: str) -> None:
    assert load_node_config(flags={"http": off}).http is None


def test_a_stronger_layer_decides_between_memory_and_a_folder() -> None:
    assert load_node_config(toml_text="memory = true", flags={"data_dir": "/d"}).memory is False
    assert load_node_config(toml_text='data_dir = "/d"', flags={"memory": True}).memory is True
    with pytest.raises(ConfigError, match="remove one of them"):
        load_node_config(flags={"data_dir": "/d", "memory": True})


@pytest.mark.parametrize(
    ("layers", "field", "expected"),
    [
        (
            {"toml_text": 'http_trusted_proxies = ["10.0.0.0/8", "proxy"]'},
            "http_trusted_proxies",
            "or a network",
        ),
        ({"flags": {"num_partitions": 0}}, "num_partitions", ">= 1"),
        ({"flags": {"num_partitions": 1_000_000}}, "num_partitions", "max_partitions_per_topic"),
        ({"flags": {"kafka": "9092"}}, "kafka", "HOST:PORT"),
        ({"flags": {"kafka": "127.0.0.1:70000"}}, "kafka", "65535"),
        ({"flags": {"kafka": "0.0.0.0:9092"}}, "kafka", "--advertise"),
        ({"flags": {"advertise": "0.0.0.0:9092"}}, "advertise", "--advertise"),
        ({"flags": {"data_dir": ""}}, "data_dir", "memory=true"),
        ({"flags": {"partitions": 1}}, "partitions", "did you mean num_partitions?"),
        ({"environment": {"PENSTOCK_NODE_ID": "one"}}, "PENSTOCK_NODE_ID", "int"),
        ({"environment": {"PENSTOCK_NODEID": "1"}}, "PENSTOCK_NODEID", "did you mean PENSTOCK_NODE_ID?"),
        ({"environment": {"PENSTOCK_LOG_LEVEL": "loud"}}, "PENSTOCK_LOG_LEVEL", "enum value"),
        ({"toml_text": "node_id ="}, "config file", "TOML"),
        ({"toml_text": "limits = 1"}, "limits in config file", r"\[limits\]"),
        ({"toml_text": "[limits]\nmax_conections = 1"}, "limits.max_conections in", "limits.max_connections"),
        ({"toml_text": "[limits]\nmax_connections = 0"}, "limits.max_connections in", ">= 1"),
        ({"toml_text": '[topic_defaults]\n"retention.ms" = "x"'}, "topic_defaults", "retention.ms=x"),
        (
            {"toml_text": '[topic_defaults]\n"penstock.storage" = "disk"'},
            "topic_defaults.penstock",
            "memory=true",
        ),
        (
            {"toml_text": "[replication]\nsnapshot_after_bytes = 65536"},
            "replication.snapshot_after_bytes in",
            "was removed; delete the line",
        ),
        ({"toml_text": '[topic_defaults]\n"retention" = "x"'}, "topic_defaults.retention in", "did you mean"),
        (
            {"toml_text": "[groups]\nmin_session_timeout_ms = 9\nmax_session_timeout_ms = 8"},
            "groups.min",
            "at most",
        ),
    ],
)
def test_an_invalid_setting_is_named_with_what_was_expected(
    layers: dict[str, object], field: str, expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        load_node_config(**layers)  # type: ignore[arg-type]
    assert caught.value.field.startswith(field)


def test_an_unknown_setting_is_reported_as_unknown() -> None:
    with pytest.raises(ConfigError) as caught:
        load_node_config(flags={"num_partitons": 1})
    assert str(caught.value) == "there is no setting num_partitons; did you mean num_partitions?"


@pytest.mark.parametrize(
    "name",
    [
        "PENSTOCK_SERVICE_HOST",
        "PENSTOCK_PORT",
        "PENSTOCK_PORT_9092_TCP_ADDR",
        "PENSTOCK_KAFKA_SERVICE_PORT_HTTP",
    ],
)
def test_environment_variables_of_a_kubernetes_service_are_no_settings(name: str) -> None:
    assert load_node_config(environment={name: "tcp://10.0.0.1:9092"}) == NodeConfig()


def test_no_setting_can_be_mistaken_for_a_service_link() -> None:
    for name in _hints():
        assert not SERVICE_LINK.fullmatch("PENSTOCK_" + name.replace(".", "_").upper()), name


def test_addresses_round_trip() -> None:
    for text in ("127.0.0.1:9092", "[::1]:0", "broker.example:65535"):
        assert str(Address.parse("kafka", text)) == text


def test_listening_everywhere_works_with_an_address_to_advertise() -> None:
    config = load_node_config(flags={"kafka": "0.0.0.0:9092", "advertise": "broker.example:9092"})
    assert str(config.advertised) == "broker.example:9092"


def test_a_limit_built_by_hand_is_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"limits\.max_topics=0: expected int >= 1"):
        NodeConfig(limits=Limits(max_topics=0)).validate()
