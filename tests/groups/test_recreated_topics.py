"""A topic's name is reused: offsets of the old topic do not count for the new one, even if the coordinator misses the
deletion. The rules are in groups/topics.py."""

import pytest

from penstock.errors import ErrorCode
from penstock.groups import CommittedOffset, OffsetToCommit
from penstock.groups.storage import encode_offset, encode_offset_key
from penstock.types import TopicPartition
from tests.groups.group_harness import DAY_MS, GROUP, Client, GroupHarness, stable

ORDERS = TopicPartition("orders", 0)
INVOICES = TopicPartition("invoices", 0)
CHECK_MS = 600_000


@pytest.fixture
def harness() -> GroupHarness:
    return GroupHarness()


@pytest.fixture
def alice(harness: GroupHarness) -> Client:
    return harness.client("alice")


def stored_unsigned(harness: GroupHarness, partition: TopicPartition, offset: int = 7) -> None:
    """As versions before this one stored it."""
    committed = CommittedOffset(offset=offset, commit_timestamp_ms=harness.now_ms)
    harness.durable.append((encode_offset_key(GROUP, partition), encode_offset(committed)))


# The deletion was missed


def test_an_offset_of_a_deleted_topic_does_not_count_for_the_next_of_that_name(
    harness: GroupHarness, alice: Client
) -> None:
    alice.commits("orders", offset=500).commits("invoices", offset=3)
    harness.metadata.recreates("orders")
    assert harness.offsets().keys() == {INVOICES}
    assert harness.coordinator.fetch_offsets(GROUP, [ORDERS]) == {}
    assert harness.restarted().offsets().keys() == {INVOICES}


def test_an_offset_of_a_deleted_topic_is_not_there_while_no_topic_has_its_name(
    harness: GroupHarness, alice: Client
) -> None:
    alice.commits("orders", offset=500)
    harness.metadata.deletes("orders")
    assert harness.offsets() == harness.restarted().offsets() == {}


def test_offsets_that_do_not_count_are_deleted_after_the_start(harness: GroupHarness, alice: Client) -> None:
    alice.commits("orders", offset=500).commits("invoices")
    harness.metadata.recreates("orders")
    assert harness.stored().keys() == {ORDERS, INVOICES}
    later = harness.restarted()
    assert later.stored().keys() == {INVOICES}
    assert later.restarted().state() == later.state()


def test_a_group_without_other_offsets_is_deleted_with_them(harness: GroupHarness, alice: Client) -> None:
    alice.commits("orders", offset=500)
    harness.metadata.recreates("orders")
    later = harness.restarted()
    assert later.state() == later.restarted().state() == {}


def test_a_deletion_that_could_not_be_stored_is_tried_again(harness: GroupHarness, alice: Client) -> None:
    alice.commits("orders", offset=500)
    harness.metadata.recreates("orders")
    harness.disk = "full"
    harness.tidies()
    assert harness.stored().keys() == {ORDERS}
    harness.disk = "prompt"
    harness.passes(CHECK_MS)
    assert harness.stored() == {}


def test_members_that_read_the_new_topic_do_not_keep_the_old_offset(
    harness: GroupHarness, alice: Client
) -> None:
    stable(harness, alice)
    alice.commits("orders", offset=500)
    harness.metadata.recreates("orders")
    harness.tidies()
    assert harness.stored() == {}
    assert alice.commits("orders", offset=1).error is ErrorCode.NONE
    harness.tidies()
    assert harness.offsets()[ORDERS].offset == harness.stored()[ORDERS].offset == 1


# Commits of the old topic and of the new one


def test_a_commit_replaces_the_old_topic_s_offset(harness: GroupHarness, alice: Client) -> None:
    alice.commits("orders", offset=500)
    harness.metadata.recreates("orders")
    alice.commits("orders", offset=2)
    assert harness.offsets()[ORDERS].offset == 2
    assert harness.restarted().offsets() == harness.offsets()


def test_no_deletion_overtakes_a_commit_of_the_new_topic(harness: GroupHarness, alice: Client) -> None:
    """Invariant 3."""
    alice.commits("orders", offset=500)
    harness.metadata.recreates("orders")
    harness.disk = "slow"
    alice.commits("orders", offset=2)
    harness.tidies()
    harness.hears_of_deleted("orders")
    harness.flush()
    assert harness.offsets()[ORDERS].offset == 2
    assert harness.restarted().offsets() == harness.offsets()


