"""The rules of a topic for the batches that it takes: keys, timestamps, a codec of its own, a size, message ids.

Most topics have no rule that needs a batch to be opened, and then it is not. The others pay for it on the event loop,
so there is a bound on how much one request may make the broker decompress: a few kilobytes can hold a hundred
megabytes.
"""

import msgspec

from penstock.batch import BatchHeader, recompress, scan_batch
from penstock.batch._scan import NULL_KEY, NULL_VALUE
from penstock.config import TopicConfig
from penstock.errors import ErrorCode, KafkaError
from penstock.node.dedup.message_ids import MessageId, read_ids

CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

INFLATION_MAX = 16
"""A batch may decompress to this many times max.message.bytes. Text compresses ten to one."""
INFLATED_BYTES_PER_REQUEST = 64 * 1024 * 1024
"""All batches of one request may decompress to this together: about half a second of work."""
MESSAGE_IDS_PER_REQUEST = 100_000
"""Message ids cost two to four microseconds each. Clients put at most some 10,000 messages into a batch."""


class TopicRules(msgspec.Struct):
    """Applies topics' rules to the batches of one request. The fields say how much work the request may still cause."""

    bytes_left: int = INFLATED_BYTES_PER_REQUEST
    ids_left: int = MESSAGE_IDS_PER_REQUEST

    def apply(
        self, batch: memoryview, header: BatchHeader, config: TopicConfig, now_ms: int
    ) -> tuple[memoryview, BatchHeader]:
        """The batch as the topic's rules require it, or KafkaError."""
        if config.cleanup_compact:
            self._require_keys(batch, header, config)
        if config.compression_type != "producer" and CODECS[config.compression_type] != header.compression:
            batch, header = self._recompress(batch, header, config)
        if not config.message_timestamp_log_append and (  # otherwise the log stamps its own
            header.max_timestamp - now_ms > config.message_timestamp_after_max_ms
            or 0 <= header.base_timestamp < now_ms - config.message_timestamp_before_max_ms
        ):
            raise _wrong_timestamp(header, config, now_ms)
        return batch, header

    def message_ids(self, batch: memoryview, header: BatchHeader, config: TopicConfig) -> list[MessageId]:
        """The message ids in a batch, for deduplication."""
        found = read_ids(batch, header, self.inflatable(config), self.ids_left)
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

    def _require_keys(self, batch: memoryview, header: BatchHeader, config: TopicConfig) -> None:
        _, payload, columns = scan_batch(batch, header=header, max_bytes=self.inflatable(config))
        self.bytes_left -= len(payload)
        if NULL_KEY in columns.nulls or NULL_KEY | NULL_VALUE in columns.nulls:
            raise KafkaError(ErrorCode.INVALID_RECORD, "a compacted topic needs a key on each record")

    def _recompress(
        self, batch: memoryview, header: BatchHeader, config: TopicConfig
    ) -> tuple[memoryview, BatchHeader]:
        limit, codec = self.inflatable(config), CODECS[config.compression_type]
        rebuilt, changed = recompress(batch, header, codec, _level(config), max_bytes=limit)
        self.bytes_left -= max(len(rebuilt), len(batch))
        if len(rebuilt) > config.max_message_bytes:
            message = (
                f"the batch has {len(rebuilt)} bytes with compression.type={config.compression_type}, "
                f"expected at most max.message.bytes={config.max_message_bytes}"
            )
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, message)
        return memoryview(rebuilt), changed


def _level(config: TopicConfig) -> int | None:
    levels = {
        "gzip": config.compression_gzip_level,
        "lz4": config.compression_lz4_level,
        "zstd": config.compression_zstd_level,
    }
    return levels.get(config.compression_type)


def _wrong_timestamp(header: BatchHeader, config: TopicConfig, now_ms: int) -> KafkaError:
    newest, oldest = header.max_timestamp, header.base_timestamp
    message = (
        f"timestamp {oldest} is more than message.timestamp.before.max.ms="
        f"{config.message_timestamp_before_max_ms} behind the broker's clock ({now_ms})"
    )
    if newest - now_ms > config.message_timestamp_after_max_ms:
        message = (
            f"timestamp {newest} is more than message.timestamp.after.max.ms="
            f"{config.message_timestamp_after_max_ms} ahead of the broker's clock ({now_ms})"
        )
    return KafkaError(ErrorCode.INVALID_TIMESTAMP, message)
