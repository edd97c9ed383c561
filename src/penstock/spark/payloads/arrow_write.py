"""Rows to Arrow IPC streams: slices of the columns, written as they are in memory, without reading single rows."""

import pyarrow as pa
from pyspark.sql.types import StructType

from .arrow_read import no_refusal
from .interfaces import Encoder, PayloadError
from .spark_types import check_supported

# A stream's schema and framing, roughly; only the first guess depends on it.
OVERHEAD_BYTES = 1024


class ArrowEncoder(Encoder):
    def __init__(self, schema: StructType) -> None:
        check_supported(schema, "arrow", no_refusal)

    def encode(self, values: pa.StructArray) -> pa.BinaryArray:
        """One row per record: correct, but it wastes space. `pack` puts many rows into a record."""
        valid = values.is_valid().to_pylist()
        streams = [_stream(_batch(values.slice(i, 1))) if valid[i] else None for i in range(len(values))]
        return pa.array(streams, pa.binary())

    def pack(self, values: pa.StructArray, max_bytes: int) -> list[bytes]:
        """Streams of at most `max_bytes` each, rows in order. A null row becomes a row of nulls."""
        if not len(values):
            return []
        batch = _batch(values)
        limit = max(max_bytes - OVERHEAD_BYTES, 1)
        count = max(1, min(len(values), len(values) * limit // max(batch.nbytes, 1)))
        packed: list[bytes] = []
        for start in range(0, len(values), count):
            packed.extend(_fitting(batch, start, min(count, len(values) - start), max_bytes))
        return packed


def _batch(values: pa.StructArray) -> pa.RecordBatch:
    # flatten() applies the struct's own nulls to its fields; from_struct_array would ignore them.
    return pa.RecordBatch.from_arrays(values.flatten(), schema=pa.schema(list(values.type)))


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def _fitting(batch: pa.RecordBatch, start: int, count: int, max_bytes: int) -> list[bytes]:
    """The rows as one stream if it is small enough, else as two halves, and so on."""
    stream = _stream(batch.slice(start, count))
    if len(stream) <= max_bytes:
        return [stream]
    if count == 1:
        raise PayloadError(
            f"one row needs {len(stream)} bytes as an Arrow record; at most {max_bytes} are allowed"
        )
    half = count // 2
    left = _fitting(batch, start, half, max_bytes)
    return left + _fitting(batch, start + half, count - half, max_bytes)
