"""Which member gets which messages, for how long, and the effects of acknowledgements. Numbers are the invariants of
queue/partition.py."""

import pytest

from penstock.errors import ConfigError, ErrorCode
from penstock.queue.settings import QueueSettings, RetryBackoffSettings
from penstock.queue.states import CHUNK_SIZE, State
from penstock.queue.values import AckResult, Acquired, Run, ScanResult
from tests.queue.partition_harness import ACCEPT, NOT_YOURS, REJECT, RELEASE, RENEW, TAKEN, PartitionHarness


def test_messages_go_out_in_order_and_to_one_member_each() -> None:
    """[2, 8]"""
    harness = PartitionHarness(messages=6)
    assert harness.gets("ann", 2) == [0, 1]
    assert harness.gets("ben", 3) == [2, 3, 4]
    assert harness.gets("ann", 9) == [5]
    assert harness.gets("ben", 9) == []


def test_a_range_across_the_border_of_two_chunks_is_one_range() -> None:
    harness = PartitionHarness(messages=100, start=CHUNK_SIZE - 50)
    assert harness.queue.acquire(harness.now_ms, "ann", 100) == [
        Acquired(CHUNK_SIZE - 50, CHUNK_SIZE + 49, 1)
    ]
    assert harness.says("ann", ACCEPT, CHUNK_SIZE - 50, CHUNK_SIZE + 49) == TAKEN
    assert harness.queue.start_offset == CHUNK_SIZE + 50


def test_released_messages_come_before_undelivered_ones() -> None:
    """[8]"""
    harness = PartitionHarness(messages=4)
    harness.gets("ann", 2)
    harness.says("ann", RELEASE, 1)
    assert harness.queue.acquire(harness.now_ms, "ben", 2) == [Acquired(1, 1, 2), Acquired(2, 2, 1)]


def test_an_expired_lease_releases_all_unsettled_messages() -> None:
    harness = PartitionHarness(messages=5, lease_ms=1000)
    harness.gets("ann", 5)
    harness.says("ann", ACCEPT, 2)
    assert harness.queue.next_due_ms == harness.now_ms + 1000
    harness.passes(999)
    assert harness.gets("ben", 5) == []
    harness.passes(1)
    assert harness.gets("ben", 5) == [0, 1, 3, 4]


def test_an_expired_lease_is_refused_even_before_the_next_tick() -> None:
    harness = PartitionHarness(messages=2, lease_ms=1000)
    harness.gets("ann", 2)
    harness.now_ms += 1000
    assert harness.says("ann", ACCEPT, 0, 1) == NOT_YOURS
    assert harness.gets("ben", 2) == [0, 1]
    assert harness.says("ann", ACCEPT, 0, 1) == NOT_YOURS


def test_an_acknowledgement_is_accepted_as_a_whole_or_not_at_all() -> None:
    harness = PartitionHarness(messages=6)
    harness.gets("ann", 3)
    harness.gets("ben", 1)
    harness.gets("ann", 2)
    assert harness.says("ann", ACCEPT, 0, 4) == NOT_YOURS
    assert harness.queue.leased_count == 6
    assert harness.says("ben", ACCEPT, 3) == TAKEN
    assert harness.says("ann", ACCEPT, 1, 3) == NOT_YOURS
    assert harness.says("ann", ACCEPT, 4, 6) == NOT_YOURS


def test_an_acknowledgement_may_span_several_leases_of_one_member() -> None:
    harness = PartitionHarness(messages=6)
    for _ in range(3):
        harness.gets("ann", 2)
    assert harness.says("ann", ACCEPT, 1, 4) == TAKEN
    assert harness.queue.leased_count == 2
    assert harness.queue.start_offset == 0
    assert harness.says("ann", ACCEPT, 0) == TAKEN
    assert harness.queue.start_offset == 5


def test_each_offset_of_a_range_may_have_its_own_kind() -> None:
    harness = PartitionHarness(messages=6)
    harness.gets("ann", 6)
    assert harness.says("ann", bytes((1, 2, 3, 4, 0, 1)), 0, 5) == TAKEN
    states = {run.first: run.state for run in harness.queue.peek(0, 9)}
    assert states == {1: State.AVAILABLE, 2: State.REJECTED, 3: State.LEASED}


@pytest.mark.parametrize(
    ("kinds", "first", "last"), [(b"", 0, 0), (b"\5", 0, 0), (b"\1\1", 0, 2), (b"\1", 1, 0)]
)
def test_an_invalid_acknowledgement_is_refused(kinds: bytes, first: int, last: int) -> None:
    harness = PartitionHarness(messages=3)
    harness.gets("ann", 3)
    assert harness.says("ann", kinds, first, last) == AckResult(ErrorCode.INVALID_REQUEST, False)
    assert harness.queue.leased_count == 3


