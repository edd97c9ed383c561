"""Transactions as Prometheus' metrics: a part of `metrics`."""

from collections.abc import Iterator, Sequence
from heapq import nlargest

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from penstock.node.transactions.figures import TransactionFigures
from penstock.web.snapshot import PartitionFigures

UNSTABLE_PARTITIONS_MAX = 100
"""Partitions that have a series of their own for the lag of the last stable offset. A producer may have ten thousand in
one transaction; those that are farthest behind tell enough."""


def transaction_metrics(
    figures: TransactionFigures, partitions: Sequence[PartitionFigures]
) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "penstock_transactions_open",
        "Transactions of this node's coordinators that are open or being ended",
        figures.open,
    )
    yield GaugeMetricFamily(
        "penstock_transactions_oldest_seconds",
        "How long the oldest of them has been open",
        figures.oldest_ms / 1000,
    )
    yield GaugeMetricFamily(
        "penstock_transaction_attempts_open",
        "Those that are attempts of tasks, about which their driver has not decided",
        figures.attempts,
    )
    yield GaugeMetricFamily(
        "penstock_transaction_attempts_oldest_seconds",
        "How long the oldest of these attempts has been open",
        figures.oldest_attempt_ms / 1000,
    )
    ended = CounterMetricFamily(
        "penstock_transactions_ended", "Transactions that have ended, by outcome", labels=["outcome"]
    )
    ended.add_metric(["committed"], figures.committed)
    ended.add_metric(["aborted"], figures.aborted)
    yield ended
    yield from _unstable(partitions)


def _unstable(partitions: Sequence[PartitionFigures]) -> Iterator[Metric]:
    lag = GaugeMetricFamily(
        "penstock_last_stable_lag",
        "Offsets between the last stable one and the end of a partition that this node leads",
        labels=["topic", "partition"],
    )
    waiting = [one for one in partitions if one.unstable]
    for one in nlargest(UNSTABLE_PARTITIONS_MAX, waiting, key=lambda one: one.unstable):
        lag.add_metric([one.topic, str(one.partition)], one.unstable)
    yield GaugeMetricFamily(
        "penstock_unstable_partitions", "Partitions led here that have an open transaction", len(waiting)
    )
    yield lag
