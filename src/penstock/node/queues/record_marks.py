"""What a queue wants to know of the key of each record: nothing, a hash of it (key order), or its lane (owner order).

A record's lane is the slot of its key (`penstock.ring`). A record without a key gets the slot of its offset, so that
such records are spread over all owners.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from xxhash import xxh3_64_intdigest

from penstock.batch import Columns, Record
from penstock.queue.settings import QueueSettings
from penstock.ring import SLOTS, slot_of

_NULL_KEY = 1
"""The bit of a record without a key in `Columns.nulls`."""
_SLOT_MASK = SLOTS - 1
"""SLOTS is a power of two."""


class RecordMarks:
    """For queues that do not look at keys."""

    needs_keys = False
    """Whether records have to be opened for their keys."""
    takes_columns = False
    """Whether `add_columns` serves instead of `add`, for batches without gaps."""

    def skip(self, count: int) -> None:
        """These offsets have no records."""

    def unopened(self, first: int, end: int) -> None:
        """The records of these offsets are not opened."""

    def add(self, record: Record) -> None: ...

    def add_columns(self, payload: bytes, columns: Columns, first: int) -> None:
        """All records of a batch from the offset `first` on, with consecutive offsets."""

    @property
    def keys(self) -> Sequence[int | None]:
        return ()

    @property
    def lanes(self) -> "array[int] | None":
        return None


class KeyHashes(RecordMarks):
    """For key order."""

    needs_keys = True

    def __init__(self) -> None:
        self._hashes: list[int | None] = []

    @property
    def keys(self) -> Sequence[int | None]:
        return self._hashes

    def skip(self, count: int) -> None:
        self._hashes.extend([None] * count)

    def unopened(self, first: int, end: int) -> None:
        self.skip(end - first)

    def add(self, record: Record) -> None:
        self._hashes.append(None if record.key is None else key_hash(record.key))


class RecordLanes(RecordMarks):
    """For queues whose lanes have owners."""

    needs_keys = True
    takes_columns = True

    def __init__(self) -> None:
        self._lanes = array("H")

    @property
    def lanes(self) -> "array[int] | None":
        return self._lanes

    def skip(self, count: int) -> None:
        self._lanes.extend(array("H", bytes(2)) * count)

    def unopened(self, first: int, end: int) -> None:
        self._lanes.extend(offset % SLOTS for offset in range(first, end))

    def add(self, record: Record) -> None:
        self._lanes.append(lane_of(record.offset, record.key))

    def add_columns(self, payload: bytes, columns: Columns, first: int) -> None:
        """Without an object for each record: a third of the time."""
        slices = memoryview(columns.slices).cast("i")
        offsets = memoryview(columns.offsets).cast("q")
        nulls, digest, mask = columns.nulls, xxh3_64_intdigest, _SLOT_MASK
        skipped = first - offsets[0]
        self._lanes.extend(
            offsets[at] & mask
            if nulls[at] & _NULL_KEY
            else digest(payload[slices[4 * at] : slices[4 * at + 1]]) & mask
            for at in range(skipped, columns.rows)
        )


def marks_for(settings: QueueSettings) -> RecordMarks:
    if settings.lanes:
        return RecordLanes()
    return KeyHashes() if settings.key_ordered else RecordMarks()


def lane_of(offset: int, key: bytes | None) -> int:
    return offset % SLOTS if key is None else slot_of(key)


def key_hash(key: bytes) -> int:
    """If two keys have the same hash, their messages wait for each other, and nothing else happens."""
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big", signed=True)
