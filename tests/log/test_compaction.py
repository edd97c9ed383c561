"""Compaction keeps the last record of each key, control entries and producer state."""

from random import Random

import pytest

from penstock.batch import Record, iter_headers, read_records
from penstock.config import TopicConfig
from penstock.errors import CorruptLog, DiskFull, StorageError
from penstock.log import Disk, Log, MemoryDisk
from penstock.sim import SimDisk
from penstock.types import Offset, Term
from tests.log.tools import (
    FOLDER,
    NOW_MS,
    append,
    append_entries,
    compact,
    config,
    flush,
    offsets,
    producer_state,
    records,
    stored,
    tidy,
)

DAY_MS = 86_400_000


def compacted(**settings: object) -> TopicConfig:
    defaults: dict[str, object] = {
        "segment_bytes": 800,
        "index_interval_bytes": 150,
        "min_cleanable_dirty_ratio": 0.1,
        "cleanup_delete": False,
    }
    return config(cleanup_compact=True, **(defaults | settings))


def put(log: Log, key: str, value: str | None, **options: object) -> int:
    data = None if value is None else value.encode()
    return append(log, data, key=key.encode(), **options).base_offset


def seal(log: Log) -> None:
    """Makes everything so far cleanable: it is flushed and in sealed segments."""
    first = log.files.segments.bases[-1]
    while log.files.segments.bases[-1] == first:
        put(log, "seal", "s" * 100, term=max(1, log.entries.last_term))
    flush(log)


def table(log: Log) -> dict[bytes | None, bytes | None]:
    """The last value of each key, for a reader of the whole log."""
    return {record.key: record.value for record in records(log) if record.key != b"seal"}


def expected_of(everything: list[Record]) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in everything if record.key != b"seal"}


def test_the_last_record_of_each_key_stays_with_offset_time_and_headers(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, compacted())
    random = Random(1)
    for number in range(120):
        put(log, f"k{random.randrange(10)}", f"v{number}", timestamp=NOW_MS + number)
    seal(log)
    before = records(log)
    size = log.size_bytes
    assert compact(log)
    assert log.size_bytes < size / 3
    assert set(records(log)) <= set(before)
    assert table(log) == expected_of(before)
    clean = [r for r in records(log) if r.offset < log.files.state.cleaned_offset]
    assert len({r.key for r in clean}) == len(clean)
    assert compact(log) is False


def test_a_read_at_an_offset_in_a_gap_returns_the_next_record(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, compacted())
    for number in range(60):
        put(log, f"k{number % 3}", f"v{number}")
    seal(log)
    compact(log)
    left = offsets(log)
    assert len(left) < 30
    for offset in range(int(log.end_offset)):
        found = [r.offset for r in read_records(log.read(Offset(offset), 1, limit=log.end_offset))]
        assert max(found) >= offset
        assert [o for o in found if o >= offset] == [o for o in left if o >= offset][: len(found)]


def test_batches_shrink_and_keep_their_range_codec_and_producer(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, compacted())
    append(log, b"old", b"kept", b"old", keys=[b"a", b"b", b"c"], producer=(7, 3, 10), compression=4)
    put(log, "a", "new")
    put(log, "c", "new")
    seal(log)
    compact(log)
    header, data = next(iter(stored(log)))
    assert (header.base_offset, header.last_offset_delta, header.record_count) == (0, 2, 1)
    assert (header.compression, header.producer_id, header.producer_epoch, header.base_sequence) == (
        4,
        7,
        3,
        10,
    )
    assert [(r.offset, r.value) for r in read_records(data)] == [(1, b"kept")]


