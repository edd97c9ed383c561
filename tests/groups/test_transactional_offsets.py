"""Offsets that are committed within transactions: when they count, who may commit them, and when they vanish."""

import pytest

from penstock.config import Limits
from penstock.errors import ErrorCode, UnknownFormat
from penstock.groups import DeleteGroupsResult, DeleteOffsetsResult, GroupState
from penstock.groups.storage import encode_group_key, encode_offset_key
from penstock.types import TopicPartition
from tests.groups.group_harness import DAY_MS, GROUP, Client, stable
from tests.groups.transaction_harness import Stored, TransactionHarness, commits_in

ORDERS = TopicPartition("orders", 0)
RETENTION_MS = 7 * DAY_MS
CHECK_MS = 600_000


@pytest.fixture
def harness() -> TransactionHarness:
    return TransactionHarness()


@pytest.fixture
def alice(harness: TransactionHarness) -> Client:
    return harness.client("alice")


def offset(harness: TransactionHarness) -> int | None:
    """The offset of orders-0: the coordinator and the next one agree on it."""
    found = harness.numbers().get((GROUP, ORDERS))
    assert harness.restarted().numbers().get((GROUP, ORDERS)) == found
    return found


# When it counts


def test_an_offset_counts_when_its_transaction_is_committed(
    harness: TransactionHarness, alice: Client
) -> None:
    alice.commits(offset=1)
    assert commits_in(alice, 7, 5) is ErrorCode.NONE
    assert offset(harness) == 1
    harness.ends(7, commit=True)
    assert offset(harness) == 5


def test_an_offset_of_an_aborted_transaction_never_counts(harness: TransactionHarness, alice: Client) -> None:
    alice.commits(offset=1)
    commits_in(alice, 7, 5)
    harness.ends(7, commit=False)
    assert (offset(harness), harness.unstable()) == (1, set())


def test_the_marker_of_one_producer_leaves_the_offsets_of_others_pending(
    harness: TransactionHarness, alice: Client
) -> None:
    commits_in(alice, 7, 5)
    commits_in(alice, 8, 6, partition=1)
    harness.ends(7, commit=True)
    assert (offset(harness), harness.unstable()) == (5, {TopicPartition("orders", 1)})


def test_a_repeated_marker_changes_nothing(harness: TransactionHarness, alice: Client) -> None:
    commits_in(alice, 7, 5)
    harness.ends(7, commit=True)
    alice.commits(offset=9)
    harness.ends(7, commit=True)
    harness.ends(7, commit=False)
    assert offset(harness) == 9


def test_the_last_offset_that_a_producer_has_written_counts(
    harness: TransactionHarness, alice: Client
) -> None:
    commits_in(alice, 7, 5)
    commits_in(alice, 7, 6)
    harness.ends(7, commit=True)
    assert offset(harness) == 6


def test_a_transaction_may_have_offsets_of_several_groups(harness: TransactionHarness, alice: Client) -> None:
    bob = harness.client("bob", group_id="shipping")
    commits_in(alice, 7, 5)
    commits_in(bob, 7, 6)
    harness.ends(7, commit=True)
    assert harness.numbers() == {(GROUP, ORDERS): 5, ("shipping", ORDERS): 6}


def test_a_plain_commit_wins_if_it_is_later_in_the_log(harness: TransactionHarness, alice: Client) -> None:
    commits_in(alice, 7, 5)
    alice.commits(offset=3)
    assert offset(harness) == 3
    harness.ends(7, commit=True)
    assert offset(harness) == 3


def test_a_plain_commit_loses_if_it_is_earlier_in_the_log(harness: TransactionHarness, alice: Client) -> None:
    harness.disk = "slow"
    alice.commits(offset=3)
    commits_in(alice, 7, 5)
    harness.ends(7, commit=True)
    harness.flush()
    assert offset(harness) == 5


