"""JSON values: accepted values, bad values with reasons, and that the two readers agree."""

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from penstock.spark.payloads import PayloadError, PayloadOptions, decoder_for, encoder_for
from penstock.spark.payloads.ddl import parse_schema
from penstock.spark.payloads.json_read import JsonDecoder

OPTIONS = PayloadOptions(value_format="json")


def decode(ddl: str, *values: bytes) -> tuple[list[Any], dict[int, str]]:
    decoded = decoder_for("json", parse_schema(ddl), OPTIONS).decode(pa.array(values, pa.binary()))
    return decoded.values.to_pylist(), dict(decoded.bad)


def one(ddl: str, text: str) -> Any:
    """The only field's value, or the reason why there is none."""
    rows, bad = decode(ddl, text.encode())
    return bad[0] if bad else next(iter(rows[0].values()))


def test_good_blocks_never_use_the_slow_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a good record was read one by one")

    monkeypatch.setattr("penstock.spark.payloads.json_record.RecordReader.read", never)
    ddl = "a int, s string, f float, d decimal(9,2), t timestamp, n timestamp_ntz, l array<struct<q:date>>, b binary"
    row = {
        "a": 1,
        "s": "}null",
        "f": 0.5,
        "d": "1.25",
        "t": "2024-05-06T07:08:09Z",
        "n": "2024-05-06 07:08:09",
    }
    row |= {"l": [{"q": "2024-05-06"}, None], "b": "AQI=", "extra": {"deep": [1, {}]}, "s": "Inf, null"}
    pretty = json.dumps(row, indent=2).encode()
    rows, bad = decode(ddl, json.dumps(row).encode(), b"{}", pretty + b"\r\n", b' {"a":null} ')
    assert bad == {}
    assert rows[0] == rows[2]
    assert rows[1] == rows[3] == dict.fromkeys(rows[0])


def test_unknown_fields_are_ignored_and_missing_ones_are_null() -> None:
    assert decode("a int, b int", b'{"b":2,"c":[{}]}') == ([{"a": None, "b": 2}], {})


def test_the_last_of_two_equal_keys_wins() -> None:
    assert one("a int", '{"a":1,"a":2}') == 2


def test_a_string_takes_any_value_as_its_json_text() -> None:
    assert one("s string", '{"s":12.50}') == "12.50"
    assert one("s string", '{"s":true}') == "true"
    assert one("s string", '{"s":{"k":[1e5,null,"x"]}}') == '{"k":[1e5,null,"x"]}'


@pytest.mark.parametrize(
    ("ddl", "text", "reason"),
    [
        ("a int", '{"a":"1"}', "field 'a': expected int, found the string \"1\""),
        ("a int", '{"a":1.0}', "field 'a': expected int, found the number 1.0"),
        ("a int", '{"a":2147483648}', "field 'a': expected int, found the number 2147483648"),
        ("a tinyint", '{"a":128}', "field 'a': expected tinyint, found the number 128"),
        ("a bigint", '{"a":99999999999999999999}', "expected bigint, found the number 99999999999999999999"),
        ("a float", '{"a":1e39}', "field 'a': expected float, found the number 1e39"),
        ("a double", '{"a":1e400}', "field 'a': expected double, found the number 1e400"),
        ("a double", '{"a":Inf}', "not valid JSON"),
        ("a boolean", '{"a":1}', "field 'a': expected boolean, found the number 1"),
        ("a date", '{"a":"2024-13-01"}', "field 'a': expected date, found the string \"2024-13-01\""),
        ("a timestamp", '{"a":"noon"}', "field 'a': expected timestamp, found the string \"noon\""),
        ("a timestamp_ntz", '{"a":"2024-01-01T00:00:00Z"}', "field 'a': expected timestamp_ntz"),
        ("a decimal(5,2)", '{"a":12345}', "field 'a': expected decimal(5,2), found the number 12345"),
        ("a decimal(5,2)", '{"a":"1000.00"}', "field 'a': expected decimal(5,2), found the string"),
        ("a decimal(5,2)", '{"a":"NaN"}', "field 'a': expected decimal(5,2)"),
        ("a binary", '{"a":"%%"}', "field 'a': expected base64"),
        ("a array<int>", '{"a":[1,"x"]}', "field 'a[1]': expected int, found the string \"x\""),
        ("a array<int>", '{"a":1}', "field 'a': expected array<int>, found the number 1"),
        ("a map<string,int>", '{"a":{"k":"x"}}', "field 'a.k': expected int"),
        (
            "a struct<b:struct<c:int>>",
            '{"a":{"b":{"c":[]}}}',
            "field 'a.b.c': expected int, found an array of 0",
        ),
        ("a int NOT NULL", "{}", "field 'a': expected int NOT NULL, found no such field"),
        ("a int NOT NULL", '{"a":null}', "field 'a': expected int NOT NULL, found null"),
        ("a struct<b:int NOT NULL>", '{"a":{}}', "field 'a.b': expected int NOT NULL, found no such field"),
        ("a string", '{"a":"\\ud800"}', "half of a surrogate pair"),
        ("a int", "", "expected a JSON object, found an empty value"),
        ("a int", "null", "expected a JSON object, found null"),
        ("a int", "[1]", "expected a JSON object, found an array of 1"),
        ("a int", '{"a":1}{"a":2}', "not valid JSON: Extra data"),
        ("a int", '{"a":1}null{"a":2}', "not valid JSON: Extra data"),
        ("a int", '{"a":01}', "not valid JSON"),
        ("a int", "\ufeff{}", "not valid JSON"),
    ],
)
def test_a_bad_record_says_what_was_expected_and_found_where(ddl: str, text: str, reason: str) -> None:
    assert reason in one(ddl, text)


