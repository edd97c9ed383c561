"""Messages that are not due yet, that wait for a retry, and that expire. [4]"""

import sys

import pytest

from penstock.queue.deadlines import Deadlines
from penstock.queue.settings import MAX_DELAY_MS, RetryBackoffSettings
from penstock.queue.states import CHUNK_SIZE
from penstock.queue.timers import DUE, EXPIRES, MAX_TIME_MS, ChunkTimers, event
from tests.queue.partition_harness import ACCEPT, NOT_YOURS, RELEASE, RENEW, TAKEN, PartitionHarness


def test_a_deferred_message_is_handed_out_when_it_is_due_and_not_a_millisecond_before() -> None:
    harness = PartitionHarness()
    harness.reads(4, deferred=[(1, harness.now_ms + 700), (2, harness.now_ms + 300), (3, harness.now_ms)])
    assert harness.gets("ann", 9) == [0, 3]
    assert harness.queue.next_due_ms == harness.now_ms + 300
    harness.passes(299)
    assert harness.gets("ann", 9) == []
    harness.passes(1)
    assert harness.gets("ann", 9) == [2]
    harness.passes(399)
    assert harness.gets("ann", 9) == []
    harness.passes(1)
    assert harness.gets("ann", 9) == [1]


def test_a_deferred_message_is_deferred_again_by_the_log_after_a_restart() -> None:
    harness = PartitionHarness()
    due = [(1, harness.now_ms + 700)]
    harness.reads(3, deferred=due)
    harness.gets("ann", 3)
    harness.says("ann", ACCEPT, 0)
    harness.says("ann", ACCEPT, 2)
    harness.saves()
    harness.crashes()
    assert harness.queue.next_offset == 1
    harness.reads(1, deferred=due)
    assert harness.queue.next_offset == 3
    assert harness.gets("ann", 9) == []
    harness.passes(700)
    assert harness.gets("ann", 9) == [1]


def test_an_expired_message_is_not_handed_out() -> None:
    harness = PartitionHarness()
    harness.reads(4, expiring=[(0, harness.now_ms), (1, harness.now_ms + 5), (3, harness.now_ms + 500)])
    assert harness.queue.start_offset == 1
    harness.now_ms += 5
    assert harness.gets("ann", 1) == [2]
    assert harness.gets("ann", 1) == [3]


def test_a_leased_message_that_expires_can_be_accepted_but_is_not_redelivered() -> None:
    harness = PartitionHarness(lease_ms=1000)
    harness.reads(4, expiring=[(each, harness.now_ms + 500) for each in range(4)])
    harness.gets("ann", 4)
    harness.passes(500)
    assert harness.says("ann", ACCEPT, 0) == TAKEN
    harness.says("ann", RENEW, 1)
    harness.says("ann", RELEASE, 2)
    harness.passes(500)
    assert [run.first for run in harness.queue.peek(0, 9)] == [1]
    harness.queue.release_member(harness.now_ms, "ann")
    assert harness.queue.start_offset == 4
    assert harness.says("ann", ACCEPT, 3) == NOT_YOURS


def test_a_message_may_expire_before_it_is_due() -> None:
    harness = PartitionHarness()
    harness.reads(1, deferred=[(0, harness.now_ms + 500)], expiring=[(0, harness.now_ms + 500)])
    harness.passes(500)
    assert harness.gets("ann") == []
    assert harness.queue.start_offset == 1


def test_a_delayed_retry_waits_and_then_comes_first() -> None:
    harness = PartitionHarness(messages=5)
    harness.gets("ann", 3)
    harness.says("ann", RELEASE, 0, 1, delay_ms=250)
    assert harness.queue.deferred_count == 2
    assert harness.gets("ben") == [3]
    harness.passes(250)
    assert harness.gets("ben", 2) == [0, 1]


def test_without_a_delay_the_queue_s_backoff_grows_with_each_delivery() -> None:
    backoff = RetryBackoffSettings(first_ms=100, factor=3, max_ms=800)
    harness = PartitionHarness(messages=1, delivery_limit=0, retry_backoff=backoff)
    for rest_ms in (100, 300, 800, 800):
        assert harness.gets("ann") == [0]
        harness.says("ann", RELEASE, 0)
        harness.passes(rest_ms - 1)
        assert harness.gets("ann") == []
        harness.passes(1)
    assert harness.gets("ann") == [0]
    harness.says("ann", RELEASE, 0, delay_ms=0)
    assert harness.gets("ann") == [0]


def test_backoff_applies_to_releases_and_not_to_disconnects() -> None:
    harness = PartitionHarness(messages=1, lease_ms=1000, retry_backoff=RetryBackoffSettings(first_ms=5000))
    harness.gets("ann")
    harness.passes(1000)
    assert harness.gets("ben") == [0]
    harness.queue.release_member(harness.now_ms, "ben")
    assert harness.gets("ann") == [0]


def test_a_delay_is_limited_to_a_year_and_to_its_field() -> None:
    harness = PartitionHarness(messages=1)
    harness.gets("ann")
    harness.says("ann", RELEASE, 0, delay_ms=2**62)
    assert harness.queue.next_due_ms == harness.now_ms + MAX_DELAY_MS
    harness.reads(1, deferred=[(1, 2**62)])
    harness.passes(MAX_DELAY_MS)
    assert harness.gets("ann", 2) == [0]
    harness.says("ann", ACCEPT, 0)
    assert harness.queue.next_due_ms == MAX_TIME_MS


