"""Figures of benchmark runs: what follows from them, medians of several, tables, JSON."""

from collections.abc import Callable, Sequence
from math import ceil
from operator import attrgetter
from statistics import median
from typing import Any, NamedTuple, TypeVar

import msgspec
from rich.table import Table

from penstock.cli.bench.load import Kind, Report, System, Via
from penstock.cli.bench.procfs import Usage
from penstock.cli.output import table

PERCENTILES = (50.0, 95.0, 99.0, 99.9)

R = TypeVar("R", bound=msgspec.Struct)


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles in milliseconds."""

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


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Some messages (or deliveries), and the time and CPU that they took. The broker's CPU is unknown where its process
    is."""

    messages: int
    bytes: int
    seconds: float
    client_cpu_seconds: float
    broker_cpu_seconds: float | None = None
    broker_rss_bytes: int | None = None
    broker_peak_rss_bytes: int | None = None

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


def cost_of(reports: Sequence[Report], before: Usage | None, after: Usage | None) -> Cost:
    """The cost of processes that worked together: the last one to finish ends the time."""
    return Cost(
        messages=sum(report.messages for report in reports),
        bytes=sum(report.bytes for report in reports),
        seconds=max(report.seconds for report in reports),
        client_cpu_seconds=sum(report.cpu_seconds for report in reports),
        broker_cpu_seconds=after.cpu_seconds - before.cpu_seconds if after and before else None,
        broker_rss_bytes=after.rss_bytes if after else None,
        broker_peak_rss_bytes=after.peak_rss_bytes if after else None,
    )


class Run(Cost, frozen=True, kw_only=True):
    """One load of a topic against one broker."""

    kind: Kind
    target: str
    acknowledged: Latency | None = None
    """From produce() to the acknowledgement."""
    delivered: Latency | None = None
    """From produce() to the consumer, in another process."""


class QueueRun(msgspec.Struct, frozen=True, kw_only=True):
    """A queue filled and worked off, and then used at a steady rate."""

    via: Via
    consumers: int
    published_per_second: float
    """Messages that were published and confirmed."""
    acknowledged_per_second: float
    """Received, acknowledged, and the acknowledgement durable."""
    publish_broker_us: float | None = None
    """The broker's CPU per message, in microseconds."""
    acknowledge_broker_us: float | None = None
    acknowledge_client_us: float
    """The CPU of all consumers together, per message."""
    delivered: Latency
    """From publishing to the consumer, at the steady rate."""


class PushRun(msgspec.Struct, frozen=True, kw_only=True):
    """Some subscribers: messages in a burst, and then at a steady rate. A delivery is a message to one subscriber."""

    subscribers: int
    burst_messages: int
    deliveries_per_second: float
    """In the burst, from the first message's publishing to the last one's arrival."""
    broker_us_per_delivery: float | None = None
    """In the burst, until all acks are durable; publishing is in it."""
    client_us_per_delivery: float
    rate_per_second: float
    """Messages, while latency was measured."""
    steady_broker_us_per_delivery: float | None = None
    delivered: Latency
    """From publishing to a subscriber, at the steady rate."""


class CliqueRun(msgspec.Struct, frozen=True, kw_only=True):
    """Workers that handle keyed messages: of a clique, or of a plain consumer group on the same broker."""

    system: System
    workers: int
    messages_per_second: float
    """From the first message's publishing until all are handled and acknowledged."""
    worker_us_per_message: float
    """The CPU of all workers together."""
    broker_us_per_message: float | None = None
    """Publishing is in it."""
    asked: Latency | None = None
    """From a request to its answer, at a steady rate. A consumer group cannot be asked."""
    failover_seconds: float | None = None
    """From kill -9 of a worker until another one answers for its keys. It takes two workers."""

    @property
    def variant(self) -> tuple[System, int]:
        return self.system, self.workers


def prices(runs: Sequence[CliqueRun]) -> dict[int, float]:
    """For each number of workers, how many times as many messages the clique on Penstock handles as the group does."""
    of = {run.variant: run.messages_per_second for run in runs}
    return {
        workers: rate / of["group", workers]
        for (system, workers), rate in of.items()
        if system == "penstock" and ("group", workers) in of
    }


# --- several runs


def medians(runs: Sequence[R], by: str) -> list[R]:
    """One run for each value of the field `by`, in which every figure is the median of that figure alone."""
    values = list(dict.fromkeys(getattr(run, by) for run in runs))
    return [_median([run for run in runs if getattr(run, by) == value]) for value in values]


def _median(runs: Sequence[R]) -> R:
    fields = {
        field.name: [getattr(run, field.name) for run in runs] for field in msgspec.structs.fields(runs[0])
    }
    return type(runs[0])(**{name: _middle(values) for name, values in fields.items()})


