"""How a seed ended: the promise that was broken, if one was, and the events until then."""

from collections import Counter

import msgspec


class Violation(Exception):
    """A promise was broken."""

    def __init__(self, promise: str, detail: str) -> None:
        super().__init__(f"{promise}: {detail}")
        self.promise = promise
        self.detail = detail


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a seed failed."""

    promise: str
    """The broken promise; "a bug" for an unexpected exception."""
    detail: str
    last_events: list[str]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One seed's run."""

    level: str
    seed: int
    digest: int
    """Equal for equal runs."""
    virtual_s: float
    counts: dict[str, int]
    failure: Failure | None = None
    trace: list[str] = []
    """All events, if they were asked for."""


class EventCounts:
    """Counts events by name."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        self._counts[name] += count

    def counts(self) -> dict[str, int]:
        return dict(sorted(self._counts.items()))
