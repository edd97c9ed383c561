"""Committed offsets: permissions, retention and deletion."""

import pytest

from penstock.config import GroupSettings, Limits
from penstock.errors import ErrorCode
from penstock.groups import (
    DeleteGroupsResult,
    DeleteOffsetsResult,
    GroupState,
    OffsetToCommit,
)
from penstock.types import TopicPartition
from tests.groups.group_harness import DAY_MS, GROUP, SESSION_MS, Client, GroupHarness, stable

ORDERS = TopicPartition("orders", 0)
INVOICES = TopicPartition("invoices", 0)
RETENTION_MS = 7 * DAY_MS
CHECK_MS = 600_000


@pytest.fixture
def harness() -> GroupHarness:
    return GroupHarness()


@pytest.fixture
def alice(harness: GroupHarness) -> Client:
    return harness.client("alice")


def keep_alive(harness: GroupHarness, client: Client, duration_ms: int) -> None:
    client.session_ms = 1_000_000
    client.joins(session_timeout_ms=1_000_000)
    client.assigns(**{client.name: b""})
    for _ in range(duration_ms // 900_000 + 1):
        harness.passes(900_000)
        assert client.heartbeats() is ErrorCode.NONE


def test_an_offset_counts_when_it_is_durable(harness: GroupHarness, alice: Client) -> None:
    stable(harness, alice)
    harness.disk = "slow"
    alice.commits(offset=7)
    assert not alice.is_answered
    assert harness.offsets() == {}
    harness.flush()
    assert alice.error is ErrorCode.NONE
    assert harness.offsets()[ORDERS].offset == 7


def test_an_offset_that_could_not_be_stored_does_not_count(harness: GroupHarness, alice: Client) -> None:
    harness.disk = "full"
    assert alice.commits(offset=7).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.state() == {}, "and leaves no group behind"


def test_concurrent_commits_end_in_the_order_of_the_log(harness: GroupHarness, alice: Client) -> None:
    harness.disk = "slow"
    for offset in (1, 2, 3):
        alice.commits(offset=offset)
    harness.flush(1)
    assert harness.offsets()[ORDERS].offset == 1
    harness.flush()
    assert harness.offsets()[ORDERS].offset == 3
    assert harness.restarted().offsets() == harness.offsets()


def test_write_confirmations_may_come_in_any_order(harness: GroupHarness, alice: Client) -> None:
    harness.disk = "slow"
    alice.commits(offset=1)
    harness.deletes_topics("orders")
    harness.metadata.creates("orders")
    alice.commits(offset=2).commits(offset=3)
    first, deletion, second, third = (persist.id for persist in harness.in_flight)
    for persist_id in (third, deletion, second, first):
        assert not alice.is_answered
        harness.happens(harness.coordinator.persisted(harness.now_ms, persist_id, True))
    assert harness.offsets()[ORDERS].offset == 3


def test_epoch_metadata_and_time_are_kept_unchanged(harness: GroupHarness, alice: Client) -> None:
    one = OffsetToCommit(topic="orders", partition=0, offset=9, leader_epoch=4, metadata='{"höhe": 1}\n')
    alice.commits(offsets=(one,))
    kept = harness.offsets()[ORDERS]
    assert (kept.offset, kept.leader_epoch, kept.metadata) == (9, 4, '{"höhe": 1}\n')
    assert kept.commit_timestamp_ms == harness.now_ms


def test_only_the_requested_offsets_are_fetched(harness: GroupHarness, alice: Client) -> None:
    alice.commits("orders").commits("invoices")
    assert list(harness.coordinator.fetch_offsets(GROUP, [ORDERS, TopicPartition("x", 0)])) == [ORDERS]
    assert set(harness.coordinator.fetch_offsets(GROUP)) == {ORDERS, INVOICES}
    assert harness.coordinator.fetch_offsets("unknown", [ORDERS]) == {}


def test_a_consumer_that_is_no_member_may_commit_while_there_are_none(
    harness: GroupHarness, alice: Client
) -> None:
    assert alice.commits().error is ErrorCode.NONE
    assert harness.group().state is GroupState.EMPTY
    assert harness.group().protocol_type == ""
    bob = harness.client("bob")
    stable(harness, bob)
    assert alice.commits().error is ErrorCode.UNKNOWN_MEMBER_ID
    bob.leaves()
    assert alice.commits().error is ErrorCode.NONE


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"group_id": "other"}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"group_id": "other", "generation": -1, "member_id": "x"}, ErrorCode.NONE),
        ({"group_id": "x" * 4097, "generation": -1}, ErrorCode.INVALID_GROUP_ID),
        ({"generation": 9}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": -1}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": ""}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "", "generation": -1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_commits_are_for_members_in_their_generation(
    harness: GroupHarness, alice: Client, changes: dict[str, object], error: ErrorCode
) -> None:
    stable(harness, alice)
    assert alice.commits(**changes).error is error  # type: ignore[arg-type]


