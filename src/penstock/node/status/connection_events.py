"""Connections come in floods: which of them are told one by one, and how many more there were.

1. *A collection.* Of one protocol at most SINGLES comings and goings between two writes are told by themselves.
2. *A minute.* At most SINGLES_PER_MINUTE: somebody who opens a connection for each HTTP request, all day long, must not
   push everything else out of the topic. With two sums a second that is 45 MB a day, of the 64 MiB that are kept.
3. *Apart.* Each protocol has bounds of its own: probes of the HTTP port do not hide who comes to the Kafka port.
"""

from collections import Counter
from collections.abc import Iterator

SINGLES = 20
SINGLES_PER_MINUTE = 100
MINUTE_MS = 60_000
CONNECTION = "connection."


class Crowd:
    """Counts the connections of one protocol."""

    def __init__(self) -> None:
        self._singles = 0
        self._minute = 0
        self._in_minute = 0
        self._sums: Counter[str] = Counter()
        """Since the last write, by what became of them: those that are not told by themselves."""

    def is_single(self, kind: str, wall_ms: int) -> bool:
        """Whether this one is told by itself; else it is in the next sum."""
        if wall_ms // MINUTE_MS != self._minute:
            self._minute, self._in_minute = wall_ms // MINUTE_MS, 0
        if self._singles >= SINGLES or self._in_minute >= SINGLES_PER_MINUTE:
            self._sums[kind.removeprefix(CONNECTION)] += 1
            return False
        self._singles += 1
        self._in_minute += 1
        return True

    def sum_up(self) -> dict[str, int]:
        """All that was not told by itself; a new collection begins."""
        found = dict(self._sums)
        self._singles = 0
        self._sums.clear()
        return found


class Crowds:
    """All connections, by protocol: there are three."""

    def __init__(self) -> None:
        self._crowds: dict[object, Crowd] = {}

    def is_single(self, kind: str, protocol: object, wall_ms: int) -> bool:
        crowd = self._crowds.get(protocol)
        if crowd is None:
            crowd = self._crowds[protocol] = Crowd()
        return crowd.is_single(kind, wall_ms)

    def sum_up(self) -> Iterator[dict[str, object]]:
        """The facts of each sum that is to be told."""
        for protocol, crowd in self._crowds.items():
            if found := crowd.sum_up():
                yield {"protocol": protocol, **found}
