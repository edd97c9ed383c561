"""Settlements in the state topic whose transactions are open.

The log has the record of a settlement before the marker that decides about it. A later record of the same key voids it,
whatever the marker says: a queue that is reset or deleted writes such records. So a core that reads the log again, also
after compaction, finds the same.
"""

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

Q = TypeVar("Q", bound=Hashable)


class _Part(NamedTuple):
    producer_id: int
    value: bytes


class OpenParts(Generic[Q]):
    """By queue and by producer. It is told of every record in the order of the log."""

    def __init__(self) -> None:
        self._parts: dict[Q, dict[bytes, _Part]] = {}
        self._producers: dict[int, dict[tuple[Q, bytes], None]] = {}
        """Where each producer has open settlements."""

    def add(self, producer_id: int, queue: Q, suffix: bytes, value: bytes) -> None:
        self._parts.setdefault(queue, {})[suffix] = _Part(producer_id, value)
        self._producers.setdefault(producer_id, {})[queue, suffix] = None

    def of(self, queue: Q) -> dict[bytes, bytes]:
        """By suffix."""
        return {suffix: part.value for suffix, part in self._parts.get(queue, {}).items()}

    def has(self, queue: Q, suffix: bytes) -> bool:
        return suffix in self._parts.get(queue, ())

    def queues(self) -> list[Q]:
        return list(self._parts)

    def void(self, queue: Q, suffix: bytes) -> None:
        """The log has a later record of this key, if there is such a settlement."""
        part = self._parts.get(queue, {}).pop(suffix, None)
        if part is None:
            return
        if not self._parts[queue]:
            del self._parts[queue]
        places = self._producers[part.producer_id]
        del places[queue, suffix]
        if not places:
            del self._producers[part.producer_id]

    def end(self, producer_id: int) -> dict[Q, dict[bytes, bytes]]:
        """A marker of this producer is in the log. Returns the parts about which it decides."""
        ended: dict[Q, dict[bytes, bytes]] = {}
        for queue, suffix in list(self._producers.get(producer_id, ())):
            ended.setdefault(queue, {})[suffix] = self._parts[queue][suffix].value
            self.void(queue, suffix)
        return ended
