"""Attempts: producers that an owner lends to the attempts of its tasks, and the decision which of them count.

A program like Spark writes one *version* of its output (a micro-batch) by many tasks. A task may run twice, or be
killed and tried again, and only the driver knows which attempts count. So the driver's transactional id, the *owner*,
has a pool of producers. Each attempt of a task is lent one and writes its records in a transaction of its own; when all
tasks are done, the driver names the winners:

    lend(owner, version)               a producer, or "committed already": then the task need not write
    commit(owner, version, winners)    the winners' transactions are committed, all others are aborted
    rollback(owner, version)           all are aborted
    renew(owner)                       a sign of life; lending and adding partitions are signs of life, too

An attempt is an ordinary transactional id, whose record names its owner. It has states, markers and a place in lists
like every other id. Its name is made so that it belongs to the same partition as its owner. In requests of Kafka's
protocol the task uses the owner's id and the attempt's producer (`TransactionCoordinator.id_of`).

 1. An attempt is lent under an epoch that no task has had. The log has that before the task hears of it.
 2. A decision is one write: the owner's last version, the outcome of all attempts, and their next epochs. After a crash
    the log has all of it, or nothing.
 3. Every winner must have an open transaction under the epoch that was lent for this version. Otherwise nothing is
    changed: a part of the version would be missing.
 4. Versions are committed in ascending order. A request for a version that is not higher than the last is a repetition
    or a replay: it is answered like the first one, and attempts of the replay are aborted.
 5. Attempts of higher versions are left alone: the late request of a driver that was replaced must not end the work of
    its successor.
 6. All attempts are aborted when the owner has given no sign of life for the timeout. Until then they hold back
    readers of committed records.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import count

from msgspec.structs import replace

from penstock.errors import ErrorCode
from penstock.transactions.states import DECIDED, EMPTY, IDLE, ONGOING
from penstock.transactions.store import TransactionalId, TransactionStore
from penstock.transactions.transaction import NO_VERSION, Transaction
from penstock.transactions.values import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    CommitVersionRequest,
    DecisionResult,
    ErrorResult,
    LendRequest,
    LendResult,
    ProducerIdNeeded,
    Result,
    RollbackRequest,
)
from penstock.types import Producer

SUFFIX_BYTES = 32
"""The names of attempts are longer than their owner's by no more than this."""
MAX_VERSION = 2**63 - 1


