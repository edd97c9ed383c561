"""Scrubbing: reads old segments again, to find bit rot while other replicas still have the right bytes.

A scrub checks every batch: its CRC, that it follows the one before it, and that its term is the one that was last begun
according to the log's state. The last two because a batch's CRC covers neither its offset nor its term.

A scrub reads sealed segments in the background. `Scrubber.check_entries` is for entries that a follower has refused,
wherever they are.
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.batch import HEADER_SIZE, BatchHeader, check_batch
from penstock.errors import BatchError, CorruptLog, StorageError
from penstock.log.boundaries import boundary_at, read_entries
from penstock.log.disk import Disk
from penstock.log.entries import check_entries
from penstock.log.log_files import LogFiles
from penstock.log.scan import BadBatch, scan
from penstock.log.segment import Segment
from penstock.log.state import read_control
from penstock.types import Offset

SCRUB_BYTES = 64 * 1024 * 1024
"""About how much one scrub reads: a tenth of a second of one core."""


class Scrubber:
    """Plans and finishes the scrubs of one log."""

    __slots__ = ("_files",)

    def __init__(self, files: LogFiles) -> None:
        self._files = files

    def plan(self, from_offset: int = 0, *, max_bytes: int = SCRUB_BYTES) -> "ScrubPlan | None":
        """A scrub of sealed segments, from the one that holds `from_offset` on; None if there is none. The caller runs
        it in a thread, then calls `finish`; the next scrub continues at `plan.next_offset`."""
        files, segments = self._files, self._files.segments
        flushed = files.flushed.point.base_offset
        sealed = [s for s in segments.segments[:-1] if s.base_offset < flushed]
        chosen: list[Segment] = []
        for segment in sealed:
            if segment.next_offset > from_offset and sum(other.size for other in chosen) < max_bytes:
                chosen.append(segment)
        if not chosen or files.failed is not None:
            return None
        first = segments.segments.index(chosen[0])
        before = sum(segment.control_count for segment in segments.segments[:first])
        return ScrubPlan(
            files.disk,
            segments=chosen,
            ends=[segments.bases[first + number + 1] for number in range(len(chosen))],
            controls=files.state.controls.expected_from(before),
            gaps_below=max(files.state.cleaned_offset, files.state.gaps_below),
            is_last=chosen[-1] is sealed[-1],
        )

    def finish(self, plan: "ScrubPlan") -> CorruptLog | None:
        """The damage that the scrub found, if the segment is still part of this log. The log stays in use: its owner
        decides about the rest of it."""
        if plan.wrong is None:
            return None
        source, problem = plan.wrong
        sealed = self._files.segments.segments[:-1]
        is_unchanged = source.segment in sealed and source.segment.size == source.size
        return problem if is_unchanged else None

    def check_entries(self, index: int, max_bytes: int) -> CorruptLog | None:
        """The damage in the entries that `read_entries` returns from this boundary on; None if they are whole."""
        files, state = self._files, self._files.state
        if not files.first_index() <= index < state.end_index:
            return None
        cleaned_offset = max(state.cleaned_offset, state.gaps_below)
        gaps_below = state.end_offset if files.config.cleanup_compact else cleaned_offset
        try:
            return self._check_entries(index, max_bytes, gaps_below)
        except CorruptLog as problem:
            return problem
        except (StorageError, ValueError) as problem:  # unreadable bytes are as lost as wrong ones
            return CorruptLog(files.path, 0, str(problem))

    def _check_entries(self, index: int, max_bytes: int, gaps_below: int) -> CorruptLog | None:
        """The same checks as in a replica that receives the entries."""
        segments, controls = self._files.segments, self._files.state.controls
        found = boundary_at(segments, controls, index)
        segment = segments.segments[found.segment_number]
        if found.entry_index != index:
            reason = f"a batch spans index {index}, where an entry must begin"
            return CorruptLog(segment.path, found.position, reason)
        position, headers = 0, []
        try:
            data, _ = read_entries(segments, controls, index, max_bytes)
            view = memoryview(data)
            while position < len(view):
                headers.append(check_batch(view, position))
                position += headers[-1].size
            position, offset, term = 0, controls.offset_at(index), controls.term_before(index)
            check_entries(data, headers, end_offset=offset, last_term=term, gaps_below=gaps_below)
        except BatchError as problem:
            return CorruptLog(segment.path, found.position + position, problem.message)
        return None


class ScrubSource(NamedTuple):
    """A segment as it was when the plan was made, and the offset at which the next segment begins."""

    segment: Segment
    path: str
    base_offset: int
    size: int
    end_offset: int


class ScrubPlan:
    """One scrub of a few sealed segments. `run` in a thread, then `Scrubber.finish`."""

    def __init__(
        self,
        disk: Disk,
        *,
        segments: Sequence[Segment],
        ends: Sequence[int],
        controls: tuple[int, list[tuple[int, int]]],
        gaps_below: int,
        is_last: bool,
    ) -> None:
        self._disk = disk
        self._sources = [
            ScrubSource(s, s.path, s.base_offset, s.size, end) for s, end in zip(segments, ends, strict=True)
        ]
        self._term, self._expected = controls
        """The term at the beginning, and (offset, term) of the control entries from there on."""
        self._seen = 0
        self._gaps_below = gaps_below
        self.next_offset = Offset(0 if is_last else self._sources[-1].end_offset)
        """Where the next scrub continues; 0: all has been read."""
        self.read_bytes = 0
        self.wrong: tuple[ScrubSource, CorruptLog] | None = None
        """The first damaged segment, and the damage."""
        self.cancelled = False

    def run(self) -> None:
        """In a thread. Ends at a segment that retention or compaction has removed meanwhile: the plan no longer
        describes the segments after it."""
        for source in self._sources:
            if self.cancelled:
                return
            try:
                self._read(source)
            except FileNotFoundError:
                return
            except CorruptLog as problem:
                self.wrong = (source, problem)
                return
            except StorageError as problem:  # unreadable bytes are as lost as wrong ones
                self.wrong = (source, CorruptLog(source.path, 0, str(problem)))
                return

    def _read(self, source: ScrubSource) -> None:
        file = self._disk.open(source.path)
        position, end_offset = 0, source.base_offset
        try:
            if file.size < source.size:
                raise CorruptLog(
                    source.path, file.size, f"the file ends here, and it had {source.size} bytes"
                )
            for here, header, batch in scan(file, 0, source.size):
                position = here
                self._check_offset(end_offset, header.base_offset)
                self._check_term(header, batch)
                end_offset = header.next_offset
                self.read_bytes += header.size
            position = source.size
            self._check_offset(end_offset, source.end_offset)
        except BadBatch as problem:
            raise CorruptLog(source.path, problem.position, problem.reason) from None
        except ValueError as problem:
            raise CorruptLog(source.path, position, str(problem)) from None
        finally:
            file.close()

    def _check_offset(self, end_offset: int, base_offset: int) -> None:
        if end_offset != base_offset and not end_offset < base_offset <= self._gaps_below:
            raise ValueError(f"offset {base_offset} where {end_offset} must follow")

    def _check_term(self, header: BatchHeader, batch: memoryview) -> None:
        if header.is_zero_width:
            _, term = read_control(header, batch[HEADER_SIZE:])
            if self._seen == len(self._expected) or self._expected[self._seen] != (header.base_offset, term):
                raise ValueError(f"a control entry of term {term} at {header.base_offset} that is not known")
            self._seen += 1
            self._term = term
        elif header.leader_epoch != self._term:
            raise ValueError(f"term {header.leader_epoch} within term {self._term}")
