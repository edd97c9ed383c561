"""Which member gets which messages, for how long, and the effects of acknowledgements. Numbers are the invariants of
queue/partition.py."""

import pytest

from penstock.errors import ConfigError, ErrorCode
from penstock.queue import AckResult, Acquired, QueueSettings, RetryBackoffSettings, Run, ScanResult, State
from penstock.queue.states import CHUNK_SIZE
from tests.queue.scene import ACCEPT, NOT_YOURS, REJECT, RELEASE, RENEW, TAKEN, Scene


def test_messages_go_out_in_order_and_to_one_member_each() -> None:
    """[2, 8]"""
    scene = Scene(messages=6)
    assert scene.gets("ann", 2) == [0, 1]
    assert scene.gets("ben", 3) == [2, 3, 4]
    assert scene.gets("ann", 9) == [5]
    assert scene.gets("ben", 9) == []


def test_a_range_across_the_border_of_two_chunks_is_one_range() -> None:
    scene = Scene(messages=100, start=CHUNK_SIZE - 50)
    assert scene.queue.acquire(scene.now_ms, "ann", 100) == [Acquired(CHUNK_SIZE - 50, CHUNK_SIZE + 49, 1)]
    assert scene.says("ann", ACCEPT, CHUNK_SIZE - 50, CHUNK_SIZE + 49) == TAKEN
    assert scene.queue.start_offset == CHUNK_SIZE + 50


def test_what_is_released_comes_back_before_what_was_never_delivered() -> None:
    """[8]"""
    scene = Scene(messages=4)
    scene.gets("ann", 2)
    scene.says("ann", RELEASE, 1)
    assert scene.queue.acquire(scene.now_ms, "ben", 2) == [Acquired(1, 1, 2), Acquired(2, 2, 1)]


def test_a_lease_that_runs_out_gives_everything_back_that_is_not_settled() -> None:
    scene = Scene(messages=5, lease_ms=1000)
    scene.gets("ann", 5)
    scene.says("ann", ACCEPT, 2)
    assert scene.queue.next_due_ms == scene.now_ms + 1000
    scene.passes(999)
    assert scene.gets("ben", 5) == []
    scene.passes(1)
    assert scene.gets("ben", 5) == [0, 1, 3, 4]


def test_who_lost_its_lease_is_told_so_even_if_nobody_ticked() -> None:
    scene = Scene(messages=2, lease_ms=1000)
    scene.gets("ann", 2)
    scene.now_ms += 1000
    assert scene.says("ann", ACCEPT, 0, 1) == NOT_YOURS
    assert scene.gets("ben", 2) == [0, 1]
    assert scene.says("ann", ACCEPT, 0, 1) == NOT_YOURS


def test_an_acknowledgement_is_taken_as_a_whole_or_not_at_all() -> None:
    scene = Scene(messages=6)
    scene.gets("ann", 3)
    scene.gets("ben", 1)
    scene.gets("ann", 2)
    assert scene.says("ann", ACCEPT, 0, 4) == NOT_YOURS
    assert scene.queue.leased_count == 6
    assert scene.says("ben", ACCEPT, 3) == TAKEN
    assert scene.says("ann", ACCEPT, 1, 3) == NOT_YOURS
    assert scene.says("ann", ACCEPT, 4, 6) == NOT_YOURS


def test_an_acknowledgement_may_span_several_leases_of_one_member() -> None:
    scene = Scene(messages=6)
    for _ in range(3):
        scene.gets("ann", 2)
    assert scene.says("ann", ACCEPT, 1, 4) == TAKEN
    assert scene.queue.leased_count == 2
    assert scene.queue.start_offset == 0
    assert scene.says("ann", ACCEPT, 0) == TAKEN
    assert scene.queue.start_offset == 5


def test_each_offset_of_a_range_may_have_its_own_kind() -> None:
    scene = Scene(messages=6)
    scene.gets("ann", 6)
    assert scene.says("ann", bytes((1, 2, 3, 4, 0, 1)), 0, 5) == TAKEN
    states = {run.first: run.state for run in scene.queue.peek(0, 9)}
    assert states == {1: State.AVAILABLE, 2: State.REJECTED, 3: State.LEASED}


@pytest.mark.parametrize(
    ("kinds", "first", "last"), [(b"", 0, 0), (b"\5", 0, 0), (b"\1\1", 0, 2), (b"\1", 1, 0)]
)
def test_an_acknowledgement_that_makes_no_sense_is_refused(kinds: bytes, first: int, last: int) -> None:
    scene = Scene(messages=3)
    scene.gets("ann", 3)
    assert scene.says("ann", kinds, first, last) == AckResult(ErrorCode.INVALID_REQUEST, False)
    assert scene.queue.leased_count == 3


