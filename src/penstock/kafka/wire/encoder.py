"""Messages to bytes, without copying record batches.

The generated function appends to a bytearray; where a large `records` value comes, the bytearray is put on
the list of pieces, the buffers follow as they are, and a new bytearray goes on after them. The server hands
the list to the transport as it is.

Fields that a version does not have are left out. Values here are our own: a value that does not fit its field is a
bug, and raises struct.error, AttributeError or TypeError.
"""

import struct
from typing import Final

from penstock.kafka.wire.schema import (
    ARRAY,
    FIXED,
    MAX_STRING_BYTES,
    NEVER,
    RECORDS,
    STRING,
    STRUCT,
    UUID16,
    Buffer,
    Field,
    Message,
    Records,
    default_of,
)
from penstock.kafka.wire.source import Source

COPY_BELOW_BYTES: Final = 1024
"""Records smaller than this are copied: cheaper than one more buffer for the transport to handle."""


class Encoder:
    """Encodes one class at one version."""

    def __init__(self, cls: type[Message], version: int) -> None:
        root = cls.ROOT
        if root is None or not root.first <= version <= root.last:
            raise ValueError(f"{cls.__name__} has no version {version}")
        writer = _Writer(version, flexible=version >= root.flexible_from)
        writer.write(cls)
        self._codec = writer.source.compile(f"encode {root.title} v{version}", **_HELPERS)

    def encode(self, message: Message, out: bytearray) -> list[Buffer]:
        """`out`, continued with the message; more pieces if it carries large records."""
        pieces: list[Buffer] = []
        last: bytearray = self._codec(message, out, pieces)
        if last or not pieces:
            pieces.append(last)
        return pieces


