"""The cores of queues and subscriptions, sans-I/O: the state of one share group on one partition, its stored form, and
the order in which a subscriber is sent messages.

Start reading at `partition.py`; `values.py` has its inputs and outputs. Here is what nodes tell each other about
queues: a node without queues loads no more of the package."""

from penstock.queue.stored_values import NO_FENCE, Backlog, Claimed, Fence, Outcomes, QueueKey, StatePart

__all__ = ["NO_FENCE", "Backlog", "Claimed", "Fence", "Outcomes", "QueueKey", "StatePart"]
