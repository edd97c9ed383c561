"""Values of Avro as JSON, for people who look at them: exact, and bounded whatever the schema and the bytes say.

Spark reads Avro with fastavro, for its speed. A broker cannot: a value of ten kilobytes whose type contains itself
overflows fastavro's stack and ends the process, and a decimal of 256 KB keeps all threads waiting for half a minute.
Here a schema becomes a tree of small functions once (`avro_reader`), and a value costs at most MAX_VALUES steps.

    bytes, fixed                    base64
    decimal                         its digits as a string, as far as it has MAX_DECIMAL_BYTES
    date, time-*, timestamp-*       ISO 8601; numbers that are no date stay numbers
    float, double                   a number; "NaN", "Infinity", "-Infinity"
    a union                         the value of its branch
"""

import base64
import json
import math
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Context
from typing import Any, Final

from .problems import BadValue, PayloadError, shown

MAX_TYPES: Final = 5_000
MAX_SCHEMA_DEPTH: Final = 50
MAX_DEPTH: Final = 200
"""Records, unions, arrays and maps around a value: types may contain themselves. Each is a few calls of Python, which
allows a thousand."""
MAX_VALUES: Final = 100_000
"""Fields and items of one value. Four bytes can claim a billion items that take no bytes."""
MAX_DECIMAL_BYTES: Final = 64
VARINT_BITS: Final = 64
MAX_SCALE: Final = 1_000

Read = Callable[["_Source"], Any]


