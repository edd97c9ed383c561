"""Bytes to messages. All bytes come from a peer, so each value is checked before it is used.

The checks, on every path: each length against the bytes that remain; each count against the bytes that
its elements need at least, so that an array of a billion elements costs nothing; null only where the version
has it; UTF-8; the size of each tagged field. The frame's size (the server's limit) and the number of elements of one
message (below) bound the objects that a peer can make this process build, since the smallest struct is 3 bytes on the
wire and 100 here. Tags need not come in order, as in Kafka's own reader; unknown ones are skipped.

The generated function looks like this (FindCoordinator request, version 4):

    def codec(buf, pos, budget):
        end = len(buf)
        v1, n2, = unpack_from_bB(buf, pos)          # key_type, and the first byte of the keys' count
        pos += 2
        if n2 > 127: n2, pos = rest_of_varint(buf, pos, n2)
        n2 -= 1                                     # compact lengths are one more, so that 0 is null
        if n2 < 0: refuse_negative(n2, False)
        if n2 > 0:
            if n2 * 1 > end - pos or n2 > budget:
                refuse_count(n2, 1, end - pos, budget)
            budget -= n2
            v3 = []
            for _ in range(n2): ...
        else: v3 = []
        n6 = buf[pos]
        pos += 1
        if n6: pos, budget = skip_tags(buf, pos, n6, budget)
        return Struct1(key_type=v1, coordinator_keys=v3), pos

struct.error, IndexError and UnicodeDecodeError are how a short or wrong frame shows itself there; Decoder
turns them into a ProtocolViolation that names the field, found by the line that raised.
"""

import struct
from types import TracebackType
from typing import Final

from penstock.errors import ProtocolViolation
from penstock.kafka.wire.primitives import HELPERS, CountOverLimit, InvalidField
from penstock.kafka.wire.schema import (
    ARRAY,
    BYTES,
    FIXED,
    MAX_STRING_BYTES,
    RECORDS,
    STRING,
    STRUCT,
    UUID16,
    Field,
    Message,
    default_of,
)
from penstock.kafka.wire.source import Source, width_of

MAX_ELEMENTS: Final = 100_000
"""Array elements and tagged fields in one request: enough for a fetch of every partition that a node can hold,
and about a second of decoding at worst."""

MAX_RESPONSE_ELEMENTS: Final = 10_000_000
"""The same for a response, which a client asked for: metadata of a large cluster has millions."""


class TooManyElements(ProtocolViolation):
    """The message has more elements than the caller of `decode` allows."""


class Decoder:
    """Decodes one class at one version."""

    def __init__(self, cls: type[Message], version: int) -> None:
        root = cls.ROOT
        if root is None or not root.first <= version <= root.last:
            raise ValueError(f"{cls.__name__} has no version {version}")
        self.title = f"{root.title} v{version}"
        writer = _Writer(version, flexible=version >= root.flexible_from)
        self._fields = writer.write(cls)
        self._codec = writer.source.compile(self.title, **HELPERS)

    def decode(self, buf: memoryview, pos: int, budget: int = MAX_ELEMENTS) -> tuple[Message, int]:
        """The message that starts at `pos`, and where it ends."""
        try:
            result: tuple[Message, int] = self._codec(buf, pos, budget)
            return result
        except (struct.error, IndexError, UnicodeDecodeError, InvalidField) as problem:
            reason = self._explain(problem)
            kind = TooManyElements if isinstance(problem, CountOverLimit) else ProtocolViolation
        # Raised out here so that the violation does not hold the frame through its context.
        raise kind(reason)

    def _explain(self, problem: Exception) -> str:
        trace: TracebackType | None = problem.__traceback__
        field, pos, end = "", 0, 0
        while trace is not None:
            if trace.tb_frame.f_code is self._codec.__code__:
                field = self._fields[trace.tb_lineno - 1]
                pos, end = trace.tb_frame.f_locals.get("pos", 0), trace.tb_frame.f_locals.get("end", 0)
            trace = trace.tb_next
        where = f"{self.title}, {field} at byte {pos}"
        if isinstance(problem, UnicodeDecodeError):
            return f"{where}: expected UTF-8 ({problem.reason})"
        if isinstance(problem, InvalidField):
            return f"{where}: {problem}"
        return f"{where}: expected more bytes, {end - pos} remain"


