"""The scan, run compiled and as plain Python from the same source: both must agree on everything."""

import importlib.util
import struct
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import penstock.batch
from penstock.batch import Record, _rows, _scan
from penstock.errors import BatchError, ErrorCode
from tests.batch.batch_strategies import record_lists

EMPTY_RECORD = bytes([12, 0, 0, 0, 1, 1, 0])


def from_source(name: str) -> ModuleType:
    """The module run from its .py file, even if a compiled one exists."""
    path = Path(penstock.batch.__file__).parent / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"plain{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PLAIN_SCAN = from_source("_scan")
PLAIN_ROWS = from_source("_rows")

both = pytest.mark.parametrize("scanner", [_scan, PLAIN_SCAN], ids=["installed", "plain"])


def compiled(module: ModuleType) -> bool:
    return not str(module.__file__).endswith(".py")


def outcome(
    module: ModuleType, payload: bytes, count: int, last_offset_delta: int, base_timestamp: int = 1000
) -> tuple[object, ...]:
    try:
        return tuple(module.scan(payload, 0, len(payload), count, 10, last_offset_delta, base_timestamp))
    except BatchError as error:
        return (error.code, error.message)


def varint(value: int) -> bytes:
    """A second implementation, so that the encoder under test does not check itself."""
    raw = value * 2 if value >= 0 else -value * 2 - 1
    out = []
    while raw >= 128:
        out.append(raw % 128 + 128)
        raw //= 128
    return bytes([*out, raw])


def record(
    *, timestamp_delta=b"\0", offset_delta=b"\0", key=b"\1", value=b"\1", headers=b"\0", length=None
) -> bytes:
    body = b"\0" + timestamp_delta + offset_delta + key + value + headers
    return (varint(len(body)) if length is None else length) + body


def field(data: bytes) -> bytes:
    return varint(len(data)) + data


def refusal(scanner: ModuleType, payload: bytes, *, count: int = 1, last_offset_delta: int = 0) -> BatchError:
    with pytest.raises(BatchError) as caught:
        scanner.scan(payload, 0, len(payload), count, 0, last_offset_delta, 0)
    return caught.value


@both
def test_columns_have_the_positions_of_keys_and_values(scanner):
    first = record(key=field(b"key"), value=field(b"value"))
    second = record(offset_delta=varint(1), timestamp_delta=varint(-300), value=field(b"x" * 200))
    columns = scanner.scan(first + second, 0, len(first + second), 2, 2**40, 1, 10_000)
    slices = struct.unpack("<8i", columns.slices)
    payload = first + second
    assert payload[slices[0] : slices[1]] == b"key"
    assert payload[slices[2] : slices[3]] == b"value"
    assert slices[4] == slices[5]
    assert payload[slices[6] : slices[7]] == b"x" * 200
    assert list(slices) == sorted(slices)
    assert columns.nulls == bytes([0, 1])
    assert struct.unpack("<2q", columns.timestamps) == (10_000, 9_700)
    assert struct.unpack("<2q", columns.offsets) == (2**40, 2**40 + 1)
    assert (columns.rows, columns.header_slices, columns.header_nulls) == (2, b"", b"")
    assert struct.unpack("<3i", columns.header_ends) == (0, 0, 0)


@both
def test_headers_are_columns_too(scanner):
    two = varint(2) + field(b"a") + field(b"1") + field(b"") + b"\1"
    one = varint(1) + field(b"long name") + field(b"")
    payload = (
        record(headers=two) + record(offset_delta=varint(1)) + record(offset_delta=varint(2), headers=one)
    )
    columns = scanner.scan(payload, 0, len(payload), 3, 0, 2, 0)
    assert struct.unpack("<4i", columns.header_ends) == (0, 2, 2, 3)
    slices = struct.unpack("<12i", columns.header_slices)
    parts = [payload[slices[n] : slices[n + 1]] for n in range(0, 12, 2)]
    assert parts == [b"a", b"1", b"", b"", b"long name", b""]
    assert list(slices) == sorted(slices)
    assert columns.header_nulls == bytes([0, 2, 0])


@both
def test_positions_count_from_the_start_of_the_buffer(scanner):
    payload = record(key=field(b"key"))
    columns = scanner.scan(b"12345" + payload + b"67", 5, 5 + len(payload), 1, 0, 0, 0)
    start, end, *_ = struct.unpack("<4i", columns.slices)
    assert (b"12345" + payload)[start:end] == b"key"


