"""The records of a queue in the state topic, byte by byte. All numbers are big-endian.

    key     int16 version 100 | int16 length and UTF-8 bytes: group | 16 bytes topic id | int32 partition | suffix
    suffix  uint8 0                            the head
            uint8 1 | int64 chunk number       a chunk: the offsets from 4,096 times its number on
            uint8 2                            the fence, see `state_store.py`
            uint8 3 | int64 | int64            a settlement within a transaction, see `settlements.py`

Kafka's own state records have key versions 0 and 1. Its tools report these records as an unknown version.

    head    int16 version 1 | int32 term of the leader that wrote it | int64 start offset: all below is done

Partition -1 stands for the whole topic. It has only a head, whose start offset is the number of partitions that the
topic had when the group began on it: partitions from that number on were added later.

    chunk   int16 version 1 | done | undone                 if there are no retry delays
            int16 version 2 | done | undone | delayed       otherwise
    done    uint8 0 | uint16 count | count times: uint16 index, uint16 length     runs of offsets that are done
            uint8 1 | 512 bytes, one bit per offset, the highest bit first        if that is shorter
    undone  uint8 0 | uint16 count | count times: uint16 index, uint16 length, uint8 deliveries, uint8 rejected (0, 1)
            uint8 1 | 4,096 bytes deliveries | 512 bytes rejected, by bit         if there are many runs
    delayed uint16 count | count times: uint16 index, uint16 length, int64 due, milliseconds since 1970

`undone` lists the offsets that were delivered and are not done: leased, released, retried, or on their way to the dead
letters, with a flag if a consumer rejected them. All other offsets were never delivered. `delayed` lists those of them
that wait for their next try; a due time in the past has no effect. Indexes below the start offset have no meaning.

A null value deletes. Chunks below the start offset are deleted; a chunk in which nothing was delivered or done is not
stored. The topic is compacted: a reader applies records in order, and the last one of each key wins. Any other format
was written by a later version: UnknownFormat, never a silent skip.

Not stored: leases, which end with the leader; deliver-at and expiry, which the next leader reads from the log.
"""

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple
from uuid import UUID

from penstock.errors import UnknownFormat
from penstock.queue.states import BYTE, CHUNK_SIZE, DONE, REJECTED, UNREAD, runs
from penstock.types import Term

KEY_VERSION = 100
HEAD_VERSION = 1
CHUNK_VERSION = 1
DELAYED_VERSION = 2
DELAYED_RUNS_MAX = 1_000
"""Per chunk. Messages beyond it become available at once under the next leader: a chunk's record must not grow without
limit."""

HEAD_SUFFIX = b"\x00"
FENCE_SUFFIX = b"\x02"
_CHUNK_KIND = 1
_SETTLEMENT_KIND = 3
_RUNS, _DENSE = 0, 1
_BITMAP_BYTES = CHUNK_SIZE // 8
_DONE_DIGITS = bytes.maketrans(b"01", BYTE[UNREAD] + BYTE[DONE])
_SAME = re.compile(rb"(.)\1*", re.DOTALL)
FEW_RUNS = 64
UNDONE_RUNS_MAX = 256
"""With more, runs would take less than the 4,608 bytes of the other form, and ten times as long to write."""

# Tables for `translate`: one call for all states of a chunk.
_DONE_DIGIT = bytes(ord("1") if value == DONE else ord("0") for value in range(256))
_REJECTED_DIGIT = bytes(ord("1") if value == REJECTED else ord("0") for value in range(256))
_IS_OTHER = {
    other: bytes(ord("1") if value == other else ord("0") for value in range(256)) for other in (0, ord("0"))
}

_HEAD = struct.Struct(">hiq")
_SUFFIX = struct.Struct(">Bq")
_SETTLEMENT_SUFFIX = struct.Struct(">Bqq")
_COUNT = struct.Struct(">BH")
_DONE_RUN = struct.Struct(">HH")
_UNDONE_RUN = struct.Struct(">HHBB")
_DELAYED_RUN = struct.Struct(">HHq")


class StateKey(NamedTuple):
    """The key of one record of the state topic."""

    group_id: str
    topic_id: UUID
    partition: int
    suffix: bytes


class Head(NamedTuple):
    """The state of a partition as a whole."""

    term: Term
    start_offset: int


class StoredChunk(NamedTuple):
    """The state of each offset (UNREAD, DONE or REJECTED), and how often each was delivered."""

    state: bytearray
    deliveries: bytearray
    delayed: "list[DelayedRun]"


class DelayedRun(NamedTuple):
    """Indexes that wait for their next try until the same time."""

    start: int
    length: int
    due_ms: int


# Keys


