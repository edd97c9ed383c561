"""Compaction of transactions: aborted records go, markers stay for a while, and readers never see an aborted record."""

from penstock.batch import delete_horizon_ms, read_records
from penstock.log import Disk, Log, MemoryDisk
from penstock.log.layout import SNAPSHOT_SUFFIX, offsets_of
from penstock.log.snapshot import newest_snapshot, snapshot_path
from penstock.sim import SimDisk
from penstock.types import Offset
from tests.log.tools import (
    FOLDER,
    NOW_MS,
    append,
    committed_view,
    compact,
    config,
    end,
    flush,
    producer_state,
    stored,
)

DAY_MS = 86_400_000
RETENTION_MS = 10_000
SETTINGS = config(
    segment_bytes=800,
    index_interval_bytes=150,
    min_cleanable_dirty_ratio=0.01,
    cleanup_compact=True,
    cleanup_delete=False,
    delete_retention_ms=RETENTION_MS,
)


def put(
    log: Log,
    key: str,
    value: str,
    producer: tuple[int, int, int] | None = None,
    *,
    transactional: bool = True,
) -> int:
    in_transaction = transactional and producer is not None
    options = {"key": key.encode(), "producer": producer, "transactional": in_transaction}
    return append(log, value.encode(), **options).base_offset


def seal(log: Log) -> None:
    """Makes everything so far cleanable: it is flushed, committed and in sealed segments."""
    first = log.files.segments.bases[-1]
    while log.files.segments.bases[-1] == first:
        put(log, "seal", "s" * 100)
    flush(log)
    log.transactions.committed(log.end_offset)


def table(log: Log) -> dict[bytes | None, bytes | None]:
    seen = committed_view(log, log.start_offset, log.end_offset)
    return {record.key: record.value for record in seen if record.key != b"seal"}


def markers(log: Log) -> list[int]:
    return [header.base_offset for header, _ in stored(log) if header.control]


def test_an_aborted_record_supersedes_nothing_and_goes(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, SETTINGS)
    put(log, "a", "old")
    put(log, "b", "old")
    put(log, "a", "aborted", (7, 0, 0))
    put(log, "b", "committed", (8, 0, 0))
    end(log, 7, commit=False)
    end(log, 8, commit=True)
    put(log, "c", "later", (7, 0, 1), transactional=False)
    seal(log)
    assert table(log) == {b"a": b"old", b"b": b"committed", b"c": b"later"}
    assert compact(log)
    assert table(log) == {b"a": b"old", b"b": b"committed", b"c": b"later"}
    values = [record.value for _, data in stored(log) for record in read_records(data)]
    assert b"aborted" not in values
    assert values.count(b"old") == 1


def test_a_pass_ends_before_the_first_transaction_that_is_not_decided(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, SETTINGS)
    for _ in range(3):
        for number in range(12):
            put(log, "a", f"{number}")
        seal(log)
    first = put(log, "a", "open", (7, 0, 0))
    for number in range(20):
        put(log, "a", f"behind {number}" + "x" * 50)
    seal(log)
    while compact(log):
        pass
    assert 0 < log.files.state.cleaned_offset <= first
    end(log, 7, commit=True)
    flush(log)
    assert not compact(log), "its marker is not committed yet"
    log.transactions.committed(log.end_offset)
    assert compact(log)
    assert log.files.state.cleaned_offset > first


def test_a_marker_that_was_recovered_and_is_not_committed_yet_decides_nothing(disk: Disk) -> None:
    """The next leader may lack the marker, and the transaction may end the other way."""
    log = Log.open(disk, FOLDER, SETTINGS)
    put(log, "a", "stays for as long as the transaction may be aborted")
    put(log, "a", "in the transaction", (7, 0, 0))
    seal(log)
    committed = log.entries.end_index
    marker = end(log, 7, commit=True).base_offset
    flush(log)
    log.close()

    log = Log.open(disk, FOLDER, SETTINGS)
    log.entries.commit_index = committed
    log.transactions.committed(Offset(marker))
    assert not compact(log)
    log.truncation.to_offset(Offset(marker))
    assert not compact(log), "the transaction is open"
    end(log, 7, commit=False)
    flush(log)
    log.entries.commit_index = log.entries.end_index
    log.transactions.committed(log.end_offset)
    assert compact(log)
    assert table(log) == {b"a": b"stays for as long as the transaction may be aborted"}


