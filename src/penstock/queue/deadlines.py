"""Deadlines by number, for leases and chunks. Thousands are set and dropped per second, and few ever expire."""

import heapq

STALE_FACTOR = 2
"""The heap is rebuilt when it has grown to this many times its live entries: otherwise the entry of a lease that is
settled after a millisecond would stay there until its thirty seconds are over."""
STALE_MIN = 64


class Deadlines:
    """Times in milliseconds, at most one per key."""

    def __init__(self) -> None:
        self._at: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []
        """Every live (time, key) is here; entries that `_at` does not confirm are stale."""

    def __len__(self) -> int:
        return len(self._at)

    def set(self, key: int, at_ms: int) -> None:
        if self._at.get(key) == at_ms:
            return
        self._at[key] = at_ms
        heapq.heappush(self._heap, (at_ms, key))
        if len(self._heap) > STALE_MIN + STALE_FACTOR * len(self._at):
            self._heap = [(at, key) for key, at in self._at.items()]
            heapq.heapify(self._heap)

    def drop(self, key: int) -> None:
        self._at.pop(key, None)

    @property
    def next_ms(self) -> int | None:
        heap = self._heap
        while heap and self._at.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, now_ms: int) -> int | None:
        """Removes and returns the key with the earliest deadline that has passed."""
        next_ms = self.next_ms
        if next_ms is None or next_ms > now_ms:
            return None
        key = heapq.heappop(self._heap)[1]
        del self._at[key]
        return key
