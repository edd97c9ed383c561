"""Counts and reports the elections that this node wins."""

from penstock.cluster import METADATA_TOPIC
from penstock.node.metrics import NodeMetrics
from penstock.node.parts import Part
from penstock.node.replication.partition import Partition
from penstock.types import EventSink


class Elections(Part):
    """`events` is None on a node without a cluster, which leads everything all the time."""

    def __init__(self, metrics: NodeMetrics, events: EventSink | None) -> None:
        self._metrics = metrics
        self._events = events

    def role_changed(self, partition: Partition) -> None:
        if not partition.serves:
            return
        self._metrics.elections_won += 1
        topic, index = partition.name
        if self._events is None:
            return
        if topic == METADATA_TOPIC:
            self._events.tell("controller.elected", term=partition.term)
        else:
            self._events.tell("leader.elected", topic=topic, partition=index, term=partition.term)
