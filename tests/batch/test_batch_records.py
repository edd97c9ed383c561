import struct
from contextlib import suppress

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.batch import (
    HEADER_SIZE,
    Record,
    build_batch,
    check_batch,
    check_produced,
    compress,
    read_header,
    read_records,
    recompress,
    scan_batch,
    validate_records,
)
from penstock.errors import BatchError, ErrorCode
from tests.batch.batch_strategies import batches, codecs, record_lists

RECORDS = [
    Record(0, 1000, b"key", b"value", (("name", b"x"), ("null", None))),
    Record(1, 900, None, b""),
    Record(2, 5000, b"", None),
]


def resealed(batch: bytes) -> bytes:
    """The batch with a right length and CRC again, as a hostile client would send it."""
    head = bytearray(batch)
    head[8:12] = struct.pack(">i", len(head) - 12)
    head[17:21] = struct.pack(">I", crc32c(memoryview(head)[21:]))
    return bytes(head)


@settings(max_examples=100, deadline=None)
@given(record_lists(), codecs, st.integers(0, 2**40))
def test_built_records_are_read_back(records, codec, base_offset):
    records = [record._replace(offset=base_offset + record.offset) for record in records]
    batch = build_batch(records, base_offset=base_offset, leader_epoch=3, compression=codec)
    header = check_produced(batch)
    assert read_records(batch) == records
    assert (header.base_offset, header.last_offset, header.record_count) == (
        base_offset,
        records[-1].offset,
        len(records),
    )
    assert (header.compression, header.leader_epoch) == (codec, 3)
    assert header.base_timestamp == records[0].timestamp
    assert header.max_timestamp == max(record.timestamp for record in records)


@settings(max_examples=50, deadline=None)
@given(record_lists(gaps=True), codecs, st.integers(0, 5))
def test_compaction_may_leave_gaps_and_keep_the_range(records, codec, lost_at_the_end):
    last = records[-1].offset + lost_at_the_end
    batch = build_batch(records, compression=codec, last_offset_delta=last)
    assert check_batch(batch).last_offset == last
    assert read_records(batch) == records


def test_a_batch_that_lost_all_its_records_keeps_offsets_and_producer():
    batch = build_batch(
        [],
        base_offset=50,
        compression=4,
        last_offset_delta=9,
        producer_id=7,
        producer_epoch=0,
        base_sequence=3,
    )
    header = check_batch(batch)
    assert (header.size, header.base_offset, header.last_offset, header.last_sequence) == (61, 50, 59, 12)
    assert header.compression == 0
    assert read_records(batch) == []


def test_every_argument_reaches_its_field():
    batch = build_batch(
        RECORDS,
        leader_epoch=5,
        producer_id=2**40,
        producer_epoch=300,
        base_sequence=2**31 - 2,
        log_append_time=9000,
        transactional=True,
    )
    header = check_produced(batch)
    assert header.transactional
    assert header.log_append_time
    assert not header.control
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**40, 300, 2**31 - 2)
    assert (header.last_sequence, header.max_timestamp, header.leader_epoch) == (0, 9000, 5)
    assert {record.timestamp for record in read_records(batch)} == {9000}


@pytest.mark.parametrize(
    ("records", "named"),
    [
        ([Record(0, 1), Record(0, 1)], "offset=0"),
        ([Record(5, 1), Record(4, 1)], "offset=4"),
        ([Record(-1, 1)], "offset=-1"),
        ([Record(2**31, 1)], f"offset={2**31}"),
        ([Record(0, -2)], "timestamp=-2"),
        ([Record(0, 2**63)], f"timestamp={2**63}"),
    ],
)
def test_records_that_cannot_be_in_one_batch_are_not_built(records, named):
    with pytest.raises(ValueError, match=named):
        build_batch(records)


def test_a_range_shorter_than_the_records_is_not_built():
    with pytest.raises(ValueError, match="last_offset_delta=1"):
        build_batch(RECORDS, last_offset_delta=1)


def test_neither_records_nor_a_range_is_not_built():
    with pytest.raises(ValueError, match="last_offset_delta"):
        build_batch([])


def test_header_names_that_are_not_utf8_survive():
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    records = [Record(0, 0, b"k", b"v", ((name, b"1"),))]
    batch = build_batch(records)
    assert b"caf\xe9" in batch
    assert read_records(batch) == records


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_batch_is_read_in_place(codec, kind):
    batch = build_batch(RECORDS, compression=codec)
    assert read_records(kind(b"before" + batch + b"after"), 6) == RECORDS


