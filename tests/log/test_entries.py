"""Entries of another replica: all of them are valid, or none is written; and both logs become equal."""

from random import Random

import pytest

from penstock.batch import iter_headers, read_header, stamp, zero_width_batch
from penstock.errors import BatchError, DiskFull, StorageError
from penstock.log import Disk, Log, MemoryDisk
from penstock.log.layout import CALLERS_OWN, TERM_START, control_payload
from penstock.sim import SimDisk
from penstock.types import Index, Offset, Term
from tests.log.tools import (
    FOLDER,
    NOW_MS,
    append,
    append_entries,
    batch,
    compact,
    config,
    flush,
    headers_of,
    offsets,
    producer_state,
    stored,
    tidy,
)

SMALL = config(segment_bytes=600, index_interval_bytes=100, segment_ms=50)


def leader_log(count: int = 40) -> Log:
    log = Log.open(MemoryDisk(), FOLDER, SMALL)
    for number in range(count):
        if number % 6 == 0:
            log.writer.begin_term(Term(number))
            log.writer.append_control(b"members %d" % number, Term(number))
        append(
            log,
            *[b"v" * (number * 7 % 50)] * (1 + number % 3),
            term=log.entries.last_term,
            timestamp=NOW_MS + number * 9,
            producer=None if number % 3 else (7, 0, number // 3 * 1),
        )
    flush(log)
    return log


def replicate(source: Log, target: Log, max_bytes: int = 300) -> None:
    while target.entries.end_index < source.entries.end_index:
        data, end = source.entries.read_entries(target.entries.end_index, max_bytes)
        append_entries(target, data, NOW_MS, gaps_below=source.cleaned_offset)
        assert target.entries.end_index == end


def whole(log: Log) -> bytes:
    index, parts = log.entries.first_index, []
    while index < log.entries.end_index:
        data, index = log.entries.read_entries(index, 10_000)
        parts.append(data)
        if not data:  # the log ends with a gap
            break
    return b"".join(parts)


def segments(log: Log) -> list[tuple[int, int, int]]:
    return [(s.base_offset, s.size, s.control_count) for s in log.files.segments.segments]


@pytest.mark.parametrize("max_bytes", [1, 200, 1000, 10_000])
def test_a_follower_has_the_same_bytes_segments_indexes_and_producers(disk: Disk, max_bytes: int) -> None:
    leader = leader_log()
    follower = Log.open(disk, FOLDER, SMALL)
    replicate(leader, follower, max_bytes)
    flush(follower)
    for log in (follower, Log.open(disk, FOLDER, SMALL)):
        assert whole(log) == whole(leader)
        assert segments(log) == segments(leader)
        assert producer_state(log) == producer_state(leader)
        assert log.entries.control_payloads() == leader.entries.control_payloads()
        assert log.entries.last_term == leader.entries.last_term
        assert [log.term_at(Offset(o)) for o in offsets(log)] == [
            leader.term_at(Offset(o)) for o in offsets(leader)
        ]
    for mine, theirs in zip(follower.files.segments.segments, leader.files.segments.segments, strict=True):
        assert mine.load_index().encode(mine.head()) == theirs.load_index().encode(theirs.head())


def test_entries_for_several_segments_are_one_write_each(sim: SimDisk) -> None:
    leader = leader_log()
    data = whole(leader)
    follower = Log.open(sim, FOLDER, SMALL)
    writes: list[str] = []
    sim.on_operation = lambda _, kind, path: (
        writes.append(path) if kind == "write" and path.endswith(".log") else None
    )
    append_entries(follower, data, NOW_MS)
    assert whole(follower) == data
    assert segments(follower) == segments(leader)
    assert len(writes) == len(set(writes)) == leader.segment_count > 4


@pytest.mark.parametrize("seed", range(60))
def test_a_flipped_bit_anywhere_is_refused_and_nothing_is_stored(seed: int) -> None:
    """Also in the offset and the term of a batch, which its CRC does not cover."""
    leader = leader_log(12)
    data = bytearray(whole(leader))
    random = Random(seed)
    headers = list(iter_headers(bytes(data)))
    position, header = headers[random.randrange(len(headers))]
    field = random.choice((random.randrange(8), 12 + random.randrange(4), random.randrange(header.size)))
    data[position + field] ^= 1 << random.randrange(8)
    follower = Log.open(MemoryDisk(), FOLDER, SMALL)
    with pytest.raises(BatchError):
        append_entries(follower, bytes(data), NOW_MS)
    assert (follower.entries.end_index, follower.size_bytes, follower.files.state.controls.total) == (0, 0, 0)
    append_entries(follower, whole(leader), NOW_MS)
    assert whole(follower) == whole(leader)


def test_entries_that_are_cut_off_or_do_not_follow_are_refused(disk: Disk) -> None:
    leader = leader_log(12)
    data = whole(leader)
    follower = Log.open(disk, FOLDER, SMALL)
    for wrong in (data[:-1], data[:30], data[read_header(data).size :], data + data):
        with pytest.raises(BatchError):
            append_entries(follower, wrong, NOW_MS)
    with pytest.raises(BatchError, match="as the headers of the entries say"):
        follower.writer.append_entries(data, headers_of(data)[:-1], NOW_MS)
    assert follower.entries.end_index == 0
    append_entries(follower, memoryview(bytearray(data)), NOW_MS)
    with pytest.raises(BatchError, match="entry 0 at byte 0"):
        append_entries(follower, data, NOW_MS)


def control(kind: int, offset: int, term: int, payload: bytes = b"", header_term: int | None = None) -> bytes:
    content = control_payload(kind, term, offset, payload)
    return zero_width_batch(offset=offset, term=term if header_term is None else header_term, payload=content)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (control(TERM_START, 1, 1), "within term 1"),
        (control(TERM_START, 1, 0), "within term 1"),
        (control(CALLERS_OWN, 1, 2), "within term 1"),
        (control(TERM_START, 1, 2, header_term=3), "stamped otherwise"),
        (control(TERM_START, 2, 2), "offset 2 where 1 must follow"),
        (control(2, 1, 1), "stamped otherwise"),
        (control(TERM_START, 1, 2, b"more"), "with 4 bytes"),
        (control(CALLERS_OWN, 1, 1, b"m" * 415), "with 415 bytes"),
        (zero_width_batch(offset=1, term=1, payload=b""), "without term"),
    ],
)
def test_an_invalid_control_entry_is_refused(wrong: bytes, reason: str) -> None:
    log = Log.open(MemoryDisk(), FOLDER, SMALL)
    append(log, b"v", term=1)
    with pytest.raises(BatchError, match=reason):
        append_entries(log, wrong, NOW_MS)
    assert log.entries.end_index == 2


