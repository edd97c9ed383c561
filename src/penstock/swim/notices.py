"""Notices: trouble is told once, then counted, so that no peer can flood the log."""

from collections.abc import Hashable

MAX_SUBJECTS = 64
"""Kinds of trouble that are remembered at once; peers decide some of the names."""


class Notices:
    """Which trouble was told when."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._told: dict[Hashable, tuple[float, int]] = {}
        """When it was told last, and how often it was not since then."""

    def due(self, subject: Hashable, now: float) -> int | None:
        """How often the subject was passed over since it was last told; None when it is to be passed over now."""
        told_at, passed_over = self._told.get(subject, (float("-inf"), 0))
        if now - told_at < self._interval:
            self._told[subject] = told_at, passed_over + 1
            return None
        self._told.pop(subject, None)
        if len(self._told) >= MAX_SUBJECTS:
            del self._told[next(iter(self._told))]
        self._told[subject] = now, 0
        return passed_over
