"""When a segment is full. The rules depend on batches only, never on a clock. So all replicas roll at the same offsets,
and retention by age, which drops whole segments, drops the same on each.
"""

import zlib

from penstock.config import TopicConfig
from penstock.log.segment import Segment

ACKED_MEMORY_SEGMENT_BYTES = 1024 * 1024
"""Segment size of a topic in memory that deletes acked messages. A segment is removed when all of it is acked: so a
partition keeps about this much beyond its unacked messages. A segment's bookkeeping takes a thousandth of that."""


def set_limits(segment: Segment, config: TopicConfig, folder: str) -> None:
    """Sets the limits that `Segment.has_room` checks."""
    segment.interval = config.index_interval_bytes
    segment.max_size = config.segment_bytes
    if config.memory and config.cleanup_acked:
        segment.max_size = min(config.segment_bytes, ACKED_MEMORY_SEGMENT_BYTES)
    segment.max_index_bytes = config.segment_index_bytes
    segment.roll_ms = _roll_ms(config, folder, segment.base_offset)


def _roll_ms(config: TopicConfig, folder: str, base_offset: int) -> int:
    """segment.ms less a jitter that is equal on all replicas: it depends on the partition's name and the offset."""
    span = config.segment_ms
    if config.cleanup_compact:
        # Only a sealed segment can be compacted.
        span = min(span, config.max_compaction_lag_ms)
    jitter = min(config.segment_jitter_ms, span)
    if jitter > 0:
        name = folder.rpartition("/")[2]
        span -= zlib.crc32(f"{name}:{base_offset}".encode()) % jitter
    return span
