"""Row i is record i in every mixture of good, bad and null records."""

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.spark.payloads import Decoder, PayloadOptions, decoder_for, encoder_for
from penstock.spark.payloads.ddl import parse_schema

SCHEMA = parse_schema("id bigint, name string, tags array<string>")
FLAT = parse_schema("id bigint, name string")
FORMATS = ("json", "csv", "avro", "arrow")

BAD = {
    "json": [
        b"",
        b"null",
        b"{}{}",
        b'{"id":1}null{"id":2}',
        b'{"id":"x"}',
        b'{"id":1',
        b'"}',
        b'{"id":',
        b"1}",
        b'{"name":"\xff"}',
        b"[{}]",
        b'{"id":1}\n{"id":2}',
        b'{"id":1.5}',
        b"\0",
        b'{"name":"a\nb"}',
    ],
    "csv": [
        b"",
        b"1",
        b"1,2,3",
        b'1,"a',
        b'"',
        b"x,y",
        b"1,a\n2,b",
        b"1,\xff",
        b'1,"a\n2,b',
        b"\n\n",
        b"a\rb",
    ],
    "avro": [b"", b"\0", b"\xff" * 9, b"\x00\x02\x00\x02a", b"junk"],
    "arrow": [
        b"",
        b"junk",
        b"\xff\xff\xff\xff\0\0\0\0",
        b"ARROW1\0\0",
        b"\xff\xff\xff\xff\x10\0\0\0" + b"\0" * 16,
    ],
}


def decoder(value_format: str) -> Decoder:
    return decoder_for(value_format, FLAT if value_format == "csv" else SCHEMA, PayloadOptions())


def good(value_format: str, numbers: list[int]) -> list[bytes]:
    schema = FLAT if value_format == "csv" else SCHEMA
    rows = [{"id": n, "name": f"n{n},\"'\n" if n % 3 else None} for n in numbers]
    made = encoder_for(value_format, schema, PayloadOptions()).encode(
        pa.array(rows, decoder(value_format).arrow_type)
    )
    return list(made.to_pylist())


def check(value_format: str, records: list[int | bytes | None]) -> None:
    """Numbers are good records with that id, bytes are bad ones."""
    ready = dict(zip(range(50), GOOD[value_format], strict=True))
    values = [ready[r] if isinstance(r, int) else r for r in records]
    decoded = decoder(value_format).decode(pa.array(values, pa.binary()))
    decoded.values.validate(full=True)
    assert [at for at, _ in decoded.bad] == [i for i, r in enumerate(records) if isinstance(r, bytes)]
    assert all(0 < len(reason) <= 300 and "\n" not in reason for _, reason in decoded.bad)
    found = [None if row is None else row["id"] for row in decoded.values.to_pylist()]
    assert found == [r if isinstance(r, int) else None for r in records]
    if decoded.rows is not None:
        assert decoded.rows.to_pylist() == list(range(len(records)))


GOOD = {value_format: good(value_format, list(range(50))) for value_format in FORMATS}


@pytest.mark.parametrize("value_format", FORMATS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_small_mixtures(value_format: str, data: st.DataObject) -> None:
    record = st.one_of(st.integers(0, 49), st.sampled_from(BAD[value_format]), st.none())
    check(value_format, data.draw(st.lists(record, max_size=12)))


@pytest.mark.parametrize("value_format", FORMATS)
@pytest.mark.parametrize("share", [0.0, 0.001, 0.05, 0.9])
def test_large_mixtures(value_format: str, share: float) -> None:
    chance = random.Random(7)
    count = 300 if value_format == "arrow" else 2000
    records: list[int | bytes | None] = [
        chance.choice(BAD[value_format])
        if chance.random() < share
        else None
        if chance.random() < share / 2
        else chance.randrange(50)
        for _ in range(count)
    ]
    check(value_format, records)


@pytest.mark.parametrize("value_format", FORMATS)
def test_one_bad_record_at_every_position(value_format: str) -> None:
    for tp in range(0, 600, 53):
        records: list[int | bytes | None] = [i % 50 for i in range(600)]
        records[tp] = BAD[value_format][tp % len(BAD[value_format])]
        check(value_format, records)


@pytest.mark.parametrize("value_format", FORMATS)
@pytest.mark.parametrize("values", [[], [None], [None] * 300])
def test_no_records_give_no_rows(value_format: str, values: list[None]) -> None:
    decoded = decoder(value_format).decode(pa.array(values, pa.binary()))
    assert decoded.bad == []
    assert decoded.values.to_pylist() == values
    assert decoded.values.type == decoder(value_format).arrow_type


def test_two_halves_of_a_document_are_two_bad_records() -> None:
    halves: list[int | bytes | None] = [b'{"id":', b"1}", 3, b'{"id":1', b"}", b'{"a":{}', b'}{"id":1}']
    check("json", halves)


def test_csv_rows_that_split_and_merge_do_not_cancel_out() -> None:
    check("csv", [b"1,a\n2,b", b'3,"c', b'd"', 4])