class _Writer:
    """Writes the encode function: walks the schema once, in wire order.

    Fixed-width values are put off (`_pending`) until something of variable size comes, and go out in one
    `struct` call, together with the length that follows them.
    """

    def __init__(self, version: int, *, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.source = Source("def codec(m, out, pieces):")
        self._pending: list[tuple[str, str]] = []

    def write(self, cls: type[Message]) -> None:
        self._struct(cls, "m")
        self._flush()
        self._emit("return out")

    def _emit(self, line: str) -> None:
        self.source.emit(line, "")

    def _struct(self, cls: type[Message], name: str) -> None:
        carried = [field for field in cls.SCHEMA if field.in_version(self.version)]
        for field in carried:
            if field.tag is None:
                self._field(field, f"{name}.{field.name}")
        if self.flexible:
            self._tags(cls, [field for field in carried if field.tag is not None], name)

    def _field(self, field: Field, value: str) -> None:
        nullable = self.version >= field.nullable_from
        if field.kind in FIXED:
            self._pending.append((FIXED[field.kind], f"{value}.bytes" if field.kind == UUID16 else value))
        elif field.kind == STRUCT and nullable:
            self._nullable_struct(field, value)
        elif field.kind == STRUCT:
            self._struct(field.struct, value)
        elif field.kind == ARRAY:
            self._array(field, value, nullable=nullable)
        elif field.kind == RECORDS:
            self._records(value, nullable=nullable)
        else:
            self._bytes(field, value, nullable=nullable)

    def _flush(self, *, then_zero: bool = False) -> None:
        """Writes what was put off; `then_zero` adds a zero byte."""
        letters = "".join(item[0] for item in self._pending) + ("x" if then_zero else "")
        values = ", ".join(item[1] for item in self._pending if item[1])
        self._pending.clear()
        if letters == "x":
            self._emit("out.append(0)")
        elif letters:
            self._emit(f"out += {self.source.share_struct(letters, 'pack')}({values})")

    def _length(self, length: str, legacy: str) -> None:
        """Writes what was put off and then a length (-1 for null)."""
        if not self.flexible:
            self._pending.append((legacy, length))
            self._flush()
            return
        put = "put_string_length" if legacy == "h" else "put_varint"
        before = list(self._pending)
        self._emit(f"if {length} < 127:")
        self.source.depth += 1
        if before:
            self._pending.append(("B", f"{length} + 1"))
            self._flush()
        else:
            self._emit(f"out.append({length} + 1)")
        self.source.depth -= 1
        self._emit("else:")
        self.source.depth += 1
        self._pending = before
        self._flush()
        self._emit(f"{put}(out, {length} + 1)")
        self.source.depth -= 1

    def _bytes(self, field: Field, value: str, *, nullable: bool) -> None:
        text = field.kind == STRING or field.of == STRING
        raw, length = self.source.new("v"), self.source.new("n")
        suffix = ".encode()" if text else ""
        if nullable:
            self._emit(f"{raw} = {value}")
            self._emit(f'if {raw} is None: {raw}, {length} = b"", -1')
            self._emit("else:")
            self.source.depth += 1
            if text:
                self._emit(f"{raw} = {raw}.encode()")
            self._emit(f"{length} = len({raw})")
            self.source.depth -= 1
        else:
            if field.nullable_from != NEVER and field.kind != ARRAY:
                value = f"({value} or {'' if text else b''!r})"
            self._emit(f"{raw} = {value}{suffix}")
            self._emit(f"{length} = len({raw})")
        self._length(length, "h" if text else "i")
        self._emit(f"out += {raw}")

    def _records(self, value: str, *, nullable: bool) -> None:
        raw, length = self.source.new("v"), self.source.new("n")
        self._emit(f"{raw} = {value}")
        self._emit(f"if {raw} is None: {length} = {-1 if nullable else 0}")
        self._emit(f"elif isinstance({raw}, (list, tuple)): {length} = sum(map(len, {raw}))")
        self._emit(f"else: {length} = len({raw})")
        self._length(length, "i")
        self._emit(f"if {length} > 0: out = attach(out, pieces, {raw}, {length})")

    def _array(self, field: Field, value: str, *, nullable: bool) -> None:
        array, length = self.source.new("v"), self.source.new("n")
        self._emit(f"{array} = {value}")
        if nullable:
            self._emit(f"{length} = -1 if {array} is None else len({array})")
        elif field.nullable_from != NEVER:
            self._emit(f"{length} = 0 if {array} is None else len({array})")
        else:
            self._emit(f"{length} = len({array})")
        self._length(length, "i")
        if isinstance(field.of, str) and field.of in FIXED:
            self._emit(f'if {array}: out += pack(f">{{{length}}}{FIXED[field.of]}", *{array})')
            return
        if field.nullable_from != NEVER:
            array += " or ()"
        element = self.source.new("m")
        self._emit(f"for {element} in {array}:")
        self.source.depth += 1
        if isinstance(field.of, str):
            self._bytes(field, element, nullable=False)
        else:
            self._struct(field.struct, element)
        self._flush()
        self.source.depth -= 1

    def _nullable_struct(self, field: Field, value: str) -> None:
        name = self.source.new("m")
        self._flush()
        self._emit(f"{name} = {value}")
        self._emit(f"if {name} is None: out.append(255)")
        self._emit("else:")
        self.source.depth += 1
        self._emit("out.append(1)")
        self._struct(field.struct, name)
        self._flush()
        self.source.depth -= 1

    def _tags(self, cls: type[Message], tagged: list[Field], name: str) -> None:
        """Writes the tagged fields that differ from their defaults, in the order of their tags."""
        tagged = sorted(tagged, key=lambda field: field.tag or 0)
        if not tagged:
            self._pending.append(("x", ""))
            return
        values = {field.name: self.source.new("v") for field in tagged}
        for field in tagged:
            self._emit(f"{values[field.name]} = {name}.{field.name}")
        differs = {field.name: self._differs(cls, field, values[field.name]) for field in tagged}
        before = list(self._pending)
        self._emit(f"if {' or '.join(differs.values())}:")
        self.source.depth += 1
        self._flush()
        kept, section, count = self.source.new("kept"), self.source.new("section"), self.source.new("n")
        self._emit(f"{kept}, {section}, {count} = out, bytearray(), 0")
        for field in tagged:
            self._emit(f"if {differs[field.name]}:")
            self.source.depth += 1
            self._emit("out = bytearray()")
            self._field(field, values[field.name])
            self._flush()
            self._emit(f"put_tag({section}, {field.tag}, out)")
            self._emit(f"{count} += 1")
            self.source.depth -= 1
        self._emit(f"out = {kept}")
        self._emit(f"put_varint(out, {count})")
        self._emit(f"out += {section}")
        self.source.depth -= 1
        self._emit("else:")
        self.source.depth += 1
        self._pending = before
        self._flush(then_zero=True)
        self.source.depth -= 1

    def _differs(self, cls: type[Message], field: Field, value: str) -> str:
        default = default_of(cls, field.name)
        if field.kind == ARRAY and default == []:
            return value
        if field.kind == STRUCT:
            return f"({value} is not None and {value} != {self.source.share('default', field.struct())})"
        if default is None:
            return f"{value} is not None"
        return f"{value} != {self.source.share('default', default)}"


# ---- functions that generated code calls in rare cases ----------------------------------------------------


def put_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def put_string_length(out: bytearray, length_and_one: int) -> None:
    if length_and_one > MAX_STRING_BYTES + 1:
        raise ValueError(f"a string of {length_and_one - 1} bytes; Kafka's hold {MAX_STRING_BYTES} at most")
    put_varint(out, length_and_one)


def put_tag(section: bytearray, tag: int, value: bytearray) -> None:
    put_varint(section, tag)
    put_varint(section, len(value))
    section += value


def attach(out: bytearray, pieces: list[Buffer], records: Records, size: int) -> bytearray:
    """Puts records after `out`; where the message goes on."""
    buffers = records if isinstance(records, (list, tuple)) else (records,)
    if size < COPY_BELOW_BYTES:
        for buffer in buffers:
            out += buffer
        return out
    pieces.append(out)
    pieces.extend(buffers)
    return bytearray()


_HELPERS: Final = {
    "attach": attach,
    "pack": struct.pack,
    "put_string_length": put_string_length,
    "put_tag": put_tag,
    "put_varint": put_varint,
}
