"""Work on files that nobody waits for, done by a thread: save indexes and a snapshot, then remove what has
expired.

The order is the point. What a removed segment contributed to the state of producers and terms survives only
in a snapshot, and that it was removed on purpose only in the checkpoint; so both are on the disk before it
goes.
"""

import threading
from collections.abc import Callable, Sequence

from penstock.errors import DiskFull
from penstock.log.checkpoint import Checkpoint
from penstock.log.disk import Disk
from penstock.log.flush import Capture
from penstock.log.layout import INDEX_SUFFIX, SNAPSHOT_SUFFIX, TIME_INDEX_SUFFIX, offsets_of
from penstock.log.recovery import remove_segment
from penstock.log.segment import Segment
from penstock.log.snapshot import KEPT_SNAPSHOTS, Snapshot, snapshot_path


class Chores:
    """Call it once, in a thread. Everything it needs was captured on the event loop."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        *,
        capture: Capture | None,
        garbage: Sequence[Segment],
        checkpoint: Checkpoint,
        durable: bool = True,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._checkpoint = checkpoint
        self._durable = durable
        self._lock = threading.Lock()
        self._cancelled = False
        self.capture = capture
        self.garbage = garbage
        self.done = False
        self.saved = False
        """Indexes and snapshot are on the disk."""
        self.succeeded = False

    def __call__(self) -> None:
        try:
            self.saved = self._step(self._save)
            self.succeeded = self._step(self._remove_garbage)
        finally:
            self.done = True

    def _step(self, step: Callable[[], bool]) -> bool:
        with self._lock:
            return not self._cancelled and step()

    def cancel(self) -> None:
        """Returns when no step is running and none will: a snapshot of what is truncated must not appear
        later."""
        with self._lock:
            self._cancelled = True

    def _save(self) -> bool:
        """Whether all was saved. No space is no reason to keep what is to be removed: that would never end."""
        if self.capture is None:
            return False
        try:
            self._save_indexes(self.capture)
            self._save_snapshot(self.capture.snapshot)
        except DiskFull:
            if not self.garbage:
                raise
            self._remove_snapshots()
            return False
        return True

    def _save_indexes(self, capture: Capture) -> None:
        for head, index in capture.indexes:
            offsets, times = index.encode(head)
            for suffix, data in ((INDEX_SUFFIX, offsets), (TIME_INDEX_SUFFIX, times)):
                path = Segment.sidecar(self._folder, head.base_offset, suffix)
                self._disk.write_file_atomic(path, data, durable=False)

    def _save_snapshot(self, snapshot: Snapshot) -> None:
        path = snapshot_path(self._folder, snapshot.offset)
        self._disk.write_file_atomic(path, snapshot.encode(), durable=self._durable)
        offsets = offsets_of(self._disk.list_dir(self._folder), SNAPSHOT_SUFFIX)
        older = [offset for offset in offsets if offset <= snapshot.offset]
        for offset in older[:-KEPT_SNAPSHOTS]:
            self._disk.remove(snapshot_path(self._folder, offset))

    def _remove_snapshots(self) -> None:
        """An old one would have recovery look for segments that are about to go."""
        for offset in offsets_of(self._disk.list_dir(self._folder), SNAPSHOT_SUFFIX):
            self._disk.remove(snapshot_path(self._folder, offset))

    def _remove_garbage(self) -> bool:
        if self.garbage and not self._disk.volatile:
            self._checkpoint.flush()
            self._disk.sync_dir(self._folder)
        for segment in self.garbage:
            remove_segment(self._disk, self._folder, segment.base_offset)
        return True
