"""Arrow IPC values to rows: the buffers of a record are used in place, and copied once when records are joined.

A value is scanned first, and its sizes must be within limits (ipc_scan). Then Arrow reads it, and `validate(full=True)`
checks every offset, index and text in it. Only then is its content used.
"""

import pyarrow as pa
from pyspark.sql.types import DataType, StructType

from .arrow_fit import Convert, pick
from .interfaces import BadValue
from .ipc_scan import MAX_UNPACKED_BYTES, scan
from .many_rows import ManyRowsDecoder
from .spark_types import arrow_struct, check_promises, check_supported

# Plans that are kept, one for each schema seen: a topic has few, but its writers decide how many.
MAX_PLANS = 64
# A null column becomes a real one: 16 bytes a value is the widest that Spark has.
NULL_VALUE_BYTES = 16

Plan = list[tuple[int, Convert]]


def no_refusal(kind: DataType) -> str | None:
    return None


class ArrowDecoder(ManyRowsDecoder):
    def __init__(self, schema: StructType) -> None:
        check_supported(schema, "arrow", no_refusal)
        super().__init__(arrow_struct(schema))
        self._fields = list(self.arrow_type)
        self._plans: dict[pa.Schema, Plan] = {}

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
        for tp, convert in plan:
            column = batch.column(tp)
            column.validate(full=True)
            columns.append(convert(column))
        rows = pa.StructArray.from_arrays(columns, fields=self._fields)
        check_promises(rows, self.arrow_type)
        return rows


def _check_nulls(schema: pa.Schema, rows: int, unpacked: int) -> None:
    """Counts the memory that columns of type null will take here, although they take no bytes in the value."""
    free = sum(pa.types.is_null(kind) for kind in schema.types) * rows * NULL_VALUE_BYTES
    if unpacked + free > MAX_UNPACKED_BYTES:
        raise BadValue(
            f"the Arrow IPC value claims {rows} rows of nulls; at most {MAX_UNPACKED_BYTES} bytes are read"
        )


def aligned(value: pa.Buffer) -> pa.Buffer:
    """The value at an address that is a multiple of 8, as Arrow's buffers must be; a copy if it is at another one."""
    return value if value.address % 8 == 0 else pa.py_buffer(value.to_pybytes())
