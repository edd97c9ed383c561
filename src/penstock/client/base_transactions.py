"""Transactions of a client: everything that the blocking and the asyncio client share.

    begin      the producer of the transactional id gets an identity, once for each client and id
    publish    records are collected, and sent when there are enough of them
    settle     the queue's own connection takes the settlement, with the identity of the transaction
    commit     the rest of the records is sent; when all records and settlements are stored, the coordinator decides
    abort      nothing of it becomes visible, and the jobs come again

transactions.py and aio/transactions.py add the methods that wait. `S` is what settling a job returns, `P` the result of
a method that may wait: None, or a coroutine.
"""

import random
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar

from penstock.batch import Record
from penstock.batch.producing import murmur2
from penstock.client.arguments import (
    UNSET,
    Headers,
    Moment,
    Seconds,
    Text,
    Unset,
    checked_name,
    payload,
    record_headers,
)
from penstock.client.base_streams import BaseJob
from penstock.client.errors import ClientError, TransactionFailed
from penstock.client.publishing import OutgoingMessage, outgoing
from penstock.client.queue_session import SettleAction
from penstock.client.session_driver import S, log
from penstock.client.topic_cache import POSITIVE, REACH_SECONDS
from penstock.client.transactional_ids import TransactionalIds
from penstock.types import TopicPartition

if TYPE_CHECKING:  # programs without transactions do not load the Kafka protocol
    from penstock.client.wire.producer import TransactionIdentity
    from penstock.client.wire.transactional_producer import GroupMember, TransactionalProducer

P = TypeVar("P")

SEND_BYTES: Final = 256 * 1024
"""Records that are collected before they are sent: a batch of the usual size."""
RECORD_OVERHEAD_BYTES: Final = 64
"""So that empty records are bounded, too."""
SETTLE_SECONDS: Final = 30.0
"""How long a commit waits for the settlements of jobs to be stored."""


class _State(Enum):
    NEW = "it has not begun: use it in a `with` block"
    OPEN = "it is open"
    ENDED = "it has ended: begin another one with client.transaction(...)"


