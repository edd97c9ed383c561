"""Transactions in a log: the last stable offset, the index of aborted ones, and fencing by markers."""

import msgspec
import pytest

from penstock.batch import EndMarker, build_batch, check_batch, read_header, stamp
from penstock.errors import ErrorCode, KafkaError
from penstock.log import Disk, Log, MemoryDisk, Prefix
from penstock.log.aborted import AbortedIndex, AbortedRanges, AbortedTransaction
from penstock.log.producers import ProducerFacts, ProducerStates, TransactionRows
from penstock.log.snapshot import HEAD, Snapshot
from penstock.log.transactions import NEVER, Transactions
from penstock.sim import SimDisk
from penstock.types import Offset, Term
from tests.log.tools import (
    FOLDER,
    NOW_MS,
    append,
    append_entries,
    batch,
    committed_view,
    config,
    end,
    flush,
    offsets,
    producer_state,
    tidy,
)

DAY_MS = 86_400_000
SMALL = config(segment_bytes=600, index_interval_bytes=100)


def send(
    log: Log, producer_id: int, sequence: int, *, epoch: int = 0, count: int = 1, transactional: bool = True
) -> int:
    """The base offset of a batch of this producer."""
    producer = (producer_id, epoch, sequence)
    return append(log, *[b"v" * 20] * count, producer=producer, transactional=transactional).base_offset


def refusal(log: Log, *args: int, **options: object) -> ErrorCode:
    before = log.end_offset
    with pytest.raises(KafkaError) as caught:
        send(log, *args, **options)  # type: ignore[arg-type]
    assert log.end_offset == before
    return caught.value.code


def aborted(log: Log) -> list[tuple[int, int, int, int]]:
    return [tuple(one) for one in log.transactions.aborted]


def commit_all(log: Log) -> None:
    flush(log)
    log.transactions.committed(log.end_offset)


# --- the last stable offset


def test_without_transactions_the_last_stable_offset_is_the_high_watermark(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config())
    append(log, b"a", b"b")
    send(log, 7, 0, transactional=False)
    assert [log.transactions.last_stable(watermark) for watermark in (0, 2, 3)] == [0, 2, 3]


def test_a_transaction_holds_the_last_stable_offset_until_its_marker_is_below_the_watermark(
    disk: Disk,
) -> None:
    log = Log.open(disk, FOLDER, config())
    append(log, b"a")
    assert send(log, 7, 0, count=2) == 1
    append(log, b"b")
    marker = end(log, 7, commit=True).base_offset
    assert marker == 4
    append(log, b"c")
    found = []
    for watermark in range(7):
        log.transactions.committed(watermark)
        found.append(log.transactions.last_stable(watermark))
    assert found == [0, 1, 1, 1, 1, 5, 6]


def test_the_first_of_several_transactions_counts_whichever_ends_first(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config())
    send(log, 7, 0)
    send(log, 8, 0)
    send(log, 9, 0)
    end(log, 8, commit=True)
    commit_all(log)
    assert log.transactions.last_stable(4) == 0
    end(log, 7, commit=False)
    commit_all(log)
    assert log.transactions.last_stable(5) == 2
    end(log, 9, commit=True)
    assert log.transactions.last_stable(6) == 2
    commit_all(log)
    assert log.transactions.last_stable(6) == 6


def test_markers_that_are_not_committed_count_one_by_one(disk: Disk) -> None:
    """The transaction that began first may end last: each marker below the watermark frees its own."""
    log = Log.open(disk, FOLDER, config())
    for producer_id in (7, 8, 9):
        send(log, producer_id, 0)
    for producer_id in (9, 7, 8):
        end(log, producer_id, commit=True)
    stable = {}
    for watermark in range(3, 7):
        log.transactions.committed(watermark)
        stable[watermark] = log.transactions.last_stable(watermark)
    assert stable == {3: 0, 4: 0, 5: 1, 6: 6}


# --- the index of aborted transactions


def test_a_reader_gets_the_aborted_transactions_that_overlap_its_offsets() -> None:
    index = AbortedIndex()
    rows = [
        AbortedTransaction(7, 2, 5, 6),
        AbortedTransaction(8, 8, 15, 10),
        AbortedTransaction(9, 10, 16, 12),
        AbortedTransaction(6, 12, 20, 21),
    ]
    for row in rows:
        index.add(row)
    for start in range(23):
        for behind in range(start, 24):
            wanted = [one for one in rows if one.last_offset >= start and one.first_offset < behind]
            assert index.between(start, behind) == wanted, (start, behind)
    index.trim(6)
    assert list(index) == rows[1:]
    index.truncate(16)
    assert list(index) == rows[1:2]
    copy = AbortedIndex()
    copy.decode(index.encode())
    assert list(copy) == list(index)
    with pytest.raises(ValueError, match="multiple of 32"):
        copy.decode(b"x" * 33)


