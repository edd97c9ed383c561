"""One partition's log: append, read, flush, truncate, delete the prefix. `layout` has its bytes and its recovery.

`Log` opens, reads, resets and closes. Objects over the same `LogFiles` do the rest:

    log.writer       append, append_entries, begin_term, append_control
    log.flushes      begin, finish
    log.truncation   to_index, to_offset
    log.retention    delete_prefix, expired, apply
    log.compactor    plan, finish
    log.scrubber     plan, finish, check_entries
    log.maintenance  next_task: indexes and snapshots to save, files to remove
    log.entries      the log of a Raft group: entries, terms and positions by Raft's index

Invariants:
 1. start_offset <= flushed_offset <= end_offset. All below flushed_offset survives a power cut.
 2. Offsets rise by one, except where compaction has been. Each term begins with a control entry.
 3. An append writes whole batches with one call, or nothing: a write that fails half-way is cut back.
 4. After a failed flush it is unknown what is on the disk: the log takes no more appends until it is reopened and has
    read what is there. A full disk is not such a failure: the next append tries again.
 5. An empty log that begins at 0 has no folder: the first append makes it.
 6. first_index <= commit_index, whatever is deleted; flushed_index <= end_index, whatever is truncated.
 7. The state of producers and transactions follows from the batches (`producers`, `transactions`), also after a crash,
    a truncation or the deletion of the prefix. An aborted transaction is in the index as long as a record of it is in
    the log, and no longer than its marker is.
"""

from collections.abc import Callable
from typing import Self

from penstock.config import TopicConfig
from penstock.errors import CorruptLog, ErrorCode, KafkaError, StorageError
from penstock.log.cold_range import ColdRange
from penstock.log.compactor import Compactor
from penstock.log.disk import Disk
from penstock.log.entry_view import EntryView
from penstock.log.flush import Flushes
from penstock.log.flush_state import FlushState
from penstock.log.layout import DELETED_SUFFIX, name_aside
from penstock.log.log_files import LogFiles
from penstock.log.maintenance import Maintenance
from penstock.log.producers import ProducerStates
from penstock.log.recovery import Recovery
from penstock.log.replay import replay_producers
from penstock.log.reset import Prefix, announce_reset, finish_reset
from penstock.log.retention import Retention
from penstock.log.rolling import set_limits
from penstock.log.scrub import Scrubber
from penstock.log.segment import UNLIMITED
from penstock.log.segments import Segments
from penstock.log.timestamps import first_at_or_after, greatest_timestamp
from penstock.log.transactions import Transactions
from penstock.log.truncation import Truncation
from penstock.log.writer import LogWriter
from penstock.types import Index, Offset, Term


