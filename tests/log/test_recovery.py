"""A torn tail is truncated, damage in flushed bytes is reported, and indexes are rebuilt."""

import os
import struct
from pathlib import Path

import msgspec
import pytest
from crc32c import crc32c

from penstock.errors import CorruptLog, StorageError
from penstock.log import Disk, Log
from penstock.log.checkpoint import Checkpoint
from penstock.log.os_disk import OsDisk
from penstock.sim import SimDisk
from penstock.types import Offset, Term
from tests.log.tools import FOLDER, append, config, flush, offsets, pread_with_a_bad_sector, tidy

SMALL = config(segment_bytes=1000, index_interval_bytes=200)
FIRST = f"{FOLDER}/00000000000000000000.log"


def crashed(sim: SimDisk) -> SimDisk:
    """The process died and the machine did not: all written bytes are there, and nothing was closed."""
    after = SimDisk(2)
    after._root = sim._root
    return after


def filled(disk: Disk, count: int = 20, *, checkpoint: bool = True) -> Log:
    log = Log.open(disk, FOLDER, SMALL)
    for number in range(count):
        append(log, b"v" * 50, term=1 + number // 8)
    flush(log)
    if checkpoint:
        tidy(log)
    return log


def test_the_name_of_a_segment_of_a_dead_process_is_flushed_with_its_first_batch(sim: SimDisk) -> None:
    log = filled(sim, 10)
    log.retention.delete_prefix(log.end_offset)  # begins a segment that only the page cache has
    disk = crashed(sim)
    again = Log.open(disk, FOLDER, SMALL)
    append(again, b"acknowledged", term=9)
    flush(again)
    for seed in range(40):
        assert offsets(Log.open(disk.after_power_cut(seed), FOLDER, SMALL))[-1:] == [10]


def test_a_killed_process_loses_nothing_that_was_written(sim: SimDisk) -> None:
    filled(sim, 10)
    log = Log.open(crashed(sim), FOLDER, SMALL)
    for _ in range(5):
        append(log, b"unflushed", term=9)
    again = Log.open(crashed(sim), FOLDER, SMALL)
    assert again.end_offset == again.flushed_offset == 15
    assert offsets(again) == list(range(15))


@pytest.mark.parametrize("cut", range(1, 130, 8))
def test_a_torn_tail_is_truncated_to_the_last_whole_batch(sim: SimDisk, cut: int) -> None:
    log = filled(sim, 4)
    append(log, b"w" * 60)
    inode = sim._inode(FIRST)
    inode.truncate(len(inode.visible) - cut)
    again = Log.open(crashed(sim), FOLDER, SMALL)
    assert offsets(again) == [0, 1, 2, 3]
    assert append(again, b"next", term=2).base_offset == 4
    assert offsets(again) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("garbage", [b"\0" * 700, b"\xff" * 61, b"garbage that is no batch" * 9])
def test_a_tail_of_zeros_or_garbage_is_truncated(sim: SimDisk, garbage: bytes) -> None:
    filled(sim, 4)
    sim.open(FIRST).append(garbage)
    again = Log.open(crashed(sim), FOLDER, SMALL)
    assert offsets(again) == [0, 1, 2, 3]
    assert sim.size(FIRST) == again.size_bytes


def test_damage_in_flushed_bytes_is_reported_with_file_and_position(sim: SimDisk) -> None:
    """Also if all later bytes are intact, and also in the last segment: flushed bytes were promised."""
    log = filled(sim, 4)
    second = next(iter(log.files.segments.segments[0].headers(0, 10**6)))[1].size  # the control entry
    positions = [p for p, _ in log.files.segments.segments[0].headers(0, log.size_bytes)]
    sim.remove(f"{FOLDER}/00000000000000000004.snapshot")
    sim.flip_bit(FIRST, positions[2] + 70)
    assert positions[1] == second
    with pytest.raises(CorruptLog, match=f"{FIRST} at byte {positions[2]}: crc") as caught:
        Log.open(crashed(sim), FOLDER, SMALL)
    assert (caught.value.path, caught.value.position) == (FIRST, positions[2])


def test_damage_above_the_flushed_offset_is_treated_as_a_torn_tail(sim: SimDisk) -> None:
    log = filled(sim, 4, checkpoint=False)
    position = [p for p, _ in log.files.segments.segments[0].headers(0, log.size_bytes)][3]
    sim.flip_bit(FIRST, position + 70)
    assert offsets(Log.open(crashed(sim), FOLDER, SMALL)) == [0, 1]


@pytest.mark.parametrize(("field", "what"), [(7, "offset"), (15, "term")])
def test_damage_in_fields_that_the_crc_does_not_cover_is_detected(
    sim: SimDisk, field: int, what: str
) -> None:
    log = filled(sim, 4)
    position = [p for p, _ in log.files.segments.segments[0].headers(0, log.size_bytes)][2]
    sim.remove(f"{FOLDER}/00000000000000000004.snapshot")
    sim.flip_bit(FIRST, position + field, bit=2)
    with pytest.raises(CorruptLog, match=what) as caught:
        Log.open(crashed(sim), FOLDER, SMALL)
    assert caught.value.position == position


@pytest.mark.parametrize("field", [7, 15, 65, 70])
def test_damage_in_a_control_entry_is_detected(sim: SimDisk, field: int) -> None:
    filled(sim, 4)
    sim.remove(f"{FOLDER}/00000000000000000004.snapshot")
    sim.flip_bit(FIRST, field, bit=1)
    with pytest.raises(CorruptLog) as caught:
        Log.open(crashed(sim), FOLDER, SMALL)
    assert caught.value.position == 0


def test_a_flushed_file_that_became_shorter_is_corrupt(sim: SimDisk) -> None:
    log = filled(sim)
    last = log.files.segments.segments[-1]
    sim._inode(last.path).truncate(last.size - 1)
    with pytest.raises(CorruptLog, match="flushed up to byte") as caught:
        Log.open(crashed(sim), FOLDER, SMALL)
    assert (caught.value.path, caught.value.position) == (last.path, last.size - 1)


@pytest.mark.parametrize("number", [1, 2, -1])
def test_a_missing_flushed_segment_is_corrupt(sim: SimDisk, number: int) -> None:
    log = filled(sim)
    sim.remove(log.files.segments.segments[number].path)
    with pytest.raises(CorruptLog):
        Log.open(crashed(sim), FOLDER, SMALL)


def test_a_log_without_its_segments_is_corrupt_and_not_empty(sim: SimDisk) -> None:
    log = filled(sim, 4)
    for segment in log.files.segments.segments:
        sim.remove(segment.path)
    with pytest.raises(CorruptLog, match="gone"):
        Log.open(crashed(sim), FOLDER, SMALL)


def test_a_torn_segment_in_the_middle_of_unflushed_ones_ends_the_log_there(sim: SimDisk) -> None:
    log = Log.open(sim, FOLDER, SMALL)
    append(log, b"flushed")
    flush(log)
    for _ in range(20):
        append(log, b"v" * 100)
    assert log.segment_count > 3
    sim.flip_bit(log.files.segments.segments[1].path, 100)
    again = Log.open(crashed(sim), FOLDER, SMALL)
    assert again.segment_count == 2
    assert offsets(again) == list(range(int(again.end_offset)))
    assert again.end_offset == log.files.segments.bases[1]


def test_without_recover_nothing_is_changed(sim: SimDisk) -> None:
    filled(sim, 4)
    sim.open(FIRST).append(b"torn")
    before = {name: sim.read_file(f"{FOLDER}/{name}") for name in sim.list_dir(FOLDER)}
    with pytest.raises(CorruptLog):
        Log.open(crashed(sim), FOLDER, SMALL, recover=False)
    assert before == {name: sim.read_file(f"{FOLDER}/{name}") for name in sim.list_dir(FOLDER)}


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
@pytest.mark.parametrize("damage", ["gone", "rotten", "empty"])
def test_indexes_and_snapshots_are_rebuilt(sim: SimDisk, suffix: str, damage: str) -> None:
    log = filled(sim)
    log.close()
    for name in sim.list_dir(FOLDER):
        path = f"{FOLDER}/{name}"
        if name.endswith(suffix):
            if damage == "gone":
                sim.remove(path)
            elif damage == "rotten":
                sim.flip_bit(path, sim.size(path) - 1)
            else:
                sim._inode(path).truncate(0)
    again = Log.open(crashed(sim), FOLDER, SMALL)
    assert offsets(again) == list(range(20))
    assert again.end_of_term(Term(2)) == (2, 16)
    assert [again.term_at(Offset(offset)) for offset in (0, 8, 19)] == [1, 2, 3]
    append(again, b"more", term=4)
    assert offsets(again)[-1] == 20


def test_a_rebuilt_index_is_the_one_that_was_lost(sim: SimDisk) -> None:
    log = filled(sim)
    log.close()
    names = [name for name in sim.list_dir(FOLDER) if name.endswith("index")]
    before = {name: sim.read_file(f"{FOLDER}/{name}") for name in names}
    for name in sim.list_dir(FOLDER):
        if name.endswith(("index", "snapshot")):
            sim.remove(f"{FOLDER}/{name}")
    again = Log.open(crashed(sim), FOLDER, SMALL)
    again.close()
    assert before == {name: sim.read_file(f"{FOLDER}/{name}") for name in names}


def test_a_checkpoint_with_two_bad_slots_is_corrupt_and_an_unwritten_one_is_not(sim: SimDisk) -> None:
    filled(sim, 4).close()
    path = f"{FOLDER}/checkpoint"
    sim.flip_bit(path, 20)
    sim.flip_bit(path, 532)
    with pytest.raises(CorruptLog, match="checkpoint"):
        Log.open(crashed(sim), FOLDER, SMALL)
    sim._inode(path).write(0, bytes(1024))
    assert offsets(Log.open(crashed(sim), FOLDER, SMALL)) == [0, 1, 2, 3]


def test_one_bad_slot_of_the_checkpoint_does_no_harm(sim: SimDisk) -> None:
    log = filled(sim)
    log.retention.delete_prefix(Offset(10))
    log.close()
    for position in (20, 532):
        sim.flip_bit(f"{FOLDER}/checkpoint", position)
        assert offsets(Log.open(crashed(sim), FOLDER, SMALL, recover=False)) == list(range(10, 20))
        sim.flip_bit(f"{FOLDER}/checkpoint", position)


def test_a_checkpoint_whose_flush_failed_does_not_count(sim: SimDisk) -> None:
    log = filled(sim)
    before = log.files.checkpoint_facts()
    log.files.save_checkpoint_durably()
    sim.fail_flush("checkpoint")
    with pytest.raises(StorageError):
        log.truncation.to_offset(Offset(3))
    sim.process_died()
    checkpoint = Checkpoint(sim, FOLDER)
    assert checkpoint.load()
    assert checkpoint.facts == before
    again = Log.open(sim, FOLDER, config())
    again.truncation.to_offset(Offset(3))
    for seed in range(20):
        assert offsets(Log.open(sim.after_power_cut(seed), FOLDER, config())) == [0, 1, 2]


@pytest.mark.parametrize("flushed", [True, False])
def test_a_bad_sector_is_damage_and_no_place_to_cut_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flushed: bool
) -> None:
    """Not above the flushed line either: what is behind the sector may have been flushed and acknowledged."""
    disk = OsDisk(tmp_path)
    log = Log.open(disk, FOLDER, config())
    for _ in range(30):
        append(log, b"v" * 500)
    if flushed:
        flush(log)
    log.abandon("belongs to a process that died")
    [segment] = tmp_path.glob(f"{FOLDER}/*.log")
    size = segment.stat().st_size
    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", pread_with_a_bad_sector(size // 2, segment))
        with pytest.raises(CorruptLog, match="cannot be read: Input/output error"):
            Log.open(disk, FOLDER, config())
    assert segment.stat().st_size == size
    assert offsets(Log.open(disk, FOLDER, config())) == list(range(30))


