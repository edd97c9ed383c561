"""AddPartitionsToTxn and AddOffsetsToTxn: what is part of a transaction; and whether a partition is (KIP-890)."""

from collections.abc import Collection

from penstock.errors import ErrorCode
from penstock.transactions.states import DECIDED, ONGOING
from penstock.transactions.store import TransactionalId, TransactionStore
from penstock.transactions.transaction import Transaction
from penstock.transactions.values import AddRequest, ErrorResult
from penstock.types import Producer, TopicPartition


class Partitions:
    """Adds and verifies partitions."""

    def __init__(self, store: TransactionStore) -> None:
        self._store = store

    def add(self, now_ms: int, token: object, request: AddRequest) -> None:
        each = self._store.find(request.transactional_id)
        refusal = self._refusal(each, request)
        if each is None or each.committed is None or refusal is not None:
            self._store.outbox.reply(token, ErrorResult(error=refusal or ErrorCode.NONE))
            return

        def written(now_ms: int, ok: bool) -> None:
            error = ErrorCode.NONE if ok else ErrorCode.COORDINATOR_NOT_AVAILABLE
            self._store.touch(now_ms, value.owner)
            self._store.outbox.reply(token, ErrorResult(error=error))

        value = each.committed.with_partitions(now_ms, request.partitions, request.dialect)
        self._store.write(each, value, written)

    def _refusal(self, each: TransactionalId | None, request: AddRequest) -> ErrorCode | None:
        """The code to answer at once; NONE if all partitions are there already; None if something must be written."""
        if not request.transactional_id or not request.partitions:
            return ErrorCode.INVALID_REQUEST
        if each is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        # This comes before the check of the producer: after the last epoch of V2 the client has a producer id already
        # that is only known here when the markers of its last transaction are written.
        if each.is_busy or each.committed is None:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        value = each.committed
        mismatch = producer_mismatch(value, request.producer)
        if mismatch is not None:
            return mismatch
        if value.state is ONGOING and request.partitions <= value.partitions:
            return ErrorCode.NONE
        if len(request.partitions | value.partitions) > self._store.limits.max_transaction_partitions:
            return ErrorCode.POLICY_VIOLATION
        return ErrorCode.POLICY_VIOLATION if self._is_too_much(value, request) else None

    def _is_too_much(self, value: Transaction, request: AddRequest) -> bool:
        """An attempt: the decision about all attempts of its owner is one write."""
        pool = self._store.pools.find(value.owner)
        added = len(request.partitions - value.partitions)
        return pool is not None and pool.partitions + added > self._store.limits.max_attempt_partitions

    def verify(
        self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        each = self._store.find(transactional_id)
        refusal = _refusal_to_verify(each, producer)
        if each is None or each.committed is None or refusal is not None:
            return dict.fromkeys(partitions, refusal or ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        known = each.committed.partitions
        return {
            one: ErrorCode.NONE if one in known else ErrorCode.TRANSACTION_ABORTABLE for one in partitions
        }


def producer_mismatch(value: Transaction, producer: Producer) -> ErrorCode | None:
    if producer.producer_id != value.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    return None if value.is_current(producer) else ErrorCode.PRODUCER_FENCED


def _refusal_to_verify(each: TransactionalId | None, producer: Producer) -> ErrorCode | None:
    """Kafka verifies partitions also while the end of the transaction is being written. Here the producer must try
    again, because its batch would come after the marker."""
    if each is None or each.committed is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    mismatch = producer_mismatch(each.committed, producer)
    if mismatch is None and (each.committed.state in DECIDED or each.writing in DECIDED):
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return mismatch