def test_an_aborted_batch_is_told_from_one_that_was_committed_before_or_after() -> None:
    ranges = AbortedRanges([AbortedTransaction(7, 2, 5, 6), AbortedTransaction(7, 8, 12, 13)])
    _, header = batch(b"v", producer=(7, 0, 0), transactional=True)
    covered = [at for at in range(15) if ranges.covers(header._replace(base_offset=at))]
    assert covered == [2, 3, 4, 5, 8, 9, 10, 11, 12]
    assert not ranges.covers(header._replace(base_offset=3, producer_id=8))
    assert not ranges.covers(batch(b"v", producer=(7, 0, 0))[1]._replace(base_offset=3))


def test_a_reader_of_committed_records_sees_what_was_committed_and_no_more(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, SMALL)
    kept = [send(log, 7, 0)]
    end(log, 7, commit=True)
    for number in range(20):
        send(log, 8, number)
        kept += [append(log, b"plain").base_offset, send(log, 7, number + 1)]
        end(log, 8, commit=False)
        end(log, 7, commit=number % 2 == 0)
        if number % 2:
            kept.pop()
    commit_all(log)
    for start in range(0, log.end_offset, 7):
        seen = [record.offset for record in committed_view(log, start, log.end_offset)]
        assert seen == [offset for offset in kept if offset >= start]


def test_an_index_entry_goes_when_the_log_starts_behind_its_marker(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, SMALL)
    send(log, 7, 0)
    append(log, b"b")
    end(log, 7, commit=False)
    append(log, b"c")
    commit_all(log)
    log.retention.delete_prefix(Offset(2))
    assert aborted(log) == [(7, 0, 2, 3)]
    log.retention.delete_prefix(Offset(3))
    assert aborted(log) == []


# --- producers and markers


def test_a_marker_without_a_transaction_is_stored_and_changes_nothing_but_the_epoch(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config())
    assert end(log, 7, commit=False, epoch=3).base_offset == 0
    commit_all(log)
    assert (log.transactions.last_stable(1), aborted(log)) == (1, [])
    assert refusal(log, 7, 0, epoch=2) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert send(log, 7, 0, epoch=3) == 1