def encode_key(group_id: str, topic_id: UUID, partition: int, suffix: bytes) -> bytes:
    group = group_id.encode()
    head = struct.pack(">hh", KEY_VERSION, len(group))
    return b"".join((head, group, topic_id.bytes, struct.pack(">i", partition), suffix))


def decode_key(data: bytes) -> StateKey:
    reader = StateRecordReader(data)
    (version,) = reader.fields(">h")
    if version != KEY_VERSION:
        raise unknown_format(f"key version {version}")
    group_id = reader.text()
    topic_id = UUID(bytes=reader.take(16))
    (partition,) = reader.fields(">i")
    suffix = reader.rest()
    if suffix != FENCE_SUFFIX and not is_settlement(suffix):
        chunk_of(suffix)
    return StateKey(group_id, topic_id, partition, suffix)


def settlement_suffix(claim: int, number: int) -> bytes:
    """`claim`: the number of the driver's claim. `number`: unique for this driver."""
    return _SETTLEMENT_SUFFIX.pack(_SETTLEMENT_KIND, claim, number)


def is_settlement(suffix: bytes) -> bool:
    return len(suffix) == _SETTLEMENT_SUFFIX.size and suffix[0] == _SETTLEMENT_KIND


def chunk_suffix(number: int) -> bytes:
    return _SUFFIX.pack(_CHUNK_KIND, number)


def chunk_of(suffix: bytes) -> int | None:
    """The number of the chunk that a suffix names, None for the head."""
    if suffix == HEAD_SUFFIX:
        return None
    if len(suffix) == _SUFFIX.size:
        kind, number = _SUFFIX.unpack(suffix)
        if kind == _CHUNK_KIND and number >= 0:
            return int(number)
    raise unknown_format(f"key suffix {suffix.hex()}")


# Heads


def encode_head(head: Head) -> bytes:
    return _HEAD.pack(HEAD_VERSION, *head)


def decode_head(data: bytes) -> Head:
    reader = StateRecordReader(data)
    version, term, start_offset = reader.fields(_HEAD.format)
    if version != HEAD_VERSION or start_offset < 0:
        raise unknown_format(f"head version {version}, start offset {start_offset}")
    reader.finish()
    return Head(Term(term), start_offset)


def stored_chunk_end(chunk: StoredChunk) -> int:
    """The end of the indexes about which a chunk says anything."""
    return max(len(cells.rstrip(BYTE[UNREAD])) for cells in (chunk.state, chunk.deliveries))


# Chunks


def encode_chunk(
    state: bytearray, deliveries: bytearray, since: int = 0, delayed: Sequence[DelayedRun] = ()
) -> bytes | None:
    """The chunk's record from index `since` on; None if nothing was delivered or done there. The deliveries of offsets
    that are done must be 0."""
    done, counts = state.translate(_DONE_DIGIT), bytearray(deliveries)
    rejected = state.translate(_REJECTED_DIGIT) if REJECTED in state else None
    if since:
        done[:since] = b"0" * since
        counts[:since] = bytes(since)
        if rejected is not None:
            rejected[:since] = b"0" * since
    if b"1" not in done and counts.count(0) == CHUNK_SIZE:
        return None
    version = DELAYED_VERSION if delayed else CHUNK_VERSION
    parts = [struct.pack(">h", version), _encode_done(done), _encode_undone(counts, rejected)]
    if delayed:
        kept = delayed[:DELAYED_RUNS_MAX]
        parts += [struct.pack(">H", len(kept)), *(_DELAYED_RUN.pack(*run) for run in kept)]
    return b"".join(parts)


def decode_chunk(data: bytes) -> StoredChunk:
    reader = StateRecordReader(data)
    (version,) = reader.fields(">h")
    if version not in (CHUNK_VERSION, DELAYED_VERSION):
        raise unknown_format(f"chunk version {version}")
    chunk = StoredChunk(bytearray(CHUNK_SIZE), bytearray(CHUNK_SIZE), [])
    _read_done(reader, chunk)
    _read_undone(reader, chunk)
    if version == DELAYED_VERSION:
        chunk.delayed.extend(DelayedRun(*run) for run in reader.runs(_DELAYED_RUN))
    reader.finish()
    return chunk


