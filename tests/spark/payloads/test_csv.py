"""CSV values: one record is one row, by position."""

import random
from typing import Any

import pyarrow as pa
import pytest

from penstock.spark.payloads import PayloadError, PayloadOptions, decoder_for, infer_schema
from penstock.spark.payloads.csv_read import CsvDecoder
from penstock.spark.payloads.ddl import parse_schema


def decode(ddl: str, *values: bytes, **options: str) -> tuple[list[Any], dict[int, str]]:
    made = PayloadOptions(value_format="csv", **options)  # type: ignore[arg-type]
    decoded = decoder_for("csv", parse_schema(ddl), made).decode(pa.array(values, pa.binary()))
    return [None if row is None else tuple(row.values()) for row in decoded.values.to_pylist()], dict(
        decoded.bad
    )


def test_an_empty_field_is_null_and_a_quoted_one_is_an_empty_string() -> None:
    assert decode("a string, b string, c int", b',"",')[0] == [(None, "", None)]


def test_quotes_delimiters_and_line_breaks_inside_quotes() -> None:
    rows, bad = decode("a string, b int", b'"x,""y""",1', b'"one\ntwo",2', b'"three\r\n",3\r\n', b"plain,4\n")
    assert bad == {}
    assert rows == [('x,"y"', 1), ("one\ntwo", 2), ("three\r\n", 3), ("plain", 4)]


def test_blocks_with_line_breaks_are_read_as_their_records_would_be() -> None:
    chance = random.Random(3)
    pieces = [b'"', b'""', b",", b"\n", b"\r\n", b"a", b'"b\nc"', b"1", b"\x1c", b" "]
    schema = parse_schema("a string, b string")
    decoder = CsvDecoder(schema, ",", '"')
    accepted = 0
    for _ in range(1500):
        values = [b"".join(chance.choices(pieces, k=chance.randrange(1, 6))) + b',"x\ny"' for _ in range(2)]
        block = decoder._block(pa.array(values))
        if block is not None:
            alone = decoder._one_by_one(pa.array(values), 0, [])
            assert alone.to_pylist() == block.to_pylist(), values
            accepted += 1
    assert accepted > 10


def test_other_dialects() -> None:
    rows, _ = decode("a string, b int", b"'x;''y';1", csv_delimiter=";", csv_quote="'")
    assert rows == [("x;'y", 1)]
    for delimiter in " ^]|\t\\-":
        value = f'"a\nb"{delimiter}1'.encode()
        assert decode("a string, b int", value, value, csv_delimiter=delimiter)[0] == [("a\nb", 1)] * 2


def test_the_types_of_a_sample_are_guessed_without_a_reason_for_every_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bytes] = []
    monkeypatch.setattr(CsvDecoder, "_why", lambda self, value: asked.append(value) or "")
    sample = [b"name %d,%d,%d.5,2026-01-01" % (n, n, n) for n in range(100)]
    found = infer_schema("csv", sample, PayloadOptions(value_format="csv"))
    assert [field.dataType.simpleString() for field in found] == ["string", "bigint", "double", "date"]
    assert asked == []


def test_one_column_may_be_empty() -> None:
    assert decode("a string", b"", b"x", b"")[0] == [(None,), ("x",), (None,)]


def test_non_finite_numbers_are_read_in_float_columns() -> None:
    rows, bad = decode("a double", b"NaN", b"-Infinity", b"inf", b"1e400")
    assert str(rows[:3]) == "[(nan,), (-inf,), (inf,)]"
    assert bad == {3: "field 'a': expected double, found '1e400'"}


@pytest.mark.parametrize(
    ("ddl", "value", "reason"),
    [
        ("a int, b int", b"", "expected 2 columns, found an empty value"),
        ("a int, b int", b"1", "expected 2 columns, found 1"),
        ("a int, b int", b"1,2,3", "expected 2 columns, found 3"),
        ("a int, b int", b"1,x", "field 'b': expected int, found 'x'"),
        ("a int, b int NOT NULL", b"1,", "field 'b': expected int NOT NULL, found an empty field"),
        ("a tinyint", b"300", "field 'a': expected tinyint, found '300'"),
        ("a float", b"1e39", "field 'a': expected float, found '1e39'"),
        ("a decimal(5,2)", b"12345", "field 'a': expected decimal(5,2), found '12345'"),
        ("a decimal(5,2)", b"1.234", "field 'a': expected decimal(5,2), found '1.234'"),
        ("a boolean", b"yes", "field 'a': expected boolean, found 'yes'"),
        ("a date", b"01/02/2024", "field 'a': expected date"),
        ("a timestamp", b"noon", "field 'a': expected timestamp, found 'noon'"),
        ("a string, b string", b'x,"y', "a quoted field is not closed"),
        ("a string, b string", b"x,y\nz,w", "a line break stands outside of quotes"),
        ("a string", b"\xff", "a field is not UTF-8"),
    ],
)
def test_a_bad_row_says_what_was_expected_and_found_where(ddl: str, value: bytes, reason: str) -> None:
    assert reason in decode(ddl, value)[1][0]


def test_reasons_do_not_echo_the_payload() -> None:
    for value in (b"x" * 1_000_000, b'"' + b"x" * 1_000_000, b"1," * 500_000):
        assert len(decode("a int, b int", value)[1][0]) <= 300


@pytest.mark.parametrize("ddl", ["a array<int>", "a struct<b:int>", "a map<string,int>", "a binary"])
def test_types_that_csv_cannot_carry_are_refused_when_planning(ddl: str) -> None:
    with pytest.raises(PayloadError, match="field 'a'"):
        decode(ddl, b"")
