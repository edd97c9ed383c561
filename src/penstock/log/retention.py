"""What a log no longer has to keep: segments past `retention.ms` or `retention.bytes`.

Whole segments go, oldest first, and only such as are flushed. Age is the age of a segment's latest record, by
the records' own timestamps, so a log in which nothing is written still empties; the last segment may go too.
"""

from penstock.config import TopicConfig
from penstock.log.segment import Segment

UNLIMITED = -1


def expired(segments: list[Segment], config: TopicConfig, limit: int, now_ms: int) -> list[Segment]:
    """Segments to drop: a prefix of `segments`, all of whose records are below `limit`."""
    if not config.cleanup_delete:
        return []
    droppable = _below(segments, limit)
    count = max(_count_by_age(droppable, config.retention_ms, now_ms), _count_by_size(segments, config))
    return droppable[:count]


def _below(segments: list[Segment], limit: int) -> list[Segment]:
    result = []
    for segment in segments:
        if segment.next_offset > limit or not segment.has_records:
            break
        result.append(segment)
    return result


def _count_by_age(segments: list[Segment], retention_ms: int, now_ms: int) -> int:
    """Records without a time have no age: they never expire by it."""
    if retention_ms == UNLIMITED:
        return 0
    for count, segment in enumerate(segments):
        if segment.max_timestamp < 0 or now_ms - segment.max_timestamp <= retention_ms:
            return count
    return len(segments)


def _count_by_size(segments: list[Segment], config: TopicConfig) -> int:
    """As many as can go with at least `retention.bytes` left. The active one stays: it is still being filled."""
    if config.retention_bytes == UNLIMITED:
        return 0
    excess = sum(segment.size for segment in segments) - config.retention_bytes
    count = 0
    for segment in segments[:-1]:
        excess -= segment.size
        if excess < 0:
            break
        count += 1
    return count
