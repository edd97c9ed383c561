"""Group configs: each honoured or refused by name, and consistent with each other."""

import pytest

from penstock.config import (
    ConfigSource,
    ConsumerGroupConfig,
    NodeConfig,
    ShareGroupSettings,
    describe_group,
    resolve_consumer_group,
    share_group_settings,
    static_broker_configs,
)
from penstock.config.group import (
    GROUP_CONFIGS,
    ShareGroupConfig,
    group_default,
    group_definition,
    parse_group_overrides,
    resolve_group,
)
from penstock.config.loading import load_node_config
from penstock.errors import ConfigError, ErrorCode, KafkaError

KAFKA_4_4 = [
    "errors.deadletterqueue.copy.record.enable",
    "errors.deadletterqueue.topic.name",
    "share.auto.offset.reset",
    "share.heartbeat.interval.ms",
    "share.isolation.level",
    "share.record.lock.duration.ms",
    "share.session.timeout.ms",
]


def refusal(**configs: str | None) -> str:
    with pytest.raises(KafkaError) as caught:
        parse_group_overrides({name.replace("_", "."): value for name, value in configs.items()})
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    return caught.value.message


def settings(**configs: str) -> ShareGroupConfig:
    return resolve_group(
        parse_group_overrides({name.replace("_", "."): value for name, value in configs.items()})
    )


def test_every_share_config_of_kafka_is_in_the_table() -> None:
    assert set(KAFKA_4_4) <= set(GROUP_CONFIGS)


def test_every_default_is_accepted_and_changes_nothing() -> None:
    defaults = {name: definition.default for name, definition in GROUP_CONFIGS.items()}
    assert resolve_group(parse_group_overrides(defaults)) == ShareGroupConfig()
    assert resolve_consumer_group(parse_group_overrides(defaults)) == ConsumerGroupConfig()


@pytest.mark.parametrize("name", GROUP_CONFIGS)
def test_every_config_has_an_effect(name: str) -> None:
    other = {
        "errors.deadletterqueue.copy.record.enable": "true",
        "errors.deadletterqueue.topic.name": "dlq.orders",
        "penstock.dead.letter.enable": "false",
        "penstock.dead.letter.topic": "graveyard",
        "penstock.queue.exclusive": "true",
        "penstock.queue.order": "key",
        "penstock.retry.backoff.factor": "1.5",
        "penstock.retry.backoff.max.ms": "1000",
        "penstock.retry.backoff.ms": "10",
        "share.auto.offset.reset": "earliest",
        "share.isolation.level": "read_committed",
    }
    value = other.get(name) or str(int(GROUP_CONFIGS[name].default) // 2)
    parsed = parse_group_overrides({name: value})
    if name.startswith("consumer."):
        assert resolve_consumer_group(parsed) != ConsumerGroupConfig()
    else:
        assert resolve_group(parsed) != ShareGroupConfig()


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("PT1H30M", 5_400_000),
        ("P1D", 86_400_000),
        ("P1DT1S", 86_401_000),
        ("pt0.25s", 250),
        ("PT1,5S", 1_500),
        ("PT0.0009S", 0),
        ("PT0S", 0),
    ],
)
def test_a_queue_may_begin_at_records_of_a_given_age(text: str, expected_ms: int) -> None:
    found = settings(share_auto_offset_reset=f"by_duration:{text}")
    assert (found.auto_offset_reset, found.auto_offset_reset_ms) == ("by_duration", expected_ms)


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P1DT", "-PT1H", "PT-1H", "1H", "P1Y", "PT1H ago", "PT" + "9" * 50 + "H"]
)
def test_an_invalid_duration_is_refused(text: str) -> None:
    assert "by_duration:PT1H30M" in refusal(share_auto_offset_reset=f"by_duration:{text}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("share.auto.offset.reset", "none"),
        ("share.record.lock.duration.ms", "999"),
        ("share.record.lock.duration.ms", "3600001"),
        ("share.session.timeout.ms", "soon"),
        ("share.delivery.count.limit", "256"),
        ("share.partition.max.record.locks", "0"),
        ("penstock.dead.letter.topic", "no spaces"),
        ("penstock.dead.letter.topic", ".."),
        ("penstock.queue.order", "strict"),
        ("penstock.retry.backoff.factor", "0.5"),
        ("penstock.retry.backoff.factor", "nan"),
    ],
)
def test_a_value_outside_its_range_is_refused_with_what_was_expected(name: str, value: str) -> None:
    message = refusal(**{name: value})
    assert f"{name}={value}" in message
    assert GROUP_CONFIGS[name].kind.expected in message


def test_the_queue_of_a_clique_is_not_exclusive() -> None:
    owned = {"penstock.queue.order": "owner"}
    assert resolve_group(parse_group_overrides(owned)).owner_ordered
    assert "a clique has many workers" in refusal(**owned, **{"penstock.queue.exclusive": "true"})


def test_a_config_without_a_value_is_refused() -> None:
    assert "no value" in refusal(share_session_timeout_ms=None)


def test_members_must_be_able_to_report_within_their_session() -> None:
    assert "share.session.timeout.ms" in refusal(
        share_heartbeat_interval_ms="10000", share_session_timeout_ms="10000"
    )


def test_the_first_delay_is_not_above_the_longest() -> None:
    assert "penstock.retry.backoff.max.ms" in refusal(penstock_retry_backoff_ms="60001")


