"""A reset behind a prefix: the old log or the new one, never a mixture; and the facts of the prefix are kept."""

from collections.abc import Callable

import msgspec
import pytest

from penstock.errors import CorruptLog, DiskFull, StorageError
from penstock.log import Disk, Log, MemoryDisk, Prefix
from penstock.log.reset import announce_reset
from penstock.sim import SimDisk
from penstock.types import Offset, Term
from tests.log.tools import (
    FOLDER,
    NOW_MS,
    append,
    append_entries,
    config,
    flush,
    offsets,
    producer_state,
    tidy,
)

SMALL = config(segment_bytes=600, index_interval_bytes=100)


def leader_log(disk: Disk) -> Log:
    """Its first 30 records are deleted, and with them all batches of producer 8."""
    log = Log.open(disk, FOLDER, SMALL)
    for number in range(60):
        log_producer = (7, 0, number) if number >= 10 else (8, 0, number)
        append(log, b"v" * 60, term=1 + number // 10, producer=log_producer)
        if number % 9 == 0:
            log.writer.append_control(b"members %d" % number, Term(log.entries.last_term))
    flush(log)
    log.retention.delete_prefix(Offset(33))
    tidy(log)
    assert 25 < log.entries.first_index - log.files.state.controls.gone <= 33
    return log


def old_log(disk: Disk, count: int = 20) -> Log:
    log = Log.open(disk, FOLDER, SMALL)
    for _ in range(count):
        append(log, b"old" * 20, term=1, producer=None)
    flush(log)
    tidy(log)
    return log


def facts(log: Log) -> tuple[object, ...]:
    first = log.entries.first_index
    return (
        first,
        log.entries.end_index,
        log.end_offset,
        log.entries.last_term,
        log.entries.term_before(first),
        log.entries.prefix_config,
    )


def catch_up(log: Log, leader: Log) -> None:
    while log.entries.end_index < leader.entries.end_index:
        data, _ = leader.entries.read_entries(log.entries.end_index, 500)
        append_entries(log, data, NOW_MS)


@pytest.mark.parametrize("count", [0, 3, 20, 90])
def test_a_reset_log_begins_behind_the_prefix(disk: Disk, count: int) -> None:
    """Whether it was empty, shorter than the prefix, or longer than the leader's log."""
    leader = leader_log(MemoryDisk())
    prefix = leader.prefix()
    log = old_log(disk, count)
    log.reset(msgspec.msgpack.decode(msgspec.msgpack.encode(prefix), type=Prefix))
    expected = (prefix.index, prefix.index, prefix.offset, prefix.term, prefix.term, prefix.config)
    for each in (log, Log.open(disk, FOLDER, SMALL)):
        assert facts(each) == expected
        assert (each.start_offset, each.entries.flushed_index) == (prefix.offset, prefix.index)
        assert each.entries.control_payloads() == []
    catch_up(log, leader)
    log.close()
    log = Log.open(disk, FOLDER, SMALL)
    assert producer_state(log) == producer_state(leader)
    assert (log.entries.end_index, log.entries.last_term) == (
        leader.entries.end_index,
        leader.entries.last_term,
    )
    assert log.entries.control_payloads() == leader.entries.control_payloads()
    log.retention.delete_prefix(Offset(prefix.start_offset))
    assert offsets(log) == offsets(leader)


def test_the_prefix_describes_only_entries_before_the_first_one(disk: Disk) -> None:
    leader = leader_log(disk)
    prefix = leader.prefix()
    assert prefix.config == b"members 27"
    assert (prefix.term, prefix.start_offset) == (1 + (prefix.offset - 1) // 10, 33)
    marks = {row[0]: [mark[2] for mark in row[3]] for row in prefix.producers}
    assert marks == {7: list(range(prefix.offset - 5, prefix.offset)), 8: [5, 6, 7, 8, 9]}
    assert Log.open(MemoryDisk(), FOLDER, SMALL).prefix() == Prefix(
        offset=0, index=0, term=-1, start_offset=0, producers=[], gaps_below=0, config=b""
    )


def test_a_power_cut_during_a_reset_leaves_the_old_log_or_the_new_one(sim: SimDisk) -> None:
    prefix = leader_log(MemoryDisk()).prefix()
    log = old_log(sim)
    before, held = facts(log), offsets(log)
    survivors: list[SimDisk] = []

    def look(number: int, kind: str, path: str) -> None:
        survivors.extend(sim.after_power_cut(number * 100 + seed) for seed in range(6))

    sim.on_operation = look
    log.reset(prefix)
    sim.on_operation = None
    after = facts(log)
    seen = set()
    for survivor in survivors:
        again = Log.open(survivor, FOLDER, SMALL)
        assert facts(again) in (before, after)
        assert offsets(again) == (held if facts(again) == before else [])
        seen.add(facts(again))
        append(again, b"goes on", term=99)
        flush(again)
        again.close()
        assert Log.open(survivor, FOLDER, SMALL).entries.end_index == again.entries.end_index
    assert seen == {before, after}
    for seed in range(10):
        assert facts(Log.open(sim.after_power_cut(seed), FOLDER, SMALL)) == after


def test_a_reset_interrupted_during_recovery_is_finished_later(sim: SimDisk) -> None:
    prefix = leader_log(MemoryDisk()).prefix()
    log = old_log(sim)
    announced: list[SimDisk] = []

    def look(number: int, kind: str, path: str) -> None:
        if not announced and kind == "remove":
            announced.append(sim.after_power_cut(number))

    sim.on_operation = look
    log.reset(prefix)
    after, disk = facts(log), announced[0]
    assert "reset" in disk.list_dir(FOLDER)
    with pytest.raises(CorruptLog, match="reset"):
        Log.open(disk, FOLDER, SMALL, recover=False)
    second: list[SimDisk] = []
    disk.on_operation = lambda number, *_: second.append(disk.after_power_cut(number))
    assert facts(Log.open(disk, FOLDER, SMALL)) == after
    assert len(second) > 10
    for survivor in second:
        assert facts(Log.open(survivor, FOLDER, SMALL)) == after


def test_a_reset_without_its_announcement_is_detected_by_the_test(
    sim: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above with a seeded bug."""

    def too_late(disk: Disk, folder: str, prefix: Prefix) -> None:
        for name in disk.list_dir(folder):
            disk.remove(f"{folder}/{name}")
        disk.sync_dir(folder)
        announce_reset(disk, folder, prefix)

    monkeypatch.setattr("penstock.log.log.announce_reset", too_late)
    with pytest.raises((AssertionError, CorruptLog)):
        test_a_power_cut_during_a_reset_leaves_the_old_log_or_the_new_one(sim)


def test_a_reset_without_disk_space_changes_nothing(sim: SimDisk) -> None:
    prefix = leader_log(MemoryDisk()).prefix()
    log = old_log(sim)
    before = facts(log)
    sim.capacity = 0
    with pytest.raises(DiskFull):
        log.reset(prefix)
    sim.capacity = None
    assert (facts(log), log.failed) == (before, None)
    append(log, b"goes on")
    assert offsets(log) == list(range(21))


def test_a_running_flush_does_not_count_after_a_reset(disk: Disk) -> None:
    prefix = leader_log(MemoryDisk()).prefix()
    log = old_log(disk)
    append(log, b"unflushed")
    ticket = log.flushes.begin()
    assert ticket is not None
    log.reset(prefix)
    append(log, b"new", term=9)
    flushed = log.entries.flushed_index
    newer = log.flushes.begin()
    assert newer is not None
    ticket.run()
    log.flushes.finish(ticket, StorageError("of files that are gone"))
    assert (log.entries.flushed_index, log.failed) == (flushed, None) == (prefix.index, None)
    newer.run()
    log.flushes.finish(newer)
    assert log.entries.flushed_index == log.entries.end_index


def spoil(**fields: object) -> Callable[[Prefix], Prefix]:
    return lambda prefix: msgspec.structs.replace(prefix, **fields)


@pytest.mark.parametrize(
    "change",
    [spoil(offset=-1), spoil(index=3), spoil(term=-1), spoil(start_offset=2), spoil(config=b"m" * 500)],
)
def test_an_invalid_prefix_is_refused(disk: Disk, change: Callable[[Prefix], Prefix]) -> None:
    log = old_log(disk)
    with pytest.raises(ValueError, match=r"an impossible prefix|a configuration"):
        log.reset(change(leader_log(MemoryDisk()).prefix()))
    assert offsets(log) == list(range(20))
