"""Finding records by time, as ListOffsets asks."""

from random import Random

import pytest

from penstock.log import Disk, Log
from penstock.types import Offset
from tests.log.tools import FOLDER, NOW_MS, append, config, flush, records

END = Offset(2**62)


def filled(disk: Disk, compression: int = 0) -> Log:
    """Timestamps that rise on the whole and jump back and forth in detail."""
    random = Random(3)
    log = Log.open(disk, FOLDER, config(segment_bytes=1500, index_interval_bytes=150))
    for number in range(60):
        timestamp = NOW_MS + number * 10 + random.randrange(-60, 60)
        append(
            log, b"v" * 20, b"w", b"x", timestamp=timestamp, term=1 + number // 25, compression=compression
        )
    flush(log)
    return log


@pytest.mark.parametrize("compression", [0, 4])
def test_the_first_record_that_is_not_earlier_is_found(disk: Disk, compression: int) -> None:
    log = filled(disk, compression)
    everything = records(log)
    for timestamp in range(NOW_MS - 70, NOW_MS + 700, 7):
        for limit in (180, 100, 1):
            expected = next((r for r in everything if r.timestamp >= timestamp and r.offset < limit), None)
            found = log.find_timestamp(timestamp, Offset(limit))
            if expected is None:
                assert found is None
            else:
                assert found == (expected.timestamp, expected.offset, 1 + expected.offset // 75)


def test_the_latest_record_is_found_below_any_limit(disk: Disk) -> None:
    log = filled(disk)
    everything = records(log)
    for limit in range(3, 181, 6):
        expected = max((r for r in everything if r.offset < limit), key=lambda r: (r.timestamp, -r.offset))
        found = log.max_timestamp(Offset(limit))
        assert found is not None
        assert found[:2] == (expected.timestamp, expected.offset)
    assert log.max_timestamp(Offset(0)) is None


def test_deleted_records_are_not_found(disk: Disk) -> None:
    log = filled(disk)
    log.retention.delete_prefix(Offset(50))
    assert log.find_timestamp(0, END) == (records(log)[0].timestamp, 50, 1)
    append(log, b"now the only late one", timestamp=NOW_MS + 10**6, term=3)
    append(log, b"early", timestamp=1, term=3)
    flush(log)
    log.retention.delete_prefix(Offset(181))
    assert log.max_timestamp(END) == (1, 181, 3)


def test_an_empty_log_has_no_time(disk: Disk) -> None:
    log = Log.open(disk, FOLDER, config())
    assert log.find_timestamp(0, END) is None
    assert log.max_timestamp(END) is None


def test_times_are_found_after_reopening(disk: Disk) -> None:
    log = filled(disk)
    asked = range(NOW_MS - 70, NOW_MS + 700, 31)
    before = [log.find_timestamp(timestamp, END) for timestamp in asked]
    log.close()
    again = Log.open(disk, FOLDER, config(segment_bytes=1500, index_interval_bytes=150))
    assert [again.find_timestamp(timestamp, END) for timestamp in asked] == before
    assert again.max_timestamp(END) == log.max_timestamp(END)
