"""Connections come in floods: which of them become single events, and which only a sum.

1. *Per collection.* Of one protocol at most SINGLES opened and closed connections between two writes become single
   events.
2. *Per minute.* At most SINGLES_PER_MINUTE: a client that opens a connection for each HTTP request, all day long, must
   not push everything else out of the topic. With two sums a second that is 45 MB a day, of the 64 MiB that are kept.
3. *Per protocol.* Each protocol has limits of its own: probes of the HTTP port do not hide clients of the Kafka port.
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
        """Connections since the last write that have no event of their own, by outcome."""

    def is_single(self, kind: str, wall_ms: int) -> bool:
        """Whether this one becomes a single event; else it is in the next sum."""
        if wall_ms // MINUTE_MS != self._minute:
            self._minute, self._in_minute = wall_ms // MINUTE_MS, 0
        if self._singles >= SINGLES or self._in_minute >= SINGLES_PER_MINUTE:
            self._sums[kind.removeprefix(CONNECTION)] += 1
            return False
        self._singles += 1
        self._in_minute += 1
        return True

    def sum_up(self) -> dict[str, int]:
        """All connections that were not single events; a new collection begins."""
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
        """The facts of each sum that becomes an event."""
        for protocol, crowd in self._crowds.items():
            if found := crowd.sum_up():
                yield {"protocol": protocol, **found}