def test_a_marker_with_a_higher_epoch_fences_the_producer(disk: Disk) -> None:
    """An abort that overtakes a batch in flight: the batch comes late, and must not begin a transaction that no
    coordinator knows, because that would never end."""
    log = Log.open(disk, FOLDER, config())
    send(log, 7, 0)
    end(log, 7, commit=False, epoch=1)
    assert refusal(log, 7, 1, epoch=0) == ErrorCode.INVALID_PRODUCER_EPOCH
    commit_all(log)
    assert log.transactions.first_unstable == NEVER
    assert refusal(log, 7, 1, epoch=1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("how", ["goes on", "reopens", "truncates"])
def test_a_sequence_that_is_used_again_after_an_abort_is_no_duplicate(disk: Disk, how: str) -> None:
    log = Log.open(disk, FOLDER, config())
    send(log, 7, 0, count=3)
    end(log, 7, commit=False, epoch=1)
    append(log, b"later")
    flush(log)
    if how == "reopens":
        if isinstance(disk, MemoryDisk):
            return
        log.close()
        log = Log.open(disk, FOLDER, config())
    elif how == "truncates":
        log.truncation.to_offset(Offset(4))
    again = append(log, b"n", b"e", b"w", producer=(7, 1, 0), transactional=True)
    assert (again.duplicate, again.base_offset) == (False, log.end_offset - 3)
    assert append(log, b"n", b"e", b"w", producer=(7, 1, 0), transactional=True).duplicate


def test_sequences_go_on_behind_a_marker_of_the_same_epoch(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config())
    send(log, 7, 0, count=3)
    end(log, 7, commit=True)
    assert append(log, b"v", b"v", b"v", producer=(7, 0, 0), transactional=True).duplicate
    assert log.transactions.open == {}, "a repeated batch begins no transaction"
    assert send(log, 7, 3) == 4
    assert log.transactions.open == {7: 4}


def test_a_marker_of_a_fenced_producer_or_an_older_coordinator_is_refused(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config())
    send(log, 7, 0, epoch=2)
    with pytest.raises(KafkaError) as caught:
        end(log, 7, commit=True, epoch=1)
    assert caught.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    end(log, 7, commit=True, epoch=2, coordinator_epoch=5)
    send(log, 7, 1, epoch=2)
    with pytest.raises(KafkaError) as caught:
        end(log, 7, commit=False, epoch=2, coordinator_epoch=4)
    assert caught.value.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert log.transactions.open == {7: 2}
    end(log, 7, commit=True, epoch=2, coordinator_epoch=5)


def test_the_coordinator_epoch_survives_a_restart_and_a_new_producer_epoch(sim: SimDisk) -> None:
    log = Log.open(sim, FOLDER, config())
    send(log, 7, 0)
    end(log, 7, commit=True, epoch=1, coordinator_epoch=5)
    send(log, 7, 0, epoch=1)
    log.close()
    log = Log.open(sim, FOLDER, config())
    with pytest.raises(KafkaError):
        end(log, 7, commit=True, epoch=1, coordinator_epoch=4)
    send(log, 7, 0, epoch=2)
    with pytest.raises(KafkaError):
        end(log, 7, commit=True, epoch=2, coordinator_epoch=4)


def test_within_a_transaction_other_batches_are_refused(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config())
    send(log, 7, 0)
    assert refusal(log, 7, 1, transactional=False) == ErrorCode.INVALID_TXN_STATE
    end(log, 7, commit=True)
    assert send(log, 7, 1, transactional=False) == 2


def test_a_control_batch_that_is_no_marker_is_refused(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config())
    data = bytearray(
        build_batch(
            [], producer_id=7, producer_epoch=0, transactional=True, control=True, last_offset_delta=0
        )
    )
    with pytest.raises(ValueError, match="does not end a transaction"):
        log.writer.append(data, read_header(data), Term(1), NOW_MS)


def test_no_more_than_the_most_transactions_are_open_on_a_partition() -> None:
    transactions = Transactions(max_open=2)
    transactions.begin(7, 0)
    transactions.begin(8, 1)
    transactions.check_room(7)
    with pytest.raises(KafkaError) as caught:
        transactions.check_room(9)
    assert caught.value.code == ErrorCode.POLICY_VIOLATION
    transactions.end(7, 2, commit=True, is_committed=False)
    transactions.check_room(9)


def test_a_leader_refuses_one_transaction_too_many_and_a_follower_takes_what_it_gets(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log.open(disk, FOLDER, config())
    monkeypatch.setattr(log.transactions, "_max_open", 1)
    send(log, 7, 0)
    assert refusal(log, 8, 0) == ErrorCode.POLICY_VIOLATION
    data, _ = batch(b"v", producer=(8, 0, 0), transactional=True)
    stamp(data, 0, log.end_offset, 1)
    append_entries(log, data)
    assert list(log.transactions.open) == [7, 8]


def test_a_producer_with_an_open_transaction_is_never_forgotten() -> None:
    states = ProducerStates(max_producers=3)
    for producer_id in range(1, 6):
        _, header = batch(b"v", producer=(producer_id, 0, 0), transactional=producer_id <= 4)
        states.record(header, producer_id, NOW_MS)
    assert states.ids() == {1, 2, 3, 4}
    states.expire(NOW_MS + 2 * DAY_MS)
    assert states.ids() == {1, 2, 3, 4}
    _, header = batch(b"v", producer=(1, 0, 1))
    states.record_marker(header, 6, EndMarker(True, 0), NOW_MS)
    _, header = batch(b"v", producer=(9, 0, 0))
    states.record(header, 7, NOW_MS)
    states.record(header._replace(producer_id=10), 8, NOW_MS)
    assert {2, 3, 4} <= states.ids()
    assert len(states) <= 5
    states.expire(NOW_MS + 2 * DAY_MS)
    assert states.ids() == {2, 3, 4}


def test_the_facts_of_producers_tell_their_transactions(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config())
    send(log, 7, 0, count=2)
    end(log, 7, commit=True, coordinator_epoch=4)
    send(log, 8, 0)
    end(log, 9, commit=False, epoch=1)
    assert log.producers.facts() == [
        ProducerFacts(7, 0, 1, NOW_MS + 1, 4, -1),
        ProducerFacts(8, 0, 0, NOW_MS, -1, 3),
        ProducerFacts(9, 1, -1, -1, 0, -1),
    ]


# --- the state survives


def state(log: Log) -> tuple[object, ...]:
    return log.producers.transaction_rows(), aborted(log), producer_state(log)


def busy(log: Log) -> None:
    """Open, committed and aborted transactions over several segments."""
    for number in range(12):
        for producer_id in range(4):
            send(log, producer_id, number)
        append(log, b"plain" * 10)
        for producer_id in range(3):
            if (number + producer_id) % 3 == 0:
                end(log, producer_id, commit=producer_id == 1, coordinator_epoch=number)
    flush(log)


def test_a_restart_reads_back_what_it_was(sim: SimDisk, small_intervals: None) -> None:
    log = Log.open(sim, FOLDER, SMALL)
    busy(log)
    before = state(log)
    assert aborted(log)
    assert log.transactions.open
    log.close()
    log = Log.open(sim, FOLDER, SMALL)
    assert state(log) == before
    for seed in range(5):
        assert state(Log.open(sim.after_power_cut(seed), FOLDER, SMALL)) == before


def test_without_snapshots_the_batches_give_the_same_state(sim: SimDisk) -> None:
    log = Log.open(sim, FOLDER, SMALL)
    busy(log)
    before = state(log)
    log.close()
    for name in sim.list_dir(FOLDER):
        if name.endswith(".snapshot"):
            sim.remove(f"{FOLDER}/{name}")
    assert state(Log.open(sim, FOLDER, SMALL)) == before


def test_a_truncated_marker_opens_its_transaction_again(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, SMALL)
    send(log, 7, 0)
    for _ in range(10):
        append(log, b"plain" * 20)
    before = state(log)
    marker = end(log, 7, commit=False, epoch=1, coordinator_epoch=3).base_offset
    send(log, 8, 0)
    send(log, 7, 0, epoch=1)
    flush(log)
    log.truncation.to_offset(Offset(marker))
    assert state(log) == before
    assert log.transactions.last_stable(log.end_offset) == 0
    end(log, 7, commit=True)
    assert aborted(log) == []


def test_a_replica_behind_the_prefix_knows_the_transactions_that_began_in_it(sim: SimDisk) -> None:
    log = Log.open(sim, FOLDER, SMALL)
    send(log, 7, 0)
    send(log, 8, 0)
    for _ in range(10):
        busy_until = append(log, b"plain" * 20).last_offset
    append(log, b"x" * 500)
    end(log, 7, commit=False, coordinator_epoch=6)
    send(log, 9, 0)
    flush(log)
    log.retention.delete_prefix(Offset(busy_until + 1))
    tidy(log)
    prefix = log.prefix()
    assert dict(prefix.transactions.open) == {7: 0, 8: 1}
    data = msgspec.msgpack.encode(prefix)
    other = Log.open(MemoryDisk(), "other-0", SMALL)
    other.reset(msgspec.msgpack.decode(data, type=Prefix))
    while other.entries.end_index < log.entries.end_index:
        append_entries(other, log.entries.read_entries(other.entries.end_index, 400)[0])
    assert other.transactions.open == log.transactions.open == {8: 1, 9: log.end_offset - 1}
    assert aborted(other) == aborted(log) == [(7, 0, busy_until + 2, 1)]
    assert {row.producer_id: row.coordinator_epoch for row in other.producers.facts()}[7] == 6


def test_a_prefix_with_impossible_transactions_is_refused() -> None:
    prefix = Prefix(offset=5, index=6, term=1, start_offset=5, producers=[], gaps_below=0, config=b"")
    prefix.validate()
    for wrong in (
        TransactionRows(open=[(7, 5)]),
        TransactionRows(open=[(7, -1)]),
        TransactionRows(aborted=b"x" * 32),
    ):
        with pytest.raises(ValueError, match="impossible prefix"):
            msgspec.structs.replace(prefix, transactions=wrong).validate()


def test_snapshots_and_prefixes_of_versions_without_transactions_are_read(sim: SimDisk) -> None:
    log = Log.open(sim, FOLDER, config())
    send(log, 7, 0, transactional=False)
    log.close()
    [name] = [name for name in sim.list_dir(FOLDER) if name.endswith(".snapshot")]
    data = sim.read_file(f"{FOLDER}/{name}")
    old = msgspec.msgpack.decode(data[HEAD.size :])[:-1]
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=Snapshot)
    assert read.transactions == TransactionRows()
    assert len(read.producers) == 1
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(Log.open(sim, FOLDER, config()).prefix()))[:-1]
    assert (
        msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=Prefix).transactions == TransactionRows()
    )


def test_deletion_of_the_prefix_does_not_end_a_transaction(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, SMALL)
    send(log, 7, 0)
    for _ in range(20):
        append(log, b"plain" * 20)
    commit_all(log)
    log.retention.delete_prefix(Offset(15))
    tidy(log)
    assert log.transactions.open == {7: 0}
    end(log, 7, commit=False)
    commit_all(log)
    assert aborted(log) == [(7, 0, 21, 22)]
    assert offsets(log)[0] == 15
    assert log.transactions.last_stable(22) == 22


def test_a_topic_that_stamps_its_time_takes_markers(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config(message_timestamp_log_append=True))
    send(log, 7, 0)
    end(log, 7, commit=False)
    assert aborted(log) == [(7, 0, 1, 2)]
    data = log.read(Offset(1), 1000, limit=Offset(2))
    assert check_batch(data).log_append_time