@settings(max_examples=60, deadline=None)
@given(record_lists(), codecs, codecs)
def test_another_codec_changes_nothing_but_the_codec(records, first, second):
    batch = build_batch(
        records,
        compression=first,
        leader_epoch=9,
        producer_id=4,
        producer_epoch=1,
        base_sequence=8,
        transactional=True,
        log_append_time=7000,
    )
    again, after = recompress(batch, read_header(batch), second)
    assert read_records(again) == read_records(batch)
    before = read_header(batch)
    assert after == check_produced(again)
    assert after.compression == second
    changing = {"batch_length": 0, "crc": 0, "attributes": before.attributes & ~7}
    assert after._replace(**changing) == before._replace(**changing)
    assert after.attributes & ~7 == before.attributes & ~7 != 0


def test_a_level_reaches_the_codec():
    records = [Record(n, 0, None, str(n * n).encode() * 10) for n in range(500)]
    assert len(build_batch(records, compression=4, level=19)) < len(
        build_batch(records, compression=4, level=1)
    )
    plain = build_batch(records)
    header = read_header(plain)
    assert len(recompress(plain, header, 1, 9)[0]) < len(recompress(plain, header, 1, 1)[0])


@pytest.mark.parametrize("codec", range(5))
def test_a_decompression_bomb_is_refused_by_its_size(codec):
    batch = build_batch([Record(0, 0, None, bytes(3_000_000))], compression=codec)
    with pytest.raises(BatchError) as caught:
        read_records(memoryview(batch), max_bytes=1_000_000)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert len(read_records(batch, max_bytes=3_000_100)) == 1


@pytest.mark.parametrize("codec", range(5))
def test_wrong_record_counts_are_refused(codec):
    batch = bytearray(build_batch(RECORDS, compression=codec))
    for count in (1, 2, 4, 10, 2**31 - 1):
        struct.pack_into(">i", batch, 57, count)
        struct.pack_into(">i", batch, 23, max(count, 3) - 1)
        with pytest.raises(BatchError):
            read_records(resealed(batch))
        with pytest.raises(BatchError):
            validate_records(resealed(batch))


def test_offsets_beyond_the_range_that_the_header_claims_are_refused():
    batch = bytearray(build_batch(RECORDS[:2], last_offset_delta=5))
    assert validate_records(bytes(batch)).record_count == 2
    struct.pack_into(">i", batch, 23, 1)
    assert validate_records(resealed(batch)).last_offset_delta == 1
    records = [RECORDS[0], RECORDS[1]._replace(offset=4)]
    batch = bytearray(build_batch(records))
    struct.pack_into(">i", batch, 23, 3)
    with pytest.raises(BatchError, match=r"record 1: offset_delta=4: expected 1 \.\. 3"):
        validate_records(resealed(batch))


@pytest.mark.parametrize(("base", "timestamp"), [(0, 5000), (2**63 - 2, 2**63 - 1), (7, -1)])
def test_timestamps_that_leave_the_range_are_refused(base, timestamp):
    batch = bytearray(build_batch([Record(0, base), Record(1, timestamp)]))
    assert [record.timestamp for record in read_records(bytes(batch))] == [base, timestamp]
    moved = 2**63 - 1 if timestamp > base else -1
    struct.pack_into(">q", batch, 27, moved)
    with pytest.raises(BatchError, match="timestamp_delta") as caught:
        read_records(resealed(batch))
    assert caught.value.code is ErrorCode.INVALID_TIMESTAMP


def test_columns_point_into_the_batch_itself_where_nothing_is_compressed():
    batch = b"??" + build_batch(RECORDS)
    header, payload, columns = scan_batch(batch, 2)
    assert payload is batch
    assert columns.rows == header.record_count == 3
    starts = struct.unpack("<12i", columns.slices)
    assert batch[starts[0] : starts[1]] == b"key"
    assert batch[starts[2] : starts[3]] == b"value"


@settings(max_examples=200, deadline=None)
@given(batches(), st.data())
def test_a_hostile_client_with_a_right_checksum_gets_batch_errors_only(batch, data):
    plain, _ = recompress(batch, read_header(batch), 0)
    codec = data.draw(codecs)
    payload = bytearray(plain[HEADER_SIZE:])
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(payload)) | st.just(len(payload)))
    head = bytearray(plain[:HEADER_SIZE])
    head[22] = head[22] & ~7 | codec
    evil = resealed(bytes(head) + compress(codec, payload[:cut]))
    with suppress(BatchError):
        records = read_records(evil, max_bytes=100_000)
        assert len(records) == read_header(evil).record_count
        total = sum(len(record.key or b"") + len(record.value or b"") for record in records)
        assert total <= len(payload)
