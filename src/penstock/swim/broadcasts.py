"""Broadcasts: claims that are still to be gossiped, and how often each has been sent.

Every packet with free space carries some of them. Each is sent a number of times that grows with the logarithm of the
cluster's size, the least sent first, then the newest. A new claim about a member replaces the one before.
"""

from math import ceil, log10

from penstock.types import Replica


def retransmit_limit(multiplier: int, members: int) -> int:
    return multiplier * ceil(log10(members + 1))


class _Broadcast:
    __slots__ = ("claim", "order", "sent")

    def __init__(self, claim: bytes, order: int) -> None:
        self.claim = claim
        self.order = order
        self.sent = 0


class Broadcasts:
    """The queue; at most one claim for each member."""

    def __init__(self) -> None:
        self._queue: dict[Replica, _Broadcast] = {}
        self._order = 0

    def __len__(self) -> int:
        return len(self._queue)

    def __contains__(self, subject: Replica) -> bool:
        return subject in self._queue

    def add(self, subject: Replica, claim: bytes) -> None:
        self._order += 1
        self._queue[subject] = _Broadcast(claim, self._order)

    def forget(self, subject: Replica) -> None:
        self._queue.pop(subject, None)

    def take(self, max_bytes: int, limit: int) -> list[bytes]:
        """Claims of at most `max_bytes` together, counted as sent; those sent `limit` times are done."""
        taken: list[bytes] = []
        for subject, broadcast in sorted(self._queue.items(), key=_urgency):
            if len(broadcast.claim) > max_bytes:
                continue
            max_bytes -= len(broadcast.claim)
            broadcast.sent += 1
            if broadcast.sent >= limit:
                del self._queue[subject]
            taken.append(broadcast.claim)
        return taken


def _urgency(item: tuple[Replica, _Broadcast]) -> tuple[int, int]:
    return item[1].sent, -item[1].order
