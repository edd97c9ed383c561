"""A producer with a transactional id: records, offsets of groups, and the requests that begin and end transactions.

It speaks the newer dialect (KIP-890): brokers add partitions to the transaction by themselves, and each end of a
transaction gives the producer another epoch. So a request that was delayed cannot reach the next transaction, and the
batches of each transaction are numbered from 0: it gets a `BatchProducer` of its own.

    identity                 the producer asks for it before its first transaction (InitProducerId)
    a transaction failed     it asks again, and says who it was: the coordinator refuses if another client has the id
    another client has it    ProducerFenced, now and ever after

For one thread at a time.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from penstock.batch import Record
from penstock.client.errors import ClientError, ProducerFenced, Refused, TransactionFailed, lacking
from penstock.client.wire.cluster import Cluster
from penstock.client.wire.connection import expect
from penstock.client.wire.producer import BatchProducer, TransactionIdentity
from penstock.client.wire.retry import retrying
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey, Message
from penstock.kafka.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from penstock.kafka.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.kafka.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from penstock.types import TopicPartition

M = TypeVar("M", bound=Message)

INIT_VERSIONS: Final = (4, 5)
"""From 4 on PRODUCER_FENCED is told apart; 6 has two-phase commit, which this client does not use."""
END_VERSIONS: Final = (5, 5)
OFFSETS_VERSIONS: Final = (5, 5)
"""The first versions of the newer dialect. Later ones of TxnOffsetCommit name topics by id."""
FENCING: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
CERTAIN: Final = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS})
"""Retriable answers which say that nothing was done. After others, an earlier try may have been carried out."""

COUNT_SECONDS: Final = 60.0

FENCED_TEXT: Final = (
    "another client has taken over the transactional id {!r}: this client must not use it any more. Give each process "
    "an id of its own, and start one process for each"
)

ADVICE: Final[Mapping[int, str]] = {
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "the broker's transactions.max_timeout_ms is an upper bound of `timeout`",
    ErrorCode.INVALID_REQUEST: "the broker's limits.max_transactional_id_bytes bounds the length of the id",
}
"""Advice for errors of InitProducerId, whose response has no text."""


class GroupMember(NamedTuple):
    """A member that commits offsets of its group. The coordinator refuses a member that the group has lost."""

    group: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


class _PartitionCount(NamedTuple):
    partitions: int
    until: float
    """On the monotonic clock: topics get more partitions, or are deleted."""


class TransactionalProducer:
    """Every method raises ClientError. After that, only `abort` and `begin` make sense."""

    def __init__(self, open_cluster: Callable[[], Cluster], transactional_id: str) -> None:
        self._open_cluster = open_cluster
        self._cluster: Cluster | None = None
        self.transactional_id = transactional_id
        self._timeout_ms = 0
        self._identity: TransactionIdentity | None = None
        self._is_valid = False
        """Whether the identity may be used for the next transaction."""
        self._fenced = False
        self._coordinator: int | None = None
        self._batches: BatchProducer | None = None
        self._counts: dict[str, _PartitionCount] = {}
        self.is_empty = True
        """Whether nothing was written in the present transaction."""

    # --- the life of a transaction

    def begin(self, timeout_ms: int) -> TransactionIdentity:
        """The identity of the new transaction. The coordinator hears of it with the first record, and aborts it if it
        takes longer than `timeout_ms` from then on."""
        if self._fenced:
            raise ProducerFenced(FENCED_TEXT.format(self.transactional_id), outcome="aborted")
        if timeout_ms != self._timeout_ms:
            self._timeout_ms, self._is_valid = timeout_ms, False
        if self._identity is None or not self._is_valid:
            self._identity = self._initialise()
        self._batches = BatchProducer(
            self._connected(), transaction=self._identity, delivery_timeout_ms=timeout_ms
        )
        self._is_valid, self.is_empty = False, True
        return self._identity

    def send(self, topic: str, partition: int, records: Sequence[Record]) -> None:
        """Queues records; may wait for room."""
        self.is_empty = False
        self._open().send_records(topic, partition, records)

    def settles(self) -> None:
        """Jobs of queues are settled in this transaction, by another way than this producer."""
        self.is_empty = False

    def knows(self, topic: str) -> bool:
        """Whether `partitions_of` need not ask a broker."""
        return topic in self._counts and time.monotonic() < self._counts[topic].until

    def partitions_of(self, topic: str) -> int:
        """The number of partitions. A missing topic is created if the broker creates topics on first use."""
        if not self.knows(topic):
            count = len(self._connected().topic_to_write(topic).partitions)
            self._counts[topic] = _PartitionCount(count, time.monotonic() + COUNT_SECONDS)
        return self._counts[topic].partitions

    def flush(self) -> None:
        """Returns when all records are stored."""
        self._open().flush()

    def commit_offsets(self, member: GroupMember, offsets: Mapping[TopicPartition, int]) -> None:
        self.is_empty = False
        message = self._offsets(member, offsets)
        retrying(self._connected().settings, lambda: self._commit_offsets_once(member.group, message))

    def commit(self) -> None:
        """TransactionFailed: it is aborted, or the outcome is unknown."""
        self._open().flush()
        self._end(commit=True)

    def abort(self) -> None:
        """Drops records that were not sent. If this fails, the coordinator aborts when the transaction times out, or
        when the next one begins."""
        self._end(commit=False)

    def close(self) -> None:
        """May be called again."""
        self._drop_batches()
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _end(self, *, commit: bool) -> None:
        self._drop_batches()
        if not self.is_empty:
            self._identity = self._asked_to_end(commit)
        self._is_valid = True

    def _asked_to_end(self, commit: bool) -> TransactionIdentity:
        doubts: list[ClientError] = []

        def attempt() -> TransactionIdentity:
            try:
                return self._end_once(commit)
            except ClientError as problem:
                if not (isinstance(problem, Refused) and (problem.code in CERTAIN or not problem.retriable)):
                    doubts.append(problem)
                raise

        try:
            return retrying(self._connected().settings, attempt)
        except ClientError as problem:
            raise self._failed(problem, is_doubtful=commit and bool(doubts)) from problem

    def _failed(self, problem: ClientError, *, is_doubtful: bool) -> TransactionFailed:
        name = self.transactional_id
        if is_doubtful:
            text = f"the outcome of the transaction of {name!r} is unknown: it is committed or aborted as a whole"
            return TransactionFailed(f"{text}: {problem}", outcome="unknown")
        if isinstance(problem, Refused) and problem.code in FENCING:
            text = "it took longer than its timeout, or another client has taken over the id"
            return TransactionFailed(f"the transaction of {name!r} was aborted: {text}", outcome="aborted")
        return TransactionFailed(f"the transaction of {name!r} was aborted: {problem}", outcome="aborted")

    # --- requests

    def _initialise(self) -> TransactionIdentity:
        try:
            return retrying(self._connected().settings, self._initialise_once)
        except Refused as refused:
            if refused.code not in FENCING:
                raise
            self._fenced = True
            raise ProducerFenced(FENCED_TEXT.format(self.transactional_id), outcome="aborted") from refused
        except ClientError:
            self.close()  # the next try logs in again
            raise

    def _initialise_once(self) -> TransactionIdentity:
        known = self._identity
        message = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=-1 if known is None else known.producer_id,
            producer_epoch=-1 if known is None else known.epoch,
        )
        answer = self._ask(ApiKey.INIT_PRODUCER_ID, message, InitProducerIdResponse, INIT_VERSIONS)
        self._check(answer.error_code, "a producer with")
        return TransactionIdentity(self.transactional_id, answer.producer_id, answer.producer_epoch)

    def _end_once(self, commit: bool) -> TransactionIdentity:
        identity = self._known()
        message = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            committed=commit,
        )
        answer = self._ask(ApiKey.END_TXN, message, EndTxnResponse, END_VERSIONS)
        self._check(
            answer.error_code, "committing a transaction of" if commit else "aborting a transaction of"
        )
        return TransactionIdentity(self.transactional_id, answer.producer_id, answer.producer_epoch)

    def _check(self, code: int, asked: str) -> None:
        if code != ErrorCode.NONE:
            self._coordinator = None
            detail = lacking(code, "WRITE") or ADVICE.get(code)
            raise Refused(code, f"{asked} the transactional id {self.transactional_id!r}", detail)

    def _ask(self, api: ApiKey, message: Message, kind: type[M], versions: tuple[int, int]) -> M:
        """The answer of the coordinator; it is looked up again after a failure, because it may have moved."""
        cluster = self._connected()
        try:
            if self._coordinator is None:
                self._coordinator = cluster.transaction_coordinator_once(self.transactional_id)
            connection = cluster.connect_once(self._coordinator)
            version = connection.version_of(api, at_least=versions[0], at_most=versions[1])
            return expect(connection.call(api, message, version=version), kind)
        except ClientError:
            self._coordinator = None
            raise

    def _offsets(self, member: GroupMember, offsets: Mapping[TopicPartition, int]) -> TxnOffsetCommitRequest:
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = defaultdict(list)
        for tp, offset in offsets.items():
            row = TxnOffsetCommitRequestPartition(partition_index=tp.partition, committed_offset=offset)
            topics[tp.topic].append(row)
        identity = self._known()
        return TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=member.group,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            generation_id_or_member_epoch=member.generation,
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            topics=[TxnOffsetCommitRequestTopic(name=name, partitions=rows) for name, rows in topics.items()],
        )

    def _commit_offsets_once(self, group: str, message: TxnOffsetCommitRequest) -> None:
        cluster = self._connected()
        connection = cluster.connect_once(cluster.group_coordinator_once(group))
        at_least, at_most = OFFSETS_VERSIONS
        version = connection.version_of(ApiKey.TXN_OFFSET_COMMIT, at_least=at_least, at_most=at_most)
        answer = connection.call(ApiKey.TXN_OFFSET_COMMIT, message, version=version)
        for topic in expect(answer, TxnOffsetCommitResponse).topics:
            for row in topic.partitions:
                if row.error_code != ErrorCode.NONE:
                    asked = f"an offset of {topic.name}-{row.partition_index} for group {group!r}"
                    raise Refused(row.error_code, asked, lacking(row.error_code, "READ"))

    # --- connections

    def _connected(self) -> Cluster:
        if self._cluster is None:
            self._cluster = self._open_cluster()
        return self._cluster

    def _known(self) -> TransactionIdentity:
        assert self._identity is not None, "begin() comes first"
        return self._identity

    def _open(self) -> BatchProducer:
        assert self._batches is not None, "begin() comes first"
        return self._batches

    def _drop_batches(self) -> None:
        if self._batches is not None:
            self._batches.close()
            self._batches = None