@pytest.mark.parametrize("commits_first", [7, 8])
def test_of_two_transactions_the_later_record_wins_and_not_the_later_marker(
    harness: TransactionHarness, alice: Client, commits_first: int
) -> None:
    commits_in(alice, 7, 5)
    commits_in(alice, 8, 6)
    harness.ends(commits_first, commit=True)
    assert offset(harness) == (5 if commits_first == 7 else 6)
    harness.ends(15 - commits_first, commit=True)
    assert offset(harness) == 6


def test_an_offset_that_a_producer_has_written_again_is_behind_those_of_others(
    harness: TransactionHarness, alice: Client
) -> None:
    commits_in(alice, 7, 5)
    commits_in(alice, 8, 6)
    commits_in(alice, 7, 9)
    harness.ends(8, commit=True)
    assert offset(harness) == 6
    harness.ends(7, commit=True)
    assert offset(harness) == 9


def test_a_marker_applies_to_offsets_that_are_still_being_written(
    harness: TransactionHarness, alice: Client
) -> None:
    harness.disk = "slow"
    assert commits_in(alice, 7, 5) is None
    harness.ends(7, commit=True)
    assert harness.unstable() == {ORDERS}
    harness.flush()
    assert (offset(harness), alice.error) == (5, ErrorCode.NONE)


def test_an_offset_that_could_not_be_stored_is_not_pending(
    harness: TransactionHarness, alice: Client
) -> None:
    harness.disk = "full"
    assert commits_in(alice, 7, 5) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.state() == {}, "and leaves no group behind"
    harness.disk = "prompt"
    harness.ends(7, commit=True)
    assert harness.state() == harness.restarted().state() == {}


# Stable offsets


def test_offsets_are_unstable_from_the_request_to_the_marker(
    harness: TransactionHarness, alice: Client
) -> None:
    harness.disk = "slow"
    commits_in(alice, 7, 5)
    assert harness.unstable() == {ORDERS}, "the next owner of the partition must wait for this transaction"
    harness.flush()
    harness.ends(7, commit=True)
    assert harness.unstable() == {ORDERS}
    assert harness.restarted().unstable() == {ORDERS}
    harness.flush()
    assert harness.unstable() == harness.restarted().unstable() == set()


def test_only_the_requested_partitions_are_checked_for_stability(
    harness: TransactionHarness, alice: Client
) -> None:
    commits_in(alice, 7, 5)
    commits_in(alice, 7, 5, partition=1)
    ask = harness.coordinator.unstable_offsets
    assert ask(GROUP, [ORDERS, TopicPartition("orders", 2)]) == {ORDERS}
    assert ask("unknown") == set()


def test_a_group_with_only_pending_offsets_exists(harness: TransactionHarness, alice: Client) -> None:
    commits_in(alice, 7, 5)
    for each in (harness, harness.restarted()):
        assert each.group().state is GroupState.EMPTY
        assert [listing.group_id for listing in each.coordinator.list_groups()] == [GROUP]
        each.ends(7, commit=False)
        assert each.state() == {}


# Who may commit


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({}, ErrorCode.NONE),
        ({"member_id": "", "generation": -1}, ErrorCode.NONE),
        ({"generation": 9}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": -1}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "", "generation": 1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_id": "other"}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"group_id": "other", "generation": -1, "member_id": "x"}, ErrorCode.NONE),
        ({"group_id": "x" * 4097, "generation": -1}, ErrorCode.INVALID_GROUP_ID),
    ],
)
def test_a_member_is_checked_only_if_the_request_names_it(
    harness: TransactionHarness, alice: Client, changes: dict[str, object], error: ErrorCode
) -> None:
    stable(harness, alice)
    assert commits_in(alice, 7, 5, **{"generation": alice.generation, **changes}) is error  # type: ignore[arg-type]


def test_the_instance_that_replaced_a_static_member_fences_it(harness: TransactionHarness) -> None:
    first = harness.client("first", instance_id="pod")
    stable(harness, first)
    harness.client("second", instance_id="pod").joins()
    assert commits_in(first, 7, 5, generation=first.generation) is ErrorCode.FENCED_INSTANCE_ID


