"""Configs change one by one or all at once, for topics, for one node and for all nodes."""

from uuid import UUID

import pytest

from penstock.cluster import (
    OFFSETS_TOPIC,
    ClusterState,
    MetadataRecord,
    NewTopic,
    PlacementRules,
    TopicConfigsChanged,
    decisions,
)
from penstock.cluster.alterations import (
    AlterOperation,
    ConfigChange,
    alter_node_configs,
    alter_topic_configs,
    replace_node_configs,
    replace_topic_configs,
)
from penstock.errors import ErrorCode, KafkaError

SET, DELETE, APPEND, SUBTRACT = AlterOperation


@pytest.fixture
def state() -> ClusterState:
    state = ClusterState(node_id=1, static_configs={"log.segment.bytes": "2000000"})
    rules = PlacementRules(nodes=(1,))
    new_topic = NewTopic(name="orders", topic_id=UUID(int=1), configs={"retention.ms": "5"})
    apply(state, decisions.create_topic(state, new_topic, rules))
    apply(state, decisions.create_internal_topic(state, OFFSETS_TOPIC, UUID(int=2), 1, rules))
    return state


def apply(state: ClusterState, records: list[MetadataRecord]) -> set[str]:
    return {name for record in records for name in state.apply(record)}


def change(name: str, value: str | None = None, operation: AlterOperation = SET) -> ConfigChange:
    return ConfigChange(name=name, value=value, operation=operation)


def refused(code: ErrorCode, part: str = "") -> "pytest.RaisesExc[KafkaError]":
    return pytest.raises(KafkaError, check=lambda error: error.code is code and part in error.message)


def test_single_configs_change_and_the_others_stay(state: ClusterState) -> None:
    changes = [change("max.message.bytes", "9"), change("cleanup.policy", "compact", APPEND)]
    assert apply(state, alter_topic_configs(state, "orders", changes)) == {"orders"}
    assert state.topics["orders"].configs == {
        "retention.ms": "5",
        "max.message.bytes": "9",
        "cleanup.policy": "delete,compact",
    }
    apply(state, alter_topic_configs(state, "orders", [change("cleanup.policy", "delete", SUBTRACT)]))
    assert state.topics["orders"].config.cleanup_delete is False
    apply(state, alter_topic_configs(state, "orders", [change("retention.ms", operation=DELETE)]))
    assert state.topics["orders"].config.retention_ms == 604_800_000


def test_replacing_removes_the_old_configs(state: ClusterState) -> None:
    apply(state, replace_topic_configs(state, "orders", {"segment.ms": "7"}))
    assert state.topics["orders"].configs == {"segment.ms": "7"}


def test_a_change_to_the_current_value_records_nothing(state: ClusterState) -> None:
    assert alter_topic_configs(state, "orders", [change("retention.ms", "5")]) == []
    assert alter_topic_configs(state, "orders", [change("segment.ms", operation=DELETE)]) == []
    assert replace_node_configs(state, None, {}) == []


@pytest.mark.parametrize(
    ("changes", "code", "part"),
    [
        ([change("retention.ms", "x")], ErrorCode.INVALID_CONFIG, "retention.ms=x"),
        ([change("retention.msec", "1")], ErrorCode.INVALID_CONFIG, "Unknown topic config name: ret"),
        ([change("retention.msec", operation=DELETE)], ErrorCode.INVALID_CONFIG, "Unknown topic"),
        ([change("retention.ms")], ErrorCode.INVALID_REQUEST, "has no value"),
        ([change("retention.ms", "1", APPEND)], ErrorCode.INVALID_CONFIG, "not a list"),
        (
            [change("retention.ms", "1"), change("retention.ms", "2")],
            ErrorCode.INVALID_REQUEST,
            "more than once",
        ),
        ([change("penstock.storage", "memory")], ErrorCode.INVALID_CONFIG, "fixed when it was created"),
        ([change("preallocate", "true")], ErrorCode.INVALID_CONFIG, "not supported"),
    ],
)
def test_an_invalid_change_is_refused_as_a_whole(
    state: ClusterState, changes: list[ConfigChange], code: ErrorCode, part: str
) -> None:
    with refused(code, part):
        alter_topic_configs(state, "orders", [change("segment.ms", "1"), *changes])