def test_a_compacted_log_reopens_the_same(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, compacted())
    for number in range(100):
        put(log, f"k{number % 7}", f"v{number}", term=1 + number // 30)
    seal(log)
    compact(log)
    before = (records(log), log.files.state.controls.total, log.end_of_term(Term(2)))
    log.close()
    again = Log.open(disk, FOLDER, compacted())
    assert (records(again), again.files.state.controls.total, again.end_of_term(Term(2))) == before
    for name in disk.list_dir(FOLDER):
        if name.endswith(("index", "snapshot")):
            disk.remove(f"{FOLDER}/{name}")
    rebuilt = Log.open(disk, FOLDER, compacted())
    assert (records(rebuilt), rebuilt.files.state.controls.total, rebuilt.end_of_term(Term(2))) == before


def test_small_neighbours_are_merged(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, compacted())
    for number in range(200):
        put(log, f"k{number % 5}", "v" * 20)
    seal(log)
    before = log.segment_count
    compact(log)
    for _ in range(5):
        seal(log)
        compact(log)
    assert log.segment_count < before / 3
    assert len([n for n in disk.list_dir(FOLDER) if n.endswith(".log")]) == log.segment_count
    assert not [n for n in disk.list_dir(FOLDER) if n.endswith((".swap", ".cleaned"))]


def test_a_tombstone_is_removed_after_its_retention(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, compacted(delete_retention_ms=DAY_MS))
    put(log, "gone", "v")
    put(log, "stays", "v")
    put(log, "gone", None)
    seal(log)
    assert compact(log, NOW_MS)
    assert table(log) == {b"stays": b"v", b"gone": None}
    assert [r.value for r in records(log) if r.key == b"gone"] == [None]
    assert not compact(log, NOW_MS + DAY_MS - 1)
    seal(log)
    compact(log, NOW_MS + DAY_MS - 1)
    assert table(log) == {b"stays": b"v", b"gone": None}
    assert compact(log, NOW_MS + DAY_MS)
    assert table(log) == {b"stays": b"v"}


def test_the_time_of_a_tombstone_survives_a_restart(sim: SimDisk) -> None:
    log = Log.open(sim, FOLDER, compacted(delete_retention_ms=DAY_MS))
    put(log, "gone", None)
    seal(log)
    compact(log, NOW_MS)
    log.close()
    log = Log.open(sim, FOLDER, compacted(delete_retention_ms=DAY_MS))
    assert not compact(log, NOW_MS + DAY_MS - 1)
    assert compact(log, NOW_MS + DAY_MS)
    assert table(log) == {}


def test_producers_are_known_after_compaction_even_without_a_snapshot(sim: SimDisk) -> None:
    """The last batch of each producer stays, empty if necessary, so that the log alone has its last sequence."""
    log = Log.open(sim, FOLDER, compacted())
    for number in range(12):
        put(log, "k", f"v{number}", producer=(7, 0, number))
    put(log, "k", "another")
    seal(log)
    compact(log)
    empty = [header for header, _ in stored(log) if header.record_count == 0]
    assert [(h.base_offset, h.last_offset_delta, h.base_sequence) for h in empty] == [(11, 0, 11)]
    log.close()
    for name in sim.list_dir(FOLDER):
        if name.endswith("snapshot"):
            sim.remove(f"{FOLDER}/{name}")
    again = Log.open(sim, FOLDER, compacted())
    assert put(again, "k", "v11", producer=(7, 0, 11)) == 11
    assert put(again, "k", "v12", producer=(7, 0, 12)) == again.end_offset - 1


def test_a_snapshot_keeps_the_whole_producer_state(sim: SimDisk) -> None:
    log = Log.open(sim, FOLDER, compacted())
    for number in range(12):
        put(log, "k", f"v{number}", producer=(7, 0, number))
    seal(log)
    before = producer_state(log)
    assert compact(log)
    for seed in range(5):
        assert producer_state(Log.open(sim.after_power_cut(seed), FOLDER, compacted())) == before


def test_records_without_a_key_are_removed(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, compacted())
    append(log, b"no key", key=None)
    put(log, "k", "v")
    seal(log)
    compact(log)
    assert table(log) == {b"k": b"v"}


def test_nothing_happens_below_the_dirty_ratio_unless_the_lag_is_exceeded(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, compacted(min_cleanable_dirty_ratio=0.5, max_compaction_lag_ms=10_000))
    for number in range(100):
        put(log, f"unique{number}", "v" * 50)
    seal(log)
    assert compact(log)
    put(log, "unique3", "new")
    seal(log)
    assert not compact(log, NOW_MS + 10_000)
    assert compact(log, NOW_MS + 10_001)


def test_young_records_are_not_compacted(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, compacted(min_compaction_lag_ms=60_000))
    for number in range(30):
        put(log, "k", f"v{number}", timestamp=NOW_MS)
    seal(log)
    assert not compact(log, NOW_MS + 59_999)
    assert compact(log, NOW_MS + 60_001)


def test_the_active_segment_is_never_compacted(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, compacted(segment_bytes=10**6))
    for number in range(30):
        put(log, "k", f"v{number}")
    flush(log)
    assert not compact(log)
    assert len(records(log)) == 30


def test_compaction_with_a_full_key_map_continues_in_the_next_pass(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, compacted())
    for round_ in range(3):
        for number in range(40):
            put(log, f"k{number}", f"v{round_}")
    seal(log)
    before = expected_of(records(log))
    passes = 0
    while compact(log, max_keys=9):
        passes += 1
        assert table(log) == before
    assert passes > 3
    clean = [r for r in records(log) if r.offset < log.files.state.cleaned_offset]
    assert len(clean) < 60


def test_long_keys_are_distinguished(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, compacted(segment_bytes=5000))
    keys = ["x" * n for n in (18, 19, 20, 21, 300)] + ["x" * 299 + "y"]
    for number in range(5):
        for key in keys:
            put(log, key, f"{number}")
    seal(log)
    compact(log)
    assert table(log) == {key.encode(): b"4" for key in keys}


def test_compact_and_delete_does_both(disk: Disk) -> None:
    settings = compacted(cleanup_delete=True, retention_ms=1000)
    log = Log.open(disk, FOLDER, settings)
    while log.segment_count < 2:
        put(log, "old", "v", timestamp=NOW_MS - 5000)
    for number in range(30):
        put(log, "k", f"v{number}", timestamp=NOW_MS)
    seal(log)
    assert log.retention.apply(NOW_MS) > 0
    assert compact(log)
    assert log.start_offset > 0
    assert table(log) == {b"old": b"v", b"k": b"v29"}
    assert [r.key for r in records(log) if r.offset < log.files.state.cleaned_offset].count(b"k") == 1


def test_a_plan_is_void_when_the_log_changed_meanwhile(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, compacted())
    for number in range(60):
        put(log, "k", f"v{number}")
    seal(log)
    tidy(log)
    plan = log.compactor.plan(NOW_MS)
    assert plan is not None
    plan.run()
    log.retention.delete_prefix(Offset(20))
    before = records(log)
    log.compactor.finish(plan)
    assert records(log) == before
    assert not [n for n in disk.list_dir(FOLDER) if n.endswith(".cleaned")]


def test_appends_and_reads_go_on_while_a_plan_runs(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, compacted())
    for number in range(60):
        put(log, f"k{number % 4}", f"v{number}")
    seal(log)
    tidy(log)
    plan = log.compactor.plan(NOW_MS)
    assert plan is not None
    put(log, "k0", "newest")
    plan.run()
    put(log, "k1", "newest")
    assert len(records(log)) > 60
    log.compactor.finish(plan)
    assert table(log)[b"k0"] == table(log)[b"k1"] == b"newest"
    assert len(records(log)) < 30


@pytest.mark.parametrize("position", [0, 3, 7, -3], ids=["offset", "offset high", "offset low", "records"])
def test_damage_found_by_compaction_is_reported_and_changes_nothing(sim: SimDisk, position: int) -> None:
    """The checksum does not cover the first eight bytes of a batch, its offset."""
    log = Log.open(sim, FOLDER, compacted())
    for number in range(60):
        put(log, f"k{number % 4}", f"v{number}")
    seal(log)
    tidy(log)
    segment = log.files.segments.segments[1]
    sim.flip_bit(segment.path, position % segment.size)
    plan = log.compactor.plan(NOW_MS)
    assert plan is not None
    with pytest.raises(CorruptLog) as caught:
        plan.run()
    assert caught.value.path == segment.path
    log.compactor.finish(plan)
    assert not [n for n in sim.list_dir(FOLDER) if n.endswith(".cleaned")]
    assert len(list(stored(log))) > 60


def test_no_space_for_compaction_changes_nothing(sim: SimDisk) -> None:
    log = Log.open(sim, FOLDER, compacted())
    for number in range(60):
        put(log, f"k{number % 40}", f"v{number}" * 5)
    seal(log)
    tidy(log)
    plan = log.compactor.plan(NOW_MS)
    assert plan is not None
    before = records(log)
    sim.capacity = 300
    with pytest.raises(DiskFull):
        plan.run()
    log.compactor.finish(plan)
    sim.capacity = None
    assert records(log) == before
    assert compact(log)


def test_a_hundred_thousand_keys() -> None:
    log = Log.open(MemoryDisk(), FOLDER, compacted(segment_bytes=1_000_000))
    for start in range(0, 200_000, 1000):
        keys: list[bytes | None] = [b"key%d" % (n % 100_000) for n in range(start, start + 1000)]
        append(log, *[b"%d" % n for n in range(start, start + 1000)], keys=keys)
    seal(log)
    assert compact(log)
    left = [r for r in records(log) if r.key != b"seal"]
    assert len(left) == 100_000
    assert {r.key: r.value for r in left} == {b"key%d" % n: b"%d" % (n + 100_000) for n in range(100_000)}


def test_readers_get_no_control_entry_that_compaction_left_at_the_start_of_a_segment(
    disk: Disk,
) -> None:
    """The first record of a segment was removed, and a term begins behind it: the index has no entry for its offset."""
    log = Log.open(disk, FOLDER, compacted())
    put(log, "kept", "v")
    seal(log)
    first = log.files.segments.bases[-1]
    assert put(log, "gone", "old") > first, "what sealed the last segment is in this one, and goes too"
    put(log, "gone", "new", term=2)
    seal(log)
    put(log, "gone", "newest", term=2)
    seal(log)
    assert compact(log)
    assert first in log.files.segments.bases
    for offset in range(log.end_offset):
        data = log.read(Offset(offset), 1, limit=log.end_offset)
        assert not any(header.is_zero_width for _, header in iter_headers(data)), offset


def test_readers_get_no_control_entry_in_a_gap_of_a_replicated_log(disk: Disk) -> None:
    """It was replicated entry by entry: when the term's first entry was written, a batch was expected behind it."""
    log = Log.open(disk, FOLDER, compacted())
    put(log, "gone", "old")
    put(log, "gone", "new", term=2)
    put(log, "gone", "newest", term=3)
    seal(log)
    assert compact(log)
    copy = Log.open(disk, f"{FOLDER}-copy", compacted())
    while copy.entries.end_index < log.entries.end_index:
        data, _ = log.entries.read_entries(copy.entries.end_index, 1)
        append_entries(copy, data, NOW_MS, gaps_below=log.end_offset)
    for offset in range(copy.end_offset):
        data = copy.read(Offset(offset), 1, limit=copy.end_offset)
        assert data
        assert not any(header.is_zero_width for _, header in iter_headers(data)), offset
    assert records(copy) == records(log)


class NoSwaps(MemoryDisk):
    """Fails when a compacted segment is renamed, once it is armed."""

    def __init__(self) -> None:
        super().__init__()
        self.failing = False

    def rename(self, source: str, target: str) -> None:
        if self.failing and target.endswith(".swap"):
            raise StorageError("the process dies here")
        super().rename(source, target)


def test_a_crash_before_compacted_segments_are_renamed_restores_no_deleted_key() -> None:
    """The checkpoint must announce gaps before there are any. It must not say that the segments
    are clean already: else the tombstone would be removed in time, and the deleted record would stay."""
    disk, settings = NoSwaps(), compacted(delete_retention_ms=DAY_MS)
    log = Log.open(disk, FOLDER, settings)
    put(log, "gone", "v")
    seal(log)
    put(log, "gone", None)
    seal(log)
    disk.failing = True
    with pytest.raises(StorageError, match="dies here"):
        compact(log, NOW_MS)
    disk.failing = False
    log = Log.open(disk, FOLDER, settings)
    for round_ms in (NOW_MS, NOW_MS + DAY_MS, NOW_MS + 2 * DAY_MS):
        put(log, "other", "v")
        seal(log)
        compact(log, round_ms)
        assert table(log).get(b"gone") is None
    assert [record for record in records(log) if record.key == b"gone"] == []


def test_a_lost_end_of_a_segment_is_never_taken_for_a_compaction_gap() -> None:
    """A follower of a compacted log has to expect gaps. The lost end of a segment after a power cut is not one,
    although the next one may have survived."""
    leader = Log.open(MemoryDisk(), FOLDER, compacted())
    for number in range(40):
        put(leader, f"k{number}", "v" * 40)
    batches: list[bytes] = []
    at = leader.entries.first_index
    while at < leader.entries.end_index:
        data, at = leader.entries.read_entries(at, 1 << 20)
        batches += [bytes(data[start : start + header.size]) for start, header in iter_headers(data)]
    sent = [
        batch for number, batch in enumerate(batches) if number != 2
    ]  # compaction removed it on the sender
    ends = 0
    for seed in range(60):
        sim = SimDisk(seed)
        follower = Log.open(sim, FOLDER, compacted())
        append_entries(follower, b"".join(sent[:10]), NOW_MS, gaps_below=2**62)
        flush(follower)
        append_entries(follower, b"".join(sent[10:]), NOW_MS, gaps_below=2**62)
        assert len(follower.files.segments.bases) > 2
        everything = offsets(follower)
        back = Log.open(sim.after_power_cut(seed), FOLDER, compacted())
        kept = offsets(back)
        assert kept == everything[: len(kept)]
        ends += kept != everything
    assert ends, "no power cut took anything: this shows nothing"
