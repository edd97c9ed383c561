"""Queues at work: share groups on the partitions that this node leads, and where they keep what must survive.

`store` keeps their state in an internal topic, on whichever node leads it; `driver` runs one queue on one partition;
`notes` reads what records say about their own delivery; `burial` copies dead letters; `manager` finds the rest.
"""

from penstock.node.queues.driver import Acknowledgement, Consumer, Delivery, QueueDriver
from penstock.node.queues.manager import QueueManager
from penstock.node.queues.overview import QueueOverview, QueuePicture
from penstock.node.queues.sessions import ShareSession, ShareSessions

__all__ = [
    "Acknowledgement",
    "Consumer",
    "Delivery",
    "QueueDriver",
    "QueueManager",
    "QueueOverview",
    "QueuePicture",
    "ShareSession",
    "ShareSessions",
]
