"""The session of a queue's consumer: a connection to each node that leads some of the queue's partitions.

Jobs are leased, for `lease_ms` from when the broker handed them out. The session renews the lease of every job that is
in hand or waits to be taken: every quarter of a lease, for all jobs whose lease is at least a quarter old. So a renewal
may take half a lease and still be in time. When a connection breaks, the broker gives its jobs to other consumers at
once.

When a session drains, it *returns* the jobs that were not taken; these do not count as deliveries. More jobs may be
under way at that moment. So the session sets each node's credit to 0 and sends a ping: the pong comes after the last
job, and `is_settled` waits for it.

In an exclusive queue, a job that was fetched ahead could be done before an earlier one that failed. So a connection
starts with the credit for exclusive queues, and raises it when the node has said that the queue is shared.

The session collects what callers say of jobs until the driver asks for effects, and then sends one settle frame for
each partition and delay. Each entry holds for one delivery: if the job was given back meanwhile, and perhaps handed out
again over the same connection, the entry is refused. A broker takes a range of offsets as a whole or not at all: if one
job of a range is no longer this consumer's, the session sends each of them again on its own, so that the others are
settled.
"""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from penstock.client.errors import ClientError, Closed, Denied, LeaseLost
from penstock.client.frames import WORK_PATH, Batches, ErrorFrame, Frame, Pong, Settled, Working, compose
from penstock.client.received_record import OffsetRanges, ranges_of, records_within
from penstock.client.session import ConnectionLoss, Item, Promise, Session, SessionConnection, websocket_url
from penstock.errors import BatchError
from penstock.types import TopicPartition

if TYPE_CHECKING:  # programs without transactions do not load the Kafka protocol
    from penstock.client.wire.producer import TransactionIdentity

SettleAction = Literal["accept", "retry", "reject", "renew", "return", "announce"]
NOT_FINAL: Final = frozenset({"renew", "announce"})
"""The job stays in hand."""
FINAL: Final = frozenset({"accept", "reject"})
"""The job is done: it would not come again."""
RENEWALS_PER_LEASE: Final = 4
OFFSETS_PER_FRAME: Final = 10_000
"""A broker takes frames of one megabyte; an offset on its own has at most 43 bytes in one."""
NO_TRANSACTIONS: Final = (
    "{}: it cannot be settled in a transaction: the broker has an older version, or the queue is a clique's"
)
FAILURES_PER_FRAME: Final = 100
"""With up to 7,300 bytes each: characters may have six bytes in JSON."""


class Credit(NamedTuple):
    """The most jobs that a consumer has at once from each node: in a shared queue, and in an exclusive one."""

    shared: int
    exclusive: int


class Lease(NamedTuple):
    """A job in hand. `order` tells two deliveries of the same offset apart."""

    since: float
    order: int


class JobFailure(NamedTuple):
    """Why a job is retried or rejected: the type and the text of an error."""

    error_type: str
    error_text: str


class SettleEntry(NamedTuple):
    """One action on one job."""

    offset: int
    action: SettleAction
    promise: Promise | None
    order: int
    failure: JobFailure | None = None


class SettleKey(NamedTuple):
    """What the entries of one settle frame have in common."""

    tp: TopicPartition
    delay_ms: int | None = None
    """Of those that are retried."""
    epoch: int | None = None
    """Of the slots of a clique."""
    transaction: "TransactionIdentity | None" = None
    """The transaction that the entries belong to."""


class UnansweredSettle(NamedTuple):
    """The entries of a settle frame that has no answer yet."""

    connection_id: int
    key: SettleKey
    entries: list[SettleEntry]


class CliqueClaim(NamedTuple):
    """The consumer is a member of the clique whose queue this is: it gets the jobs of the slots that it owns."""

    worker: str
    member_id: str