def test_a_member_of_the_last_generation_cannot_commit(harness: TransactionHarness, alice: Client) -> None:
    stable(harness, alice)
    before = alice.generation
    bob = harness.client("bob").joins()
    alice.joins()
    assert commits_in(alice, 7, 5, generation=before) is ErrorCode.ILLEGAL_GENERATION
    assert commits_in(alice, 7, 5, generation=alice.generation) is ErrorCode.NONE, "even before it syncs"
    assert bob.is_answered


def test_offsets_for_topics_that_do_not_exist_are_refused(harness: TransactionHarness, alice: Client) -> None:
    harness.deletes_topics("orders")
    assert commits_in(alice, 7, 5) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert harness.state() == {}


def test_a_share_group_has_no_offsets_in_transactions(harness: TransactionHarness, alice: Client) -> None:
    harness.happens(harness.coordinator.begin_share_group(harness.now_ms, harness.new_token(), GROUP))
    assert commits_in(alice, 7, 5) is ErrorCode.GROUP_ID_NOT_FOUND


# Limits


def test_pending_offsets_count_toward_the_limit_of_a_group() -> None:
    harness = TransactionHarness(limits=Limits(max_group_offsets=3))
    alice = harness.client("alice")
    alice.commits(partition=0)
    assert commits_in(alice, 7, 1, partition=0) is ErrorCode.NONE
    assert commits_in(alice, 8, 1, partition=0) is ErrorCode.NONE
    assert commits_in(alice, 8, 2, partition=0) is ErrorCode.NONE, "it replaces its own offset"
    assert commits_in(alice, 9, 1, partition=0) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert alice.commits(partition=1).error is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert alice.commits(partition=0).error is ErrorCode.NONE
    assert commits_in(alice, 9, 1, partition=0) is ErrorCode.NONE, "the commit has superseded the others"


def test_pending_offsets_that_are_being_written_count_toward_the_limit() -> None:
    harness = TransactionHarness(limits=Limits(max_group_offsets=2))
    alice = harness.client("alice")
    harness.disk = "slow"
    for producer_id in (7, 8):
        assert commits_in(alice, producer_id, 1) is None
    assert commits_in(alice, 9, 1) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    harness.flush()
    harness.ends(7, commit=False)
    harness.flush()
    assert commits_in(alice, 9, 1) is None


def test_a_transaction_that_ended_leaves_nothing_in_memory(
    harness: TransactionHarness, alice: Client
) -> None:
    commits_in(alice, 7, 5)
    commits_in(alice, 8, 5)
    commits_in(alice, 9, 5, partition=1)
    alice.commits(partition=1)
    harness.ends(7, commit=True)
    harness.ends(8, commit=False)
    group = harness.coordinator._shared.groups[GROUP]
    assert (group.pending_offsets, group.pending_count, group.pending_in_flight) == ({}, 0, {})
    assert harness.coordinator._shared.transactions._partitions == {}


# Deletion and expiry


def test_a_deletion_removes_pending_offsets_that_were_written_before_it(
    harness: TransactionHarness, alice: Client
) -> None:
    commits_in(alice, 7, 5)
    assert harness.deletes_offsets(ORDERS) == DeleteOffsetsResult(errors={ORDERS: ErrorCode.NONE})
    assert harness.unstable() == set()
    commits_in(alice, 8, 6)
    harness.ends(7, commit=True)
    assert offset(harness) is None
    harness.ends(8, commit=True)
    assert offset(harness) == 6


def test_a_deleted_group_does_not_come_back_with_a_marker(harness: TransactionHarness, alice: Client) -> None:
    alice.commits(offset=1)
    commits_in(alice, 7, 5)
    harness.disk = "slow"
    commits_in(alice, 7, 6, partition=1)
    assert harness.deletes_groups(GROUP) is None
    harness.flush()
    harness.ends(7, commit=True)
    harness.flush()
    assert harness.state() == harness.restarted().state() == {}


