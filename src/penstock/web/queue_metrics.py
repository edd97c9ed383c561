"""Queues and push as Prometheus' metrics: a part of `metrics`.

Queues are shown by name up to a limit (`node.queues.stats`); those beyond it together, with both labels empty, which
Prometheus takes for no labels at all.
"""

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from penstock.node.queues.stats import Backlog, QueueFigures
from penstock.node.subscriptions.stats import PushFigures

LABELS = ("queue", "topic")

BACKLOG = {
    "available": "Messages that could be handed out now",
    "leased": "Messages in the hands of consumers",
    "deferred": "Messages that are not due yet, or rest after a retry",
    "waiting": "Messages behind another one of their key, or of a queue in strict order",
    "dying": "Messages on their way to the dead letters",
}
COUNTERS = {
    "deliveries": ("delivered", "Messages handed out, as often as each was"),
    "redeliveries": ("redelivered", "Messages handed out that had been before"),
    "returns": ("returned", "Messages given back that nobody had begun, which do not count as delivered"),
    "expired_leases": ("expired", "Messages whose lease ran out"),
    "dead_letters": ("dead", "Messages that were given up: rejected, or delivered too often"),
}


def queue_metrics(queues: Sequence[QueueFigures]) -> Iterator[Metric]:
    for name, text in BACKLOG.items():
        yield _backlog(name, text, queues)
    workers = GaugeMetricFamily(
        "penstock_queue_workers", "Consumers that are connected to this node", labels=LABELS
    )
    for one in queues:
        workers.add_metric([one.group_id, one.topic], one.workers)
    yield workers
    for name, (field, text) in COUNTERS.items():
        family = CounterMetricFamily(f"penstock_queue_{name}", text, labels=LABELS)
        for one in queues:
            family.add_metric([one.group_id, one.topic], getattr(one, field))
        yield family
    yield _settlements(queues)


def _backlog(name: str, text: str, queues: Sequence[QueueFigures]) -> Metric:
    assert name in Backlog._fields
    family = GaugeMetricFamily(f"penstock_queue_{name}", text, labels=LABELS)
    for one in queues:
        if one.backlog is not None:
            family.add_metric([one.group_id, one.topic], getattr(one.backlog, name))
    return family


def _settlements(queues: Sequence[QueueFigures]) -> Metric:
    family = CounterMetricFamily(
        "penstock_queue_settlements",
        "Messages that consumers settled, by outcome",
        labels=[*LABELS, "outcome"],
    )
    for one in queues:
        for outcome, count in one.settled.items():
            family.add_metric([one.group_id, one.topic, outcome], count)
    return family


def push_metrics(push: PushFigures) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "penstock_push_subscribers", "Subscribers attached to this node", push.subscribers
    )
    yield CounterMetricFamily("penstock_push_messages", "Messages pushed, as often as each was", push.pushed)
    yield CounterMetricFamily(
        "penstock_push_acks", "Acks of subscribers; one may stand for many messages", push.acks
    )
    ended = CounterMetricFamily(
        "penstock_push_ended", "Subscribers that have gone, by reason", labels=["reason"]
    )
    for reason, count in push.ended.items():
        ended.add_metric([reason], count)
    yield ended