def test_a_range_without_end_costs_no_more_than_its_first_chunk() -> None:
    scene = Scene(messages=3)
    scene.gets("ann", 3)
    assert scene.says("ann", ACCEPT, 0, 2**63 - 1) == NOT_YOURS
    assert scene.says("ann", ACCEPT, 2**62, 2**63 - 1) == NOT_YOURS


def test_a_renewed_lease_runs_from_now_and_needs_no_write() -> None:
    scene = Scene(messages=2, lease_ms=1000)
    scene.gets("ann", 2)
    scene.saves()
    scene.passes(900)
    assert scene.says("ann", RENEW, 0, 1, token="renewal") == AckResult(ErrorCode.NONE, False)
    assert scene.saves() == []
    scene.passes(999)
    assert scene.gets("ben", 2) == []
    scene.passes(1)
    assert scene.gets("ben", 2) == [0, 1]


def test_a_part_of_a_lease_can_be_renewed() -> None:
    scene = Scene(messages=6, lease_ms=1000)
    scene.gets("ann", 3)
    scene.gets("ann", 3)
    scene.passes(500)
    scene.says("ann", RENEW, 2, 4)
    scene.passes(500)
    assert scene.gets("ben", 6) == [0, 1, 5]
    assert scene.says("ann", RENEW, 2, 4) == AckResult(ErrorCode.NONE, False)
    scene.passes(999)
    assert scene.says("ann", ACCEPT, 2, 4) == TAKEN
    assert scene.queue.describe().leases == 1


def test_who_disconnects_gives_everything_back_at_once() -> None:
    scene = Scene(messages=6)
    scene.gets("ann", 2)
    scene.gets("ben", 2)
    scene.gets("ann", 2)
    scene.queue.release_member(scene.now_ms, "ann")
    acquired = scene.queue.acquire(scene.now_ms, "cat", 9)
    assert acquired == [Acquired(0, 1, 2), Acquired(4, 5, 2)]
    assert scene.says("ann", ACCEPT, 0, 1) == NOT_YOURS
    assert scene.queue.describe().members == 2


def test_what_could_not_be_sent_counts_as_never_handed_out() -> None:
    scene = Scene(messages=9, delivery_limit=1)
    scene.gets("ann", 9)
    scene.queue.hand_back(scene.now_ms, "ann", 4, 8)
    assert scene.queue.acquire(scene.now_ms, "ben", 9) == [Acquired(4, 8, 1)]
    assert scene.queue.take_dead_letters() == []


def test_the_number_of_leased_messages_is_limited() -> None:
    scene = Scene(messages=50, max_leased=30)
    assert len(scene.gets("ann", 100)) == 30
    assert scene.gets("ben", 1) == []
    assert not scene.queue.wants_more(100)
    scene.says("ann", ACCEPT, 10, 14)
    assert len(scene.gets("ben", 100)) == 5


def test_a_hundred_thousand_messages_can_be_under_way_at_once() -> None:
    scene = Scene(messages=100_000)
    for number in range(1000):
        assert len(scene.gets(f"member-{number}", 100)) == 100
    assert scene.queue.leased_count == 100_000
    for number in range(0, 1000, 2):
        assert scene.says(f"member-{number}", ACCEPT, number * 100, number * 100 + 99) == TAKEN
    for number in range(1, 1000, 2):
        scene.queue.release_member(scene.now_ms, f"member-{number}")
    scene.check_counters()
    assert scene.queue.available_count == 50_000
    assert scene.queue.describe().leases == 0


def test_slots_of_leases_are_used_again() -> None:
    """Or four billion requests would be the end of a queue."""
    scene = Scene(messages=1000)
    for offset in range(1000):
        scene.gets("ann")
        scene.says("ann", ACCEPT, offset)
    assert len(scene.queue._leases._slots) == 1
    assert len(scene.queue._leases._deadlines._heap) < 200


def test_a_queue_that_keeps_up_keeps_one_chunk_however_far_it_gets() -> None:
    scene = Scene()
    for _ in range(100):
        scene.reads(1000)
        offsets = scene.gets("ann", 1000)
        scene.says("ann", ACCEPT, offsets[0], offsets[-1])
        scene.saves()
        assert scene.queue.describe().chunks <= 1
    assert scene.queue.start_offset == 100_000
    assert len(scene.stored) == 1


def test_reading_stops_when_enough_is_available_or_too_much_is_stuck() -> None:
    scene = Scene(max_chunks=3)
    assert scene.queue.wants_more(10)
    scene.reads(10)
    assert not scene.queue.wants_more(10)
    assert scene.queue.wants_more(11)
    for count in (4086, 4096, 1):
        scene.gets("ann", 4096)
        assert scene.queue.wants_more(1)
        scene.reads(count)
    assert not scene.queue.wants_more(100_000)
    scene.says("ann", ACCEPT, 10, 4095)
    assert not scene.queue.wants_more(100_000)
    scene.says("ann", ACCEPT, 0, 9)
    assert scene.queue.wants_more(100_000)


