"""Stored state, confirmation of acknowledgements, and recovery by the next leader. Numbers: queue/partition.py."""

import random

import pytest

from penstock.errors import UnknownFormat
from penstock.queue.partition import QueuePartition
from penstock.queue.settings import QueueSettings
from penstock.queue.state_records import HEAD_SUFFIX, chunk_of, chunk_suffix, decode_head
from penstock.queue.state_writer import MAX_CHUNKS_PER_WRITE
from penstock.queue.states import CHUNK_SIZE
from penstock.queue.values import Acquired, ScanResult
from penstock.types import Term
from tests.queue.partition_harness import ACCEPT, RELEASE, TAKEN, PartitionHarness


def test_a_new_queue_first_stores_its_start_offset() -> None:
    harness = PartitionHarness(start=77)
    assert harness.queue.saved_start_offset is None
    harness.saves()
    assert decode_head(harness.stored[HEAD_SUFFIX]) == (1, 77)
    assert harness.queue.saved_start_offset == 77
    assert harness.writes() is None


def test_an_acknowledgement_is_confirmed_when_the_write_after_it_is_saved() -> None:
    """[1]"""
    harness = PartitionHarness(messages=9)
    harness.gets("ann", 9)
    harness.says("ann", ACCEPT, 0, token="first")
    first = harness.writes()
    harness.says("ann", ACCEPT, 1, token="second")
    assert harness.writes() is None  # one at a time
    assert first is not None
    assert harness.queue.saved(first) == ["first"]
    assert harness.saves() == ["second"]


def test_only_the_pending_write_can_be_saved() -> None:
    harness = PartitionHarness(messages=1)
    with pytest.raises(ValueError, match="not under way"):
        harness.queue.saved(1)
    number = harness.writes()
    assert number is not None
    with pytest.raises(ValueError, match="not under way"):
        harness.queue.saved(number + 1)
    harness.queue.saved(number)
    with pytest.raises(ValueError, match="not under way"):
        harness.queue.saved(number)


def test_a_durably_accepted_message_is_never_delivered_again() -> None:
    """[1]"""
    harness = PartitionHarness(messages=10)
    harness.gets("ann", 10)
    for offset in (0, 1, 4, 9):
        harness.says("ann", ACCEPT, offset)
    harness.saves()
    harness.says("ann", ACCEPT, 5)  # this was not confirmed
    harness.crashes()
    assert harness.queue.start_offset == 2
    harness.reads(8)
    assert harness.queue.acquire(harness.now_ms, "ben", 99) == [Acquired(2, 3, 2), Acquired(5, 8, 2)]


def test_leases_end_with_their_leader_and_delivery_counts_survive() -> None:
    harness = PartitionHarness(messages=3)
    harness.gets("ann", 2)
    harness.says("ann", RELEASE, 0)
    harness.saves()
    harness.crashes()
    harness.reads(3)
    assert harness.queue.acquire(harness.now_ms, "ben", 9) == [Acquired(0, 1, 2), Acquired(2, 2, 1)]


def test_the_new_leader_stores_its_term_before_anything_else_has_changed() -> None:
    harness = PartitionHarness(messages=1)
    harness.saves()
    harness.crashes()
    harness.saves()
    assert decode_head(harness.stored[HEAD_SUFFIX]) == (2, 0)


def test_the_new_leader_reads_only_messages_that_are_not_known_to_be_done() -> None:
    harness = PartitionHarness(messages=5 * CHUNK_SIZE)
    harness.gets("ann", 5 * CHUNK_SIZE)
    harness.says("ann", ACCEPT, 1, 5 * CHUNK_SIZE - 10)
    harness.saves()
    assert harness.queue.describe().chunks == 2
    harness.crashes()
    assert (harness.queue.start_offset, harness.queue.next_offset) == (0, 0)
    harness.reads(1)
    assert harness.queue.next_offset == 5 * CHUNK_SIZE - 9


