"""The bytes of records over HTTP and WebSockets: the node counts them for its figures, and quotas count those of a user
together with those of its Kafka clients.

On the Kafka port, the node stops reading from the connection of a client above its quota. Over HTTP it does not: a
request of a user above its quota is refused with 429 and `Retry-After`, before anything is done. A WebSocket gets its
next records later.

    publishing                       producer_byte_rate: the body of the request
    reading, receiving, peeking      consumer_byte_rate: the body of the response
    push and work                    consumer_byte_rate: frames with records
    creating topics, ...             controller_mutation_rate: Kafka's handlers count

The table of operations says which of them count. Settling jobs and heartbeats never do: a lease would be lost.
"""

from math import ceil

from penstock.node import Node
from penstock.security.quotas import QuotaKind
from penstock.types import Caller
from penstock.web.api.problems import Problem


def check_quota(node: Node, caller: Caller, kind: QuotaKind | None) -> None:
    """Problem if the caller is above this quota."""
    if kind is None or not node.quotas.in_force:
        return
    throttle_ms = node.quotas.throttle_ms(kind, caller)
    if throttle_ms:
        node.quotas.throttled(kind)
        seconds = ceil(throttle_ms / 1000)
        message = f"the quota {kind} is exceeded: try again in {seconds} seconds"
        raise Problem(429, "throttled", message, retry_after_seconds=seconds)


def count_bytes(node: Node, caller: Caller, kind: QuotaKind | None, *, received: int, sent: int) -> None:
    """Counts the bytes of a request that was served."""
    if kind is None:
        return
    if kind is QuotaKind.PRODUCER_BYTE_RATE:
        size = received
        node.metrics.http_bytes_in += size
    else:
        size = sent
        node.metrics.http_bytes_out += size
    if node.quotas.in_force:
        node.quotas.record(kind, caller, size)


class SocketQuota:
    """The consumer_byte_rate of one WebSocket's user."""

    def __init__(self, node: Node, caller: Caller) -> None:
        self._quotas = node.quotas
        self._metrics = node.metrics
        self._caller = caller

    def wait_seconds(self) -> float:
        """How long the next records must wait."""
        if not self._quotas.in_force:
            return 0.0
        return self._quotas.throttle_ms(QuotaKind.CONSUMER_BYTE_RATE, self._caller) / 1000

    def sent(self, size: int) -> None:
        """Counts a frame with records."""
        kind = QuotaKind.CONSUMER_BYTE_RATE
        self._metrics.http_bytes_out += size
        if self._quotas.in_force and self._quotas.record(kind, self._caller, size):
            self._quotas.throttled(kind)
