"""What a process full of subscribers is told, and what it reports."""

import msgspec

from penstock.cli.bench.load import Work


class PushLoad(Work, frozen=True, kw_only=True):
    """One process' subscribers. They stay connected through all phases."""

    url: str
    """Of the broker's HTTP port."""
    names: list[str]
    """Of the subscriptions, one for each subscriber."""
    credit: int = 1000


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """What comes next."""

    messages: int
    """That every subscriber gets."""
    is_paced: bool = False
    """Messages carry when they were sent, and come slowly."""
    warm_up_seconds: float = 0.0
    """What was sent so early has no part in the latencies."""


class PushReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the subscribers of one process saw in one phase."""

    deliveries: int
    last_arrival_ns: int
    """By the machine's monotonic clock, which all its processes share."""
    cpu_seconds: float
    error: str = ""
    latencies_us: list[int] = []
