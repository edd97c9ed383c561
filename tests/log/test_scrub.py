"""Scrubbing detects damage in every byte of old segments."""

from random import Random

import pytest

from penstock.errors import CorruptLog
from penstock.log import Disk, Log
from penstock.log.boundaries import boundary_at
from penstock.sim import SimDisk
from penstock.types import Offset, Term
from tests.log.tools import FOLDER, append, compact, config, flush, tidy

SMALL = config(segment_bytes=600, index_interval_bytes=100)


def filled(disk: Disk, **settings: object) -> Log:
    log = Log.open(disk, FOLDER, config(segment_bytes=600, index_interval_bytes=100, **settings))
    for number in range(40):
        append(log, b"v" * 60, term=1 + number // 6, key=b"%d" % (number % 3))
        if number % 5 == 0:
            log.writer.append_control(b"members", Term(log.entries.last_term))
    flush(log)
    return log


def scrub(log: Log, max_bytes: int = 10**9) -> tuple[CorruptLog | None, int]:
    """Scrubs the whole log in pieces; returns the damage, and the number of bytes read."""
    offset, read = 0, 0
    while True:
        plan = log.scrubber.plan(Offset(offset), max_bytes=max_bytes)
        assert plan is not None
        plan.run()
        read += plan.read_bytes
        wrong = log.scrubber.finish(plan)
        if wrong is not None or plan.next_offset == 0:
            return wrong, read
        assert plan.next_offset > offset
        offset = plan.next_offset


@pytest.mark.parametrize("max_bytes", [1, 1500, 10**9])
def test_a_whole_log_is_read_to_its_last_sealed_byte(disk: Disk, max_bytes: int) -> None:
    log = filled(disk)
    sealed = sum(segment.size for segment in log.files.segments.segments[:-1])
    assert scrub(log, max_bytes) == (None, sealed)
    log.retention.delete_prefix(Offset(17))
    tidy(log)
    sealed = sum(segment.size for segment in log.files.segments.segments[:-1])
    assert scrub(log, max_bytes) == (None, sealed)


def test_a_compacted_log_is_whole(disk: Disk) -> None:
    log = filled(disk, cleanup_compact=True, min_cleanable_dirty_ratio=0.01)
    assert compact(log)
    assert scrub(log, 500)[0] is None


@pytest.mark.parametrize("seed", range(60))
def test_a_flipped_bit_anywhere_is_detected(sim: SimDisk, seed: int) -> None:
    log = filled(sim)
    random = Random(seed)
    segment = random.choice(log.files.segments.segments[:-1])
    position, header = random.choice(list(segment.headers(0, segment.size)))
    field = random.choice((random.randrange(8), 12 + random.randrange(4), random.randrange(header.size)))
    sim.flip_bit(segment.path, position + field, bit=random.randrange(8))
    wrong, _ = scrub(log, random.choice((1, 1500, 10**9)))
    assert wrong is not None
    assert wrong.path == segment.path


def test_a_shortened_file_is_detected(sim: SimDisk) -> None:
    log = filled(sim)
    segment = log.files.segments.segments[2]
    sim._inode(segment.path).truncate(segment.size - 10)
    wrong, _ = scrub(log)
    assert wrong is not None
    assert (wrong.path, wrong.position) == (segment.path, segment.size - 10)


def test_a_segment_deleted_during_the_scrub_is_not_reported(sim: SimDisk) -> None:
    log = filled(sim)
    sim.flip_bit(log.files.segments.segments[0].path, 100)
    plan = log.scrubber.plan()
    assert plan is not None
    plan.run()
    assert plan.wrong is not None
    log.retention.delete_prefix(Offset(30))
    assert log.scrubber.finish(plan) is None
    plan = log.scrubber.plan()
    assert plan is not None
    log.retention.delete_prefix(Offset(40))
    tidy(log)
    plan.run()
    assert log.scrubber.finish(plan) is None


def test_the_active_segment_is_left_to_recovery(sim: SimDisk) -> None:
    log = Log.open(sim, FOLDER, SMALL)
    append(log, b"v")
    flush(log)
    assert log.scrubber.plan() is None


# --- entries that a follower refused


@pytest.mark.parametrize("seed", range(60))
def test_rechecking_an_entry_detects_a_flipped_bit_also_in_the_active_segment(
    sim: SimDisk, seed: int
) -> None:
    log = filled(sim)
    random = Random(seed)
    boundaries = [log.entries.first_index]
    while (end := log.entries.read_entries(boundaries[-1], 1)[1]) > boundaries[-1]:
        boundaries.append(end)
    index = random.choice(boundaries[:-1])
    assert log.scrubber.check_entries(index, 1) is None
    segment, position, size = entry_at(log, index)
    field = random.choice((random.randrange(8), 12 + random.randrange(4), random.randrange(size)))
    sim.flip_bit(segment, position + field, bit=random.randrange(8))
    wrong = log.scrubber.check_entries(index, 1)
    assert wrong is not None
    assert wrong.path == segment


def entry_at(log: Log, index: int) -> tuple[str, int, int]:
    """File, position and size."""
    found = boundary_at(log.files.segments, log.files.state.controls, index)
    segments, position = log.files.segments.segments, found.position
    segment = segments[found.segment_number]
    if position == segment.size:
        segment, position = segments[found.segment_number + 1], 0
    [(_, header), *_] = segment.headers(position, segment.size)
    return segment.path, position, header.size


def test_rechecking_covers_the_entries_of_one_message_and_no_more(sim: SimDisk) -> None:
    log = filled(sim)
    segment = log.files.segments.segments[1]
    sim.flip_bit(segment.path, 100)
    first = log.entries.index_at(segment.base_offset)
    assert log.scrubber.check_entries(log.entries.first_index, 10**6) is None
    assert log.scrubber.check_entries(first, 10**6) is not None
    assert log.scrubber.check_entries(log.entries.end_index, 10**6) is None


def test_rechecking_a_compacted_log_finds_no_damage(disk: Disk) -> None:
    log = filled(disk, cleanup_compact=True, min_cleanable_dirty_ratio=0.01)
    assert compact(log)
    index = log.entries.first_index
    while index < log.entries.end_index:
        assert log.scrubber.check_entries(index, 500) is None
        _, index = log.entries.read_entries(index, 500)
