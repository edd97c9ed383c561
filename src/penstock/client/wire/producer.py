"""Sends batches to the leaders of their partitions: idempotent, acked by all replicas, several requests in flight.

`send` queues batches until they fill a request. Then the producer reads the answers that have arrived, and sends each
leader requests with the oldest batch of each of its partitions, up to `max_in_flight` of them unanswered. Memory is
bounded: with `buffer_bytes` unacked, `send` reads answers before it accepts more. `flush` returns when all is acked.

partition_queue.py keeps the order of each partition and decides what may be sent, produce_results.py interprets
answers, producer_connection.py talks to one broker; this module waits. One thread, no callbacks: the first batch that
cannot be delivered ends the producer, and every later call raises the same error.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, Self

from penstock.batch import HEADER_SIZE, Record
from penstock.batch.outgoing import pack_batch
from penstock.batch.producing import EncodedRows
from penstock.client.errors import ClientError, Refused
from penstock.client.wire.cluster import Cluster
from penstock.client.wire.partition_queue import Batch, Identity, PartitionQueue, batch_of
from penstock.client.wire.produce_results import BatchOutcome, DeliveryTimedOut, outcome_of, refused
from penstock.client.wire.producer_connection import ProducerConnection, Sent
from penstock.client.wire.settings import BATCH_BYTES, MAX_IN_FLIGHT, REQUEST_OVERHEAD_BYTES
from penstock.errors import ConfigError, ErrorCode
from penstock.kafka.wire.messages.produce import PartitionProduceResponse
from penstock.types import TopicPartition

MAX_BACKOFF_S: Final = 1.0


class TransactionIdentity(NamedTuple):
    """An open transaction: the id of its producer's coordinator, and the producer."""

    transactional_id: str
    producer_id: int
    epoch: int

    @property
    def identity(self) -> Identity:
        return Identity(self.producer_id, self.epoch)


