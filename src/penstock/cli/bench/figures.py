"""Figures of one run, and what several runs add up to."""

from collections.abc import Callable, Sequence
from math import ceil
from statistics import median

import msgspec

from penstock.cli.bench.load import Kind

PERCENTILES = (50.0, 95.0, 99.0, 99.9)


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """In milliseconds."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float


def latency(samples_us: Sequence[int]) -> Latency:
    """Percentiles by the nearest rank: each is a latency that a message really had."""
    ordered = sorted(samples_us)
    p50, p95, p99, p999 = (ordered[ceil(len(ordered) * percent / 100) - 1] / 1000 for percent in PERCENTILES)
    return Latency(p50_ms=p50, p95_ms=p95, p99_ms=p99, p999_ms=p999, max_ms=ordered[-1] / 1000)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One load against one broker."""

    kind: Kind
    target: str
    messages: int
    bytes: int
    seconds: float
    client_cpu_seconds: float
    broker_cpu_seconds: float | None = None
    broker_rss_bytes: int | None = None
    broker_peak_rss_bytes: int | None = None
    acknowledged: Latency | None = None
    """From produce() to the acknowledgement."""
    delivered: Latency | None = None
    """From produce() to the consumer, in another process."""

    @property
    def messages_per_second(self) -> float:
        return self.messages / self.seconds

    @property
    def megabytes_per_second(self) -> float:
        return self.bytes / self.seconds / 1e6

    @property
    def client_us_per_message(self) -> float:
        return self.client_cpu_seconds / self.messages * 1e6

    @property
    def broker_us_per_message(self) -> float | None:
        return None if self.broker_cpu_seconds is None else self.broker_cpu_seconds / self.messages * 1e6


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Ours against theirs, by one measure: the medians of alternating runs."""

    measure: str
    ours: float
    theirs: float
    higher_is_better: bool

    @property
    def ratio(self) -> float:
        """Above 1 is better for us, whatever the measure."""
        quotient = self.ours / self.theirs if self.theirs else float("inf")
        return quotient if self.higher_is_better else (1 / quotient if quotient else float("inf"))


Measure = tuple[str, Callable[[Run], float | None], bool]

THROUGHPUT: list[Measure] = [("messages/s", lambda run: run.messages_per_second, True)]
COST: list[Measure] = [("broker us/message", lambda run: run.broker_us_per_message, False)]


def _percentile(of: str, name: str) -> Measure:
    def read(run: Run) -> float | None:
        figures: Latency | None = getattr(run, of)
        return None if figures is None else float(getattr(figures, f"{name}_ms"))

    return f"{of} {name} ms", read, False


LATENCY = [_percentile(of, name) for of in ("acknowledged", "delivered") for name in ("p50", "p99")]


def compare(ours: Sequence[Run], theirs: Sequence[Run]) -> list[Comparison]:
    measures = (LATENCY if ours[0].kind == "latency" else THROUGHPUT) + COST
    found = []
    for name, read, higher_is_better in measures:
        sides = [_median([read(run) for run in runs]) for runs in (ours, theirs)]
        if sides[0] is not None and sides[1] is not None:
            found.append(
                Comparison(measure=name, ours=sides[0], theirs=sides[1], higher_is_better=higher_is_better)
            )
    return found


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
