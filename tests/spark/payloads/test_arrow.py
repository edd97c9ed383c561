"""Arrow values: many rows per record, types that fit and that do not, and limits on what a record can claim."""

import struct
from typing import Any

import pyarrow as pa
import pytest

from penstock.spark.payloads import Decoded, PayloadError, PayloadOptions, decoder_for, encoder_for, ipc_scan
from penstock.spark.payloads.ddl import parse_schema

OPTIONS = PayloadOptions(value_format="arrow")


def stream(
    batch: pa.RecordBatch, times: int = 1, file: bool = False, compression: str | None = None
) -> bytes:
    sink = pa.BufferOutputStream()
    how = pa.ipc.IpcWriteOptions(compression=compression)
    make = pa.ipc.new_file if file else pa.ipc.new_stream
    with make(sink, batch.schema, options=how) as writer:
        for _ in range(times):
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def decode(ddl: str, *values: bytes | None) -> Decoded:
    return decoder_for("arrow", parse_schema(ddl), OPTIONS).decode(pa.array(values, pa.binary()))


def column(ddl: str, array: pa.Array) -> Any:
    """The decoded column named `a`, or the reason why it is refused."""
    decoded = decode(ddl, stream(pa.record_batch({"a": array})))
    return decoded.bad[0][1] if decoded.bad else [row["a"] for row in decoded.values.to_pylist()]


@pytest.mark.parametrize("file", [False, True])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_streams_and_files_with_several_batches(file: bool, compression: str | None) -> None:
    batch = pa.record_batch({"b": ["x", "y"], "a": pa.array([1, 2], pa.int32()), "more": [[1], None]})
    value = stream(batch, 3, file, compression)
    decoded = decode("a bigint, b string", value, None, value)
    assert decoded.bad == []
    assert decoded.rows is not None
    assert decoded.rows.to_pylist() == [0] * 6 + [1] + [2] * 6
    assert decoded.values.to_pylist() == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}] * 3 + [None] + (
        [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}] * 3
    )


def test_a_record_without_rows_gives_none() -> None:
    empty = stream(pa.record_batch({"a": pa.array([], pa.int64())}))
    decoded = decode("a bigint", empty, empty)
    assert (decoded.values.to_pylist(), decoded.rows.to_pylist() if decoded.rows else [], decoded.bad) == (
        [],
        [],
        [],
    )


@pytest.mark.parametrize(
    ("ddl", "array"),
    [
        ("a bigint", pa.array([1, None], pa.int8())),
        ("a bigint", pa.array([1, None], pa.uint32())),
        ("a int", pa.array([1, None], pa.int64())),
        ("a double", pa.array([1, None], pa.float32())),
        ("a double", pa.array([1, None], pa.int32())),
        ("a string", pa.array(["x", None], pa.large_string())),
        ("a string", pa.array(["x" * 50, None, "y"], pa.string_view())),
        ("a string", pa.array(["x", None, "x"]).dictionary_encode()),
        ("a binary", pa.array([b"xy", None], pa.binary(2))),
        ("a decimal(20,3)", pa.array([1, None], pa.decimal128(9, 2))),
        ("a array<int>", pa.array([[1, None], None, []], pa.large_list(pa.int16()))),
        ("a array<int>", pa.array([[1, 2], None], pa.list_(pa.int32(), 2))),
        ("a map<string,double>", pa.array([[("k", 1.5)], None], pa.map_(pa.large_string(), pa.float32()))),
        ("a struct<y:int,x:string>", pa.array([{"x": "q", "y": 1, "z": 2}, None])),
        ("a int", pa.nulls(3)),
        ("a array<struct<b:int>>", pa.nulls(2)),
    ],
)
def test_types_that_fit(ddl: str, array: pa.Array) -> None:
    wanted = parse_schema(ddl).fields[0].dataType
    expected = array.to_pylist()
    if "struct<y" in ddl:
        expected = [{"y": 1, "x": "q"}, None]
    assert column(ddl, array) == expected, wanted


@pytest.mark.parametrize(
    ("ddl", "array", "reason"),
    [
        ("a bigint", pa.array(["1"]), "column 'a': expected int64, found string"),
        ("a float", pa.array([0.1]), "column 'a': expected float, found double"),
        ("a tinyint", pa.array([300]), "column 'a': not every int64 fits int8"),
        ("a int", pa.array([1.0]), "column 'a': expected int32, found double"),
        (
            "a timestamp",
            pa.array([1], pa.timestamp("us")),
            "expected timestamp[us, tz=UTC], found timestamp[us]",
        ),
        ("a timestamp", pa.array([1], pa.timestamp("ns", "UTC")), "not every timestamp[ns, tz=UTC] fits"),
        (
            "a decimal(3,2)",
            pa.array([1000], pa.decimal128(9, 2)),
            "column 'a': not every decimal128(9, 2) fits",
        ),
        ("a array<int>", pa.array([["x"]]), "column 'a[]': expected int32, found string"),
        ("a struct<b:int>", pa.array([{"c": 1}]), "column 'a.b': expected int32, found no such column"),
        ("a int NOT NULL", pa.array([1, None], pa.int32()), "field 'a': expected NOT NULL, found null"),
        ("b int", pa.array([1]), "column 'b': expected int32, found no such column"),
        ("a string", pa.array(["x"], pa.string()).cast(pa.binary()), "expected string, found binary"),
    ],
)
def test_types_that_do_not_fit_name_the_column(ddl: str, array: pa.Array, reason: str) -> None:
    assert reason in column(ddl, array)


