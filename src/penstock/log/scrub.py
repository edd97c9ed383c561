"""Reading again what was written long ago: bit-rot is to be found while other replicas still have the right bytes.

Of every batch: the CRC, that it follows on the one before it, and that its term is the one that was last begun, as the
log itself remembers it. The last two because a batch's CRC covers neither its offset nor its term.

A scrub goes over sealed segments, in its own time. `look_again` is for entries that somebody has just complained about,
wherever they stand.
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.batch import HEADER_SIZE, BatchHeader, check_batch
from penstock.errors import BatchError, CorruptLog, StorageError
from penstock.log.chain import SegmentChain
from penstock.log.controls import Controls
from penstock.log.disk import Disk
from penstock.log.entries import check_entries
from penstock.log.places import place_of, read_entries
from penstock.log.scan import BadBatch, scan
from penstock.log.segment import Segment
from penstock.log.state import read_control
from penstock.types import Offset


def look_again(
    chain: SegmentChain, controls: Controls, index: int, max_bytes: int, *, gaps_below: int
) -> CorruptLog | None:
    """What is wrong with the entries from boundary `index` on, which is in the log: with those that `read_entries`
    gives, to the last byte. Compared as a replica does that is sent them."""
    place = place_of(chain, controls, index)
    segment = chain.segments[place.at]
    if place.boundary != index:
        return CorruptLog(
            segment.path, place.position, f"a batch that goes on at index {index}, where one begins"
        )
    position = 0
    try:
        data, _ = read_entries(chain, controls, index, max_bytes)
        view = memoryview(data)
        while position < len(view):
            position += check_batch(view, position).size
        position, offset = 0, index - controls.gone - controls.count_before(index)
        check_entries(data, end_offset=offset, last_term=controls.term_before(index), gaps_below=gaps_below)
    except BatchError as problem:
        return CorruptLog(segment.path, place.position + position, problem.message)
    return None


class ScrubSource(NamedTuple):
    """A segment as it was when the plan was made, and the offset at which the next one begins."""

    segment: Segment
    path: str
    base_offset: int
    size: int
    end_offset: int


class ScrubPlan:
    """One scrub of a few sealed segments. `run` in a thread, then `Log.finish_scrub`."""

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
        """The term that reigns at the beginning, and (offset, term) of the control entries from there on."""
        self._seen = 0
        self._gaps_below = gaps_below
        self.next_offset = Offset(0 if is_last else self._sources[-1].end_offset)
        """Where the next scrub goes on; 0: all has been read."""
        self.read_bytes = 0
        self.wrong: tuple[ScrubSource, CorruptLog] | None = None
        """The first segment that is not what it was, and why."""
        self.cancelled = False

    def run(self) -> None:
        """In a thread. A segment that went meanwhile, with retention or compaction, is no concern of a scrub; nor is
        what follows on it, of which too little is known then."""
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
            except StorageError as problem:  # what cannot be read is as lost as what is wrong
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
