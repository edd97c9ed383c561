"""The interface of every payload format, and how a block of records is decoded so that row and record always match.

A format decodes a whole block of values at once (`BlockDecoder._block`). It accepts the block only if every record in
it is good, and must then prove that row i is record i. A block that is refused is cut into eight parts, and each part
is tried again, until parts are small enough to be read record by record (`BlockDecoder._record`). One bad record among
10,000 thus costs little more than a second pass over the block and some 200 records that are read slowly.

Whether a record is good must not depend on its neighbours: a record that `_block` accepts, `_record` accepts with the
same result. `_record` may accept more.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from .interfaces import BadValue, Decoded, Decoder, clip

# Blocks of at most this many records are read one by one after a refusal; cutting further costs more than it saves
# (a call of a block reader takes as long as about this many records that are read with care).
FEW_RECORDS = 256
CUTS = 8
# The JSON and CSV readers count a block's bytes in 32 bits; smaller blocks also keep the parsed copy in the cache.
MAX_BLOCK_BYTES = 32 << 20


class BlockDecoder(Decoder):
    """One row per record: decodes a whole block at once, and record by record around a bad one."""

    few_records = FEW_RECORDS

    @abstractmethod
    def _block(self, values: pa.BinaryArray) -> pa.StructArray | None:
        """The rows of `values` (none is null), or None if any of them must be read by `_record`."""

    @abstractmethod
    def _record(self, value: bytes) -> dict[str, Any]:
        """One value as a row; BadValue says why not."""

    def decode(self, values: pa.BinaryArray) -> Decoded:
        bad: list[tuple[int, str]] = []
        if not values.null_count:
            return Decoded(self._rows(values, bad), None, bad)
        present = np.asarray(values.is_valid())
        rows = self._rows(values.drop_null(), bad)
        topic_partitions = np.flatnonzero(present)
        sources = pa.array(np.cumsum(present) - 1, mask=~present)
        return Decoded(rows.take(sources), None, [(int(topic_partitions[i]), reason) for i, reason in bad])

    def _rows(self, values: pa.BinaryArray, bad: list[tuple[int, str]]) -> pa.StructArray:
        pieces: list[pa.StructArray] = []
        for start, count in _blocks_of(values):
            self._walk(values, start, count, pieces, bad)
        if len(pieces) == 1:
            return pieces[0]
        return pa.concat_arrays(pieces) if pieces else pa.array([], self.arrow_type)

    def _walk(
        self,
        values: pa.BinaryArray,
        start: int,
        count: int,
        pieces: list[pa.StructArray],
        bad: list[tuple[int, str]],
    ) -> None:
        block = self._block(values.slice(start, count))
        if block is not None:
            pieces.append(block)
        elif count <= self.few_records:
            pieces.append(self._one_by_one(values.slice(start, count), start, bad))
        else:
            step = -(-count // CUTS)
            for at in range(start, start + count, step):
                self._walk(values, at, min(step, start + count - at), pieces, bad)

    def _one_by_one(self, values: pa.BinaryArray, start: int, bad: list[tuple[int, str]]) -> pa.StructArray:
        rows: list[dict[str, Any] | None] = []
        for at, value in enumerate(values.to_pylist(), start):
            try:
                rows.append(self._record(value))
            except BadValue as error:
                rows.append(None)
                bad.append((at, clip(str(error))))
        return pa.array(rows, self.arrow_type)


def _blocks_of(values: pa.BinaryArray) -> Iterator[tuple[int, int]]:
    """(start, count) of consecutive blocks of at most MAX_BLOCK_BYTES, though always one record at least."""
    ends = offsets_of(values)
    start = 0
    while start < len(values):
        stop = int(np.searchsorted(ends, ends[start] + MAX_BLOCK_BYTES, side="right")) - 1
        stop = min(max(stop, start + 1), len(values))
        yield start, stop - start
        start = stop


def offsets_of(values: pa.BinaryArray) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The n + 1 offsets of an array of n values, into its data buffer."""
    buffer = values.buffers()[1]
    if buffer is None:
        return np.zeros(len(values) + 1, np.int32)
    return np.frombuffer(buffer, np.int32)[values.offset : values.offset + len(values) + 1]
