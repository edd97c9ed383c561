"""Limits notices: a problem is reported once per interval and counted in between, so that no peer can flood the log."""

from collections.abc import Hashable

MAX_SUBJECTS = 64
"""Problems that are remembered at once; peers decide some of the names."""


class NoticeLimiter:
    """When each problem was last reported."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._reported: dict[Hashable, tuple[float, int]] = {}
        """When it was last reported, and how often it was suppressed since."""

    def due(self, subject: Hashable, now: float) -> int | None:
        """How often the subject was suppressed since it was last reported; None if it is to be suppressed now."""
        reported_at, suppressed = self._reported.get(subject, (float("-inf"), 0))
        if now - reported_at < self._interval:
            self._reported[subject] = reported_at, suppressed + 1
            return None
        self._reported.pop(subject, None)
        if len(self._reported) >= MAX_SUBJECTS:
            del self._reported[next(iter(self._reported))]
        self._reported[subject] = now, 0
        return suppressed
