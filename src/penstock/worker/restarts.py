"""When a worker process that has ended is started again. Decides only."""

from typing import Final

STABLE_SECONDS: Final = 30.0
"""A process that has lived so long is started again at once."""
FIRST_DELAY_SECONDS: Final = 1.0
DELAY_SECONDS_MAX: Final = 30.0


class RestartBackoff:
    """Of one place among the N processes: the delay doubles with each process that dies young."""

    def __init__(self) -> None:
        self._early_ends = 0

    def delay_s(self, lived_s: float) -> float:
        """How long to wait after a process that has lived so long."""
        if lived_s >= STABLE_SECONDS:
            self._early_ends = 0
            return 0.0
        self._early_ends += 1
        delay: float = FIRST_DELAY_SECONDS * 2.0 ** min(self._early_ends - 1, 10)
        return min(delay, DELAY_SECONDS_MAX)
