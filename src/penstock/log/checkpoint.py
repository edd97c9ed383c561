"""The checkpoint: a few numbers that must survive a crash, in two slots of one sector each.

A save overwrites the older slot, so that a torn write leaves the other one, and does not flush: an older checkpoint
claims less and is still true. Only where an older one would be *wrong* (the log was truncated, or compacted)
`save_durably` writes both slots and flushes, so that no older one can come back.
"""

from struct import Struct
from typing import NamedTuple

from penstock.batch.checksum import crc32c
from penstock.errors import CorruptLog
from penstock.log.disk import SECTOR_SIZE, Disk, read_uncached
from penstock.log.layout import CHECKPOINT_NAME, FORMAT_VERSION, check_format
from penstock.types import NO_TERM

MAGIC = b"PCKP"
SLOT = Struct(">4sHHqqqqqqqq")
SLOT_CRC = Struct(">I")
MORE = Struct(">qqH")
"""Added later: term, gaps_below and the length of the configuration. Older slots do not have them."""
MORE_AT = SLOT.size + SLOT_CRC.size
MAX_CONFIG_BYTES = SECTOR_SIZE - MORE_AT - MORE.size - SLOT_CRC.size


class FlushPoint(NamedTuple):
    """Everything before this position of this segment is on the disk, and so is everything below the offset."""

    offset: int
    base_offset: int
    position: int


class Removed(NamedTuple):
    """Facts about the prefix whose segments are being removed, or are gone: it can no longer be read."""

    base_offset: int = 0
    """Segments before this one are being removed: some may be gone."""
    controls: int = 0
    """Control entries before that segment."""
    term: int = NO_TERM
    """The term of the last entry before that segment; -1 with a base_offset: not known."""
    config: bytes = b""
    """The last payload of the caller's own before that segment."""


class CheckpointFacts(NamedTuple):
    """The content of a slot."""

    start_offset: int
    removed: Removed
    flushed: FlushPoint
    cleaned_offset: int
    gaps_below: int
    """Below it offsets may be missing: they were missing in the log that the entries came from."""
    swapping: bool = False
    """Compacted segments are replacing old ones: below cleaned_offset some may still be the old ones."""


NOTHING_KNOWN = CheckpointFacts(0, Removed(), FlushPoint(0, 0, 0), 0, 0)


class Checkpoint:
    """One log's checkpoint file. Each save opens it: a descriptor per partition would cost more."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self.path = f"{folder}/{CHECKPOINT_NAME}"
        self._sequence = 0
        self._is_changed = False
        self.facts = NOTHING_KNOWN

    def load(self) -> bool:
        """Whether there is one. If both slots are unreadable, that is an error, unless the file was never written."""
        try:
            data = read_uncached(self._disk, self.path)
        except FileNotFoundError:
            return False
        slots = [data[at : at + SECTOR_SIZE] for at in (0, SECTOR_SIZE)]
        valid = [slot for slot in slots if _is_whole(slot)]
        if not valid:
            if data.strip(b"\0"):
                raise CorruptLog(self.path, 0, "the checksums of both slots of the checkpoint are wrong")
            return False
        self._sequence, self.facts = max(_decode(self.path, slot) for slot in valid)
        return True

    def save(self, facts: CheckpointFacts) -> None:
        """Writes the facts. They are not durable until `flush`."""
        self.facts = facts
        self._is_changed = True
        self._sequence += 1
        file = self._disk.open(self.path, create=True)
        try:
            if file.size == 0:
                # Both slots at once, so that later saves need no space and work on a full disk.
                file.write_at(0, bytes(2 * SECTOR_SIZE))
            file.write_at(self._sequence % 2 * SECTOR_SIZE, _encode(self._sequence, facts))
        finally:
            file.close()

    def save_both(self, facts: CheckpointFacts) -> None:
        """When the log is closed: if one slot rots, the other one is enough. Does nothing if nothing changed."""
        if facts != self.facts or self._is_changed:
            self.save(facts)
            self.save(facts)

    def save_durably(self, facts: CheckpointFacts) -> None:
        """Returns when no older checkpoint can come back."""
        self.save(facts)
        self.flush()
        self.save(facts)
        self.flush()
        self._disk.sync_dir(self.path.rpartition("/")[0])

    def flush(self) -> None:
        """May run in a thread: needs nothing but the path."""
        file = self._disk.open(self.path)
        try:
            file.flush()
        finally:
            file.close()


def _encode(sequence: int, facts: CheckpointFacts) -> bytes:
    removed = facts.removed
    slot = SLOT.pack(
        MAGIC,
        FORMAT_VERSION,
        facts.swapping,
        sequence,
        facts.start_offset,
        removed.base_offset,
        removed.controls,
        *facts.flushed,
        facts.cleaned_offset,
    )
    slot += SLOT_CRC.pack(crc32c(slot))
    slot += MORE.pack(removed.term, facts.gaps_below, len(removed.config)) + removed.config
    return (slot + SLOT_CRC.pack(crc32c(slot))).ljust(SECTOR_SIZE, b"\0")


def _is_whole(slot: bytes) -> bool:
    return (
        len(slot) >= MORE_AT
        and SLOT_CRC.unpack_from(slot, SLOT.size)[0] == crc32c(slot[: SLOT.size])
        and slot.strip(b"\0") != b""
    )


def _decode(path: str, slot: bytes) -> tuple[int, CheckpointFacts]:
    magic, version, swapping, sequence, start, first, controls, *line, cleaned = SLOT.unpack_from(slot)
    check_format(path, magic, MAGIC, version)
    term, gaps_below, config = _decode_more(slot)
    removed = Removed(first, controls, term, config)
    flushed = FlushPoint(*line)
    return sequence, CheckpointFacts(start, removed, flushed, cleaned, gaps_below, bool(swapping))


def _decode_more(slot: bytes) -> tuple[int, int, bytes]:
    """The fields that the first version did not have."""
    term, gaps_below, length = MORE.unpack_from(slot.ljust(SECTOR_SIZE, b"\0"), MORE_AT)
    end = MORE_AT + MORE.size + length
    if len(slot) < end + SLOT_CRC.size or SLOT_CRC.unpack_from(slot, end)[0] != crc32c(slot[:end]):
        return NO_TERM, 0, b""
    return term, gaps_below, slot[MORE_AT + MORE.size : end]