def aborted_log(disk: Disk) -> tuple[Log, int]:
    """Producer 7 aborts a transaction, and then commits others; the marker of the abort is returned."""
    log = Log.open(disk, FOLDER, SETTINGS)
    put(log, "a", "aborted", (7, 0, 0))
    marker = end(log, 7, commit=False).base_offset
    for number in range(1, 4):
        put(log, "b", f"committed {number}", (7, 0, number))
        end(log, 7, commit=True)
    seal(log)
    return log, marker


def test_a_marker_stays_until_delete_retention_has_passed_since_its_records_were_found_gone(
    disk: Disk,
) -> None:
    log, marker = aborted_log(disk)
    assert compact(log)
    assert marker in markers(log)
    assert [one.last_offset for one in log.transactions.aborted] == [marker]
    seal(log)
    assert compact(log)  # the first pass that finds no record of the transaction
    assert list(log.transactions.aborted) == []
    [header] = [header for header, _ in stored(log) if header.base_offset == marker]
    assert delete_horizon_ms(header) == NOW_MS + RETENTION_MS
    seal(log)
    compact(log, NOW_MS + RETENTION_MS - 1)
    assert marker in markers(log)
    assert compact(log, NOW_MS + RETENTION_MS)
    assert marker not in markers(log)
    assert table(log) == {b"b": b"committed 3"}


def test_the_last_marker_of_a_live_producer_stays_and_keeps_its_epoch(sim: SimDisk) -> None:
    log = Log.open(sim, FOLDER, SETTINGS)
    put(log, "a", "aborted", (7, 0, 0))
    marker = end(log, 7, commit=False, epoch=3).base_offset
    put(log, "b", "aborted", (8, 0, 0))
    end(log, 8, commit=False)
    for number in range(4):
        seal(log)
        compact(log, NOW_MS + number * 2 * RETENTION_MS)
    assert marker in markers(log)
    before = [row[:2] for row in producer_state(log)]
    log.close()
    for name in sim.list_dir(FOLDER):
        if name.endswith(".snapshot"):
            sim.remove(f"{FOLDER}/{name}")
    log = Log.open(sim, FOLDER, SETTINGS)
    assert [row[:2] for row in producer_state(log)] == before == [(7, 3), (8, 0)]
    log.producers.expire(NOW_MS)
    log.producers.expire(NOW_MS + DAY_MS)
    for number in range(4):
        seal(log)
        compact(log, NOW_MS + DAY_MS + number * 2 * RETENTION_MS)
    assert markers(log) == [], "a producer that is forgotten needs no marker"


def test_an_older_snapshot_does_not_bring_back_a_transaction_whose_marker_is_gone(sim: SimDisk) -> None:
    """A reader that is told of it would drop what the producer committed later."""
    log, marker = aborted_log(sim)
    compact(log)
    seal(log)
    newest_base = log.files.segments.bases[-1]
    compact(log)
    assert compact(log, NOW_MS + RETENTION_MS)
    assert marker not in markers(log)
    log.close()
    for offset in offsets_of(sim.list_dir(FOLDER), SNAPSHOT_SUFFIX):
        if offset > newest_base:
            sim.remove(snapshot_path(FOLDER, offset))
    older = newest_snapshot(sim, FOLDER, 0, newest_base)
    assert older is not None
    assert older.offset == newest_base
    assert older.transactions.aborted, "it was saved before the marker went"
    log = Log.open(sim, FOLDER, SETTINGS)
    assert list(log.transactions.aborted) == []
    assert table(log) == {b"b": b"committed 3"}


def test_a_compacted_log_of_an_expired_producer_becomes_empty_of_its_transactions() -> None:
    log = Log.open(MemoryDisk(), FOLDER, SETTINGS)
    for number in range(30):
        put(log, f"k{number % 3}", "aborted", (7, 0, number))
        end(log, 7, commit=False)
    log.producers.expire(NOW_MS + DAY_MS)
    for number in range(4):
        seal(log)
        compact(log, NOW_MS + number * 2 * RETENTION_MS)
    assert markers(log) == []
    assert not list(log.transactions.aborted)
    assert log.read(Offset(0), 10_000, limit=Offset(60)) == b""
