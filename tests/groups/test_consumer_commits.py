"""Which offsets members of consumer groups (KIP-848) may commit and fetch."""

from penstock.config import GroupSettings
from penstock.effects import Persist
from penstock.errors import ErrorCode
from penstock.groups import CommitRequest, OffsetToCommit
from penstock.types import Producer
from tests.groups.consumer_group_harness import ConsumerClient, ConsumerHarness, settled
from tests.groups.group_harness import GROUP

PRODUCER = Producer(7, 0)
FORGETFUL = GroupSettings(
    consumer_assignment_interval_ms=0, offsets_retention_minutes=1, offsets_retention_check_interval_ms=10_000
)


def two(harness: ConsumerHarness) -> tuple[ConsumerClient, ConsumerClient]:
    """Ann was there first: she has had partitions 0 and 1 since epoch 1, and Bob has 2 and 3 since epoch 2."""
    ann, bob = harness.member("ann"), harness.member("bob")
    ann.settles()
    settled(bob, ann)
    assert (ann.epoch, bob.epoch) == (2, 2)
    return ann, bob


def test_a_member_commits_with_its_epoch() -> None:
    harness = ConsumerHarness()
    ann, _ = two(harness)
    assert ann.commits(0) is ErrorCode.NONE
    assert harness.offsets()


def test_an_older_epoch_counts_for_partitions_that_the_member_still_has() -> None:
    harness = ConsumerHarness()
    ann, bob = two(harness)
    assert ann.commits(1, epoch=1) is ErrorCode.NONE
    assert ann.commits(2, epoch=1) is ErrorCode.STALE_MEMBER_EPOCH, "it is Bob's now"
    assert bob.commits(2, epoch=1) is ErrorCode.STALE_MEMBER_EPOCH, "he got it later"


def test_assignment_epochs_survive_a_failover() -> None:
    harness = ConsumerHarness()
    ann, bob = two(harness)
    ann.harness = bob.harness = harness.restarted()
    assert ann.commits(1, epoch=1) is ErrorCode.NONE
    assert bob.commits(2, epoch=1) is ErrorCode.STALE_MEMBER_EPOCH


def test_a_partition_that_is_being_given_up_can_still_be_committed() -> None:
    harness = ConsumerHarness()
    ann, bob = harness.member("ann"), harness.member("bob")
    ann.settles()
    bob.reports()
    ann.busy = True
    ann.reports()
    assert ann.commits(3) is ErrorCode.NONE
    assert harness.offsets()


def test_an_epoch_that_was_never_told_and_an_unknown_member_are_refused() -> None:
    harness = ConsumerHarness()
    ann, _ = two(harness)
    assert ann.commits(0, epoch=9) is ErrorCode.STALE_MEMBER_EPOCH
    assert ann.commits(0, member_id="eve") is ErrorCode.UNKNOWN_MEMBER_ID
    assert ann.commits(0, epoch=-1, member_id="") is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_old_id_of_an_instance_may_not_commit() -> None:
    harness = ConsumerHarness()
    harness.member("ann", instance="one").settles()
    old = harness.member("old", instance="one")
    assert old.commits(0, epoch=1, instance_id="one") is ErrorCode.FENCED_INSTANCE_ID


def test_anybody_may_commit_while_there_are_no_members() -> None:
    harness = ConsumerHarness()
    ann, bob = two(harness)
    ann.leaves()
    bob.leaves()
    assert ann.commits(0, epoch=-1, member_id="") is ErrorCode.NONE


def test_a_transaction_is_checked_unless_its_producer_names_no_member() -> None:
    harness = ConsumerHarness()
    ann, _ = two(harness)
    assert ann.commits(0, epoch=9, producer=PRODUCER) is ErrorCode.STALE_MEMBER_EPOCH
    offsets = (OffsetToCommit(topic="orders", partition=0, offset=1),)
    anonymous = CommitRequest(group_id=GROUP, offsets=offsets, producer=PRODUCER)
    (written,) = harness.coordinator.commit_offsets(harness.now_ms, "token", anonymous)
    assert isinstance(written, Persist)
    assert written.producer == PRODUCER


def test_a_member_fetches_with_its_epoch() -> None:
    harness = ConsumerHarness()
    ann, _ = two(harness)
    check = harness.coordinator.check_fetch
    assert check(GROUP, "ann", ann.epoch) is ErrorCode.NONE
    assert check(GROUP, "ann", ann.epoch - 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert check(GROUP, "eve", ann.epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert check("nothing", "ann", 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_expire_when_no_member_reads_their_topic_any_more() -> None:
    harness = ConsumerHarness(FORGETFUL)
    ann, bob = two(harness)
    ann.commits(0)
    for _ in range(10):
        harness.passes(30_000)
        settled(ann, bob)
    assert harness.offsets()
    ann.leaves()
    bob.leaves()
    harness.passes(30_000)
    assert not harness.offsets()
    assert not list(harness.coordinator.list_groups())
    assert {value for value in dict(harness.durable).values() if value is not None} == set()
