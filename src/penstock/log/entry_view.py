"""The log as Raft sees it: entries by index, control entries included. `controls` has the arithmetic of indexes."""

from penstock.log.boundaries import boundary_at, read_entries
from penstock.log.log_files import LogFiles
from penstock.types import Index, Offset, Term


class EntryView:
    """Looks at a log by Raft's index. It changes nothing but `commit_index`, which the log's owner sets."""

    __slots__ = ("_files",)

    def __init__(self, files: LogFiles) -> None:
        self._files = files

    # --- positions

    @property
    def first_index(self) -> Index:
        """The index of the first entry that is still here. Readers may start later: within a batch, or behind it."""
        return Index(self._files.first_index())

    @property
    def end_index(self) -> Index:
        return Index(self._files.state.end_index)

    @property
    def flushed_index(self) -> Index:
        """Entries below it survive a power cut."""
        return Index(self._files.flushed.index)

    @property
    def commit_index(self) -> Index | None:
        """Entries below it can never be truncated; None: all flushed entries are committed (see `LogFiles`)."""
        return self._files.commit_index

    @commit_index.setter
    def commit_index(self, index: Index | None) -> None:
        self._files.commit_index = index

    @property
    def start_offset(self) -> Offset:
        """The first offset that can be read."""
        return self._files.state.start_offset

    def offset_at(self, index: int) -> Offset:
        """The offset of the entry at this boundary."""
        return Offset(self._files.state.controls.offset_at(index))

    def index_at(self, offset: int) -> Index:
        """The index of the entry at this offset; control entries at that offset are not counted. Within a batch it is
        an index within the batch: `floor` of it is the batch's own."""
        return Index(self._files.state.controls.index_at(offset))

    def floor(self, index: int) -> Index:
        """The greatest boundary that is not after `index`, and in the log."""
        files = self._files
        if index >= files.state.end_index:
            return Index(files.state.end_index)
        first_index = files.first_index()
        if index <= first_index:
            return Index(first_index)
        return Index(boundary_at(files.segments, files.state.controls, index).entry_index)

    # --- terms

    @property
    def last_term(self) -> Term:
        """The term of the last entry ever, also if that was deleted with the prefix."""
        return self._files.state.last_term

    def term_before(self, index: int) -> Term | None:
        """The term of the entry that ends at this boundary; -1 before the first of all; None if it is not known."""
        files = self._files
        if not files.first_index() <= index <= files.state.end_index:
            return None
        return Term(files.state.controls.term_before(index))

    def end_of_term_index(self, term: int) -> Index:
        """Where the last entry whose term is not after `term` ends; the log's beginning if there is none."""
        state, first_index = self._files.state, self._files.first_index()
        return Index(max(state.controls.end_of_term(term, first_index, state.end_index), first_index))

    # --- content

    def read_entries(self, index: int, max_bytes: int) -> tuple[bytes, Index]:
        """Whole entries from this boundary on, control entries included, and the index after them. At least one, if
        there is one; else up to `max_bytes`, and none from the next segment. (b"", index) at the log's end."""
        files = self._files
        end_index = files.state.end_index
        if not files.first_index() <= index <= end_index:
            raise ValueError(f"{files.path} holds {files.first_index()} to {end_index}, not index {index}")
        if index == end_index:
            return b"", Index(index)
        data, end = read_entries(files.segments, files.state.controls, index, max_bytes)
        return data, Index(end)

    def control_payloads(self) -> list[tuple[Index, bytes]]:
        """(index, payload) of each `append_control` that is still here. `prefix_config` has the newest of the deleted
        prefix."""
        return [(Index(index), payload) for index, payload in self._files.state.controls.own_payloads()]

    @property
    def prefix_config(self) -> bytes:
        """The payload of the last `append_control` before `first_index`; b"" if there was none."""
        return self._files.state.controls.gone_config
