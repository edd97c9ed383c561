"""Queues and push as Prometheus' metrics: a part of `metrics`.

Queues have their name as a label up to a limit (`node.queues.stats`); those beyond it are one series with empty labels,
which Prometheus treats as no labels.
"""

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from penstock.node.cliques import CliqueFigures
from penstock.node.queues.stats import QueueFigures
from penstock.node.subscriptions.stats import PushFigures
from penstock.queue import Backlog

LABELS = ("queue", "topic")

BACKLOG = {
    "available": "Messages that can be delivered now",
    "leased": "Messages that consumers lease",
    "deferred": "Messages that are not due yet, or wait for their next retry",
    "waiting": "Messages behind another one of their key, or of a queue in strict order",
    "dying": "Messages that are being copied to the dead letters",
}
COUNTERS = {
    "deliveries": ("delivered", "Deliveries of messages"),
    "redeliveries": ("redelivered", "Deliveries of messages that had been delivered before"),
    "returns": ("returned", "Messages returned unbegun, which do not count as deliveries"),
    "expired_leases": ("expired", "Messages whose lease expired"),
    "deleted_undone": (
        "deleted",
        "Messages that were deleted, by retention or on request, before they were done",
    ),
    "dead_letters": ("dead", "Messages that were rejected, or delivered too often"),
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
    yield _consumers(queues)
    for name, (field, text) in COUNTERS.items():
        family = CounterMetricFamily(f"penstock_queue_{name}", text, labels=LABELS)
        for one in queues:
            family.add_metric([one.group_id, one.topic], getattr(one, field))
        yield family
    yield _settlements(queues)


def _consumers(queues: Sequence[QueueFigures]) -> Metric:
    family = GaugeMetricFamily(
        "penstock_queue_consumers",
        "Consumers on this node: connected, or over HTTP within the last minute",
        labels=[*LABELS, "interface"],
    )
    for one in queues:
        for interface, count in one.consumers.items():
            family.add_metric([one.group_id, one.topic, interface], count)
    return family


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
    yield CounterMetricFamily(
        "penstock_push_messages", "Messages pushed, once for each subscriber", push.pushed
    )
    yield CounterMetricFamily(
        "penstock_push_acks", "Acks of subscribers; one may be for many messages", push.acks
    )
    ended = CounterMetricFamily(
        "penstock_push_ended", "Subscribers that were detached, by reason", labels=["reason"]
    )
    for reason, count in push.ended.items():
        ended.add_metric([reason], count)
    yield ended


def clique_metrics(cliques: CliqueFigures) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "penstock_cliques", "Cliques that this node coordinates, also without workers", cliques.cliques
    )
    for name, text, numbers in (
        ("members", "Workers of a clique that this node coordinates", cliques.members),
        ("revoked_slots", "Slots of a clique that are being handed over", cliques.revoked),
    ):
        family = GaugeMetricFamily(f"penstock_clique_{name}", text, labels=["clique"])
        for clique, number in numbers.items():
            family.add_metric([clique], number)
        yield family
    changes = CounterMetricFamily(
        "penstock_clique_member_changes", "Workers that joined or left cliques, by event", labels=["event"]
    )
    for event in ("joined", "left", "expired"):
        changes.add_metric([event], getattr(cliques, event))
    yield changes
    yield CounterMetricFamily(
        "penstock_clique_handovers", "Slots that went from one worker to another", cliques.handovers
    )
    yield CounterMetricFamily(
        "penstock_clique_fenced",
        "Settlements and connections of workers that were refused because of an old epoch",
        cliques.fenced,
    )
