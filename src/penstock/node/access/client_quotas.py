"""Quotas at work: the table from the metadata, and what clients of this node have used.

Quotas hold on each node, as in Kafka: a client that uses three nodes may use three times as much. Mutations are counted
by the controller. While no quota is set, `in_force` is False and nothing is measured.
"""

import asyncio

from penstock.cluster import ClusterState
from penstock.errors import ErrorCode, KafkaError
from penstock.node.metrics import NodeMetrics
from penstock.node.parts import Part, TopicChanges
from penstock.security.principals import name_of
from penstock.security.quotas import QuotaKind
from penstock.security.throttling import ClientQuotas
from penstock.types import BROKER_PRINCIPAL, Caller


class Quotas(Part):
    """One per node, on its event loop. All times are milliseconds."""

    def __init__(self, state: ClusterState, metrics: NodeMetrics) -> None:
        self._state = state
        self._metrics = metrics
        self._used = ClientQuotas()
        self._loop_time = asyncio.get_running_loop().time
        self.in_force = False
        """Whether any quota is set. Requests look at this first, and at nothing else if it is False."""

    def metadata_changed(self, topics: TopicChanges) -> None:
        self._used.table = self._state.quotas.table
        self.in_force = bool(self._used.table.entries)

    def _now_ms(self) -> int:
        return int(self._loop_time() * 1000)

    def _counts(self, caller: Caller) -> bool:
        """Nodes of the cluster have no quotas."""
        return self.in_force and caller.principal != BROKER_PRINCIPAL

    # --- bytes and request time

    def record(self, kind: QuotaKind, caller: Caller, value: float) -> int:
        """Counts what a client has used. Returns how long to throttle it."""
        if not self._counts(caller):
            return 0
        return self._used.record(kind, name_of(caller.principal), caller.client_id, value, self._now_ms())

    def take_back(self, kind: QuotaKind, caller: Caller, value: float) -> None:
        """Takes back a count: the response is not sent after all."""
        self._used.unrecord(kind, name_of(caller.principal), caller.client_id, value, self._now_ms())

    def throttle_ms(self, kind: QuotaKind, caller: Caller) -> int:
        """How long a client must wait because of what it has used before."""
        if not self._counts(caller):
            return 0
        return self._used.throttle_ms(kind, name_of(caller.principal), caller.client_id, self._now_ms())

    def most_at_once(self, kind: QuotaKind, caller: Caller) -> float | None:
        """The most that one response may have without exceeding the quota by itself; None: no quota."""
        if not self._counts(caller):
            return None
        return self._used.most_at_once(kind, name_of(caller.principal), caller.client_id)

    # --- connections

    def connected(self, ip: str) -> int:
        """Counts a new connection. 0 if it is served, else after how long it is closed."""
        throttle_ms = self._used.record_connection(ip, self._now_ms()) if self.in_force else 0
        if throttle_ms:
            self.throttled(QuotaKind.CONNECTION_CREATION_RATE)
        return throttle_ms

    # --- mutations

    def mutations(self, caller: Caller, *, strict: bool) -> "Mutations":
        """For one request. `strict`: its version can be answered with THROTTLING_QUOTA_EXCEEDED."""
        return Mutations(self, caller, strict=strict)

    def record_mutations(self, caller: Caller, partitions: int, *, strict: bool) -> tuple[bool, int]:
        if not self._counts(caller):
            return True, 0
        user = name_of(caller.principal)
        return self._used.record_mutations(user, caller.client_id, partitions, self._now_ms(), strict=strict)

    # --- metrics

    def throttled(self, kind: QuotaKind) -> None:
        """A request or a connection was throttled or refused because of this quota."""
        self._metrics.throttled[kind] = self._metrics.throttled.get(kind, 0) + 1


class Mutations:
    """The partitions that one request creates or deletes (KIP-599)."""

    __slots__ = ("_caller", "_quotas", "_strict", "throttle_ms")

    def __init__(self, quotas: Quotas, caller: Caller, *, strict: bool) -> None:
        self._quotas = quotas
        self._caller = caller
        self._strict = strict
        self.throttle_ms = 0
        """How long to throttle the client for this request."""

    def count(self, partitions: int) -> None:
        """Counts the partitions of one topic; THROTTLING_QUOTA_EXCEEDED if it is refused. The controller decides one
        request at a time, so this may run in the thread of the decision: nothing else counts mutations meanwhile."""
        admitted, throttle_ms = self._quotas.record_mutations(self._caller, partitions, strict=self._strict)
        self.throttle_ms = max(self.throttle_ms, throttle_ms)
        if not admitted:
            message = (
                f"the quota {QuotaKind.CONTROLLER_MUTATION_RATE} is exceeded: try again in {throttle_ms} ms"
            )
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, message)
