"""Checking bytes before they are sent to clients: most clients do not compare checksums, and a disk may return other
bytes than were written.

A batch was checked when it was produced, so bytes that this process has written through the open file are sent as they
are: that is what consumers at the end of a log read. Older bytes are checked the first time they are read since the
file was opened. The checksum covers neither a batch's offset nor its term; a scrub checks those.
"""

from struct import Struct

from penstock.batch.checksum import crc32c
from penstock.batch.header import CRC_START, LENGTH_OVERHEAD, MAGIC, MIN_BATCH_LENGTH

_LENGTH_MAGIC_CRC = Struct(">8xi4xbI")

BATCHES_MOST = 2_000
"""Checked in one read, which is cut after them: each takes half a microsecond beside its bytes, however small it is."""


def checked_length(data: bytes, most: int = BATCHES_MOST) -> int:
    """How many bytes of `data` are whole batches with their checksums, of so many batches at most."""
    view, size, position = memoryview(data), len(data), 0
    unpack = _LENGTH_MAGIC_CRC.unpack_from
    while most and size - position >= LENGTH_OVERHEAD + MIN_BATCH_LENGTH:
        length, magic, crc = unpack(data, position)
        end = position + LENGTH_OVERHEAD + length
        if magic != MAGIC or not position < end <= size or crc32c(view[position + CRC_START : end]) != crc:
            break
        position = end
        most -= 1
    return position
