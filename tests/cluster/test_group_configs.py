"""Configs of groups, as part of the cluster's metadata."""

import pytest

from penstock.cluster import (
    INTERNAL_TOPICS,
    ClusterState,
    GroupConfigsChanged,
    MetadataSnapshot,
    decode_record,
    encode_record,
)
from penstock.cluster.alterations import (
    AlterOperation,
    ConfigChange,
    alter_group_configs,
    replace_group_configs,
)
from penstock.config import Limits, ShareGroupConfig
from penstock.errors import ErrorCode
from tests.cluster.clusters import apply, refused

SET, DELETE, APPEND, SUBTRACT = AlterOperation
LOCK, ORDER = "share.record.lock.duration.ms", "penstock.queue.order"
LIMITS = Limits(max_group_configs=2, max_group_id_bytes=10)


@pytest.fixture
def state() -> ClusterState:
    return ClusterState(node_id=1)


def change(name: str, value: str | None = None, operation: AlterOperation = SET) -> ConfigChange:
    return ConfigChange(name=name, operation=operation, value=value)


def alter(state: ClusterState, group: str, *changes: ConfigChange) -> None:
    records = alter_group_configs(state, group, changes, LIMITS)
    assert apply(state, records) == set(), "no topic is touched"


def test_a_group_has_the_defaults_until_something_is_set(state: ClusterState) -> None:
    assert state.group_config("workers") == ShareGroupConfig()
    alter(state, "workers", change(LOCK, " 2000 "))
    assert state.group_config("workers") == ShareGroupConfig(record_lock_duration_ms=2_000)
    assert state.group_config("others") == ShareGroupConfig()


def test_one_config_changes_and_the_others_stay(state: ClusterState) -> None:
    alter(state, "workers", change(LOCK, "2000"), change(ORDER, "key"))
    alter(state, "workers", change(LOCK, operation=DELETE))
    assert state.group_configs == {"workers": {ORDER: "key"}}


def test_a_group_without_configs_is_not_kept(state: ClusterState) -> None:
    alter(state, "workers", change(LOCK, "2000"))
    alter(state, "workers", change(LOCK, operation=DELETE))
    assert state.group_configs == {}
    assert state.group_config("workers") == ShareGroupConfig()


def test_configs_may_be_replaced_all_at_once(state: ClusterState) -> None:
    alter(state, "workers", change(LOCK, "2000"))
    apply(state, replace_group_configs(state, "workers", {ORDER: "key"}, LIMITS))
    assert state.group_configs == {"workers": {ORDER: "key"}}


def test_a_change_without_effect_is_not_written(state: ClusterState) -> None:
    alter(state, "workers", change(LOCK, "2000"))
    assert alter_group_configs(state, "workers", [change(LOCK, "2000")], LIMITS) == []


def test_contradicting_configs_are_refused_as_a_whole(state: ClusterState) -> None:
    with refused(ErrorCode.INVALID_CONFIG, "share.session.timeout.ms"):
        alter(state, "workers", change(LOCK, "2000"), change("share.session.timeout.ms", "1000"))
    assert state.group_configs == {}


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
def test_dead_letters_do_not_go_to_the_brokers_own_topics(state: ClusterState, name: str) -> None:
    with refused(ErrorCode.INVALID_CONFIG, f"{name} is internal"):
        alter(state, "workers", change("penstock.dead.letter.topic", f" {name} "))
    with refused(ErrorCode.INVALID_CONFIG, f"{name} is internal"):
        replace_group_configs(state, "workers", {"penstock.dead.letter.topic": name}, LIMITS)
    alter(state, "workers", change("penstock.dead.letter.topic", f"{name}.dlq"))


def test_appending_to_a_config_that_is_no_list_is_refused(state: ClusterState) -> None:
    with refused(ErrorCode.INVALID_CONFIG, "not a list"):
        alter(state, "workers", change(LOCK, "1", APPEND))


def test_a_config_that_is_named_twice_is_refused(state: ClusterState) -> None:
    with refused(ErrorCode.INVALID_REQUEST, "more than once"):
        alter(state, "workers", change(LOCK, "2000"), change(LOCK, "3000"))


@pytest.mark.parametrize(("name", "words"), [("", "empty"), ("w" * 11, "limits.max_group_id_bytes")])
def test_an_empty_or_too_long_name_is_refused(state: ClusterState, name: str, words: str) -> None:
    with refused(ErrorCode.INVALID_REQUEST, words):
        alter(state, name, change(LOCK, "2000"))


def test_the_number_of_groups_with_configs_is_limited(state: ClusterState) -> None:
    alter(state, "one", change(LOCK, "2000"))
    alter(state, "two", change(LOCK, "2000"))
    with refused(ErrorCode.POLICY_VIOLATION, "limits.max_group_configs"):
        alter(state, "three", change(LOCK, "2000"))
    alter(state, "two", change(LOCK, "3000"))
    alter(state, "one", change(LOCK, operation=DELETE))
    alter(state, "three", change(LOCK, "2000"))


def test_a_snapshot_contains_group_configs_and_replaces_existing_ones(state: ClusterState) -> None:
    alter(state, "workers", change(LOCK, "2000"))
    snapshot = decode_record(encode_record(state.snapshot()))
    other = ClusterState(node_id=1)
    alter(other, "stale", change(ORDER, "key"))
    other.apply(snapshot)
    assert other.group_configs == state.group_configs
    assert other.group_config("workers").record_lock_duration_ms == 2_000
    assert other.group_config("stale") == ShareGroupConfig()


def test_a_snapshot_of_an_older_version_has_no_group_configs(state: ClusterState) -> None:
    alter(state, "workers", change(LOCK, "2000"))
    state.apply(MetadataSnapshot(topics=[], node_configs=[], next_producer_id=0))
    assert state.group_configs == {}


def test_changing_a_copy_does_not_change_the_original(state: ClusterState) -> None:
    alter(state, "workers", change(LOCK, "2000"))
    twin = state.copy()
    alter(twin, "workers", change(LOCK, "3000"))
    assert (state.group_configs["workers"], twin.group_configs["workers"]) == ({LOCK: "2000"}, {LOCK: "3000"})


def test_the_layout_on_disk_is_the_documented_one() -> None:
    record = GroupConfigsChanged(group_id="g", configs={"a": "b"})
    assert encode_record(record) == b"\x93\x12\xa1g\x81\xa1a\xa1b"
    assert decode_record(encode_record(record)) == record