def test_a_huge_range_costs_no_more_than_its_first_chunk() -> None:
    harness = PartitionHarness(messages=3)
    harness.gets("ann", 3)
    assert harness.says("ann", ACCEPT, 0, 2**63 - 1) == NOT_YOURS
    assert harness.says("ann", ACCEPT, 2**62, 2**63 - 1) == NOT_YOURS


def test_a_renewed_lease_runs_from_now_and_needs_no_write() -> None:
    harness = PartitionHarness(messages=2, lease_ms=1000)
    harness.gets("ann", 2)
    harness.saves()
    harness.passes(900)
    assert harness.says("ann", RENEW, 0, 1, token="renewal") == AckResult(ErrorCode.NONE, False)
    assert harness.saves() == []
    harness.passes(999)
    assert harness.gets("ben", 2) == []
    harness.passes(1)
    assert harness.gets("ben", 2) == [0, 1]


def test_a_part_of_a_lease_can_be_renewed() -> None:
    harness = PartitionHarness(messages=6, lease_ms=1000)
    harness.gets("ann", 3)
    harness.gets("ann", 3)
    harness.passes(500)
    harness.says("ann", RENEW, 2, 4)
    harness.passes(500)
    assert harness.gets("ben", 6) == [0, 1, 5]
    assert harness.says("ann", RENEW, 2, 4) == AckResult(ErrorCode.NONE, False)
    harness.passes(999)
    assert harness.says("ann", ACCEPT, 2, 4) == TAKEN
    assert harness.queue.describe().leases == 1


def test_a_disconnect_releases_all_messages_at_once() -> None:
    harness = PartitionHarness(messages=6)
    harness.gets("ann", 2)
    harness.gets("ben", 2)
    harness.gets("ann", 2)
    harness.queue.release_member(harness.now_ms, "ann")
    acquired = harness.queue.acquire(harness.now_ms, "cat", 9)
    assert acquired == [Acquired(0, 1, 2), Acquired(4, 5, 2)]
    assert harness.says("ann", ACCEPT, 0, 1) == NOT_YOURS
    assert harness.queue.describe().members == 2


def test_an_unsent_message_counts_as_never_delivered() -> None:
    harness = PartitionHarness(messages=9, delivery_limit=1)
    harness.gets("ann", 9)
    harness.queue.hand_back(harness.now_ms, "ann", 4, 8)
    assert harness.queue.acquire(harness.now_ms, "ben", 9) == [Acquired(4, 8, 1)]
    assert harness.queue.take_dead_letters() == []


def test_the_number_of_leased_messages_is_limited() -> None:
    harness = PartitionHarness(messages=50, max_leased=30)
    assert len(harness.gets("ann", 100)) == 30
    assert harness.gets("ben", 1) == []
    assert not harness.queue.wants_more(100)
    harness.says("ann", ACCEPT, 10, 14)
    assert len(harness.gets("ben", 100)) == 5


def test_a_hundred_thousand_messages_can_be_leased_at_once() -> None:
    harness = PartitionHarness(messages=100_000)
    for number in range(1000):
        assert len(harness.gets(f"member-{number}", 100)) == 100
    assert harness.queue.leased_count == 100_000
    for number in range(0, 1000, 2):
        assert harness.says(f"member-{number}", ACCEPT, number * 100, number * 100 + 99) == TAKEN
    for number in range(1, 1000, 2):
        harness.queue.release_member(harness.now_ms, f"member-{number}")
    harness.check_counters()
    assert harness.queue.available_count == 50_000
    assert harness.queue.describe().leases == 0


def test_slots_of_leases_are_used_again() -> None:
    """Otherwise a queue would end after four billion requests."""
    harness = PartitionHarness(messages=1000)
    for offset in range(1000):
        harness.gets("ann")
        harness.says("ann", ACCEPT, offset)
    assert len(harness.queue._leases._slots) == 1
    assert len(harness.queue._leases._deadlines._heap) < 200


def test_a_queue_without_a_backlog_keeps_one_chunk() -> None:
    harness = PartitionHarness()
    for _ in range(100):
        harness.reads(1000)
        offsets = harness.gets("ann", 1000)
        harness.says("ann", ACCEPT, offsets[0], offsets[-1])
        harness.saves()
        assert harness.queue.describe().chunks <= 1
    assert harness.queue.start_offset == 100_000
    assert len(harness.stored) == 1