@both
@pytest.mark.parametrize(
    ("base", "encoded", "timestamp"),
    [
        (0, b"\xfe" + b"\xff" * 8 + b"\x01", 2**63 - 1),
        (-1, b"\xfe" + b"\xff" * 8 + b"\x01", 2**63 - 2),
        (2**63 - 1, b"\xff" * 9 + b"\x01", -1),
        (2**63 - 1, b"\x00", 2**63 - 1),
        (0, b"\x01", -1),
        (0, b"\x7e", 63),
        (0, b"\x80\x01", 64),
        (0, b"\x80\x80\x01", 8192),
        (0, b"\x8a\x80\x80\x00", 5),
    ],
)
def test_timestamps_use_all_64_bits(scanner, base, encoded, timestamp):
    payload = record(timestamp_delta=encoded)
    columns = scanner.scan(payload, 0, len(payload), 1, 0, 0, base)
    assert struct.unpack("<q", columns.timestamps) == (timestamp,)


@both
@pytest.mark.parametrize(
    ("base", "delta"), [(0, -2), (1, 2**63 - 1), (2**63 - 1, 1), (-1, -1), (5, -7), (1000, -(2**63))]
)
def test_timestamps_beyond_64_bits_or_before_minus_one_are_refused(scanner, base, delta):
    payload = record(timestamp_delta=varint(delta))
    with pytest.raises(BatchError, match=f"record 0: timestamp_delta={delta}") as caught:
        scanner.scan(payload, 0, len(payload), 1, 0, 0, base)
    assert caught.value.code is ErrorCode.INVALID_TIMESTAMP


@both
@pytest.mark.parametrize(
    ("base_offset", "last_offset_delta", "base_timestamp"),
    [(-1, 0, 0), (0, -1, 0), (2**63 - 1, 1, 0), (0, 0, -2), (-(2**63), 0, 0)],
)
def test_impossible_bases_are_refused(scanner, base_offset, last_offset_delta, base_timestamp):
    with pytest.raises(BatchError, match="base_offset"):
        scanner.scan(EMPTY_RECORD, 0, 7, 1, base_offset, last_offset_delta, base_timestamp)


@both
@pytest.mark.parametrize(
    ("payload", "named"),
    [
        (record(length=varint(-1)), "record 0: length=-1: expected 0 .. 6"),
        (record(length=varint(7)), "record 0: length=7: expected 0 .. 6"),
        (record(length=varint(2**31 - 1)), f"record 0: length={2**31 - 1}"),
        (record(length=varint(5)) + b"\0", "record 0: length says that it ends at byte 6: expected 7"),
        (record(length=varint(7)) + b"\0", "record 0: length says that it ends at byte 8: expected 7"),
        (record() + b"\0", "1 bytes after the last record"),
        (record(key=varint(-2)), "record 0: key length=-2: expected -1 .. 2"),
        (record(key=varint(3)), "record 0: key length=3: expected -1 .. 2"),
        (record(value=varint(2)), "record 0: value length=2: expected -1 .. 1"),
        (record(value=varint(-(2**31))), f"record 0: value length={-(2**31)}"),
        (record(headers=varint(-1)), "record 0: header count=-1: expected 0 .. 0"),
        (record(headers=varint(2) + b"\0\0"), "record 0: header count=2: expected 0 .. 1"),
        (record(headers=varint(1) + b"\1\0"), "record 0: header key length=-1: expected 0 .. 1"),
        (record(headers=varint(1) + varint(2) + b"\0"), "record 0: header key length=2: expected -1 .. 1"),
        (
            record(headers=varint(1) + b"\0" + varint(-3)),
            "record 0: header value length=-3: expected -1 .. 0",
        ),
        (record(offset_delta=varint(-1)), "record 0: offset_delta=-1: expected 0 .. 0"),
        (record(offset_delta=varint(1)), "record 0: offset_delta=1: expected 0 .. 0"),
        (record(key=b"\xff\xff\xff\xff\x10" + b"\0" * 4), "varint at byte 4: expected at most 32 bits"),
        (record(key=b"\x80\x80\x80\x80\x80\x00"), "varint at byte 4: expected at most 32 bits"),
        (record(timestamp_delta=b"\xff" * 9 + b"\x02"), "varlong at byte 2: expected at most 64 bits"),
        (record(timestamp_delta=b"\x80" * 10 + b"\x00"), "varlong at byte 2: expected at most 64 bits"),
    ],
)
def test_every_length_is_checked_against_the_bytes_that_are_there(scanner, payload, named):
    error = refusal(scanner, payload)
    assert named in error.message
    assert error.code is ErrorCode.INVALID_RECORD


