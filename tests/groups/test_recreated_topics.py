"""A topic's name is used again: what was committed for the old topic is not there for the new one, whoever misses the
news of the deletion. The rules are in groups/topics.py."""

import pytest

from penstock.errors import ErrorCode
from penstock.groups import CommittedOffset, OffsetToCommit
from penstock.groups.storage import encode_offset, encode_offset_key
from penstock.types import TopicPartition
from tests.groups.scene import DAY_MS, GROUP, Client, Scene, stable

ORDERS = TopicPartition("orders", 0)
INVOICES = TopicPartition("invoices", 0)
CHECK_MS = 600_000


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def alice(scene: Scene) -> Client:
    return scene.client("alice")


def stored_unsigned(scene: Scene, partition: TopicPartition, offset: int = 7) -> None:
    """As versions before this one stored it."""
    committed = CommittedOffset(offset=offset, commit_timestamp_ms=scene.now_ms)
    scene.durable.append((encode_offset_key(GROUP, partition), encode_offset(committed)))


# The deletion was missed


def test_an_offset_of_a_deleted_topic_does_not_count_for_the_next_of_that_name(
    scene: Scene, alice: Client
) -> None:
    alice.commits("orders", offset=500).commits("invoices", offset=3)
    scene.metadata.recreates("orders")
    assert scene.offsets().keys() == {INVOICES}
    assert scene.coordinator.fetch_offsets(GROUP, [ORDERS]) == {}
    assert scene.restarted().offsets().keys() == {INVOICES}


def test_an_offset_of_a_deleted_topic_is_not_there_while_no_topic_has_its_name(
    scene: Scene, alice: Client
) -> None:
    alice.commits("orders", offset=500)
    scene.metadata.deletes("orders")
    assert scene.offsets() == scene.restarted().offsets() == {}


def test_offsets_that_do_not_count_are_deleted_after_the_start(scene: Scene, alice: Client) -> None:
    alice.commits("orders", offset=500).commits("invoices")
    scene.metadata.recreates("orders")
    assert scene.stored().keys() == {ORDERS, INVOICES}
    later = scene.restarted()
    assert later.stored().keys() == {INVOICES}
    assert later.restarted().state() == later.state()


def test_a_group_that_has_nothing_else_goes_with_them(scene: Scene, alice: Client) -> None:
    alice.commits("orders", offset=500)
    scene.metadata.recreates("orders")
    later = scene.restarted()
    assert later.state() == later.restarted().state() == {}


def test_a_deletion_that_could_not_be_stored_is_tried_again(scene: Scene, alice: Client) -> None:
    alice.commits("orders", offset=500)
    scene.metadata.recreates("orders")
    scene.disk = "full"
    scene.tidies()
    assert scene.stored().keys() == {ORDERS}
    scene.disk = "prompt"
    scene.passes(CHECK_MS)
    assert scene.stored() == {}


def test_members_that_read_the_new_topic_do_not_keep_the_old_offset(scene: Scene, alice: Client) -> None:
    stable(scene, alice)
    alice.commits("orders", offset=500)
    scene.metadata.recreates("orders")
    scene.tidies()
    assert scene.stored() == {}
    assert alice.commits("orders", offset=1).error is ErrorCode.NONE
    scene.tidies()
    assert scene.offsets()[ORDERS].offset == scene.stored()[ORDERS].offset == 1


# Commits of the old topic and of the new one


def test_a_commit_replaces_the_old_topic_s_offset(scene: Scene, alice: Client) -> None:
    alice.commits("orders", offset=500)
    scene.metadata.recreates("orders")
    alice.commits("orders", offset=2)
    assert scene.offsets()[ORDERS].offset == 2
    assert scene.restarted().offsets() == scene.offsets()


def test_no_deletion_overtakes_a_commit_of_the_new_topic(scene: Scene, alice: Client) -> None:
    """Invariant 3."""
    alice.commits("orders", offset=500)
    scene.metadata.recreates("orders")
    scene.disk = "slow"
    alice.commits("orders", offset=2)
    scene.tidies()
    scene.hears_of_deleted("orders")
    scene.flush()
    assert scene.offsets()[ORDERS].offset == 2
    assert scene.restarted().offsets() == scene.offsets()


