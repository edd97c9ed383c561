"""Deleting the beginning of a log: on request, or past `retention.ms` or `retention.bytes`.

Retention drops whole segments, oldest first, and only flushed and committed ones. A segment's age is that of its latest
record, by the records' own timestamps, so a log that is no longer written still becomes empty: the last segment may
expire too. An open transaction does not keep its segments: `transactions` (3) says what its readers see then.
"""

from contextlib import suppress

from penstock.config import TopicConfig
from penstock.errors import ErrorCode, KafkaError, OutOfResources
from penstock.log.log_files import LogFiles
from penstock.log.segment import Segment
from penstock.types import Offset

UNLIMITED = -1


class Retention:
    """Moves the start of one log. Maintenance removes the files later."""

    __slots__ = ("_files",)

    def __init__(self, files: LogFiles) -> None:
        self._files = files

    @property
    def limit(self) -> Offset:
        """Records below this offset may be deleted: they are flushed and committed."""
        files = self._files
        flushed = Offset(files.flushed.point.offset)
        if files.commit_index is None:
            return flushed
        return min(flushed, Offset(files.state.controls.offset_at(files.commit_index)))

    def delete_prefix(self, offset: Offset) -> None:
        """Makes `offset` the first that can be read."""
        files = self._files
        if offset <= files.state.start_offset:
            return
        limit = self.limit
        if offset > limit:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot delete {files.path} up to {offset}: it is flushed and committed up to {limit}",
            )
        files.state.start_offset = offset
        self.drop_segments()
        files.save_checkpoint()

    def drop_segments(self, limit: int | None = None) -> None:
        """Takes segments wholly below the start out of the log, which continues in the last one. Control entries from
        index `limit` on stay, with their segments: they may still be truncated."""
        files, segments, state = self._files, self._files.segments, self._files.state
        limit = files.stable_index() if limit is None else limit
        active = segments.active
        if (
            active is not None
            and active.has_records
            and active.next_offset <= state.start_offset
            and state.end_index <= limit
        ):
            # If no file can be made now, the last segment stays; the next maintenance tries again.
            with suppress(OutOfResources):
                files.start_segment()
        dropped = []
        while len(segments.segments) > 1 and segments.bases[1] <= state.start_offset:
            if segments.bases[1] + state.controls.gone + segments.segments[0].control_count > limit:
                break
            segment = segments.drop_first()
            files.generation += 1
            segment.removed_before = state.removed_before(segment.base_offset)
            state.controls.drop_first(segment.control_count)
            segment.base_snapshot = None
            dropped.append(segment)
        files.deleted += dropped
        files.forget_unsaved(dropped)
        state.terms.delete_prefix(state.start_offset)
        state.transactions.trim(state.start_offset)

    def expired(self, now_ms: int, below: int | None = None) -> list[Segment]:
        """Segments past `retention.ms` or `retention.bytes`, oldest first; only those that end at `below` or before."""
        limit = self.limit if below is None else min(self.limit, below)
        return expired(self._files.segments.segments, self._files.config, limit, now_ms)

    def apply(self, now_ms: int, below: int | None = None) -> int:
        """Drops what has expired, but no record from offset `below` on; returns its bytes."""
        self._files.state.producers.expire(now_ms)
        segments = self.expired(now_ms, below)
        before = self._files.segments.size_bytes
        if segments:
            self.delete_prefix(Offset(segments[-1].next_offset))
        return before - self._files.segments.size_bytes


def expired(segments: list[Segment], config: TopicConfig, limit: int, now_ms: int) -> list[Segment]:
    """Segments to drop: the first ones of `segments`, with all records below `limit`."""
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
    """Records without a timestamp have no age: they never expire by it."""
    if retention_ms == UNLIMITED:
        return 0
    for count, segment in enumerate(segments):
        if segment.max_timestamp < 0 or now_ms - segment.max_timestamp <= retention_ms:
            return count
    return len(segments)


def _count_by_size(segments: list[Segment], config: TopicConfig) -> int:
    """How many segments can be dropped with at least `retention.bytes` left. The active one stays."""
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
