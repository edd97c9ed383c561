"""A message that was delivered too often, or rejected, is copied before it is done. Numbers: queue/partition.py."""

from penstock.queue import DeadLetter, DeadLetterReason, State
from tests.queue.scene import ACCEPT, NOT_YOURS, REJECT, RELEASE, TAKEN, Scene

LIMIT, REJECTED = DeadLetterReason.DELIVERY_LIMIT, DeadLetterReason.REJECTED


def test_a_message_dies_when_it_comes_back_after_its_last_delivery() -> None:
    scene = Scene(messages=2, delivery_limit=2)
    for _ in range(2):
        assert scene.gets("ann") == [0]
        assert scene.queue.take_dead_letters() == []
        scene.says("ann", RELEASE, 0)
    assert scene.queue.take_dead_letters() == [DeadLetter(0, 0, 2, LIMIT)]
    assert scene.gets("ann") == [1]


def test_the_last_delivery_may_still_succeed() -> None:
    scene = Scene(messages=1, delivery_limit=1)
    scene.gets("ann")
    assert scene.says("ann", ACCEPT, 0) == TAKEN
    assert scene.queue.take_dead_letters() == []


def test_a_message_that_brings_down_its_consumers_dies_too() -> None:
    scene = Scene(messages=1, delivery_limit=2, lease_ms=1000)
    scene.gets("ann")
    scene.queue.release_member(scene.now_ms, "ann")
    scene.gets("ben")
    scene.passes(1000)
    assert scene.queue.take_dead_letters() == [DeadLetter(0, 0, 2, LIMIT)]


def test_without_a_limit_a_message_comes_back_for_ever() -> None:
    scene = Scene(messages=1, delivery_limit=0)
    for _ in range(20):
        assert scene.gets("ann") == [0]
        scene.says("ann", RELEASE, 0)


def test_a_rejected_message_dies_at_once_and_says_how_often_it_was_delivered() -> None:
    scene = Scene(messages=4)
    scene.gets("ann", 2)
    scene.says("ann", RELEASE, 0, 1)
    scene.gets("ann", 4)
    scene.says("ann", REJECT, 0, 3)
    letters = scene.queue.take_dead_letters()
    assert letters == [DeadLetter(0, 1, 2, REJECTED), DeadLetter(2, 3, 1, REJECTED)]
    assert scene.queue.take_dead_letters() == []


def test_the_dead_are_undone_until_they_are_buried() -> None:
    """[5]"""
    scene = Scene(messages=3)
    scene.gets("ann", 3)
    scene.says("ann", REJECT, 0, 1)
    scene.says("ann", ACCEPT, 2)
    assert scene.queue.start_offset == 0
    assert scene.queue.dying_count == 2
    assert scene.says("ann", ACCEPT, 0) == NOT_YOURS
    scene.queue.dead_letters_copied(0, 0)
    assert scene.queue.start_offset == 1
    scene.queue.dead_letters_copied(0, 9)
    assert scene.queue.start_offset == 3
    assert scene.queue.dying_count == 0


def test_a_burial_touches_nobody_who_lives() -> None:
    scene = Scene(messages=4)
    scene.gets("ann", 2)
    scene.says("ann", REJECT, 1)
    scene.queue.dead_letters_copied(0, 3)
    assert [run.state for run in scene.queue.peek(0, 9)] == [State.LEASED, State.AVAILABLE]


def test_what_retention_deleted_needs_no_burial() -> None:
    scene = Scene(messages=6)
    scene.gets("ann", 6)
    scene.says("ann", REJECT, 0, 3)
    scene.queue.trimmed(scene.now_ms, 2)
    assert scene.queue.take_dead_letters() == [DeadLetter(2, 3, 1, REJECTED)]


def test_a_rejection_survives_a_restart_and_is_copied_by_the_next_leader() -> None:
    scene = Scene(messages=3)
    scene.gets("ann", 3)
    scene.says("ann", REJECT, 1, token="rejection")
    assert scene.saves() == ["rejection"]
    scene.crashes()
    assert scene.queue.take_dead_letters() == [DeadLetter(1, 1, 1, REJECTED)]
    scene.reads(3)
    assert scene.gets("ben", 9) == [0, 2]
    scene.queue.dead_letters_copied(1, 1)
    scene.saves()
    scene.crashes()
    assert scene.queue.take_dead_letters() == []


def test_what_is_buried_before_it_is_read_again_need_not_be_read() -> None:
    scene = Scene(messages=3)
    scene.gets("ann", 3)
    scene.says("ann", REJECT, 1)
    scene.saves()
    scene.crashes()
    scene.reads(1)
    assert scene.queue.next_offset == 1
    scene.queue.dead_letters_copied(1, 1)
    assert scene.queue.next_offset == 2


def test_what_had_its_last_delivery_when_the_leader_died_goes_to_the_dead_letters() -> None:
    """It may be the message that brought the leader down."""
    scene = Scene(messages=3, delivery_limit=1)
    scene.gets("ann", 2)
    scene.says("ann", ACCEPT, 0)
    scene.saves()
    scene.crashes()
    assert scene.queue.take_dead_letters() == [DeadLetter(1, 1, 1, LIMIT)]
    scene.reads(2)
    assert scene.gets("ben", 9) == [2]


def test_without_dead_letters_such_messages_are_dropped_at_a_restart() -> None:
    scene = Scene(messages=3)
    scene.gets("ann", 3)
    scene.says("ann", REJECT, 1)
    scene.saves()
    scene.crashes(dead_letters=False, delivery_limit=1)
    assert scene.queue.take_dead_letters() == []
    assert scene.queue.start_offset == scene.queue.next_offset == 3