def test_each_config_that_is_named_more_than_once_is_named_in_the_refusal_once(state: ClusterState) -> None:
    """A request can name one ten thousand times: comparing each with each would take seconds."""
    changes = [change("retention.ms", "1"), change("segment.ms", "1")] * 20_000
    with refused(ErrorCode.INVALID_REQUEST, "more than once: retention.ms, segment.ms"):
        alter_topic_configs(state, "orders", changes)


def test_configs_of_a_missing_topic_cannot_be_changed(state: ClusterState) -> None:
    with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        alter_topic_configs(state, "nothing", [])
    with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        replace_topic_configs(state, "nothing", {})


def test_an_internal_topic_stays_compacted(state: ClusterState) -> None:
    with refused(ErrorCode.INVALID_CONFIG, "must stay compacted"):
        alter_topic_configs(state, OFFSETS_TOPIC, [change("cleanup.policy", "delete")])
    with refused(ErrorCode.INVALID_CONFIG, "must stay compacted"):
        replace_topic_configs(state, OFFSETS_TOPIC, {})
    assert apply(state, alter_topic_configs(state, OFFSETS_TOPIC, [change("segment.ms", "9")])) == {
        OFFSETS_TOPIC
    }


def test_a_default_for_all_nodes_applies_to_every_topic_without_its_own_value(state: ClusterState) -> None:
    changes = [change("log.retention.ms", "9"), change("message.max.bytes", "77")]
    assert apply(state, alter_node_configs(state, None, changes)) == {"orders", OFFSETS_TOPIC}
    orders, offsets = state.topics["orders"].config, state.topics[OFFSETS_TOPIC].config
    assert (orders.retention_ms, orders.max_message_bytes, offsets.retention_ms) == (5, 77, 9)
    assert (orders.segment_bytes, offsets.segment_bytes) == (2_000_000, 104_857_600)


def test_a_nodes_own_default_overrides_that_of_all_nodes_and_other_nodes_do_not_see_it(
    state: ClusterState,
) -> None:
    apply(state, alter_node_configs(state, None, [change("message.max.bytes", "77")]))
    assert apply(state, alter_node_configs(state, 1, [change("message.max.bytes", "88")])) != set()
    assert apply(state, alter_node_configs(state, 2, [change("message.max.bytes", "99")])) == set()
    assert state.topics["orders"].config.max_message_bytes == 88
    apply(state, alter_node_configs(state, 1, [change("message.max.bytes", operation=DELETE)]))
    assert state.topics["orders"].config.max_message_bytes == 77


def test_configs_that_a_running_node_cannot_change_are_refused(state: ClusterState) -> None:
    with refused(ErrorCode.INVALID_REQUEST, "cannot change while the node runs"):
        alter_node_configs(state, None, [change("num.partitions", "3")])
    with refused(ErrorCode.INVALID_REQUEST, "has no value"):
        replace_node_configs(state, None, {"message.max.bytes": None})


def test_a_default_that_contradicts_a_topic_is_refused_before_it_is_recorded(state: ClusterState) -> None:
    apply(state, alter_topic_configs(state, "orders", [change("min.compaction.lag.ms", "50")]))
    with refused(ErrorCode.INVALID_CONFIG, "max.compaction.lag.ms"):
        alter_node_configs(state, None, [change("log.cleaner.max.compaction.lag.ms", "10")])


def test_a_config_of_a_newer_version_does_not_stop_a_node_that_does_not_know_it(state: ClusterState) -> None:
    configs = {"retention.ms": "7", "penstock.config.of.tomorrow": "true"}
    state.apply(TopicConfigsChanged(name="orders", topic_id=UUID(int=1), configs=configs))
    assert state.topics["orders"].config.retention_ms == 7
    assert state.topics["orders"].configs == configs
