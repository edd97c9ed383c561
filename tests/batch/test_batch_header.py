import struct
from contextlib import suppress

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.batch import (
    HEADER_SIZE,
    BatchHeader,
    Record,
    build_batch,
    check_batch,
    check_produced,
    iter_headers,
    read_header,
    read_records,
    set_log_append_time,
    stamp,
    zero_width_batch,
)
from penstock.errors import BatchError, ErrorCode
from tests.batch.batch_strategies import batches

POSSIBLE = BatchHeader(
    base_offset=100,
    batch_length=49 + 14,
    leader_epoch=7,
    magic=2,
    crc=0,
    attributes=0,
    last_offset_delta=1,
    base_timestamp=1000,
    max_timestamp=2000,
    producer_id=5,
    producer_epoch=1,
    base_sequence=10,
    record_count=2,
)


def with_fields(**fields: int) -> bytes:
    """A batch with these header fields, valid or not, and a matching CRC."""
    header = POSSIBLE._replace(**fields)
    covered = struct.pack(">hiqqqhii", *header[5:]) + bytes(max(header.batch_length - 49, 0))
    return struct.pack(">qiibI", *header[:4], crc32c(covered)) + covered


def refusal(batch: bytes, check=check_batch) -> BatchError:
    with pytest.raises(BatchError) as caught:
        check(batch)
    return caught.value


def test_the_header_is_61_bytes_in_kafkas_order():
    raw = bytes.fromhex(
        "0000000000000001 00000031 00000003 02 fedcba98 0013 00000004 0000000000000005 0000000000000006"
        "0000000000000007 0008 00000009 0000000a"
    )
    assert len(raw) == HEADER_SIZE
    assert read_header(raw) == BatchHeader(1, 49, 3, 2, 0xFEDCBA98, 0x13, 4, 5, 6, 7, 8, 9, 10)


def test_attributes_tell_codec_time_type_transaction_and_control():
    header = POSSIBLE._replace(attributes=0b0011_1011)
    assert (header.compression, header.log_append_time, header.transactional, header.control) == (
        3,
        True,
        True,
        True,
    )
    plain = POSSIBLE._replace(attributes=0)
    assert (plain.compression, plain.log_append_time, plain.transactional, plain.control) == (
        0,
        False,
        False,
        False,
    )


def test_offsets_and_size_follow_from_the_fields():
    assert (POSSIBLE.size, POSSIBLE.last_offset, POSSIBLE.next_offset) == (75, 101, 102)
    assert not POSSIBLE.is_zero_width


@pytest.mark.parametrize(
    ("base_sequence", "last_offset_delta", "expected"),
    [(0, 0, 0), (10, 5, 15), (2**31 - 1, 0, 2**31 - 1), (2**31 - 1, 1, 0), (2**31 - 2, 4, 2), (-1, 9, -1)],
)
def test_sequences_wrap_to_zero_after_the_greatest_int32(base_sequence, last_offset_delta, expected):
    header = POSSIBLE._replace(base_sequence=base_sequence, last_offset_delta=last_offset_delta)
    assert header.last_sequence == expected


@pytest.mark.parametrize("length", [0, 1, 60])
def test_a_short_header_is_refused(length):
    error = refusal(with_fields()[:length], read_header)
    assert f"{length} bytes" in error.message
    assert error.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("magic", [0, 1, 3, -1])
def test_other_formats_than_v2_have_their_own_error_code(magic):
    error = refusal(with_fields(magic=magic), read_header)
    assert error.code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert f"magic={magic}" in error.message


@pytest.mark.parametrize("batch_length", [48, 0, -1, -(2**31)])
def test_a_length_that_cannot_hold_the_header_is_refused(batch_length):
    assert (
        f"batch_length={batch_length}" in refusal(with_fields(batch_length=batch_length), read_header).message
    )


def test_a_cut_batch_is_refused():
    batch = with_fields()
    assert "batch_length=63" in refusal(batch[:-1]).message
    assert check_batch(batch + b"more") == check_batch(batch)


def test_a_batch_is_found_at_its_position():
    batch = with_fields()
    assert (
        check_batch(b"xyz" + batch, 3) == check_batch(batch) == check_produced(memoryview(b"xyz" + batch), 3)
    )
    assert "crc" in refusal(b"xyz" + batch[:-1] + b"\x01", lambda buf: check_batch(buf, 3)).message


