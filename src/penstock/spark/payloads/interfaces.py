"""The types of this package: decoders and encoders, their results for a block, and errors.

Planning a query needs no more than this of most formats, so nothing heavy is imported here.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import PenstockError

if TYPE_CHECKING:
    import pyarrow as pa

# A reason travels as a record header to the dead-letter topic and into log lines: one sentence, never the payload.
MAX_REASON_CHARS = 300
MAX_SHOWN_CHARS = 40


class PayloadError(PenstockError):
    """A payload option, schema or sample that cannot work: names it, what was found and what was expected."""


class BadValue(Exception):
    """This record does not fit; the text is the reason that its reader will see."""


class Decoded(NamedTuple):
    values: "pa.StructArray"  # null where the record's value was null or bad
    rows: "pa.Int32Array | None"  # formats with many rows per record: the source record of each row
    bad: list[tuple[int, str]]  # (source record, reason), ascending


def clip(text: str, limit: int = MAX_REASON_CHARS) -> str:
    """At most `limit` characters of `text`, on one line and printable."""
    head = text[: limit + 1].replace("\n", " ").replace("\r", " ")
    head = "".join(c if c.isprintable() else "?" for c in head)
    return head if len(head) <= limit else head[: limit - 3] + "..."


def shown(value: object) -> str:
    """The beginning of a value, for the text of an error."""
    if isinstance(value, bytes):
        return clip(repr(value[:MAX_SHOWN_CHARS]), MAX_SHOWN_CHARS)
    return clip(str(value)[: 2 * MAX_SHOWN_CHARS], MAX_SHOWN_CHARS)


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