class _Writer:
    """Writes the decode function: walks the schema once, in wire order.

    Fixed-width reads are put off (`_pending`) until something needs their values, so that neighbours share
    one `struct` call; a length's first byte joins them.
    """

    def __init__(self, version: int, *, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.source = Source("def codec(buf, pos, budget):")
        self._pending: list[tuple[str, str, str]] = []

    def write(self, cls: type[Message]) -> list[str]:
        self.source.emit("end = len(buf)", cls.__name__)
        value = self._struct(cls, "")
        self._flush()
        self.source.emit(f"return {value}, pos", cls.__name__)
        return self.source.fields

    def _struct(self, cls: type[Message], path: str) -> str:
        """Reads a struct's fields; the expression that makes it, valid after the next flush."""
        carried = [field for field in cls.SCHEMA if field.in_version(self.version)]
        values = {f.name: self._field(f, path + f.name) for f in carried if f.tag is None}
        if self.flexible:
            values |= self._tags(cls, [f for f in carried if f.tag is not None], path)
        arguments = ", ".join(f"{name}={value}" for name, value in values.items())
        return f"{self.source.share('Struct', cls)}({arguments})"

    def _field(self, field: Field, path: str) -> str:
        nullable = self.version >= field.nullable_from
        if field.kind in FIXED:
            return self._fixed(field.kind, path)
        if field.kind == STRUCT:
            return self._nullable_struct(field, path) if nullable else self._struct(field.struct, path + ".")
        if field.kind == ARRAY:
            return self._array(field, path, nullable=nullable)
        return self._bytes(field.kind, path, nullable=nullable)

    def _fixed(self, kind: str, path: str) -> str:
        name = self._put_off(FIXED[kind], path)
        return f"to_uuid({name})" if kind == UUID16 else name

    def _put_off(self, letters: str, path: str, prefix: str = "v") -> str:
        name = self.source.new(prefix)
        self._pending.append((letters, name, path))
        return name

    def _flush(self) -> None:
        if not self._pending:
            return
        letters = "".join(item[0] for item in self._pending)
        names = ", ".join(item[1] for item in self._pending)
        paths = self._pending[0][2]
        if len(self._pending) > 1:
            paths += f" to {self._pending[-1][2]}"
        self._pending.clear()
        if letters == "B":
            self.source.emit(f"{names} = buf[pos]", paths)
        else:
            read = self.source.share_struct(letters, "unpack_from")
            self.source.emit(f"{names}, = {read}(buf, pos)", paths)
        self.source.emit(f"pos += {width_of(letters)}", paths)

    def _length(self, path: str, legacy: str, *, nullable: bool) -> str:
        """Reads a length or count to a variable; -1 is null, and refused unless the version has it."""
        emit = self.source.emit
        name = self._put_off("B" if self.flexible else legacy, path, "n")
        self._flush()
        if self.flexible:
            emit(f"if {name} > 127: {name}, pos = rest_of_varint(buf, pos, {name})", path)
            emit(f"{name} -= 1", path)
        lowest = -1 if nullable else 0
        emit(f"if {name} < {lowest}: refuse_negative({name}, {nullable})", path)
        return name

    def _bytes(self, kind: str, path: str, *, nullable: bool) -> str:
        emit = self.source.emit
        length = self._length(path, "h" if kind == STRING else "i", nullable=nullable)
        value = self.source.new("v")
        if nullable:
            emit(f"if {length} < 0: {value} = None", path)
            emit("else:", path)
            self.source.depth += 1
        emit(f"stop = pos + {length}", path)
        if kind == STRING and self.flexible:
            emit(f"if stop > end or {length} > {MAX_STRING_BYTES}: refuse_length({length}, end - pos)", path)
        else:
            emit(f"if stop > end: refuse_length({length}, end - pos)", path)
        expression = {
            STRING: 'str(buf[pos:stop], "utf-8")',
            BYTES: "buf[pos:stop].tobytes()",
            RECORDS: "buf[pos:stop]",
        }[kind]
        emit(f"{value} = {expression}", path)
        emit("pos = stop", path)
        if nullable:
            self.source.depth -= 1
        return value

    def _array(self, field: Field, path: str, *, nullable: bool) -> str:
        emit = self.source.emit
        count = self._length(path, "i", nullable=nullable)
        value = self.source.new("v")
        smallest = self._smallest_element(field)
        emit(f"if {count} > 0:", path)
        self.source.depth += 1
        emit(f"if {count} * {smallest} > end - pos or {count} > budget:", path)
        emit(f"    refuse_count({count}, {smallest}, end - pos, budget)", path)
        emit(f"budget -= {count}", path)
        self._elements(field, path, count, value)
        self.source.depth -= 1
        emit(f"else: {value} = {f'[] if {count} == 0 else None' if nullable else '[]'}", path)
        return value

    def _elements(self, field: Field, path: str, count: str, value: str) -> None:
        emit = self.source.emit
        if isinstance(field.of, str) and field.of in FIXED:
            letter = FIXED[field.of]
            emit(f'{value} = list(unpack_from(f">{{{count}}}{letter}", buf, pos))', path)
            emit(f"pos += {width_of(letter)} * {count}", path)
            return
        emit(f"{value} = []", path)
        emit(f"for _ in range({count}):", path)
        self.source.depth += 1
        if isinstance(field.of, str):
            element = self._bytes(field.of, path, nullable=False)
        else:
            element = self._struct(field.struct, path + ".")
        self._flush()
        emit(f"{value}.append({element})", path)
        self.source.depth -= 1

    def _nullable_struct(self, field: Field, path: str) -> str:
        """A byte says whether a struct follows: 1, or -1 for null (KIP-893)."""
        emit = self.source.emit
        mark = self._put_off("b", path, "n")
        self._flush()
        value = self.source.new("v")
        emit(f"if {mark} == -1: {value} = None", path)
        emit("else:", path)
        self.source.depth += 1
        emit(f"if {mark} != 1: refuse_mark({mark})", path)
        made = self._struct(field.struct, path + ".")
        self._flush()
        emit(f"{value} = {made}", path)
        self.source.depth -= 1
        return value

    def _tags(self, cls: type[Message], tagged: list[Field], path: str) -> dict[str, str]:
        """Reads the tagged fields at a struct's end; variables, with the default where a tag is absent."""
        emit = self.source.emit
        where = f"{path}tagged fields"
        count = self._put_off("B", where, "n")
        self._flush()
        values = {field.name: self.source.new("v") for field in tagged}
        for field in tagged:
            emit(f"{values[field.name]} = {self._default(cls, field)}", where)
        if not tagged:
            emit(f"if {count}: pos, budget = skip_tags(buf, pos, {count}, budget)", where)
            return values
        emit(f"if {count}:", where)
        self.source.depth += 1
        emit(f"if {count} > 127: {count}, pos = rest_of_varint(buf, pos, {count})", where)
        emit(f"if {count} > budget: refuse_count({count}, 2, end - pos, budget)", where)
        emit(f"budget -= {count}", where)
        emit(f"for _ in range({count}):", where)
        self.source.depth += 1
        tag, after = self.source.new("tag"), self.source.new("after")
        emit(f"{tag}, {after}, pos = read_tag(buf, pos)", where)
        for field in tagged:
            self._one_tag(field, tag, after, path, values[field.name])
        emit(f"pos = {after}", where)
        self.source.depth -= 2
        return values

    def _one_tag(self, field: Field, tag: str, after: str, path: str, value: str) -> None:
        emit = self.source.emit
        where = path + field.name
        emit(f"if {tag} == {field.tag}:", where)
        self.source.depth += 1
        read = self._field(field, where)
        self._flush()
        emit(f"{value} = {read}", where)
        emit(f"if pos != {after}: refuse_tag_size({after} - pos)", where)
        self.source.depth -= 1

    def _default(self, cls: type[Message], field: Field) -> str:
        if field.kind == ARRAY:
            return "[]" if default_of(cls, field.name) == [] else "None"
        return self.source.share("default", default_of(cls, field.name))

    def _smallest_element(self, field: Field) -> int:
        if isinstance(field.of, str):
            return self._smallest(field.of)
        return max(1, self._smallest_struct(field.struct))

    def _smallest_struct(self, cls: type[Message]) -> int:
        size = 1 if self.flexible else 0
        for field in cls.SCHEMA:
            if not field.in_version(self.version) or field.tag is not None:
                continue
            if field.kind == STRUCT and self.version < field.nullable_from:
                size += self._smallest_struct(field.struct)
            else:
                size += self._smallest(field.kind)
        return size

    def _smallest(self, kind: str) -> int:
        if kind in FIXED:
            return width_of(FIXED[kind])
        if self.flexible or kind == STRUCT:
            return 1
        return 2 if kind == STRING else 4