def test_spark_conversions() -> None:
    assert one("a double", '{"a":"-Infinity"}') == float("-inf")
    assert one("a double", '{"a":Infinity}') == float("inf")
    assert str(one("a double", '{"a":NaN}')) == "nan"
    assert str(one("a decimal(9,2)", '{"a":1.005}')) == "1.01"
    assert one("a timestamp", '{"a":1}').isoformat() == "1970-01-01T00:00:01+00:00"
    assert one("a timestamp", '{"a":"2024-01-01T02:00:00.123456789+02:00"}').isoformat() == (
        "2024-01-01T00:00:00.123456+00:00"
    )
    assert one("a timestamp", '{"a":"2024-01-01T00:00:00"}').isoformat() == "2024-01-01T00:00:00+00:00"
    assert one("a map<string,bigint>", '{"a":{"k":1,"l":null}}') == [("k", 1), ("l", None)]


@pytest.mark.parametrize("depth", [400, 600, 5_000, 2_000_000])
@pytest.mark.parametrize("ends", ['{"x":}', "[]"])
def test_depth_is_bounded(depth: int, ends: str) -> None:
    left, right = ends[:-1], ends[-1]
    text = '{"y":' + left * depth + "1" + right * depth + "}"
    rows, bad = decode("a int", text.encode(), b'{"a":1}')
    assert rows[1] == {"a": 1}
    assert bad.get(0) in (None, "the JSON is nested too deeply")
    assert depth < 5_000 or 0 in bad


def test_reasons_do_not_echo_the_payload() -> None:
    huge = b"x" * 1_000_000
    name = "n" * 5000
    for ddl, value in [
        ("a int", b'{"a":"' + huge + b'"}'),
        ("a int", huge),
        ("a int", b'{"a":' + b"9" * 1_000_000 + b"}"),
        (f"{name} int", json.dumps({name: "y" * 5000}).encode()),
        ("a map<string,int>", b'{"a":{"' + huge + b'":"z"}}'),
    ]:
        _, bad = decode(ddl, value)
        assert len(bad[0]) <= 300


def test_long_values_with_many_objects_are_read_correctly_by_the_careful_reader() -> None:
    value = json.dumps({"l": [{"q": i} for i in range(2000)]}).encode()
    rows, bad = decode("l array<struct<q:int>>", value, value)
    assert bad == {}
    assert [len(row["l"]) for row in rows] == [2000, 2000]


