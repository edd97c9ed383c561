"""The state of a log: offsets, terms, control entries, producers and their transactions.

It follows from the batches, one after the other (`replay`), except for facts about batches that are gone: where the log
starts, the control entries of the deleted prefix, up to where compaction has been. Snapshots hold the whole state as of
one offset, checkpoints hold those facts.
"""

from penstock.batch import HEADER_SIZE, BatchHeader
from penstock.log.checkpoint import CheckpointFacts, FlushPoint, Removed
from penstock.log.controls import Controls
from penstock.log.layout import CALLERS_OWN, CONTROL_HEAD
from penstock.log.producers import UNSEEN, ProducerStates
from penstock.log.snapshot import Snapshot, control_columns
from penstock.log.terms import TermCache
from penstock.types import NO_TERM, Offset, Term


class LogState:
    """Recovery fills it; then the writer and the other objects of the log update it."""

    __slots__ = (
        "believes_first_term",
        "cleaned_offset",
        "controls",
        "end_offset",
        "gaps_below",
        "last_term",
        "producers",
        "producers_from",
        "removed",
        "start_offset",
        "swapping",
        "terms",
        "transactions",
    )

    def __init__(self) -> None:
        self.start_offset = Offset(0)
        self.end_offset = Offset(0)
        self.last_term = NO_TERM
        self.believes_first_term = False
        """The replay begins behind a deleted prefix, which may have contained the beginning of the first term."""
        self.terms = TermCache()
        self.controls = Controls()
        self.producers = ProducerStates()
        self.transactions = self.producers.transactions
        self.producers_from = 0
        """`producers` already includes the batches below this offset when they are replayed."""
        self.cleaned_offset = 0
        """Below it, offsets may be missing: compaction has removed them."""
        self.gaps_below = 0
        """Below it, offsets may be missing: they were missing in the log that these entries came from."""
        self.swapping = False
        """Compacted segments are replacing old ones."""
        self.removed = Removed()
        """The part of the prefix whose removal has begun."""

    @property
    def start_controls(self) -> int:
        """The number of control entries in the deleted prefix."""
        return self.controls.gone

    @property
    def end_index(self) -> int:
        return self.end_offset + self.controls.total

    # --- checkpoint and snapshot

    def adopt(self, facts: CheckpointFacts) -> None:
        self.start_offset = Offset(facts.start_offset)
        self.removed = facts.removed
        self.controls = Controls(facts.removed.controls, facts.removed.term, facts.removed.config)
        self.cleaned_offset = facts.cleaned_offset
        self.gaps_below = facts.gaps_below
        if facts.swapping:
            # Some segments may be as they were before the pass. If they counted as clean, the next pass would not look
            # for records that their tombstones delete, and would later drop only the tombstones.
            self.cleaned_offset, self.gaps_below = 0, max(facts.cleaned_offset, facts.gaps_below)

    def begin_at(self, base_offset: int) -> None:
        """The first segment begins here; about entries before it, only the checkpoint's facts are known."""
        term = Term(self.controls.gone_term)
        self.end_offset = Offset(base_offset)
        self.last_term = term
        self.believes_first_term = base_offset > 0 and term == NO_TERM
        if term != NO_TERM:
            self.terms.begin(term, base_offset)

    def removed_before(self, base_offset: int) -> Removed:
        """Facts that the checkpoint must record once everything before the first segment, which begins here, is
        removed."""
        controls = self.controls
        return Removed(base_offset, controls.gone, controls.gone_term, controls.gone_config)

    def facts(self, flushed: FlushPoint) -> CheckpointFacts:
        return CheckpointFacts(
            self.start_offset, self.removed, flushed, self.cleaned_offset, self.gaps_below, self.swapping
        )

    def restore(self, snapshot: Snapshot, present_controls: int) -> None:
        """Takes over the snapshot. Only the last `present_controls` of its control entries are still in segments."""
        self.end_offset = Offset(snapshot.offset)
        self.last_term = Term(snapshot.last_term)
        self.terms = TermCache(snapshot.terms)
        controls = Controls(snapshot.start_controls, snapshot.gone_term, snapshot.gone_config)
        controls.offsets = list(snapshot.controls)
        terms, payloads = control_columns(snapshot)
        controls.terms, controls.payloads = list(terms), list(payloads)
        controls.drop_first(len(snapshot.controls) - present_controls)
        self.controls = controls
        self.gaps_below = max(self.gaps_below, snapshot.gaps_below)
        self.producers.restore(snapshot.producers, snapshot.transactions)

    def snapshot_at(
        self, point: FlushPoint, control_count: int, first_base: int, *, with_aborted: bool = True
    ) -> Snapshot:
        """A snapshot of the current state, which must be the state at this point. Only recovery needs the index of
        aborted transactions (`with_aborted`)."""
        controls = self.controls
        return Snapshot(
            offset=point.offset,
            base_offset=point.base_offset,
            position=point.position,
            start_offset=self.start_offset,
            start_controls=controls.gone,
            last_term=self.last_term,
            gone_term=controls.gone_term,
            terms=self.terms.entries(),
            controls=list(controls.offsets),
            control_count=control_count,
            producers=self.producers.rows(),
            control_terms=list(controls.terms),
            control_payloads=list(controls.payloads),
            gone_config=controls.gone_config,
            gaps_below=self.gaps_below,
            first_base=first_base,
            transactions=self.producers.transaction_rows(with_aborted=with_aborted),
        )

    # --- from the batches

    def may_follow(self, end_offset: int, base_offset: int) -> bool:
        """Whether offsets continue without a gap; gaps are allowed where compaction has been."""
        return end_offset == base_offset or end_offset < base_offset <= max(
            self.cleaned_offset, self.gaps_below
        )

    def replay(self, header: BatchHeader, batch: memoryview) -> None:
        """Applies the next batch of the log; raises ValueError if it cannot be the next one."""
        if not self.may_follow(self.end_offset, header.base_offset):
            raise ValueError(f"offset {header.base_offset} where {self.end_offset} must follow")
        if header.is_zero_width:
            self._replay_control(header, batch[HEADER_SIZE:])
        elif header.leader_epoch != self.last_term:
            if self.last_term != NO_TERM or not self.believes_first_term:
                raise ValueError(f"term {header.leader_epoch} within term {self.last_term}")
            self.last_term = Term(header.leader_epoch)
            self.controls.gone_term = self.last_term
            self.terms.begin(self.last_term, header.base_offset)
        if header.producer_id >= 0 and header.base_offset >= self.producers_from:
            self.producers.enter(header, batch, UNSEEN, is_committed=True)
        self.end_offset = Offset(header.next_offset)

    def _replay_control(self, header: BatchHeader, payload: memoryview) -> None:
        kind, term = read_control(header, payload)
        if term < self.last_term:
            raise ValueError(f"term {term} begins after term {self.last_term}")
        own = bytes(payload[CONTROL_HEAD.size :]) if kind == CALLERS_OWN else None
        self.enter_control(header.base_offset, term, own)

    def enter_control(self, offset: int, term: int, payload: bytes | None) -> None:
        """The next entry of the log is a control entry; with a `payload`, one of the caller's own."""
        if term > self.last_term:
            self.last_term = Term(term)
            self.terms.begin(term, offset)
        self.controls.add(offset, term, payload)

    # --- truncation

    def truncate(self, end_offset: int, kept_controls: int) -> None:
        """The log ends here, after its first `kept_controls` control entries. `Truncation` restores the producers."""
        self.controls.truncate(kept_controls)
        self.last_term = self.controls.last_term
        self.terms.truncate(end_offset, self.last_term)
        self.end_offset = Offset(end_offset)
        # The log may have begun in the middle of a batch that is removed.
        self.start_offset = min(self.start_offset, self.end_offset)
        self.cleaned_offset = min(self.cleaned_offset, end_offset)
        self.gaps_below = min(self.gaps_below, end_offset)


def read_control(header: BatchHeader, payload: memoryview) -> tuple[int, int]:
    """Kind and term of a control entry; raises ValueError if its payload contradicts its header."""
    if len(payload) < CONTROL_HEAD.size:
        raise ValueError("a control entry without term and offset")
    kind, term, offset = CONTROL_HEAD.unpack_from(payload)
    if (term, offset) != (header.leader_epoch, header.base_offset) or kind > CALLERS_OWN:
        raise ValueError(f"a control entry of term {term} at {offset} is stamped otherwise")
    return kind, term