def test_values_at_odd_addresses_are_read() -> None:
    value = stream(pa.record_batch({"a": list(range(100))}))
    for padding in range(9):
        decoded = decode("a bigint", value, b"x" * padding, value)
        assert [at for at, _ in decoded.bad] == [1]
        assert [row["a"] for row in decoded.values.to_pylist() if row] == list(range(100)) * 2


def test_invalid_utf8_and_offsets_are_found() -> None:
    good = stream(pa.record_batch({"a": ["aaaa", "bbbb"]}))
    at = good.index(b"aaaabbbb")
    assert decode("a string", good[:at] + b"\xff" + good[at + 1 :]).bad
    offsets = good.index(struct.pack("<iii", 0, 4, 8))
    assert decode("a string", good[:offsets] + struct.pack("<iii", 0, 4, 1 << 30) + good[offsets + 12 :]).bad


def test_a_second_stream_is_an_error_and_not_ignored() -> None:
    value = stream(pa.record_batch({"a": [1]}))
    assert "bytes follow the end of the stream" in decode("a bigint", value + value).bad[0][1]


def test_a_decompression_bomb_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    value = stream(pa.record_batch({"a": pa.array([0] * 1_000_000)}), compression="zstd")
    assert len(value) < 10_000
    assert decode("a bigint", value).bad == []
    monkeypatch.setattr(ipc_scan, "MAX_UNPACKED_BYTES", 7_000_000)
    assert "unpacks to 8000000 bytes" in decode("a bigint", value).bad[0][1]


def test_a_false_size_is_not_allocated() -> None:
    value = stream(pa.record_batch({"a": pa.array([0] * 1000)}), compression="lz4")
    at = value.rindex(struct.pack("<q", 8000))
    lie = value[:at] + struct.pack("<q", 1 << 45) + value[at + 8 :]
    assert f"unpacks to {1 << 45} bytes" in decode("a bigint", lie).bad[0][1]


def test_a_dictionary_of_one_huge_text_does_not_multiply() -> None:
    huge = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), ["x" * 100_000])
    assert "unpacks to 10000000000 bytes" in column("a string", huge)


def test_views_that_share_their_bytes_do_not_multiply() -> None:
    text = b"x" * 1_000_000
    views = struct.pack("<i4sii", len(text), text[:4], 0, 0) * 1000
    shared = pa.Array.from_buffers(pa.string_view(), 1000, [None, pa.py_buffer(views), pa.py_buffer(text)])
    assert "unpacks to 1000000000 bytes" in column("a string", shared)


def test_a_row_count_without_bytes_is_refused() -> None:
    value = stream(pa.record_batch({"a": pa.nulls(10_000_000)}))
    assert "claims 10000000 rows" in decode("a int", value).bad[0][1]
    assert len(decode("a int", stream(pa.record_batch({"a": pa.nulls(1000)}))).values) == 1000


def test_parts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.payloads.many_rows.PART_BYTES", 8000)
    value = stream(pa.record_batch({"a": list(range(500))}))
    values = pa.array([value, b"junk", value, None, value, value, value], pa.binary())
    decoder = decoder_for("arrow", parse_schema("a bigint"), OPTIONS)
    parts = list(decoder.parts(values))
    assert len(parts) > 1
    assert [at for part in parts for at, _ in part.bad] == [1]
    whole = decoder.decode(values)
    assert whole.rows is not None
    assert [r for p in parts for r in (p.rows or pa.array([])).to_pylist()] == whole.rows.to_pylist()
    assert len(whole.values) == 2502


def test_a_row_that_does_not_fit_a_record_is_an_error() -> None:
    schema = parse_schema("a string")
    encoder = encoder_for("arrow", schema, OPTIONS)
    kind = decoder_for("arrow", schema, OPTIONS).arrow_type
    with pytest.raises(PayloadError, match="at most 5000 are allowed"):
        encoder.pack(pa.array([{"a": "x"}, {"a": "x" * 10_000}], kind), 5000)
    skewed = pa.array([{"a": "x" * (4000 if i == 7 else 1)} for i in range(100)], kind)
    packed = encoder.pack(skewed, 5000)
    assert max(map(len, packed)) <= 5000
    assert len(decode("a string", *packed).values) == 100
