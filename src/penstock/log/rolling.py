"""When a segment is full. The rules look at batches only, never at a clock, so that all replicas roll at the
same offsets and retention by age, which drops whole segments, later drops the same on each.
"""

import zlib

from penstock.config import TopicConfig
from penstock.errors import ErrorCode, KafkaError
from penstock.log.segment import Segment

MAX_OFFSET_SPAN = 2**31 - 1
"""Of one segment: the index has 4 bytes for an offset."""


def must_roll(segment: Segment, config: TopicConfig, size: int, next_offset: int, timestamp: int) -> bool:
    """Whether a batch of this size, end and time has to open a new segment."""
    if segment.size + size > config.segment_bytes:
        if size > config.segment_bytes:
            reason = f"a batch of {size} bytes does not fit segment.bytes={config.segment_bytes}"
            raise KafkaError(ErrorCode.RECORD_LIST_TOO_LARGE, reason)
    elif not (
        # A first batch without a time cannot say when to roll.
        (timestamp - segment.first_timestamp > segment.roll_ms and segment.first_timestamp >= 0)
        or segment.index_size_bytes() >= config.segment_index_bytes
        or next_offset - segment.base_offset > MAX_OFFSET_SPAN
    ):
        return False
    # Two segments cannot begin at one offset.
    return segment.has_records


def roll_ms(config: TopicConfig, folder: str, base_offset: int) -> int:
    """segment.ms less a jitter that every replica finds alike, from the partition's name and the offset."""
    span = config.segment_ms
    if config.cleanup_compact:
        # Only a sealed segment can be compacted.
        span = min(span, config.max_compaction_lag_ms)
    jitter = min(config.segment_jitter_ms, span)
    if jitter > 0:
        name = folder.rpartition("/")[2]
        span -= zlib.crc32(f"{name}:{base_offset}".encode()) % jitter
    return span