@both
def test_a_varint_that_runs_over_the_end_is_refused(scanner):
    cut = EMPTY_RECORD[:-1] + b"\x80"
    assert "the last one is cut" in refusal(scanner, cut).message


@both
@pytest.mark.parametrize("repeated", [0, 1])
def test_offsets_must_grow(scanner, repeated):
    payload = record(offset_delta=varint(1)) + record(offset_delta=varint(repeated))
    message = refusal(scanner, payload, count=2, last_offset_delta=9).message
    assert f"record 1: offset_delta={repeated}: expected 2 .. 9" in message


@both
@pytest.mark.parametrize("count", [-1, 0, 2, 3, 2**31 - 1, 2**60])
def test_a_wrong_count_is_refused_before_or_after_the_walk(scanner, count):
    assert refusal(scanner, EMPTY_RECORD, count=count, last_offset_delta=2**31 - 1)
    assert refusal(scanner, EMPTY_RECORD + b"\0" * 3, count=count, last_offset_delta=2**31 - 1)


@both
@pytest.mark.parametrize(("start", "end"), [(-1, 5), (3, 2), (0, 8), (8, 8), (0, 2**31)])
def test_a_range_outside_the_buffer_is_refused(scanner, start, end):
    with pytest.raises(BatchError, match="expected a range within 7 bytes"):
        scanner.scan(EMPTY_RECORD, start, end, 1, 0, 0, 0)


@both
def test_an_empty_payload_scans_to_no_records(scanner):
    columns = scanner.scan(b"", 0, 0, 0, 0, 0, 0)
    assert (columns.rows, columns.slices, columns.header_ends) == (0, b"", b"\0\0\0\0")


needs_compiled = pytest.mark.skipif(
    not (compiled(_scan) and compiled(_rows)), reason="installed without a compiler: nothing to compare"
)


@needs_compiled
@settings(max_examples=150, deadline=None)
@given(record_lists(gaps=True))
def test_compiled_and_plain_code_build_and_find_the_same(records):
    base = records[0].timestamp
    payload = _rows.encode_rows(records, 0, base)
    assert payload == PLAIN_ROWS.encode_rows(records, 0, base)
    last = records[-1].offset
    found = outcome(_scan, payload, len(records), last, base)
    assert found == outcome(PLAIN_SCAN, payload, len(records), last, base)
    columns = PLAIN_SCAN.Columns(*found)
    rows = [(10 + row.offset, *row[1:]) for row in records]
    assert (
        _rows.decode_rows(payload, _scan.Columns(*found)) == PLAIN_ROWS.decode_rows(payload, columns) == rows
    )


@needs_compiled
@settings(max_examples=400, deadline=None)
@given(record_lists(), st.data())
def test_compiled_and_plain_code_raise_the_same_errors(records, data):
    payload = bytearray(_rows.encode_rows(records, 0, records[0].timestamp))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(payload[: data.draw(st.integers(0, len(payload)) | st.just(len(payload)))])
    count, last = data.draw(st.integers(0, len(records) + 1)), data.draw(st.integers(0, 20))
    base = data.draw(st.sampled_from([records[0].timestamp, -1, 2**63 - 1]))
    assert outcome(_scan, cut, count, last, base) == outcome(PLAIN_SCAN, cut, count, last, base)


@needs_compiled
@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=100), st.integers(0, 14))
@example(b"\x0c\x00" + b"\xff" * 12, 1)
def test_compiled_and_plain_code_agree_on_random_bytes(noise, count):
    assert outcome(_scan, noise, count, 20) == outcome(PLAIN_SCAN, noise, count, 20)


@needs_compiled
@pytest.mark.parametrize("rows", [[Record(3, 1), Record(2, 1)], [Record(0, -2)], [Record(2**70, 0)]])
def test_compiled_and_plain_code_refuse_to_build_the_same_batches(rows):
    with pytest.raises(ValueError) as from_compiled:
        _rows.encode_rows(rows, 0, 0)
    with pytest.raises(ValueError) as from_plain:
        PLAIN_ROWS.encode_rows(rows, 0, 0)
    assert str(from_compiled.value) == str(from_plain.value)
