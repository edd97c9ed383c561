"""A timer for the next deadline of a core, which moves with nearly every request."""

import asyncio
from collections.abc import Callable


class DeadlineTimer:
    """Calls a function when the deadline has come. Times are milliseconds of the owner's clock."""

    def __init__(self, now_ms: Callable[[], int], on_due: Callable[[], None]) -> None:
        self._now_ms = now_ms
        self._on_due = on_due
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms: int | None = None

    def set(self, due_ms: int | None) -> None:
        """None: there is nothing to wait for."""
        if due_ms == self._due_ms:
            return
        self.cancel()
        self._due_ms = due_ms
        if due_ms is not None:
            delay = max(0.0, (due_ms - self._now_ms()) / 1000)
            self._timer = self._loop.call_later(delay, self._fired)

    def cancel(self) -> None:
        self._due_ms = None
        if self._timer is not None:
            self._timer.cancel()

    def _fired(self) -> None:
        self._due_ms = None
        self._on_due()
