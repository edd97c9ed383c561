"""Reads one JSON value: a row, or a reason that names the field.

Follows Spark's from_json: fields that the schema does not name are ignored, missing ones are null, the last of two
equal keys wins, a string field takes any value as its JSON text, a float field takes "NaN" and "Infinity", a
timestamp field takes a whole number as seconds since 1970, a decimal is rounded half up to its scale. Unlike it, a
value that does not fit makes the record bad, and so does a missing NOT NULL field.

Numbers are kept as text (`Number`) until the field's type is known, so that neither decimals nor long integers
pass through a float.
"""

import binascii
import datetime as dt
import json
import math
import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
from pyspark.sql import types

from .interfaces import BadValue, shown
from .spark_types import INT_BITS, described, path_of

Reader = Callable[[Any, str], Any]  # (JSON value that is not null, its path) -> Python value for Arrow

SPECIAL_FLOATS = {
    "NaN": math.nan,
    **dict.fromkeys(("Infinity", "+Infinity", "INF", "+INF"), math.inf),
    **dict.fromkeys(("-Infinity", "-INF"), -math.inf),
}
# The usual spellings, which Python reads faster than Arrow reads one value. Arrow decides about all others.
PLAIN_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
PLAIN_UTC = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z", re.ASCII)
EPOCH, EPOCH_DAY = dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.date(1970, 1, 1).toordinal()
MICROSECOND = dt.timedelta(microseconds=1)
# Digits that a double or a decimal(38) can use, with some zeros to spare; longer texts are not worth converting.
MAX_NUMBER_CHARS = 1100


class Number(str):
    __slots__ = ()


class RecordReader:
    def __init__(self, schema: types.StructType) -> None:
        self._read = _struct_reader(schema)
        self._json = json.JSONDecoder(parse_float=Number, parse_int=Number, parse_constant=Number)

    def read(self, value: bytes) -> dict[str, Any]:
        try:
            found = self.parse(value)
            if type(found) is not dict:
                raise BadValue(f"expected a JSON object, found {found_value(found)}")
            row: dict[str, Any] = self._read(found, "")
        except RecursionError:
            raise BadValue("the JSON is nested too deeply") from None
        return row

    def parse(self, value: bytes) -> Any:
        if not value.strip(b" \t\r\n"):
            raise BadValue("expected a JSON object, found an empty value")
        try:
            return self._json.decode(value.decode())
        except UnicodeDecodeError as error:
            raise BadValue(f"not valid JSON: byte {error.start} is not UTF-8") from None
        except json.JSONDecodeError as error:
            raise BadValue(f"not valid JSON: {error.msg} at character {error.pos}") from None


def found_value(value: Any) -> str:
    """A value for the text of an error: its JSON type and its beginning."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case Number():
            return f"the number {shown(value)}"
        case str():
            return f'the string "{shown(value)}"'
        case list():
            return f"an array of {len(value)}"
    return "an object"


def _wrong(kind: types.DataType, value: Any, path: str) -> BadValue:
    return BadValue(f"field {shown(path)!r}: expected {shown(described(kind))}, found {found_value(value)}")


def _struct_reader(schema: types.StructType) -> Reader:
    fields = [(f.name, reader_for(f.dataType), f.nullable, f.dataType) for f in schema.fields]

    def read(value: Any, path: str) -> dict[str, Any]:
        if type(value) is not dict:
            raise _wrong(schema, value, path)
        row = {}
        for name, convert, nullable, kind in fields:
            found = value.get(name)
            if found is not None:
                row[name] = convert(found, path_of(path, name))
            elif not nullable:
                what = "null" if name in value else "no such field"
                raise BadValue(
                    f"field {shown(path_of(path, name))!r}: expected {shown(described(kind, False))}, found {what}"
                )
        return row

    return read


def _array_reader(kind: types.ArrayType) -> Reader:
    convert = reader_for(kind.elementType)

    def read(value: Any, path: str) -> list[Any]:
        if type(value) is not list:
            raise _wrong(kind, value, path)
        if not kind.containsNull and None in value:
            raise BadValue(f"field {shown(path)!r}: expected an array without nulls, found a null in it")
        return [None if v is None else convert(v, f"{path}[{i}]") for i, v in enumerate(value)]

    return read


def _map_reader(kind: types.MapType) -> Reader:
    convert = reader_for(kind.valueType)

    def read(value: Any, path: str) -> list[tuple[str, Any]]:
        if type(value) is not dict:
            raise _wrong(kind, value, path)
        if not kind.valueContainsNull and None in value.values():
            raise BadValue(f"field {shown(path)!r}: expected a map without null values, found a null in it")
        return [
            (_text(k, path), None if v is None else convert(v, path_of(path, k))) for k, v in value.items()
        ]

    return read


def _int_reader(kind: types.DataType) -> Reader:
    bits = INT_BITS[type(kind)]
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def read(value: Any, path: str) -> int:
        # 20 characters hold every 64-bit integer; leading zeros are no JSON.
        if type(value) is Number and len(value) <= 20 and not set(value) & set(".eENI"):
            number = int(value)
            if low <= number <= high:
                return number
        raise _wrong(kind, value, path)

    return read


def _float_reader(kind: types.DataType) -> Reader:
    single = isinstance(kind, types.FloatType)

    def read(value: Any, path: str) -> float:
        if isinstance(value, str) and value in SPECIAL_FLOATS:
            return SPECIAL_FLOATS[value]
        if type(value) is Number and len(value) <= MAX_NUMBER_CHARS:
            # A float is rounded once, as in a block: by Arrow, since Python has only doubles.
            number: float = pa.scalar(str(value)).cast(pa.float32()).as_py() if single else float(value)
            if math.isfinite(number):
                return number
        raise _wrong(kind, value, path)

    return read


def _decimal_reader(kind: types.DecimalType) -> Reader:
    unit = Decimal(1).scaleb(-kind.scale)
    context = Context(prec=kind.precision, rounding=ROUND_HALF_UP)

    def read(value: Any, path: str) -> Decimal:
        if isinstance(value, str) and len(value) <= MAX_NUMBER_CHARS:
            try:
                # Refuses what needs more digits than the precision has, NaN and infinity too (is_finite).
                number = Decimal(value).quantize(unit, context=context)
                if number.is_finite():
                    return number
            except InvalidOperation:
                pass
        raise _wrong(kind, value, path)

    return read


def _boolean_reader(kind: types.DataType) -> Reader:
    def read(value: Any, path: str) -> bool:
        if type(value) is bool:
            return value
        raise _wrong(kind, value, path)

    return read


def _string_reader(kind: types.DataType) -> Reader:
    def read(value: Any, path: str) -> str:
        return _text(value if isinstance(value, str) else json_text(value), path)

    return read


def _text(value: str, path: str) -> str:
    """Refuses a str that UTF-8 cannot hold: JSON may spell half of a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadValue(f"field {shown(path)!r}: half of a surrogate pair is no text") from None
    return str(value)


