"""The producers of a client's transactions: one for each transactional id, used by one transaction at a time.

A producer is kept for the next transaction of its id, so that the coordinator is asked for an identity once. A program
should use few ids; if it makes a new one each time, the connections of the oldest are closed (IDLE_MAX).
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.client.errors import ClientError, Closed
from penstock.client.topic_rules import ReadConfigs, TopicRulesCache

if TYPE_CHECKING:  # programs without transactions do not load the Kafka protocol
    from penstock.client.wire.cluster import Cluster
    from penstock.client.wire.transactional_producer import TransactionalProducer

IDLE_MAX: Final = 100
"""Producers without a transaction that keep their connections."""


class TransactionalIds:
    """Usable from all threads."""

    def __init__(self, open_cluster: "Callable[[], Cluster]", read_configs: ReadConfigs) -> None:
        self._open_cluster = open_cluster
        self.rules = TopicRulesCache(read_configs)
        self._lock = threading.Lock()
        self._idle: dict[str, TransactionalProducer] = {}
        self._busy: dict[str, TransactionalProducer] = {}
        self._is_closed = False

    def take(self, transactional_id: str) -> "TransactionalProducer":
        """For one transaction; to be given back at its end."""
        from penstock.client.wire.transactional_producer import TransactionalProducer

        with self._lock:
            if self._is_closed:
                raise Closed("the client was closed: make another one")
            if transactional_id in self._busy:
                raise ClientError(
                    f"a transaction of {transactional_id!r} is open in this client: an id has one at a time; use "
                    "another id for each thread or task"
                )
            producer = self._idle.pop(transactional_id, None) or TransactionalProducer(
                self._open_cluster, transactional_id
            )
            self._busy[transactional_id] = producer
            return producer

    def give_back(self, producer: "TransactionalProducer") -> None:
        surplus = producer
        with self._lock:
            self._busy.pop(producer.transactional_id, None)
            if not self._is_closed:
                self._idle[producer.transactional_id] = producer
                if len(self._idle) <= IDLE_MAX:
                    return
                surplus = self._idle.pop(next(iter(self._idle)))
        surplus.close()

    def close(self) -> None:
        """A transaction that is open is aborted when it times out, or when its id is used again."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, {}
        for producer in idle.values():
            producer.close()
