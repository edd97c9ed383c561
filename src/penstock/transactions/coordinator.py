"""The transaction coordinator: all transactional ids of one partition of the transaction topic.

It is a durable core (`penstock.effects`). Requests come in with a token, and each is answered exactly once by a Reply:

    init_producer_id(now_ms, token, InitRequest)      -> ProducerResult | ProducerIdNeeded
    add_partitions(now_ms, token, AddRequest)         -> ErrorResult
    end(now_ms, token, EndRequest)                    -> ProducerResult | ProducerIdNeeded
    abort(now_ms, token, transactional_id, start_ms)  -> ErrorResult             for operators
    when_free(now_ms, token, transactional_id)        -> ErrorResult             after CONCURRENT_TRANSACTIONS
    lend(now_ms, token, LendRequest)                  -> LendResult | ProducerIdNeeded      see `attempts.py`
    commit(now_ms, token, CommitVersionRequest)       -> DecisionResult | ProducerIdNeeded
    rollback(now_ms, token, RollbackRequest)          -> DecisionResult
    renew(now_ms, token, owner)                       -> ErrorResult
    verify(...), describe(...), list_transactions(...), id_of(...)               answered from memory, directly

With ProducerIdNeeded nothing was done: the host gets a producer id and repeats the request with it. Errors are
canonical: `wire_error` translates them for the version of a request.

A decided transaction sends its markers: `Send(SendMarkers)`. The host writes each marker until it succeeds, however
long that takes, and reports it with `markers_written`. A partition of a topic that does not exist any more counts as
written. The host stops when it no longer leads. The core of the next leader sends all markers of the transaction again,
so a partition may get a marker twice.

To start: `replay` every record of the partition from its beginning, then `loaded(now_ms)`, then serve.

`transaction.py` has the rules about producers and epochs, `states.py` the states, `store.py` the invariants.
"""

from collections.abc import Callable, Collection, Iterable, Iterator

from penstock.config import Limits, TransactionSettings
from penstock.effects import Effect
from penstock.timers import Key
from penstock.transactions.attempts import Attempts
from penstock.transactions.ending import Ending
from penstock.transactions.listing import describe, list_transactions
from penstock.transactions.partitions import Partitions
from penstock.transactions.producers import Producers
from penstock.transactions.records import decode_key, decode_value
from penstock.transactions.states import IDLE, TransactionState
from penstock.transactions.store import EXPIRY, OWNER_TIMEOUT, TIMEOUT, TransactionStore
from penstock.transactions.values import (
    AddRequest,
    CommitVersionRequest,
    EndedTotals,
    EndRequest,
    InitRequest,
    LendRequest,
    RollbackRequest,
    TransactionDescription,
    TransactionListing,
    VerifyResult,
)
from penstock.types import Producer, TopicPartition


