"""What the core may ask of a log. It only looks: every change of the log is an effect."""

from typing import Protocol


class RaftLog(Protocol):
    """A log as Raft sees it. An *index* is a place between entries; the end of a log of n units is n.

    A batch is as wide as its offsets, a control entry is one wide. The places between entries, *boundaries*, are the
    only ones at which anything is cut, matched or resumed.
    """

    @property
    def first_index(self) -> int:
        """The first entry that is still here begins at it; what was below is deleted."""

    @property
    def end_index(self) -> int: ...

    @property
    def flushed_index(self) -> int:
        """All below is on the disk. The log itself lowers it when it truncates: a flush that began before a truncation
        never speaks for what was written after it."""

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