def test_a_finished_chunk_is_deleted_from_the_state_topic() -> None:
    harness = PartitionHarness(messages=4 * CHUNK_SIZE)
    harness.gets("ann", 4 * CHUNK_SIZE)
    harness.says("ann", ACCEPT, 5, 3 * CHUNK_SIZE)
    harness.saves()
    assert set(harness.stored) == {HEAD_SUFFIX, *(chunk_suffix(number) for number in range(4))}
    harness.says("ann", ACCEPT, 0, 4)
    harness.saves()
    assert set(harness.stored) == {HEAD_SUFFIX, chunk_suffix(3)}
    harness.says("ann", ACCEPT, 3 * CHUNK_SIZE + 1, 4 * CHUNK_SIZE - 1)
    harness.saves()
    assert set(harness.stored) == {HEAD_SUFFIX}


def test_the_next_leader_deletes_finished_chunks_of_the_last_one() -> None:
    harness = PartitionHarness(messages=2 * CHUNK_SIZE)
    harness.gets("ann", 2 * CHUNK_SIZE)
    harness.says("ann", ACCEPT, 5, CHUNK_SIZE + 5)
    harness.saves()
    harness.crashes()
    harness.queue.trimmed(harness.now_ms, 3 * CHUNK_SIZE)
    harness.saves()
    assert set(harness.stored) == {HEAD_SUFFIX}


def test_a_large_change_takes_several_writes_and_is_answered_after_the_last() -> None:
    """[1] Any prefix of the writes is a valid state."""
    chunks = MAX_CHUNKS_PER_WRITE + 20
    harness = PartitionHarness(messages=chunks * CHUNK_SIZE, max_leased=10**7)
    harness.gets("ann", chunks * CHUNK_SIZE)
    for number in range(chunks):
        harness.says("ann", ACCEPT, number * CHUNK_SIZE, token=number)
    first = harness.writes()
    assert first is not None
    assert len(harness.stored) == 1 + MAX_CHUNKS_PER_WRITE
    assert harness.queue.saved(first) == []
    harness.says("ann", ACCEPT, 1, token="later")
    second = harness.writes()
    assert second is not None
    between = dict(harness.stored)
    assert harness.queue.saved(second) == list(range(chunks))
    assert harness.saves() == ["later"]
    harness.stored = between
    harness.crashes(delivery_limit=0)
    for number in range(chunks):
        harness.queue.extend(harness.now_ms, max(harness.queue.next_offset, (number + 1) * CHUNK_SIZE))
    assert harness.queue.available_count == chunks * (CHUNK_SIZE - 1)


def test_a_round_of_writes_keeps_its_first_start_offset() -> None:
    """[1] The head of the round says it; offsets above it must be in the chunks, even if the start offset passes them
    meanwhile."""
    chunks = MAX_CHUNKS_PER_WRITE + 3
    harness = PartitionHarness(messages=chunks * CHUNK_SIZE, max_leased=10**7, delivery_limit=0)
    harness.gets("ann", chunks * CHUNK_SIZE)
    last = (chunks - 1) * CHUNK_SIZE
    for number in range(chunks):
        harness.says("ann", ACCEPT, number * CHUNK_SIZE + 9, token=number)
    first = harness.writes()
    assert first is not None
    harness.queue.saved(first)
    harness.queue.trimmed(harness.now_ms, last + CHUNK_SIZE)
    second = harness.writes()
    assert second is not None
    assert harness.queue.saved(second) == list(range(chunks))
    harness.crashes()
    harness.queue.extend(harness.now_ms, last)
    harness.reads(1)
    offsets = harness.gets("ben", chunks * CHUNK_SIZE)
    assert not {number * CHUNK_SIZE + 9 for number in range(chunks)} & set(offsets)


def test_reading_continues_after_a_restart_with_more_chunks_than_the_limit() -> None:
    """Chunks that are only remembered do not count, or a queue at its limit would never read again."""
    harness = PartitionHarness(max_chunks=4)
    for _ in range(4):
        harness.reads(CHUNK_SIZE)
        harness.gets("ann", CHUNK_SIZE)
        harness.says("ann", ACCEPT, harness.queue.next_offset - 5)
    harness.reads(CHUNK_SIZE)
    harness.gets("ann", CHUNK_SIZE)
    harness.says("ann", ACCEPT, 5 * CHUNK_SIZE - 5)
    harness.saves()
    harness.crashes(max_chunks=4)
    for _ in range(4):
        assert harness.queue.wants_more(10**6)
        harness.reads(CHUNK_SIZE)
    assert not harness.queue.wants_more(10**6)


