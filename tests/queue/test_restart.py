"""What is stored, when acknowledgements are confirmed, and what the next leader knows. Numbers: queue/partition.py."""

import random

import pytest

from penstock.errors import UnknownFormat
from penstock.queue import Acquired, QueuePartition, QueueSettings, ScanResult, chunk_of, decode_head
from penstock.queue.state_records import HEAD_SUFFIX, chunk_suffix
from penstock.queue.state_writer import MAX_CHUNKS_PER_WRITE
from penstock.queue.states import CHUNK_SIZE
from penstock.types import Term
from tests.queue.scene import ACCEPT, RELEASE, TAKEN, Scene


def test_a_new_queue_first_stores_where_it_begins() -> None:
    scene = Scene(start=77)
    assert scene.queue.saved_start_offset is None
    scene.saves()
    assert decode_head(scene.stored[HEAD_SUFFIX]) == (1, 77)
    assert scene.queue.saved_start_offset == 77
    assert scene.writes() is None


def test_who_acknowledged_is_answered_when_the_write_after_it_is_saved() -> None:
    """[1]"""
    scene = Scene(messages=9)
    scene.gets("ann", 9)
    scene.says("ann", ACCEPT, 0, token="first")
    first = scene.writes()
    scene.says("ann", ACCEPT, 1, token="second")
    assert scene.writes() is None  # one at a time
    assert first is not None
    assert scene.queue.saved(first) == ["first"]
    assert scene.saves() == ["second"]


def test_only_the_write_that_is_under_way_can_be_saved() -> None:
    scene = Scene(messages=1)
    with pytest.raises(ValueError, match="not under way"):
        scene.queue.saved(1)
    number = scene.writes()
    assert number is not None
    with pytest.raises(ValueError, match="not under way"):
        scene.queue.saved(number + 1)
    scene.queue.saved(number)
    with pytest.raises(ValueError, match="not under way"):
        scene.queue.saved(number)


def test_what_was_saved_as_accepted_is_never_handed_out_again() -> None:
    """[1]"""
    scene = Scene(messages=10)
    scene.gets("ann", 10)
    for offset in (0, 1, 4, 9):
        scene.says("ann", ACCEPT, offset)
    scene.saves()
    scene.says("ann", ACCEPT, 5)  # this was not confirmed
    scene.crashes()
    assert scene.queue.start_offset == 2
    scene.reads(8)
    assert scene.queue.acquire(scene.now_ms, "ben", 99) == [Acquired(2, 3, 2), Acquired(5, 8, 2)]


def test_leases_end_with_their_leader_and_deliveries_are_remembered() -> None:
    scene = Scene(messages=3)
    scene.gets("ann", 2)
    scene.says("ann", RELEASE, 0)
    scene.saves()
    scene.crashes()
    scene.reads(3)
    assert scene.queue.acquire(scene.now_ms, "ben", 9) == [Acquired(0, 1, 2), Acquired(2, 2, 1)]


def test_the_new_leader_stores_its_term_before_anything_else_has_changed() -> None:
    scene = Scene(messages=1)
    scene.saves()
    scene.crashes()
    scene.saves()
    assert decode_head(scene.stored[HEAD_SUFFIX]) == (2, 0)


def test_the_new_leader_reads_only_what_is_not_known_to_be_done() -> None:
    scene = Scene(messages=5 * CHUNK_SIZE)
    scene.gets("ann", 5 * CHUNK_SIZE)
    scene.says("ann", ACCEPT, 1, 5 * CHUNK_SIZE - 10)
    scene.saves()
    assert scene.queue.describe().chunks == 2
    scene.crashes()
    assert (scene.queue.start_offset, scene.queue.next_offset) == (0, 0)
    scene.reads(1)
    assert scene.queue.next_offset == 5 * CHUNK_SIZE - 9


def test_a_chunk_that_is_passed_is_deleted_from_the_state_topic() -> None:
    scene = Scene(messages=4 * CHUNK_SIZE)
    scene.gets("ann", 4 * CHUNK_SIZE)
    scene.says("ann", ACCEPT, 5, 3 * CHUNK_SIZE)
    scene.saves()
    assert set(scene.stored) == {HEAD_SUFFIX, *(chunk_suffix(number) for number in range(4))}
    scene.says("ann", ACCEPT, 0, 4)
    scene.saves()
    assert set(scene.stored) == {HEAD_SUFFIX, chunk_suffix(3)}
    scene.says("ann", ACCEPT, 3 * CHUNK_SIZE + 1, 4 * CHUNK_SIZE - 1)
    scene.saves()
    assert set(scene.stored) == {HEAD_SUFFIX}


def test_the_next_leader_deletes_what_the_last_one_left_behind() -> None:
    scene = Scene(messages=2 * CHUNK_SIZE)
    scene.gets("ann", 2 * CHUNK_SIZE)
    scene.says("ann", ACCEPT, 5, CHUNK_SIZE + 5)
    scene.saves()
    scene.crashes()
    scene.queue.trimmed(scene.now_ms, 3 * CHUNK_SIZE)
    scene.saves()
    assert set(scene.stored) == {HEAD_SUFFIX}


