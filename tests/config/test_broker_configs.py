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
        (ConfigSource.DEFAULT_CONFIG, "604800000"),
    ]


def test_topic_defaults_come_from_the_broker_configs() -> None:
    assert BROKER.topic_defaults() == {"retention.ms": "7000", "segment.bytes": "2000000"}


def test_a_described_broker_shows_the_values_that_it_uses() -> None:
    entries = {entry.name: entry for entry in describe_broker(BROKER)}
    assert list(entries) == sorted(BROKER_CONFIGS)
    assert entries["num.partitions"].value == "4"
    assert entries["num.partitions"].source is ConfigSource.STATIC_BROKER_CONFIG
    assert entries["num.partitions"].read_only
    assert entries["group.max.session.timeout.ms"].is_default
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
        ("log.retention.ms", "604800000"),
    ]


def test_a_described_topic_lists_everything_but_unset_internal_configs() -> None:
    names = {entry.name for entry in describe_topic({}, BrokerConfigs())}
    assert "penstock.storage" in names
    assert "internal.segment.bytes" not in names
    assert "internal.segment.bytes" in {
        entry.name for entry in describe_topic({"internal.segment.bytes": "9"}, BROKER)
    }


def test_the_cluster_wide_defaults_show_only_set_configs() -> None:
    assert [(entry.name, entry.value) for entry in describe_all_nodes(BROKER)] == [
        ("log.retention.ms", "6000"),
        ("log.segment.bytes", "2000000"),
    ]
    assert [entry.name for entry in describe_all_nodes(BROKER, ["log.segment.bytes"])] == [
        "log.segment.bytes"
    ]


def test_hours_and_minutes_follow_the_milliseconds() -> None:
    broker = BrokerConfigs(this_node={"log.retention.ms": "7200000"})
    assert (broker.value("log.retention.hours"), broker.value("log.retention.minutes")) == ("2", "120")
    assert BrokerConfigs(this_node={"log.retention.ms": "-1"}).value("log.retention.hours") == "-1"


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
