"""What `penstock bench queue` finds out, as figures, as tables and as JSON."""

from collections.abc import Sequence
from statistics import median
from typing import Any

import msgspec
from rich.table import Table

from penstock.cli.bench.figures import Latency
from penstock.cli.bench.queue_load import Via
from penstock.cli.output import table

NAMES: dict[Via, str] = {"client": "penstock.client", "confluent": "confluent-kafka"}


class QueueRun(msgspec.Struct, frozen=True, kw_only=True):
    """A queue filled and worked off, and then used at a steady rate."""

    via: Via
    consumers: int
    published_per_second: float
    """And confirmed."""
    acknowledged_per_second: float
    """Received, acknowledged, and the acknowledgement durable."""
    publish_broker_us: float | None = None
    """The broker's CPU per message, in microseconds."""
    acknowledge_broker_us: float | None = None
    acknowledge_client_us: float
    """The CPU of all consumers together, per message."""
    delivered: Latency
    """From publishing to the consumer, at the steady rate."""


def medians(runs: Sequence[QueueRun]) -> list[QueueRun]:
    """One for each client: the median of each figure by itself."""
    kinds = list(dict.fromkeys(run.via for run in runs))
    return [_median([run for run in runs if run.via == via]) for via in kinds]


def _median(runs: Sequence[QueueRun]) -> QueueRun:
    return QueueRun(
        via=runs[0].via,
        consumers=runs[0].consumers,
        published_per_second=median(run.published_per_second for run in runs),
        acknowledged_per_second=median(run.acknowledged_per_second for run in runs),
        publish_broker_us=median_known([run.publish_broker_us for run in runs]),
        acknowledge_broker_us=median_known([run.acknowledge_broker_us for run in runs]),
        acknowledge_client_us=median(run.acknowledge_client_us for run in runs),
        delivered=median_latency([run.delivered for run in runs]),
    )


def median_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def median_latency(found: Sequence[Latency]) -> Latency:
    names = [field.name for field in msgspec.structs.fields(Latency)]
    return Latency(**{name: median(getattr(each, name) for each in found) for name in names})


def queue_table(runs: Sequence[QueueRun]) -> Table:
    rows = [
        [
            NAMES[run.via],
            run.consumers,
            f"{run.published_per_second:,.0f}",
            f"{run.acknowledged_per_second:,.0f}",
            microseconds(run.publish_broker_us),
            microseconds(run.acknowledge_broker_us),
            f"{run.acknowledge_client_us:.1f}",
            f"{run.delivered.p50_ms:.2f}",
            f"{run.delivered.p99_ms:.2f}",
        ]
        for run in runs
    ]
    names = (
        "consumers",
        "published/s",
        "acked/s",
        "broker us/publish",
        "broker us/ack",
        "client us/ack",
        "p50 ms",
        "p99 ms",
    )
    return table("through", *names, rows=rows, numbers=names)


def microseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def queue_json(load: msgspec.Struct, runs: Sequence[QueueRun]) -> dict[str, Any]:
    return {
        "load": msgspec.to_builtins(load),
        "runs": msgspec.to_builtins(runs),
        "medians": msgspec.to_builtins(medians(runs)),
    }