class Attempts:
    """Decides about attempts."""

    def __init__(self, store: TransactionStore, partition_of: Callable[[str], int]) -> None:
        """`partition_of`: the partition of the transaction topic to which an id belongs."""
        self._store = store
        self._partition_of = partition_of

    # --- lending

    def lend(self, now_ms: int, token: object, request: LendRequest) -> None:
        answer = self._answer_to_lend(request)
        if answer is not None:
            self._store.outbox.reply(token, answer)
            return
        each = self._free(request.owner)
        if each is None:
            each = self._store.create(self._new_name(request.owner))
            self._store.pools.begin(request.owner, each.transactional_id)
        value = _lent(now_ms, request, each.committed)

        def written(now_ms: int, ok: bool) -> None:
            if ok:
                self._store.touch(now_ms, request.owner)
                result = LendResult(producer=value.producer)
            else:
                result = LendResult(error=ErrorCode.COORDINATOR_NOT_AVAILABLE)
                if each.committed is None:
                    self._store.pools.give_up(request.owner, each.transactional_id)
            self._store.outbox.reply(token, result)

        self._store.write(each, value, written)

    def _answer_to_lend(self, request: LendRequest) -> Result | None:
        """The answer to a request that changes nothing; None if an attempt can be lent."""
        if not self._is_name(request.owner) or not 0 <= request.version <= MAX_VERSION:
            return LendResult(error=ErrorCode.INVALID_REQUEST)
        if not 0 < request.timeout_ms <= self._store.settings.max_timeout_ms:
            return LendResult(error=ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        owner = self._store.find(request.owner)
        if owner is not None and owner.writing is not None:
            return LendResult(error=ErrorCode.CONCURRENT_TRANSACTIONS, busy=request.owner)
        if _is_attempt(owner):
            return LendResult(error=ErrorCode.INVALID_REQUEST)
        if request.version <= _last_version(owner):  # (4)
            return LendResult(is_committed=True)
        free = self._free(request.owner)
        refusal = self._refusal_to_create(request.owner) if free is None else None
        if refusal is not None:
            return refusal
        needs_id = free is None or (free.committed is not None and free.committed.is_exhausted)
        return ProducerIdNeeded() if needs_id and request.new_producer_id == NO_PRODUCER_ID else None

    def _is_name(self, owner: str) -> bool:
        return 0 < len(owner.encode()) <= self._store.limits.max_transactional_id_bytes - SUFFIX_BYTES

    def _refusal_to_create(self, owner: str) -> LendResult | None:
        pool = self._store.pools.find(owner)
        if pool is not None and len(pool) >= self._store.limits.max_attempts:
            ending = next((each for each in self._pool(owner) if _is_ending(each)), None)
            if ending is not None:
                return LendResult(error=ErrorCode.CONCURRENT_TRANSACTIONS, busy=ending.transactional_id)
            return LendResult(error=ErrorCode.POLICY_VIOLATION)
        return LendResult(error=ErrorCode.POLICY_VIOLATION) if self._store.is_full else None

    def _free(self, owner: str) -> TransactionalId | None:
        """An attempt that is not lent. Attempts of a decision are free again when their markers are written."""
        pool = self._store.pools.find(owner)
        if pool is None or len(pool.lent) == len(pool):
            return None
        return next((each for each in self._pool(owner) if _is_free(each)), None)

    def _new_name(self, owner: str) -> str:
        """It ends with a number by which it belongs to the partition of its owner, so that every client that asks for
        the coordinator of this id is sent to the right one."""
        pool = self._store.pools.find(owner)
        wanted = self._partition_of(owner)
        for number in count(0 if pool is None else len(pool)):
            names = (f"{owner}.attempt-{number}-{ending}" for ending in count())
            name = next(name for name in names if self._partition_of(name) == wanted)
            if self._store.find(name) is None:
                return name
        raise AssertionError("unreachable")

    def renew(self, now_ms: int, token: object, owner: str) -> None:
        pool = self._store.pools.find(owner)
        is_alive = pool is not None and bool(pool.lent)
        self._store.touch(now_ms, owner)
        error = ErrorCode.NONE if is_alive else ErrorCode.INVALID_TXN_STATE
        self._store.outbox.reply(token, ErrorResult(error=error))

    # --- decisions

    def commit(self, now_ms: int, token: object, request: CommitVersionRequest) -> None:
        owner = self._store.find(request.owner)
        answer = self._answer_to_decide(request.owner, request.version) or self._answer_to_commit(request)
        if answer is not None:
            self._store.outbox.reply(token, answer)
            return
        is_repeated = request.version <= _last_version(owner)
        changes = [] if is_repeated else [self._decided(now_ms, request)]
        winners = frozenset() if is_repeated else request.winners
        changes += self._taken_back(now_ms, request.owner, request.version, winners)
        self._write(token, changes, DecisionResult(was_committed=is_repeated))

    def rollback(self, now_ms: int, token: object, request: RollbackRequest) -> None:
        answer = self._answer_to_decide(request.owner, request.version)
        if answer is not None:
            self._store.outbox.reply(token, answer)
            return
        was_committed = request.version <= _last_version(self._store.find(request.owner))
        changes = list(self._taken_back(now_ms, request.owner, request.version, frozenset()))
        self._write(token, changes, DecisionResult(was_committed=was_committed))

    def _answer_to_decide(self, owner: str, version: int) -> DecisionResult | None:
        if not self._is_name(owner) or not 0 <= version <= MAX_VERSION:
            return DecisionResult(error=ErrorCode.INVALID_REQUEST)
        each = self._store.find(owner)
        busy = owner if each is not None and each.is_busy else self._busy_attempt(owner)
        if busy is not None:
            return DecisionResult(error=ErrorCode.CONCURRENT_TRANSACTIONS, busy=busy)
        return DecisionResult(error=ErrorCode.INVALID_REQUEST) if _is_attempt(each) else None

    def _busy_attempt(self, owner: str) -> str | None:
        """An attempt that is just being lent, or gets partitions. Those of earlier decisions are decided already."""
        for each in self._pool(owner):
            if each.writing is not None and not _is_ending(each):
                return each.transactional_id
        return None

    def _answer_to_commit(self, request: CommitVersionRequest) -> Result | None:
        owner = self._store.find(request.owner)
        if request.version <= _last_version(owner):
            return None
        if not all(self._is_prepared(request, winner) for winner in request.winners):  # (3)
            return DecisionResult(error=ErrorCode.INVALID_TXN_STATE)
        if owner is None and self._store.is_full:
            return DecisionResult(error=ErrorCode.POLICY_VIOLATION)
        needs_id = owner is None and request.new_producer_id == NO_PRODUCER_ID
        return ProducerIdNeeded() if needs_id else None

    def _is_prepared(self, request: CommitVersionRequest, winner: Producer) -> bool:
        name = self._store.pools.attempt_of(request.owner, winner.producer_id)
        each = None if name is None else self._store.find(name)
        value = None if each is None else each.committed
        return (
            value is not None
            and value.state is ONGOING
            and value.version == request.version
            and value.is_current(winner)
        )

    def _decided(self, now_ms: int, request: CommitVersionRequest) -> tuple[TransactionalId, Transaction]:
        """The owner with its new version. It keeps a producer and a transaction of its own, if it has any."""
        each = self._store.find(request.owner)
        if each is None:
            first = Transaction(
                producer_id=request.new_producer_id,
                epoch=0,
                timeout_ms=self._store.settings.max_timeout_ms,
                state=EMPTY,
                updated_ms=now_ms,
                version=request.version,
            )
            return self._store.create(request.owner), first
        assert each.committed is not None
        return each, replace(each.committed, version=request.version, updated_ms=now_ms)

    def _taken_back(
        self, now_ms: int, owner: str, version: int, winners: Iterable[Producer]
    ) -> Iterator[tuple[TransactionalId, Transaction]]:
        """All attempts up to this version (5)."""
        for each in self._lent(owner):
            value = each.committed
            if value is not None and value.version <= version:
                yield each, value.taken_back(now_ms, commit=value.producer in winners)

    def _write(
        self, token: object, changes: list[tuple[TransactionalId, Transaction]], result: DecisionResult
    ) -> None:
        if not changes:
            self._store.outbox.reply(token, result)
            return

        def written(now_ms: int, ok: bool) -> None:
            failed = DecisionResult(error=ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self._store.outbox.reply(token, result if ok else failed)

        self._store.write_all(changes, written)

    def ending(self, owner: str) -> list[str]:
        """The attempts that are decided and whose markers are not all written."""
        return [each.transactional_id for each in self._pool(owner) if _is_ending(each)]

    # --- time

    def timed_out(self, now_ms: int, owner: str) -> None:
        """(6). Attempts that are just being changed are looked at again."""
        idle = [each for each in self._lent(owner) if each.writing is None]
        changes = [(each, each.committed.taken_back(now_ms, commit=False)) for each in idle if each.committed]
        pool = self._store.pools.find(owner)
        if pool is not None and len(changes) < len(pool.lent):
            self._store.look_again(now_ms, owner)
        if not changes:
            return

        def written(now_ms: int, ok: bool) -> None:
            if not ok:
                self._store.look_again(now_ms, owner)

        self._store.write_all(changes, written)

    # --- the pool

    def _pool(self, owner: str) -> Iterator[TransactionalId]:
        pool = self._store.pools.find(owner)
        return self._named(() if pool is None else pool.names)

    def _lent(self, owner: str) -> Iterator[TransactionalId]:
        pool = self._store.pools.find(owner)
        return self._named(() if pool is None else sorted(pool.lent))

    def _named(self, names: Iterable[str]) -> Iterator[TransactionalId]:
        found = (self._store.find(name) for name in names)
        return (each for each in found if each is not None)


def _lent(now_ms: int, request: LendRequest, value: Transaction | None) -> Transaction:
    """The next state of an attempt that is free; of a new one without a state (1)."""
    if value is None:
        return Transaction(
            producer_id=request.new_producer_id,
            epoch=0,
            timeout_ms=request.timeout_ms,
            state=EMPTY,
            updated_ms=now_ms,
            owner=request.owner,
            version=request.version,
        )
    producer = Producer(value.producer_id, value.epoch + 1)
    if value.is_exhausted:
        producer = Producer(request.new_producer_id, 0)
    came_from = Producer(value.producer_id, NO_EPOCH)
    lent = value.initialised(now_ms, request.timeout_ms, producer, came_from)
    return replace(lent, version=request.version)


def _last_version(owner: TransactionalId | None) -> int:
    return NO_VERSION if owner is None or owner.committed is None else owner.committed.version


def _is_attempt(each: TransactionalId | None) -> bool:
    return each is not None and each.committed is not None and each.committed.owner != ""


def _is_free(each: TransactionalId) -> bool:
    value = each.committed
    return not each.is_busy and value is not None and value.state in IDLE and not value.is_lent


def _is_ending(each: TransactionalId) -> bool:
    return each.committed is not None and each.committed.state in DECIDED