def _encode_done(digits: bytearray) -> bytes:
    """`digits` has a 1 for each offset that is done."""
    found = _runs_up_to(digits, ord("0"), _BITMAP_BYTES // _DONE_RUN.size)
    if found is None:
        return BYTE[_DENSE] + _bitmap(digits)
    packed = (_DONE_RUN.pack(start, stop - start) for start, stop, _ in found)
    return b"".join((_COUNT.pack(_RUNS, len(found)), *packed))


def _encode_undone(counts: bytearray, rejected: bytearray | None) -> bytes:
    """`counts` has the deliveries of each offset; `rejected` a 1 for each that was rejected, None if none was."""
    found = _runs_up_to(counts, 0, UNDONE_RUNS_MAX)
    if found is not None:
        undone = [run for each in found for run in _by_rejection(*each, rejected)]
        if len(undone) <= UNDONE_RUNS_MAX:
            return b"".join((_COUNT.pack(_RUNS, len(undone)), *(_UNDONE_RUN.pack(*run) for run in undone)))
    return BYTE[_DENSE] + counts + _bitmap(rejected or bytearray(b"0"))


def _by_rejection(
    start: int, stop: int, count: int, rejected: bytearray | None
) -> Iterable[tuple[int, int, int, int]]:
    if rejected is None:
        return ((start, stop - start, count, 0),)
    found = runs(rejected, start, stop)
    return ((first, end - first, count, digit - ord("0")) for first, end, digit in found)


def _runs_up_to(cells: bytearray, other: int, most: int) -> list[tuple[int, int, int]] | None:
    """The runs (start, stop, value) of equal bytes, without those of the value `other`; None if there are more than
    `most`. A chunk usually has a few long ones. In a queue whose lanes have owners it may have thousands of short ones,
    for which each step must be one call of C code."""
    few = list(islice(runs(cells, 0, CHUNK_SIZE), FEW_RUNS))
    if len(few) < FEW_RUNS:
        found = [run for run in few if run[2] != other]
        return found if len(found) <= most else None
    if cells.translate(_IS_OTHER[other]).count(b"10") > most:  # not more than there are runs
        return None
    found = [
        (*run.span(), cells[run.start()]) for run in _SAME.finditer(cells) if cells[run.start()] != other
    ]
    return found if len(found) <= most else None


def _read_done(reader: "StateRecordReader", chunk: StoredChunk) -> None:
    if reader.form() == _DENSE:
        chunk.state[:] = _digits(reader.take(_BITMAP_BYTES)).translate(_DONE_DIGITS)
        return
    for index, length in reader.runs(_DONE_RUN):
        chunk.state[index : index + length] = BYTE[DONE] * length


def _read_undone(reader: "StateRecordReader", chunk: StoredChunk) -> None:
    if reader.form() == _DENSE:
        chunk.deliveries[:] = reader.take(CHUNK_SIZE)
        rejected = list(_bits(reader.take(_BITMAP_BYTES)))
    else:
        rejected = []
        for index, length, deliveries, flag in reader.runs(_UNDONE_RUN):
            if not deliveries or flag > 1:
                raise unknown_format(f"{deliveries} deliveries, flag {flag}")
            chunk.deliveries[index : index + length] = BYTE[deliveries] * length
            rejected += [(index, length)] * flag
    for index, length in rejected:
        if chunk.state[index : index + length] != BYTE[UNREAD] * length:
            raise unknown_format("an offset that is both done and rejected")
        chunk.state[index : index + length] = BYTE[REJECTED] * length


def _bitmap(digits: bytearray) -> bytes:
    return int(digits, 2).to_bytes(_BITMAP_BYTES, "big")


def _digits(bitmap: bytes) -> bytearray:
    """One ASCII digit per bit."""
    return bytearray(f"{int.from_bytes(bitmap, 'big'):0{CHUNK_SIZE}b}", "ascii")


def _bits(bitmap: bytes) -> Iterator[tuple[int, int]]:
    digits = _digits(bitmap)
    return ((start, stop - start) for start, stop, digit in runs(digits, 0, CHUNK_SIZE) if digit == ord("1"))


def unknown_format(what: str) -> UnknownFormat:
    return UnknownFormat(f"a record of the queue state topic has {what}; start the version that wrote it")


class StateRecordReader:
    """Reads fields in order; raises UnknownFormat where bytes are missing."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise unknown_format("too few bytes")
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def fields(self, layout: str) -> tuple[int, ...]:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def text(self) -> str:
        (length,) = self.fields(">h")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise unknown_format("text that is not UTF-8") from None

    def form(self) -> int:
        (form,) = self.fields(">B")
        if form not in (_RUNS, _DENSE):
            raise unknown_format(f"form {form}")
        return form

    def runs(self, layout: struct.Struct) -> Iterator[tuple[int, ...]]:
        """Runs that start with index and length, in order and without overlap."""
        (count,) = self.fields(">H")
        behind = 0
        for _ in range(count):
            run = layout.unpack(self.take(layout.size))
            if run[0] < behind or not run[1] or run[0] + run[1] > CHUNK_SIZE:
                raise unknown_format(f"a run of {run[1]} at {run[0]}")
            behind = run[0] + run[1]
            yield run

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._position)

    def finish(self) -> None:
        if self._position != len(self._data):
            raise unknown_format(f"{len(self._data) - self._position} bytes too many")
