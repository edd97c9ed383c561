"""Quotas, as part of the cluster's metadata."""

import pytest

from penstock.cluster import ClusterState, decode_record, encode_record, quota_decisions
from penstock.cluster.quota_state import QuotaEntry
from penstock.cluster.records import QuotasChanged
from penstock.config import Limits
from penstock.errors import ErrorCode
from penstock.security.quotas import DEFAULT_ENTITY, Quota, QuotaEntity, QuotaKind
from tests.cluster.clusters import apply, refused

ALICE, BOB = QuotaEntity(user="alice"), QuotaEntity(user="bob")
PRODUCER = QuotaKind.PRODUCER_BYTE_RATE
LIMITS = Limits(max_quotas=2)


@pytest.fixture
def state() -> ClusterState:
    return ClusterState(node_id=1)


def alter(state: ClusterState, entity: QuotaEntity, **changes: float | None) -> None:
    assert apply(state, quota_decisions.alter_quotas(state, entity, changes, LIMITS)) == set()


def test_quotas_of_an_entity_are_set_changed_and_removed_one_by_one(state: ClusterState) -> None:
    alter(state, ALICE, producer_byte_rate=1000, request_percentage=25.5)
    alter(state, ALICE, producer_byte_rate=2000)
    assert state.quotas.entries == {ALICE: {"producer_byte_rate": 2000, "request_percentage": 25.5}}
    assert state.quotas.table.find(PRODUCER, "alice", "any") == Quota(2000, "alice", None)
    alter(state, ALICE, producer_byte_rate=None, request_percentage=None)
    assert state.quotas.entries == {}
    assert state.quotas.table.find(PRODUCER, "alice", "any") is None


def test_the_table_is_another_object_after_a_change_and_only_then(state: ClusterState) -> None:
    alter(state, ALICE, producer_byte_rate=1000)
    table = state.quotas.table
    assert state.quotas.table is table
    assert quota_decisions.alter_quotas(state, ALICE, {"producer_byte_rate": 1000}, LIMITS) == []
    alter(state, BOB, producer_byte_rate=1000)
    assert state.quotas.table is not table


def test_removing_a_quota_that_is_not_there_changes_nothing(state: ClusterState) -> None:
    assert quota_decisions.alter_quotas(state, ALICE, {"producer_byte_rate": None}, LIMITS) == []


def test_a_quota_with_a_wrong_name_or_value_is_refused(state: ClusterState) -> None:
    with refused(ErrorCode.INVALID_REQUEST, "there is no quota"):
        quota_decisions.alter_quotas(state, ALICE, {"producer_rate": 1}, LIMITS)
    with refused(ErrorCode.INVALID_REQUEST, "expected more than 0"):
        quota_decisions.alter_quotas(state, ALICE, {"producer_byte_rate": 0}, LIMITS)


def test_entities_with_quotas_are_limited_and_those_that_exist_can_still_be_changed(
    state: ClusterState,
) -> None:
    alter(state, ALICE, producer_byte_rate=1000)
    alter(state, BOB, producer_byte_rate=1000)
    with refused(ErrorCode.POLICY_VIOLATION, "max_quotas"):
        quota_decisions.alter_quotas(state, QuotaEntity(user="carol"), {"producer_byte_rate": 1}, LIMITS)
    alter(state, BOB, producer_byte_rate=5)
    alter(state, BOB, producer_byte_rate=None)
    alter(state, QuotaEntity(user="carol"), producer_byte_rate=1)


def test_a_snapshot_holds_all_quotas(state: ClusterState) -> None:
    alter(state, QuotaEntity(user="alice", client_id=DEFAULT_ENTITY), consumer_byte_rate=7)
    alter(state, QuotaEntity(ip="10.0.0.1"), connection_creation_rate=3)
    other = ClusterState(node_id=2)
    alter(other, BOB, producer_byte_rate=1)
    apply(other, [decode_record(encode_record(state.snapshot()))])
    assert other.quotas.entries == state.quotas.entries
    assert other.quotas.table.connection_rate("10.0.0.1") == 3


def test_a_copy_of_the_state_changes_by_itself(state: ClusterState) -> None:
    alter(state, ALICE, producer_byte_rate=1000)
    copy = state.copy()
    alter(copy, BOB, producer_byte_rate=1000)
    assert list(state.quotas.entries) == [ALICE]


def test_a_quota_of_a_later_version_is_kept_and_has_no_effect(state: ClusterState) -> None:
    values = {"producer_byte_rate": 5.0, "not_invented_yet": 1.0}
    record = QuotasChanged(entry=QuotaEntry(ALICE, values))
    assert decode_record(encode_record(record)) == record
    apply(state, [record])
    assert state.quotas.table.entries == {ALICE: {PRODUCER: 5.0}}
    assert state.snapshot().quotas == [QuotaEntry(ALICE, values)]
