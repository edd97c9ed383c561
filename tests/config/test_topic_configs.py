"""Topic configs: honoured or refused by name, never ignored."""

import msgspec
import pytest

from penstock.config import TOPIC_CONFIGS, TopicConfig, parse_overrides, resolve
from penstock.config.overrides import parse_value
from penstock.errors import ErrorCode, KafkaError

KAFKA_4_4 = [
    "cleanup.policy",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "delete.retention.ms",
    "errors.deadletterqueue.group.enable",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "follower.replication.throttled.replicas",
    "index.interval.bytes",
    "leader.replication.throttled.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "max.compaction.lag.ms",
    "max.decompressed.message.bytes",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "preallocate",
    "remote.copy.lag.bytes",
    "remote.copy.lag.ms",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
]


def refusal(name: str, value: str | None) -> str:
    with pytest.raises(KafkaError) as caught:
        parse_overrides({name: value})
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert name in caught.value.message
    return caught.value.message


def test_every_config_of_kafka_is_in_the_table() -> None:
    ours = {name for name in TOPIC_CONFIGS if name.startswith("penstock.")} | {"dedup.window.ms"}
    assert sorted(set(TOPIC_CONFIGS) - ours - {"internal.segment.bytes"}) == KAFKA_4_4


def test_every_default_is_accepted_and_changes_nothing() -> None:
    defaults = {name: definition.default for name, definition in TOPIC_CONFIGS.items()}
    assert resolve(parse_overrides(defaults), {}) == TopicConfig()


def test_every_honoured_config_reaches_a_field_of_its_own() -> None:
    other = {
        "cleanup.policy": "compact",
        "compression.type": "zstd",
        "errors.deadletterqueue.group.enable": "true",
        "message.timestamp.type": "LogAppendTime",
        "min.cleanable.dirty.ratio": "0.25",
        "penstock.producer.exclusive": "true",
        "penstock.retention.keep.undone": "true",
        "penstock.storage": "memory",
        "penstock.table": "delta",
    }
    always_kept = {"file.delete.delay.ms", "flush.messages", "flush.ms"}  # whatever their value
    for name, definition in TOPIC_CONFIGS.items():
        if not definition.refused and name not in always_kept:
            changed = resolve({name: other.get(name, "2000000" if "segment" in name else "7")}, {})
            assert changed != TopicConfig(), name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("preallocate", "true"),
        ("remote.storage.enable", "true"),
        ("remote.copy.lag.bytes", "1000"),
        ("remote.copy.lag.ms", "-1"),
        ("remote.log.copy.disable", "true"),
        ("remote.log.delete.on.disable", "true"),
        ("local.retention.ms", "1000"),
        ("local.retention.bytes", "1000"),
        ("unclean.leader.election.enable", "true"),
        ("leader.replication.throttled.replicas", "*"),
        ("follower.replication.throttled.replicas", "0:1"),
    ],
)
def test_unsupported_configs_are_refused_with_the_reason_and_what_to_do(name: str, value: str) -> None:
    message = refusal(name, value)
    assert "not supported" in message
    assert "Leave this config out" in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "shred"),
        ("cleanup.policy", "delete,delete"),
        ("compression.gzip.level", "0"),
        ("compression.gzip.level", "10"),
        ("compression.lz4.level", "18"),
        ("compression.type", "brotli"),
        ("max.compaction.lag.ms", "0"),
        ("message.timestamp.type", "createtime"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.insync.replicas", "0"),
        ("preallocate", "yes"),
        ("retention.ms", "-2"),
        ("retention.ms", "1_000"),
        ("retention.ms", "٣"),
        ("retention.ms", str(2**63)),
        ("retention.ms", "9" * 5000),
        ("segment.bytes", "1000"),
        ("segment.bytes", str(2**31)),
        ("segment.ms", "soon"),
    ],
)
def test_a_value_outside_its_rule_is_refused_with_the_rule(name: str, value: str) -> None:
    assert f"expected {TOPIC_CONFIGS[name].kind.expected}" in refusal(name, value)


def test_an_unknown_name_is_refused_in_kafkas_words() -> None:
    assert refusal("retention.msec", "1") == "Unknown topic config name: retention.msec"


def test_a_missing_value_is_refused() -> None:
    assert "no value" in refusal("retention.ms", None)


def test_a_topic_wins_over_the_node_and_the_node_over_kafka() -> None:
    config = resolve({"retention.ms": "1"}, {"retention.ms": "2", "segment.ms": "3"})
    assert (config.retention_ms, config.segment_ms, config.delete_retention_ms) == (1, 3, 86_400_000)


def test_policies_can_be_combined_and_left_out() -> None:
    both, none = resolve({"cleanup.policy": "compact, delete"}, {}), resolve({"cleanup.policy": ""}, {})
    assert (both.cleanup_compact, both.cleanup_delete) == (True, True)
    assert (none.cleanup_compact, none.cleanup_delete) == (False, False)


def test_acked_goes_alone_or_with_delete_but_not_with_compact() -> None:
    alone, both = resolve({"cleanup.policy": "acked"}, {}), resolve({"cleanup.policy": "delete,acked"}, {})
    assert (alone.cleanup_acked, alone.cleanup_delete, alone.cleanup_compact) == (True, False, False)
    assert (both.cleanup_acked, both.cleanup_delete, both.cleanup_compact) == (True, True, False)
    with pytest.raises(KafkaError, match="acked and compact together") as caught:
        resolve({"cleanup.policy": "compact,acked"}, {})
    assert caught.value.code is ErrorCode.INVALID_CONFIG


def test_the_internal_segment_size_wins_over_the_public_one() -> None:
    sizes = {"internal.segment.bytes": "100", "segment.bytes": "2000000"}
    assert resolve(sizes, {}).segment_bytes == 100
    assert resolve({"internal.segment.bytes": "100"}, {"segment.bytes": "2000000"}).segment_bytes == 100


def test_every_negative_size_means_no_limit() -> None:
    assert resolve({"retention.bytes": "-5"}, {}).retention_bytes == -1


def test_compaction_lags_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(KafkaError, match=r"min\.compaction\.lag\.ms \(9\) is above") as caught:
        resolve({"min.compaction.lag.ms": "9"}, {"max.compaction.lag.ms": "8"})
    assert caught.value.code is ErrorCode.INVALID_CONFIG


def test_compaction_keeps_records_for_the_deduplication_window() -> None:
    lags = {"dedup.window.ms": "60000", "min.compaction.lag.ms": "9"}
    assert resolve(lags, {}).min_compaction_lag_ms == 60_000
    assert resolve({**lags, "dedup.window.ms": "8"}, {}).min_compaction_lag_ms == 9


def test_acked_records_stay_for_the_deduplication_window() -> None:
    ages = {"dedup.window.ms": "60000", "penstock.acked.min.age.ms": "9"}
    assert resolve(ages, {}).acked_min_age_ms == 60_000
    assert resolve({**ages, "dedup.window.ms": "8"}, {}).acked_min_age_ms == 9


def test_overrides_keep_the_clients_text_without_surrounding_spaces() -> None:
    assert parse_overrides({"retention.ms": " 5 ", "cleanup.policy": "delete"}) == {
        "retention.ms": "5",
        "cleanup.policy": "delete",
    }


def test_the_table_s_defaults_are_those_of_the_struct() -> None:
    fields = {field.name: field.default for field in msgspec.structs.fields(TopicConfig)}
    for name, definition in TOPIC_CONFIGS.items():
        if name.replace(".", "_") in fields:
            assert parse_value(name, definition.default) == fields[name.replace(".", "_")], name
