"""The stored parts of one queue on one partition, sorted by what they are."""

from collections.abc import Mapping
from typing import NamedTuple

from penstock.errors import UnknownFormat
from penstock.queue.settlements import TransactionSettlement, decode_settlement
from penstock.queue.state_records import (
    HEAD_SUFFIX,
    Head,
    chunk_of,
    decode_chunk,
    decode_head,
    is_settlement,
    stored_chunk_end,
)
from penstock.queue.states import CHUNK_SIZE


class StoredParts(NamedTuple):
    """`settlements` are those of committed transactions that the chunks do not contain yet, by suffix."""

    head: Head
    chunks: dict[int, bytes]
    settlements: dict[bytes, TransactionSettlement]


def sort_parts(parts: Mapping[bytes, bytes]) -> StoredParts:
    """The last value of each key suffix, without deleted ones. UnknownFormat if a later version wrote them."""
    if HEAD_SUFFIX not in parts:
        raise UnknownFormat("a queue's state has chunks and no head; start the version that wrote it")
    found = StoredParts(decode_head(parts[HEAD_SUFFIX]), {}, {})
    for suffix, value in parts.items():
        if is_settlement(suffix):
            found.settlements[suffix] = decode_settlement(value)
        elif (number := chunk_of(suffix)) is not None:
            found.chunks[number] = value
    return found


def state_end(parts: Mapping[bytes, bytes]) -> int:
    """The end of the offsets about which a queue's stored parts, by suffix, say anything."""
    stored = sort_parts(parts)
    ends = [
        number * CHUNK_SIZE + stored_chunk_end(decode_chunk(one)) for number, one in stored.chunks.items()
    ]
    ends += [one.last + 1 for each in stored.settlements.values() for one in each.ranges]
    return max([stored.head.start_offset, *ends])
