"""The node: the only package that waits. It owns the event loop, the disk and the clock, and carries out what the cores
decide."""

from penstock.node.metadata.metadata_log import MetadataLog
from penstock.node.node import Node
from penstock.node.replication.fetch_waiter import FetchWaiter
from penstock.node.replication.partition import Partition
from penstock.node.replication.replica import ReplicaFacts

__all__ = ["FetchWaiter", "MetadataLog", "Node", "Partition", "ReplicaFacts"]