def test_a_member_may_commit_before_it_joins_again_but_not_between_join_and_sync(
    harness: GroupHarness, alice: Client
) -> None:
    stable(harness, alice)
    harness.client("bob").joins()
    assert alice.commits().error is ErrorCode.NONE
    alice.joins()
    assert alice.commits().error is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_commit_renews_the_session(harness: GroupHarness, alice: Client) -> None:
    stable(harness, alice)
    for _ in range(3):
        harness.passes(SESSION_MS - 1)
        alice.commits()
    assert alice.heartbeats() is ErrorCode.NONE


def test_metadata_over_the_limit_is_refused_and_the_rest_is_kept(
    harness: GroupHarness, alice: Client
) -> None:
    long = OffsetToCommit(topic="orders", partition=0, offset=1, metadata="ä" * 2049)
    fits = OffsetToCommit(topic="orders", partition=1, offset=1, metadata="x" * 4096)
    odd = OffsetToCommit(topic="x" * 5000, partition=1, offset=1)
    token = harness.new_token()
    alice.token = token
    alice.commits(offsets=(long, fits, odd))
    errors = harness.replies[alice.token].errors  # type: ignore[union-attr]
    assert list(errors.values()) == [
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert set(harness.offsets()) == {TopicPartition("orders", 1)}


def test_a_group_s_offsets_are_limited_in_number(alice: Client) -> None:
    harness = GroupHarness(limits=Limits(max_group_offsets=2))
    alice = harness.client("alice")
    assert [alice.commits(partition=number).error for number in (0, 1, 2, 1)] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
        ErrorCode.NONE,
    ]


def test_a_huge_commit_is_written_in_several_batches_and_answered_once(
    harness: GroupHarness, alice: Client
) -> None:
    many = tuple(OffsetToCommit(topic="orders", partition=number, offset=1) for number in range(2500))
    harness.disk = "slow"
    alice.commits(offsets=many)
    assert [len(persist.records) for persist in harness.in_flight] == [1000, 1000, 500]
    harness.flush(2)
    assert not alice.is_answered
    harness.flush()
    assert len(harness.offsets()) == 2500


# Deletion


def test_offsets_of_unsubscribed_topics_can_be_deleted(harness: GroupHarness, alice: Client) -> None:
    stable(harness, alice)
    alice.commits("orders").commits("invoices")
    answer = harness.deletes_offsets(ORDERS, INVOICES, TopicPartition("never", 0))
    assert answer == DeleteOffsetsResult(
        errors={
            ORDERS: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
            INVOICES: ErrorCode.NONE,
            TopicPartition("never", 0): ErrorCode.NONE,
        }
    )
    assert set(harness.offsets()) == {ORDERS} == set(harness.restarted().offsets())
    alice.leaves()
    harness.deletes_offsets(ORDERS)
    assert harness.offsets() == {}


