"""One partition's log: append, read, flush, truncate, delete the prefix. `layout` has its bytes and its recovery.

It is also the log of a Raft group: `first_index` to `control_payloads` are what Raft asks for, `append_entries`,
`truncate_to_index` and `reset` what it has done. `controls` has the arithmetic of its indexes.

Invariants:
 1. start_offset <= flushed_offset <= end_offset. All below flushed_offset survives a power cut.
 2. Offsets rise by one, except where compaction has been. Each term begins with a control entry.
 3. An append writes whole batches with one call, or nothing: a write that fails half-way is cut back.
 4. After a failed flush nobody knows what is on the disk: the log takes no more appends until it is opened anew and has
    read what is there. No space is not such a failure: the next append tries again.
 5. An empty log that begins at 0 has no folder: the first append makes it.
 6. first_index <= commit_index, whatever is deleted; flushed_index <= end_index, whatever is truncated.
"""

from collections.abc import Callable
from typing import Self

from penstock.config import TopicConfig
from penstock.errors import ErrorCode, KafkaError, StorageError
from penstock.log.appending import Appended, Appending
from penstock.log.chain import SegmentChain
from penstock.log.disk import Disk
from penstock.log.flush import Flushing
from penstock.log.layout import DELETED_SUFFIX
from penstock.log.lookup import first_at_or_after, greatest_timestamp
from penstock.log.places import place_of, read_entries
from penstock.log.producers import ProducerStates
from penstock.log.recovery import Recovery
from penstock.log.replay import replay_producers
from penstock.log.reset import Prefix, announce_reset, finish_reset
from penstock.log.rolling import set_limits
from penstock.log.tending import Tending
from penstock.log.upkeep import Upkeep
from penstock.types import Index, Offset, Term

__all__ = ["Appended", "Log"]


