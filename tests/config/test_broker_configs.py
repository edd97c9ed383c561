"""Broker configs: layers, DescribeConfigs, and changes while a node runs."""

import pytest

from penstock.config import (
    BrokerConfigs,
    ConfigSource,
    ConfigType,
    GroupSettings,
    NodeConfig,
    check_dynamic,
    describe_all_nodes,
    describe_broker,
    describe_topic,
    static_broker_configs,
)
from penstock.config.broker import BROKER_CONFIGS
from penstock.config.definitions import TOPIC_CONFIGS
from penstock.errors import ErrorCode, KafkaError

CONFIG = NodeConfig(num_partitions=4, topic_defaults={"retention.ms": "5000"}, groups=GroupSettings())
BROKER = BrokerConfigs(
    static=static_broker_configs(CONFIG),
    all_nodes={"log.retention.ms": "6000", "log.segment.bytes": "2000000"},
    this_node={"log.retention.ms": "7000"},
)


def test_the_stronger_layer_wins() -> None:
    assert BROKER.layers("log.retention.ms") == [
        (ConfigSource.DYNAMIC_BROKER_CONFIG, "7000"),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, "6000"),
        (ConfigSource.STATIC_BROKER_CONFIG, "5000"),
    ]
    assert BROKER.layers("log.segment.bytes") == [
        (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, "2000000"),
        (ConfigSource.DEFAULT_CONFIG, "1073741824"),
    ]


def test_topics_start_from_what_the_broker_was_given() -> None:
    given = {"retention.ms": "7000", "segment.bytes": "2000000", "min.insync.replicas": "1"}
    assert BROKER.topic_defaults() == given


def test_every_topic_config_can_be_given_unless_only_one_value_is_accepted() -> None:
    refused = {name for name, definition in TOPIC_CONFIGS.items() if definition.refused}
    without = {name for name, definition in TOPIC_CONFIGS.items() if not definition.synonym}
    for_one_topic = {"errors.deadletterqueue.group.enable", "penstock.storage", "penstock.table"}
    assert without <= refused | for_one_topic


def test_a_described_broker_shows_the_values_that_it_uses() -> None:
    entries = {entry.name: entry for entry in describe_broker(BROKER)}
    assert list(entries) == sorted(name for name, config in BROKER_CONFIGS.items() if not config.hidden)
    assert entries["num.partitions"].value == "4"
    assert entries["num.partitions"].source is ConfigSource.STATIC_BROKER_CONFIG
    assert entries["num.partitions"].read_only
    assert entries["group.max.session.timeout.ms"].source is ConfigSource.DEFAULT_CONFIG
    assert entries["log.retention.ms"].type is ConfigType.LONG
    assert not entries["log.retention.ms"].read_only
    assert entries["listeners"].value == "PLAINTEXT://127.0.0.1:9092"
    assert all(entry.doc.endswith(".") for entry in entries.values())


def test_a_described_topic_shows_where_each_value_comes_from() -> None:
    (entry,) = describe_topic({"retention.ms": "1"}, BROKER, ["retention.ms", "nonsense"])
    assert (entry.value, entry.source) == ("1", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert [(synonym.name, synonym.value) for synonym in entry.synonyms] == [
        ("retention.ms", "1"),
        ("log.retention.ms", "7000"),
        ("log.retention.ms", "6000"),
        ("log.retention.ms", "5000"),
        ("log.retention.hours", "168"),
    ]


def test_a_described_topic_lists_everything_but_unset_internal_configs() -> None:
    names = {entry.name for entry in describe_topic({}, BrokerConfigs())}
    assert "penstock.storage" in names
    assert "internal.segment.bytes" not in names
    assert "internal.segment.bytes" in {
        entry.name for entry in describe_topic({"internal.segment.bytes": "9"}, BROKER)
    }


def test_of_all_nodes_only_what_was_set_is_shown_and_the_in_sync_replicas() -> None:
    assert [(entry.name, entry.value) for entry in describe_all_nodes(BROKER)] == [
        ("log.retention.ms", "6000"),
        ("log.segment.bytes", "2000000"),
        ("min.insync.replicas", "1"),
    ]
    assert [entry.name for entry in describe_all_nodes(BROKER, ["log.segment.bytes"])] == [
        "log.segment.bytes"
    ]


def test_milliseconds_win_and_are_unset_by_default() -> None:
    nothing_set = BrokerConfigs()
    units = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
    assert [nothing_set.value(name) for name in units] == [None, None, "168"]
    (described,) = describe_broker(nothing_set, ["log.retention.ms"])
    default = ConfigSource.DEFAULT_CONFIG
    assert (described.value, described.source, described.synonyms) == (None, default, ())
    (topic,) = describe_topic({}, nothing_set, ["retention.ms"])
    assert (topic.value, topic.source, topic.synonyms) == ("604800000", default, ())
    assert BrokerConfigs(this_node={"log.retention.ms": "-1"}).value("log.retention.hours") == "168"


def test_the_number_of_in_sync_replicas_is_the_clusters() -> None:
    started = BrokerConfigs(static={"min.insync.replicas": "2"})
    assert started.layers("min.insync.replicas") == [
        (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, "2"),
        (ConfigSource.STATIC_BROKER_CONFIG, "2"),
        (ConfigSource.DEFAULT_CONFIG, "1"),
    ]
    changed = BrokerConfigs(static=started.static, all_nodes={"min.insync.replicas": "3"})
    assert changed.value("min.insync.replicas") == "3"


@pytest.mark.parametrize(
    ("name", "value", "code", "part"),
    [
        ("num.partitions", "3", ErrorCode.INVALID_REQUEST, "cannot change while the node runs"),
        ("penstock.storage", "memory", ErrorCode.INVALID_REQUEST, "unknown broker config"),
        ("log.retention.msec", "3", ErrorCode.INVALID_REQUEST, "did you mean log.retention.ms?"),
        ("log.retention.ms", "soon", ErrorCode.INVALID_CONFIG, "whole number"),
        ("log.preallocate", "true", ErrorCode.INVALID_CONFIG, "not supported"),
    ],
)
def test_configs_that_a_running_broker_cannot_change_are_refused(
    name: str, value: str, code: ErrorCode, part: str
) -> None:
    with pytest.raises(KafkaError) as caught:
        check_dynamic(name, value)
    assert caught.value.code is code
    assert part in caught.value.message


def test_a_running_broker_accepts_new_topic_defaults() -> None:
    check_dynamic("log.retention.ms", "-1")
    check_dynamic("message.max.bytes", "2000000")
