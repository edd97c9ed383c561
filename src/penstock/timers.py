"""Deadlines by key, for tens of thousands of members whose deadlines all move with every heartbeat.

A heap entry only says when to look at its key. When a deadline moves to later, the entry stays; when the entry comes
up, it is pushed again with the deadline of that moment. So a heartbeat costs one dictionary write and no heap work.
"""

import heapq
from collections.abc import Iterator

STALE_FACTOR = 2
"""The heap is rebuilt when it has grown to this many times its live entries, so that short-lived keys do not accumulate
until their deadlines."""
STALE_MIN = 64


Key = tuple[str, ...]


class Timers:
    """Deadlines in milliseconds, one per key."""

    def __init__(self) -> None:
        self._deadlines: dict[Key, int] = {}
        self._looks: dict[Key, int] = {}
        """When each key's heap entry comes up: never later than its deadline."""
        self._heap: list[tuple[int, Key]] = []

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, key: Key) -> bool:
        return key in self._deadlines

    def set(self, key: Key, deadline_ms: int) -> None:
        """Sets or moves a deadline."""
        self._deadlines[key] = deadline_ms
        look = self._looks.get(key)
        if look is None or deadline_ms < look:
            self._push(key, deadline_ms)

    def cancel(self, key: Key) -> None:
        self._deadlines.pop(key, None)

    def deadline_ms(self, key: Key) -> int | None:
        """None for a key without a deadline."""
        return self._deadlines.get(key)

    @property
    def next_ms(self) -> int | None:
        """When to look next. May be before the next deadline, never after it."""
        while self._heap and not self._is_live(*self._heap[0]):
            self._forget(heapq.heappop(self._heap))
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> Iterator[Key]:
        """The keys whose deadline has come, earliest first; each is cancelled as it is handed out."""
        while self._heap and self._heap[0][0] <= now_ms:
            entry = heapq.heappop(self._heap)
            key = entry[1]
            live = self._is_live(*entry)
            self._forget(entry)
            if not live:
                continue
            if self._deadlines[key] > now_ms:
                self._push(key, self._deadlines[key])
            else:
                del self._deadlines[key]
                yield key

    def _is_live(self, look_ms: int, key: Key) -> bool:
        return key in self._deadlines and self._looks.get(key) == look_ms

    def _forget(self, entry: tuple[int, Key]) -> None:
        look_ms, key = entry
        if self._looks.get(key) == look_ms:
            del self._looks[key]

    def _push(self, key: Key, look_ms: int) -> None:
        self._looks[key] = look_ms
        heapq.heappush(self._heap, (look_ms, key))
        if len(self._heap) > STALE_MIN + STALE_FACTOR * len(self._deadlines):
            self._rebuild()

    def _rebuild(self) -> None:
        self._looks = dict(self._deadlines)
        self._heap = [(deadline, key) for key, deadline in self._deadlines.items()]
        heapq.heapify(self._heap)
