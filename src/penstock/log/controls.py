"""Raft's index over a log: the control entries between the offsets.

A *boundary* is a position between two entries. Raft numbers boundaries: a batch of N offsets is N wide, a control entry
is one wide. So, counting all control entries ever written, those of the deleted prefix included:

    index of a boundary  =  offset of the entry that follows  +  number of control entries before it

Offsets alone do not identify boundaries, because several control entries may have the same offset; indexes do. Since
every term begins with a control entry, an entry's term is that of the last control entry at or before it: every
question about terms is a bisection in this short list, and needs no batch, whether the log was compacted or not.

Invariants:
 1. offsets and terms do not fall; index_of(n) rises.
 2. `gone` is the number of control entries before the first segment, `gone_term` the term of the last entry there and
    `gone_config` the payload of the last entry of the caller's own there. None of them can be derived once the prefix
    is deleted, so all three are in every snapshot and in the checkpoint.
"""

from bisect import bisect_left, bisect_right

from penstock.types import NO_TERM, Term


class Controls:
    """The control entries in the segments of a log, in order, and the facts about those that are deleted."""

    __slots__ = ("gone", "gone_config", "gone_term", "offsets", "payloads", "terms")

    def __init__(self, gone: int = 0, gone_term: int = NO_TERM, gone_config: bytes = b"") -> None:
        self.gone = gone
        self.gone_term = gone_term
        self.gone_config = gone_config
        self.offsets: list[int] = []
        """Short: one per term or change of members."""
        self.terms: list[int] = []
        self.payloads: list[bytes | None] = []
        """The content of the caller's own entries; None where a term begins."""

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def total(self) -> int:
        return self.gone + len(self.offsets)

    @property
    def last_term(self) -> Term:
        """The term of the log's last entry, which may have been deleted with the prefix."""
        return Term(self.terms[-1] if self.terms else self.gone_term)

    @property
    def config(self) -> bytes:
        """The newest payload of the caller's own; b"" if there never was one."""
        return next((payload for payload in reversed(self.payloads) if payload is not None), self.gone_config)

    # --- changing

    def add(self, offset: int, term: int, payload: bytes | None) -> None:
        self.offsets.append(offset)
        self.terms.append(term)
        self.payloads.append(payload)

    def truncate(self, kept: int) -> None:
        """Keeps only the first `kept`."""
        for column in (self.offsets, self.terms, self.payloads):
            del column[kept:]

    def drop_first(self, count: int) -> None:
        """The segment with the first `count` is deleted."""
        if not count:
            return
        self.gone_term = self.terms[count - 1]
        own = [payload for payload in self.payloads[:count] if payload is not None]
        self.gone_config = own[-1] if own else self.gone_config
        self.gone += count
        for column in (self.offsets, self.terms, self.payloads):
            del column[:count]

    # --- index, offset, term

    def index_of(self, number: int) -> int:
        """The index of control entry `number`, counted from the first one here."""
        return self.offsets[number] + self.gone + number

    def count_before(self, index: int) -> int:
        """How many of the control entries here are before this boundary."""
        offsets = self.offsets
        count = len(offsets)
        if not count or offsets[-1] + count - 1 < index - self.gone:
            return count
        return bisect_left(range(count), index - self.gone, key=lambda number: offsets[number] + number)

    def offset_at(self, index: int) -> int:
        return index - self.gone - self.count_before(index)

    def index_at(self, offset: int) -> int:
        """The boundary before the control entries at this offset, if there are any."""
        return offset + self.gone + bisect_left(self.offsets, offset)

    def term_before(self, index: int) -> int:
        """The term of the entry that ends at this boundary."""
        count = self.count_before(index)
        return self.terms[count - 1] if count else self.gone_term

    def end_of_term(self, term: int, first_index: int, end_index: int) -> int:
        """The index of the first entry of a later term."""
        if self.gone_term > term:
            return first_index
        number = bisect_right(self.terms, term)
        return self.index_of(number) if number < len(self.terms) else end_index

    def own_payloads(self) -> list[tuple[int, bytes]]:
        """(index, payload) of each entry of the caller's own that is here."""
        return [(self.index_of(n), payload) for n, payload in enumerate(self.payloads) if payload is not None]

    def expected_from(self, number: int) -> tuple[int, list[tuple[int, int]]]:
        """The term before entry `number`, and (offset, term) of that entry and all after it."""
        term = self.terms[number - 1] if number else self.gone_term
        return term, list(zip(self.offsets[number:], self.terms[number:], strict=True))