def test_a_group_whose_deletion_failed_has_what_transactions_did_meanwhile(
    harness: TransactionHarness, alice: Client
) -> None:
    commits_in(alice, 7, 5)
    commits_in(alice, 8, 6, partition=1)
    harness.disk = "slow"
    harness.ends(7, commit=True)
    harness.deletes_groups(GROUP)
    commits_in(alice, 9, 7, partition=2)
    harness.flush(1)
    harness.disk = "full"
    harness.flush(1)
    harness.disk = "prompt"
    harness.flush()
    harness.ends(8, commit=True)
    harness.ends(9, commit=True)
    expected = {(GROUP, TopicPartition("orders", number)): number + 5 for number in range(3)}
    assert harness.numbers() == harness.restarted().numbers() == expected


def test_the_failed_deletion_of_a_group_is_answered_with_an_error(
    harness: TransactionHarness, alice: Client
) -> None:
    commits_in(alice, 7, 5)
    harness.disk = "full"
    failed = DeleteGroupsResult(errors={GROUP: ErrorCode.COORDINATOR_NOT_AVAILABLE})
    assert harness.deletes_groups(GROUP) == failed
    assert harness.unstable() == {ORDERS}


def test_nothing_of_a_partition_expires_while_it_has_a_pending_offset(
    harness: TransactionHarness, alice: Client
) -> None:
    alice.commits(offset=1)
    commits_in(alice, 7, 5)
    harness.passes(RETENTION_MS + CHECK_MS)
    assert (offset(harness), harness.unstable()) == (1, {ORDERS})
    harness.ends(7, commit=False)
    harness.passes(CHECK_MS)
    assert harness.state() == {}


def test_a_group_of_pending_offsets_outlives_retention(harness: TransactionHarness, alice: Client) -> None:
    commits_in(alice, 7, 5)
    harness.passes(2 * RETENTION_MS)
    harness.ends(7, commit=True)
    assert offset(harness) == 5


def test_pending_offsets_go_with_their_topic(harness: TransactionHarness, alice: Client) -> None:
    commits_in(alice, 7, 5)
    harness.deletes_topics("orders")
    assert harness.unstable() == set()
    harness.metadata.creates("orders")
    harness.ends(7, commit=True)
    assert offset(harness) is None


def test_pending_offsets_do_not_count_for_another_topic_of_the_same_name(
    harness: TransactionHarness, alice: Client
) -> None:
    commits_in(alice, 7, 5)
    harness.metadata.recreates("orders")
    commits_in(alice, 8, 6)
    harness.hears_of_deleted("orders")
    harness.ends(7, commit=True)
    assert offset(harness) is None
    harness.ends(8, commit=True)
    assert offset(harness) == 6


# The log


def test_a_group_without_members_is_forgotten_and_its_pending_offsets_are_not(
    harness: TransactionHarness, alice: Client
) -> None:
    """A group's own deletion record says nothing about its offsets."""
    commits_in(alice, 7, 5)
    harness.log.append(Stored(encode_group_key(GROUP), None))
    after = harness.restarted()
    after.ends(7, commit=True)
    assert after.numbers() == {(GROUP, ORDERS): 5}


def test_a_coordinator_waits_for_the_metadata_by_which_a_pending_offset_was_accepted(
    harness: TransactionHarness, alice: Client
) -> None:
    harness.metadata.creates("invoices")
    commits_in(alice, 7, 5)
    assert harness.restarted().coordinator.topics_version == harness.metadata.version


@pytest.mark.parametrize(
    ("key", "value"), [(encode_group_key(GROUP), b""), (encode_offset_key(GROUP, ORDERS), None)]
)
def test_only_offsets_are_expected_in_transactions(
    harness: TransactionHarness, key: bytes, value: bytes | None
) -> None:
    with pytest.raises(UnknownFormat, match="no committed offset"):
        harness.coordinator.replay_pending(7, key, value)
