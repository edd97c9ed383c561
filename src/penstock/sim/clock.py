"""A wall clock with its own skew and rate, which can be set and then jumps."""

from penstock.sim.scheduler import Scheduler

EPOCH_MS = 1_700_000_000_000


class SimClock:
    """The clock of one machine; it survives crashes."""

    def __init__(self, scheduler: Scheduler, *, skew_ms: int = 0, rate: float = 1.0) -> None:
        self._scheduler = scheduler
        self._skew_ms = skew_ms
        self._rate = rate

    def wall_ms(self) -> int:
        return EPOCH_MS + self._skew_ms + int(self._scheduler.time * self._rate * 1000)

    def jump(self, by_ms: int) -> None:
        self._skew_ms += by_ms
