"""The one policy for background work that is retried until it works: growing pauses, and one log line for each reason.

Requests have another one (`node.calls.retry`): somebody waits for their answer, so they try for ten seconds, at short
intervals. Nobody waits for this work, and what holds it up may last for hours.
"""

import logging

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 30.0
"""A person who repairs the cause need not wait longer than this to see the effect."""
REASONS_MAX = 100
"""Reasons that are remembered: some contain a node or an offset, so their number is unlimited."""


class RetryBackoff:
    """The pauses of one piece of work, until it is done, or of work that goes on and on."""

    def __init__(self, what: str, log: logging.Logger) -> None:
        self._what = what
        self._log = log
        self._logged: set[str] = set()
        self._seconds = FIRST_SECONDS

    def after(self, trouble: Exception) -> float:
        """The work has failed: seconds until the next try."""
        self.warn(trouble)
        return self.next_seconds()

    def warn(self, trouble: Exception) -> None:
        reason = str(trouble)
        if reason not in self._logged and len(self._logged) < REASONS_MAX:
            self._logged.add(reason)
            self._log.warning("%s: %s; it is retried until it works", self._what, reason)

    def next_seconds(self) -> float:
        """Until the next try. After a bug, which is logged already, this is all that is left to do."""
        seconds = self._seconds
        self._seconds = min(2 * seconds, LONGEST_SECONDS)
        return seconds

    def succeeded(self) -> None:
        """Work that goes on has succeeded: the next trouble is a new one, with a short pause and a log line."""
        self._logged.clear()
        self._seconds = FIRST_SECONDS
