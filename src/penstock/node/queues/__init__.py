"""Queues at work: share groups on the partitions that this node leads, and where they keep what must survive.

`store` keeps their state in an internal topic, on whichever node leads it; `driver` runs one queue on one partition,
`beginning` says where it begins there, and `reading` reads the log for it;
`exclusive` keeps all but one consumer away where that is wanted; `notes` reads what records say about their own
delivery; `burial` copies dead letters; `admission` lets the group coordinator know of each queue; `manager` finds the
drivers, `overview` and `desk` those on other nodes too.
"""

from penstock.node.queues.driver import QueueDriver
from penstock.node.queues.manager import QueueManager
from penstock.node.queues.overview import QueueOverview
from penstock.node.queues.router import QueueRouter
from penstock.node.queues.sessions import ShareSession, ShareSessions
from penstock.node.queues.values import Acknowledgement, Consumer, Delivery, NotLeased

__all__ = [
    "Acknowledgement",
    "Consumer",
    "Delivery",
    "NotLeased",
    "QueueDriver",
    "QueueManager",
    "QueueOverview",
    "QueueRouter",
    "ShareSession",
    "ShareSessions",
]