def test_a_term_without_its_control_entry_is_refused() -> None:
    log = Log.open(MemoryDisk(), FOLDER, SMALL)
    append(log, b"v", term=1)
    data, _ = batch(b"w")
    stamp(data, 0, 1, 2)
    with pytest.raises(BatchError, match="term 2 within term 1"):
        append_entries(log, data, NOW_MS)


def test_a_replicated_batch_larger_than_a_segment_is_accepted(disk: Disk) -> None:
    """The leader accepted it, perhaps with other settings."""
    leader = Log.open(MemoryDisk(), FOLDER, config())
    for size in (10, 2000, 10):
        append(leader, b"v" * size)
    follower = Log.open(disk, FOLDER, SMALL)
    replicate(leader, follower)
    assert whole(follower) == whole(leader)
    assert follower.segment_count == 3


@pytest.mark.parametrize("room", range(0, 6000, 400))
def test_a_full_disk_leaves_whole_entries_and_consistent_state(sim: SimDisk, room: int) -> None:
    leader = leader_log()
    data = whole(leader)
    follower = Log.open(sim, FOLDER, SMALL)
    append_first, _ = leader.entries.read_entries(Index(0), 1)
    append_entries(follower, append_first, NOW_MS)
    sim.capacity = sum(sim.size(f"{FOLDER}/{name}") for name in sim.list_dir(FOLDER)) + room
    try:
        append_entries(follower, data[len(append_first) :], NOW_MS)
    except DiskFull:
        assert follower.failed is None
    assert whole(follower) == data[: follower.size_bytes]
    assert follower.entries.end_index == leader.entries.floor(follower.entries.end_index)
    assert follower.entries.term_before(follower.entries.end_index) == leader.entries.term_before(
        follower.entries.end_index
    )
    sim.capacity = None
    replicate(leader, follower)
    assert (whole(follower), segments(follower)) == (data, segments(leader))
    assert producer_state(follower) == producer_state(leader)
    flush(follower)
    for seed in range(3):
        again = Log.open(sim.after_power_cut(seed), FOLDER, SMALL)
        assert (whole(again), again.entries.end_index) == (data, leader.entries.end_index)


def test_a_log_whose_flush_failed_takes_no_entries(sim: SimDisk) -> None:
    leader = leader_log(6)
    follower = Log.open(sim, FOLDER, SMALL)
    append(follower, b"v")
    sim.fail_flush(".log")
    ticket = follower.flushes.begin()
    assert ticket is not None
    with pytest.raises(StorageError) as caught:
        ticket.run()
    follower.flushes.finish(ticket, caught.value)
    for write in (
        lambda: append_entries(follower, whole(leader), NOW_MS),
        lambda: follower.writer.begin_term(Term(9)),
        lambda: follower.truncation.to_index(0),
        lambda: follower.reset(leader.prefix()),
    ):
        with pytest.raises(StorageError, match="takes no writes"):
            write()


# --- a compacted log


COMPACTED = config(
    segment_bytes=600, index_interval_bytes=100, cleanup_compact=True, min_cleanable_dirty_ratio=0.01
)