def json_text(value: Any) -> str:
    """A parsed value as JSON again, numbers exactly as they were written."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{json_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(json_text, value)) + "]"
    return str(value) if type(value) is Number else json.dumps(value, ensure_ascii=False)


def _binary_reader(kind: types.DataType) -> Reader:
    def read(value: Any, path: str) -> bytes:
        if type(value) is str:
            try:
                return binascii.a2b_base64(value, strict_mode=True)
            except ValueError:
                raise BadValue(
                    f"field {shown(path)!r}: expected base64, found {found_value(value)}"
                ) from None
        raise _wrong(kind, value, path)

    return read


def _date_reader(kind: types.DataType) -> Reader:
    def read(value: Any, path: str) -> int:
        if type(value) is str:
            try:
                if PLAIN_DATE.fullmatch(value):
                    return dt.date.fromisoformat(value).toordinal() - EPOCH_DAY
                return int(pa.scalar(value).cast(pa.date32()).value)
            except ValueError:
                pass
        raise _wrong(kind, value, path)

    return read


def _timestamp_reader(kind: types.DataType) -> Reader:
    zoned = isinstance(kind, types.TimestampType)

    def read(value: Any, path: str) -> int:
        micros: int | None = None
        if type(value) is str:
            micros = micros_of(value, zoned)
        elif type(value) is Number and zoned:
            micros = _micros_of_seconds(value)
        if micros is None:
            raise _wrong(kind, value, path)
        return micros

    return read


def _micros_of_seconds(value: Number) -> int | None:
    """Seconds since 1970 as microseconds, if a timestamp can hold them."""
    if len(value) > 14 or set(value) & set(".eENI"):
        return None
    micros = int(value) * 1_000_000
    return micros if abs(micros) < 1 << 63 else None


def micros_of(text: str, zoned: bool) -> int | None:
    """ISO 8601 to microseconds since 1970; more digits than microseconds are cut off, as Spark does."""
    if zoned and PLAIN_UTC.fullmatch(text):
        try:
            return (dt.datetime.fromisoformat(text) - EPOCH) // MICROSECOND
        except ValueError:
            return None
    whole, point, rest = text.partition(".")
    digits = len(rest) - len(rest.lstrip("0123456789"))
    text = whole + point + rest[: min(digits, 6)] + rest[digits:]
    for kind in (pa.timestamp("us", "UTC"), pa.timestamp("us")) if zoned else (pa.timestamp("us"),):
        try:
            return int(pa.scalar(text).cast(kind).value)
        except (pa.ArrowInvalid, UnicodeEncodeError):
            continue
    return None


_READERS: dict[type[types.DataType], Callable[[Any], Reader]] = {
    **dict.fromkeys(INT_BITS, _int_reader),
    types.FloatType: _float_reader,
    types.DoubleType: _float_reader,
    types.DecimalType: _decimal_reader,
    types.BooleanType: _boolean_reader,
    types.StringType: _string_reader,
    types.BinaryType: _binary_reader,
    types.DateType: _date_reader,
    types.TimestampType: _timestamp_reader,
    types.TimestampNTZType: _timestamp_reader,
    types.StructType: _struct_reader,
    types.ArrayType: _array_reader,
    types.MapType: _map_reader,
}


def reader_for(kind: types.DataType) -> Reader:
    return _READERS[type(kind)](kind)
