"""Record batches to Arrow columns, with no Python object per record.

`batch.scan_batch` says where each key, value and header is. Its slices rise from first to last, so a whole payload is
one BinaryArray of 4n - 1 slices, of which every fourth is a key and every fourth from the third on a value: `take`
gathers them in one pass of native code. Nulls are taken with a null index.

Columns that are the same in each row (topic, partition, timestampType) are made once and cut to size.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.batch import BatchHeader, Columns
from penstock.types import TopicPartition

NULL_KEY: Final = 1
NULL_VALUE: Final = 2

INDEX_ROWS: Final = 1 << 18
"""Rows of the kept index arrays (1 MB each). Longer runs get their own, which takes longer than all the rest."""
CONSTANT_ROWS: Final = 1 << 15
"""Rows of the kept constant arrays; one of these is a topic's name as often."""

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
SIZED: Final = ("key", "value", "headers")
"""The columns whose size a producer chooses."""


class Block(NamedTuple):
    """The columns of one or more batches that vary by row, all of one length. Only the columns that were asked for."""

    rows: int
    size_bytes: int
    """About what keys, values and headers take."""
    columns: Mapping[str, pa.Array]


class Scanned(NamedTuple):
    """One batch, or several that lie in one buffer."""

    payload: bytes
    columns: Columns
    base_offset: int
    last_offset: int
    log_append_time: bool

    @classmethod
    def of(cls, header: BatchHeader, payload: bytes, columns: Columns) -> "Scanned":
        return cls(payload, columns, header.base_offset, header.last_offset, header.log_append_time)

    def goes_with(self, other: "Scanned") -> bool:
        """Whether `other`, the next batch, lies in the same buffer: its positions then go on where these end."""
        return self.payload is other.payload and self.log_append_time == other.log_append_time


def together(run: Sequence[Scanned]) -> Scanned:
    """Batches of one buffer as one: their slices rise from the first to the last. Headers are not brought along."""
    if len(run) == 1:
        return run[0]
    parts = [each.columns for each in run]
    merged = Columns(
        rows=sum(part.rows for part in parts),
        slices=b"".join([part.slices for part in parts]),
        nulls=b"".join([part.nulls for part in parts]),
        timestamps=b"".join([part.timestamps for part in parts]),
        offsets=b"".join([part.offsets for part in parts]),
        header_ends=b"",
        header_slices=b"",
        header_nulls=b"",
    )
    return run[0]._replace(columns=merged, last_offset=run[-1].last_offset)


def to_block(batch: Scanned, wanted: frozenset[str], start: int, end: int) -> Block:
    """The wanted columns of the records from offset `start` up to `end`."""
    payload, scanned = batch.payload, batch.columns
    first, last = _inside(batch, start, end)
    rows = scanned.rows
    out: dict[str, pa.Array] = {}
    parts = _slices(scanned.slices, rows, payload) if rows else None
    for name, null, at in (("key", NULL_KEY, 0), ("value", NULL_VALUE, 2)):
        if name in wanted:
            out[name] = _gather(parts, rows, scanned.nulls, null, at)
    if "offset" in wanted:
        out["offset"] = _int64(scanned.offsets, rows)
    if "timestamp" in wanted:
        out["timestamp"] = _timestamps(scanned.timestamps, rows)
    if "timestampType" in wanted:
        out["timestampType"] = constant(int(batch.log_append_time), pa.int32(), rows)
    if "headers" in wanted:
        out["headers"] = _headers(payload, scanned)
    if (first, last) != (0, rows):
        out = {name: column.slice(first, last - first) for name, column in out.items()}
    return Block(last - first, sum(out[name].nbytes for name in SIZED if name in out), out)


def joined(blocks: Sequence[Block]) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    names = blocks[0].columns
    return Block(
        sum(block.rows for block in blocks),
        sum(block.size_bytes for block in blocks),
        {name: pa.concat_arrays([block.columns[name] for block in blocks]) for name in names},
    )


def constants(tp: TopicPartition, rows: int) -> dict[str, pa.Array]:
    """The columns that a partition's rows all share."""
    return {
        "topic": constant(tp.topic, pa.string(), rows),
        "partition": constant(tp.partition, pa.int32(), rows),
    }


def constant(value: object, kind: pa.DataType, rows: int) -> pa.Array:
    if rows <= CONSTANT_ROWS:
        return _kept_constant(value, kind).slice(0, rows)
    return pa.repeat(pa.scalar(value, kind), rows)


