"""Retries with growing pauses, and one log line for each reason."""

import logging

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 30.0
"""A person who repairs the cause need not wait longer than this to see the effect."""
REASONS_MAX = 100
"""Reasons that are remembered: some contain a node or an offset, so their number is unlimited."""

log = logging.getLogger("penstock.queues")


class RetryBackoff:
    """The pauses of one piece of work, until it is done, or of work that goes on and on."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._logged: set[str] = set()
        self._seconds = FIRST_SECONDS

    def after(self, trouble: Exception) -> float:
        """The work has failed: seconds until the next try."""
        reason = str(trouble)
        if reason not in self._logged and len(self._logged) < REASONS_MAX:
            self._logged.add(reason)
            log.warning("%s: %s; it is retried until it works", self._what, reason)
        seconds = self._seconds
        self._seconds = min(2 * seconds, LONGEST_SECONDS)
        return seconds

    def succeeded(self) -> None:
        """Work that goes on has succeeded: the next trouble is a new one, with a short pause and a log line."""
        self._logged.clear()
        self._seconds = FIRST_SECONDS
