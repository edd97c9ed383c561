"""What `penstock bench push` finds out, as figures, as tables and as JSON."""

from collections.abc import Sequence
from statistics import median
from typing import Any

import msgspec
from rich.table import Table

from penstock.cli.bench.figures import Latency
from penstock.cli.bench.queue_figures import median_known, median_latency, microseconds
from penstock.cli.output import table


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


def medians(runs: Sequence[PushRun]) -> list[PushRun]:
    """One for each number of subscribers: the median of each figure by itself."""
    counts = list(dict.fromkeys(run.subscribers for run in runs))
    return [_median([run for run in runs if run.subscribers == count]) for count in counts]


def _median(runs: Sequence[PushRun]) -> PushRun:
    return msgspec.structs.replace(
        runs[0],
        deliveries_per_second=median(run.deliveries_per_second for run in runs),
        broker_us_per_delivery=median_known([run.broker_us_per_delivery for run in runs]),
        client_us_per_delivery=median(run.client_us_per_delivery for run in runs),
        steady_broker_us_per_delivery=median_known([run.steady_broker_us_per_delivery for run in runs]),
        delivered=median_latency([run.delivered for run in runs]),
    )


def push_table(runs: Sequence[PushRun]) -> Table:
    rows = [
        [
            f"{run.subscribers:,}",
            f"{run.burst_messages:,}",
            f"{run.deliveries_per_second:,.0f}",
            microseconds(run.broker_us_per_delivery),
            microseconds(run.client_us_per_delivery),
            f"{run.rate_per_second:,.0f}",
            microseconds(run.steady_broker_us_per_delivery),
            f"{run.delivered.p50_ms:.2f}",
            f"{run.delivered.p99_ms:.2f}",
        ]
        for run in runs
    ]
    names = (
        "subscribers",
        "burst",
        "deliveries/s",
        "broker us",
        "client us",
        "steady/s",
        "broker us at it",
        "p50 ms",
        "p99 ms",
    )
    return table(*names, rows=rows, numbers=names)


def push_json(load: dict[str, Any], runs: Sequence[PushRun]) -> dict[str, Any]:
    return {
        "load": load,
        "runs": msgspec.to_builtins(runs),
        "medians": msgspec.to_builtins(medians(runs)),
    }
