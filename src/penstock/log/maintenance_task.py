"""Background work on a log's files, done by a thread: save indexes and a snapshot; in a later task, remove segments.

Only a snapshot keeps what a removed segment contributed to the state of producers and terms, and only the checkpoint
tells that it was removed on purpose. So segments are removed by a task that follows the one that flushed the snapshot,
and this task flushes the checkpoint before it removes the first file. Where there is no space for a snapshot, removal
frees space, and happens without one.
"""

import threading
from collections.abc import Sequence

from penstock.errors import DiskFull
from penstock.log.capture import Capture
from penstock.log.checkpoint import Checkpoint
from penstock.log.disk import Disk
from penstock.log.layout import INDEX_SUFFIX, SNAPSHOT_SUFFIX, TIME_INDEX_SUFFIX, offsets_of, sidecar
from penstock.log.segment import Segment
from penstock.log.segment_files import remove_segment
from penstock.log.snapshot import (
    KEPT_SNAPSHOTS,
    MAX_SNAPSHOTS,
    remove_snapshots_in_segments_before,
    snapshot_path,
)


class MaintenanceTask:
    """Call it once, in a thread. Everything it needs was captured on the event loop."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        *,
        capture: Capture | None,
        removable: Sequence[Segment],
        checkpoint: Checkpoint,
        kept_bases: frozenset[int] = frozenset(),
        durable: bool = True,
        forget_below: int | None = None,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._checkpoint = checkpoint
        self._durable = durable
        self._kept_bases = kept_bases
        """Base offsets of the segments that are still there: their base snapshots stay."""
        self._forget_below = forget_below
        """There is no space for a snapshot: existing ones in segments before this offset are removed too."""
        self._lock = threading.Lock()
        self._cancelled = False
        self.capture = capture
        self.removable = removable
        self.done = False
        self.succeeded = False
        self.is_full = False
        """There was no space for what had to be saved."""

    def __call__(self) -> None:
        try:
            for step in (
                self._remove_segments,
                self._save_indexes,
                self._save_base_snapshots,
                self._save_snapshot,
            ):
                with self._lock:
                    if self._cancelled:
                        return
                    step()
            self.succeeded = True
        except DiskFull:
            self.is_full = True
            raise
        finally:
            self.done = True

    def cancel(self) -> None:
        """Returns when no step is running and none will: a snapshot of truncated entries must not appear later."""
        with self._lock:
            self._cancelled = True

    def _remove_segments(self) -> None:
        if not self.removable:
            return
        if not self._disk.volatile:
            self._checkpoint.flush()
            if self._forget_below is not None:
                # With an old one, recovery would look for segments that are about to be removed.
                remove_snapshots_in_segments_before(self._disk, self._folder, self._forget_below)
            self._disk.sync_dir(self._folder)
        for segment in self.removable:
            remove_segment(self._disk, self._folder, segment.base_offset)

    def _save_indexes(self) -> None:
        for head, index in self.capture.indexes if self.capture is not None else ():
            offsets, times = index.encode(head)
            for suffix, data in ((INDEX_SUFFIX, offsets), (TIME_INDEX_SUFFIX, times)):
                path = sidecar(self._folder, head.base_offset, suffix)
                self._disk.write_file_atomic(path, data, durable=False)

    def _save_base_snapshots(self) -> None:
        """Always flushed: once they are on the disk, segments before them may be removed."""
        for _, snapshot in self.capture.base_snapshots if self.capture is not None else ():
            self._disk.write_file_atomic(snapshot_path(self._folder, snapshot.offset), snapshot.encode())

    def _save_snapshot(self) -> None:
        if self.capture is None:
            return
        snapshot = self.capture.snapshot
        older = [offset for offset in self._snapshots() if offset not in self._kept_bases]
        # One that is not flushed must not replace one that may have been.
        durable = self._durable or len(older) >= MAX_SNAPSHOTS or snapshot.offset in self._snapshots()
        path = snapshot_path(self._folder, snapshot.offset)
        self._disk.write_file_atomic(path, snapshot.encode(), durable=durable)
        if durable:
            kept = [offset for offset in [*older, snapshot.offset] if offset <= snapshot.offset]
            kept = sorted(set(kept))[-KEPT_SNAPSHOTS:]
            for offset in older:
                if offset not in kept:
                    self._disk.remove(snapshot_path(self._folder, offset))

    def _snapshots(self) -> list[int]:
        return offsets_of(self._disk.list_dir(self._folder), SNAPSHOT_SUFFIX)
