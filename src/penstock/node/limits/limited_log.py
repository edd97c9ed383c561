"""Warnings that other machines can provoke. Each is logged, and no number of them fills the disk."""

import logging
from collections.abc import Callable

QUIET_SECONDS = 30.0
"""The same warning again within this time is only counted."""

MOST_SUBJECTS = 64
"""Different warnings remembered at once; past it all further ones share one line per QUIET_SECONDS."""

_MANY = "many"


class LimitedLog:
    """Warns once per subject and quiet time, and says how many warnings it left out."""

    def __init__(self, log: logging.Logger, now: Callable[[], float]) -> None:
        self._log = log
        self._now = now
        self._logged: dict[str, tuple[float, int]] = {}
        """When each subject was last logged, and how many warnings were left out since."""

    def warn(self, subject: str, message: str) -> None:
        now = self._now()
        if subject not in self._logged and len(self._logged) >= MOST_SUBJECTS:
            self._forget_old(now)
            subject = subject if len(self._logged) < MOST_SUBJECTS else _MANY
        last, left_out = self._logged.get(subject, (now - QUIET_SECONDS, 0))
        if now - last < QUIET_SECONDS:
            self._logged[subject] = (last, left_out + 1)
            return
        self._logged[subject] = (now, 0)
        again = f" ({left_out} more of this kind since the last such line)" if left_out else ""
        self._log.warning("%s%s", message, again)

    def _forget_old(self, now: float) -> None:
        self._logged = {
            subject: (last, left_out)
            for subject, (last, left_out) in self._logged.items()
            if now - last < QUIET_SECONDS
        }
