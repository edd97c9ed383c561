"""The clock of leases: it never goes back, and counts while the process or the machine sleeps."""

import time
from typing import Final

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux stops CLOCK_MONOTONIC while the machine sleeps; macOS does not."""


def lease_clock_ms() -> float:
    return time.clock_gettime_ns(_CLOCK) / 1e6


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000
