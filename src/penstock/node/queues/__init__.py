"""Queues: share groups on the partitions that this node leads, and their durable state.

`driver` runs one queue on one partition: `start_position` says where it begins, `log_reader` reads the log for it,
`delivery_headers` reads the headers of records that control their delivery, `state_saver` saves its changes,
`consumers` lists its consumers for people, `waiting_consumers` has those that wait, `exclusive_consumer` admits one
consumer at a time, and `dead_letter_copier` copies failed messages with `dead_letters`. `state_log` has the stored
state of queues, and `state_client` asks for it on the node that leads it. `registration` tells the group coordinator of
each queue. `manager` finds the drivers of this node; `overview` and `router` ask the leaders of all partitions.
"""

from penstock.node.queues.driver import QueueDriver
from penstock.node.queues.sessions import ShareSession
from penstock.node.queues.values import Consumer, NotLeased
from penstock.queue.values import Acknowledgement

__all__ = ["Acknowledgement", "Consumer", "NotLeased", "QueueDriver", "ShareSession"]
