"""What a log writes about itself: its checkpoint at once, indexes and snapshots in the background.

Nothing here is needed for an append to be durable, and all of it can be late. It decides what recovery has to read (a
snapshot every SNAPSHOT_INTERVAL_BYTES), what it can still prove (a checkpoint every CHECKPOINT_INTERVAL_BYTES), and
when the files of a deleted prefix may go: not before a snapshot on the disk has made them dispensable.
"""

from collections.abc import Callable
from contextlib import suppress

from penstock.errors import StorageError
from penstock.log.checkpoint import Checkpoint, CheckpointFacts
from penstock.log.chores import Chores
from penstock.log.disk import Disk
from penstock.log.flush import Capture
from penstock.log.segment import Segment
from penstock.log.snapshot import Snapshot

CHECKPOINT_INTERVAL_BYTES = 1024 * 1024
"""How much may be flushed before the checkpoint says so: the window in which rot passes for a torn tail."""
SNAPSHOT_INTERVAL_BYTES = 64 * 1024 * 1024
"""What recovery has to read at most, about: a tenth of a second."""
NO_SNAPSHOT = -1
NEVER = -(2**62)


class Upkeep:
    """One log's checkpoint, and its files that wait to be written or removed."""

    def __init__(self, disk: Disk, folder: str, checkpoint: Checkpoint) -> None:
        self._disk = disk
        self._folder = folder
        self._capture: Capture | None = None
        self._chores: Chores | None = None
        self._is_full = False
        """There was no room for the last snapshot."""
        self._checkpointed_at = 0
        self.captured_at = NEVER
        """Bytes appended in this process when the last snapshot was taken."""
        self.checkpoint = checkpoint
        self.garbage: list[Segment] = []
        """Segments that are no longer part of the log, and still on the disk."""
        self.unsaved: list[Segment] = []
        """Segments whose index files do not say what they should; the active one may be among them."""
        self.snapshot_base = NO_SNAPSHOT
        """The segment of the newest snapshot that this process has flushed. Segments before it are dispensable."""

    # --- checkpoint

    def save_checkpoint(self, facts: CheckpointFacts) -> None:
        """Not flushed: an older one stays true, and has to do when this one cannot be written."""
        with suppress(StorageError):
            self.checkpoint.save(facts)

    def save_checkpoint_if_changed(self, facts: CheckpointFacts) -> None:
        if facts != self.checkpoint.facts:
            self.save_checkpoint(facts)

    def save_checkpoint_when_due(self, facts: Callable[[], CheckpointFacts], appended_bytes: int) -> None:
        if appended_bytes - self._checkpointed_at >= CHECKPOINT_INTERVAL_BYTES:
            self._checkpointed_at = appended_bytes
            self.save_checkpoint(facts())

    # --- captures

    def want_snapshot(self) -> None:
        """Whatever the interval says: something waits for it."""
        self.captured_at = NEVER

    def distrust_snapshots(self) -> None:
        """What was truncated may have been in them."""
        self.captured_at = NEVER
        self.snapshot_base = NO_SNAPSHOT

    def is_capture_due(self, active: Segment | None, appended_bytes: int) -> bool:
        if self._disk.volatile or active is None:
            return False
        if appended_bytes - self.captured_at >= SNAPSHOT_INTERVAL_BYTES or self.garbage:
            return True
        return any(segment is not active for segment in self.unsaved)

    def capture(self, snapshot: Snapshot, active: Segment, appended_bytes: int) -> Capture:
        """State and indexes as of now. To be given back with `hold` once all before it is flushed."""
        self.captured_at = appended_bytes
        sealed = [segment for segment in self.unsaved if segment is not active]
        return Capture(snapshot, [*sealed, active])

    def hold(self, capture: Capture | None) -> None:
        if capture is not None:
            self._capture = capture

    def is_holding(self) -> bool:
        return self._capture is not None

    def is_saved(self, active: Segment, appended_bytes: int) -> bool:
        """Whether the newest snapshot on the disk is of now, in a segment that will stay, and all indexes are there."""
        if self.captured_at != appended_bytes or self._capture is not None or self.garbage:
            return False
        return all(segment is active for segment in self.unsaved)

    # --- chores

    def removable(self) -> list[Segment]:
        """The oldest of the garbage: what a flushed snapshot has made dispensable; all, if there is no room for one."""
        if self._disk.volatile or self._is_full:
            return list(self.garbage)
        return [segment for segment in self.garbage if segment.base_offset < self.snapshot_base]

    def take_chores(self, segments: list[Segment]) -> Chores | None:
        """What can be done now by a thread. `segments` are those of the log: no index of another may be written."""
        garbage = self.removable()
        makes_room = self._is_full and bool(garbage)
        capture, self._capture = (None if makes_room else self._capture), None
        if capture is not None:
            capture.keep(set(segments))
        if capture is None and not garbage:
            return None
        staying = [*self.garbage[len(garbage) :], *segments]
        self._chores = Chores(
            self._disk,
            self._folder,
            capture=capture,
            garbage=garbage,
            checkpoint=self.checkpoint,
            kept_bases=frozenset(segment.base_offset for segment in staying),
            forget_below=staying[0].base_offset if makes_room else None,
        )
        return self._chores

    def settle(self, active: Segment | None) -> bool:
        """Enters what the last chores did; False if they still run."""
        chores = self._chores
        if chores is None:
            return True
        if not chores.done:
            return False
        self._chores = None
        self._is_full = chores.is_full
        if chores.succeeded:
            for segment in chores.garbage:
                segment.close()
            removed = frozenset(chores.garbage)  # thousands, where small segments go all at once
            self.garbage = [segment for segment in self.garbage if segment not in removed]
            if chores.capture is not None:
                self._enter(chores.capture, active)
        return True

    def _enter(self, capture: Capture, active: Segment | None) -> None:
        self.snapshot_base = capture.snapshot.base_offset
        for segment, saved in capture.base_snapshots:
            if segment.base_snapshot is saved:
                segment.base_snapshot = None
        for segment, (head, _) in zip(capture.segments, capture.indexes, strict=True):
            if segment is not active and segment.head() == head:
                segment.index_saved = True
                self.forget([segment])

    def save_now(self, capture: Capture, segments: list[Segment]) -> None:
        """On the loop, when the log is closed. Not flushed: if it gets lost, the next opening scans a bit, no more."""
        chores = Chores(
            self._disk,
            self._folder,
            capture=capture,
            garbage=(),
            checkpoint=self.checkpoint,
            kept_bases=frozenset(segment.base_offset for segment in [*self.garbage, *segments]),
            durable=False,
        )
        chores()

    def cancel(self) -> None:
        """Returns when no chores run: what they were about to write is no longer true."""
        if self._chores is not None:
            self._chores.cancel()
            self._chores = None
        self._capture = None

    def must_save(self, segment: Segment) -> None:
        """It was sealed, or what its index files say is no longer so."""
        segment.load_index()
        segment.index_saved = False
        if segment not in self.unsaved:
            self.unsaved.append(segment)

    def forget(self, segments: list[Segment]) -> None:
        """Their indexes need no saving."""
        gone = frozenset(segments)
        self.unsaved = [other for other in self.unsaved if other not in gone]
