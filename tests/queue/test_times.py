"""Messages that are not due yet, that wait for a retry, and that expire. [4]"""

import sys

import pytest

from penstock.queue import RetryBackoffSettings
from penstock.queue.deadlines import Deadlines
from penstock.queue.settings import MAX_DELAY_MS
from penstock.queue.states import CHUNK_SIZE
from penstock.queue.timers import DUE, EXPIRES, MAX_TIME_MS, ChunkTimers, event
from tests.queue.scene import ACCEPT, NOT_YOURS, RELEASE, RENEW, TAKEN, Scene


def test_a_deferred_message_is_handed_out_when_it_is_due_and_not_a_millisecond_before() -> None:
    scene = Scene()
    scene.reads(4, deferred=[(1, scene.now_ms + 700), (2, scene.now_ms + 300), (3, scene.now_ms)])
    assert scene.gets("ann", 9) == [0, 3]
    assert scene.queue.next_due_ms == scene.now_ms + 300
    scene.passes(299)
    assert scene.gets("ann", 9) == []
    scene.passes(1)
    assert scene.gets("ann", 9) == [2]
    scene.passes(399)
    assert scene.gets("ann", 9) == []
    scene.passes(1)
    assert scene.gets("ann", 9) == [1]


def test_a_deferred_message_is_deferred_again_by_the_log_after_a_restart() -> None:
    scene = Scene()
    due = [(1, scene.now_ms + 700)]
    scene.reads(3, deferred=due)
    scene.gets("ann", 3)
    scene.says("ann", ACCEPT, 0)
    scene.says("ann", ACCEPT, 2)
    scene.saves()
    scene.crashes()
    assert scene.queue.next_offset == 1
    scene.reads(1, deferred=due)
    assert scene.queue.next_offset == 3
    assert scene.gets("ann", 9) == []
    scene.passes(700)
    assert scene.gets("ann", 9) == [1]


def test_an_expired_message_is_not_handed_out() -> None:
    scene = Scene()
    scene.reads(4, expiring=[(0, scene.now_ms), (1, scene.now_ms + 5), (3, scene.now_ms + 500)])
    assert scene.queue.start_offset == 1
    scene.now_ms += 5
    assert scene.gets("ann", 1) == [2]
    assert scene.gets("ann", 1) == [3]


def test_a_message_that_expires_in_somebody_s_hands_can_be_finished_but_does_not_come_back() -> None:
    scene = Scene(lease_ms=1000)
    scene.reads(4, expiring=[(each, scene.now_ms + 500) for each in range(4)])
    scene.gets("ann", 4)
    scene.passes(500)
    assert scene.says("ann", ACCEPT, 0) == TAKEN
    scene.says("ann", RENEW, 1)
    scene.says("ann", RELEASE, 2)
    scene.passes(500)
    assert [run.first for run in scene.queue.peek(0, 9)] == [1]
    scene.queue.release_member(scene.now_ms, "ann")
    assert scene.queue.start_offset == 4
    assert scene.says("ann", ACCEPT, 3) == NOT_YOURS


def test_a_message_may_expire_before_it_is_due() -> None:
    scene = Scene()
    scene.reads(1, deferred=[(0, scene.now_ms + 500)], expiring=[(0, scene.now_ms + 500)])
    scene.passes(500)
    assert scene.gets("ann") == []
    assert scene.queue.start_offset == 1


def test_a_retry_with_delay_rests_and_then_comes_first() -> None:
    scene = Scene(messages=5)
    scene.gets("ann", 3)
    scene.says("ann", RELEASE, 0, 1, delay_ms=250)
    assert scene.queue.deferred_count == 2
    assert scene.gets("ben") == [3]
    scene.passes(250)
    assert scene.gets("ben", 2) == [0, 1]


def test_without_a_delay_the_queue_s_backoff_grows_with_each_delivery() -> None:
    backoff = RetryBackoffSettings(first_ms=100, factor=3, max_ms=800)
    scene = Scene(messages=1, delivery_limit=0, retry_backoff=backoff)
    for rest_ms in (100, 300, 800, 800):
        assert scene.gets("ann") == [0]
        scene.says("ann", RELEASE, 0)
        scene.passes(rest_ms - 1)
        assert scene.gets("ann") == []
        scene.passes(1)
    assert scene.gets("ann") == [0]
    scene.says("ann", RELEASE, 0, delay_ms=0)
    assert scene.gets("ann") == [0]


def test_backoff_is_for_who_releases_and_not_for_who_disappears() -> None:
    scene = Scene(messages=1, lease_ms=1000, retry_backoff=RetryBackoffSettings(first_ms=5000))
    scene.gets("ann")
    scene.passes(1000)
    assert scene.gets("ben") == [0]
    scene.queue.release_member(scene.now_ms, "ben")
    assert scene.gets("ann") == [0]