class BaseTransaction(Generic[S, P]):
    """Made by `client.transaction(...)`. For one thread, or one task."""

    def __init__(self, ids: TransactionalIds, transactional_id: str, timeout_ms: int) -> None:
        self._ids = ids
        self.transactional_id = checked_name("transactional_id", transactional_id)
        self._timeout_ms = timeout_ms
        self._state = _State.NEW
        self._producer: TransactionalProducer | None = None
        self._identity: TransactionIdentity | None = None
        self._records: dict[TopicPartition, list[Record]] = {}
        self._collected_bytes = 0
        self._chosen: dict[str, int] = {}
        """The partitions of messages that may go to any, by topic."""
        self._settlements: list[S] = []
        self._using = threading.Lock()
        """A call that was cancelled may go on in its thread."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.transactional_id!r} ({self._state.name.lower()})>"

    # --- the content

    def publish(
        self,
        topic: str,
        value: Text | Unset | None = UNSET,
        *,
        json: Any = UNSET,
        key: Text | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        delay: Seconds | None = None,
        deliver_at: Moment | None = None,
        ttl: Seconds | None = None,
    ) -> P:
        """Publishes a message with the transaction: readers of committed messages see it when the transaction is
        committed. The arguments are those of `Client.publish`; message ids have no effect in transactions. Messages
        are sent together; if one cannot be stored, the commit fails."""
        made = record_headers(headers, delay=delay, deliver_at=deliver_at, ttl=ttl)
        message = outgoing(topic, payload(value, json), key, made, partition)
        self._open_producer()
        return self._publish(message)

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[tuple[str, int], int],
        *,
        generation: int = -1,
        member_id: str = "",
        instance_id: str | None = None,
    ) -> P:
        """Commits offsets of a consumer group with the transaction: by topic and partition, the offset of the next
        message to read. With the consumer's generation and member id, the commit fails if the group has given its
        partitions to another member meanwhile."""
        self._open_producer()
        from penstock.client.wire.transactional_producer import GroupMember

        member = GroupMember(checked_name("group", group), generation, member_id, instance_id)
        return self._commit_offsets(member, {TopicPartition(*place): at for place, at in offsets.items()})

    def ack(self, job: BaseJob[S]) -> S:
        """The job is done if the transaction commits. Until the transaction ends no other consumer gets the job; if it
        is aborted, the job comes again, and this delivery counts."""
        return self._settle(job, "accept")

    def retry(
        self, job: BaseJob[S], delay: Seconds | None = None, *, error: BaseException | str | None = None
    ) -> S:
        """The job comes again after the transaction has committed, and after so many seconds; None: after the delay of
        the queue's settings."""
        return self._settle(job, "retry", delay, error)

    def reject(self, job: BaseJob[S], *, error: BaseException | str | None = None) -> S:
        """The job goes to the dead-letter topic if the transaction commits."""
        return self._settle(job, "reject", None, error)

    @abstractmethod
    def _publish(self, message: OutgoingMessage) -> P: ...

    @abstractmethod
    def _commit_offsets(self, member: "GroupMember", offsets: Mapping[TopicPartition, int]) -> P: ...

    def _settle(
        self,
        job: BaseJob[S],
        action: SettleAction,
        delay: Seconds | None = None,
        error: BaseException | str | None = None,
    ) -> S:
        producer = self._open_producer()
        assert self._identity is not None
        settlement = job.settle_in(self._identity, action, delay, error)
        producer.settles()
        self._settlements.append(settlement)
        return settlement

    # --- for subclasses; these wait

    def _begin(self) -> None:
        if self._state is not _State.NEW:
            raise ClientError(f"{self!r}: {self._state.value}")
        producer = self._ids.take(self.transactional_id)
        try:
            with self._using:
                self._identity = producer.begin(self._timeout_ms)
        except BaseException:
            self._ids.give_back(producer)
            raise
        self._producer, self._state = producer, _State.OPEN

    def _knows(self, message: OutgoingMessage) -> bool:
        """Whether `_collect` need not ask a broker."""
        producer = self._open_producer()
        return producer.knows(message.topic) and self._ids.rules.allows(message.topic, message.headers)

    def _collect(self, message: OutgoingMessage) -> bool:
        """Whether there are enough records to be sent."""
        if not self._ids.rules.allows(message.topic, message.headers):
            self._ids.rules.check(message.topic, message.headers, REACH_SECONDS)
        with self._using:
            place = TopicPartition(message.topic, self._partition_of(message))
        headers = tuple(
            (name, value.encode() if isinstance(value, str) else value) for name, value in message.headers
        )
        record = Record(0, round(time.time() * 1000), message.key, message.value, headers)
        self._records.setdefault(place, []).append(record)
        size = len(message.key or b"") + len(message.value or b"")
        self._collected_bytes += size + RECORD_OVERHEAD_BYTES + sum(len(value or b"") for _, value in headers)
        return self._collected_bytes >= SEND_BYTES

    def _partition_of(self, message: OutgoingMessage) -> int:
        """A key, or the message id, always has the same partition, as for `Client.publish`. The others of one
        transaction go to one partition of each topic."""
        if message.partition is not None:
            return message.partition
        count = self._open_producer().partitions_of(message.topic)
        chosen = message.key if message.key is not None else message.partitioning_id
        if chosen is not None:
            return (murmur2(chosen) & POSITIVE) % count
        return self._chosen.setdefault(message.topic, random.randrange(count)) % count

    def _send(self) -> None:
        producer = self._open_producer()
        records, self._records, self._collected_bytes = self._records, {}, 0
        with self._using:
            for (topic, partition), some in records.items():
                producer.send(topic, partition, some)

    def _send_offsets(self, member: "GroupMember", offsets: Mapping[TopicPartition, int]) -> None:
        producer = self._open_producer()
        with self._using:
            producer.commit_offsets(member, offsets)

    def _store(self) -> None:
        """Returns when all records are stored."""
        self._send()
        with self._using:
            self._open_producer().flush()

    def _decide(self) -> None:
        """The coordinator commits. TransactionFailed: it has not, or that is unknown."""
        producer = self._open_producer()
        try:
            with self._using:
                producer.commit()
        finally:
            self._end()

    def _give_up(self) -> None:
        """Aborts. If that fails, the coordinator aborts at the timeout, or when the id is used again."""
        producer = self._open_producer()
        try:
            with self._using:
                producer.abort()
        except ClientError as problem:
            log.warning("%r: the coordinator will abort it: %s", self, problem)
        finally:
            self._end()

    def _end(self) -> None:
        producer, self._producer = self._open_producer(), None
        self._state = _State.ENDED
        self._records.clear()
        self._ids.give_back(producer)

    def _open_producer(self) -> "TransactionalProducer":
        if self._producer is None:
            raise ClientError(f"{self!r}: {self._state.value}")
        return self._producer

    @property
    def _is_open(self) -> bool:
        return self._state is _State.OPEN

    def _not_committed(self, problem: BaseException) -> NoReturn:
        """Raises the error of a commit that failed before the coordinator was asked to decide."""
        if isinstance(problem, (ClientError, TimeoutError)) and not isinstance(problem, TransactionFailed):
            text = f"the transaction of {self.transactional_id!r} was aborted: {problem}"
            raise TransactionFailed(text, outcome="aborted") from problem
        raise problem
