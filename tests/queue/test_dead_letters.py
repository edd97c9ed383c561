"""A message that was delivered too often, or rejected, is copied before it is done. Numbers: queue/partition.py."""

from penstock.queue.states import State
from penstock.queue.values import DeadLetterRange, DeadLetterReason
from tests.queue.partition_harness import ACCEPT, NOT_YOURS, REJECT, RELEASE, TAKEN, PartitionHarness

LIMIT, REJECTED = DeadLetterReason.DELIVERY_LIMIT, DeadLetterReason.REJECTED


def test_a_message_released_after_its_last_delivery_becomes_a_dead_letter() -> None:
    harness = PartitionHarness(messages=2, delivery_limit=2)
    for _ in range(2):
        assert harness.gets("ann") == [0]
        assert harness.queue.take_dead_letters() == []
        harness.says("ann", RELEASE, 0)
    assert harness.queue.take_dead_letters() == [DeadLetterRange(0, 0, 2, LIMIT, "ann")]
    assert harness.gets("ann") == [1]


def test_the_last_delivery_may_still_succeed() -> None:
    harness = PartitionHarness(messages=1, delivery_limit=1)
    harness.gets("ann")
    assert harness.says("ann", ACCEPT, 0) == TAKEN
    assert harness.queue.take_dead_letters() == []


def test_a_message_whose_consumers_crash_becomes_a_dead_letter_too() -> None:
    harness = PartitionHarness(messages=1, delivery_limit=2, lease_ms=1000)
    harness.gets("ann")
    harness.queue.release_member(harness.now_ms, "ann")
    harness.gets("ben")
    harness.passes(1000)
    assert harness.queue.take_dead_letters() == [DeadLetterRange(0, 0, 2, LIMIT, "ben")]


def test_without_a_limit_a_message_comes_back_for_ever() -> None:
    harness = PartitionHarness(messages=1, delivery_limit=0)
    for _ in range(20):
        assert harness.gets("ann") == [0]
        harness.says("ann", RELEASE, 0)


def test_a_rejected_message_becomes_a_dead_letter_at_once_with_its_delivery_count() -> None:
    harness = PartitionHarness(messages=4)
    harness.gets("ann", 2)
    harness.says("ann", RELEASE, 0, 1)
    harness.gets("ann", 4)
    harness.says("ann", REJECT, 0, 3)
    letters = harness.queue.take_dead_letters()
    assert letters == [DeadLetterRange(0, 1, 2, REJECTED, "ann"), DeadLetterRange(2, 3, 1, REJECTED, "ann")]
    assert harness.queue.take_dead_letters() == []


def test_dead_letters_are_undone_until_they_are_copied() -> None:
    """[5]"""
    harness = PartitionHarness(messages=3)
    harness.gets("ann", 3)
    harness.says("ann", REJECT, 0, 1)
    harness.says("ann", ACCEPT, 2)
    assert harness.queue.start_offset == 0
    assert harness.queue.dying_count == 2
    assert harness.says("ann", ACCEPT, 0) == NOT_YOURS
    harness.queue.dead_letters_copied(0, 0)
    assert harness.queue.start_offset == 1
    harness.queue.dead_letters_copied(0, 9)
    assert harness.queue.start_offset == 3
    assert harness.queue.dying_count == 0


def test_confirming_a_copied_dead_letter_affects_no_other_message() -> None:
    harness = PartitionHarness(messages=4)
    harness.gets("ann", 2)
    harness.says("ann", REJECT, 1)
    harness.queue.dead_letters_copied(0, 3)
    assert [run.state for run in harness.queue.peek(0, 9)] == [State.LEASED, State.AVAILABLE]


def test_messages_deleted_by_retention_are_not_copied() -> None:
    harness = PartitionHarness(messages=6)
    harness.gets("ann", 6)
    harness.says("ann", REJECT, 0, 3)
    harness.queue.trimmed(harness.now_ms, 2)
    assert harness.queue.take_dead_letters() == [DeadLetterRange(2, 3, 1, REJECTED, "ann")]


def test_a_rejection_survives_a_restart_and_is_copied_by_the_next_leader() -> None:
    harness = PartitionHarness(messages=3)
    harness.gets("ann", 3)
    harness.says("ann", REJECT, 1, token="rejection")
    assert harness.saves() == ["rejection"]
    harness.crashes()
    assert harness.queue.take_dead_letters() == [DeadLetterRange(1, 1, 1, REJECTED)]
    harness.reads(3)
    assert harness.gets("ben", 9) == [0, 2]
    harness.queue.dead_letters_copied(1, 1)
    harness.saves()
    harness.crashes()
    assert harness.queue.take_dead_letters() == []


def test_a_dead_letter_copied_before_it_is_read_again_need_not_be_read() -> None:
    harness = PartitionHarness(messages=3)
    harness.gets("ann", 3)
    harness.says("ann", REJECT, 1)
    harness.saves()
    harness.crashes()
    harness.reads(1)
    assert harness.queue.next_offset == 1
    harness.queue.dead_letters_copied(1, 1)
    assert harness.queue.next_offset == 2


def test_a_message_on_its_last_delivery_when_the_leader_died_becomes_a_dead_letter() -> None:
    """It may be the message that crashed the leader."""
    harness = PartitionHarness(messages=3, delivery_limit=1)
    harness.gets("ann", 2)
    harness.says("ann", ACCEPT, 0)
    harness.saves()
    harness.crashes()
    assert harness.queue.take_dead_letters() == [DeadLetterRange(1, 1, 1, LIMIT)]
    harness.reads(2)
    assert harness.gets("ben", 9) == [2]


def test_without_dead_letters_such_messages_are_dropped_at_a_restart() -> None:
    harness = PartitionHarness(messages=3)
    harness.gets("ann", 3)
    harness.says("ann", REJECT, 1)
    harness.saves()
    harness.crashes(dead_letters=False, delivery_limit=1)
    assert harness.queue.take_dead_letters() == []
    assert harness.queue.start_offset == harness.queue.next_offset == 3
