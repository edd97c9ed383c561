"""Rows to Avro: one datum per record, bare, in Confluent's framing, or as an object container of one row."""

import hashlib
import json
from io import BytesIO
from typing import Any

import pyarrow as pa
from fastavro import parse_schema, schemaless_writer, writer
from pyspark.sql.types import StructType

from .avro_columns import rows_of
from .avro_schema import Shape
from .interfaces import Encoder, PayloadError, clip

# The errors of fastavro for a value that its schema does not allow.
UNFIT = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)


class AvroEncoder(Encoder):
    def __init__(
        self, schema: StructType, shape: Shape, written: Any, framing: str, ids: frozenset[int]
    ) -> None:
        """`written` is the schema with its logical types, as readers of a container should see it."""
        self._shape, self._framing = shape, framing
        self._schema = parse_schema(written if framing == "container" else shape.avro)
        self._sync = hashlib.md5(json.dumps(written).encode(), usedforsecurity=False).digest()
        if framing == "confluent" and len(ids) != 1:
            raise PayloadError(
                "avroFraming=confluent writes one schema id into each record; give it as avroSchemaId"
            )
        self._head = b"\0" + min(ids).to_bytes(4, "big") if framing == "confluent" else b""

    def encode(self, values: pa.StructArray) -> pa.BinaryArray:
        try:
            rows = rows_of(values, self._shape)
        except (pa.ArrowException, KeyError) as error:
            raise PayloadError(f"the rows cannot be written as Avro: {clip(str(error))}") from None
        return pa.array(
            [None if row is None else self._one(at, row) for at, row in enumerate(rows)], pa.binary()
        )

    def _one(self, at: int, row: dict[str, Any]) -> bytes:
        sink = BytesIO()
        sink.write(self._head)
        try:
            if self._framing == "container":
                writer(sink, self._schema, [row], sync_marker=self._sync)
            else:
                schemaless_writer(sink, self._schema, row)
        except UNFIT as error:
            raise PayloadError(f"row {at} does not fit the Avro schema: {clip(str(error))}") from None
        return sink.getvalue()