def test_a_wrong_checksum_names_both_values():
    batch = bytearray(with_fields())
    right = read_header(batch).crc
    batch[17:21] = struct.pack(">I", right ^ 1)
    error = refusal(bytes(batch))
    assert error.code is ErrorCode.CORRUPT_MESSAGE
    assert f"{right:#010x}" in error.message
    assert f"{right ^ 1:#010x}" in error.message


@pytest.mark.parametrize(
    ("fields", "named", "code"),
    [
        ({"attributes": 0x80}, "attributes=128", ErrorCode.INVALID_RECORD),
        ({"attributes": -1}, "attributes=-1", ErrorCode.INVALID_RECORD),
        ({"attributes": 5}, "compression=5", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"attributes": 7}, "compression=7", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"record_count": -1}, "record_count=-1", ErrorCode.INVALID_RECORD),
        ({"record_count": 3, "last_offset_delta": 2}, "record_count=3", ErrorCode.INVALID_RECORD),
        ({"record_count": 2, "last_offset_delta": 0}, "last_offset_delta=0", ErrorCode.INVALID_RECORD),
        ({"record_count": 0, "last_offset_delta": -1}, "last_offset_delta=-1", ErrorCode.INVALID_RECORD),
        ({"record_count": 0, "last_offset_delta": -2}, "last_offset_delta=-2", ErrorCode.INVALID_RECORD),
        ({"record_count": 0, "last_offset_delta": 5}, "batch_length=63", ErrorCode.INVALID_RECORD),
        ({"base_timestamp": -2}, "base_timestamp=-2", ErrorCode.INVALID_TIMESTAMP),
        ({"max_timestamp": -2}, "max_timestamp=-2", ErrorCode.INVALID_TIMESTAMP),
        ({"producer_id": -2}, "producer_id=-2", ErrorCode.INVALID_RECORD),
        ({"producer_id": -1, "attributes": 0x10}, "producer_id=-1", ErrorCode.INVALID_RECORD),
        ({"producer_epoch": -1}, "producer_epoch=-1", ErrorCode.INVALID_RECORD),
        ({"base_sequence": -1}, "base_sequence=-1", ErrorCode.INVALID_RECORD),
    ],
)
def test_impossible_fields_are_refused_by_name_and_value(fields, named, code):
    for check in (check_batch, check_produced):
        error = refusal(with_fields(**fields), check)
        assert error.message.startswith(named + ":")
        assert "expected" in error.message
        assert error.code is code


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"base_offset": -1}, "base_offset=-1"),
        ({"base_offset": 2**63 - 2}, f"base_offset={2**63 - 2}"),
        ({"leader_epoch": -2}, "leader_epoch=-2"),
    ],
)
def test_fields_that_the_broker_overwrites_are_checked_only_once_stored(fields, named):
    batch = with_fields(**fields)
    assert refusal(batch).message.startswith(named)
    assert check_produced(batch).record_count == 2


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"record_count": 0, "last_offset_delta": 5, "batch_length": 49}, "record_count=0"),
        ({"record_count": 1, "last_offset_delta": 1}, "last_offset_delta=1"),
        ({"attributes": 0x20}, "attributes=32"),
        ({"attributes": 0x40}, "attributes=64"),
    ],
)
def test_stored_batches_may_have_fields_that_clients_may_not_send(fields, named):
    batch = with_fields(**fields)
    assert check_batch(batch)
    assert refusal(batch, check_produced).message.startswith(named + ":")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"attributes": 4},
        {"attributes": 8},
        {"attributes": 0x10},
        {"base_timestamp": -1, "max_timestamp": -1},
        {"max_timestamp": -1},
        # Without a producer id, clients leave either -1 or 0 in the two fields after it.
        {"producer_id": -1, "producer_epoch": -1, "base_sequence": -1},
        {"producer_id": -1, "producer_epoch": 0, "base_sequence": 0},
        {"attributes": 3, "record_count": 1000, "last_offset_delta": 999},
    ],
)
def test_batches_of_clients_are_accepted(fields):
    batch = with_fields(**fields)
    assert check_produced(batch) == check_batch(batch) == read_header(batch)


def test_a_transaction_marker_has_a_producer_and_no_sequence():
    marker = build_batch(
        [Record(9, 1, b"\0\0\0\1", b"\0\0\0\0\0\0")],
        base_offset=9,
        producer_id=3,
        producer_epoch=0,
        transactional=True,
        control=True,
    )
    assert check_batch(marker).last_sequence == -1


