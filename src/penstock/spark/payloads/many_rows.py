"""Formats in which one record holds many rows: keeps track of the record that each row came from.

A record gives all of its rows or, if any part of it is bad, one null row and a reason; a null value gives one null row
too.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from .base import offsets_of
from .interfaces import BadValue, Decoded, Decoder, PayloadError, clip

# How much `parts` unpacks at a time. A part is at most this and one record more.
PART_BYTES = 64 << 20


class _Part(NamedTuple):
    pieces: list[pa.StructArray]
    sources: list[tuple[int, int]]  # (record, its rows)
    bad: list[tuple[int, str]]


class ManyRowsDecoder(Decoder):
    def __init__(self, arrow_type: pa.StructType) -> None:
        super().__init__(arrow_type)
        self._null = pa.nulls(1, arrow_type)

    @abstractmethod
    def _batches(self, value: pa.Buffer) -> list[pa.StructArray]:
        """All rows of one record; BadValue says why not."""

    def decode(self, values: pa.BinaryArray) -> Decoded:
        parts = list(self.parts(values))
        if len(parts) == 1:
            return parts[0]
        if sum(part.values.nbytes for part in parts) > np.iinfo(np.int32).max:
            raise PayloadError(f"{len(values)} records unpack to more than 2 GiB; decode fewer at a time")
        rows = pa.concat_arrays([part.rows for part in parts if part.rows is not None])
        return Decoded(pa.concat_arrays([p.values for p in parts]), rows, [b for p in parts for b in p.bad])

    def parts(self, values: pa.BinaryArray, headers: pa.Array | None = None) -> Iterator[Decoded]:
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


def values_of(values: pa.BinaryArray) -> Iterator[pa.Buffer | None]:
    """Each value as a slice of the array's data, without a copy."""
    data, ends = values.buffers()[2], offsets_of(values)
    present = np.asarray(values.is_valid())
    for at in range(len(values)):
        if not present[at]:
            yield None
        elif data is None:
            yield pa.py_buffer(b"")
        else:
            yield data.slice(int(ends[at]), int(ends[at + 1] - ends[at]))
