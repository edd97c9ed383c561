"""The seam between the node and time: the simulator brings its own clock."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since 1970: stamped on records, compared with retention."""
        ...


class SystemClock:
    """The machine's clock. The event loop, not the clock, is used for waiting."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class SteadyClock:
    """Wall time that never jumps: it reads `clock` once and then follows the event loop's monotonic time.

    Sessions, leases and delays are measured with it, so that they neither end early nor last longer when an operator
    sets the machine's clock. It is never ahead of `clock` at its creation, so nothing that is due at a wall time is
    done too early by rounding.

    Each owner (a hosted core, a queue's driver) makes its own when it opens, and not one for the whole node. The event
    loop's time stands still while a machine sleeps, and an operator or NTP may correct a wrong clock. With one for the
    node, messages with a delivery time would be late by that difference until the node restarts, and a coordinator
    would compare times that other nodes have stored with a wrong one. An owner that opens later begins with the right
    time.
    """

    __slots__ = ("_epoch_ms", "_loop_time")

    def __init__(self, clock: Clock) -> None:
        self._loop_time = asyncio.get_running_loop().time
        self._epoch_ms = clock.wall_ms() - self._loop_time() * 1000

    def now_ms(self) -> int:
        return int(self._epoch_ms + self._loop_time() * 1000)
