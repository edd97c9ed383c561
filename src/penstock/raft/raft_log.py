"""The log as the core reads it. The core never changes it: every change is an effect."""

from typing import Protocol


class RaftLog(Protocol):
    """A log in Raft's terms. An *index* is a position between units; a log of n units ends at n.

    A batch is as wide as its offsets, a control entry is one wide. Positions between entries are *boundaries*:
    truncation, matching and reading happen only there.
    """

    @property
    def first_index(self) -> int:
        """The index at which the first stored entry begins; entries below it are deleted."""

    @property
    def end_index(self) -> int: ...

    @property
    def flushed_index(self) -> int:
        """All entries below it are on the disk. The log lowers it when it truncates: a flush that began before a
        truncation never counts for entries that were written after it."""

    @property
    def last_term(self) -> int:
        """The term of the last entry ever, even if it went with the prefix; -1."""

    @property
    def start_offset(self) -> int:
        """The first offset that readers may see."""

    def term_before(self, index: int) -> int | None:
        """The term of the entry that ends at `index`; -1 for 0; None below first_index and above end_index."""

    def floor(self, index: int) -> int:
        """The greatest boundary <= index, but not below first_index. A place that no entry spans is one, also where
        compaction has removed the entries on both sides: a follower may still have them, and its log may end there."""

    def end_of_term_index(self, term: int) -> int:
        """Where the last entry whose term is at most `term` ends, but not below first_index."""

    def read_entries(self, index: int, max_bytes: int) -> tuple[bytes, int]:
        """Whole entries from this boundary, at least one if there is one, and where they end."""
