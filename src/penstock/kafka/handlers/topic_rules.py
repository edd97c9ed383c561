"""The rules of a topic for the batches that it takes: keys, timestamps, a codec of its own, a size, message ids.

Most topics have no rule that needs a batch to be opened. Then only its records are counted, if it is not compressed:
that takes one percent of the time of a small batch, and five of a large one of 100-byte records. To decompress every
batch would double the time. A compressed batch is opened and counted if it claims more records than it has bytes:
offset_delta is another one in each record, so only very many empty records pack so well. A smaller wrong claim makes
offsets jump by no more than honest small records would.

Opening batches takes time on the event loop, so there is a bound on how much one request may make the broker
decompress: a few kilobytes can hold a hundred megabytes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from struct import iter_unpack

import msgspec

from penstock.batch import (
    HEADER_SIZE,
    BatchHeader,
    _count,
    check_count,
    decompress,
    recompress,
    scan_batch,
)
from penstock.batch._scan import NULL_KEY, NULL_VALUE, Columns
from penstock.batch.header import CODEC_MASK
from penstock.config import TopicConfig
from penstock.errors import BatchError, ErrorCode, KafkaError, RefusedRecords
from penstock.node.dedup.message_ids import MessageId, read_ids

COUNTS_RECORDS = not str(_count.__file__).endswith(".py")
"""Whether mypyc has compiled the loop: as Python, it would take longer than everything else together."""

CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

INFLATION_MAX = 16
"""A batch may decompress to this many times max.message.bytes. Text compresses ten to one."""
INFLATED_BYTES_PER_REQUEST = 64 * 1024 * 1024
"""All batches of one request may decompress to this together: about half a second of work."""
MESSAGE_IDS_PER_REQUEST = 100_000
"""Message ids cost two to four microseconds each. Clients put at most some 10,000 messages into a batch."""

SIZED_RECORDS_PER_REQUEST = 100_000
"""The sizes of records are read in Python, a third of a microsecond each. Clients put at most some 10,000 messages into
a batch."""

NAMED_RECORDS_PER_REQUEST = 10_000
"""A response names so many refused records, with a hundred bytes each. Clients take the others for good records in a
bad batch. They put at most some 10,000 messages into a batch."""

NO_BOUND = 2**63 - 1
"""message.timestamp.before.max.ms where any time in the past is allowed, by default."""
NO_TIMESTAMP = -1
NO_SIZE_LIMIT = 2**31 - 1
"""max.decompressed.message.bytes where records may have any size, by default."""

LONGEST_VARINT_BITS = 35

NO_KEY = "Compacted topic cannot accept message without key"
"""As Kafka words it."""


class TopicRules(msgspec.Struct):
    """Applies topics' rules to the batches of one request. The fields say how much work the request may still cause."""

    bytes_left: int = INFLATED_BYTES_PER_REQUEST
    ids_left: int = MESSAGE_IDS_PER_REQUEST
    named_left: int = NAMED_RECORDS_PER_REQUEST
    sizes_left: int = SIZED_RECORDS_PER_REQUEST

    def apply(
        self, batch: memoryview, header: BatchHeader, config: TopicConfig, now_ms: int
    ) -> tuple[memoryview, BatchHeader]:
        """The batch as the topic's rules require it, or KafkaError."""
        if header.attributes & CODEC_MASK and config.max_decompressed_message_bytes < NO_SIZE_LIMIT:
            self._check_sizes(batch, header, config)
        is_timed = not config.message_timestamp_log_append  # otherwise the log stamps its own
        is_too_new = is_timed and header.max_timestamp - now_ms > config.message_timestamp_after_max_ms
        # The header has the latest time of its records, and no earliest.
        is_timed = is_too_new or (is_timed and config.message_timestamp_before_max_ms < NO_BOUND)
        if is_timed or config.cleanup_compact:
            self._check_records(batch, header, config, now_ms if is_timed else None)
        elif not header.attributes & CODEC_MASK:
            if COUNTS_RECORDS:
                check_count(batch[HEADER_SIZE:], header.record_count)
        elif header.record_count > len(batch):
            self._count_compressed(batch, header, config)
        if is_too_new:
            message = (
                f"max_timestamp={header.max_timestamp}, which no record has, is too far ahead of {now_ms}"
            )
            raise KafkaError(ErrorCode.INVALID_TIMESTAMP, message)
        if config.compression_type != "producer" and CODECS[config.compression_type] != header.compression:
            batch, header = self._recompress(batch, header, config)
        return batch, header

    def message_ids(self, batch: memoryview, header: BatchHeader, config: TopicConfig) -> list[MessageId]:
        """The message ids in a batch, for deduplication."""
        with self._charged(config) as limit:
            found = read_ids(batch, header, limit, self.ids_left)
        self.bytes_left -= found.inflated_bytes
        self.ids_left -= len(found.ids)
        return found.ids

    def inflatable(self, config: TopicConfig) -> int:
        """How many bytes the next batch may have when it is decompressed."""
        if self.bytes_left <= 0:
            message = (
                f"the request unpacks to more than {INFLATED_BYTES_PER_REQUEST} bytes; send smaller requests"
            )
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, message)
        return min(self.bytes_left, INFLATION_MAX * config.max_message_bytes)

    @contextmanager
    def _charged(self, config: TopicConfig) -> Iterator[int]:
        """The most that the next batch may decompress to. One that fails to may have cost as much: a request could hold
        thousands of them."""
        limit = self.inflatable(config)
        try:
            yield limit
        except BatchError:
            self.bytes_left -= limit
            raise

    def _check_records(
        self, batch: memoryview, header: BatchHeader, config: TopicConfig, now_ms: int | None
    ) -> None:
        """RefusedRecords names the records without a key, and, if there is a `now_ms`, those with a time out of range.
        As in Kafka, a record has one reason, and INVALID_TIMESTAMP is the batch's code if any record has it."""
        with self._charged(config) as limit:
            _, payload, columns = scan_batch(batch, header=header, max_bytes=limit)
        self.bytes_left -= len(payload)
        keyless = _keyless(columns) if config.cleanup_compact else {}
        misdated = _misdated(columns, config, now_ms) if now_ms is not None else {}
        refused = sorted(keyless.keys() | misdated.keys())
        if not refused:
            return
        named = {
            index: NO_KEY if index in keyless else _out_of_range(misdated[index], config, now_ms or 0)
            for index in refused[: max(self.named_left, 1)]
        }
        self.named_left -= len(named)
        code = ErrorCode.INVALID_TIMESTAMP if misdated.keys() - keyless.keys() else ErrorCode.INVALID_RECORD
        message = (
            f"{len(refused)} of {columns.rows} records are refused; record {refused[0]}: {named[refused[0]]}"
        )
        raise RefusedRecords(code, message, named)

    def _check_sizes(self, batch: memoryview, header: BatchHeader, config: TopicConfig) -> None:
        """RefusedRecords names the records that are too large when they are unpacked."""
        longest = config.max_decompressed_message_bytes
        with self._charged(config) as limit:
            records = decompress(header.compression, batch[HEADER_SIZE:], max_bytes=limit)
            sizes = [*self._sizes(records)] if len(records) > longest else []
        self.bytes_left -= len(records)
        refused = [index for index, size in enumerate(sizes) if size > longest]
        if refused:
            reason = f"its size is above max.decompressed.message.bytes={longest}"
            named = dict.fromkeys(refused[: max(self.named_left, 1)], reason)
            self.named_left -= len(named)
            message = f"{len(refused)} of {len(sizes)} records are refused; record {refused[0]}: {reason}"
            raise RefusedRecords(ErrorCode.INVALID_RECORD, message, named)

    def _sizes(self, records: bytes) -> Iterator[int]:
        """The size of each record of a batch."""
        at = 0
        while at < len(records):
            if self.sizes_left <= 0:
                message = (
                    f"the request has more than {SIZED_RECORDS_PER_REQUEST} records; send smaller requests"
                )
                raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, message)
            self.sizes_left -= 1
            size, at = _read_size(records, at)
            at += size
            yield size

    def _count_compressed(self, batch: memoryview, header: BatchHeader, config: TopicConfig) -> None:
        with self._charged(config) as limit:
            records = decompress(header.compression, batch[HEADER_SIZE:], max_bytes=limit)
            check_count(memoryview(records), header.record_count)
        self.bytes_left -= len(records)

    def _recompress(
        self, batch: memoryview, header: BatchHeader, config: TopicConfig
    ) -> tuple[memoryview, BatchHeader]:
        codec = CODECS[config.compression_type]
        with self._charged(config) as limit:
            rebuilt, changed = recompress(batch, header, codec, _level(config), max_bytes=limit)
        self.bytes_left -= max(len(rebuilt), len(batch))
        if len(rebuilt) > config.max_message_bytes:
            message = (
                f"the batch has {len(rebuilt)} bytes with compression.type={config.compression_type}, "
                f"expected at most max.message.bytes={config.max_message_bytes}"
            )
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, message)
        return memoryview(rebuilt), changed


