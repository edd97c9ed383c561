"""Batches to their partitions' leaders: idempotent, acked by all replicas, several requests at a time.

`send` only queues until a request's worth has come together; then answers that have arrived are read, and each leader
gets requests with the oldest batch of each of its partitions, up to `max_in_flight` of them unanswered. Memory is
bounded: with `buffer_bytes` unacked, `send` reads answers before it takes more. `flush` returns when all is acked.

producer_queue.py holds the order of each partition and says what may go, producer_answers.py says what an answer
means, producer_link.py speaks to one broker. Here is the waiting. One thread, no callbacks: the first batch that
cannot be delivered ends the producer, and every later call raises the same error.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Self

from penstock.batch import HEADER_SIZE, EncodedRows, Record, pack_batch
from penstock.client.errors import ClientError, Refused
from penstock.client.wire.cluster import Cluster
from penstock.client.wire.partition_queue import (
    MAX_IN_FLIGHT,
    Batch,
    Identity,
    PartitionQueue,
    batch_of,
)
from penstock.client.wire.produce_results import DeliveryTimedOut, Verdict, judge, refusal
from penstock.client.wire.producer_connection import Link, Sent
from penstock.client.wire.producer_topics import partition_count
from penstock.errors import ConfigError, ErrorCode
from penstock.kafka.wire.messages.produce import PartitionProduceResponse
from penstock.types import TopicPartition

REQUEST_OVERHEAD_BYTES: Final = 1 << 10
"""What a request has around a batch: headers, and a topic name of at most 249 bytes."""
BATCH_BYTES: Final = 256 << 10
"""Larger batches gain nothing (see the head of batch/_encode.py) and meet the topics' limits sooner."""
MAX_BACKOFF_S: Final = 1.0


