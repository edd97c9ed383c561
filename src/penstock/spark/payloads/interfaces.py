"""The types of this package: decoders and encoders, their results for a block, and errors.

Planning a query needs no more than this of most formats, so nothing heavy is imported here.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from penstock.schema_registry.problems import BadValue, PayloadError, clip, shown

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "BadValue",
    "Decoded",
    "Decoder",
    "Encoder",
    "PayloadError",
    "clip",
    "shown",
]


class Decoded(NamedTuple):
    values: "pa.StructArray"  # null where the record's value was null or bad
    rows: "pa.Int32Array | None"  # formats with many rows per record: the source record of each row
    bad: list[tuple[int, str]]  # (source record, reason), ascending


class Decoder(ABC):
    """Turns the values of records into rows of one struct type."""

    def __init__(self, arrow_type: "pa.StructType") -> None:
        self.arrow_type = arrow_type
        self.needs_headers = False
        """Whether `parts` must be given the records' headers, too."""

    @abstractmethod
    def decode(self, values: "pa.BinaryArray") -> Decoded: ...

    def parts(self, values: "pa.BinaryArray", headers: "pa.Array | None" = None) -> Iterator[Decoded]:
        """The same as decode, in pieces of bounded size; source records are counted from the start of `values` in each.

        Formats in which a small record can hold many rows give several pieces; the others give one.
        """
        yield self.decode(values)


class Encoder(ABC):
    """Turns rows into the values of records."""

    @abstractmethod
    def encode(self, values: "pa.StructArray") -> "pa.BinaryArray":
        """One record per row; null rows give null values."""

    def pack(self, values: "pa.StructArray", max_bytes: int) -> list[bytes]:
        raise PayloadError("only valueFormat=arrow packs many rows into one record")