def test_a_commit_that_lands_when_its_topic_is_gone_does_not_count(scene: Scene, alice: Client) -> None:
    scene.disk = "slow"
    alice.commits("orders", offset=500)
    scene.metadata.recreates("orders")
    scene.hears_of_deleted("orders")
    scene.disk = "prompt"
    scene.flush()
    assert alice.error is ErrorCode.NONE, "it was committed, for what was there then"
    assert scene.offsets() == {}
    scene.passes(CHECK_MS)
    assert scene.stored() == {}


def test_a_commit_for_a_topic_that_is_gone_by_now_is_refused(scene: Scene, alice: Client) -> None:
    """Invariant 2: a request may have waited for its coordinator."""
    meant = OffsetToCommit(topic="orders", partition=0, offset=500, topic_id=scene.metadata.id_of("orders"))
    assert alice.commits(offsets=(meant,)).error is ErrorCode.NONE
    scene.metadata.recreates("orders")
    assert alice.commits(offsets=(meant,)).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    scene.metadata.deletes("orders")
    assert alice.commits("orders").error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert scene.offsets() == {}


def test_news_of_a_deletion_take_the_old_offsets_and_leave_the_new_ones(scene: Scene, alice: Client) -> None:
    alice.commits("orders", 0, 500).commits("orders", 1, 500)
    scene.metadata.recreates("orders")
    alice.commits("orders", 1, 2)
    scene.hears_of_deleted("orders")
    assert scene.stored().keys() == scene.offsets().keys() == {TopicPartition("orders", 1)}


def test_old_offsets_do_not_show_while_their_deletion_is_being_written(scene: Scene, alice: Client) -> None:
    alice.commits("orders", offset=500)
    scene.disk = "slow"
    scene.deletes_topics("orders")
    scene.metadata.creates("orders")
    assert scene.offsets() == {}
    alice.commits("orders", offset=2)
    scene.flush()
    assert scene.offsets()[ORDERS].offset == 2
    assert scene.restarted().offsets() == scene.offsets()


# How new the metadata must be


def test_a_coordinator_says_how_new_the_metadata_must_be_to_judge_its_offsets(
    scene: Scene, alice: Client
) -> None:
    """Invariant 1."""
    assert scene.restarted().coordinator.topics_version < scene.metadata.version
    scene.metadata.creates("invoices")
    alice.commits("invoices", offset=1)
    needed = scene.metadata.version
    scene.metadata.creates("others")
    assert scene.restarted().coordinator.topics_version == needed


# Offsets without an id


def test_an_offset_that_was_stored_without_an_id_counts_and_is_signed_after_the_start(scene: Scene) -> None:
    stored_unsigned(scene, ORDERS)
    later = scene.restarted()
    assert later.offsets()[ORDERS].offset == 7
    assert later.offsets()[ORDERS].topic_id == scene.metadata.id_of("orders")
    assert later.stored() == later.offsets()
    scene.metadata.recreates("orders")
    assert later.offsets() == later.restarted().offsets() == {}


def test_an_offset_without_an_id_of_a_topic_that_is_not_known_is_left_alone(scene: Scene) -> None:
    """It cannot be told whether the topic is gone or not known here yet."""
    stored_unsigned(scene, ORDERS)
    scene.metadata.deletes("orders")
    later = scene.restarted()
    later.tidies()
    assert later.offsets()[ORDERS].offset == later.stored()[ORDERS].offset == 7
    later.passes(8 * DAY_MS)
    assert later.state() == {}, "until it expires"


def test_an_offset_without_an_id_goes_when_its_topic_is_seen_to_go(scene: Scene) -> None:
    stored_unsigned(scene, ORDERS)
    later = scene.restarted()
    scene.metadata.recreates("orders")
    later.hears_of_deleted("orders")
    later.tidies()
    assert later.offsets() == later.stored() == {}


def test_signing_an_offset_never_undoes_a_commit(scene: Scene) -> None:
    stored_unsigned(scene, ORDERS)
    later = scene.restarted()
    later.disk = "slow"
    alice = later.client("alice")
    alice.commits("orders", offset=8)
    later.tidies()
    alice.commits("orders", offset=9)
    later.flush()
    assert later.offsets()[ORDERS].offset == later.stored()[ORDERS].offset == 9


# Expiry


def test_an_expiry_of_its_own_survives_a_restart_beside_the_topic_s_id(scene: Scene, alice: Client) -> None:
    alice.commits("orders", offset=3, retention_ms=1000)
    assert scene.restarted().offsets() == scene.offsets()
    assert scene.offsets()[ORDERS].topic_id is not None
    scene.passes(CHECK_MS)
    assert scene.state() == {}
