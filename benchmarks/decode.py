"""How fast record batches become columns, against aiokafka's C parser: python benchmarks/decode.py

Batches of about 1 MB with 8-byte keys, from bytes to keys, values, offsets and timestamps, CRC checked,
on one core:

    aiokafka   its C parser; the four collected in lists
    records    read_records: one Python object per record, with headers too
    columns    scan_batch: the positions or numbers of everything, headers too, no object per record

Where pyarrow is installed (the extra `spark` brings it), aiokafka's lists and the columns go on into four Arrow
arrays, which is what a Spark reader needs. Each figure is the best of several runs.
"""

import time
from collections.abc import Callable
from functools import cache
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatch

from penstock.batch import Record, _scan, build_batch, read_records, scan_batch

try:
    import pyarrow
except ImportError:
    pyarrow = None

BATCH_BYTES = 1_000_000
REPEATS = 25
CODECS = {"none": 0, "lz4": 3, "zstd": 4}


def make_batch(value_bytes: int, codec: int) -> tuple[int, bytes]:
    """Text that compresses about as JSON does, different in each record."""
    count = BATCH_BYTES // (value_bytes + 18)
    records = []
    for n in range(count):
        words = f'{{"user": {n * 7919 % 100_003}, "page": "/item/{n * 31 % 977}", "ms": {n * n % 1009}}} '
        value = (words * (value_bytes // len(words) + 1))[:value_bytes].encode()
        records.append(Record(n, 1_700_000_000_000 + n // 10, b"%08d" % n, value))
    return count, build_batch(records, compression=codec)


def with_aiokafka(batch: bytes) -> int:
    parsed = DefaultRecordBatch(bytearray(batch))
    if not parsed.validate_crc():
        raise ValueError("aiokafka finds another checksum")
    keys, values, offsets, timestamps = [], [], [], []
    for record in parsed:
        keys.append(record.key)
        values.append(record.value)
        offsets.append(record.offset)
        timestamps.append(record.timestamp)
    if pyarrow is not None:
        pyarrow.array(keys, pyarrow.binary())
        pyarrow.array(values, pyarrow.binary())
        pyarrow.array(offsets, pyarrow.int64())
        pyarrow.array(timestamps, pyarrow.int64())
    return len(values)


def with_records(batch: bytes) -> int:
    return len(read_records(batch))


def with_columns(batch: bytes) -> int:
    _header, payload, columns = scan_batch(batch)
    if pyarrow is not None:
        # The payload as one array of 4n - 1 slices; every fourth is a key, every fourth from 2 a value.
        parts = from_buffers(pyarrow.binary(), columns.rows * 4 - 1, columns.slices, payload)
        parts.take(every_fourth(columns.rows, 0))
        parts.take(every_fourth(columns.rows, 2))
        from_buffers(pyarrow.int64(), columns.rows, columns.offsets)
        from_buffers(pyarrow.int64(), columns.rows, columns.timestamps)
    return columns.rows


def from_buffers(kind: Any, length: int, *buffers: bytes) -> Any:
    return pyarrow.Array.from_buffers(kind, length, [None, *map(pyarrow.py_buffer, buffers)])


@cache
def every_fourth(rows: int, first: int) -> Any:
    """A reader keeps one such array and cuts it to size."""
    return pyarrow.array(range(first, rows * 4, 4), pyarrow.int32())


def records_per_second(decode: Callable[[bytes], int], batch: bytes, count: int) -> float:
    best = float("inf")
    for _ in range(REPEATS):
        started = time.perf_counter()
        found = decode(batch)
        best = min(best, time.perf_counter() - started)
        if found != count:
            raise ValueError(f"{found} records: expected {count}")
    return count / best


def main() -> None:
    print(f"scan: {'plain Python' if str(_scan.__file__).endswith('.py') else 'compiled'}")
    print(f"Arrow: {'yes' if pyarrow else 'no, pyarrow is not installed'}")
    print(f"{'value':>6} {'codec':>6} {'aiokafka':>9} {'records':>9} {'columns':>9}  millions of records/s")
    for value_bytes in (100, 1000):
        for name, codec in CODECS.items():
            count, batch = make_batch(value_bytes, codec)
            theirs, objects, columns = (
                records_per_second(decode, batch, count) / 1e6
                for decode in (with_aiokafka, with_records, with_columns)
            )
            print(
                f"{value_bytes:>4} B {name:>6} {theirs:>9.2f} {objects:>9.2f} {columns:>9.2f}"
                f"  records x{objects / theirs:.1f}, columns x{columns / theirs:.1f}"
            )


if __name__ == "__main__":
    main()
