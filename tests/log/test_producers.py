"""Idempotent producers: a retry is stored once, also after a restart, a crash, and the deletion of its records."""

import pytest

from penstock.errors import ErrorCode, KafkaError
from penstock.log import Disk, Log, MemoryDisk
from penstock.log.producers import ProducerStates
from penstock.sim import SimDisk
from penstock.types import Offset
from tests.log.tools import FOLDER, NOW_MS, append, batch, config, flush, offsets, producer_state, tidy

DAY_MS = 86_400_000


def refused(log: Log, **options: object) -> ErrorCode:
    before = log.end_offset
    with pytest.raises(KafkaError) as caught:
        append(log, b"v", **options)
    assert log.end_offset == before
    return caught.value.code


def send(log: Log, sequence: int, epoch: int = 0, count: int = 1, producer: int = 7) -> tuple[int, bool]:
    appended = append(log, *[b"v"] * count, producer=(producer, epoch, sequence))
    return appended.base_offset, appended.duplicate


def test_a_repeated_batch_is_answered_with_its_first_offsets(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config())
    for number in range(8):
        assert send(log, 3 * number, count=3) == (3 * number, False)
    for number in range(3, 8):
        assert send(log, 3 * number, count=3) == (3 * number, True)
    assert offsets(log) == list(range(24))


def test_older_repetitions_gaps_and_partial_repetitions_are_out_of_order(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config())
    for number in range(8):
        send(log, number)
    for sequence in (0, 2, 9, 100):
        assert refused(log, producer=(7, 0, sequence)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    with pytest.raises(KafkaError):
        send(log, 6, count=2)


def test_a_newer_epoch_takes_over_and_fences_the_old_one(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config())
    send(log, 0)
    assert refused(log, producer=(7, 1, 5)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 0, epoch=1) == (1, False)
    assert refused(log, producer=(7, 0, 1)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert send(log, 1, epoch=1) == (2, False)


def test_an_unknown_producer_may_begin_anywhere(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config())
    assert send(log, 41) == (0, False)
    assert send(log, 42) == (1, False)


def test_sequences_wrap_after_the_greatest_int(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config())
    assert send(log, 2**31 - 2, count=4) == (0, False)
    assert send(log, 2) == (4, False)
    assert send(log, 2**31 - 2, count=4) == (0, True)


@pytest.mark.parametrize("ending", ["close", "crash"])
def test_duplicates_gaps_and_fences_are_known_after_a_restart(sim: SimDisk, ending: str) -> None:
    log = Log.open(sim, FOLDER, config())
    send(log, 0, epoch=1)
    send(log, 1, epoch=1)
    flush(log)
    if ending == "close":
        log.close()
    log = Log.open(sim.after_power_cut(5), FOLDER, config())
    assert send(log, 1, epoch=1) == (1, True)
    assert refused(log, producer=(7, 1, 5)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(log, producer=(7, 0, 2)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert send(log, 2, epoch=1) == (2, False)


def test_a_producer_is_known_after_its_records_were_deleted(sim: SimDisk) -> None:
    log = Log.open(sim, FOLDER, config(segment_bytes=300))
    send(log, 0)
    for _ in range(6):
        append(log, b"other" * 20)
    flush(log)
    log.retention.delete_prefix(Offset(6))
    tidy(log)
    assert len([name for name in sim.list_dir(FOLDER) if name.endswith(".log")]) < 3
    log = Log.open(sim.after_power_cut(1), FOLDER, config(segment_bytes=300))
    assert send(log, 0) == (0, True)


def test_truncation_restores_the_earlier_producer_state(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config(segment_bytes=300))
    for sequence in range(10):
        send(log, sequence)
        append(log, b"between")
    log.truncation.to_offset(Offset(9))
    assert send(log, 4) == (8, True)
    assert send(log, 5) == (9, False)


def test_a_log_append_time_is_repeated_with_the_duplicate(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config(message_timestamp_log_append=True))
    data, header = batch(b"v", producer=(7, 0, 0))
    first = log.writer.append(data, header, 1, NOW_MS)  # type: ignore[arg-type]
    again = log.writer.append(data, header, 1, NOW_MS + 5)  # type: ignore[arg-type]
    assert (first.timestamp_ms, again.timestamp_ms, again.duplicate) == (NOW_MS, NOW_MS, True)


def test_a_silent_producer_is_forgotten_after_a_day() -> None:
    log = Log.open(MemoryDisk(), FOLDER, config(retention_ms=-1))
    append(log, b"v", producer=(7, 0, 0))
    append(log, b"v", producer=(8, 0, 0), now_ms=NOW_MS + 5)
    log.retention.apply(NOW_MS + DAY_MS - 1)
    assert len(log.producers) == 2
    log.retention.apply(NOW_MS + DAY_MS)
    assert [row[0] for row in producer_state(log)] == [8]


def test_a_producer_seen_before_a_crash_gets_a_full_day_more(sim: SimDisk) -> None:
    log = Log.open(sim, FOLDER, config(retention_ms=-1))
    append(log, b"v", producer=(7, 0, 0), timestamp=5)
    flush(log)
    log = Log.open(sim.after_power_cut(1), FOLDER, config(retention_ms=-1))
    log.retention.apply(NOW_MS)
    log.retention.apply(NOW_MS + DAY_MS - 1)
    assert len(log.producers) == 1
    log.retention.apply(NOW_MS + DAY_MS)
    assert len(log.producers) == 0


def test_the_number_of_producers_is_bounded_and_the_longest_idle_one_is_dropped_first() -> None:
    states = ProducerStates(max_producers=3)
    for producer in (1, 2, 3, 1, 4):
        states.record(batch(b"v", producer=(producer, 0, 0))[1], 0, NOW_MS)
    assert [row[0] for row in states.rows()] == [3, 1, 4]
