"""CSV values to Arrow: one record is one row, columns by position.

The dialect is RFC 4180: fields may be quoted, a quote inside is doubled, line breaks are allowed inside quotes. An
empty field is null, a quoted empty one is an empty string. One line break after the row is ignored.

Arrow's CSV reader reads a block of values that are joined with newlines. Why row i is then record i:

1. No value in the block holds a line break, so no value can give two rows.
2. A quote that is not closed makes a row include the lines after it, so there are fewer rows than values. An empty
   line is added at the end, so that this holds for the last value too.

If all values with line breaks are well formed, the line breaks are replaced while the block is read, so that 1 holds.
Other values with line breaks are read one at a time, by the same reader with the same empty line.
"""

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType

from .base import BlockDecoder
from .interfaces import BadValue, clip, shown
from .json_read import timestamps_of
from .spark_types import arrow_struct, broken_promise, check_supported, described

LINE_BREAKS = r"[\r\n]"
STAND_INS = r"[\x1c\x1d]"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
UNBALANCED = "not a CSV row: a quoted field is not closed, or a line break stands outside of quotes"
_COUNTS = re.compile(r"Expected (\d+) columns, got (\d+)")
BOOLEANS = {"true_values": ["true", "True", "TRUE"], "false_values": ["false", "False", "FALSE"]}


def csv_refusal(kind: DataType) -> str | None:
    if isinstance(kind, ArrayType | MapType | StructType):
        return "a CSV row is flat"
    return "CSV is text; use string" if isinstance(kind, BinaryType) else None


class CsvReader:
    """Arrow's CSV reader with one dialect, for values that are joined by newlines."""

    def __init__(self, delimiter: str, quote: str) -> None:
        self._parse = pv.ParseOptions(
            delimiter=delimiter, quote_char=quote, newlines_in_values=True, ignore_empty_lines=False
        )

    def read(
        self, values: pa.BinaryArray, names: list[str], types: dict[str, pa.DataType]
    ) -> pa.Table | None:
        """One row per value, or None if that cannot be proven; pa.ArrowInvalid if one does not fit."""
        lines = pa.concat_arrays([values, pa.array([b"", b""], pa.binary())])
        whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
        joined = pc.binary_join(whole, b"\n").buffers()[2]
        how = pv.ReadOptions(use_threads=False, block_size=joined.size + 1, column_names=names)
        convert = pv.ConvertOptions(
            column_types=types,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            **BOOLEANS,
        )
        table = pv.read_csv(
            pa.BufferReader(joined), read_options=how, parse_options=self._parse, convert_options=convert
        )
        return table.slice(0, len(values)) if table.num_rows == len(values) + 1 else None

    def texts(self, value: bytes, columns: int) -> list[str | None]:
        """The fields of one value as they are written; BadValue if their number is wrong."""
        names = [str(i) for i in range(columns)]
        try:
            table = self.read(pa.array([without_line_end(value)]), names, dict.fromkeys(names, pa.string()))
        except pa.ArrowInvalid as error:
            raise self._explained(str(error)) from None
        if table is None:
            raise BadValue(UNBALANCED)
        return [column[0].as_py() for column in table.columns]

    def _explained(self, error: str) -> BadValue:
        counts = _COUNTS.search(error)
        if counts:
            return WrongCount(int(counts[1]), int(counts[2]))
        return BadValue("not a CSV row: a field is not UTF-8" if "UTF8" in error else UNBALANCED)


class WrongCount(BadValue):
    def __init__(self, expected: int, found: int) -> None:
        super().__init__(f"expected {expected} columns, found {found}")
        self.found = found


def without_line_end(value: bytes) -> bytes:
    return value[:-1].removesuffix(b"\r") if value.endswith(b"\n") else value


