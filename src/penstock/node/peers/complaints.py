"""Log lines that others can provoke: each is told, none can fill the disk."""

import logging
from collections.abc import Callable

QUIET_SECONDS = 30.0
"""The same complaint again within this time is only counted."""

MOST_SUBJECTS = 64
"""Different complaints remembered at once; past it all further ones share one line per QUIET_SECONDS."""

_MANY = "many"


class Complaints:
    """Warns once per subject and quiet time, and says how often it kept silent."""

    def __init__(self, log: logging.Logger, now: Callable[[], float]) -> None:
        self._log = log
        self._now = now
        self._told: dict[str, tuple[float, int]] = {}
        """When each subject was last told, and how many were swallowed since."""

    def warn(self, subject: str, message: str) -> None:
        now = self._now()
        if subject not in self._told and len(self._told) >= MOST_SUBJECTS:
            self._forget_old(now)
            subject = subject if len(self._told) < MOST_SUBJECTS else _MANY
        last, swallowed = self._told.get(subject, (now - QUIET_SECONDS, 0))
        if now - last < QUIET_SECONDS:
            self._told[subject] = (last, swallowed + 1)
            return
        self._told[subject] = (now, 0)
        again = f" ({swallowed} more of this kind since the last such line)" if swallowed else ""
        self._log.warning("%s%s", message, again)

    def _forget_old(self, now: float) -> None:
        self._told = {
            subject: (last, swallowed)
            for subject, (last, swallowed) in self._told.items()
            if now - last < QUIET_SECONDS
        }
