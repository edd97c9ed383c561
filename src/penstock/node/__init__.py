"""The machine room: the only place that waits. It owns the event loop's work, the disk and the clock, drives the cores
and carries out what they decide."""

from penstock.node.metadata import MetadataLog
from penstock.node.node import Node
from penstock.node.partition import Partition, ReplicaFacts
from penstock.node.waiter import FetchWaiter

__all__ = ["FetchWaiter", "MetadataLog", "Node", "Partition", "ReplicaFacts"]