class BatchProducer:
    """For one thread, on a cluster that outlives it."""

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
    ) -> None:
        if not 1 <= max_in_flight <= MAX_IN_FLIGHT:
            raise ConfigError("max_in_flight", max_in_flight, f"1 .. {MAX_IN_FLIGHT}, to keep the order")
        self._cluster = cluster
        self._compression = compression
        self._max_in_flight = max_in_flight
        self._delivery_timeout_ms = delivery_timeout_ms
        self._max_request_bytes = max_request_bytes
        self._batch_bytes = max(1, min(batch_bytes, max_request_bytes - REQUEST_OVERHEAD_BYTES))
        self._buffer_bytes = buffer_bytes
        self._identity: Identity | None = None
        self._partitions: dict[str, int] = {}
        self._topic_batch_bytes: dict[str, int] = {}
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._links: dict[int, Link] = {}
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
        """Drops what is not acked; `flush` first."""
        while self._links:
            self._links.popitem()[1].close()

    # --- what callers ask

    def partitions_of(self, topic: str) -> int:
        """How many partitions a topic has. One that is missing is created if the broker does so on first use."""
        count = self._partitions.get(topic)
        if count is None:
            count = self._partitions[topic] = partition_count(self._cluster, topic)
        return count

    def forget_topics(self) -> None:
        """Asks again how many partitions topics have: they grow, and topics are deleted."""
        self._partitions.clear()

    def batch_bytes(self, topic: str) -> int:
        """How large a batch's records should be: less where a topic has refused larger ones."""
        return self._topic_batch_bytes.get(topic, self._batch_bytes)

    def send(self, place: TopicPartition, rows: EncodedRows) -> None:
        """Queues a batch. May wait for answers to earlier ones, and raises if one of them is lost for good."""
        if rows.rows == 1 and len(rows.payload) + HEADER_SIZE > self._max_request_bytes:
            raise Refused(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"producing to {place}",
                f"a record of {len(rows.payload)} bytes where max_request_bytes={self._max_request_bytes}: raise it "
                "(max.request.size) and the topic's max.message.bytes, or make the record smaller",
            )
        queue = self._make_room(place)
        data = pack_batch(
            rows,
            compression=self._compression,
            producer_id=queue.identity.producer_id,
            producer_epoch=queue.identity.epoch,
            base_sequence=queue.next_sequence,
        )
        self._add(queue, data, rows.rows)

    def send_records(self, topic: str, partition: int, records: Sequence[Record]) -> None:
        """Queues records, in batches of the usual size. Their offsets are not looked at."""
        place = TopicPartition(topic, partition)
        for part in _parts(records, self.batch_bytes(topic)):
            queue = self._make_room(place)
            data = batch_of(part, self._compression, queue.identity, queue.next_sequence)
            self._add(queue, data, len(part))

    def flush(self) -> None:
        """Returns when all that was sent is acked."""
        with self._guarded():
            while self._buffered:
                self._make_progress()

    # --- queueing

    def _make_room(self, place: TopicPartition) -> PartitionQueue:
        with self._guarded():
            while self._buffered >= self._buffer_bytes:
                self._make_progress()
            queue = self._queues.get(place)
            if queue is None:
                queue = self._queues[place] = PartitionQueue(place, self._first_identity())
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
        """Remembers a final error, so that nobody goes on past it."""
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
        """Sends what may go and waits for one answer, or for the end of a pause if nobody has one to give."""
        self._send_ready()
        busy = [link for link in self._links.values() if link.requests]
        if busy:
            self._receive(min(busy, key=lambda link: link.requests[0][0].batch.deadline_s))
            return
        pauses = [queue.not_before_s for queue in self._queues.values() if queue.has_work()]
        time.sleep(max(0.0, min(pauses, default=0.0) - time.monotonic()))

    def _send_ready(self) -> None:
        self._unsent = 0
        for node_id, queues in self._by_leader().items():
            link = self._link(node_id, queues)
            while link is not None and len(link.requests) < self._max_in_flight:
                request = self._pick(queues, node_id)
                if not request:
                    break
                if not self._send(link, request):
                    break

    def _by_leader(self) -> dict[int, list[PartitionQueue]]:
        """The queues that have something to send, by the broker that should get it, the oldest batch first."""
        now_s = time.monotonic()
        found: dict[int, list[PartitionQueue]] = {}
        ready = [queue for queue in self._queues.values() if queue.has_work() and queue.not_before_s <= now_s]
        for queue in sorted(ready, key=lambda queue: queue.head.deadline_s):
            try:
                if queue.lost_track:
                    queue.restart(Identity(*self._cluster.init_producer_id()))
                node_id = self._cluster.leader_once(queue.place)
            except ClientError as problem:
                self._pause(queue, queue.head, problem)
                continue
            if queue.may_go_to(node_id):
                found.setdefault(node_id, []).append(queue)
        return found

    def _pick(self, queues: list[PartitionQueue], node_id: int) -> list[Sent]:
        """One request: at most one batch of each partition, and together no more than a request may have."""
        request: list[Sent] = []
        size = 0
        for queue in queues:
            if not queue.has_work():
                continue
            size += len(queue.head.data) + REQUEST_OVERHEAD_BYTES
            if request and size > self._max_request_bytes:
                break
            request.append(Sent(queue, queue.take(node_id)))
        # Those that were served stand behind the others next time.
        queues.sort(key=lambda queue: queue.in_flight)
        return request

    def _link(self, node_id: int, queues: list[PartitionQueue]) -> Link | None:
        link = self._links.get(node_id)
        if link is None:
            try:
                link = self._links[node_id] = Link(node_id, self._cluster)
            except ClientError as problem:
                self._cluster.forget_leaders({queue.place.topic for queue in queues})
                for queue in queues:
                    self._pause(queue, queue.head, problem)
        return link

    def _send(self, link: Link, request: list[Sent]) -> bool:
        try:
            link.send(request)
        except ClientError as problem:
            self._lose(link, problem)
            return False
        return True

    # --- answers

    def _take_answers(self) -> None:
        """Those that have arrived: they make room for the next requests. Waits for none."""
        for link in list(self._links.values()):
            while self._links.get(link.node_id) is link and link.has_answer():
                self._receive(link)

    def _receive(self, link: Link) -> None:
        try:
            answers = link.receive()
        except ClientError as problem:
            self._lose(link, problem)
            return
        for sent, row in answers:
            self._apply(sent, row)

    def _apply(self, sent: Sent, row: PartitionProduceResponse) -> None:
        queue, batch = sent
        verdict = judge(row.error_code, queue, batch)
        if verdict is Verdict.WRITTEN:
            self._note_written(queue, batch)
            return
        problem = refusal(queue.place, row.error_code, row.error_message)
        if verdict is Verdict.FATAL:
            raise problem
        if verdict is Verdict.SMALLER:
            self._cut(queue, batch)
            return
        if verdict is Verdict.RESTART:
            queue.lost_track = True
        first = queue.is_first()
        queue.come_back()
        if first:  # those behind it bring no news
            self._cluster.forget_leaders([queue.place.topic])
            self._pause(queue, batch, problem, passes=True)

    def _cut(self, queue: PartitionQueue, batch: Batch) -> None:
        """The topic takes smaller batches only; what is encoded from now on shall fit at once."""
        topic = queue.place.topic
        # By what was refused, not by what is left of it: several of that size may be in flight.
        self._topic_batch_bytes[topic] = max(1, min(self.batch_bytes(topic), len(batch.data) // 2))
        self._buffered += queue.come_back_in_halves()

    def _note_written(self, queue: PartitionQueue, batch: Batch) -> None:
        queue.acked()
        self._buffered -= len(batch.data)
        self.acked_rows += batch.rows
        self.acked_bytes += len(batch.data)

    def _lose(self, link: Link, problem: ClientError) -> None:
        """The connection is gone: nobody knows what of its requests was written, so all go again."""
        del self._links[link.node_id]
        link.close()
        oldest: dict[PartitionQueue, Batch] = {}
        for request in link.requests:
            for queue, batch in request:
                queue.come_back()
                oldest.setdefault(queue, batch)
        self._cluster.forget_leaders({queue.place.topic for queue in oldest})
        for queue, batch in oldest.items():
            self._pause(queue, batch, problem)

    def _pause(
        self, queue: PartitionQueue, batch: Batch, problem: ClientError, *, passes: bool = False
    ) -> None:
        """Lets a partition rest after a problem; raises it if it does not pass, or not in time.

        The time of a problem counts from when it is met: before that the caller may have been away, and nobody read
        answers or tried again.
        """
        now_s = time.monotonic()
        if not (passes or problem.retriable):
            raise problem
        if not queue.tries:
            queue.troubled_until_s = now_s + self._delivery_timeout_ms / 1000
        if now_s >= max(batch.deadline_s, queue.troubled_until_s):
            raise DeliveryTimedOut(queue.place, batch.rows, self._delivery_timeout_ms, problem) from problem
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
