"""Group configs: each honoured or refused by name, and consistent with each other."""

import pytest

from penstock.config import ConfigSource, describe_group
from penstock.config.group import (
    GROUP_CONFIGS,
    ShareGroupConfig,
    group_definition,
    parse_group_overrides,
    resolve_group,
)
from penstock.errors import ErrorCode, KafkaError

KAFKA_4_2 = [
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
    assert set(KAFKA_4_2) <= set(GROUP_CONFIGS)


def test_every_default_is_accepted_and_changes_nothing() -> None:
    defaults = {name: definition.default for name, definition in GROUP_CONFIGS.items()}
    assert resolve_group(parse_group_overrides(defaults)) == ShareGroupConfig()


@pytest.mark.parametrize("name", GROUP_CONFIGS)
def test_every_config_has_an_effect(name: str) -> None:
    other = {
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
    assert resolve_group(parse_group_overrides({name: value})) != ShareGroupConfig()


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


def test_a_config_without_a_value_is_refused() -> None:
    assert "no value" in refusal(share_session_timeout_ms=None)


def test_members_must_be_able_to_report_within_their_session() -> None:
    assert "share.session.timeout.ms" in refusal(
        share_heartbeat_interval_ms="10000", share_session_timeout_ms="10000"
    )


def test_the_first_delay_is_not_above_the_longest() -> None:
    assert "penstock.retry.backoff.max.ms" in refusal(penstock_retry_backoff_ms="60001")


@pytest.mark.parametrize("name", ["consumer.session.timeout.ms", "streams.num.standby.replicas"])
def test_configs_of_other_kinds_of_groups_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(KafkaError, match="is not supported: "):
        group_definition(name)


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


def test_a_description_shows_set_values_and_defaults() -> None:
    (entry,) = describe_group({"share.session.timeout.ms": "60000"}, ["share.session.timeout.ms", "unknown"])
    assert (entry.value, entry.source) == ("60000", ConfigSource.DYNAMIC_GROUP_CONFIG)
    assert [(row.value, row.source) for row in entry.synonyms] == [
        ("60000", ConfigSource.DYNAMIC_GROUP_CONFIG),
        ("45000", ConfigSource.DEFAULT_CONFIG),
    ]


def test_a_group_without_configs_is_described_by_the_defaults() -> None:
    entries = describe_group({})
    assert [entry.name for entry in entries] == sorted(GROUP_CONFIGS)
    assert all(entry.is_default and not entry.read_only for entry in entries)
