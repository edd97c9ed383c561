"""Checks the sizes that an Arrow IPC stream declares, before Arrow reads it.

    stream  = message* (end marker or end of value)
    message = FF FF FF FF | int32 metadata size | metadata (flatbuffer) | body
    file    = "ARROW1" 00 00 | stream | footer: everything of interest is in the stream, so the footer is not read

Arrow allocates what the metadata asks for: a buffer of a compressed body begins with its uncompressed size, and 20
bytes may say "one terabyte". So the sizes are added up here first. Buffers must also lie inside their body and on
multiples of 8 bytes, as the format demands: vectorised code may crash on others.

Only the handful of flatbuffer fields that hold sizes are read. All reads are bounds-checked by `struct`.
"""

import struct
from typing import NamedTuple

from .interfaces import BadValue

FILE_MAGIC = b"ARROW1\0\0"
CONTINUATION = 0xFFFFFFFF
# MessageHeader, the union in Message.fbs.
SCHEMA, DICTIONARY_BATCH, RECORD_BATCH = 1, 2, 3
# One record's rows in memory. Brokers limit records to a few MB by default; this allows for compressed ones.
MAX_UNPACKED_BYTES = 256 << 20
# A value of many tiny messages costs time for each.
MAX_MESSAGES = 10_000
# The most rows that may need no bytes at all (columns of type null).
MAX_FREE_ROWS = 1 << 16

_U16, _I32, _U32, _I64, _PAIR = (struct.Struct(f) for f in ("<H", "<i", "<I", "<q", "<qq"))


class Claim(NamedTuple):
    """The declared contents of the whole value."""

    start: int  # where the stream begins
    unpacked_bytes: int
    rows: int


class _Table(NamedTuple):
    """A flatbuffer table: `at` is its position in `data`."""

    data: memoryview
    at: int

    def _slot(self, index: int) -> int:
        """The position of a field, 0 if it is absent."""
        vtable = self.at - _get(_I32, self.data, self.at)
        if 4 + 2 * index >= _get(_U16, self.data, vtable):
            return 0
        offset = _get(_U16, self.data, vtable + 4 + 2 * index)
        return self.at + offset if offset else 0

    def int64(self, index: int) -> int:
        slot = self._slot(index)
        return _get(_I64, self.data, slot) if slot else 0

    def byte(self, index: int) -> int:
        slot = self._slot(index)
        return self.data[slot] if slot else 0

    def table(self, index: int) -> "_Table | None":
        slot = self._slot(index)
        return _Table(self.data, slot + _get(_U32, self.data, slot)) if slot else None

    def pairs(self, index: int) -> list[tuple[int, int]]:
        """A vector of structs of two int64."""
        slot = self._slot(index)
        if not slot:
            return []
        vector = slot + _get(_U32, self.data, slot)
        count = _get(_U32, self.data, vector)
        end = vector + 4 + count * _PAIR.size
        if end > len(self.data):
            raise BadValue("malformed Arrow IPC: a vector reaches beyond its message")
        return list(_PAIR.iter_unpack(self.data[vector + 4 : end]))


def _get(kind: struct.Struct, data: memoryview, at: int) -> int:
    if at < 0:
        raise BadValue("malformed Arrow IPC: a position before the start of its message")
    return int(kind.unpack_from(data, at)[0])


def scan(value: memoryview) -> Claim:
    """Adds up the sizes that the value declares; BadValue if they are impossible, or too large for one record."""
    try:
        return _scan(value)
    except (struct.error, IndexError):
        raise BadValue("malformed Arrow IPC: a message ends before its fields do") from None