def test_a_large_change_takes_several_writes_and_is_answered_after_the_last() -> None:
    """[1] Any prefix of the writes is true."""
    chunks = MAX_CHUNKS_PER_WRITE + 20
    scene = Scene(messages=chunks * CHUNK_SIZE, max_leased=10**7)
    scene.gets("ann", chunks * CHUNK_SIZE)
    for number in range(chunks):
        scene.says("ann", ACCEPT, number * CHUNK_SIZE, token=number)
    first = scene.writes()
    assert first is not None
    assert len(scene.stored) == 1 + MAX_CHUNKS_PER_WRITE
    assert scene.queue.saved(first) == []
    scene.says("ann", ACCEPT, 1, token="later")
    second = scene.writes()
    assert second is not None
    between = dict(scene.stored)
    assert scene.queue.saved(second) == list(range(chunks))
    assert scene.saves() == ["later"]
    scene.stored = between
    scene.crashes(delivery_limit=0)
    for number in range(chunks):
        scene.queue.extend(scene.now_ms, max(scene.queue.next_offset, (number + 1) * CHUNK_SIZE))
    assert scene.queue.available_count == chunks * (CHUNK_SIZE - 1)


def test_a_round_of_writes_keeps_to_the_start_offset_that_it_began_with() -> None:
    """[1] The head of the round says it; offsets above it must be in the chunks, even if the start offset passes them
    meanwhile."""
    chunks = MAX_CHUNKS_PER_WRITE + 3
    scene = Scene(messages=chunks * CHUNK_SIZE, max_leased=10**7, delivery_limit=0)
    scene.gets("ann", chunks * CHUNK_SIZE)
    last = (chunks - 1) * CHUNK_SIZE
    for number in range(chunks):
        scene.says("ann", ACCEPT, number * CHUNK_SIZE + 9, token=number)
    first = scene.writes()
    assert first is not None
    scene.queue.saved(first)
    scene.queue.trimmed(scene.now_ms, last + CHUNK_SIZE)
    second = scene.writes()
    assert second is not None
    assert scene.queue.saved(second) == list(range(chunks))
    scene.crashes()
    scene.queue.extend(scene.now_ms, last)
    scene.reads(1)
    offsets = scene.gets("ben", chunks * CHUNK_SIZE)
    assert not {number * CHUNK_SIZE + 9 for number in range(chunks)} & set(offsets)


def test_reading_goes_on_after_a_restart_with_more_chunks_than_the_limit() -> None:
    """Chunks that are only remembered do not count, or a queue at its limit would never read again."""
    scene = Scene(max_chunks=4)
    for _ in range(4):
        scene.reads(CHUNK_SIZE)
        scene.gets("ann", CHUNK_SIZE)
        scene.says("ann", ACCEPT, scene.queue.next_offset - 5)
    scene.reads(CHUNK_SIZE)
    scene.gets("ann", CHUNK_SIZE)
    scene.says("ann", ACCEPT, 5 * CHUNK_SIZE - 5)
    scene.saves()
    scene.crashes(max_chunks=4)
    for _ in range(4):
        assert scene.queue.wants_more(10**6)
        scene.reads(CHUNK_SIZE)
    assert not scene.queue.wants_more(10**6)


def test_gaps_are_not_stored_because_the_log_tells_them_again() -> None:
    scene = Scene()
    scene.saves()
    scene.reads(10, gaps=[(3, 5)])
    assert scene.writes() is None


def test_state_without_a_head_is_not_understood() -> None:
    scene = Scene(messages=3)
    scene.gets("ann", 3)
    scene.says("ann", ACCEPT, 1)
    scene.saves()
    del scene.stored[HEAD_SUFFIX]
    with pytest.raises(UnknownFormat, match="no head"):
        scene.crashes()


def test_random_acceptance_over_many_chunks_is_stored_exactly() -> None:
    scene = Scene(messages=20_000, delivery_limit=0)
    scene.gets("ann", 20_000)
    chance = random.Random(5)
    accepted = sorted(chance.sample(range(20_000), 9000))
    for offset in accepted:
        assert scene.says("ann", ACCEPT, offset) == TAKEN
    scene.saves()
    scene.crashes()
    scene.queue.extend(scene.now_ms, 20_000)
    again = scene.gets("ben", 20_000)
    assert sorted(again + accepted) == list(range(20_000))


def test_a_write_stays_below_what_a_topic_takes() -> None:
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


def test_what_rests_goes_on_to_rest_under_the_next_leader() -> None:
    scene = Scene(10)
    scene.gets("ann", 4)
    scene.says("ann", RELEASE, 0, 1, delay_ms=60_000)
    scene.says("ann", RELEASE, 2, delay_ms=5_000)
    scene.says("ann", RELEASE, 3)
    scene.saves()
    scene.passes(10_000)
    scene.crashes()
    scene.reads(10)
    assert scene.gets("ben", 10) == [2, 3, 4, 5, 6, 7, 8, 9]
    scene.says("ben", ACCEPT, 2, 9)
    scene.check_counters()
    scene.passes(49_999)
    assert scene.gets("cat", 10) == []
    scene.passes(1)
    assert scene.gets("cat", 10) == [0, 1]


def test_what_rests_is_not_forgotten_by_a_leader_that_has_not_read_it_again() -> None:
    scene = Scene(10)
    scene.gets("ann", 10)
    scene.says("ann", RELEASE, 7, 8, delay_ms=60_000)
    scene.saves()
    scene.crashes()
    scene.reads(2)
    scene.gets("ben", 1)
    scene.says("ben", ACCEPT, 0)
    scene.saves()  # writes the chunk, of which the most was not read
    scene.crashes()
    scene.reads(9)
    assert scene.gets("cat", 10) == [1, 2, 3, 4, 5, 6, 9]


def test_what_has_rested_enough_meanwhile_is_available() -> None:
    scene = Scene(2)
    scene.gets("ann", 2)
    scene.says("ann", RELEASE, 0, delay_ms=1_000)
    scene.saves()
    scene.crashes()
    scene.passes(1_000)
    scene.reads(2)
    assert scene.gets("ben", 2) == [0, 1]