class Log(Appending, Tending):
    """A partition's log. Made by `Log.open`."""

    @classmethod
    def open(cls, disk: Disk, path: str, config: TopicConfig, *, recover: bool = True) -> Self:
        """Reads what is there. Without `recover` nothing is changed: what would have to be cut is CorruptLog."""
        log = cls(disk, path, config)
        if disk.list_dir(path):
            recovery = Recovery(disk, path, config.index_interval_bytes, repair=recover)
            recovery.run()
            log._adopt(recovery)
            log.cuts = recovery.cuts
            if recover:
                log._settle(recovery)
        return log

    # --- reading by offset

    def read(self, offset: Offset, max_bytes: int, *, limit: Offset, at_least_one: bool = True) -> bytes:
        """Whole batches from the one that holds `offset`, below `limit`, up to `max_bytes`.

        Stops at a segment's end and before a control entry: the next read goes on behind it. `at_least_one`
        gives the first batch even if it is larger than `max_bytes`. b"" means that there is nothing below the
        limit.
        """
        end_offset = self.end_offset
        if not self.start_offset <= offset <= end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.path} holds offsets {self.start_offset} to {end_offset}, not {offset}",
            )
        if limit > end_offset:
            limit = end_offset
        if offset >= limit:
            return b""
        return self._chain.read(offset, max_bytes, limit, at_least_one)

    def find_timestamp(self, timestamp: int, limit: Offset) -> tuple[int, int, int] | None:
        """(timestamp, offset, term) of the first record below `limit` that is not earlier than `timestamp`."""
        found = first_at_or_after(self._chain.segments, timestamp, self.start_offset, limit)
        self._chain.let_cool()
        if found is None:
            return None
        return found.timestamp, found.offset, self.term_at(Offset(found.offset))

    def max_timestamp(self, limit: Offset) -> tuple[int, int, int] | None:
        """(timestamp, offset, term) of the latest record below `limit`; of equals, the first."""
        newest = greatest_timestamp(self._chain.segments, self.start_offset, limit)
        return self.find_timestamp(newest, limit) if newest >= 0 else None

    # --- reading by index

    def term_before(self, index: int) -> Term | None:
        """Of the entry that ends at this boundary; -1 before the first of all; None if that is not known here."""
        if not self.first_index <= index <= self.end_index:
            return None
        return Term(self._state.controls.term_before(index))

    def floor(self, index: int) -> Index:
        """The greatest boundary that is not after `index`, and in the log."""
        if index >= self.end_index:
            return self.end_index
        if index <= self.first_index:
            return self.first_index
        return Index(place_of(self._chain, self._state.controls, index).boundary)

    def end_of_term_index(self, term: int) -> Index:
        """Where the last entry whose term is not after `term` ends; the log's beginning if there is none."""
        end = self._state.controls.end_of_term(term, self.first_index, self.end_index)
        return Index(max(end, self.first_index))

    def read_entries(self, index: int, max_bytes: int) -> tuple[bytes, Index]:
        """Whole entries from this boundary on, control entries included, and the index after them. At least one, if
        there is one; else up to `max_bytes`, and none from the next segment. (b"", index) at the log's end."""
        if not self.first_index <= index <= self.end_index:
            raise ValueError(f"{self.path} holds {self.first_index} to {self.end_index}, not index {index}")
        if index == self.end_index:
            return b"", Index(index)
        data, end = read_entries(self._chain, self._state.controls, index, max_bytes)
        return data, Index(end)

    def control_payloads(self) -> list[tuple[Index, bytes]]:
        """(index, payload) of each `append_control` that is still here. What was the newest in the deleted prefix is
        in `prefix_config`."""
        return [(Index(index), payload) for index, payload in self._state.controls.own_payloads()]

    @property
    def prefix_config(self) -> bytes:
        """The payload of the last `append_control` before `first_index`; b"": there was none."""
        return self._state.controls.gone_config

    # --- prefix and reset

    def prefix(self) -> Prefix:
        """What a replica has to know that cannot have the entries before `first_index`. Reads a snapshot: rare."""
        controls, first_index = self._state.controls, self.first_index
        offset = first_index - controls.gone
        return Prefix(
            offset=offset,
            index=first_index,
            term=controls.gone_term,
            start_offset=max(self.start_offset, offset),
            producers=self._producers_before(offset).rows(),
            gaps_below=self.cleaned_offset,
            config=controls.gone_config,
        )

    def _producers_before(self, offset: int) -> ProducerStates:
        """What producers sent in the deleted prefix."""
        if not self._chain.segments:
            return ProducerStates()
        told, is_all = replay_producers(self._disk, self.path, self._chain.segments[:1], offset)
        if not is_all:
            told.restore(self.producers.rows())
            told.truncate(offset, ProducerStates())
        return told

    def reset(self, prefix: Prefix) -> None:
        """Forgets this log, whatever it holds, and begins an empty one behind `prefix`, durably: some flushes long.

        Raises ValueError for a prefix that cannot be, DiskFull when there is no room to begin: then all is as it was.
        """
        prefix.validate()
        self._check_writable()
        self._disk.make_dir(self.path)
        self._disk.sync_dir(self._parent)
        announce_reset(self._disk, self.path, prefix)
        self._upkeep.cancel()
        if self._plan is not None:
            self._plan.cancel()
        self._generation += 1
        for segment in [*self._chain.segments, *self._upkeep.garbage]:
            segment.close()
        try:
            finish_reset(self._disk, self.path)
            recovery = Recovery(self._disk, self.path, self.config.index_interval_bytes, repair=True)
            recovery.run()
        except StorageError as problem:
            # Opening it anew goes on where this ended.
            self.failed = problem
            raise
        self._adopt(recovery)
        self.commit_index = None if self.commit_index is None else Index(prefix.index)

    # --- opening and closing

    def _adopt(self, recovery: Recovery) -> None:
        self._state = recovery.state
        self._chain = SegmentChain(recovery.segments, recovery.state.controls.offsets)
        self._flushing = Flushing(self._disk, self._end_point(), self.end_index)
        upkeep = self._upkeep = Upkeep(self._disk, self.path, recovery.checkpoint)
        upkeep.garbage = recovery.leftovers
        upkeep.unsaved = recovery.unsaved
        upkeep.captured_at = self._appended_bytes if recovery.scanned_bytes == 0 else self._appended_bytes - 1
        if self._chain.active is not None:
            set_limits(self._chain.active, self.config, self.path)
            self._chain.active.open_for_appending()

    def _settle(self, recovery: Recovery) -> None:
        """What was read above the flushed line may be in memory only. From now on it counts as flushed: so it
        must be."""
        unflushed = recovery.unflushed()
        for segment in unflushed:
            segment.file.flush()
        if unflushed:
            self._disk.sync_dir(self.path)
            self._disk.sync_dir(self._parent)
        known = recovery.checkpoint.facts
        if max(known.cleaned_offset, known.gaps_below) > self.end_offset:
            recovery.checkpoint.save_durably(self._facts())
        # What of the control entries at the start is committed is not known yet.
        self._drop_prefix(limit=self.index_at(self.start_offset))
        if self._chain.active is not None and self._chain.active.size == 0:
            # A process that died may have made the file and not flushed its name: the first flush of what will be in
            # it must do so.
            self._flushing.mark_folder(self.path)
            self._flushing.mark_folder(self._parent)
        self._chain.let_cool()
        if self._chain.segments and not self._disk.volatile and recovery.scanned_bytes:
            self._upkeep.save_checkpoint(self._facts())

    def reconfigure(self, config: TopicConfig) -> None:
        """The new settings hold from the next batch on."""
        self.config = config
        active = self._chain.active
        if active is not None:
            set_limits(active, config, self.path)

    def close(self) -> None:
        """A clean end: all is flushed, and the next opening has nothing to scan. No thread may work on this log."""
        try:
            if self.failed is None:
                self._close_cleanly()
        finally:
            for segment in [*self._chain.segments, *self._upkeep.garbage]:
                segment.close()

    def _close_cleanly(self) -> None:
        ticket = self.begin_flush()
        if ticket is not None:
            try:
                ticket.run()
            except StorageError as problem:
                self.finish_flush(ticket, problem)
                raise
            self.finish_flush(ticket)
        upkeep, chain = self._upkeep, self._chain
        upkeep.settle(chain.active)
        if chain.active is None:
            return
        if not upkeep.is_saved(chain.active, self._appended_bytes):
            upkeep.save_now(self._capture(), chain.segments)
        upkeep.checkpoint.save_both(self._facts())

    def abandon(self, why: str) -> None:
        """Lets go of the files as they are: whatever is written or flushed from now on is refused."""
        self._upkeep.cancel()
        if self._plan is not None:
            self._plan.cancel()
        self._generation += 1
        self.failed = StorageError(f"{self.path} {why}")
        for segment in [*self._chain.segments, *self._upkeep.garbage]:
            segment.close()

    def destroy(self) -> Callable[[], None]:
        """Takes the log away: its name is free at once. Returns the slow part, the removal, for a thread."""
        self.abandon("was deleted")
        aside = self._rename_aside()
        return lambda: self._remove_for_good(aside)

    def _rename_aside(self) -> str:
        number = 0
        while self._disk.exists(aside := f"{self.path}.{number}{DELETED_SUFFIX}"):
            number += 1
        if self._disk.exists(self.path):
            self._disk.rename(self.path, aside)
        return aside

    def _remove_for_good(self, aside: str) -> None:
        """In a thread. The new name is made durable first: what a crash leaves must not look like a log."""
        self._disk.sync_dir(self._parent)
        self._disk.remove_tree(aside)
