"""EndTxn in both dialects, and the aborts of operators.

The table below decides what an EndTxn does, by the state, the outcome that it asks for, and its sender. In V2 the
epoch tells the sender of a repeated request (`REPEATED`, see `transaction.py`) from that of the next one. In V1 the
epoch is the same from transaction to transaction, and only the state can tell:

- A repeated EndTxn finds CompleteCommit or CompleteAbort, and is answered as the first one was.
- An EndTxn that was delayed on its way until its producer has begun the *next* transaction ends that one. The protocol
  has nothing to tell them apart. If the next transaction has ended, too, the delayed request changes nothing: it is
  answered INVALID_TXN_STATE or like a repeated one. Kafka has the same gap, and closes it with V2.
"""

from enum import Enum

from penstock.errors import ErrorCode
from penstock.transactions.partitions import producer_mismatch
from penstock.transactions.states import COMPLETE_ABORT, COMPLETE_COMMIT, EMPTY, ONGOING, TransactionState
from penstock.transactions.store import TransactionalId, TransactionStore
from penstock.transactions.transaction import LAST_CLIENT_EPOCH, Transaction
from penstock.transactions.values import (
    NO_PRODUCER,
    NO_PRODUCER_ID,
    Dialect,
    EndRequest,
    ErrorResult,
    ProducerIdNeeded,
    ProducerResult,
    Result,
)
from penstock.types import Producer


class Sender(Enum):
    CURRENT = "the producer that the client was given last"
    REPEATED = "the producer that the current one was before"


class Step(Enum):
    END = "write the outcome"
    DONE = "answer that it is done already"


COMMIT, ABORT = True, False

ENDINGS: dict[Dialect, dict[tuple[TransactionState, bool, Sender], Step]] = {
    Dialect.V1: {
        (ONGOING, COMMIT, Sender.CURRENT): Step.END,
        (ONGOING, ABORT, Sender.CURRENT): Step.END,
        (COMPLETE_COMMIT, COMMIT, Sender.CURRENT): Step.DONE,
        (COMPLETE_ABORT, ABORT, Sender.CURRENT): Step.DONE,
    },
    Dialect.V2: {
        (ONGOING, COMMIT, Sender.CURRENT): Step.END,
        (ONGOING, ABORT, Sender.CURRENT): Step.END,
        (COMPLETE_COMMIT, COMMIT, Sender.REPEATED): Step.DONE,
        (COMPLETE_ABORT, ABORT, Sender.REPEATED): Step.DONE,
        # A client of V2 does not know whether its batches have reached any partition, and aborts to be sure.
        (EMPTY, ABORT, Sender.CURRENT): Step.END,
        (COMPLETE_COMMIT, ABORT, Sender.CURRENT): Step.END,
        (COMPLETE_ABORT, ABORT, Sender.CURRENT): Step.END,
    },
}
"""Everything else is INVALID_TXN_STATE."""


class Ending:
    """Decides about EndTxn."""

    def __init__(self, store: TransactionStore) -> None:
        self._store = store

    def end(self, now_ms: int, token: object, request: EndRequest) -> None:
        each = self._store.find(request.transactional_id)
        result = _result(each, request)
        if result is not None:
            self._store.outbox.reply(token, result)
            return
        assert each is not None
        assert each.committed is not None
        if request.dialect is Dialect.V1:
            value = each.committed.ended(now_ms, commit=request.commit)
            self._write(token, each, value, NO_PRODUCER)
        else:
            next_id = request.new_producer_id if each.committed.is_exhausted else NO_PRODUCER_ID
            value = each.committed.ended_with_bump(now_ms, commit=request.commit, next_producer_id=next_id)
            self._write(token, each, value, value.successor)

    def _write(self, token: object, each: TransactionalId, value: Transaction, producer: Producer) -> None:
        def written(now_ms: int, ok: bool) -> None:
            error = ErrorCode.NONE if ok else ErrorCode.COORDINATOR_NOT_AVAILABLE
            result = ProducerResult(error=error, producer=producer if ok else NO_PRODUCER)
            self._store.outbox.reply(token, result)

        self._store.write(each, value, written)

    def abort(self, now_ms: int, token: object, transactional_id: str, start_ms: int | None) -> None:
        """An operator aborts the open transaction; with `start_ms` only if it is the one that began then. Its producer
        is fenced for good, as if another client had taken over: the operator takes it for hung."""
        each = self._store.find(transactional_id)
        error = _refusal_to_abort(each, start_ms)
        if each is None or each.committed is None or error is not None:
            self._store.outbox.reply(token, ErrorResult(error=error or ErrorCode.NONE))
            return

        def written(now_ms: int, ok: bool) -> None:
            error = ErrorCode.NONE if ok else ErrorCode.COORDINATOR_NOT_AVAILABLE
            self._store.outbox.reply(token, ErrorResult(error=error))

        self._store.write(each, each.committed.fenced(now_ms, by_other=True), written)


def _result(each: TransactionalId | None, request: EndRequest) -> Result | None:
    """The answer to a request that changes nothing; None if the outcome must be written."""
    if not request.transactional_id:
        return ProducerResult(error=ErrorCode.INVALID_REQUEST)
    if each is None:
        return ProducerResult(error=ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if each.committed is None:
        return ProducerResult(error=ErrorCode.CONCURRENT_TRANSACTIONS)
    value, producer = each.committed, request.producer
    if request.commit and value.is_lent:  # only its owner decides about an attempt
        return ProducerResult(error=ErrorCode.INVALID_TXN_STATE)
    # In V2 this comes first: the client may have the next producer id already, which the markers are waited for.
    if each.is_busy and request.dialect is Dialect.V2:
        return ProducerResult(error=ErrorCode.CONCURRENT_TRANSACTIONS)
    repeated = request.dialect is Dialect.V2 and _may_repeat(value, producer)
    mismatch = None if repeated else producer_mismatch(value, producer)
    if mismatch is not None:
        return ProducerResult(error=mismatch)
    if each.is_busy:
        return ProducerResult(error=ErrorCode.CONCURRENT_TRANSACTIONS)
    return _decided(value, request, Sender.REPEATED if repeated else Sender.CURRENT)


def _may_repeat(value: Transaction, producer: Producer) -> bool:
    """In Empty an EndTxn of the last producer is no repetition, because an InitProducerId came between. After a timeout
    at the last epoch there is none to continue with: the client must ask for a new producer."""
    complete = value.state in (COMPLETE_COMMIT, COMPLETE_ABORT)
    return complete and value.is_repeated(producer) and value.epoch <= LAST_CLIENT_EPOCH


def _decided(value: Transaction, request: EndRequest, sender: Sender) -> Result | None:
    step = ENDINGS[request.dialect].get((value.state, request.commit, sender))
    if step is None:
        return ProducerResult(error=ErrorCode.INVALID_TXN_STATE)
    if step is Step.DONE:
        return ProducerResult(producer=NO_PRODUCER if request.dialect is Dialect.V1 else value.producer)
    needs_id = request.dialect is Dialect.V2 and value.is_exhausted
    return ProducerIdNeeded() if needs_id and request.new_producer_id == NO_PRODUCER_ID else None


def _refusal_to_abort(each: TransactionalId | None, start_ms: int | None) -> ErrorCode | None:
    if each is None or each.committed is None:
        return ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    if each.is_busy:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    value = each.committed
    matches = value.state is ONGOING and start_ms in (None, value.start_ms)
    return None if matches else ErrorCode.INVALID_TXN_STATE