def _read_size(records: bytes, at: int) -> tuple[int, int]:
    """The size of the record at this position, and where the rest of the record begins."""
    raw = shift = 0
    while shift < LONGEST_VARINT_BITS and at < len(records):
        byte = records[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if raw & 1:
                break
            return raw >> 1, at
        shift += 7
    raise BatchError("the records of the batch do not parse")


def _level(config: TopicConfig) -> int | None:
    levels = {
        "gzip": config.compression_gzip_level,
        "lz4": config.compression_lz4_level,
        "zstd": config.compression_zstd_level,
    }
    return levels.get(config.compression_type)


def _keyless(columns: Columns) -> dict[int, None]:
    """The records without a key."""
    nulls = columns.nulls
    if NULL_KEY not in nulls and NULL_KEY | NULL_VALUE not in nulls:
        return {}
    return {index: None for index, null in enumerate(nulls) if null & NULL_KEY}


def _misdated(columns: Columns, config: TopicConfig, now_ms: int) -> dict[int, int]:
    """The records with a time that the topic does not allow, and that time."""
    first = now_ms - config.message_timestamp_before_max_ms
    last = now_ms + config.message_timestamp_after_max_ms
    return {
        index: time_ms
        for index, (time_ms,) in enumerate(iter_unpack("<q", columns.timestamps))
        if not first <= time_ms <= last and time_ms != NO_TIMESTAMP
    }


def _out_of_range(time_ms: int, config: TopicConfig, now_ms: int) -> str:
    if time_ms > now_ms:
        bound = f"message.timestamp.after.max.ms={config.message_timestamp_after_max_ms} ahead of"
    else:
        bound = f"message.timestamp.before.max.ms={config.message_timestamp_before_max_ms} behind"
    return f"timestamp {time_ms} is more than {bound} the broker's clock ({now_ms})"
