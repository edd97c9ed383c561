"""The seam between the node and time: the simulator brings its own."""

import time
from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since 1970: stamped on records, compared with retention."""
        ...


class SystemClock:
    """The machine's clock. Waiting is the event loop's business, never the clock's."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