class BatchProducer:
    """Produces whole batches. For one thread, on a cluster that outlives it."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        compression: int = 0,
        max_in_flight: int = MAX_IN_FLIGHT,
        delivery_timeout_ms: int = 120_000,
        max_request_bytes: int = 1 << 20,
        batch_bytes: int = BATCH_BYTES,
        buffer_bytes: int = 32 << 20,
        transaction: TransactionIdentity | None = None,
    ) -> None:
        """`transaction`: all batches are part of it."""
        if not 1 <= max_in_flight <= MAX_IN_FLIGHT:
            raise ConfigError("max_in_flight", max_in_flight, f"1 .. {MAX_IN_FLIGHT}, to keep the order")
        self._cluster = cluster
        self._compression = compression
        self._max_in_flight = max_in_flight
        self._delivery_timeout_ms = delivery_timeout_ms
        self._max_request_bytes = max_request_bytes
        self._batch_bytes = max(1, min(batch_bytes, max_request_bytes - REQUEST_OVERHEAD_BYTES))
        self._buffer_bytes = buffer_bytes
        self._transaction = transaction
        self._identity = None if transaction is None else transaction.identity
        self._partitions: dict[str, int] = {}
        self._topic_batch_bytes: dict[str, int] = {}
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._links: dict[int, ProducerConnection] = {}
        self._buffered = 0
        self._unsent = 0
        self._broken: ClientError | None = None
        self.acked_rows = 0
        self.acked_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    def close(self) -> None:
        """Drops unacked batches; call `flush` first."""
        while self._links:
            self._links.popitem()[1].close()

    # --- for callers

    def partitions_of(self, topic: str) -> int:
        """The number of partitions. A missing topic is created if the broker creates topics on first use."""
        count = self._partitions.get(topic)
        if count is None:
            count = self._partitions[topic] = len(self._cluster.topic_to_write(topic).partitions)
        return count

    def forget_topics(self) -> None:
        """Drops the cached partition counts: topics get more partitions, or are deleted."""
        self._partitions.clear()

    def batch_bytes(self, topic: str) -> int:
        """The size of batches for a topic: smaller after the topic has refused larger ones."""
        return self._topic_batch_bytes.get(topic, self._batch_bytes)

    def send(self, tp: TopicPartition, rows: EncodedRows) -> None:
        """Queues a batch. May wait for answers to earlier ones, and raises if one of them cannot be delivered."""
        if rows.rows == 1 and len(rows.payload) + HEADER_SIZE > self._max_request_bytes:
            raise Refused(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"producing to {tp}",
                f"a record of {len(rows.payload)} bytes where max_request_bytes={self._max_request_bytes}: raise it "
                "(max.request.size) and the topic's max.message.bytes, or make the record smaller",
            )
        queue = self._open_queue(tp)
        data = pack_batch(
            rows,
            compression=self._compression,
            producer_id=queue.identity.producer_id,
            producer_epoch=queue.identity.epoch,
            base_sequence=queue.next_sequence,
            transactional=queue.transactional,
        )
        self._add(queue, data, rows.rows)

    def send_records(self, topic: str, partition: int, records: Sequence[Record]) -> None:
        """Queues records, in batches of the usual size. Their offsets are ignored."""
        tp = TopicPartition(topic, partition)
        for part in _parts(records, self.batch_bytes(topic)):
            queue = self._open_queue(tp)
            data = batch_of(
                part,
                self._compression,
                queue.identity,
                queue.next_sequence,
                transactional=queue.transactional,
            )
            self._add(queue, data, len(part))

    def flush(self) -> None:
        """Returns when everything is acked."""
        with self._guarded():
            while self._buffered:
                self._make_progress()

    # --- queueing

    def _open_queue(self, tp: TopicPartition) -> PartitionQueue:
        with self._guarded():
            while self._buffered >= self._buffer_bytes:
                self._make_progress()
            queue = self._queues.get(tp)
            if queue is None:
                is_part = self._transaction is not None
                queue = self._queues[tp] = PartitionQueue(tp, self._first_identity(), transactional=is_part)
        return queue

    def _add(self, queue: PartitionQueue, data: bytes, rows: int) -> None:
        deadline_s = time.monotonic() + self._delivery_timeout_ms / 1000
        queue.add(Batch(data=data, rows=rows, sequence=queue.next_sequence, deadline_s=deadline_s))
        self._buffered += len(data)
        self._unsent += len(data)
        if self._unsent >= self._max_request_bytes:
            with self._guarded():
                self._take_answers()
                self._send_ready()

    def _first_identity(self) -> Identity:
        if self._identity is None:
            self._identity = Identity(*self._cluster.init_producer_id())
        return self._identity

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Keeps a final error, which every later call raises."""
        if self._broken is not None:
            raise self._broken
        try:
            yield
        except ClientError as problem:
            self._broken = problem
            self.close()
            raise

    # --- sending

    def _make_progress(self) -> None:
        """Sends what it can and waits for one answer, or for the end of a pause if no answer is due."""
        self._send_ready()
        busy = [connection for connection in self._links.values() if connection.requests]
        if busy:
            self._receive(min(busy, key=lambda connection: connection.requests[0][0].batch.deadline_s))
            return
        pauses = [queue.not_before_s for queue in self._queues.values() if queue.has_work()]
        time.sleep(max(0.0, min(pauses, default=0.0) - time.monotonic()))

    def _send_ready(self) -> None:
        self._unsent = 0
        for node_id, queues in self._by_leader().items():
            connection = self._link(node_id, queues)
            while connection is not None and len(connection.requests) < self._max_in_flight:
                request = self._pick(queues, node_id)
                if not request:
                    break
                if not self._send(connection, request):
                    break

    def _by_leader(self) -> dict[int, list[PartitionQueue]]:
        """The queues that have something to send, by leader, the oldest batch first."""
        now_s = time.monotonic()
        found: dict[int, list[PartitionQueue]] = {}
        ready = [queue for queue in self._queues.values() if queue.has_work() and queue.not_before_s <= now_s]
        for queue in sorted(ready, key=lambda queue: queue.head.deadline_s):
            try:
                if queue.lost_state:
                    queue.restart(Identity(*self._cluster.init_producer_id()))
                node_id = self._cluster.leader_once(queue.topic_partition)
            except ClientError as problem:
                self._pause(queue, queue.head, problem)
                continue
            if queue.may_go_to(node_id):
                found.setdefault(node_id, []).append(queue)
        return found

    def _pick(self, queues: list[PartitionQueue], node_id: int) -> list[Sent]:
        """One request: at most one batch of each partition, up to the size limit of a request."""
        request: list[Sent] = []
        size = 0
        for queue in queues:
            if not queue.has_work():
                continue
            size += len(queue.head.data) + REQUEST_OVERHEAD_BYTES
            if request and size > self._max_request_bytes:
                break
            request.append(Sent(queue, queue.take(node_id)))
        # Partitions in this request come after the others next time.
        queues.sort(key=lambda queue: queue.in_flight)
        return request

    def _link(self, node_id: int, queues: list[PartitionQueue]) -> ProducerConnection | None:
        connection = self._links.get(node_id)
        if connection is None:
            try:
                name = None if self._transaction is None else self._transaction.transactional_id
                connection = self._links[node_id] = ProducerConnection(node_id, self._cluster, name)
            except ClientError as problem:
                self._cluster.forget_leaders({queue.topic_partition.topic for queue in queues})
                for queue in queues:
                    self._pause(queue, queue.head, problem)
        return connection

    def _send(self, connection: ProducerConnection, request: list[Sent]) -> bool:
        try:
            connection.send(request)
        except ClientError as problem:
            self._lose(connection, problem)
            return False
        return True

    # --- answers

    def _take_answers(self) -> None:
        """Reads the answers that have arrived, without waiting."""
        for connection in list(self._links.values()):
            while self._links.get(connection.node_id) is connection and connection.has_answer():
                self._receive(connection)

    def _receive(self, connection: ProducerConnection) -> None:
        try:
            answers = connection.receive()
        except ClientError as problem:
            self._lose(connection, problem)
            return
        for sent, row in answers:
            self._apply(sent, row)

    def _apply(self, sent: Sent, row: PartitionProduceResponse) -> None:
        queue, batch = sent
        outcome = outcome_of(row.error_code, queue, batch)
        if outcome is BatchOutcome.WRITTEN:
            self._note_written(queue, batch)
            return
        problem = refused(queue.topic_partition, row.error_code, row.error_message)
        if outcome is BatchOutcome.FATAL:
            raise problem
        if outcome is BatchOutcome.SMALLER:
            self._cut(queue, batch)
            return
        if outcome is BatchOutcome.RESTART:
            queue.lost_state = True
        first = queue.is_first()
        queue.failed()
        if first:  # the failures behind it follow from the first
            self._cluster.forget_leaders([queue.topic_partition.topic])
            self._pause(queue, batch, problem, retriable=True)

    def _cut(self, queue: PartitionQueue, batch: Batch) -> None:
        """The topic accepts only smaller batches: from now on they are made small enough."""
        topic = queue.topic_partition.topic
        # By the size of the refused batch, not of its halves: several of that size may be in flight.
        self._topic_batch_bytes[topic] = max(1, min(self.batch_bytes(topic), len(batch.data) // 2))
        self._buffered += queue.failed_too_large()

    def _note_written(self, queue: PartitionQueue, batch: Batch) -> None:
        queue.acked()
        self._buffered -= len(batch.data)
        self.acked_rows += batch.rows
        self.acked_bytes += len(batch.data)

    def _lose(self, connection: ProducerConnection, problem: ClientError) -> None:
        """The connection is gone: any of its requests may have been written or not, so all are sent again."""
        del self._links[connection.node_id]
        connection.close()
        oldest: dict[PartitionQueue, Batch] = {}
        for request in connection.requests:
            for queue, batch in request:
                queue.failed()
                oldest.setdefault(queue, batch)
        self._cluster.forget_leaders({queue.topic_partition.topic for queue in oldest})
        for queue, batch in oldest.items():
            self._pause(queue, batch, problem)

    def _pause(
        self, queue: PartitionQueue, batch: Batch, problem: ClientError, *, retriable: bool = False
    ) -> None:
        """Pauses a partition after a problem; raises the problem if it is final, or retries have timed out.

        The time counts from the first failure: before that, the caller may have been busy elsewhere, so that the
        producer neither read answers nor retried.
        """
        now_s = time.monotonic()
        if not (retriable or problem.retriable):
            raise problem
        if not queue.tries:
            queue.retry_until_s = now_s + self._delivery_timeout_ms / 1000
        if now_s >= max(batch.deadline_s, queue.retry_until_s):
            raise DeliveryTimedOut(
                queue.topic_partition, batch.rows, self._delivery_timeout_ms, problem
            ) from problem
        backoff_s = self._cluster.settings.retry_backoff_ms / 1000 * 2 ** min(queue.tries, 16)
        queue.tries += 1
        queue.not_before_s = now_s + min(backoff_s, MAX_BACKOFF_S)


def _parts(records: Sequence[Record], max_bytes: int) -> Iterable[list[Record]]:
    """Records cut into batches of about `max_bytes`."""
    part: list[Record] = []
    size = 0
    for record in records:
        size += _size(record)
        if part and size > max_bytes:
            yield part
            part, size = [], _size(record)
        part.append(record)
    if part:
        yield part


def _size(record: Record) -> int:
    headers = sum(len(name) * 4 + len(value or b"") + 10 for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + 32