def test_reading_stops_when_enough_is_available_or_too_much_is_stuck() -> None:
    harness = PartitionHarness(max_chunks=3)
    assert harness.queue.wants_more(10)
    harness.reads(10)
    assert not harness.queue.wants_more(10)
    assert harness.queue.wants_more(11)
    for count in (4086, 4096, 1):
        harness.gets("ann", 4096)
        assert harness.queue.wants_more(1)
        harness.reads(count)
    assert not harness.queue.wants_more(100_000)
    harness.says("ann", ACCEPT, 10, 4095)
    assert not harness.queue.wants_more(100_000)
    harness.says("ann", ACCEPT, 0, 9)
    assert harness.queue.wants_more(100_000)


def test_gaps_count_as_done_and_a_huge_one_costs_nothing() -> None:
    harness = PartitionHarness()
    harness.reads(10, gaps=[(0, 2), (5, 5), (8, 9)])
    assert harness.queue.start_offset == 3
    assert harness.gets("ann", 9) == [3, 4, 6, 7]
    harness.queue.extend(harness.now_ms, 10**15 + 5, ScanResult(gaps=[(10, 10**15)]))
    assert harness.queue.describe().chunks == 2
    assert harness.gets("ann", 9) == [10**15 + each for each in (1, 2, 3, 4)]
    harness.says("ann", ACCEPT, 3, 4)
    harness.says("ann", ACCEPT, 6, 7)
    assert harness.queue.start_offset == 10**15 + 1


def test_messages_deleted_by_retention_are_done_even_if_leased() -> None:
    """[3]"""
    harness = PartitionHarness(messages=10)
    harness.gets("ann", 4)
    harness.queue.trimmed(harness.now_ms, 6)
    assert harness.says("ann", ACCEPT, 0, 3) == NOT_YOURS
    assert harness.queue.describe().leases == 0
    assert harness.gets("ben", 9) == [6, 7, 8, 9]
    harness.queue.trimmed(harness.now_ms, 5)
    assert harness.queue.start_offset == 6
    harness.queue.trimmed(harness.now_ms, 10**15)
    assert harness.queue.start_offset == harness.queue.next_offset == 10**15
    harness.reads(2)
    assert harness.gets("ben", 9) == [10**15, 10**15 + 1]
    harness.check_counters()


def test_the_status_shows_leases_with_members_and_deadlines() -> None:
    harness = PartitionHarness(messages=9, lease_ms=1000)
    harness.gets("ann", 2)
    harness.passes(10)
    harness.gets("ben", 2)
    harness.says("ben", ACCEPT, 2)
    until_ms = harness.now_ms + 1000
    assert harness.queue.peek(0, 6) == [
        Run(0, 1, State.LEASED, 1, "ann", until_ms - 10),
        Run(3, 3, State.LEASED, 1, "ben", until_ms),
        Run(4, 6, State.AVAILABLE),
    ]
    assert harness.queue.peek(0, 6, max_runs=1) == [Run(0, 1, State.LEASED, 1, "ann", until_ms - 10)]
    assert harness.queue.peek(7, 3) == harness.queue.peek(9, 99) == []


def test_changed_settings_apply_to_later_deliveries() -> None:
    harness = PartitionHarness(messages=2, lease_ms=1000)
    harness.gets("ann")
    harness.queue.configure(QueueSettings(lease_ms=5000, delivery_limit=1))
    harness.gets("ann")
    harness.passes(1000)
    assert [letter.first for letter in harness.queue.take_dead_letters()] == [0]
    assert harness.queue.next_due_ms == harness.now_ms + 4000
    with pytest.raises(ValueError, match="key order"):
        harness.queue.configure(QueueSettings(key_ordered=True))


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
def test_invalid_settings_are_refused(wrong: QueueSettings) -> None:
    with pytest.raises(ConfigError):
        wrong.validate()


def test_reading_backwards_is_refused_as_a_bug_of_the_caller() -> None:
    harness = PartitionHarness(messages=5)
    with pytest.raises(ValueError, match="before 5"):
        harness.queue.extend(harness.now_ms, 4)


def test_a_delivery_count_saturates_at_one_byte() -> None:
    harness = PartitionHarness(messages=1, delivery_limit=0)
    for _ in range(300):
        acquired = harness.queue.acquire(harness.now_ms, "ann", 1)
        harness.says("ann", RELEASE, 0)
    assert acquired == [Acquired(0, 0, 255)]


def test_rejecting_without_dead_letters_drops_the_message() -> None:
    harness = PartitionHarness(messages=2, dead_letters=False)
    harness.gets("ann", 2)
    harness.says("ann", REJECT, 0, 1)
    assert harness.queue.take_dead_letters() == []
    assert harness.queue.start_offset == 2