def test_stamping_changes_offset_and_term_and_keeps_the_checksum():
    buf = bytearray(b"ab" + with_fields())
    before = check_batch(buf, 2)
    stamp(memoryview(buf), 2, 2**40, 12)
    assert check_batch(buf, 2) == before._replace(base_offset=2**40, leader_epoch=12)
    assert buf[:2] == b"ab"


def test_headers_are_walked_until_an_incomplete_tail():
    batches = [with_fields(base_offset=n, batch_length=63 + n) for n in range(5)]
    whole = b"".join(batches)
    found = list(iter_headers(whole))
    assert [pos for pos, _ in found] == [0, 75, 151, 228, 306]
    assert [header for _, header in found] == [check_batch(batch) for batch in batches]
    for cut in (1, 17, 18, 78):
        assert list(iter_headers(memoryview(whole)[:-cut])) == found[:-1]
    assert list(iter_headers(b"")) == []


def test_a_wrong_magic_in_the_middle_stops_the_walk_with_an_error():
    with pytest.raises(BatchError, match="magic=1"):
        list(iter_headers(with_fields() + with_fields(magic=1)))


def test_log_append_time_replaces_the_records_own_times():
    records = [Record(0, 1000, b"k", b"v"), Record(1, 3000, None, b"w")]
    sent = build_batch(records)
    batch, header = set_log_append_time(sent, check_produced(sent), 5000)
    assert header == check_produced(batch)
    assert (header.log_append_time, header.base_timestamp, header.max_timestamp) == (True, 1000, 5000)
    assert read_records(batch) == [record._replace(timestamp=5000) for record in records]


def test_a_zero_width_batch_owns_no_offset_and_carries_its_payload():
    batch = zero_width_batch(offset=42, term=6, payload=b"members")
    header = check_batch(batch)
    assert header.is_zero_width
    assert header.control
    assert (header.base_offset, header.next_offset, header.leader_epoch) == (42, 42, 6)
    assert batch[HEADER_SIZE : header.size] == b"members"
    assert read_records(batch) == []
    assert "record_count=0" in refusal(batch, check_produced).message
    assert "crc" in refusal(batch[:-1] + b"!").message


@settings(max_examples=150, deadline=None)
@given(batches(), st.data())
def test_any_changed_byte_that_the_checksum_covers_is_detected(batch, data):
    pos = data.draw(st.integers(0, len(batch) - 1))
    flip = data.draw(st.integers(1, 255))
    changed = bytearray(batch)
    changed[pos] ^= flip
    if pos < 8 or 12 <= pos < 16:
        before, after = read_header(batch), check_produced(changed)
        assert after._replace(base_offset=0, leader_epoch=0) == before._replace(base_offset=0, leader_epoch=0)
    else:
        with pytest.raises(BatchError):
            check_produced(changed)
        with pytest.raises(BatchError):
            read_records(bytes(changed))


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_random_bytes_raise_only_batch_errors(noise, with_magic):
    buf = bytearray(noise)
    if with_magic and len(buf) > 16:
        buf[8:12] = struct.pack(">i", len(buf) - 12)
        buf[16] = 2
    for check in (read_header, check_batch, check_produced, read_records, lambda b: list(iter_headers(b))):
        with suppress(BatchError):
            check(buf)


header_fields = st.fixed_dictionaries(
    {},
    optional={
        "attributes": st.integers(-(2**15), 2**15 - 1) | st.integers(0, 127),
        "last_offset_delta": st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 3),
        "base_timestamp": st.integers(-(2**63), 2**63 - 1),
        "max_timestamp": st.integers(-(2**63), 2**63 - 1),
        "producer_id": st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 1),
        "producer_epoch": st.integers(-(2**15), 2**15 - 1),
        "base_sequence": st.integers(-(2**31), 2**31 - 1),
        "record_count": st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 3),
    },
)


@settings(max_examples=200, deadline=None)
@given(header_fields)
def test_a_header_with_a_right_checksum_and_any_fields_is_checked_or_refused(fields):
    batch = with_fields(**fields)
    for check in (check_batch, check_produced, lambda b: read_records(b, max_bytes=1000)):
        with suppress(BatchError):
            check(batch)
    try:
        header = check_produced(batch)
    except BatchError:
        return
    assert 1 <= header.record_count == header.last_offset_delta + 1
    assert header.compression <= 4
    assert min(header.base_timestamp, header.max_timestamp) >= -1