def test_no_delay_is_longer_than_a_year_or_too_long_for_its_place() -> None:
    scene = Scene(messages=1)
    scene.gets("ann")
    scene.says("ann", RELEASE, 0, delay_ms=2**62)
    assert scene.queue.next_due_ms == scene.now_ms + MAX_DELAY_MS
    scene.reads(1, deferred=[(1, 2**62)])
    scene.passes(MAX_DELAY_MS)
    assert scene.gets("ann", 2) == [0]
    scene.says("ann", ACCEPT, 0)
    assert scene.queue.next_due_ms == MAX_TIME_MS


def test_a_million_deferred_messages_take_little_memory_and_none_is_lost() -> None:
    scene = Scene()
    day_ms = 24 * 3600 * 1000
    for first in range(0, 1_000_000, 50_000):
        due = [(offset, scene.now_ms + 1 + offset * 7919 % day_ms) for offset in range(first, first + 50_000)]
        scene.reads(50_000, deferred=due)
    assert scene.queue.deferred_count == 1_000_000
    chunks = list(scene.queue._table.chunks.values())
    held = sum(sys.getsizeof(part) for chunk in chunks for part in (chunk.state, chunk.deliveries))
    held += sum(sys.getsizeof(chunk.timers._events) for chunk in chunks if chunk.timers is not None)
    assert held < 14_000_000
    assert all(chunk.owners is None and chunk.keys is None for chunk in chunks)
    assert len(scene.queue._table.due._heap) <= 64 + 2 * len(chunks)
    came_early = sum(offset * 7919 % day_ms < day_ms // 2 for offset in range(1_000_000))
    scene.passes(day_ms // 2)
    assert scene.queue.available_count == came_early
    scene.passes(day_ms)
    assert scene.queue.available_count == 1_000_000
    assert scene.queue.next_due_ms is None
    assert all(chunk.timers is None for chunk in chunks)


def test_expiry_of_a_range_leaves_to_a_member_what_it_holds() -> None:
    scene = Scene()
    scene.reads(
        9, expiring=[(each, scene.now_ms + 50) for each in range(9)], deferred=[(7, scene.now_ms + 9)]
    )
    scene.gets("ann", 4)
    scene.says("ann", ACCEPT, 1)
    scene.passes(50)
    assert [(run.first, run.last) for run in scene.queue.peek(0, 9)] == [(0, 0), (2, 3)]
    scene.queue.release_member(scene.now_ms, "ann")
    assert scene.queue.start_offset == 9
    scene.check_counters()


def test_an_agenda_takes_events_in_any_order_and_gives_what_has_come_in_ranges() -> None:
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
def test_deadlines_that_move_and_go_leave_nothing_behind(moves: int) -> None:
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


def test_what_is_scheduled_is_told_soonest_first_across_chunks_and_no_more_than_asked_for() -> None:
    scene = Scene()
    now_ms = scene.now_ms
    late = [(offset, now_ms + 900_000 - offset) for offset in range(0, 3 * CHUNK_SIZE, 1000)]
    scene.reads(3 * CHUNK_SIZE, deferred=late, expiring=[(5, now_ms + 10)])
    soonest = [(due_ms, offset) for offset, due_ms in reversed(late)]
    assert scene.queue.scheduled() == soonest
    assert scene.queue.scheduled(2) == soonest[:2]
    assert scene.queue.deferred_count == len(soonest)


def test_what_is_due_done_or_expired_is_not_scheduled_and_what_rests_is() -> None:
    scene = Scene()
    now_ms = scene.now_ms
    scene.reads(
        4,
        deferred=[(0, now_ms + 50), (1, now_ms + 500), (2, now_ms + 600)],
        expiring=[(1, now_ms + 100)],
    )
    assert scene.queue.scheduled() == [(now_ms + 50, 0), (now_ms + 500, 1), (now_ms + 600, 2)]
    scene.passes(50)
    assert scene.queue.scheduled() == [(now_ms + 500, 1), (now_ms + 600, 2)]
    scene.passes(50)
    assert scene.queue.scheduled() == [(now_ms + 600, 2)]
    assert scene.gets("ann", 9) == [0, 3]
    scene.says("ann", RELEASE, 3, delay_ms=200)
    assert scene.queue.scheduled() == [(now_ms + 300, 3), (now_ms + 600, 2)]
    scene.queue.trimmed(scene.now_ms, 3)
    assert scene.queue.scheduled() == [(now_ms + 300, 3)]