@pytest.mark.parametrize("ddl", ["a map<int,int>", "a void", "a interval day to second"])
def test_types_that_json_cannot_carry_are_refused_when_planning(ddl: str) -> None:
    with pytest.raises(PayloadError):
        decoder_for("json", parse_schema(ddl), OPTIONS)


def test_nulls_are_left_out_and_odd_numbers_are_strings() -> None:
    schema = parse_schema("a int, f double, s string, l array<int>, t timestamp")
    encoder = encoder_for("json", schema, OPTIONS)
    kind = decoder_for("json", schema, OPTIONS).arrow_type
    rows = [{"f": float("nan")}, {"f": float("-inf"), "a": 1}, {"f": 2.0, "l": [1, None]}, {}, None]
    rows.append({"s": '"\\\x00\x1f\n€', "t": 1})
    assert encoder.encode(pa.array(rows, kind)).to_pylist() == [
        b'{"f":"NaN"}',
        b'{"a":1,"f":"-Infinity"}',
        b'{"f":2.0,"l":[1,null]}',
        b"{}",
        None,
        '{"s":"\\"\\\\\\u0000\\u001f\\u000a€","t":"1970-01-01T00:00:00.000001Z"}'.encode(),
    ]


def test_a_year_that_iso_8601_cannot_write_is_refused() -> None:
    schema = parse_schema("t timestamp")
    kind = decoder_for("json", schema, OPTIONS).arrow_type
    with pytest.raises(PayloadError, match="field 't'"):
        encoder_for("json", schema, OPTIONS).encode(pa.array([{"t": 10**18}], kind))


# --- the careful reader accepts all values of the block reader, with the same result

LITERALS = [
    *("null", "true", "1", "1.5", "-0", "0.1", "16777217", "1e400", "123456789012345678901", "1234567890"),
    *(
        "NaN",
        "-Inf",
        "Infinity",
        "1.005",
        '"x"',
        '"1.5"',
        '"\\ud800"',
        '"\\n"',
        '"AQ=="',
        '"AQ"',
        '"2020-01-01"',
    ),
    *('"2020-01-01T00:00"', '"2020-01-01T00:00:00.1234567Z"', '"2020-01-01T10:00:00+01:00"'),
]
TOKENS = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "null",
    "NaN",
    "\n",
    " ",
    "\\",
    '"',
    "\x00",
    "{}",
    '{"a":1}',
    "é",
    "-",
]
KEYS = ["a", "s", "f", "l", "t", "d", "g", "dt", "b", "bo", "zz"]


def literal(chance: random.Random, depth: int = 0) -> str:
    kind = chance.random()
    if depth < 3 and kind < 0.2:
        return document(chance, ["a", "x", "y", "q"], depth + 1)
    if depth < 3 and kind < 0.4:
        return "[" + ",".join(literal(chance, depth + 1) for _ in range(chance.randrange(3))) + "]"
    return chance.choice(LITERALS)


def document(chance: random.Random, keys: list[str], depth: int = 0) -> str:
    fields = (f'"{chance.choice(keys)}":{literal(chance, depth)}' for _ in range(chance.randrange(4)))
    return "{" + ",".join(fields) + "}"


def damaged(chance: random.Random, text: str) -> bytes:
    for _ in range(chance.choice((0, 0, 0, 1, 2))):
        at = chance.randrange(len(text) + 1)
        text = text[:at] + chance.choice(TOKENS) + text[at + chance.choice((0, 0, 1)) :]
    return text.encode()


def test_the_two_readers_agree() -> None:
    schema = parse_schema(
        "a bigint, s string, f double, l array<struct<x:int,y:array<string>>>, t timestamp, d decimal(10,2), "
        "g float, dt date, b binary, bo boolean"
    )
    decoder = JsonDecoder(schema)
    chance = random.Random(42)
    accepted = 0
    for _ in range(3000):
        values = pa.array([damaged(chance, document(chance, KEYS)) for _ in range(chance.choice((1, 2)))])
        block = decoder._block(values)
        if block is not None:
            bad: list[tuple[int, str]] = []
            with_care = decoder._one_by_one(values, 0, bad)
            assert bad == [], values
            assert str(with_care.to_pylist()) == str(block.to_pylist()), values
            accepted += 1
    assert accepted > 150