class Log:
    """A partition's log. Made by `Log.open`."""

    __slots__ = (
        "compactor",
        "cuts",
        "entries",
        "files",
        "flushes",
        "maintenance",
        "retention",
        "scrubber",
        "truncation",
        "writer",
    )

    def __init__(self, disk: Disk, path: str, config: TopicConfig) -> None:
        self.cuts: list[str] = []
        """The bytes that opening cut off, for the operator: they were written but never flushed, and torn by a
        crash."""
        files = self.files = LogFiles(disk, path, config)
        self.entries = EntryView(files)
        self.writer = LogWriter(files)
        self.retention = Retention(files)
        self.maintenance = Maintenance(files, self.retention)
        self.flushes = Flushes(files, self.maintenance)
        self.truncation = Truncation(files, self.maintenance)
        self.compactor = Compactor(files, self.maintenance)
        self.scrubber = Scrubber(files)

    @classmethod
    def open(cls, disk: Disk, path: str, config: TopicConfig, *, recover: bool = True) -> Self:
        """Reads what is there. Without `recover` nothing is changed: if something had to be cut, CorruptLog."""
        log = cls(disk, path, config)
        if disk.list_dir(path):
            recovery = Recovery(disk, path, config.index_interval_bytes, repair=recover)
            try:
                recovery.run()
                log._adopt(recovery)
                log.cuts = recovery.cuts
                if recover:
                    log._complete_recovery(recovery)
            except BaseException:
                recovery.close()
                raise
        return log

    # --- facts

    @property
    def path(self) -> str:
        return self.files.path

    @property
    def config(self) -> TopicConfig:
        return self.files.config

    @property
    def failed(self) -> StorageError | None:
        """Why the log takes no more appends."""
        return self.files.failed

    @property
    def start_offset(self) -> Offset:
        """The first offset that can be read."""
        return self.files.state.start_offset

    @property
    def end_offset(self) -> Offset:
        """The offset that the next record gets."""
        return self.files.state.end_offset

    @property
    def flushed_offset(self) -> Offset:
        return Offset(self.files.flushed.point.offset)

    @property
    def size_bytes(self) -> int:
        return self.files.segments.size_bytes

    @property
    def segment_count(self) -> int:
        return len(self.files.segments.segments)

    @property
    def producers(self) -> ProducerStates:
        return self.files.state.producers

    @property
    def transactions(self) -> Transactions:
        return self.files.state.transactions

    @property
    def cleaned_offset(self) -> Offset:
        """Below it, offsets may be missing: by compaction here, or in the log that the entries came from."""
        return Offset(max(self.files.state.cleaned_offset, self.files.state.gaps_below))

    def end_of_term(self, term: Term) -> tuple[Term, Offset]:
        """The last term not after `term` and where it ended, as OffsetForLeaderEpoch wants it; (-1, -1): unknown."""
        return self.files.state.terms.end_of(term, self.end_offset)

    def term_at(self, offset: Offset) -> Term:
        return self.files.state.terms.at(offset)

    # --- reading by offset

    def read(
        self,
        offset: Offset,
        max_bytes: int,
        *,
        limit: Offset,
        at_least_one: bool = True,
        first_max: int = UNLIMITED,
        is_checked: bool = False,
    ) -> bytes:
        """Whole batches from the one that holds `offset`, below `limit`, up to `max_bytes`.

        Stops at a segment's end and before a control entry: the next read continues behind it. `at_least_one` returns
        the first batch even if it is larger than `max_bytes`, but not if it is larger than `first_max`. b"" means that
        there is nothing below the limit, or not even the first batch may be returned. `is_checked`: batches are
        compared with their checksums, as `checked_read` says; CorruptLog if the first one is wrong.
        """
        files = self.files
        start_offset, end_offset = files.state.start_offset, files.state.end_offset
        if not start_offset <= offset <= end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{files.path} holds offsets {start_offset} to {end_offset}, not {offset}",
            )
        if limit > end_offset:
            limit = end_offset
        if offset >= limit:
            return b""
        return files.segments.read(offset, max_bytes, limit, first_max if at_least_one else 0, is_checked)

    def cold_range(self, offset: Offset, max_bytes: int) -> ColdRange | None:
        """The range for which a read of so many bytes would wait for the disk; None if it would not wait."""
        files = self.files
        if files.disk.volatile or not files.state.start_offset <= offset < files.state.end_offset:
            return None
        return files.segments.cold_range(offset, max_bytes)

    def batch_size(self, offset: Offset, limit: Offset) -> int:
        """The size of the batch with which a read would begin; 0 if there is nothing below the limit."""
        if not self.files.state.start_offset <= offset < min(limit, self.files.state.end_offset):
            return 0
        return self.files.segments.batch_size(offset, limit)

    def find_timestamp(self, timestamp: int, limit: Offset) -> tuple[int, int, int] | None:
        """(timestamp, offset, term) of the first record below `limit` that is not earlier than `timestamp`."""
        segments = self.files.segments
        found = first_at_or_after(segments.segments, timestamp, self.start_offset, limit)
        segments.close_unused()
        if found is None:
            return None
        return found.timestamp, found.offset, self.term_at(Offset(found.offset))

    def max_timestamp(self, limit: Offset) -> tuple[int, int, int] | None:
        """(timestamp, offset, term) of the latest record below `limit`; of equals, the first."""
        newest = greatest_timestamp(self.files.segments.segments, self.start_offset, limit)
        return self.find_timestamp(newest, limit) if newest >= 0 else None

    # --- prefix and reset

    def prefix(self) -> Prefix:
        """Facts for a replica that cannot get the entries before `first_index`. Reads a snapshot: rare."""
        controls, first_index = self.files.state.controls, self.files.first_index()
        offset = first_index - controls.gone
        producers = self._producers_before(offset)
        return Prefix(
            offset=offset,
            index=first_index,
            term=controls.gone_term,
            start_offset=max(self.start_offset, offset),
            producers=producers.rows(),
            gaps_below=self.cleaned_offset,
            config=controls.gone_config,
            transactions=producers.transaction_rows(with_aborted=False),
        )

    def _producers_before(self, offset: int) -> ProducerStates:
        """The producers' state as of the end of the deleted prefix."""
        segments = self.files.segments.segments
        if not segments:
            return ProducerStates()
        replayed, is_all = replay_producers(self.files.disk, self.path, segments[:1], offset)
        if not is_all:
            replayed.restore(self.producers.rows(), self.producers.transaction_rows())
            replayed.truncate(offset, ProducerStates())
        return replayed

    def reset(self, prefix: Prefix) -> None:
        """Discards this log, whatever it holds, and begins an empty one behind `prefix`, durably. Takes a few flushes.

        Raises ValueError for an impossible prefix, DiskFull when there is no space: then all is as it was.
        """
        prefix.validate()
        files, disk = self.files, self.files.disk
        files.check_writable()
        disk.make_dir(files.path)
        disk.sync_dir(files.parent)
        announce_reset(disk, files.path, prefix)
        self._stop_background_work()
        files.close()
        try:
            finish_reset(disk, files.path)
            recovery = Recovery(disk, files.path, files.config.index_interval_bytes, repair=True)
            recovery.run()
        except (StorageError, CorruptLog) as problem:
            files.change_failed(problem)  # the next opening completes it
            raise
        self._adopt(recovery)
        files.commit_index = None if files.commit_index is None else Index(prefix.index)

    def _stop_background_work(self) -> None:
        self.maintenance.cancel()
        self.compactor.cancel()
        self.files.generation += 1

    # --- opening and closing

    def _adopt(self, recovery: Recovery) -> None:
        files, state = self.files, recovery.state
        files.state = state
        files.segments = Segments(recovery.segments, state.controls.offsets, files.disk.open_files)
        files.flushed = FlushState(files.end_point(), state.end_index)
        files.recovered_index = state.end_index
        files.checkpoint = recovery.checkpoint
        files.deleted = recovery.deleted
        files.unsaved = recovery.unsaved
        appended = files.appended_bytes
        self.maintenance.reset(appended if recovery.scanned_bytes == 0 else appended - 1)
        if files.segments.active is not None:
            set_limits(files.segments.active, files.config, files.path)
            files.segments.active.load_index()

    def _complete_recovery(self, recovery: Recovery) -> None:
        """The names of files may be in memory only. From now on they count as flushed, so they are flushed here."""
        files = self.files
        if recovery.has_unflushed_names():
            files.disk.sync_dir(files.path)
            files.disk.sync_dir(files.parent)
        known = recovery.checkpoint.facts
        if max(known.cleaned_offset, known.gaps_below) > self.end_offset:
            files.save_checkpoint_durably()
        # It is not known yet which control entries at the start are committed: they stay.
        self.retention.drop_segments(limit=self.entries.index_at(self.start_offset))
        active = files.segments.active
        if active is not None and active.size == 0:
            # A process that died may have made the file and not flushed its name: the first flush of its content must.
            files.flushed.mark_folder(files.path)
            files.flushed.mark_folder(files.parent)
        files.segments.close_unused()
        if active is not None and not files.disk.volatile and recovery.scanned_bytes:
            files.save_checkpoint()

    def reconfigure(self, config: TopicConfig) -> None:
        """The new settings hold from the next batch on."""
        self.files.config = config
        active = self.files.segments.active
        if active is not None:
            set_limits(active, config, self.path)

    def close(self) -> None:
        """Flushes everything and saves a snapshot, so that the next opening scans nothing. No thread may work on this
        log."""
        try:
            if self.failed is None:
                self._close_cleanly()
        finally:
            self.files.close()

    def _close_cleanly(self) -> None:
        ticket = self.flushes.begin()
        if ticket is not None:
            try:
                ticket.run()
            except StorageError as problem:
                self.flushes.finish(ticket, problem)
                raise
            self.flushes.finish(ticket)
        self.maintenance.save_at_close()

    def abandon(self, why: str) -> None:
        """Closes the files as they are, and refuses every later write and flush."""
        self._stop_background_work()
        self.files.failed = StorageError(f"{self.path} {why}")
        self.files.close()

    def destroy(self) -> Callable[[], None]:
        """Deletes the log: its name is free at once. Returns the slow part, the removal, for a thread."""
        self.abandon("was deleted")
        aside = self._rename_aside()
        return lambda: self._remove_renamed(aside)

    def _rename_aside(self) -> str | None:
        """The new name; None if there are no files."""
        disk, number = self.files.disk, 0
        if not disk.exists(self.path):
            return None
        parent, _, folder = self.path.rpartition("/")
        while disk.exists(aside := f"{parent}/{name_aside(folder, f'.{number}{DELETED_SUFFIX}')}"):
            number += 1
        disk.rename(self.path, aside)
        return aside

    def _remove_renamed(self, aside: str | None) -> None:
        """Deletes the files, in a thread. The new name is made durable first: remains must not look like a log."""
        if aside is not None:
            self.files.disk.sync_dir(self.files.parent)
            self.files.disk.remove_tree(aside)