class CsvDecoder(BlockDecoder):
    few_records = 8  # the careful reader is the block reader, called for each record

    def __init__(self, schema: StructType, delimiter: str, quote: str) -> None:
        check_supported(schema, "csv", csv_refusal)
        super().__init__(arrow_struct(schema))
        self._schema = schema
        self._reader = CsvReader(delimiter, quote)
        self._well_formed = well_formed(delimiter, quote)
        self._names = [str(i) for i in range(len(schema.fields))]
        self._types = {str(i): _parsed_type(f.type) for i, f in enumerate(self.arrow_type)}

    def takes(self, values: pa.BinaryArray) -> bool:
        """Whether all of these are good. Ends at the first that is not, and asks for no reason: a reason costs a
        millisecond, and a guess at a column's type is wrong for most records."""
        alone = (values.slice(at, 1) for at in range(len(values)))
        return self._block(values) is not None or all(self._block(value) is not None for value in alone)

    def _block(self, values: pa.BinaryArray) -> pa.StructArray | None:
        broken = False
        if _any(values, LINE_BREAKS):
            values = pc.replace_substring_regex(values, r"\r?\n$", "")
            broken = len(values) > 1 and _any(values, LINE_BREAKS)
        if len(self._names) > 1 and pc.min(pc.binary_length(values)).as_py() == 0:
            return None  # the reader takes an empty line for a row of nulls
        if len(values) > 1 and pc.any(pc.starts_with(values, BYTE_ORDER_MARK)).as_py():
            return None  # the reader removes it from the first line only
        return self._read_broken(values) if broken else self._read(values)

    def _read_broken(self, values: pa.BinaryArray) -> pa.StructArray | None:
        """A block with line breaks inside quotes: other characters replace them while it is read."""
        with_breaks = values.filter(pc.match_substring_regex(values, LINE_BREAKS))
        if (
            _any(values, STAND_INS)
            or not pc.all(pc.match_substring_regex(with_breaks, self._well_formed)).as_py()
        ):
            return None
        for found, stand_in in (("\n", "\x1c"), ("\r", "\x1d")):
            values = pc.replace_substring(values, found, stand_in)
        rows = self._read(values)
        return None if rows is None else _with_breaks(rows)

    def _read(self, values: pa.BinaryArray) -> pa.StructArray | None:
        try:
            table = self._reader.read(values, self._names, self._types)
            if table is None:
                return None
            columns = [_finished(table.column(i), f.type) for i, f in enumerate(self.arrow_type)]
        except pa.ArrowInvalid:
            return None
        if any(_overflowed(column) for column in columns) and not _says_infinity(values):
            return None
        rows = pa.StructArray.from_arrays(columns, fields=list(self.arrow_type))
        return rows if broken_promise(rows, self.arrow_type) is None else None

    def _one_by_one(self, values: pa.BinaryArray, start: int, bad: list[tuple[int, str]]) -> pa.StructArray:
        """Reads every value alone with the same reader, so that block and record agree which values are good."""
        pieces = []
        for at in range(len(values)):
            rows = self._block(values.slice(at, 1))
            if rows is None:
                rows = pa.nulls(1, self.arrow_type)
                bad.append((start + at, clip(self._why(values[at].as_py()))))
            pieces.append(rows)
        return pa.concat_arrays(pieces)

    def _record(self, value: bytes) -> dict[str, Any]:
        raise NotImplementedError  # _one_by_one does not need it

    def _why(self, value: bytes) -> str:
        """The reason why a value was refused."""
        if not without_line_end(value):
            return f"expected {len(self._names)} columns, found an empty value"
        try:
            texts = self._reader.texts(value, len(self._names))
        except BadValue as error:
            return str(error)
        for field, text, kind in zip(self._schema.fields, texts, self.arrow_type, strict=True):
            if text is None and not field.nullable:
                return (
                    f"field {field.name!r}: expected {described(field.dataType, False)}, found an empty field"
                )
            if text is not None and not _fits(text, kind.type):
                return f"field {field.name!r}: expected {described(field.dataType)}, found {shown(text)!r}"
        return UNBALANCED


def _fits(text: str, kind: pa.DataType) -> bool:
    """Whether one field fits its column's type; only called to find the field for a reason."""
    if pa.types.is_boolean(kind):
        return any(text in spellings for spellings in BOOLEANS.values())
    array = pa.array([text])
    try:
        made = timestamps_of(array, kind) if pa.types.is_timestamp(kind) else array.cast(kind)
        made.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return not _overflowed(made) or "inf" in text.lower()


def hexed(character: str) -> str:
    """A character as a regular expression in RE2, also inside brackets."""
    return f"\\x{ord(character):02x}"


def well_formed(delimiter: str, quote: str) -> str:
    """A row in which every quote opens, closes or is doubled inside, and line breaks are only inside."""
    q, d = hexed(quote), hexed(delimiter)
    field = f"(?:{q}(?:[^{q}]|{q}{q})*{q}|[^{q}{d}\r\n]*)"
    return f"^{field}(?:{d}{field})*$"


def _any(values: pa.Array, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(values, pattern)).as_py())


def _with_breaks(rows: pa.StructArray) -> pa.StructArray:
    columns = rows.flatten()
    for at, column in enumerate(columns):
        if pa.types.is_string(column.type):
            for stand_in, wanted in (("\x1c", "\n"), ("\x1d", "\r")):
                column = pc.replace_substring(column, stand_in, wanted)
            columns[at] = column
    return pa.StructArray.from_arrays(columns, fields=list(rows.type))


def _parsed_type(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_temporal(kind) else kind


def _finished(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if pa.types.is_decimal(kind):
        array.validate(full=True)  # the reader lets more digits pass than the precision has
    return timestamps_of(array, kind) if pa.types.is_timestamp(kind) else array.cast(kind)


def _overflowed(column: pa.Array) -> bool:
    return bool(pa.types.is_floating(column.type) and pc.any(pc.is_inf(column)).as_py())


def _says_infinity(values: pa.BinaryArray) -> bool:
    """Whether infinity was written as such. Called for one value; a block with infinities is read one by one."""
    return len(values) == 1 and b"inf" in values[0].as_py().lower()