class TransactionCoordinator:
    """Every method that returns effects takes the time as `now_ms`, which must never go back."""

    applies_early = False
    """A change is made in memory when it is committed."""
    topics_version = -1
    """Nothing is decided by metadata."""

    def __init__(
        self,
        settings: TransactionSettings | None = None,
        limits: Limits | None = None,
        ended: EndedTotals | None = None,
        partition_of: Callable[[str], int] = lambda transactional_id: 0,
    ) -> None:
        """`partition_of`: to which partition of the transaction topic an id belongs."""
        self._store = TransactionStore(
            settings or TransactionSettings(), limits or Limits(), ended or EndedTotals()
        )
        self._producers = Producers(self._store)
        self._partitions = Partitions(self._store)
        self._ending = Ending(self._store)
        self._attempts = Attempts(self._store, partition_of)

    # --- requests of producers

    def init_producer_id(self, now_ms: int, token: object, request: InitRequest) -> list[Effect]:
        self._producers.init(now_ms, token, request)
        return self._store.outbox.take()

    def add_partitions(self, now_ms: int, token: object, request: AddRequest) -> list[Effect]:
        self._partitions.add(now_ms, token, request)
        return self._store.outbox.take()

    def end(self, now_ms: int, token: object, request: EndRequest) -> list[Effect]:
        self._ending.end(now_ms, token, request)
        return self._store.outbox.take()

    def when_free(self, now_ms: int, token: object, transactional_id: str) -> list[Effect]:
        """Replies as soon as the id is not busy: a request that was answered CONCURRENT_TRANSACTIONS is worth another
        try then. The caller bounds how many wait."""
        self._store.when_free(token, transactional_id)
        return self._store.outbox.take()

    def verify(
        self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition]
    ) -> VerifyResult:
        """Whether the partitions are part of the producer's open transaction, for the first batch of a producer of V1
        and for AddPartitionsToTxn with `verify_only`."""
        return VerifyResult(errors=self._partitions.verify(transactional_id, producer, partitions))

    # --- owners of attempts

    def lend(self, now_ms: int, token: object, request: LendRequest) -> list[Effect]:
        self._attempts.lend(now_ms, token, request)
        return self._store.outbox.take()

    def commit(self, now_ms: int, token: object, request: CommitVersionRequest) -> list[Effect]:
        self._attempts.commit(now_ms, token, request)
        return self._store.outbox.take()

    def rollback(self, now_ms: int, token: object, request: RollbackRequest) -> list[Effect]:
        self._attempts.rollback(now_ms, token, request)
        return self._store.outbox.take()

    def renew(self, now_ms: int, token: object, owner: str) -> list[Effect]:
        self._attempts.renew(now_ms, token, owner)
        return self._store.outbox.take()

    def ending_attempts(self, owner: str) -> list[str]:
        """Those whose markers are being written. `when_free` tells when they are."""
        return self._attempts.ending(owner)

    def id_of(self, transactional_id: str, producer: Producer) -> str:
        """The id under which a producer's transaction is kept: that of an attempt, if its owner has lent it."""
        return self._store.pools.attempt_of(transactional_id, producer.producer_id) or transactional_id

    # --- markers

    def markers_written(
        self, now_ms: int, transactional_id: str, markers_id: int, partitions: Iterable[TopicPartition]
    ) -> list[Effect]:
        """These partitions have their marker, durably. `markers_id` is the id of the SendMarkers."""
        self._store.markers_written(now_ms, transactional_id, markers_id, partitions)
        return self._store.outbox.take()

    # --- requests of operators

    def abort(
        self, now_ms: int, token: object, transactional_id: str, start_ms: int | None = None
    ) -> list[Effect]:
        """Aborts the open transaction and fences its producer. With `start_ms` only the one that began then: the one
        that an operator has seen may have ended meanwhile."""
        self._ending.abort(now_ms, token, transactional_id, start_ms)
        return self._store.outbox.take()

    def describe(self, transactional_id: str) -> TransactionDescription | None:
        """None for an id that is unknown or has expired: TRANSACTIONAL_ID_NOT_FOUND."""
        each = self._store.find(transactional_id)
        return None if each is None else describe(each)

    def list_transactions(
        self,
        now_ms: int,
        *,
        states: Collection[TransactionState] = (),
        producer_ids: Collection[int] = (),
        longer_than_ms: int = -1,
        matches: Callable[[str], bool] | None = None,
    ) -> Iterator[TransactionListing]:
        """The ids that pass all filters; see `listing.py`. There may be a hundred thousand: the caller may pause."""
        return list_transactions(
            self._store.snapshot(),
            now_ms,
            states=frozenset(states),
            producer_ids=frozenset(producer_ids),
            longer_than_ms=longer_than_ms,
            matches=matches,
        )

    def open_transactions(self) -> Iterator[TransactionDescription]:
        """Those that are open or being ended. The caller may pause."""
        for each in self._store.not_idle():
            found = describe(each)
            if found is not None and found.state not in IDLE:
                yield found

    # --- time and disk

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` is due; None while there is nothing to wait for."""
        return self._store.timers.next_ms

    def tick(self, now_ms: int) -> list[Effect]:
        for key in self._store.timers.due(now_ms):
            self._alarm(now_ms, key)
        return self._store.outbox.take()

    def persisted(self, now_ms: int, persist_id: int, ok: bool) -> list[Effect]:
        """A write is durable, or has failed and is not in the log."""
        self._store.outbox.persisted(now_ms, persist_id, ok)
        return self._store.outbox.take()

    def _alarm(self, now_ms: int, key: Key) -> None:
        if key == EXPIRY:
            self._store.expire(now_ms)
            return
        kind, transactional_id = key
        if kind == OWNER_TIMEOUT:
            self._attempts.timed_out(now_ms, transactional_id)
            return
        each = self._store.find(transactional_id)
        assert each is not None, "timers of an id are cancelled before it is forgotten"
        if kind == TIMEOUT:
            self._store.timed_out(now_ms, each)
        else:
            self._store.write_completion(each)

    # --- start

    def replay(self, key: bytes, value: bytes | None) -> None:
        """One record of the transaction topic, in order. UnknownFormat if this version does not know its format."""
        self._store.replay(decode_key(key), None if value is None else decode_value(value))

    def loaded(self, now_ms: int) -> list[Effect]:
        """All records were replayed: decided transactions send their markers, and timeouts run."""
        self._store.loaded(now_ms)
        return self._store.outbox.take()
