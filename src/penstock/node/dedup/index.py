"""Which message ids a partition holds, and where: the memory behind `dedup.window.ms`. Takes facts, waits for nothing.

Ids come in the order of the log, so what is older also has the lower offset. That makes forgetting cheap: one offset,
the *floor*, divides what is forgotten from what is remembered, and the entries below it are removed a few at a time by
whoever comes next. A partition that was silent for hours forgets a million ids without stopping the event loop.

Invariants:
 1. An id that was noted at time t is found until t + window, unless the limit took it. It is found at the latest until
    t + window + window / RUNS: ids that came at about the same time share one time, the latest of them.
 2. An id is found at the first offset that it was noted with since it was last forgotten.
 3. There are never more than `max_ids` ids, and no more than about RUNS times.

Memory per id, measured with a million of them: 155 bytes while they come in, 197 when as many have left again (64 for
the digest, 32 for the offset, 16 in the two queues, the rest in the table).
"""

from collections import deque
from collections.abc import Iterable

from penstock.node.dedup.message_ids import MessageId

RUNS = 1024
"""Into how many parts a window is divided."""
SWEEP = 64
"""Forgotten entries that are removed at each call, beside one for each that comes: more leave than come."""


class _Run:
    """Ids that came at about the same time."""

    __slots__ = ("began_ms", "ended_ms", "next_offset")

    def __init__(self, now_ms: int) -> None:
        self.began_ms = now_ms
        self.ended_ms = now_ms
        self.next_offset = 0
        """The first offset behind them."""


class DedupIndex:
    """The message ids of one partition."""

    __slots__ = ("_digests", "_floor", "_now_ms", "_offsets", "_places", "_runs", "limited", "max_ids")

    def __init__(self, max_ids: int) -> None:
        self.max_ids = max_ids
        self.limited = False
        """Whether ids were ever forgotten because there were too many."""
        self._offsets: dict[bytes, int] = {}
        self._digests: deque[bytes] = deque()
        self._places: deque[int] = deque()
        """Digests and their offsets, in the order in which they came. One that was forgotten and came again may still
        be there twice; the later one is in `_offsets`."""
        self._runs: deque[_Run] = deque()
        self._floor = 0
        """All offsets below are forgotten. What the limit took is removed at once."""
        self._now_ms = 0

    def __len__(self) -> int:
        """Entries that are held, forgotten ones that are not removed yet included."""
        return len(self._places)

    def find(self, digest: bytes) -> int | None:
        """The offset of the record that has this id, if that is remembered."""
        offset = self._offsets.get(digest)
        return offset if offset is not None and offset >= self._floor else None

    def firsts(self, ids: Iterable[MessageId]) -> dict[int, int | None]:
        """The deltas of records in a batch that are duplicates, and where the first ones are; None: earlier in the same
        batch."""
        offsets, floor = self._offsets, self._floor
        firsts: dict[int, int | None] = {}
        seen: set[bytes] = set()
        for delta, digest in ids:
            offset = offsets.get(digest, -1)
            if offset >= floor:
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
            self._floor = max(self._floor, runs.popleft().next_offset)
        self._sweep(SWEEP)

    def note(self, now_ms: int, window_ms: int, base_offset: int, ids: Iterable[MessageId]) -> None:
        """A batch was stored at `base_offset`, behind all that were noted before. Ids that are known are left alone."""
        self._now_ms = max(self._now_ms, now_ms)
        offsets, floor, known = self._offsets, self._floor, len(self._places)
        last = -1
        for delta, digest in ids:
            last = base_offset + delta
            if offsets.get(digest, -1) < floor:
                offsets[digest] = last
                self._digests.append(digest)
                self._places.append(last)
        if last >= 0:
            self._extend_run(window_ms, last + 1)
            self._sweep(len(self._places) - known)
            self._limit()

    def _extend_run(self, window_ms: int, next_offset: int) -> None:
        run = self._runs[-1] if self._runs else None
        if run is None or self._now_ms > run.began_ms + window_ms // RUNS:
            run = _Run(self._now_ms)
            self._runs.append(run)
        run.ended_ms = self._now_ms
        run.next_offset = next_offset

    def _limit(self) -> None:
        while len(self._places) > self.max_ids:
            self.limited = self.limited or self._places[0] >= self._floor
            self._drop()

    def _sweep(self, most: int) -> None:
        places = self._places
        while most > 0 and places and places[0] < self._floor:
            self._drop()
            most -= 1

    def _drop(self) -> None:
        digest, offset = self._digests.popleft(), self._places.popleft()
        if self._offsets[digest] == offset:
            del self._offsets[digest]
