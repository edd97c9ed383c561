"""What a load process is told, and what it reports: one JSON line each way."""

from typing import Literal

import msgspec

Kind = Literal["produce", "consume", "latency"]
Role = Literal["produce", "consume", "send_paced", "receive_paced"]

PAYLOADS = 1000
"""Different payloads in a run: with 100 bytes each they exceed lz4's window, so repetition helps no codec."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What every load process has to know."""

    bootstrap: str
    topic: str
    messages: int = 100_000
    size_bytes: int = 100


class Load(Work, frozen=True, kw_only=True):
    """The work of a process that produces or consumes."""

    role: Role
    partitions: int = 1
    rate_per_second: int = 1000
    """For the paced roles."""
    settings: dict[str, str] = {}
    """librdkafka's: acks, compression, linger and whatever the person added."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What one load process saw."""

    messages: int
    bytes: int
    seconds: float
    cpu_seconds: float
    errors: int = 0
    error: str = ""
    """The first error, in words."""
    latencies_us: list[int] = []


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    done: int


READY = b"ready\n"
GO = b"go\n"
