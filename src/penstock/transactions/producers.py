"""InitProducerId: which producer a client is from now on.

An open transaction is aborted first. Its client, or the one that takes over, is told CONCURRENT_TRANSACTIONS until the
markers are written, and then gets its epoch.

A client that names the producer it has been (KIP-360) must be the last one, or repeat its last request. Kafka checks
this only when no transaction is open: there a client that was fenced long ago can abort its successor's transaction.
"""

from penstock.errors import ErrorCode
from penstock.transactions.states import DECIDED, EMPTY, ONGOING
from penstock.transactions.store import TransactionalId, TransactionStore
from penstock.transactions.transaction import LAST_CLIENT_EPOCH, Transaction
from penstock.transactions.values import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    InitRequest,
    ProducerIdNeeded,
    ProducerResult,
    Result,
)
from penstock.types import Producer


class Producers:
    """Decides about InitProducerId."""

    def __init__(self, store: TransactionStore) -> None:
        self._store = store

    def init(self, now_ms: int, token: object, request: InitRequest) -> None:
        refusal = self._refusal(request)
        if refusal is not None:
            self._store.outbox.reply(token, refusal)
            return
        each = self._store.find(request.transactional_id)
        if each is None:
            self._create(now_ms, token, request)
        elif each.committed is not None:
            self._continue(now_ms, token, request, each, each.committed)

    def _refusal(self, request: InitRequest) -> Result | None:
        """The answer to a request that changes nothing; None if there is something to do."""
        size = len(request.transactional_id.encode())
        if not 0 < size <= self._store.limits.max_transactional_id_bytes:
            return ProducerResult(error=ErrorCode.INVALID_REQUEST)
        if not 0 < request.timeout_ms <= self._store.settings.max_timeout_ms:
            return ProducerResult(error=ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        each = self._store.find(request.transactional_id)
        if each is None:
            return self._refusal_of_new(request)
        if each.is_busy or each.committed is None:
            return ProducerResult(error=ErrorCode.CONCURRENT_TRANSACTIONS)
        return _refusal_of_known(each.committed, request)

    def _refusal_of_new(self, request: InitRequest) -> Result | None:
        if self._store.is_full:
            return ProducerResult(error=ErrorCode.POLICY_VIOLATION)
        return ProducerIdNeeded() if request.new_producer_id == NO_PRODUCER_ID else None

    def _create(self, now_ms: int, token: object, request: InitRequest) -> None:
        first = Transaction(
            producer_id=request.new_producer_id,
            epoch=0,
            timeout_ms=request.timeout_ms,
            state=EMPTY,
            updated_ms=now_ms,
        )
        self._give(token, self._store.create(request.transactional_id), first)

    def _continue(
        self, now_ms: int, token: object, request: InitRequest, each: TransactionalId, value: Transaction
    ) -> None:
        assert value.state not in DECIDED
        if value.state is ONGOING:
            aborted = value.fenced(now_ms, by_other=request.expected is None)
            self._abort_first(token, each, aborted)
            return
        came_from = request.expected or Producer(value.producer_id, NO_EPOCH)
        producer = _next_producer(value, request)
        self._give(token, each, value.initialised(now_ms, request.timeout_ms, producer, came_from))

    def _give(self, token: object, each: TransactionalId, value: Transaction) -> None:
        def written(now_ms: int, ok: bool) -> None:
            result = ProducerResult(producer=value.producer) if ok else _NOT_WRITTEN
            self._store.outbox.reply(token, result)

        self._store.write(each, value, written)

    def _abort_first(self, token: object, each: TransactionalId, value: Transaction) -> None:
        def written(now_ms: int, ok: bool) -> None:
            result = ProducerResult(error=ErrorCode.CONCURRENT_TRANSACTIONS) if ok else _NOT_WRITTEN
            self._store.outbox.reply(token, result)

        self._store.write(each, value, written)


def _refusal_of_known(value: Transaction, request: InitRequest) -> Result | None:
    expected = request.expected
    if expected is not None and not (value.is_current(expected) or value.is_repeated(expected)):
        return ProducerResult(error=ErrorCode.PRODUCER_FENCED)
    needs_id = value.state is not ONGOING and _needs_producer_id(value, expected)
    return ProducerIdNeeded() if needs_id and request.new_producer_id == NO_PRODUCER_ID else None


def _needs_producer_id(value: Transaction, expected: Producer | None) -> bool:
    """A repeated request gets the present producer once more, unless its epoch is the coordinator's own."""
    if expected is not None and value.is_repeated(expected):
        return value.epoch > LAST_CLIENT_EPOCH
    return value.is_exhausted


def _next_producer(value: Transaction, request: InitRequest) -> Producer:
    if _needs_producer_id(value, request.expected):
        return Producer(request.new_producer_id, 0)
    if request.expected is not None and value.is_repeated(request.expected):
        return value.producer
    return Producer(value.producer_id, value.epoch + 1)


_NOT_WRITTEN = ProducerResult(error=ErrorCode.COORDINATOR_NOT_AVAILABLE)