class QueueConnection(SessionConnection):
    """A connection to one node."""

    def __init__(self, connection_id: int, node_url: str) -> None:
        super().__init__(connection_id, node_url)
        self.credit = 0
        self.lease_s = 0.0
        self.renew_at: float | None = None
        self.other_nodes: list[str] = []
        """Nodes that lead other partitions of the queue."""
        self.leases: dict[TopicPartition, dict[int, Lease]] = {}
        """Leases by partition and offset."""
        self.pending: dict[SettleKey, list[SettleEntry]] = {}
        """Entries that are to be sent."""
        self.awaits_pong = False
        """Whether jobs may still be under way although the credit is 0."""
        self.can_return = False
        """A broker that does not say whether a queue is exclusive does not know `return` either: it would close the
        connection."""
        self.takes_failures = False
        """Whether the broker takes the reasons of failures; an older one would close the connection."""
        self.takes_transactions = False
        """The same for settlements that are part of transactions."""


class QueueSession(Session[Item]):
    """A consumer of a queue."""

    path = WORK_PATH

    def __init__(
        self,
        queue: str,
        topics: Sequence[str],
        *,
        make: Callable[..., Item],
        make_suspect: Callable[..., Item] | None = None,
        random: Random,
        credit: Credit,
        standby: bool = False,
        name: str = "",
        reconnect_timeout_s: float | None = None,
        last_problem: str = "",
        max_attempts: int | None = None,
        claim: CliqueClaim | None = None,
    ) -> None:
        """`name`: the broker lists the consumer under it. `max_attempts`: the session fails if the queue allows fewer
        deliveries. `claim`: of a clique's worker, whose epoch `learn` tells. `make_suspect`: of jobs that it announces
        before it begins them. Both are told the epoch of the table by which a clique's worker gets a job."""
        super().__init__(random=random, reconnect_timeout_s=reconnect_timeout_s, last_problem=last_problem)
        self._queue = queue
        self._topics = list(topics)
        self._make = make
        self._make_suspect = make_suspect or make
        self._credit = credit
        self._standby = standby
        self._name = name
        self._is_draining = False
        self._nodes: dict[int, QueueConnection] = {}
        self._unanswered: dict[int, UnansweredSettle] = {}
        self._last_request = 0
        self.lost_leases = 0
        self._max_attempts = max_attempts
        self._claim = claim
        self._epoch = 0
        self.delivery_limit: int | None = None
        """How often the queue delivers a job; 0: without limit, None: not known."""

    # --- jobs in hand

    def settle(
        self,
        item: Item,
        action: SettleAction,
        delay_ms: int | None,
        promise: Promise | None,
        now: float,
        failure: JobFailure | None = None,
        epoch: int | None = None,
        transaction: "TransactionIdentity | None" = None,
    ) -> None:
        """Is sent with the next effects. The promise is resolved when the action is durable, or has failed. `epoch`: of
        the job's slot, when a clique's worker began it; a leader that knows a later owner refuses the action. With a
        transaction the action counts when that commits."""
        node = self._nodes.get(item.connection_id)
        tp = item.topic_partition
        if node is None or not self.holds(item):
            self._lose(action, promise, self._not_held(tp, item.offset))
            return
        if transaction is not None and not node.takes_transactions:
            self._resolve(promise, ClientError(NO_TRANSACTIONS.format(_job_name(tp, item.offset))))
            return
        if action == "renew":
            node.leases[tp][item.offset] = Lease(now, item.order)
        elif action != "announce":
            del node.leases[tp][item.offset]
        key = SettleKey(tp, delay_ms if action == "retry" else None, epoch, transaction)
        node.pending.setdefault(key, []).append(
            SettleEntry(item.offset, action, promise, item.order, failure)
        )

    def take(self) -> Item | None:
        """The next job that this client still holds (3)."""
        while (item := super().take()) is not None and not self.holds(item):
            pass
        return item

    def holds(self, item: Item) -> bool:
        """Whether this client still has the lease of a job, as far as it knows."""
        node = self._nodes.get(item.connection_id)
        lease = None if node is None else node.leases.get(item.topic_partition, {}).get(item.offset)
        return lease is not None and lease.order == item.order

    def drain(self) -> None:
        """Takes no more jobs, and returns those that were not taken, so that other consumers get them at once."""
        if self._is_draining:
            return
        self._is_draining = True
        for node in self._nodes.values():
            if node.is_open:
                self._send(node, compose("credit", credit=0))  # or the broker would hand them to us again
                self._send(node, compose("ping"))
                node.awaits_pong = True
        self._return_ready()

    def _return_ready(self) -> None:
        for item in self.ready:
            if self._nodes[item.connection_id].can_return:  # `ready` has only jobs of open connections (3)
                self.settle(item, "return", None, None, 0.0)
            else:
                self.settle(item, "retry", 0, None, 0.0)
        self.ready.clear()

    @property
    def has_effects(self) -> bool:
        return super().has_effects or any(node.pending for node in self._nodes.values())

    @property
    def is_served(self) -> bool:
        return any(node.lease_s for node in self._nodes.values())

    @property
    def is_settled(self) -> bool:
        return not self._unanswered and not any(
            node.pending or node.awaits_pong for node in self._nodes.values()
        )

    def wake_at(self) -> float | None:
        times = [node.renew_at for node in self._nodes.values() if node.renew_at is not None]
        usual = super().wake_at()
        return min(times if usual is None else [*times, usual], default=None)

    # --- connections

    def _new_connection(self, connection_id: int, node_url: str) -> SessionConnection:
        node = self._nodes[connection_id] = QueueConnection(connection_id, node_url)
        return node

    def _first_frame(self, connection: SessionConnection) -> str:
        assert isinstance(connection, QueueConnection)
        connection.credit = 0 if self._is_draining else min(self._credit)
        options: dict[str, object] = {
            "topics": self._topics,
            "credit": connection.credit,
            "standby": self._standby,
        }
        if self._claim is not None:
            options["clique"] = {**self._claim._asdict(), "epoch": self._epoch}
        return compose("work", queue=self._queue, encoding="batch", name=self._name, **options)

    def learn(self, epoch: int) -> None:
        """A clique's worker knows this table: nodes serve it by this one, or a later one."""
        if epoch <= self._epoch:
            return
        self._epoch = epoch
        for node in self._nodes.values():
            if node.is_open:
                self._send(node, compose("epoch", epoch=epoch))

    def set_credit(self, credit: int) -> None:
        """The most jobs that this consumer has at once from each node, from now on."""
        self._credit = Credit(credit, credit)
        for node in self._nodes.values():
            if node.is_open and not self._is_draining and node.credit != credit:
                node.credit = credit
                self._send(node, compose("credit", credit=credit))

    def _handle(self, connection: SessionConnection, frame: Frame, now: float) -> None:
        assert isinstance(connection, QueueConnection)
        match frame:
            case Batches():
                self._accept_jobs(connection, frame, now)
            case Settled():
                self._handle_settled(connection, frame)
            case Pong():
                connection.awaits_pong = False
            case Working():
                self._handle_working(connection, frame, now)
            case _:
                pass  # a frame for subscriptions

    def _handle_working(self, node: QueueConnection, frame: Working, now: float) -> None:
        self._reset_backoff(node)
        node.lease_s = frame.lease_ms / 1000
        step_s = node.lease_s / RENEWALS_PER_LEASE  # leases may have become shorter while jobs are in hand
        node.renew_at = now + step_s if node.renew_at is None else min(node.renew_at, now + step_s)
        node.other_nodes = [websocket_url(other.url) for other in frame.elsewhere if other.url]
        node.can_return = frame.exclusive is not None
        node.takes_failures = frame.delivery_limit is not None
        node.takes_transactions = frame.transactions
        credit = self._credit.exclusive if frame.exclusive else self._credit.shared
        if credit != node.credit and not self._is_draining:
            node.credit = credit
            self._send(node, compose("credit", credit=credit))
        self._check_limit(frame.delivery_limit)

    def _check_limit(self, limit: int | None) -> None:
        """A worker that counts on more attempts than the queue allows is told so when it starts. If the limit is
        lowered later, the queue's limit counts."""
        is_first, self.delivery_limit = self.delivery_limit is None, limit
        wanted = self._max_attempts
        if is_first and limit and wanted is not None and wanted > limit:
            self._end(
                ClientError(
                    f"max_attempts={wanted} of the worker is above the delivery limit of queue {self._queue!r}, "
                    f"{limit}: jobs would be dead letters before. Raise it with client.admin.alter_queue("
                    f"{self._queue!r}, max_deliveries={wanted}), or lower max_attempts"
                )
            )

    def _plan_reconnect(self, connection: SessionConnection, loss: ConnectionLoss, now: float) -> None:
        self._back_off(connection.node_url, now)
        if loss.redirect is not None:
            self._node_urls.appendleft(websocket_url(loss.redirect))

    def _drop(self, connection: SessionConnection, loss: ConnectionLoss | None) -> None:
        assert isinstance(connection, QueueConnection)
        connection_id = connection.connection_id
        self._nodes.pop(connection_id, None)
        reason = "the connection ended" if loss is not None else "it was closed"
        sent = [number for number, one in self._unanswered.items() if one.connection_id == connection_id]
        unsent = [
            UnansweredSettle(connection_id, key, entries) for key, entries in connection.pending.items()
        ]
        for request in [*map(self._unanswered.pop, sent), *unsent]:
            for entry in request.entries:
                job = _job_name(request.key.tp, entry.offset)
                lost = LeaseLost(f"{job}: {reason} before the answer: it may come again")
                self._lose(entry.action, entry.promise, lost)

    def _keep_connected(self, now: float) -> None:
        super()._keep_connected(now)
        connected = {connection.node_url for connection in self._connections.values()}
        wanted = [url for node in self._nodes.values() if node.is_open for url in node.other_nodes]
        for node_url in dict.fromkeys(wanted):
            if node_url not in connected and self.ended is None and self._may_connect(node_url):
                self._connect(node_url)

    # --- received jobs

    def _accept_jobs(self, node: QueueConnection, batches: Batches, now: float) -> None:
        tp = TopicPartition(batches.head.topic, batches.head.partition)
        acquired = batches.head.acquired
        ranges = [(first, last) for first, last, _deliveries in acquired]
        leases = node.leases.setdefault(tp, {})
        suspects = {offset for first, last in batches.head.announce for offset in range(first, last + 1)}
        makers: list[Callable[..., Item]] = [self._make, self._make_suspect]
        if self._claim is not None:
            makers = [partial(make, table_epoch=batches.head.epoch) for make in makers]
        found = set()
        try:
            for which, record in records_within(batches.data, ranges):
                found.add(record.offset)
                item = makers[record.offset in suspects](
                    tp,
                    record,
                    connection_id=node.connection_id,
                    order=self._next_order(),
                    deliveries=acquired[which][2],
                )
                leases[record.offset] = Lease(now, item.order)
                self.ready.append(item)
        except BatchError:
            self._settle_missing(node, tp, ranges, found, "reject")  # no consumer can read them
        else:
            self._settle_missing(node, tp, ranges, found, "accept")  # deleted meanwhile: nothing to do
        if self._is_draining:
            self._return_ready()  # they were under way when the session drained

    def _settle_missing(
        self,
        node: QueueConnection,
        tp: TopicPartition,
        ranges: OffsetRanges,
        found: set[int],
        action: SettleAction,
    ) -> None:
        """Settles the offsets that were handed out and are not in the batches."""
        if len(found) == sum(last - first + 1 for first, last in ranges):
            return
        entries = node.pending.setdefault(SettleKey(tp), [])
        for first, last in ranges:
            missing = [offset for offset in range(first, last + 1) if offset not in found]
            entries += [SettleEntry(offset, action, None, 0) for offset in missing]

    # --- settle frames

    def _send_pending(self, now: float) -> None:
        for node in self._nodes.values():
            self._renew(node, now)
            pending, node.pending = node.pending, {}
            for key, entries in pending.items():
                has_failures = any(entry.failure is not None for entry in entries)
                step = FAILURES_PER_FRAME if has_failures else OFFSETS_PER_FRAME
                for start in range(0, len(entries), step):
                    self._send_settle(node, key, entries[start : start + step])

    def _send_settle(
        self,
        connection: SessionConnection,
        key: SettleKey,
        entries: list[SettleEntry],
    ) -> None:
        entries = self._without_idle_entries(entries)
        self._last_request += 1
        number = self._last_request
        self._unanswered[number] = UnansweredSettle(connection.connection_id, key, entries)
        tp, delay_ms, epoch, transaction = key
        fields: dict[str, object] = {} if delay_ms is None else {"delay_ms": delay_ms}
        if epoch is not None:
            fields["epoch"] = epoch
        if transaction is not None:
            fields["transaction"] = {
                "id": transaction.transactional_id,
                "producer_id": transaction.producer_id,
                "epoch": transaction.epoch,
            }
        by_action: dict[SettleAction, set[int]] = {}
        for entry in entries:
            by_action.setdefault(entry.action, set()).add(entry.offset)
        fields.update((action, ranges_of(sorted(offsets))) for action, offsets in by_action.items())
        failures = [_failed(entry.offset, entry.failure) for entry in entries if entry.failure is not None]
        if failures and isinstance(connection, QueueConnection) and connection.takes_failures:
            fields["failures"] = failures
        frame = compose("settle", number=number, topic=tp.topic, partition=tp.partition, **fields)
        self._send(connection, frame)

    def _without_idle_entries(self, entries: list[SettleEntry]) -> list[SettleEntry]:
        """The broker would refuse to renew a job that the same frame settles."""
        if not any(entry.action in NOT_FINAL for entry in entries):
            return entries
        final = {entry.offset for entry in entries if entry.action not in NOT_FINAL}
        kept = [entry for entry in entries if entry.action not in NOT_FINAL or entry.offset not in final]
        if len(kept) != len(entries):
            for entry in entries:
                if entry.action in NOT_FINAL and entry.offset in final:
                    self._resolve(entry.promise, None)
        return kept

    def _renew(self, node: QueueConnection, now: float) -> None:
        if node.renew_at is None or now < node.renew_at:
            return
        step_s = node.lease_s / RENEWALS_PER_LEASE
        node.renew_at = now + step_s
        for tp, leases in node.leases.items():
            old = [(offset, one.order) for offset, one in leases.items() if now - one.since >= step_s]
            for offset, order in old:
                node.pending.setdefault(SettleKey(tp), []).append(SettleEntry(offset, "renew", None, order))
                leases[offset] = Lease(now, order)

    def _handle_settled(self, node: QueueConnection, frame: Settled) -> None:
        request = self._unanswered.pop(frame.number, None)
        if request is None:
            return
        error = frame.error
        if error is None:
            self._resolve_all([entry.promise for entry in request.entries if entry.promise is not None])
            return
        for entry in request.entries:
            refused = _range_with(error.refused, entry.offset)
            if error.refused and refused is None:
                self._resolve(entry.promise, None)
            elif refused is not None and refused[0] != refused[1]:
                self._send_settle(node, request.key, [entry])
            else:
                self._lose_lease(node, request.key.tp, entry, error)

    def _lose_lease(
        self, node: QueueConnection, tp: TopicPartition, entry: SettleEntry, error: ErrorFrame
    ) -> None:
        leases = node.leases.get(tp, {})
        if entry.offset in leases and leases[entry.offset].order == entry.order:
            del leases[entry.offset]
        self.lost_leases += 1
        denied = Denied(error.code, error.message)
        lost = LeaseLost(f"{_job_name(tp, entry.offset)}: {denied}: it may come again")
        self._lose(entry.action, entry.promise, lost)

    def _lose(self, action: SettleAction, promise: Promise | None, error: ClientError) -> None:
        """An action had no effect. A job that was retried or returned comes again anyway."""
        if action in FINAL:
            self._has_lost_acks = True
        self._resolve(promise, error)

    def _not_held(self, tp: TopicPartition, offset: int) -> ClientError:
        if self.ended is not None and isinstance(self.ended, Closed):
            return Closed(f"{_job_name(tp, offset)}: the queue was closed; the job was given back")
        return LeaseLost(
            f"{_job_name(tp, offset)} is settled already, or no longer this client's: its connection ended, or its "
            "lease ran out. Another consumer may have it"
        )


def _failed(offset: int, failure: JobFailure) -> dict[str, object]:
    return {"first": offset, "last": offset, **failure._asdict()}


def _range_with(ranges: OffsetRanges, offset: int) -> tuple[int, int] | None:
    return next((one for one in ranges if one[0] <= offset <= one[1]), None)


def _job_name(tp: TopicPartition, offset: int) -> str:
    return f"job {tp} at {offset}"
