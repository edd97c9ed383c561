"""Avro values to rows: fastavro reads each record, Arrow takes over column by column.

Framing `none` is a bare datum; `confluent` is a zero byte, a schema id of four bytes (big endian) and a datum. Without
a schema registry (registry_decoder), the schema that was given is the writer's schema; avroSchemaId lists the ids for
which that is true, and a record with another id is bad. `container` is in avro_container.
"""

from io import BytesIO
from typing import Any, cast

import numpy as np
import pyarrow as pa
from fastavro import parse_schema, schemaless_reader
from fastavro.schema import SchemaParseException, UnknownType
from pyspark.sql.types import StructType

from .avro_columns import columns_of
from .avro_schema import Shape
from .base import CUTS, FEW_RECORDS
from .interfaces import BadValue, Decoded, Decoder, PayloadError, clip
from .spark_types import arrow_struct, check_promises

CONFLUENT_HEADER_BYTES = 5
# The errors of fastavro for bytes that do not match the schema; ArithmeticError is decimal's.
BROKEN = (EOFError, LookupError, ValueError, TypeError, ArithmeticError, MemoryError, StopIteration)


class DatumReader:
    """Reads data of one schema, and finds the field at which a bad datum goes wrong."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        try:
            self._schema = parse_schema(shape.avro)
        except (SchemaParseException, UnknownType, ValueError, TypeError) as error:
            raise PayloadError(f"not a valid Avro schema: {clip(str(error))}") from None

    def read(self, source: BytesIO) -> dict[str, Any]:
        try:
            return cast(dict[str, Any], schemaless_reader(source, self._schema, None))
        except BROKEN as error:
            raise BadValue(explained(error)) from None

    def where(self, value: bytes, start: int) -> str:
        """The field that cannot be read: the last one of the shortest record schema that fails."""
        fields = self.shape.avro["fields"]
        low, high = 1, len(fields)
        while low < high:
            middle = (low + high) // 2
            if self._reads(value, start, middle):
                low = middle + 1
            else:
                high = middle
        return f"field {fields[low - 1]['name']!r}: "

    def _reads(self, value: bytes, start: int, count: int) -> bool:
        source = BytesIO(value)
        source.seek(start)
        shorter = {**self.shape.avro, "fields": self.shape.avro["fields"][:count]}
        try:
            schemaless_reader(source, parse_schema(shorter), None)
        except BROKEN:
            return False
        return True


def explained(error: BaseException) -> str:
    match error:
        case EOFError() | MemoryError():
            return "the value ends before the field does"
        case LookupError():
            return "a union branch or enum symbol that the Avro schema does not have, or the value ends"
        case UnicodeDecodeError():
            return "a string that is not UTF-8"
    return f"does not match the Avro schema: {error}"


class AvroDecoder(Decoder):
    """One datum per record, framed or bare."""

    def __init__(self, schema: StructType, shape: Shape, confluent: bool, ids: frozenset[int]) -> None:
        super().__init__(arrow_struct(schema))
        self._shape, self._reader = shape, DatumReader(shape)
        self._start = CONFLUENT_HEADER_BYTES if confluent else 0
        self._ids = ids

    def decode(self, values: pa.BinaryArray) -> Decoded:
        rows: list[dict[str, Any]] = []
        topic_partitions: list[int] = []
        bad: list[tuple[int, str]] = []
        for at, value in enumerate(values.to_pylist()):
            if value is None:
                continue
            try:
                rows.append(self._row(value))
                topic_partitions.append(at)
            except BadValue as error:
                bad.append((at, clip(str(error))))
        return self._placed(rows, topic_partitions, len(values), bad)

    def _row(self, value: bytes) -> dict[str, Any]:
        if self._start:
            self._check_header(value)
        source = BytesIO(value)
        source.seek(self._start)
        try:
            row = self._reader.read(source)
        except BadValue as error:
            raise BadValue(f"{self._reader.where(value, self._start)}{error}") from None
        if source.tell() != len(value):
            raise BadValue(
                f"{len(value) - source.tell()} bytes follow the Avro record of {source.tell()} bytes"
            )
        return row

    def _check_header(self, value: bytes) -> None:
        if len(value) < CONFLUENT_HEADER_BYTES or value[0]:
            found = value[:CONFLUENT_HEADER_BYTES].hex() or "nothing"
            raise BadValue(
                f"expected Confluent framing (a zero byte and a schema id of 4 bytes), found {found}"
            )
        schema_id = int.from_bytes(value[1:CONFLUENT_HEADER_BYTES], "big")
        if self._ids and schema_id not in self._ids:
            wanted = ", ".join(map(str, sorted(self._ids)[:10]))
            raise BadValue(f"the schema id is {schema_id}, avroSchemaId allows {wanted}")

    def _placed(
        self, rows: list[dict[str, Any]], topic_partitions: list[int], count: int, bad: list[tuple[int, str]]
    ) -> Decoded:
        unfit: list[tuple[int, str]] = []
        pieces = self._built(rows, 0, unfit)
        whole = pa.concat_arrays(pieces) if len(pieces) > 1 else pieces[0]
        bad = sorted(bad + [(topic_partitions[i], reason) for i, reason in unfit])
        if len(topic_partitions) == count:
            return Decoded(whole, None, bad)
        sources = np.zeros(count, np.int64)
        sources[topic_partitions] = np.arange(len(topic_partitions))
        missing = np.ones(count, np.bool_)
        missing[topic_partitions] = False
        return Decoded(whole.take(pa.array(sources, mask=missing)), None, bad)

    def _built(
        self, rows: list[dict[str, Any]], start: int, unfit: list[tuple[int, str]]
    ) -> list[pa.StructArray]:
        """Columns of all rows. If some numbers do not fit, the rows are cut into parts until their rows are found."""
        try:
            return [self._columns(rows)]
        except BadValue as error:
            if len(rows) == 1:
                unfit.append((start, clip(str(error))))
                return [pa.nulls(1, self.arrow_type)]
        step = 1 if len(rows) <= FEW_RECORDS else -(-len(rows) // CUTS)
        return [
            p
            for at in range(0, len(rows), step)
            for p in self._built(rows[at : at + step], start + at, unfit)
        ]

    def _columns(self, rows: list[dict[str, Any]]) -> pa.StructArray:
        try:
            made = columns_of(rows, self._shape, self.arrow_type)
        except (pa.ArrowException, OverflowError) as error:
            raise BadValue(f"a number does not fit its type: {error}") from None
        check_promises(made, self.arrow_type)
        return made