@lru_cache(maxsize=64)
def _kept_constant(value: object, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), CONSTANT_ROWS)


def _inside(batch: Scanned, start: int, end: int) -> tuple[int, int]:
    """The first row and the row after the last one that are in [start, end)."""
    if batch.base_offset >= start and batch.last_offset < end:
        return 0, batch.columns.rows
    offsets = memoryview(batch.columns.offsets).cast("q")
    return bisect_left(offsets, start), bisect_left(offsets, end)


def _slices(offsets: bytes, count: int, payload: bytes) -> pa.Array:
    return pa.Array.from_buffers(
        pa.binary(), count * 4 - 1, [None, pa.py_buffer(offsets), pa.py_buffer(payload)]
    )


def _gather(parts: pa.Array | None, rows: int, nulls: bytes, null: int, at: int) -> pa.Array:
    """Every fourth slice from `at` on; null where the flag says so."""
    if parts is None:
        return pa.nulls(0, pa.binary())
    flags = _flags(nulls, null)
    if flags is None:
        return parts.take(every_fourth(at, rows))
    if flags == rows:
        return pa.nulls(rows, pa.binary())
    marks = pa.Array.from_buffers(pa.uint8(), rows, [None, pa.py_buffer(nulls)])
    is_null = pc.equal(pc.bit_wise_and(marks, pa.scalar(null, pa.uint8())), pa.scalar(null, pa.uint8()))
    return parts.take(pc.if_else(is_null, pa.scalar(None, pa.int32()), every_fourth(at, rows)))


def _flags(nulls: bytes, null: int) -> int | None:
    """None: no row is null. All rows, if all are; else any other number. Counting bytes is quick."""
    rows = len(nulls)
    if nulls.count(0) == rows:
        return None
    marked = nulls.count(null) + nulls.count(NULL_KEY | NULL_VALUE)
    return marked or None


def every_fourth(at: int, rows: int) -> pa.Array:
    if rows <= INDEX_ROWS:
        return _kept_index(at).slice(0, rows)
    return _index(at, rows)


@lru_cache(maxsize=4)
def _kept_index(at: int) -> pa.Array:
    return _index(at, INDEX_ROWS)


def _index(at: int, rows: int) -> pa.Array:
    return pa.array(range(at, at + rows * 4, 4), pa.int32())


def _int64(numbers: bytes, rows: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(numbers)])


def _timestamps(numbers: bytes, rows: int) -> pa.Array:
    """Converts ms to the us that Spark needs; a time that does not fit is an error of its record's writer."""
    return pc.multiply_checked(_int64(numbers, rows), 1000).view(TIMESTAMP)


HEADER_FIELDS: Final = (pa.field("key", pa.string()), pa.field("value", pa.binary()))
HEADERS: Final = pa.list_(pa.field("element", pa.struct(HEADER_FIELDS)))


def _headers(payload: bytes, scanned: Columns) -> pa.Array:
    """A list of (name, value) per record; null where a record has none, as the Kafka connector gives it."""
    rows, count = scanned.rows, len(scanned.header_nulls)
    if not count:
        return pa.nulls(rows, HEADERS)
    parts = _slices(scanned.header_slices, count, payload)
    names = _text(parts.take(every_fourth(0, count)))
    values = _gather(parts, count, scanned.header_nulls, NULL_VALUE, 2)
    pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADER_FIELDS))
    ends = pa.Array.from_buffers(pa.int32(), rows + 1, [None, pa.py_buffer(scanned.header_ends)])
    is_empty = pc.equal(ends.slice(1), ends.slice(0, rows))
    return pa.ListArray.from_arrays(ends, pairs, type=HEADERS, mask=is_empty)


def _text(raw: pa.Array) -> pa.Array:
    """Header names as text. Bytes that are not UTF-8 become the replacement mark, as Kafka's Java client has it."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode("utf-8", "replace") for name in raw.to_pylist()], pa.string())


def filtered(block: Block, keep: Callable[[Mapping[str, Any]], pa.Array]) -> Block:
    """The rows for which `keep` (of the columns) is true."""
    mask = keep(block.columns)
    columns = {name: column.filter(mask) for name, column in block.columns.items()}
    rows = len(next(iter(columns.values())))
    return Block(rows, block.size_bytes, columns)