def test_a_million_deferred_messages_take_little_memory_and_none_is_lost() -> None:
    harness = PartitionHarness()
    day_ms = 24 * 3600 * 1000
    for first in range(0, 1_000_000, 50_000):
        due = [
            (offset, harness.now_ms + 1 + offset * 7919 % day_ms) for offset in range(first, first + 50_000)
        ]
        harness.reads(50_000, deferred=due)
    assert harness.queue.deferred_count == 1_000_000
    chunks = list(harness.queue._table.chunks.values())
    held = sum(sys.getsizeof(part) for chunk in chunks for part in (chunk.state, chunk.deliveries))
    held += sum(sys.getsizeof(chunk.timers._events) for chunk in chunks if chunk.timers is not None)
    assert held < 14_000_000
    assert all(chunk.owners is None and chunk.keys is None for chunk in chunks)
    assert len(harness.queue._table.due._heap) <= 64 + 2 * len(chunks)
    came_early = sum(offset * 7919 % day_ms < day_ms // 2 for offset in range(1_000_000))
    harness.passes(day_ms // 2)
    assert harness.queue.available_count == came_early
    harness.passes(day_ms)
    assert harness.queue.available_count == 1_000_000
    assert harness.queue.next_due_ms is None
    assert all(chunk.timers is None for chunk in chunks)


def test_expiry_of_a_range_does_not_revoke_leased_messages() -> None:
    harness = PartitionHarness()
    harness.reads(
        9, expiring=[(each, harness.now_ms + 50) for each in range(9)], deferred=[(7, harness.now_ms + 9)]
    )
    harness.gets("ann", 4)
    harness.says("ann", ACCEPT, 1)
    harness.passes(50)
    assert [(run.first, run.last) for run in harness.queue.peek(0, 9)] == [(0, 0), (2, 3)]
    harness.queue.release_member(harness.now_ms, "ann")
    assert harness.queue.start_offset == 9
    harness.check_counters()


def test_an_agenda_takes_events_in_any_order_and_returns_due_ones_as_ranges() -> None:
    timers = ChunkTimers()
    timers.add([event(50, DUE, 4095), event(20, DUE, 7)])
    timers.add([event(20, EXPIRES, 9)])
    timers.add([event(60, DUE, 1), event(60, DUE, 2)])
    timers.add([event(10, DUE, 3), event(55, DUE, 5)])
    assert timers.next_ms == 10
    assert timers.take_due(49) == ([(9, 10)], [(3, 4), (7, 8)])
    assert timers.take_due(49) == ([], [])
    assert timers.take_due(60) == ([], [(1, 3), (5, 6), (4095, 4096)])
    assert timers.next_ms is None


@pytest.mark.parametrize("moves", [1, 1000])
def test_moved_and_removed_deadlines_leave_nothing_behind(moves: int) -> None:
    deadlines = Deadlines()
    for at_ms in range(moves, 0, -1):
        deadlines.set(1, at_ms)
        deadlines.set(2, at_ms + 5)
    deadlines.drop(2)
    assert deadlines.next_ms == 1
    assert len(deadlines) == 1
    assert len(deadlines._heap) < 100
    assert deadlines.pop_due(0) is None
    assert deadlines.pop_due(1) == 1
    assert deadlines.next_ms is None


def test_scheduled_messages_are_listed_by_due_time_across_chunks_up_to_the_limit() -> None:
    harness = PartitionHarness()
    now_ms = harness.now_ms
    late = [(offset, now_ms + 900_000 - offset) for offset in range(0, 3 * CHUNK_SIZE, 1000)]
    harness.reads(3 * CHUNK_SIZE, deferred=late, expiring=[(5, now_ms + 10)])
    soonest = [(due_ms, offset) for offset, due_ms in reversed(late)]
    assert harness.queue.scheduled() == soonest
    assert harness.queue.scheduled(2) == soonest[:2]
    assert harness.queue.deferred_count == len(soonest)


def test_due_done_and_expired_messages_are_not_scheduled_and_delayed_retries_are() -> None:
    harness = PartitionHarness()
    now_ms = harness.now_ms
    harness.reads(
        4,
        deferred=[(0, now_ms + 50), (1, now_ms + 500), (2, now_ms + 600)],
        expiring=[(1, now_ms + 100)],
    )
    assert harness.queue.scheduled() == [(now_ms + 50, 0), (now_ms + 500, 1), (now_ms + 600, 2)]
    harness.passes(50)
    assert harness.queue.scheduled() == [(now_ms + 500, 1), (now_ms + 600, 2)]
    harness.passes(50)
    assert harness.queue.scheduled() == [(now_ms + 600, 2)]
    assert harness.gets("ann", 9) == [0, 3]
    harness.says("ann", RELEASE, 3, delay_ms=200)
    assert harness.queue.scheduled() == [(now_ms + 300, 3), (now_ms + 600, 2)]
    harness.queue.trimmed(harness.now_ms, 3)
    assert harness.queue.scheduled() == [(now_ms + 300, 3)]