def compacted_log(disk: Disk, *, controls: bool = True) -> Log:
    log = Log.open(disk, FOLDER, COMPACTED)
    for number in range(60):
        if controls and number % 7 == 0:
            log.writer.begin_term(Term(number + 1))
        append(log, b"v" * 60, term=max(log.entries.last_term, 1), key=b"%d" % (number % 2))
    flush(log)
    assert compact(log)
    assert len(offsets(log)) < 20
    return log


@pytest.mark.parametrize("max_bytes", [1, 300, 10_000])
def test_gaps_of_a_compacted_log_are_accepted_and_survive_a_power_cut(sim: SimDisk, max_bytes: int) -> None:
    leader = compacted_log(MemoryDisk())
    follower = Log.open(sim, FOLDER, COMPACTED)
    replicate(leader, follower, max_bytes)
    flush(follower)
    tidy(follower)
    disks = [sim.after_power_cut(seed) for seed in range(5)]
    for log in [follower, *(Log.open(after, FOLDER, COMPACTED) for after in disks)]:
        assert whole(log) == whole(leader)
        assert offsets(log) == offsets(leader)
        assert (log.entries.end_index, log.end_offset) == (leader.entries.end_index, leader.end_offset)
        assert log.cleaned_offset == leader.cleaned_offset


@pytest.mark.parametrize("point", range(0, 60, 3))
def test_a_power_cut_while_gaps_are_written_loses_nothing_that_was_flushed(point: int) -> None:
    leader = compacted_log(MemoryDisk())
    sim = SimDisk(point)
    sim.make_dir("topics")
    sim.sync_dir("")
    follower = Log.open(sim, FOLDER, COMPACTED)
    survivors: list[tuple[int, SimDisk]] = []
    sim.on_operation = lambda number, *_: survivors.append(
        (follower.entries.flushed_index, sim.after_power_cut(number))
    )
    while follower.entries.end_index < leader.entries.end_index:
        data, _ = leader.entries.read_entries(follower.entries.end_index, 1 + 40 * point)
        append_entries(follower, data, NOW_MS, gaps_below=leader.cleaned_offset)
        flush(follower)
    for flushed, after in survivors:
        log = Log.open(after, FOLDER, COMPACTED)
        assert log.entries.end_index >= flushed
        assert whole(leader).startswith(whole(log))


def test_gaps_that_the_sender_does_not_announce_are_refused(disk: Disk) -> None:
    leader = compacted_log(MemoryDisk())
    follower = Log.open(disk, FOLDER, COMPACTED)
    with pytest.raises(BatchError, match="must follow"):
        append_entries(follower, whole(leader), NOW_MS)
    with pytest.raises(BatchError, match="must follow"):
        append_entries(follower, whole(leader), NOW_MS, gaps_below=1)
    assert follower.entries.end_index == 0


@pytest.mark.parametrize("controls", [False, True])
def test_a_log_can_end_in_a_gap(sim: SimDisk, controls: bool) -> None:
    """Another replica still has the entries that were compacted here, and its log differs behind them."""
    leader = compacted_log(MemoryDisk(), controls=controls)
    boundaries = range(leader.entries.first_index, int(leader.entries.index_at(leader.cleaned_offset)) + 1)
    for index in boundaries:
        if leader.entries.floor(index) != index:
            continue
        disk = SimDisk(index)
        disk.make_dir("topics")
        disk.sync_dir("")
        follower = Log.open(disk, FOLDER, COMPACTED)
        replicate(leader, follower)
        flush(follower)
        survivors: list[SimDisk] = []
        disk.on_operation = lambda n, *_, d=disk, s=survivors: s.append(d.after_power_cut(n))
        follower.truncation.to_index(index)
        disk.on_operation = None
        survivors.append(disk.after_power_cut(1))
        assert (follower.entries.end_index, follower.entries.flushed_index) == (index, index)
        for after in survivors:
            log = Log.open(after, FOLDER, COMPACTED)
            assert log.entries.end_index >= index
            assert log.entries.term_before(index) == leader.entries.term_before(index)
        assert log.entries.end_index == index
        append(log, b"new", term=99)
        assert log.entries.read_entries(index, 1000)[1] == index + 2
        assert [header.next_offset for header, _ in stored(log)][-1] == log.end_offset


def test_readers_skip_a_control_entry_that_was_replicated_with_its_successor() -> None:
    """The follower had written up to the offset at which the next term begins; then both arrive in one append."""
    leader, follower = Log.open(MemoryDisk(), FOLDER, config()), Log.open(MemoryDisk(), FOLDER, config())
    append(leader, b"one", b"two", term=Term(0))
    first, place = leader.entries.read_entries(Index(0), 1 << 20)
    append_entries(follower, first, NOW_MS)
    leader.writer.begin_term(Term(1))
    append(leader, b"three", term=Term(1))
    rest, _ = leader.entries.read_entries(Index(place), 1 << 20)
    append_entries(follower, rest, NOW_MS)
    for log in (leader, follower):
        found = log.read(Offset(2), 1 << 20, limit=Offset(3))
        assert read_header(found).record_count == 1
        assert b"three" in found
