"""The header of a record batch: Kafka's format v2, byte by byte, and the values it may have.

 pos  size  field              (big-endian, signed unless said otherwise)
   0     8  base_offset        the first record's offset; any value until the leader stamps it
   8     4  batch_length       bytes that follow this field: 49 of this header, then the records
  12     4  leader_epoch       the term in which the leader wrote the batch; stamped too
  16     1  magic              2
  17     4  crc                unsigned CRC-32C of everything from attributes to the end
  21     2  attributes         bits 0-2 codec (0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd), 3 log append time,
                               4 transactional, 5 control, 6 base_timestamp is a delete horizon; others are 0
  23     4  last_offset_delta  last offset - base_offset; compaction keeps it when it drops records
  27     8  base_timestamp     ms; records carry deltas to it
  35     8  max_timestamp      ms; the greatest of the records, or the append time when bit 3 is set
  43     8  producer_id        -1: no idempotent producer, and the next two fields mean nothing
  51     2  producer_epoch
  53     4  base_sequence      the first record's sequence number; they wrap from 2**31 - 1 to 0
  57     4  record_count
  61        the records, one by one (records.py), compressed as a whole by the codec

The CRC covers neither base_offset nor leader_epoch, so that a leader may stamp a batch without reading it:
`stamp` writes these two and nothing else. Code that stores or fetches batches must check those two fields by
other means.

A *zero-width* batch is Penstock's own: the control bit, no records, last_offset_delta = -1, and an opaque
payload after the header. It has a position in the log but owns no offset, so clients never notice it. Kafka's own
control batches, the markers that end transactions (markers.py), hold a record and own an offset.

The sender may have put anything into a header. `read_header` checks only what is needed to find the batch's end,
`check_batch` checks everything that can be checked without decompressing, and `check_produced` also applies the rules
for batches of clients. A header that was checked is passed along with its batch and not read again.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from struct import Struct
from typing import NamedTuple, NoReturn

from penstock.batch.checksum import crc32c
from penstock.errors import BatchError, ErrorCode

Buffer = bytes | bytearray | memoryview

HEADER_SIZE = 61
LENGTH_OVERHEAD = 12
"""Bytes that batch_length does not count: base_offset and batch_length itself."""
MIN_BATCH_LENGTH = HEADER_SIZE - LENGTH_OVERHEAD
MAGIC = 2

CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40
KNOWN_BITS = 0x7F
MAX_CODEC = 4

MIN_RECORD_SIZE = 7
"""A record without key, value and headers: seven one-byte fields. It bounds record_count by the bytes."""
SEQUENCE_MASK = 0x7FFFFFFF
MAX_OFFSET = 2**63 - 1

CRC_POSITION = 17
CRC_START = 21
"""The first byte that the CRC covers: attributes."""

HEADER = Struct(">qiibIhiqqqhii")
_BASE_OFFSET = Struct(">q")
_LEADER_EPOCH = Struct(">i")
_LEADER_EPOCH_POSITION = 12
_CRC = Struct(">I")
_ATTRIBUTES = Struct(">h")
_MAX_TIMESTAMP = Struct(">q")
_MAX_TIMESTAMP_POSITION = 35


class BatchHeader(NamedTuple):
    """The 13 fields in the order of their bytes, and values that follow from them."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch, header included."""
        return LENGTH_OVERHEAD + self.batch_length

    @property
    def compression(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME_BIT != 0

    @property
    def transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after this batch; a zero-width batch's own base_offset."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The last record's sequence number; -1 when the batch has none."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MASK

    @property
    def is_zero_width(self) -> bool:
        return self.last_offset_delta == -1 and self.record_count == 0


new_header: Callable[[Iterable[int]], BatchHeader] = partial(tuple.__new__, BatchHeader)
"""Makes a header from its 13 fields, in a third of the time of BatchHeader(...), which is a function in Python."""


def read_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """The fixed fields at `pos`. Checks only that they are there, that this is v2 and that the length is possible."""
    if len(buf) - pos < HEADER_SIZE:
        raise BatchError(f"{max(len(buf) - pos, 0)} bytes: expected a batch header of {HEADER_SIZE}")
    header = new_header(HEADER.unpack_from(buf, pos))
    if header.magic != MAGIC:
        raise BatchError(
            f"magic={header.magic}: expected {MAGIC}, the only record format that is supported",
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        )
    if header.batch_length < MIN_BATCH_LENGTH:
        raise BatchError(f"batch_length={header.batch_length}: expected at least {MIN_BATCH_LENGTH}")
    return header


def check_batch(buf: Buffer, pos: int = 0) -> BatchHeader:
    """The header of a batch that is complete, has its checksum and holds only possible values.

    For batches that were stored or replicated: compaction may have dropped records, so last_offset_delta
    may exceed record_count - 1. Costs one pass of the CRC; the records are not parsed.
    """
    header = read_header(buf, pos)
    check_header(buf, pos, header)
    return header


def check_header(buf: Buffer, pos: int, header: BatchHeader) -> None:
    """`check_batch` for a header that was read before."""
    _check_covered(buf, pos, header)
    if header.base_offset < 0 or header.base_offset > MAX_OFFSET - header.last_offset_delta - 1:
        _refuse("base_offset", header.base_offset, f"0 .. 2**63 - 2 - {header.last_offset_delta}")
    if header.leader_epoch < -1:
        _refuse("leader_epoch", header.leader_epoch, "-1 or more")


def check_produced(buf: Buffer, pos: int = 0) -> BatchHeader:
    """The same as `check_batch`, with the rules for clients: at least one record, none missing, no control batch.

    base_offset and leader_epoch are not checked: the broker overwrites them, and Kafka accepts any value there.
    """
    header = read_header(buf, pos)
    _check_covered(buf, pos, header)
    if header.record_count < 1:
        _refuse("record_count", header.record_count, "at least 1")
    if header.last_offset_delta != header.record_count - 1:
        _refuse(
            "last_offset_delta", header.last_offset_delta, f"record_count - 1 = {header.record_count - 1}"
        )
    if header.attributes & (CONTROL_BIT | DELETE_HORIZON_BIT):
        _refuse("attributes", header.attributes, "no control and no delete horizon bit from a client")
    return header


def stamp(buf: bytearray | memoryview, pos: int, base_offset: int, term: int) -> None:
    """Writes the two fields that the CRC does not cover, and that the leader decides."""
    _BASE_OFFSET.pack_into(buf, pos, base_offset)
    _LEADER_EPOCH.pack_into(buf, pos + _LEADER_EPOCH_POSITION, term)


def iter_headers(buf: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each complete batch in `buf`. An incomplete tail ends the iteration without an error,
    because a fetch may cut its last batch anywhere; a wrong length or magic is an error."""
    pos, end = 0, len(buf)
    while end - pos >= HEADER_SIZE:
        header = read_header(buf, pos)
        if header.size > end - pos:
            return
        yield pos, header
        pos += header.size


def set_log_append_time(
    batch: Buffer, header: BatchHeader, timestamp_ms: int
) -> tuple[bytearray, BatchHeader]:
    """A copy of the batch that carries the broker's time instead of the records' own, and its header."""
    copy = bytearray(batch)
    attributes = header.attributes | LOG_APPEND_TIME_BIT
    _ATTRIBUTES.pack_into(copy, CRC_START, attributes)
    _MAX_TIMESTAMP.pack_into(copy, _MAX_TIMESTAMP_POSITION, timestamp_ms)
    crc = write_crc(copy)
    return copy, header._replace(attributes=attributes, max_timestamp=timestamp_ms, crc=crc)


def zero_width_batch(*, offset: int, term: int, payload: bytes) -> bytes:
    """A control entry that comes before `offset` in the log and owns no offset itself."""
    batch = bytearray(HEADER_SIZE + len(payload))
    length = MIN_BATCH_LENGTH + len(payload)
    HEADER.pack_into(batch, 0, offset, length, term, MAGIC, 0, CONTROL_BIT, -1, -1, -1, -1, -1, -1, 0)
    batch[HEADER_SIZE:] = payload
    return seal(batch)


def seal(batch: bytearray) -> bytes:
    """Writes the CRC of a batch whose other bytes are final."""
    write_crc(batch)
    return bytes(batch)


def write_crc(batch: bytearray) -> int:
    """The same, in place; returns the CRC."""
    with memoryview(batch) as view:
        crc = crc32c(view[CRC_START:])
    _CRC.pack_into(batch, CRC_POSITION, crc)
    return crc


def _check_covered(buf: Buffer, pos: int, header: BatchHeader) -> None:
    """The rules for every batch, about the bytes that its CRC covers."""
    end = pos + LENGTH_OVERHEAD + header.batch_length
    if end > len(buf):
        raise BatchError(
            f"batch_length={header.batch_length}: expected at most {len(buf) - pos - 12}, the bytes that follow"
        )
    crc = crc32c(memoryview(buf)[pos + CRC_START : end])
    if crc != header.crc:
        raise BatchError(f"crc={header.crc:#010x}: expected {crc:#010x}, the checksum of the bytes received")
    if header.attributes & ~KNOWN_BITS:
        _refuse("attributes", header.attributes, f"no bits but {KNOWN_BITS:#04x}")
    if header.attributes & CODEC_MASK > MAX_CODEC:
        _refuse_codec(header.attributes & CODEC_MASK)
    _check_counts(header)
    if header.base_timestamp < -1 or header.max_timestamp < -1:
        # Not compared with each other: some clients leave max_timestamp at -1.
        _refuse_timestamps(header)
    if header.producer_id != -1 or header.attributes & TRANSACTIONAL_BIT:
        _check_producer(header)


def _check_counts(header: BatchHeader) -> None:
    delta, count = header.last_offset_delta, header.record_count
    payload = header.batch_length - MIN_BATCH_LENGTH
    if count > 0:
        if delta < count - 1:
            _refuse("last_offset_delta", delta, f"at least record_count - 1 = {count - 1}")
        if not header.attributes & CODEC_MASK and payload < count * MIN_RECORD_SIZE:
            _refuse(
                "record_count", count, f"at most {payload // MIN_RECORD_SIZE} in {payload} bytes of records"
            )
    elif count < 0:
        _refuse("record_count", count, "0 or more")
    elif delta == -1:
        if not header.attributes & CONTROL_BIT:
            _refuse("last_offset_delta", delta, "0 or more, or a control batch of zero width")
    elif delta < -1:
        _refuse("last_offset_delta", delta, "-1 or more")
    elif payload:
        # Compaction leaves a bare header where it dropped all records of a live producer.
        _refuse("batch_length", header.batch_length, f"{MIN_BATCH_LENGTH}, because record_count is 0")


def _check_producer(header: BatchHeader) -> None:
    """Checks the fields of a batch with a producer: without one, clients put 0 or -1 into epoch and sequence."""
    if header.producer_id < 0:
        _refuse("producer_id", header.producer_id, "0 or more, or -1 in a batch that is not transactional")
    if header.producer_epoch < 0:
        _refuse("producer_epoch", header.producer_epoch, "0 or more with a producer id")
    if header.base_sequence < 0 and not header.attributes & CONTROL_BIT:
        # The markers that end a transaction have a producer and no sequence.
        _refuse("base_sequence", header.base_sequence, "0 or more with a producer id")


def _refuse(field: str, value: int, expected: str) -> NoReturn:
    raise BatchError(f"{field}={value}: expected {expected}", ErrorCode.INVALID_RECORD)


def _refuse_codec(codec: int) -> NoReturn:
    raise BatchError(
        f"compression={codec}: expected 0 .. {MAX_CODEC}", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    )


def _refuse_timestamps(header: BatchHeader) -> NoReturn:
    for field in ("base_timestamp", "max_timestamp"):
        value = getattr(header, field)
        if value < -1:
            raise BatchError(f"{field}={value}: expected -1 or more", ErrorCode.INVALID_TIMESTAMP)
    raise AssertionError("called without a wrong timestamp")