def test_an_index_behind_a_bad_sector_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = OsDisk(tmp_path)
    filled(disk).close()
    [index, *_] = sorted(tmp_path.glob(f"{FOLDER}/*.index"))
    monkeypatch.setattr(os, "pread", pread_with_a_bad_sector(0, index))
    assert offsets(Log.open(disk, FOLDER, SMALL)) == list(range(20))


def test_opening_after_a_clean_close_reads_no_batches(sim: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(sim).close()

    def nothing_to_scan(_: object, position: int, end: int) -> tuple[()]:
        assert position == end
        return ()

    monkeypatch.setattr("penstock.log.recovery.scan", nothing_to_scan)
    log = Log.open(crashed(sim), FOLDER, SMALL)
    assert (log.start_offset, log.end_offset) == (0, 20)


@pytest.mark.usefixtures("small_intervals")
def test_opening_after_a_crash_scans_from_the_last_snapshot_only(sim: SimDisk) -> None:
    from penstock.log.recovery import Recovery

    log = Log.open(sim, FOLDER, config(segment_bytes=10**6))
    for _ in range(200):
        append(log, b"v" * 100)
        flush(log)
        tidy(log)
    recovery = Recovery(crashed(sim), FOLDER, 4096, repair=True)
    recovery.run()
    assert recovery.state.end_offset == 200
    assert recovery.scanned_bytes < 3000 < log.size_bytes


def convert_to_the_first_version(sim: SimDisk) -> None:
    """Snapshots without the terms of control entries, checkpoints that end with the first checksum."""
    for name in sim.list_dir(FOLDER):
        path = f"{FOLDER}/{name}"
        if name.endswith(".snapshot"):
            body = msgspec.msgpack.encode(msgspec.msgpack.decode(sim.read_file(path)[16:])[:11])
            head = b"PSNP" + struct.pack(">HHII", 1, 0, len(body), crc32c(body))
            sim.write_file_atomic(path, head + body)
    slots = sim.read_file(f"{FOLDER}/checkpoint")
    for at in (0, 512):
        sim._inode(f"{FOLDER}/checkpoint").write(at, slots[at : at + 76].ljust(512, b"\0"))


@pytest.mark.parametrize("start", [0, 5, 8, 13])
def test_a_log_of_the_first_version_is_read(sim: SimDisk, start: int) -> None:
    log = filled(sim)
    log.retention.delete_prefix(Offset(start))
    tidy(log)
    log.close()
    convert_to_the_first_version(sim)
    again = Log.open(crashed(sim), FOLDER, SMALL)
    assert (again.entries.end_index, again.entries.first_index) == (
        log.entries.end_index,
        log.entries.first_index,
    )
    assert again.entries.last_term == 3
    assert offsets(again) == list(range(start, 20))
    for index in range(log.entries.first_index, log.entries.end_index + 1):
        assert (again.entries.floor(index), again.entries.offset_at(index)) == (
            log.entries.floor(index),
            log.entries.offset_at(index),
        )
    assert again.entries.term_before(log.entries.end_index) == 3
    again.truncation.to_index(log.entries.floor(log.entries.end_index - 4))
    append(again, b"goes on", term=9)
