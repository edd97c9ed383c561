"""In strict order, no message is delivered behind one that failed or is not due. [9]"""

from typing import Any

import pytest

from penstock.queue.settings import RetryBackoffSettings
from penstock.queue.states import CHUNK_SIZE
from tests.queue.scene import ACCEPT, REJECT, RELEASE, RENEW, TAKEN, Scene


def strict(messages: int = 6, **settings: Any) -> Scene:
    return Scene(messages, strict=True, **settings)


def test_whoever_has_messages_for_the_first_time_gets_more_behind_them() -> None:
    scene = strict()
    assert scene.gets("ann", 2) == [0, 1]
    assert scene.gets("ann", 2) == [2, 3]
    scene.says("ann", ACCEPT, 1)
    assert scene.gets("ann", 9) == [4, 5]


def test_nobody_else_gets_what_is_behind_them() -> None:
    scene = strict()
    scene.gets("ann", 2)
    assert scene.gets("ben", 2) == []
    scene.says("ann", ACCEPT, 0, 1)
    assert scene.gets("ben", 2) == [2, 3]


@pytest.mark.parametrize("settings", [{}, {"retry_backoff": RetryBackoffSettings(first_ms=300)}])
def test_nothing_overtakes_a_message_that_rests(settings: dict[str, Any]) -> None:
    scene = strict(**settings)
    scene.gets("ann", 2)
    scene.says("ann", RELEASE, 0, delay_ms=None if settings else 300)
    scene.says("ann", ACCEPT, 1)
    assert scene.gets("ann", 9) == []
    assert (scene.queue.available_count, scene.queue.waiting_count) == (0, 4)
    scene.passes(299)
    assert scene.gets("ann", 9) == []
    scene.passes(1)
    assert scene.queue.available_count == 1
    assert scene.gets("ann", 9) == [0]


def test_what_came_back_is_alone_in_hand_until_it_is_done() -> None:
    scene = strict()
    scene.gets("ann", 1)
    scene.says("ann", RELEASE, 0)
    assert scene.gets("ann", 9) == [0]
    scene.says("ann", RENEW, 0)
    assert scene.gets("ann", 9) == []
    assert scene.says("ann", ACCEPT, 0) == TAKEN
    assert scene.gets("ann", 9) == [1, 2, 3, 4, 5]


def test_what_a_consumer_left_behind_goes_to_the_next_one_by_one() -> None:
    scene = strict(lease_ms=1000)
    scene.gets("ann", 3)
    scene.queue.release_member(scene.now_ms, "ann")
    assert scene.gets("ben", 9) == [0]
    scene.passes(1000)
    for offset in range(3):
        assert scene.gets("cat", 9) == [offset]
        scene.says("cat", ACCEPT, offset)
    assert scene.gets("cat", 9) == [3, 4, 5]


def test_a_message_that_is_not_due_holds_up_all_behind_it_and_none_before() -> None:
    scene = strict(0)
    scene.reads(4, deferred=[(1, scene.now_ms + 500)])
    assert scene.queue.available_count == 1
    assert scene.gets("ann", 9) == [0]
    assert scene.gets("ann", 9) == []
    scene.passes(500)
    assert scene.gets("ann", 9) == [1, 2, 3]


def test_a_message_that_expires_lets_the_others_pass() -> None:
    scene = strict(0)
    now_ms = scene.now_ms
    scene.reads(3, deferred=[(0, now_ms + 500)], expiring=[(0, now_ms + 100)])
    assert scene.gets("ann", 9) == []
    scene.passes(100)
    assert scene.gets("ann", 9) == [1, 2]


def test_everything_waits_for_the_burial_of_the_dead() -> None:
    scene = strict()
    scene.gets("ann", 2)
    scene.says("ann", REJECT, 0)
    scene.says("ann", ACCEPT, 1)
    assert scene.gets("ann", 9) == []
    (letter,) = scene.queue.take_dead_letters()
    scene.queue.dead_letters_copied(letter.first, letter.last)
    assert scene.gets("ann", 9) == [2, 3, 4, 5]


def test_what_was_handed_back_unseen_has_not_come_back() -> None:
    scene = strict()
    scene.gets("ann", 4)
    scene.queue.hand_back(scene.now_ms, "ann", 2, 3)
    assert scene.gets("ann", 9) == [2, 3, 4, 5]


def test_order_is_strict_across_the_border_of_two_chunks() -> None:
    scene = strict(4, start=CHUNK_SIZE - 2)
    first = CHUNK_SIZE - 2
    assert scene.queue.available_count == 4
    assert scene.gets("ann", 3) == [first, first + 1, first + 2]
    scene.says("ann", RELEASE, first + 1, delay_ms=300)
    scene.says("ann", ACCEPT, first)
    scene.says("ann", ACCEPT, first + 2)
    assert scene.gets("ann", 9) == []
    scene.passes(300)
    assert scene.gets("ann", 9) == [first + 1]


def test_order_becomes_strict_and_free_again_under_way() -> None:
    scene = Scene(4)
    scene.gets("ann", 1)
    scene.queue.configure(strict(0).settings)
    assert scene.gets("ben", 9) == []
    scene.queue.configure(Scene().settings)
    assert scene.gets("ben", 9) == [1, 2, 3]
