"""When a log saves its checkpoint, indexes and snapshots, and when it removes deleted segments.

An append is durable without any of this, and all of it may be late. It decides how much recovery has to read (a
snapshot every SNAPSHOT_INTERVAL_BYTES), how much recovery can still prove (a checkpoint every
CHECKPOINT_INTERVAL_BYTES), and when the files of a deleted prefix may go: not before a flushed snapshot has made them
dispensable.
"""

from penstock.log.capture import Capture
from penstock.log.log_files import LogFiles
from penstock.log.maintenance_task import MaintenanceTask
from penstock.log.retention import Retention
from penstock.log.segment import Segment

CHECKPOINT_INTERVAL_BYTES = 1024 * 1024
"""How much may be flushed before the checkpoint says so: within it, recovery takes bit rot for a torn tail."""
SNAPSHOT_INTERVAL_BYTES = 64 * 1024 * 1024
"""About how much recovery has to read at most: a tenth of a second."""
NO_SNAPSHOT = -1
NEVER = -(2**62)


class Maintenance:
    """Schedules the background work on one log's files."""

    __slots__ = (
        "_capture",
        "_captured_at",
        "_checkpointed_at",
        "_files",
        "_is_full",
        "_retention",
        "_task",
        "snapshot_base",
    )

    def __init__(self, files: LogFiles, retention: Retention) -> None:
        self._files = files
        self._retention = retention
        self.reset(NEVER)

    def reset(self, captured_at: int) -> None:
        """The log was opened, or has been reset."""
        self._capture: Capture | None = None
        """The snapshot that the next task writes."""
        self._task: MaintenanceTask | None = None
        self._is_full = False
        """There was no space for the last snapshot."""
        self._checkpointed_at = 0
        self._captured_at = captured_at
        """Bytes appended in this process when the last snapshot was taken."""
        self.snapshot_base = NO_SNAPSHOT
        """The segment of the newest snapshot that this process has flushed. Segments before it are dispensable."""

    # --- checkpoint

    def flushed(self, appended_bytes: int) -> None:
        """A flush of everything up to this count of appended bytes has returned."""
        if appended_bytes - self._checkpointed_at >= CHECKPOINT_INTERVAL_BYTES:
            self._checkpointed_at = appended_bytes
            self._files.save_checkpoint()

    # --- captures

    def want_snapshot(self) -> None:
        """Takes the next snapshot without waiting for the interval: compaction needs it."""
        self._captured_at = NEVER

    def distrust_snapshots(self) -> None:
        """A truncation may have removed entries that the last snapshots cover."""
        self._captured_at = NEVER
        self.snapshot_base = NO_SNAPSHOT

    def is_capture_due(self) -> bool:
        files = self._files
        active = files.segments.active
        if files.disk.volatile or active is None:
            return False
        if files.appended_bytes - self._captured_at >= SNAPSHOT_INTERVAL_BYTES or files.deleted:
            return True
        return any(segment is not active for segment in files.unsaved)

    def capture(self) -> Capture:
        """State and indexes as of now. The caller passes it to `hold` once everything before it is flushed."""
        files = self._files
        active = files.segments.active
        assert active is not None
        self._captured_at = files.appended_bytes
        snapshot = files.snapshot_at(files.end_point(), active.control_count)
        sealed = [segment for segment in files.unsaved if segment is not active]
        return Capture(snapshot, [*sealed, active])

    def hold(self, capture: Capture | None) -> None:
        """The next task writes it."""
        if capture is not None:
            self._capture = capture

    # --- tasks

    def next_task(self) -> MaintenanceTask | None:
        """Work for a thread, if there is any: indexes and a snapshot to save, deleted segments to remove.

        The owner asks every few seconds; the checkpoint is brought up to date on the same occasion. None while the last
        task has not ended.
        """
        files = self._files
        if not self._finish_task() or files.failed is not None or files.segments.active is None:
            return None
        self._retention.drop_segments()
        files.segments.close_unused()
        removable = len(self._removable())
        if removable:
            self._announce_removal(files.deleted[removable:])
        if not files.disk.volatile and files.checkpoint_facts() != files.checkpoint.facts:
            files.save_checkpoint()
        if files.flushed.point == files.end_point() and self._capture is None and self.is_capture_due():
            self._capture = self.capture()
        return self._make_task()

    def _announce_removal(self, staying: list[Segment]) -> None:
        """Enters the removal into the checkpoint, which the task flushes before the first file goes: recovery must not
        take the removed segments for lost."""
        state = self._files.state
        before = staying[0].removed_before if staying else None
        state.removed = before or state.removed_before(self._files.segments.bases[0])

    def _removable(self) -> list[Segment]:
        """The oldest deleted segments: those that a flushed snapshot has made dispensable, or all of them if there is
        no space for a snapshot."""
        deleted = self._files.deleted
        if self._files.disk.volatile or self._is_full:
            return list(deleted)
        return [segment for segment in deleted if segment.base_offset < self.snapshot_base]

    def _make_task(self) -> MaintenanceTask | None:
        files = self._files
        removable = self._removable()
        frees_space = self._is_full and bool(removable)
        capture, self._capture = (None if frees_space else self._capture), None
        if capture is not None:
            capture.keep(set(files.segments.segments))
        if capture is None and not removable:
            return None
        staying = [*files.deleted[len(removable) :], *files.segments.segments]
        self._task = MaintenanceTask(
            files.disk,
            files.path,
            capture=capture,
            removable=removable,
            checkpoint=files.checkpoint,
            kept_bases=frozenset(segment.base_offset for segment in staying),
            forget_below=staying[0].base_offset if frees_space else None,
        )
        return self._task

    def _finish_task(self) -> bool:
        """Enters the result of the last task; False if it still runs."""
        task, files = self._task, self._files
        if task is None:
            return True
        if not task.done:
            return False
        self._task = None
        self._is_full = task.is_full
        if task.succeeded:
            for segment in task.removable:
                segment.close()
            removed = frozenset(task.removable)  # thousands, where small segments expire all at once
            files.deleted = [segment for segment in files.deleted if segment not in removed]
            if task.capture is not None:
                self._enter(task.capture)
        return True

    def _enter(self, capture: Capture) -> None:
        files = self._files
        self.snapshot_base = capture.snapshot.base_offset
        for segment, saved in capture.base_snapshots:
            if segment.base_snapshot is saved:
                segment.base_snapshot = None
        for segment, (head, _) in zip(capture.segments, capture.indexes, strict=True):
            if segment is not files.segments.active and segment.head() == head:
                segment.index_saved = True
                files.forget_unsaved([segment])

    def cancel(self) -> None:
        """Returns when no task runs: what it was about to write is no longer true."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._capture = None

    # --- closing

    def save_at_close(self) -> None:
        """On the loop, when the log is closed and flushed. The snapshot is not flushed: if it gets lost, the next
        opening scans a few bytes more."""
        files = self._files
        self._finish_task()
        if files.segments.active is None:
            return
        if not self._is_saved(files.segments.active):
            staying = [*files.deleted, *files.segments.segments]
            task = MaintenanceTask(
                files.disk,
                files.path,
                capture=self.capture(),
                removable=(),
                checkpoint=files.checkpoint,
                kept_bases=frozenset(segment.base_offset for segment in staying),
                durable=False,
            )
            task()
        files.checkpoint.save_both(files.checkpoint_facts())

    def _is_saved(self, active: Segment) -> bool:
        """Whether the newest snapshot on the disk is of now, in a segment that will stay, and all indexes are there."""
        files = self._files
        if self._captured_at != files.appended_bytes or self._capture is not None or files.deleted:
            return False
        return all(segment is active for segment in files.unsaved)
