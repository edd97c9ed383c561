"""In strict order, no message is delivered behind one that failed or is not due. [9]"""

from typing import Any

import pytest

from penstock.queue.settings import RetryBackoffSettings
from penstock.queue.states import CHUNK_SIZE
from tests.queue.partition_harness import ACCEPT, REJECT, RELEASE, RENEW, TAKEN, PartitionHarness


def strict(messages: int = 6, **settings: Any) -> PartitionHarness:
    return PartitionHarness(messages, strict=True, **settings)


def test_a_member_with_first_deliveries_gets_the_messages_behind_them() -> None:
    harness = strict()
    assert harness.gets("ann", 2) == [0, 1]
    assert harness.gets("ann", 2) == [2, 3]
    harness.says("ann", ACCEPT, 1)
    assert harness.gets("ann", 9) == [4, 5]


def test_no_other_member_gets_messages_behind_a_lease() -> None:
    harness = strict()
    harness.gets("ann", 2)
    assert harness.gets("ben", 2) == []
    harness.says("ann", ACCEPT, 0, 1)
    assert harness.gets("ben", 2) == [2, 3]


@pytest.mark.parametrize("settings", [{}, {"retry_backoff": RetryBackoffSettings(first_ms=300)}])
def test_no_message_overtakes_one_that_waits_for_a_retry(settings: dict[str, Any]) -> None:
    harness = strict(**settings)
    harness.gets("ann", 2)
    harness.says("ann", RELEASE, 0, delay_ms=None if settings else 300)
    harness.says("ann", ACCEPT, 1)
    assert harness.gets("ann", 9) == []
    assert (harness.queue.available_count, harness.queue.waiting_count) == (0, 4)
    harness.passes(299)
    assert harness.gets("ann", 9) == []
    harness.passes(1)
    assert harness.queue.available_count == 1
    assert harness.gets("ann", 9) == [0]


def test_a_redelivered_message_is_leased_alone_until_it_is_done() -> None:
    harness = strict()
    harness.gets("ann", 1)
    harness.says("ann", RELEASE, 0)
    assert harness.gets("ann", 9) == [0]
    harness.says("ann", RENEW, 0)
    assert harness.gets("ann", 9) == []
    assert harness.says("ann", ACCEPT, 0) == TAKEN
    assert harness.gets("ann", 9) == [1, 2, 3, 4, 5]


def test_released_messages_go_to_the_next_consumer_one_by_one() -> None:
    harness = strict(lease_ms=1000)
    harness.gets("ann", 3)
    harness.queue.release_member(harness.now_ms, "ann")
    assert harness.gets("ben", 9) == [0]
    harness.passes(1000)
    for offset in range(3):
        assert harness.gets("cat", 9) == [offset]
        harness.says("cat", ACCEPT, offset)
    assert harness.gets("cat", 9) == [3, 4, 5]


def test_a_message_that_is_not_due_blocks_all_later_ones_and_no_earlier_one() -> None:
    harness = strict(0)
    harness.reads(4, deferred=[(1, harness.now_ms + 500)])
    assert harness.queue.available_count == 1
    assert harness.gets("ann", 9) == [0]
    assert harness.gets("ann", 9) == []
    harness.passes(500)
    assert harness.gets("ann", 9) == [1, 2, 3]


def test_an_expired_message_unblocks_later_ones() -> None:
    harness = strict(0)
    now_ms = harness.now_ms
    harness.reads(3, deferred=[(0, now_ms + 500)], expiring=[(0, now_ms + 100)])
    assert harness.gets("ann", 9) == []
    harness.passes(100)
    assert harness.gets("ann", 9) == [1, 2]


def test_all_messages_wait_until_a_dead_letter_is_copied() -> None:
    harness = strict()
    harness.gets("ann", 2)
    harness.says("ann", REJECT, 0)
    harness.says("ann", ACCEPT, 1)
    assert harness.gets("ann", 9) == []
    (letter,) = harness.queue.take_dead_letters()
    harness.queue.dead_letters_copied(letter.first, letter.last)
    assert harness.gets("ann", 9) == [2, 3, 4, 5]


def test_a_returned_message_does_not_count_as_redelivered() -> None:
    harness = strict()
    harness.gets("ann", 4)
    harness.queue.hand_back(harness.now_ms, "ann", 2, 3)
    assert harness.gets("ann", 9) == [2, 3, 4, 5]


def test_order_is_strict_across_the_border_of_two_chunks() -> None:
    harness = strict(4, start=CHUNK_SIZE - 2)
    first = CHUNK_SIZE - 2
    assert harness.queue.available_count == 4
    assert harness.gets("ann", 3) == [first, first + 1, first + 2]
    harness.says("ann", RELEASE, first + 1, delay_ms=300)
    harness.says("ann", ACCEPT, first)
    harness.says("ann", ACCEPT, first + 2)
    assert harness.gets("ann", 9) == []
    harness.passes(300)
    assert harness.gets("ann", 9) == [first + 1]


def test_strict_order_can_be_switched_on_and_off() -> None:
    harness = PartitionHarness(4)
    harness.gets("ann", 1)
    harness.queue.configure(strict(0).settings)
    assert harness.gets("ben", 9) == []
    harness.queue.configure(PartitionHarness().settings)
    assert harness.gets("ben", 9) == [1, 2, 3]
