"""What fails is tried again, less and less often, and people are told once of each reason."""

import logging

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 30.0
"""What takes a person to mend need not be noticed any sooner."""
REASONS_MAX = 100
"""Reasons that are remembered: some name a node or an offset, and there is no end of these."""

log = logging.getLogger("penstock.queues")


class RetryBackoff:
    """Of one piece of work, until it is done."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._told: set[str] = set()
        self._seconds = FIRST_SECONDS

    def after(self, trouble: Exception) -> float:
        """It has failed: after how many seconds it is to be tried again."""
        reason = str(trouble)
        if reason not in self._told and len(self._told) < REASONS_MAX:
            self._told.add(reason)
            log.warning("%s: %s; tried again until it works", self._what, reason)
        seconds = self._seconds
        self._seconds = min(2 * seconds, LONGEST_SECONDS)
        return seconds