def test_gaps_are_not_stored_because_the_log_has_them() -> None:
    harness = PartitionHarness()
    harness.saves()
    harness.reads(10, gaps=[(3, 5)])
    assert harness.writes() is None


def test_state_without_a_head_is_refused() -> None:
    harness = PartitionHarness(messages=3)
    harness.gets("ann", 3)
    harness.says("ann", ACCEPT, 1)
    harness.saves()
    del harness.stored[HEAD_SUFFIX]
    with pytest.raises(UnknownFormat, match="no head"):
        harness.crashes()


def test_random_acceptance_over_many_chunks_is_stored_exactly() -> None:
    harness = PartitionHarness(messages=20_000, delivery_limit=0)
    harness.gets("ann", 20_000)
    chance = random.Random(5)
    accepted = sorted(chance.sample(range(20_000), 9000))
    for offset in accepted:
        assert harness.says("ann", ACCEPT, offset) == TAKEN
    harness.saves()
    harness.crashes()
    harness.queue.extend(harness.now_ms, 20_000)
    again = harness.gets("ben", 20_000)
    assert sorted(again + accepted) == list(range(20_000))


def test_a_write_fits_into_the_topics_message_limit() -> None:
    """The worst: every other message of every chunk is done, and no two counts are equal."""
    settings = QueueSettings(delivery_limit=0, max_leased=10**7)
    queue = QueuePartition(settings, term=Term(1), start_offset=0)
    end = (MAX_CHUNKS_PER_WRITE + 1) * CHUNK_SIZE
    queue.extend(0, end, ScanResult())
    queue.acquire(0, "ann", end)
    for chunk in queue._table.chunks.values():
        chunk.deliveries[:] = bytes(1 + index % 5 for index in range(CHUNK_SIZE))
        queue.acknowledge(0, "ann", chunk.base + 7, chunk.base + 7, ACCEPT)
    changes = queue.take_changes()
    assert changes is not None
    assert len(changes.records) == MAX_CHUNKS_PER_WRITE + 1
    assert max(len(value or b"") for key, value in changes.records if chunk_of(key) is not None) > 4600
    assert sum(len(key) + len(value or b"") for key, value in changes.records) < 700_000


def test_retry_delays_survive_a_leader_change() -> None:
    harness = PartitionHarness(10)
    harness.gets("ann", 4)
    harness.says("ann", RELEASE, 0, 1, delay_ms=60_000)
    harness.says("ann", RELEASE, 2, delay_ms=5_000)
    harness.says("ann", RELEASE, 3)
    harness.saves()
    harness.passes(10_000)
    harness.crashes()
    harness.reads(10)
    assert harness.gets("ben", 10) == [2, 3, 4, 5, 6, 7, 8, 9]
    harness.says("ben", ACCEPT, 2, 9)
    harness.check_counters()
    harness.passes(49_999)
    assert harness.gets("cat", 10) == []
    harness.passes(1)
    assert harness.gets("cat", 10) == [0, 1]


def test_retry_delays_survive_a_leader_that_has_not_read_the_messages_again() -> None:
    harness = PartitionHarness(10)
    harness.gets("ann", 10)
    harness.says("ann", RELEASE, 7, 8, delay_ms=60_000)
    harness.saves()
    harness.crashes()
    harness.reads(2)
    harness.gets("ben", 1)
    harness.says("ben", ACCEPT, 0)
    harness.saves()  # writes the chunk, most of which was not read
    harness.crashes()
    harness.reads(9)
    assert harness.gets("cat", 10) == [1, 2, 3, 4, 5, 6, 9]


def test_a_message_whose_retry_delay_ended_meanwhile_is_available() -> None:
    harness = PartitionHarness(2)
    harness.gets("ann", 2)
    harness.says("ann", RELEASE, 0, delay_ms=1_000)
    harness.saves()
    harness.crashes()
    harness.passes(1_000)
    harness.reads(2)
    assert harness.gets("ben", 2) == [0, 1]