def _middle(values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    if known and isinstance(known[0], msgspec.Struct):
        return _median(known)
    if known and isinstance(known[0], float):
        return median(known)
    return known[0] if known else None


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


class Measure(NamedTuple):
    name: str
    read: Callable[[Run], float | None]
    higher_is_better: bool = False


THROUGHPUT = [Measure("messages/s", lambda run: run.messages_per_second, True)]
COST = [Measure("broker us/message", lambda run: run.broker_us_per_message)]
LATENCY = [
    Measure(f"{until} {percentile} ms", attrgetter(f"{until}.{percentile}_ms"))
    for until in ("acknowledged", "delivered")
    for percentile in ("p50", "p99")
]


def compare(ours: Sequence[Run], theirs: Sequence[Run]) -> list[Comparison]:
    found = []
    for name, read, higher_is_better in (LATENCY if ours[0].kind == "latency" else THROUGHPUT) + COST:
        sides = [[value for run in runs if (value := read(run)) is not None] for runs in (ours, theirs)]
        if all(sides):
            first, second = map(median, sides)
            found.append(
                Comparison(measure=name, ours=first, theirs=second, higher_is_better=higher_is_better)
            )
    return found


# --- shown


Column = tuple[str, Callable[[Any], object], str]
"""Heading, figure, and how it is written; "-" where it is unknown."""

THROUGHPUT_COLUMNS: list[Column] = [
    ("load", lambda run: run.kind, "{}"),
    ("broker", lambda run: run.target, "{}"),
    ("messages/s", lambda run: run.messages_per_second, "{:,.0f}"),
    ("MB/s", lambda run: run.megabytes_per_second, "{:,.1f}"),
    ("client us/msg", lambda run: run.client_us_per_message, "{:.2f}"),
    ("broker us/msg", lambda run: run.broker_us_per_message, "{:.2f}"),
    ("broker MB", lambda run: run.broker_rss_bytes and run.broker_rss_bytes / 1e6, "{:,.0f}"),
    ("peak MB", lambda run: run.broker_peak_rss_bytes and run.broker_peak_rss_bytes / 1e6, "{:,.0f}"),
]
QUEUE_COLUMNS: list[Column] = [
    ("through", lambda run: {"client": "penstock.client", "confluent": "confluent-kafka"}[run.via], "{}"),
    ("consumers", lambda run: run.consumers, "{}"),
    ("published/s", lambda run: run.published_per_second, "{:,.0f}"),
    ("acked/s", lambda run: run.acknowledged_per_second, "{:,.0f}"),
    ("broker us/publish", lambda run: run.publish_broker_us, "{:.1f}"),
    ("broker us/ack", lambda run: run.acknowledge_broker_us, "{:.1f}"),
    ("client us/ack", lambda run: run.acknowledge_client_us, "{:.1f}"),
    ("p50 ms", lambda run: run.delivered.p50_ms, "{:.2f}"),
    ("p99 ms", lambda run: run.delivered.p99_ms, "{:.2f}"),
]
PUSH_COLUMNS: list[Column] = [
    ("subscribers", lambda run: run.subscribers, "{:,}"),
    ("burst", lambda run: run.burst_messages, "{:,}"),
    ("deliveries/s", lambda run: run.deliveries_per_second, "{:,.0f}"),
    ("broker us", lambda run: run.broker_us_per_delivery, "{:.1f}"),
    ("client us", lambda run: run.client_us_per_delivery, "{:.1f}"),
    ("steady/s", lambda run: run.rate_per_second, "{:,.0f}"),
    ("broker us at it", lambda run: run.steady_broker_us_per_delivery, "{:.1f}"),
    ("p50 ms", lambda run: run.delivered.p50_ms, "{:.2f}"),
    ("p99 ms", lambda run: run.delivered.p99_ms, "{:.2f}"),
]
CLIQUE_COLUMNS: list[Column] = [
    ("system", lambda run: SYSTEMS[run.system], "{}"),
    ("workers", lambda run: run.workers, "{}"),
    ("messages/s", lambda run: run.messages_per_second, "{:,.0f}"),
    ("worker us/msg", lambda run: run.worker_us_per_message, "{:.1f}"),
    ("broker us/msg", lambda run: run.broker_us_per_message, "{:.1f}"),
    ("request p50 ms", lambda run: run.asked and run.asked.p50_ms, "{:.2f}"),
    ("p99 ms", lambda run: run.asked and run.asked.p99_ms, "{:.2f}"),
    ("kill -9 to served s", lambda run: run.failover_seconds, "{:.1f}"),
]
SYSTEMS: dict[System, str] = {
    "penstock": "clique on Penstock",
    "group": "consumer group",
    "nats": "clique on NATS",
}
TEXTS = ("load", "broker", "through", "system")
"""Columns that hold words."""


def run_table(runs: Sequence[msgspec.Struct], columns: Sequence[Column]) -> Table:
    names = [name for name, _, _ in columns]
    rows = [[written(read(run), pattern) for _, read, pattern in columns] for run in runs]
    return table(*names, rows=rows, numbers=[name for name in names if name not in TEXTS])


def written(value: object, pattern: str = "{:.1f}") -> str:
    return "-" if value is None else pattern.format(value)


def latency_table(runs: Sequence[Run]) -> Table:
    rows = [
        [run.target, what, *(f"{value:.2f}" for value in msgspec.structs.astuple(figures))]
        for run in runs
        for what, figures in (("acknowledged", run.acknowledged), ("delivered", run.delivered))
        if figures is not None
    ]
    names = ("p50 ms", "p95 ms", "p99 ms", "p99.9 ms", "max ms")
    return table("broker", "latency until", *names, rows=rows, numbers=names)


def comparison_table(found: Sequence[tuple[str, Comparison]], ours: str, theirs: str) -> Table:
    rows = [
        [load, each.measure, f"{each.ours:,.2f}", f"{each.theirs:,.2f}", f"{each.ratio:.2f}"]
        for load, each in found
    ]
    names = (ours, theirs, "ratio")
    return table("load", "median of", *names, rows=rows, numbers=names)


def run_json(run: Run) -> dict[str, Any]:
    """A run with the figures that follow from it."""
    derived = (
        "messages_per_second",
        "megabytes_per_second",
        "client_us_per_message",
        "broker_us_per_message",
    )
    return {**msgspec.to_builtins(run), **{name: getattr(run, name) for name in derived}}


def comparison_json(load: str, found: Comparison) -> dict[str, Any]:
    return {"load": load, **msgspec.to_builtins(found), "ratio": found.ratio}