def test_a_commit_that_becomes_durable_after_the_deletion_of_its_topic_does_not_count(
    harness: GroupHarness, alice: Client
) -> None:
    harness.disk = "slow"
    alice.commits("orders", offset=500)
    harness.metadata.recreates("orders")
    harness.hears_of_deleted("orders")
    harness.disk = "prompt"
    harness.flush()
    assert alice.error is ErrorCode.NONE, "it was committed, for what was there then"
    assert harness.offsets() == {}
    harness.passes(CHECK_MS)
    assert harness.stored() == {}


def test_a_commit_for_a_deleted_topic_is_refused(harness: GroupHarness, alice: Client) -> None:
    """Invariant 2: a request may have waited for its coordinator."""
    meant = OffsetToCommit(topic="orders", partition=0, offset=500, topic_id=harness.metadata.id_of("orders"))
    assert alice.commits(offsets=(meant,)).error is ErrorCode.NONE
    harness.metadata.recreates("orders")
    assert alice.commits(offsets=(meant,)).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    harness.metadata.deletes("orders")
    assert alice.commits("orders").error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert harness.offsets() == {}


def test_a_topic_deletion_removes_the_old_offsets_and_keeps_the_new_ones(
    harness: GroupHarness, alice: Client
) -> None:
    alice.commits("orders", 0, 500).commits("orders", 1, 500)
    harness.metadata.recreates("orders")
    alice.commits("orders", 1, 2)
    harness.hears_of_deleted("orders")
    assert harness.stored().keys() == harness.offsets().keys() == {TopicPartition("orders", 1)}


def test_old_offsets_do_not_show_while_their_deletion_is_being_written(
    harness: GroupHarness, alice: Client
) -> None:
    alice.commits("orders", offset=500)
    harness.disk = "slow"
    harness.deletes_topics("orders")
    harness.metadata.creates("orders")
    assert harness.offsets() == {}
    alice.commits("orders", offset=2)
    harness.flush()
    assert harness.offsets()[ORDERS].offset == 2
    assert harness.restarted().offsets() == harness.offsets()


# How new the metadata must be


def test_a_coordinator_reports_the_metadata_version_that_it_needs_to_check_its_offsets(
    harness: GroupHarness, alice: Client
) -> None:
    """Invariant 1."""
    assert harness.restarted().coordinator.topics_version < harness.metadata.version
    harness.metadata.creates("invoices")
    alice.commits("invoices", offset=1)
    needed = harness.metadata.version
    harness.metadata.creates("others")
    assert harness.restarted().coordinator.topics_version == needed


# Offsets without an id


def test_an_offset_that_was_stored_without_an_id_counts_and_is_signed_after_the_start(
    harness: GroupHarness,
) -> None:
    stored_unsigned(harness, ORDERS)
    later = harness.restarted()
    assert later.offsets()[ORDERS].offset == 7
    assert later.offsets()[ORDERS].topic_id == harness.metadata.id_of("orders")
    assert later.stored() == later.offsets()
    harness.metadata.recreates("orders")
    assert later.offsets() == later.restarted().offsets() == {}


def test_an_offset_without_an_id_of_an_unknown_topic_is_kept(harness: GroupHarness) -> None:
    """The topic may be deleted, or not known here yet."""
    stored_unsigned(harness, ORDERS)
    harness.metadata.deletes("orders")
    later = harness.restarted()
    later.tidies()
    assert later.offsets()[ORDERS].offset == later.stored()[ORDERS].offset == 7
    later.passes(8 * DAY_MS)
    assert later.state() == {}, "until it expires"


def test_an_offset_without_an_id_is_deleted_with_its_topic(harness: GroupHarness) -> None:
    stored_unsigned(harness, ORDERS)
    later = harness.restarted()
    harness.metadata.recreates("orders")
    later.hears_of_deleted("orders")
    later.tidies()
    assert later.offsets() == later.stored() == {}


def test_signing_an_offset_never_undoes_a_commit(harness: GroupHarness) -> None:
    stored_unsigned(harness, ORDERS)
    later = harness.restarted()
    later.disk = "slow"
    alice = later.client("alice")
    alice.commits("orders", offset=8)
    later.tidies()
    alice.commits("orders", offset=9)
    later.flush()
    assert later.offsets()[ORDERS].offset == later.stored()[ORDERS].offset == 9


# Expiry


def test_an_expiry_of_its_own_survives_a_restart_beside_the_topic_s_id(
    harness: GroupHarness, alice: Client
) -> None:
    alice.commits("orders", offset=3, retention_ms=1000)
    assert harness.restarted().offsets() == harness.offsets()
    assert harness.offsets()[ORDERS].topic_id is not None
    harness.passes(CHECK_MS)
    assert harness.state() == {}
