"""A harness for transactions: clients that behave like real ones, a clock that tests advance, a disk that is prompt,
slow or full, and partitions that take markers when the test says so."""

import itertools
from collections.abc import Callable, Iterator
from functools import lru_cache

from penstock.config import Limits, TransactionSettings
from penstock.effects import Effect, KeyValue, Persist, Reply, Send
from penstock.errors import ErrorCode
from penstock.transactions import (
    NO_PRODUCER,
    AddRequest,
    Dialect,
    EndedTotals,
    EndRequest,
    ErrorResult,
    InitRequest,
    Producer,
    ProducerIdNeeded,
    ProducerResult,
    Result,
    SendMarkers,
    TransactionCoordinator,
    TransactionDescription,
    TransactionState,
)
from penstock.transactions.records import decode_key, decode_value, encode_key, encode_value
from penstock.transactions.store import COMPLETION_DELAY_MS
from penstock.transactions.transaction import Transaction
from penstock.types import TopicPartition

ID = "payments"
TIMEOUT_MS = 60_000
ORDERS = TopicPartition("orders", 0)
INVOICES = TopicPartition("invoices", 3)
OFFSETS = TopicPartition("__consumer_offsets", 7)
HOUR_MS = 3_600_000

decoded = lru_cache(maxsize=4096)(decode_value)
"""Tests look at the whole log after every step."""