def test_members_of_consumer_groups_must_be_able_to_report_within_their_session_too() -> None:
    assert "consumer.session.timeout.ms" in refusal(
        consumer_heartbeat_interval_ms="10000", consumer_session_timeout_ms="10000"
    )


def test_configs_of_streams_groups_are_refused_with_the_reason() -> None:
    with pytest.raises(KafkaError, match="is not supported: "):
        group_definition("streams.num.standby.replicas")


def test_a_mistyped_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(KafkaError, match=r"did you mean share\.session\.timeout\.ms\?"):
        group_definition("share.sesion.timeout.ms")


def test_configs_of_another_version_do_not_stop_metadata_from_applying() -> None:
    assert (
        resolve_group({"share.from.the.future": "1", "share.session.timeout.ms": "1"}) == ShareGroupConfig()
    )


def test_dead_letters_go_by_default_to_a_topic_named_after_their_own() -> None:
    assert ShareGroupConfig().dead_letter_topic_of("orders") == "orders.dlq"
    assert settings(penstock_dead_letter_topic="graveyard").dead_letter_topic_of("orders") == "graveyard"


def test_a_description_tells_what_was_set() -> None:
    names = ["share.session.timeout.ms", "unknown"]
    (entry,) = describe_group({"share.session.timeout.ms": "60000"}, ShareGroupSettings(), names)
    assert (entry.value, entry.source) == ("60000", ConfigSource.DYNAMIC_GROUP_CONFIG)
    assert [(row.value, row.source) for row in entry.synonyms] == [(entry.value, entry.source)]


def test_a_group_without_configs_is_described_by_the_defaults() -> None:
    entries = describe_group({}, ShareGroupSettings())
    assert [entry.name for entry in entries] == sorted(GROUP_CONFIGS)
    assert {(entry.source, entry.read_only) for entry in entries} == {(ConfigSource.DEFAULT_CONFIG, False)}


# --- the node's settings of all groups

NARROW = ShareGroupSettings(
    session_timeout_ms=46_000,
    min_session_timeout_ms=45_000,
    max_session_timeout_ms=60_000,
    heartbeat_interval_ms=6_000,
    record_lock_duration_ms=31_000,
    delivery_count_limit=7,
    partition_max_record_locks=2_000,
)


def test_the_usual_settings_are_the_defaults_of_the_table() -> None:
    assert resolve_group({}) == ShareGroupConfig()
    for definition in GROUP_CONFIGS.values():
        assert group_default(definition, ShareGroupSettings()) == definition.default


def test_groups_have_the_nodes_defaults_where_they_set_nothing() -> None:
    assert resolve_group({"share.heartbeat.interval.ms": "7000"}, NARROW) == ShareGroupConfig(
        session_timeout_ms=46_000,
        heartbeat_interval_ms=7_000,
        record_lock_duration_ms=31_000,
        delivery_count_limit=7,
        max_record_locks=2_000,
    )


def test_a_range_that_was_narrowed_later_holds_for_what_was_set_before() -> None:
    assert resolve_group({"share.session.timeout.ms": "1800000"}, NARROW).session_timeout_ms == 60_000
    assert resolve_group({"share.session.timeout.ms": "2000"}, NARROW).session_timeout_ms == 45_000


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"record_lock_duration_ms": 999}, "record_lock_duration_ms"),
        (
            {"record_lock_duration_ms": 20_000, "min_record_lock_duration_ms": 20_001},
            "record_lock_duration_ms",
        ),
        ({"session_timeout_ms": 60_001, "max_session_timeout_ms": 60_000}, "session_timeout_ms"),
        ({"heartbeat_interval_ms": 45_000}, "heartbeat_interval_ms"),
        ({"delivery_count_limit": 256}, "delivery_count_limit"),
        ({"partition_max_record_locks": 0}, "partition_max_record_locks"),
    ],
)
def test_settings_that_cannot_be_are_named(settings: dict[str, int], field: str) -> None:
    with pytest.raises(ConfigError, match=f"share_groups.{field}"):
        NodeConfig(share_groups=ShareGroupSettings(**settings)).validate()


def test_settings_reach_groups_from_the_file_through_the_brokers_configs() -> None:
    text = "[share_groups]\nrecord_lock_duration_ms = 20000\n"
    environment = {"PENSTOCK_SHARE_GROUPS_DELIVERY_COUNT_LIMIT": "3"}
    config = load_node_config(toml_text=text, environment=environment)
    static = static_broker_configs(config)
    assert static["group.share.record.lock.duration.ms"] == "20000"
    assert "group.share.session.timeout.ms" not in static
    assert share_group_settings(static) == config.share_groups
    assert config.share_groups == ShareGroupSettings(record_lock_duration_ms=20_000, delivery_count_limit=3)


# --- dead letters as Kafka writes them


@pytest.mark.parametrize("name", ["orders", "orders.dlq", "__consumer_offsets", "dlq.with spaces"])
def test_kafkas_dead_letter_topic_has_kafkas_prefix(name: str) -> None:
    assert "expected the name of a topic that begins with dlq." in refusal(
        errors_deadletterqueue_topic_name=name
    )


def test_a_group_names_one_topic_for_dead_letters() -> None:
    named = {"errors_deadletterqueue_topic_name": "dlq.orders"}
    assert settings(**named).dead_letter_topic_of("orders") == "dlq.orders"
    both = refusal(**named, penstock_dead_letter_topic="hopeless")
    assert "expected one of the two" in both
    assert "penstock.dead.letter.enable" in refusal(**named, penstock_dead_letter_enable="false")