def test_gaps_are_done_and_one_that_is_huge_costs_nothing() -> None:
    scene = Scene()
    scene.reads(10, gaps=[(0, 2), (5, 5), (8, 9)])
    assert scene.queue.start_offset == 3
    assert scene.gets("ann", 9) == [3, 4, 6, 7]
    scene.queue.extend(scene.now_ms, 10**15 + 5, ScanResult(gaps=[(10, 10**15)]))
    assert scene.queue.describe().chunks == 2
    assert scene.gets("ann", 9) == [10**15 + each for each in (1, 2, 3, 4)]
    scene.says("ann", ACCEPT, 3, 4)
    scene.says("ann", ACCEPT, 6, 7)
    assert scene.queue.start_offset == 10**15 + 1


def test_what_retention_deletes_is_done_in_whosever_hands_it_is() -> None:
    """[3]"""
    scene = Scene(messages=10)
    scene.gets("ann", 4)
    scene.queue.trimmed(scene.now_ms, 6)
    assert scene.says("ann", ACCEPT, 0, 3) == NOT_YOURS
    assert scene.queue.describe().leases == 0
    assert scene.gets("ben", 9) == [6, 7, 8, 9]
    scene.queue.trimmed(scene.now_ms, 5)
    assert scene.queue.start_offset == 6
    scene.queue.trimmed(scene.now_ms, 10**15)
    assert scene.queue.start_offset == scene.queue.next_offset == 10**15
    scene.reads(2)
    assert scene.gets("ben", 9) == [10**15, 10**15 + 1]
    scene.check_counters()


def test_what_people_are_shown_says_who_has_what_until_when() -> None:
    scene = Scene(messages=9, lease_ms=1000)
    scene.gets("ann", 2)
    scene.passes(10)
    scene.gets("ben", 2)
    scene.says("ben", ACCEPT, 2)
    until_ms = scene.now_ms + 1000
    assert scene.queue.peek(0, 6) == [
        Run(0, 1, State.LEASED, 1, "ann", until_ms - 10),
        Run(3, 3, State.LEASED, 1, "ben", until_ms),
        Run(4, 6, State.AVAILABLE),
    ]
    assert scene.queue.peek(0, 6, max_runs=1) == [Run(0, 1, State.LEASED, 1, "ann", until_ms - 10)]
    assert scene.queue.peek(7, 3) == scene.queue.peek(9, 99) == []


def test_settings_change_for_what_comes_then() -> None:
    scene = Scene(messages=2, lease_ms=1000)
    scene.gets("ann")
    scene.queue.configure(QueueSettings(lease_ms=5000, delivery_limit=1))
    scene.gets("ann")
    scene.passes(1000)
    assert [letter.first for letter in scene.queue.take_dead_letters()] == [0]
    assert scene.queue.next_due_ms == scene.now_ms + 4000
    with pytest.raises(ValueError, match="key order"):
        scene.queue.configure(QueueSettings(key_ordered=True))


@pytest.mark.parametrize(
    "wrong",
    [
        QueueSettings(lease_ms=0),
        QueueSettings(delivery_limit=256),
        QueueSettings(delivery_limit=-1),
        QueueSettings(max_leased=0),
        QueueSettings(retry_backoff=RetryBackoffSettings(first_ms=0)),
        QueueSettings(retry_backoff=RetryBackoffSettings(first_ms=9, max_ms=8)),
        QueueSettings(retry_backoff=RetryBackoffSettings(first_ms=9, factor=0.5)),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: QueueSettings) -> None:
    with pytest.raises(ConfigError):
        wrong.validate()


def test_reading_backwards_is_the_caller_s_mistake() -> None:
    scene = Scene(messages=5)
    with pytest.raises(ValueError, match="before 5"):
        scene.queue.extend(scene.now_ms, 4)


def test_a_delivery_count_stops_at_what_a_byte_holds() -> None:
    scene = Scene(messages=1, delivery_limit=0)
    for _ in range(300):
        acquired = scene.queue.acquire(scene.now_ms, "ann", 1)
        scene.says("ann", RELEASE, 0)
    assert acquired == [Acquired(0, 0, 255)]


def test_rejecting_without_dead_letters_is_the_end_of_it() -> None:
    scene = Scene(messages=2, dead_letters=False)
    scene.gets("ann", 2)
    scene.says("ann", REJECT, 0, 1)
    assert scene.queue.take_dead_letters() == []
    assert scene.queue.start_offset == 2