def test_a_deletion_affects_only_earlier_commits(harness: GroupHarness, alice: Client) -> None:
    alice.commits(offset=1)
    harness.disk = "slow"
    assert harness.deletes_offsets(ORDERS) is None
    alice.commits(offset=2)
    harness.flush()
    assert harness.offsets()[ORDERS].offset == 2
    assert harness.restarted().offsets() == harness.offsets()


def test_a_deletion_that_could_not_be_stored_did_not_happen(harness: GroupHarness, alice: Client) -> None:
    alice.commits(offset=1)
    harness.disk = "full"
    assert harness.deletes_offsets(ORDERS) == DeleteOffsetsResult(
        errors={ORDERS: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    )
    answer = harness.deletes_groups(GROUP)
    assert answer == DeleteGroupsResult(errors={GROUP: ErrorCode.COORDINATOR_NOT_AVAILABLE})
    assert harness.offsets()[ORDERS].offset == 1
    assert harness.group().state is GroupState.EMPTY


def test_offsets_of_unknown_groups_and_of_other_protocols_cannot_be_deleted(
    harness: GroupHarness, alice: Client
) -> None:
    assert harness.deletes_offsets(ORDERS) == DeleteOffsetsResult(error=ErrorCode.GROUP_ID_NOT_FOUND)
    alice.joins(protocol_type="connect")
    assert harness.deletes_offsets(ORDERS) == DeleteOffsetsResult(error=ErrorCode.NON_EMPTY_GROUP)


def test_only_empty_groups_can_be_deleted(harness: GroupHarness, alice: Client) -> None:
    stable(harness, alice)
    alice.commits()
    assert harness.deletes_groups(GROUP, "unknown") == DeleteGroupsResult(
        errors={GROUP: ErrorCode.NON_EMPTY_GROUP, "unknown": ErrorCode.GROUP_ID_NOT_FOUND}
    )
    alice.leaves()
    assert harness.deletes_groups(GROUP) == DeleteGroupsResult(errors={GROUP: ErrorCode.NONE})
    assert harness.state() == harness.restarted().state() == {}
    assert alice.asks_to_join().error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_that_is_created_during_the_deletion_of_its_name_is_kept(
    harness: GroupHarness, alice: Client
) -> None:
    alice.commits(partition=0, offset=1).commits(partition=1, offset=1)
    harness.disk = "slow"
    alice.commits(partition=3, offset=2)
    assert harness.deletes_groups(GROUP) is None
    alice.commits(partition=2, offset=3)
    harness.flush()
    assert set(harness.offsets()) == {TopicPartition("orders", 2)}
    assert harness.restarted().state() == harness.state()


def test_a_group_whose_deletion_failed_keeps_its_offsets_beside_the_newer_ones(
    harness: GroupHarness, alice: Client
) -> None:
    alice.commits(partition=0, offset=1).commits(partition=1, offset=1)
    harness.disk = "slow"
    harness.deletes_groups(GROUP)
    alice.commits(partition=1, offset=5)
    deletion, commit = harness.in_flight
    harness.in_flight = []
    harness.happens(harness.coordinator.persisted(harness.now_ms, commit.id, True))
    harness.happens(harness.coordinator.persisted(harness.now_ms, deletion.id, False))
    assert [harness.offsets()[TopicPartition("orders", number)].offset for number in (0, 1)] == [1, 5]


def test_deleting_a_topic_deletes_its_offsets(harness: GroupHarness, alice: Client) -> None:
    stable(harness, alice)
    alice.commits("orders").commits("invoices")
    harness.disk = "slow"
    alice.commits("orders", partition=1)
    harness.deletes_topics("orders")
    harness.flush()
    assert set(harness.offsets()) == {INVOICES}
    assert harness.restarted().offsets() == harness.offsets()


# Expiry


def test_offsets_expire_when_the_group_has_been_empty_for_long_enough(
    harness: GroupHarness, alice: Client
) -> None:
    stable(harness, alice)
    alice.commits()
    keep_alive(harness, alice, 2 * RETENTION_MS)
    assert set(harness.offsets()) == {ORDERS}, "a group that reads a topic keeps its offsets, however old"
    alice.leaves()
    harness.passes(RETENTION_MS - 1)
    assert set(harness.offsets()) == {ORDERS}
    harness.passes(CHECK_MS)
    assert harness.state() == harness.restarted().state() == {}, "and the group goes with its last offset"


def test_offsets_of_topics_that_the_group_no_longer_reads_expire_by_their_own_age(
    harness: GroupHarness, alice: Client
) -> None:
    stable(harness, alice)
    alice.commits("orders").commits("invoices")
    keep_alive(harness, alice, RETENTION_MS)
    harness.passes(CHECK_MS)
    assert set(harness.offsets()) == {ORDERS}


def test_nothing_expires_while_a_members_subscription_is_unreadable(
    harness: GroupHarness, alice: Client
) -> None:
    alice.joins(protocol_type="connect", session_timeout_ms=1_800_000)
    alice.assigns(alice=b"")
    alice.commits("invoices")
    for _ in range(RETENTION_MS // 1_700_000 + 2):
        harness.passes(1_700_000)
        alice.heartbeats()
    assert set(harness.offsets()) == {INVOICES}


def test_offsets_of_consumers_that_are_no_members_expire_by_age(harness: GroupHarness, alice: Client) -> None:
    alice.commits(partition=0)
    harness.passes(DAY_MS)
    alice.commits(partition=1)
    harness.passes(RETENTION_MS - DAY_MS + CHECK_MS)
    assert set(harness.offsets()) == {TopicPartition("orders", 1)}
    harness.passes(DAY_MS)
    assert harness.state() == {}


def test_an_offset_with_an_expiry_of_its_own_expires_then(harness: GroupHarness, alice: Client) -> None:
    alice.commits(partition=0, retention_ms=1000).commits(partition=1)
    assert harness.restarted().offsets() == harness.offsets()
    harness.passes(CHECK_MS)
    assert set(harness.offsets()) == {TopicPartition("orders", 1)}


def test_the_longest_retention_that_a_client_can_ask_for_is_stored(
    harness: GroupHarness, alice: Client
) -> None:
    alice.commits(partition=0, retention_ms=2**63 - 1)
    assert harness.restarted().offsets() == harness.offsets()
    assert set(harness.offsets()) == {TopicPartition("orders", 0)}


def test_an_expiry_that_could_not_be_stored_is_tried_again(harness: GroupHarness, alice: Client) -> None:
    alice.commits()
    harness.disk = "full"
    harness.passes(RETENTION_MS + CHECK_MS)
    assert set(harness.offsets()) == {ORDERS}
    harness.disk = "prompt"
    harness.passes(CHECK_MS)
    assert harness.state() == {}


def test_an_offset_that_is_committed_again_while_its_expiry_is_written_stays(
    harness: GroupHarness, alice: Client
) -> None:
    alice.commits(offset=1)
    harness.disk = "slow"
    harness.passes(RETENTION_MS + CHECK_MS)
    assert len(harness.in_flight) > 0
    alice.commits(offset=2)
    harness.flush()
    assert harness.offsets()[ORDERS].offset == 2
    assert harness.restarted().offsets() == harness.offsets()


def test_the_retention_is_configurable() -> None:
    settings = GroupSettings(offsets_retention_minutes=1, offsets_retention_check_interval_ms=1000)
    harness = GroupHarness(settings)
    harness.client("alice").commits()
    harness.passes(59_000)
    assert set(harness.offsets()) == {ORDERS}
    harness.passes(2000)
    assert harness.state() == {}
    assert harness.coordinator.next_deadline_ms is None
