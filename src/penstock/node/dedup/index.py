"""The message ids of a partition and their offsets, in memory, for `dedup.window.ms`. No clock, no I/O.

Ids come in the order of the log, so an older id also has a lower offset. That makes forgetting cheap: all ids below
one offset, `_first_kept`, are forgotten, and later calls remove their entries a few at a time. A partition that was
idle for hours forgets a million ids without stopping the event loop.

Invariants:
 1. An id that was noted at time t is found until t + window, unless the limit removed it, and no longer than
    t + window + window / RUNS: ids that came at about the same time share one time, the latest of them.
 2. An id is found at the first offset that it was noted with since it was last forgotten.
 3. There are never more than `max_ids` ids, and no more than about RUNS times.

Memory per id, measured with a million of them: 155 bytes while they come in, 197 when as many have left again (64 for
the digest, 32 for the offset, 16 in the two deques, the rest in the dict).
"""

from collections import deque
from collections.abc import Iterable

from penstock.node.dedup.message_ids import MessageId

RUNS = 1024
"""A window is divided into this many parts."""
SWEEP = 64
"""Forgotten entries that each call removes, beside one for each that it adds: so more are removed than added."""


class _Run:
    """Ids that came at about the same time."""

    __slots__ = ("began_ms", "ended_ms", "next_offset")

    def __init__(self, now_ms: int) -> None:
        self.began_ms = now_ms
        self.ended_ms = now_ms
        self.next_offset = 0
        """The first offset after them."""


class DedupIndex:
    """The message ids of one partition."""

    __slots__ = (
        "_digests",
        "_entry_offsets",
        "_first_kept",
        "_now_ms",
        "_offsets",
        "_runs",
        "limited",
        "max_ids",
    )

    def __init__(self, max_ids: int) -> None:
        self.max_ids = max_ids
        self.limited = False
        """Whether ids were ever forgotten because there were too many."""
        self._offsets: dict[bytes, int] = {}
        self._digests: deque[bytes] = deque()
        self._entry_offsets: deque[int] = deque()
        """Digests and their offsets, in the order in which they came. One that was forgotten and came again may be
        there twice; the later one is in `_offsets`."""
        self._runs: deque[_Run] = deque()
        self._first_kept = 0
        """All ids at offsets below are forgotten. The limit removes entries at once."""
        self._now_ms = 0

    def __len__(self) -> int:
        """Entries in memory, forgotten ones included that are not removed yet."""
        return len(self._entry_offsets)

    def find(self, digest: bytes) -> int | None:
        """The offset of the record with this id, if it is remembered."""
        offset = self._offsets.get(digest)
        return offset if offset is not None and offset >= self._first_kept else None

    def firsts(self, ids: Iterable[MessageId]) -> dict[int, int | None]:
        """The deltas of duplicate records in a batch, and the offsets of their first copies; None: earlier in the same
        batch."""
        offsets, first_kept = self._offsets, self._first_kept
        firsts: dict[int, int | None] = {}
        seen: set[bytes] = set()
        for delta, digest in ids:
            offset = offsets.get(digest, -1)
            if offset >= first_kept:
                firsts[delta] = offset
            elif digest in seen:
                firsts[delta] = None
            else:
                seen.add(digest)
        return firsts

    def expire(self, now_ms: int, window_ms: int) -> None:
        """To be called before `find`. A clock that goes back makes nothing older."""
        self._now_ms = max(self._now_ms, now_ms)
        runs = self._runs
        while runs and runs[0].ended_ms + window_ms <= self._now_ms:
            self._first_kept = max(self._first_kept, runs.popleft().next_offset)
        self._sweep(SWEEP)

    def note(self, now_ms: int, window_ms: int, base_offset: int, ids: Iterable[MessageId]) -> None:
        """A batch was stored at `base_offset`, after all that were noted before. Known ids stay as they are."""
        self._now_ms = max(self._now_ms, now_ms)
        offsets, first_kept, known = self._offsets, self._first_kept, len(self._entry_offsets)
        last = -1
        for delta, digest in ids:
            last = base_offset + delta
            if offsets.get(digest, -1) < first_kept:
                offsets[digest] = last
                self._digests.append(digest)
                self._entry_offsets.append(last)
        if last >= 0:
            self._extend_run(window_ms, last + 1)
            self._sweep(len(self._entry_offsets) - known)
            self._limit()

    def _extend_run(self, window_ms: int, next_offset: int) -> None:
        run = self._runs[-1] if self._runs else None
        if run is None or self._now_ms > run.began_ms + window_ms // RUNS:
            run = _Run(self._now_ms)
            self._runs.append(run)
        run.ended_ms = self._now_ms
        run.next_offset = next_offset

    def _limit(self) -> None:
        while len(self._entry_offsets) > self.max_ids:
            self.limited = self.limited or self._entry_offsets[0] >= self._first_kept
            self._drop()

    def _sweep(self, most: int) -> None:
        places = self._entry_offsets
        while most > 0 and places and places[0] < self._first_kept:
            self._drop()
            most -= 1

    def _drop(self) -> None:
        digest, offset = self._digests.popleft(), self._entry_offsets.popleft()
        if self._offsets[digest] == offset:
            del self._offsets[digest]