def _scan(value: memoryview) -> Claim:
    start = len(FILE_MAGIC) if value[: len(FILE_MAGIC)] == FILE_MAGIC else 0
    at, unpacked, rows = start, 0, 0
    for number in range(MAX_MESSAGES + 1):
        if at == len(value) and at > start:
            return Claim(start, unpacked, rows)  # the end marker may be missing
        if at + 8 > len(value) or _get(_U32, value, at) != CONTINUATION:
            raise BadValue(_strange_start(at == start))
        size = _get(_I32, value, at + 4)
        if size == 0:
            return _ended(Claim(start, unpacked, rows), at + 8, len(value))
        body = at + 8 + size
        if size < 0 or size % 8 or body > len(value):
            raise BadValue(f"malformed Arrow IPC: message {number} has metadata of {size} bytes")
        message_bytes, message_rows, body_length = _message(value[at + 8 : body], value[body:], number)
        unpacked, rows, at = unpacked + message_bytes, rows + message_rows, body + body_length
        _check_size(unpacked, rows)
    raise BadValue(f"the Arrow IPC stream has more than {MAX_MESSAGES} messages")


def _ended(claim: Claim, at: int, size: int) -> Claim:
    """Refuses bytes after a stream's end marker (a second stream would be lost); in a file the footer follows it."""
    if at == claim.start + 8:
        raise BadValue("malformed Arrow IPC: the stream ends before its schema")
    if at != size and not claim.start:
        raise BadValue(f"malformed Arrow IPC: {size - at} bytes follow the end of the stream")
    return claim


def _strange_start(first: bool) -> str:
    if first:
        return "expected an Arrow IPC stream or file, found something else"
    return "malformed Arrow IPC: a message does not begin where the one before ended"


def _check_size(unpacked: int, rows: int) -> None:
    if unpacked > MAX_UNPACKED_BYTES:
        raise BadValue(
            f"the Arrow IPC value unpacks to {unpacked} bytes; at most {MAX_UNPACKED_BYTES} are read"
        )
    # A row takes a bit at least, in any column that is not of type null.
    if rows > max(MAX_FREE_ROWS, 8 * unpacked):
        raise BadValue(f"the Arrow IPC value claims {rows} rows in {unpacked} bytes")


def _message(metadata: memoryview, rest: memoryview, number: int) -> tuple[int, int, int]:
    """The unpacked bytes, rows and length of the body that a message declares."""
    message = _Table(metadata, _get(_U32, metadata, 0))
    body_length = message.int64(3)
    if body_length % 8 or not 0 <= body_length <= len(rest):
        raise BadValue(
            f"malformed Arrow IPC: message {number} has a body of {body_length} bytes, {len(rest)} are there"
        )
    kind, header = message.byte(1), message.table(2)
    if (
        header is None
        or kind not in (SCHEMA, DICTIONARY_BATCH, RECORD_BATCH)
        or (number == 0) != (kind == SCHEMA)
    ):
        raise BadValue(
            f"malformed Arrow IPC: message {number} is of kind {kind}; a schema comes first, then batches"
        )
    if kind == SCHEMA:
        return 0, 0, body_length
    batch = header.table(1) if kind == DICTIONARY_BATCH else header
    if batch is None:
        raise BadValue(f"malformed Arrow IPC: message {number} is a dictionary without values")
    rows = batch.int64(0)
    if rows < 0:
        raise BadValue(f"malformed Arrow IPC: message {number} has {rows} rows")
    unpacked = sum(_buffer_sizes(batch, rest[:body_length]))
    return unpacked, rows if kind == RECORD_BATCH else 0, body_length


def _buffer_sizes(batch: _Table, body: memoryview) -> list[int]:
    compressed = batch.table(3) is not None
    sizes = []
    for offset, length in batch.pairs(2):
        if offset % 8 or offset < 0 or length < 0 or offset + length > len(body):
            raise BadValue(
                f"malformed Arrow IPC: a buffer at {offset} of {length} bytes in a body of {len(body)}"
            )
        if compressed and length >= 8:
            length = _unpacked_size(body, offset, length)
        sizes.append(length)
    return sizes


def _unpacked_size(body: memoryview, offset: int, length: int) -> int:
    """The size that precedes a compressed buffer; -1 means that it is stored as it is."""
    size = _get(_I64, body, offset)
    if size < -1:
        raise BadValue(f"malformed Arrow IPC: a compressed buffer that claims {size} bytes")
    return length - 8 if size == -1 else size
