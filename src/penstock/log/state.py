"""What a log knows besides its bytes.

All of it follows from the batches, one after the other (`replay`), except what speaks of batches that are gone:
where the log starts, how many control entries went, up to where compaction has been. Snapshots hold the whole of it
as of one offset, checkpoints that rest.
"""

from bisect import bisect_left

from penstock.batch import HEADER_SIZE, BatchHeader
from penstock.log.checkpoint import CheckpointFacts, FlushPoint
from penstock.log.layout import CALLERS_OWN, CONTROL_HEAD
from penstock.log.producers import UNSEEN, ProducerStates
from penstock.log.snapshot import Snapshot
from penstock.log.terms import TermCache
from penstock.types import NO_TERM, Offset, Term


class LogState:
    """Recovery fills it; then the log keeps it up."""

    __slots__ = (
        "believes_first_term",
        "cleaned_offset",
        "controls",
        "end_offset",
        "last_term",
        "producers",
        "producers_from",
        "removed",
        "start_controls",
        "start_offset",
        "terms",
    )

    def __init__(self) -> None:
        self.start_offset = Offset(0)
        self.end_offset = Offset(0)
        self.last_term = NO_TERM
        self.believes_first_term = False
        """The replay begins behind a deleted prefix, with which the beginning of the term may have gone."""
        self.terms = TermCache()
        self.controls: list[int] = []
        """Offsets of the control entries in all segments, in order. Short: one per reign or membership."""
        self.start_controls = 0
        """Control entries that went with the deleted prefix: Raft's index needs their number."""
        self.producers = ProducerStates()
        self.producers_from = 0
        """Batches below this offset are known to `producers` already, when they are replayed."""
        self.cleaned_offset = 0
        """Below it, offsets may be missing."""
        self.removed = (0, 0)
        """The first offset whose segment's removal has not begun, and the control entries before it."""

    # --- from the disk and to it

    def adopt(self, facts: CheckpointFacts) -> None:
        self.start_offset = Offset(facts.start_offset)
        self.start_controls = facts.start_controls
        self.removed = (facts.first_base, facts.start_controls)
        self.cleaned_offset = facts.cleaned_offset

    def facts(self, flushed: FlushPoint) -> CheckpointFacts:
        return CheckpointFacts(self.start_offset, *self.removed, flushed, self.cleaned_offset)

    def restore(self, snapshot: Snapshot, present_controls: int) -> None:
        """As of the snapshot, of whose control entries only the last few are still in segments that are there."""
        gone = len(snapshot.controls) - present_controls
        self.end_offset = Offset(snapshot.offset)
        self.last_term = Term(snapshot.last_term)
        self.terms = TermCache(snapshot.terms, snapshot.term_before_start)
        self.controls = snapshot.controls[gone:]
        self.start_controls = snapshot.start_controls + gone
        self.producers.restore(snapshot.producers)

    def snapshot_at(self, point: FlushPoint, control_count: int) -> Snapshot:
        """Of what is known now, which must be what is before this point."""
        return Snapshot(
            offset=point.offset,
            base_offset=point.base_offset,
            position=point.position,
            start_offset=self.start_offset,
            start_controls=self.start_controls,
            last_term=self.last_term,
            term_before_start=self.terms.before_start,
            terms=self.terms.entries(),
            controls=list(self.controls),
            control_count=control_count,
            producers=self.producers.rows(),
        )

    # --- from the batches

    def may_follow(self, end_offset: int, base_offset: int) -> bool:
        """Offsets go on without a gap, except where compaction has been."""
        return end_offset == base_offset or end_offset < base_offset <= self.cleaned_offset

    def replay(self, header: BatchHeader, batch: memoryview) -> None:
        """Takes the next batch of the log into account; raises ValueError if it cannot be the next one."""
        if not self.may_follow(self.end_offset, header.base_offset):
            raise ValueError(f"offset {header.base_offset} where {self.end_offset} must follow")
        if header.is_zero_width:
            self._replay_control(header, batch[HEADER_SIZE:])
        elif header.leader_epoch != self.last_term:
            if self.last_term != NO_TERM or not self.believes_first_term:
                raise ValueError(f"term {header.leader_epoch} within term {self.last_term}")
            self.last_term = self.terms.before_start = Term(header.leader_epoch)
            self.terms.begin(self.last_term, header.base_offset)
        if header.producer_id >= 0 and header.base_offset >= self.producers_from:
            self.producers.record(header, header.base_offset, UNSEEN)
        self.end_offset = Offset(header.next_offset)

    def _replay_control(self, header: BatchHeader, payload: memoryview) -> None:
        if len(payload) < CONTROL_HEAD.size:
            raise ValueError("a control entry without term and offset")
        kind, term, offset = CONTROL_HEAD.unpack_from(payload)
        if (term, offset) != (header.leader_epoch, header.base_offset) or kind > CALLERS_OWN:
            raise ValueError(f"a control entry of term {term} at {offset} is stamped otherwise")
        if term < self.last_term:
            raise ValueError(f"term {term} begins after term {self.last_term}")
        if term > self.last_term:
            self.last_term = Term(term)
            self.terms.begin(term, offset)
        self.controls.append(header.base_offset)

    # --- forgetting

    def truncate(self, end_offset: int) -> None:
        """Nothing from this offset on has ever been. Producers are another matter: they need the log."""
        del self.controls[bisect_left(self.controls, end_offset) :]
        self.terms.truncate(end_offset)
        self.last_term = self.terms.latest
        self.end_offset = Offset(end_offset)
        # The batch that goes may have been the one in whose middle the log began.
        self.start_offset = min(self.start_offset, self.end_offset)
        self.cleaned_offset = min(self.cleaned_offset, end_offset)
