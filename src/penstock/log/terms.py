"""The terms of a log with the offset at which each began (Kafka's leader epoch cache).

It follows from the control entries in the log; snapshots keep it so that recovery need not read those. The broker
answers `OffsetForLeaderEpoch` from it, and looks up a record's term in it: compaction may have removed the batch.
"""

from bisect import bisect_right

from penstock.types import NO_TERM, Offset, Term

UNDEFINED = (NO_TERM, Offset(-1))
"""Kafka's answer for a term that is not known."""


class TermCache:
    """Terms, rising, and their first offsets, not falling: a term may end before its first record."""

    __slots__ = ("_starts", "_terms")

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self._terms = [term for term, _ in entries or ()]
        self._starts = [start for _, start in entries or ()]

    @property
    def latest(self) -> Term:
        return Term(self._terms[-1]) if self._terms else NO_TERM

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._terms, self._starts, strict=True))

    def begin(self, term: int, offset: int) -> None:
        if self._terms and term <= self._terms[-1]:
            raise ValueError(f"term {term} cannot begin after term {self._terms[-1]}")
        self._terms.append(term)
        self._starts.append(offset)

    def at(self, offset: int) -> Term:
        """The term in which the record at `offset` was written."""
        at = bisect_right(self._starts, offset) - 1
        return Term(self._terms[at]) if at >= 0 else NO_TERM

    def end_of(self, term: int, end_offset: int) -> tuple[Term, Offset]:
        """The last term that is not after `term`, and the offset at which it ended.

        The latest ends at the log's end. A term before all known ones ended where the first of those begins. A term
        after the latest is undefined.
        """
        if not self._terms or term > self._terms[-1] or term < 0:
            return UNDEFINED
        at = bisect_right(self._terms, term) - 1
        if at < 0:
            return Term(term), Offset(self._starts[0])
        end = self._starts[at + 1] if at + 1 < len(self._starts) else end_offset
        return Term(self._terms[at]), Offset(end)

    def truncate(self, offset: int, last_term: int) -> None:
        """The log ends at `offset`, with an entry of `last_term`. Later terms are removed. If the cache no longer has
        `last_term`, because it began in the deleted prefix, then it begins here."""
        while self._terms and self._terms[-1] > last_term:
            self._starts.pop()
            self._terms.pop()
        if not self._terms and last_term != NO_TERM:
            self._starts.append(offset)
            self._terms.append(last_term)
        if self._starts and self._starts[-1] > offset:
            self._starts[-1] = offset

    def delete_prefix(self, offset: int) -> None:
        """Removes terms that ended at or before `offset`; the term of that offset now begins there."""
        keep = max(bisect_right(self._starts, offset) - 1, 0)
        del self._starts[:keep]
        del self._terms[:keep]
        if self._starts and self._starts[0] < offset:
            self._starts[0] = offset
