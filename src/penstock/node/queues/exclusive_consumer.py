"""The seat of an exclusive queue (`penstock.queue.exclusive`): one consumer at a time on a partition.

The first who asks for records has the seat until it goes. A consumer that is connected goes when its connection does.
One that comes and goes with every request has the seat for some time after its last word, which is never less than what
it was handed is leased for. Having a seat is nothing that outlives the driver: under the next leader, the first who
asks has it. Invariant 2 of `queue.partition` holds without it; the seat adds that nobody else works meanwhile.
"""

from datetime import UTC, datetime
from typing import NamedTuple


class Holder(NamedTuple):
    """Who has a seat, since when, and until when unless it says something more; None: until it goes."""

    member: str
    who: str
    since_ms: int
    seat_ms: int | None
    until_ms: int | None

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_ms / 1000, UTC).isoformat(timespec="seconds")
        return f"{self.who or repr(self.member)} (since {since})"


class Seat:
    """Who has it. Time is the caller's."""

    def __init__(self) -> None:
        self._holder: Holder | None = None

    @property
    def until_ms(self) -> int | None:
        return None if self._holder is None else self._holder.until_ms

    def other_than(self, member: str, now_ms: int) -> Holder | None:
        """Whoever has the seat, if that is somebody else."""
        holder = self._holder
        if holder is not None and holder.until_ms is not None and holder.until_ms <= now_ms:
            holder = self._holder = None
        return None if holder is None or holder.member == member else holder

    def take(self, member: str, who: str, now_ms: int, seat_ms: int | None) -> bool:
        """Whether this one has the seat now."""
        if self.other_than(member, now_ms) is not None:
            return False
        since_ms = now_ms if self._holder is None else self._holder.since_ms
        until_ms = None if seat_ms is None else now_ms + seat_ms
        self._holder = Holder(member, who, since_ms, seat_ms, until_ms)
        return True

    def prolong(self, member: str, now_ms: int) -> None:
        """It has said something."""
        holder = self._holder
        if holder is not None and holder.member == member and holder.seat_ms is not None:
            self._holder = holder._replace(until_ms=now_ms + holder.seat_ms)

    def leave(self, member: str) -> None:
        if self._holder is not None and self._holder.member == member:
            self._holder = None
