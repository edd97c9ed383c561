"""The lock of an exclusive queue (`penstock.queue.exclusive`): one consumer at a time on a partition.

The first consumer that asks for records holds the lock until it goes. A connected consumer goes when its connection
ends. A consumer without a connection (HTTP) holds the lock for some time after its last request, at least as long as
its messages are leased. The lock is in memory and ends with the driver: under the next leader, the first consumer that
asks gets it. Each message has one holder without it (invariant 2 of `queue.partition`); the lock adds that no other
consumer works on the queue meanwhile.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple


class Holder(NamedTuple):
    """The consumer that holds the lock, since when, and until when if it sends no other request; None: until it
    goes."""

    member: str
    client: str
    since_ms: int
    hold_ms: int | None
    until_ms: int | None

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_ms / 1000, UTC).isoformat(timespec="seconds")
        return f"{self.client or repr(self.member)} (since {since})"


class ConsumerLock:
    """Time is the caller's. `on_change` is told the name of each new holder, None when the holder goes."""

    def __init__(self, on_change: Callable[[str | None], None]) -> None:
        self._on_change = on_change
        self._holder: Holder | None = None
        self._reported = ""
        """The member that `on_change` was told of last."""

    @property
    def until_ms(self) -> int | None:
        return None if self._holder is None else self._holder.until_ms

    def other_holder(self, member: str, now_ms: int) -> Holder | None:
        """The holder, if it is another consumer."""
        holder = self._holder
        if holder is not None and holder.until_ms is not None and holder.until_ms <= now_ms:
            holder = self._holder = None
        return None if holder is None or holder.member == member else holder

    def acquire(self, member: str, client: str, now_ms: int, hold_ms: int | None) -> bool:
        """Whether this consumer holds the lock now."""
        if self.other_holder(member, now_ms) is not None:
            return False
        since_ms = now_ms if self._holder is None else self._holder.since_ms
        until_ms = None if hold_ms is None else now_ms + hold_ms
        self._holder = Holder(member, client, since_ms, hold_ms, until_ms)
        if member != self._reported:
            self._reported = member
            self._on_change(client or member)
        return True

    def renew(self, member: str, now_ms: int) -> None:
        """The consumer has sent a request."""
        holder = self._holder
        if holder is not None and holder.member == member and holder.hold_ms is not None:
            self._holder = holder._replace(until_ms=now_ms + holder.hold_ms)

    def release(self, member: str) -> None:
        if self._holder is not None and self._holder.member == member:
            self._holder = None
        if member == self._reported:
            self._reported = ""
            self._on_change(None)