class TransactionHarness:
    """One coordinator, its disk, its clock, and the markers that it has sent."""

    def __init__(
        self,
        settings: TransactionSettings | None = None,
        limits: Limits | None = None,
        now_ms: int = 1_000_000,
        producer_ids: Iterator[int] | None = None,
    ) -> None:
        self.settings = settings or TransactionSettings()
        self.limits = limits or Limits()
        self.ended = EndedTotals()
        self.coordinator = TransactionCoordinator(self.settings, self.limits, self.ended)
        self.now_ms = now_ms
        self.producer_ids = producer_ids or itertools.count(1000)
        self.replies: dict[int, Result] = {}
        self.open_tokens: set[int] = set()
        self.durable: list[KeyValue] = []
        self.in_flight: list[Persist] = []
        self.disk = "prompt"
        self.sent: list[SendMarkers] = []
        """All markers that this coordinator has sent."""
        self.on_reply: Callable[[int, Result], None] = lambda token, result: None
        self._tokens = itertools.count(1)

    # --- the host's work

    def asks(self, request: Callable[[int, int], list[Effect]]) -> int:
        token = next(self._tokens)
        self.open_tokens.add(token)
        self.happens(request(self.now_ms, token))
        return token

    def happens(self, effects: list[Effect]) -> None:
        self._collect(effects)
        if self.disk != "slow":
            self.flush()

    def flush(self, writes: int | None = None) -> None:
        """The disk completes its pending writes in order; a full one fails them."""
        ok = self.disk != "full"
        while self.in_flight and writes != 0:
            writes = None if writes is None else writes - 1
            persist = self.in_flight.pop(0)
            if ok:
                self.durable += persist.records
            self._collect(self.coordinator.persisted(self.now_ms, persist.id, ok))

    def _collect(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Persist():
                    self.in_flight.append(effect)
                case Send(message=message):
                    assert isinstance(message, SendMarkers)
                    self.sent.append(message)
                case Reply(token=token, result=result):
                    assert isinstance(token, int)
                    assert isinstance(result, Result)
                    assert token in self.open_tokens, "answered twice, or never asked"
                    self.open_tokens.remove(token)
                    self.replies[token] = result
                    self.on_reply(token, result)

    def marks(self, message: SendMarkers | None = None, *partitions: TopicPartition) -> None:
        """The markers of a message, by default of the last one, are written to these partitions, by default to all. So
        much time passes that a completion is written by itself."""
        self.reports(message, *partitions)
        self.passes(COMPLETION_DELAY_MS)

    def reports(self, message: SendMarkers | None = None, *partitions: TopicPartition) -> None:
        """Markers are written, and no time passes."""
        message = message or self.sent[-1]
        self.happens(
            self.coordinator.markers_written(
                self.now_ms, message.transactional_id, message.id, partitions or message.partitions
            )
        )

    def passes(self, duration_ms: int) -> None:
        """Advances the clock, with a tick at every deadline."""
        end_ms = self.now_ms + duration_ms
        while (deadline_ms := self.coordinator.next_deadline_ms) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.happens(self.coordinator.tick(self.now_ms))
        self.now_ms = end_ms

    def restarted(self, records: int | None = None) -> "TransactionHarness":
        """The next coordinator after a crash: it has only the durable records, or only the first ones of them."""
        harness = TransactionHarness(self.settings, self.limits, self.now_ms, self.producer_ids)
        harness.durable = self.durable[:records]
        for key, value in harness.durable:
            harness.coordinator.replay(key, value)
        harness.happens(harness.coordinator.loaded(harness.now_ms))
        return harness

    def stores(self, value: Transaction, transactional_id: str = ID) -> "TransactionHarness":
        """A coordinator that finds this state in its log."""
        self.durable.append((encode_key(transactional_id), encode_value(value)))
        return self.restarted()

    # --- facts

    def stored(self, transactional_id: str = ID) -> list[Transaction]:
        """All states of an id that are durable."""
        return [
            decoded(value)
            for key, value in self.durable
            if value is not None and decode_key(key) == transactional_id
        ]

    @property
    def states(self) -> list[TransactionState]:
        return [value.state for value in self.stored()]

    @property
    def transaction(self) -> TransactionDescription:
        description = self.coordinator.describe(ID)
        assert description is not None
        return description

    @property
    def state(self) -> TransactionState:
        return self.transaction.state

    def aborts(self, transactional_id: str = ID, start_ms: int | None = None) -> ErrorCode | None:
        token = self.asks(
            lambda now_ms, token: self.coordinator.abort(now_ms, token, transactional_id, start_ms)
        )
        result = self.replies.get(token)
        assert result is None or isinstance(result, ErrorResult)
        return None if result is None else result.error


class Client:
    """A transactional producer. It takes its producer id and epoch from the responses."""

    def __init__(
        self, harness: TransactionHarness, dialect: Dialect = Dialect.V1, transactional_id: str = ID
    ) -> None:
        self.harness = harness
        self.dialect = dialect
        self.transactional_id = transactional_id
        self.producer: Producer = NO_PRODUCER
        self.token = 0

    @property
    def core(self) -> TransactionCoordinator:
        return self.harness.coordinator

    @property
    def result(self) -> Result | None:
        """The last response; None while it has not come."""
        return self.harness.replies.get(self.token)

    @property
    def error(self) -> ErrorCode | None:
        result = self.result
        assert not isinstance(result, ProducerIdNeeded)
        return None if result is None else result.error

    def inits(
        self, *, timeout_ms: int = TIMEOUT_MS, expected: Producer | None = None, adopts: bool = True
    ) -> ErrorCode | None:
        """InitProducerId, as the host makes it: with a new producer id if one is needed."""

        def request(new_producer_id: int) -> InitRequest:
            return InitRequest(
                transactional_id=self.transactional_id,
                timeout_ms=timeout_ms,
                expected=expected,
                new_producer_id=new_producer_id,
            )

        self._asks_for_producer(lambda now, token, new: self.core.init_producer_id(now, token, request(new)))
        if adopts:
            self.adopts()
        return self.error

    def continues(self, **options: bool) -> ErrorCode | None:
        """InitProducerId with the producer that the client is (KIP-360)."""
        return self.inits(expected=self.producer, **options)

    def adds(self, *partitions: TopicPartition) -> ErrorCode | None:
        request = AddRequest(
            transactional_id=self.transactional_id,
            producer=self.producer,
            partitions=frozenset(partitions or (ORDERS,)),
            dialect=self.dialect,
        )
        self.token = self.harness.asks(lambda now, token: self.core.add_partitions(now, token, request))
        return self.error

    def ends(self, *, commit: bool, adopts: bool = True) -> ErrorCode | None:
        """EndTxn. A client that does not adopt the next producer has not got the response."""

        def request(new_producer_id: int) -> EndRequest:
            return EndRequest(
                transactional_id=self.transactional_id,
                producer=self.producer,
                commit=commit,
                dialect=self.dialect,
                new_producer_id=new_producer_id,
            )

        self._asks_for_producer(lambda now, token, new: self.core.end(now, token, request(new)))
        if adopts:
            self.adopts()
        return self.error

    def commits(self, *, adopts: bool = True) -> ErrorCode | None:
        return self.ends(commit=True, adopts=adopts)

    def aborts(self, *, adopts: bool = True) -> ErrorCode | None:
        return self.ends(commit=False, adopts=adopts)

    def verifies(self, *partitions: TopicPartition) -> list[ErrorCode]:
        errors = self.core.verify(self.transactional_id, self.producer, partitions).errors
        return [errors[each] for each in partitions]

    def adopts(self) -> None:
        result = self.result
        if isinstance(result, ProducerResult) and result.producer != NO_PRODUCER:
            self.producer = result.producer

    def moves_to(self, harness: TransactionHarness) -> "Client":
        """The coordinator has changed."""
        self.harness = harness
        return self

    def _asks_for_producer(self, ask: Callable[[int, int, int], list[Effect]]) -> None:
        self.token = self.harness.asks(lambda now, token: ask(now, token, -1))
        if isinstance(self.result, ProducerIdNeeded):
            new = next(self.harness.producer_ids)
            self.token = self.harness.asks(lambda now, token: ask(now, token, new))


def ready(
    dialect: Dialect = Dialect.V1, harness: TransactionHarness | None = None
) -> tuple[TransactionHarness, Client]:
    """A client that has its producer."""
    harness = harness or TransactionHarness()
    client = Client(harness, dialect)
    assert client.inits() is ErrorCode.NONE
    return harness, client


def ongoing(dialect: Dialect = Dialect.V1, *partitions: TopicPartition) -> tuple[TransactionHarness, Client]:
    """A client with an open transaction."""
    harness, client = ready(dialect)
    assert client.adds(*partitions) is ErrorCode.NONE
    return harness, client


def complete(
    dialect: Dialect = Dialect.V1, *, commit: bool = True, adopts: bool = True
) -> tuple[TransactionHarness, Client]:
    """A client whose first transaction has ended, markers and all."""
    harness, client = ongoing(dialect)
    assert client.ends(commit=commit, adopts=adopts) is ErrorCode.NONE
    harness.marks()
    return harness, client


def at_epoch(epoch: int, dialect: Dialect, state: TransactionState) -> tuple[TransactionHarness, Client]:
    """A client whose producer has this epoch."""
    is_open = state is TransactionState.ONGOING
    value = Transaction(
        producer_id=500,
        epoch=epoch,
        timeout_ms=TIMEOUT_MS,
        state=state,
        partitions=frozenset({ORDERS}) if is_open else frozenset(),
        updated_ms=1_000_000,
        start_ms=1_000_000 if is_open else -1,
    )
    harness = TransactionHarness().stores(value)
    client = Client(harness, dialect)
    client.producer = Producer(500, epoch)
    return harness, client