class _Source:
    """The bytes of a value, and how much may still be read of it."""

    __slots__ = ("_at", "_data", "_depth", "_values_left")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._values_left = MAX_VALUES
        self._depth = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        if not 0 <= count <= self.left:
            raise BadValue("the value ends before its fields do")
        start, self._at = self._at, self._at + count
        return self._data[start : self._at]

    def number(self) -> int:
        """An int or a long: a zigzag varint."""
        found = place = 0
        while place < VARINT_BITS:
            (byte,) = self.take(1)
            found |= (byte & 0x7F) << place
            if byte < 0x80 and found >> VARINT_BITS == 0:
                return (found >> 1) ^ -(found & 1)
            place += 7
        raise BadValue("a number of more than 64 bits")

    def count(self, values: int) -> None:
        self._values_left -= values
        if self._values_left < 0:
            raise BadValue(f"the value has more than {MAX_VALUES} fields and items")

    def descend(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise BadValue(f"the value is nested more than {MAX_DEPTH} levels deep")

    def ascend(self) -> None:
        self._depth -= 1


def avro_reader(text: str) -> tuple[str, Callable[[bytes], Any]]:
    """The name of the schema's type, and the function from a datum to JSON. PayloadError if it is no schema."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"the Avro schema {shown(text)!r} is not JSON: {shown(error)}") from None
    compiler = _Compiler()
    read = compiler.type(schema, "", 0)

    def decode(data: bytes) -> Any:
        source = _Source(data)
        try:
            found = read(source)
        except RecursionError:
            raise BadValue("the value is nested too deeply") from None
        if source.left:
            raise BadValue(
                f"{source.left} bytes are left after the value: it was written with another schema"
            )
        return found

    return compiler.root_name(schema), decode


class _Compiler:
    """Makes a reader of a schema. A type that is used again is the same reader: a schema has as many as it has types,
    also where types contain each other."""

    def __init__(self) -> None:
        self._named: dict[str, list[Read]] = {}
        self._types = 0

    def root_name(self, schema: Any) -> str:
        """The full name of a named type; that of a primitive one, `array`, `map` or `union`."""
        if isinstance(schema, dict):
            return next(iter(self._named)) if "name" in schema else self.root_name(schema.get("type"))
        return schema if isinstance(schema, str) else "union"

    def type(self, schema: Any, space: str, depth: int) -> Read:
        self._types += 1
        if self._types > MAX_TYPES or depth > MAX_SCHEMA_DEPTH:
            raise PayloadError(
                f"the Avro schema has more than {MAX_TYPES} types, or is nested more than {MAX_SCHEMA_DEPTH} deep"
            )
        if isinstance(schema, list):
            return _union([self.type(one, space, depth + 1) for one in schema])
        if isinstance(schema, str):
            return _PRIMITIVES.get(schema) or self._reference(schema, space)
        if isinstance(schema, dict):
            return self._object(schema, space, depth)
        raise PayloadError(f"the Avro schema has {shown(schema)!r} where a type is expected")

    def _object(self, schema: Mapping[str, Any], space: str, depth: int) -> Read:
        match schema.get("type"):
            case "record" | "error":
                return self._record(schema, space, depth)
            case "enum":
                return self._leaf(schema, space, _enum(schema))
            case "fixed":
                return self._leaf(schema, space, _fixed(schema))
            case "array":
                return _array(self.type(schema.get("items"), space, depth + 1))
            case "map":
                return _map(self.type(schema.get("values"), space, depth + 1))
            case str() as kind if kind in _PRIMITIVES:
                return _logical(kind, schema)
            case None:
                raise PayloadError("the Avro schema has a type without a name")
            case inner:
                return self.type(inner, space, depth + 1)

    def _record(self, schema: Mapping[str, Any], space: str, depth: int) -> Read:
        holder, space = self._define(schema, space)
        fields: list[tuple[str, Read]] = []
        for one in _list(schema, "fields"):
            if not isinstance(one, dict) or not isinstance(one.get("name"), str):
                raise PayloadError(f"the Avro schema has a field without a name: {shown(one)!r}")
            fields.append((one["name"], self.type(one.get("type"), space, depth + 1)))
        holder.append(_record(fields))
        return holder[0]

    def _leaf(self, schema: Mapping[str, Any], space: str, read: Read) -> Read:
        holder, _ = self._define(schema, space)
        holder.append(read)
        return read

    def _define(self, schema: Mapping[str, Any], space: str) -> tuple[list[Read], str]:
        """A holder for the reader of a named type, and the namespace of names in it. The holder is empty until the
        type is read: a type in it may refer to it."""
        name = schema.get("name")
        own = schema.get("namespace", space)
        if not isinstance(name, str) or not isinstance(own, str):
            raise PayloadError("the Avro schema has a named type without a name")
        full = _full_name(name, own)
        if full in self._named:
            raise PayloadError(f"the Avro schema defines the type {shown(full)!r} twice")
        holder = self._named[full] = []
        return holder, full.rpartition(".")[0]

    def _reference(self, name: str, space: str) -> Read:
        holder = self._named.get(_full_name(name, space), self._named.get(name))
        if holder is None:
            raise PayloadError(f"the Avro schema has the type {shown(name)!r}, which is not known")
        return lambda source: holder[0](source)


def _full_name(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _list(schema: Mapping[str, Any], name: str) -> list[Any]:
    found = schema.get(name)
    if not isinstance(found, list):
        raise PayloadError(f"the Avro schema has the type {schema.get('type')} without {name}")
    return found


# --- types of several values


def _record(fields: list[tuple[str, Read]]) -> Read:
    def read(source: _Source) -> dict[str, Any]:
        source.descend()
        source.count(1 + len(fields))
        found = {name: value(source) for name, value in fields}
        source.ascend()
        return found

    return read


def _union(branches: list[Read]) -> Read:
    def read(source: _Source) -> Any:
        at = source.number()
        if not 0 <= at < len(branches):
            raise BadValue(f"branch {at} of a union that has {len(branches)}")
        source.descend()
        found = branches[at](source)
        source.ascend()
        return found

    return read


def _array(item: Read) -> Read:
    def read(source: _Source) -> list[Any]:
        found: list[Any] = []
        source.descend()
        while count := _block(source):
            found += [item(source) for _ in range(count)]
        source.ascend()
        return found

    return read


def _map(value: Read) -> Read:
    def read(source: _Source) -> dict[str, Any]:
        found: dict[str, Any] = {}
        source.descend()
        while count := _block(source):
            for _ in range(count):
                name = _string(source)
                found[name] = value(source)
        source.ascend()
        return found

    return read


def _block(source: _Source) -> int:
    """The number of items that follow. A negative one has the block's size after it."""
    count = source.number()
    if count < 0:
        source.number()
    source.count(abs(count))
    return abs(count)


# --- single values


def _null(source: _Source) -> None:
    return None


def _boolean(source: _Source) -> bool:
    return source.take(1) != b"\0"


def _number(source: _Source) -> int:
    return source.number()


def _floating(layout: str) -> Read:
    size = struct.calcsize(layout)

    def read(source: _Source) -> float | str:
        (found,) = struct.unpack(layout, source.take(size))
        if math.isfinite(found):
            return float(found)
        return "NaN" if math.isnan(found) else "Infinity" if found > 0 else "-Infinity"

    return read


def _bytes(source: _Source) -> str:
    return base64.b64encode(source.take(source.number())).decode()


def _string(source: _Source) -> str:
    try:
        return source.take(source.number()).decode()
    except UnicodeDecodeError:
        raise BadValue("a string that is not UTF-8") from None


_PRIMITIVES: Final[dict[str, Read]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _number,
    "long": _number,
    "float": _floating("<f"),
    "double": _floating("<d"),
    "bytes": _bytes,
    "string": _string,
}


def _enum(schema: Mapping[str, Any]) -> Read:
    symbols = [str(one) for one in _list(schema, "symbols")]

    def read(source: _Source) -> str:
        at = source.number()
        if not 0 <= at < len(symbols):
            raise BadValue(f"symbol {at} of an enum that has {len(symbols)}")
        return symbols[at]

    return read


def _fixed(schema: Mapping[str, Any]) -> Read:
    size = schema.get("size")
    if not isinstance(size, int) or size < 0:
        raise PayloadError(f"the Avro schema has a fixed of size {shown(size)!r}")
    if schema.get("logicalType") == "decimal":
        return _decimal(schema, lambda source: source.take(size))
    return lambda source: base64.b64encode(source.take(size)).decode()


# --- logical types: one that is not known, or that its values do not fit, is the type below it, as Avro asks for


def _logical(kind: str, schema: Mapping[str, Any]) -> Read:
    logical = schema.get("logicalType")
    if kind == "bytes" and logical == "decimal":
        return _decimal(schema, lambda source: source.take(source.number()))
    moment = _MOMENTS.get((kind, logical)) if isinstance(logical, str) else None
    if moment is None:
        return _PRIMITIVES[kind]

    def read(source: _Source) -> Any:
        number = source.number()
        try:
            return moment(number)
        except (ValueError, OverflowError):
            return number

    return read


def _decimal(schema: Mapping[str, Any], take: Callable[[_Source], bytes]) -> Read:
    scale = schema.get("scale", 0)
    if not isinstance(scale, int) or not 0 <= scale <= MAX_SCALE:
        raise PayloadError(f"the Avro schema has a decimal of scale {shown(scale)!r}")
    exact = Context(prec=8 * MAX_DECIMAL_BYTES + MAX_SCALE)

    def read(source: _Source) -> str:
        digits = take(source)
        if len(digits) > MAX_DECIMAL_BYTES:
            return base64.b64encode(digits).decode()
        number = exact.create_decimal(int.from_bytes(digits, "big", signed=True))
        return format(number.scaleb(-scale, exact), "f")

    return read


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH: Final = datetime(1970, 1, 1)


def _instant(epoch: datetime, micros: int) -> str:
    return (epoch + timedelta(microseconds=micros)).isoformat().replace("+00:00", "Z")


def _time_of_day(micros: int) -> str:
    if not 0 <= micros < 86_400_000_000:
        raise ValueError
    return (_LOCAL_EPOCH + timedelta(microseconds=micros)).time().isoformat()


_MOMENTS: Final[dict[tuple[str, str], Callable[[int], str]]] = {
    ("int", "date"): lambda days: (date(1970, 1, 1) + timedelta(days=days)).isoformat(),
    ("int", "time-millis"): lambda millis: _time_of_day(1000 * millis),
    ("long", "time-micros"): _time_of_day,
    ("long", "timestamp-millis"): lambda millis: _instant(_EPOCH, 1000 * millis),
    ("long", "timestamp-micros"): lambda micros: _instant(_EPOCH, micros),
    ("long", "local-timestamp-millis"): lambda millis: _instant(_LOCAL_EPOCH, 1000 * millis),
    ("long", "local-timestamp-micros"): lambda micros: _instant(_LOCAL_EPOCH, micros),
}
