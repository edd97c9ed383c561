"""The marker that ends a transaction: Kafka's bytes, which other implementations read."""

import io

import pytest
from aiokafka.record.control_record import ABORT_MARKER, COMMIT_MARKER, ControlRecord
from aiokafka.record.default_records import DefaultRecordBatch
from kafka.record import MemoryRecords
from kio.records.readers import read_batch
from kio.schema.end_txn_marker.v0 import EndTxnMarker
from kio.serial import entity_writer

from penstock.batch import (
    EndMarker,
    Record,
    build_batch,
    build_marker,
    check_batch,
    check_produced,
    delete_horizon_ms,
    read_marker,
    read_records,
    with_delete_horizon,
    zero_width_batch,
)
from penstock.errors import BatchError

TIME_MS = 1_700_000_000_000
DAY_MS = 86_400_000

GOLDEN_COMMIT = bytes.fromhex(
    "000000000000002a" "00000042" "00000005" "02" "412a64dd"
    "0030" "00000000" "0000018bcfe56800" "0000018bcfe56800" "000000000000004d" "0003" "ffffffff" "00000001"
    "20" "00" "00" "00" "08" "00000001" "0c" "000000000009" "00"
)  # fmt: skip
"""Put together by hand from Kafka's description: header, then the record (length, attributes, two deltas, key, value,
no headers)."""


def marker(commit: bool = True) -> bytearray:
    return build_marker(
        EndMarker(commit, 9), producer_id=77, producer_epoch=3, timestamp_ms=TIME_MS, offset=42, term=5
    )


def test_a_marker_has_the_bytes_that_kafka_describes() -> None:
    assert marker() == GOLDEN_COMMIT


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_owns_an_offset_and_says_how_the_transaction_ended(commit: bool) -> None:
    data = marker(commit)
    header = check_batch(data)
    assert (header.base_offset, header.next_offset, header.is_zero_width) == (42, 43, False)
    assert header.control
    assert header.transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, -1)
    assert read_marker(data, header) == EndMarker(commit, 9)


@pytest.mark.parametrize("commit", [True, False])
def test_three_other_implementations_read_it(commit: bool) -> None:
    data = bytes(marker(commit))
    [theirs] = DefaultRecordBatch(bytearray(data))
    assert ControlRecord.parse(theirs.key) == (COMMIT_MARKER if commit else ABORT_MARKER)
    batch = MemoryRecords(data).next_batch()
    assert batch.validate_crc()
    assert batch.is_control_batch
    assert [record.commit for record in batch] == [commit]
    [record] = read_batch(data, 0)[0].records
    with io.BytesIO() as buffer:
        entity_writer(EndTxnMarker)(buffer, EndTxnMarker(coordinator_epoch=9))
        assert record.value == b"\0\0" + buffer.getvalue()


def test_only_a_marker_is_read_as_one() -> None:
    for data in (
        build_batch([Record(0, 1, b"\0\0\0\1", b"\0\0\0\0\0\0")]),
        build_batch([Record(0, 1, b"\0\0\0\2", b"\0\0\0\0\0\0")], producer_id=1, producer_epoch=0,
                    transactional=True, control=True),
        build_batch([Record(0, 1, b"\0\0", b"")], producer_id=1, producer_epoch=0, transactional=True, control=True),
        build_batch([Record(0, 1)], producer_id=1, producer_epoch=0, transactional=True, control=True),
        zero_width_batch(offset=3, term=1, payload=b"members"),
    ):  # fmt: skip
        assert read_marker(data, check_batch(data)) is None


def test_a_later_version_with_more_fields_is_read() -> None:
    row = Record(0, 1, b"\0\1\0\1more", b"\0\1\0\0\0\7more")
    data = build_batch([row], producer_id=1, producer_epoch=0, transactional=True, control=True)
    assert read_marker(data, check_batch(data)) == EndMarker(True, 7)


def test_no_client_may_produce_a_marker() -> None:
    with pytest.raises(BatchError, match="no control"):
        check_produced(marker())


def test_a_delete_horizon_changes_nothing_but_the_time_at_which_the_marker_may_go() -> None:
    data = marker()
    header = check_batch(data)
    assert delete_horizon_ms(header) is None
    kept = with_delete_horizon(data, header, TIME_MS + DAY_MS)
    changed = check_batch(kept)
    assert delete_horizon_ms(changed) == TIME_MS + DAY_MS
    assert read_records(kept) == read_records(data)
    assert read_marker(kept, changed) == EndMarker(True, 9)
    assert (changed.base_offset, changed.max_timestamp) == (42, TIME_MS)
    [theirs] = MemoryRecords(kept).next_batch()
    assert theirs.timestamp == TIME_MS
