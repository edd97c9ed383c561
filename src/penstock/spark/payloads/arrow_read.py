"""Arrow IPC values to rows: the buffers of a record are used where they lie, and copied once where they are joined.

A value is scanned (ipc_scan) and its sizes believed only within limits; then Arrow reads it, `validate(full=True)`
checks every offset, index and text in it, and only then is it touched. A record gives all of its rows or, if any part
of it is bad, one null row and a reason; a null value gives one null row too.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.types import DataType, StructType

from .arrow_fit import Convert, pick
from .base import BadValue, Decoded, Decoder, PayloadError, clip, offsets_of
from .ipc_scan import MAX_UNPACKED_BYTES, scan
from .shapes import arrow_struct, breaks_not_null, check_supported

# How much `parts` unpacks at a time. A part is at most this and one record more.
PART_BYTES = 64 << 20
# Plans that are kept, one for each schema seen: a topic has few, but whoever writes to it decides.
MAX_PLANS = 64
# A null column becomes a real one: 16 bytes a value is the widest that Spark has.
NULL_VALUE_BYTES = 16

Plan = list[tuple[int, Convert]]


def no_refusal(kind: DataType) -> str | None:
    return None


class _Part(NamedTuple):
    pieces: list[pa.StructArray]
    sources: list[tuple[int, int]]  # (record, its rows)
    bad: list[tuple[int, str]]


class ArrowDecoder(Decoder):
    def __init__(self, schema: StructType) -> None:
        check_supported(schema, "arrow", no_refusal)
        super().__init__(arrow_struct(schema))
        self._fields = list(self.arrow_type)
        self._null = pa.nulls(1, self.arrow_type)
        self._plans: dict[pa.Schema, Plan] = {}

    def decode(self, values: pa.BinaryArray) -> Decoded:
        parts = list(self.parts(values))
        if len(parts) == 1:
            return parts[0]
        if sum(part.values.nbytes for part in parts) > np.iinfo(np.int32).max:
            raise PayloadError(
                f"{len(values)} Arrow records unpack to more than 2 GiB; decode fewer at a time"
            )
        rows = pa.concat_arrays([part.rows for part in parts if part.rows is not None])
        return Decoded(pa.concat_arrays([p.values for p in parts]), rows, [b for p in parts for b in p.bad])

    def parts(self, values: pa.BinaryArray) -> Iterator[Decoded]:
        part, size = _Part([], [], []), 0
        for at, value in enumerate(values_of(values)):
            pieces = self._pieces(at, value, part.bad)
            part.pieces.extend(pieces)
            part.sources.append((at, sum(map(len, pieces))))
            size += sum(piece.nbytes for piece in pieces)
            if size > PART_BYTES:
                yield self._decoded(part)
                part, size = _Part([], [], []), 0
        if part.sources or not len(values):
            yield self._decoded(part)

    def _decoded(self, part: _Part) -> Decoded:
        records, counts = np.array(part.sources, np.int32).reshape(-1, 2).T
        match part.pieces:
            case []:
                values = pa.array([], self.arrow_type)
            case [values]:
                pass
            case pieces:
                values = pa.concat_arrays(pieces)
        return Decoded(values, pa.array(np.repeat(records, counts)), part.bad)

    def _pieces(self, at: int, value: pa.Buffer | None, bad: list[tuple[int, str]]) -> list[pa.StructArray]:
        if value is None:
            return [self._null]
        try:
            return self._batches(value)
        except BadValue as error:
            bad.append((at, clip(str(error))))
        return [self._null]

    def _batches(self, value: pa.Buffer) -> list[pa.StructArray]:
        claim = scan(memoryview(value))
        try:
            with pa.ipc.open_stream(aligned(value).slice(claim.start)) as stream:
                plan = self._plan(stream.schema)
                _check_nulls(stream.schema, claim.rows, claim.unpacked_bytes)
                return [self._rows(batch, plan) for batch in stream]
        except (pa.ArrowException, OSError, ValueError) as error:
            raise BadValue(f"malformed Arrow IPC: {error}") from None

    def _plan(self, schema: pa.Schema) -> Plan:
        plan = self._plans.get(schema)
        if plan is None:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            plan = self._plans[schema] = [pick(schema, field, "") for field in self._fields]
        return plan

    def _rows(self, batch: pa.RecordBatch, plan: Plan) -> pa.StructArray:
        columns = []
        for place, convert in plan:
            column = batch.column(place)
            column.validate(full=True)
            columns.append(convert(column))
        rows = pa.StructArray.from_arrays(columns, fields=self._fields)
        if breaks_not_null(rows, self.arrow_type):
            raise BadValue("a column that the schema calls NOT NULL holds a null")
        return rows


def _check_nulls(schema: pa.Schema, rows: int, unpacked: int) -> None:
    """Columns of type null cost the writer nothing; what they will cost the reader counts too."""
    free = sum(pa.types.is_null(kind) for kind in schema.types) * rows * NULL_VALUE_BYTES
    if unpacked + free > MAX_UNPACKED_BYTES:
        raise BadValue(
            f"the Arrow IPC value claims {rows} rows of nulls; at most {MAX_UNPACKED_BYTES} bytes are read"
        )


def values_of(values: pa.BinaryArray) -> Iterator[pa.Buffer | None]:
    """Each value as a slice of the array's data, nothing copied."""
    data, ends = values.buffers()[2], offsets_of(values)
    present = np.asarray(values.is_valid())
    for at in range(len(values)):
        if not present[at]:
            yield None
        elif data is None:
            yield pa.py_buffer(b"")
        else:
            yield data.slice(int(ends[at]), int(ends[at + 1] - ends[at]))


def aligned(value: pa.Buffer) -> pa.Buffer:
    """Arrow wants its buffers on multiples of 8 bytes; records lie where they happen to. Copies if it must."""
    return value if value.address % 8 == 0 else pa.py_buffer(value.to_pybytes())
