"""Headers that control the delivery of a record, and how invalid values are treated."""

import pytest

from penstock.batch import Record
from penstock.node.queues.delivery_headers import (
    DELAY_MS,
    DELIVER_AT,
    LATEST_MS,
    TTL_MS,
    RecordTimes,
    times_of,
)

NOW_MS = 1_762_000_000_000


def times(**headers: bytes | None) -> RecordTimes:
    names = {"delay": DELAY_MS, "at": DELIVER_AT, "ttl": TTL_MS}
    pairs = tuple((names[name], value) for name, value in headers.items())
    return times_of(Record(0, NOW_MS, None, b"", pairs))


def test_a_delay_and_a_ttl_count_from_the_timestamp() -> None:
    assert times(delay=b"500") == RecordTimes(NOW_MS + 500, None)
    assert times(ttl=b"500") == RecordTimes(None, NOW_MS + 500)


def test_a_ttl_counts_from_when_the_message_is_due() -> None:
    assert times(delay=b"3600000", ttl=b"60000") == RecordTimes(NOW_MS + 3_600_000, NOW_MS + 3_660_000)
    assert times(at=b"%d" % (NOW_MS + 7), ttl=b"5") == RecordTimes(NOW_MS + 7, NOW_MS + 12)
    assert times(at=b"1000", ttl=b"5") == RecordTimes(1000, NOW_MS + 5), "due before it was written"


@pytest.mark.parametrize("value", [b"", b"soon", b"-5", b"1.5", b" 5", b"1e3", "٣".encode(), None])
def test_a_header_that_is_no_number_is_ignored(value: bytes | None) -> None:
    assert times(delay=value, at=value, ttl=value) == RecordTimes(None, None)


@pytest.mark.parametrize("digits", [15, 18, 19, 40, 5_000])
def test_a_too_large_number_means_the_end_of_the_year_9999(digits: int) -> None:
    assert times(at=b"9" * digits) == RecordTimes(LATEST_MS, None)
    assert times(delay=b"9" * digits) == RecordTimes(LATEST_MS, None)
    assert times(ttl=b"9" * digits) == RecordTimes(None, LATEST_MS)


def test_leading_zeros_are_ignored() -> None:
    assert times(delay=b"0" * 40 + b"5") == RecordTimes(NOW_MS + 5, None)
    assert times(delay=b"0" * 40) == RecordTimes(NOW_MS, None)
