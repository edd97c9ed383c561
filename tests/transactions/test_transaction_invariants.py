"""For any order of requests, repetitions, crashes, lost markers, time and disk faults: a transaction has one outcome, a
commit that was acknowledged stays one, and a producer that was fenced changes nothing."""

from collections.abc import Collection, Iterable
from itertools import pairwise

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.config import Limits, TransactionSettings
from penstock.effects import Effect
from penstock.errors import ErrorCode
from penstock.transactions import (
    NO_PRODUCER,
    NO_PRODUCER_ID,
    AddRequest,
    Dialect,
    EndRequest,
    InitRequest,
    Producer,
    ProducerIdNeeded,
    ProducerResult,
    Result,
    SendMarkers,
)
from penstock.transactions.records import decode_key
from penstock.transactions.states import (
    DECIDED,
    EMPTY,
    IDLE,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    TRANSITIONS,
)
from penstock.transactions.store import COMPLETION_DELAY_MS
from penstock.transactions.transaction import LAST_CLIENT_EPOCH, Transaction
from penstock.types import TopicPartition
from tests.transactions.transaction_harness import INVOICES, ORDERS, TransactionHarness, decoded

IDS = ("one", "two")
ACTORS = st.integers(0, 4)
Request = InitRequest | AddRequest | EndRequest


class Actor:
    """A client. Three of them use the same id."""

    def __init__(self, transactional_id: str, dialect: Dialect) -> None:
        self.transactional_id = transactional_id
        self.dialect = dialect
        self.producer = NO_PRODUCER


def almost_exhausted() -> Transaction:
    return Transaction(
        producer_id=500, epoch=LAST_CLIENT_EPOCH - 2, timeout_ms=60_000, state=EMPTY, updated_ms=1_000_000
    )


def without_new_id(request: Request) -> Request:
    """As the client has sent it: the host uses a new producer id once."""
    if isinstance(request, AddRequest):
        return request
    return msgspec.structs.replace(request, new_producer_id=NO_PRODUCER_ID)


class RandomTransactions(RuleBasedStateMachine):
    """Five clients of two ids do anything in any order."""

    @initialize(exhausted=st.booleans())
    def start(self, exhausted: bool) -> None:
        chosen = TransactionSettings(id_expiration_ms=300_000)
        harness = TransactionHarness(chosen, Limits(max_transaction_partitions=2))
        self.adopt(harness.stores(almost_exhausted(), "one") if exhausted else harness)
        self.actors = [
            Actor("one", Dialect.V1),
            Actor("one", Dialect.V2),
            Actor("one", Dialect.V2),
            Actor("two", Dialect.V1),
            Actor("two", Dialect.V2),
        ]
        self.requests: list[Request] = []
        self.takeovers = dict.fromkeys(IDS, 0)
        self.lineage: dict[Producer, int] = {}
        """After which takeover of its id a client was given each producer."""

    def adopt(self, harness: TransactionHarness) -> None:
        self.harness = harness
        self.asked: dict[int, tuple[Request, Actor | None]] = {}
        harness.on_reply = self.hear
        self.checked_markers = 0
        self.marked: dict[int, set[TopicPartition]] = {}

    # --- requests

    def ask(self, request: Request, actor: Actor | None) -> None:
        """`actor` is None for a repetition by the network, whose response does not arrive."""

        def perform(now_ms: int, token: int) -> list[Effect]:
            self.asked[token] = request, actor
            core = self.harness.coordinator
            match request:
                case InitRequest():
                    return core.init_producer_id(now_ms, token, request)
                case AddRequest():
                    return core.add_partitions(now_ms, token, request)
                case EndRequest():
                    return core.end(now_ms, token, request)

        token = self.harness.asks(perform)
        if isinstance(self.harness.replies.get(token), ProducerIdNeeded):
            assert not isinstance(request, AddRequest)
            new = next(self.harness.producer_ids)
            self.ask(msgspec.structs.replace(request, new_producer_id=new), actor)
        else:
            self.requests.append(without_new_id(request))

    @rule(index=ACTORS, continues=st.booleans(), arrives=st.booleans())
    def init(self, index: int, continues: bool, arrives: bool) -> None:
        actor = self.actors[index]
        expected = actor.producer if continues and actor.producer != NO_PRODUCER else None
        request = InitRequest(transactional_id=actor.transactional_id, timeout_ms=60_000, expected=expected)
        self.ask(request, actor if arrives else None)

    @rule(index=ACTORS, partition=st.sampled_from([ORDERS, INVOICES]))
    def add(self, index: int, partition: object) -> None:
        actor = self.actors[index]
        request = AddRequest(
            transactional_id=actor.transactional_id,
            producer=actor.producer,
            partitions=frozenset({ORDERS if partition == ORDERS else INVOICES}),
            dialect=actor.dialect,
        )
        self.ask(request, actor)

    @rule(index=ACTORS, commit=st.booleans(), arrives=st.booleans())
    def end(self, index: int, commit: bool, arrives: bool) -> None:
        actor = self.actors[index]
        request = EndRequest(
            transactional_id=actor.transactional_id,
            producer=actor.producer,
            commit=commit,
            dialect=actor.dialect,
        )
        self.ask(request, actor if arrives else None)

    @rule(index=ACTORS, takes_over=st.booleans())
    def begin(self, index: int, takes_over: bool) -> None:
        """Random steps alone hardly ever open a transaction."""
        self.change_disk("prompt")
        self.harness.flush()
        for _ in range(2 if takes_over else 0):
            self.init(index, continues=False, arrives=True)
            self.markers_are_written()
        self.add(index, ORDERS)

    @rule(index=ACTORS, takes_over=st.booleans(), commit=st.booleans(), arrives=st.booleans())
    def decide(self, index: int, takes_over: bool, commit: bool, arrives: bool) -> None:
        self.begin(index, takes_over)
        self.end(index, commit, arrives)

    @rule(index=ACTORS, takes_over=st.booleans(), commit=st.booleans())
    def whole_transaction(self, index: int, takes_over: bool, commit: bool) -> None:
        self.decide(index, takes_over, commit, arrives=True)
        self.markers_are_written()

    @rule(at=st.integers(0, 1000))
    def repeat(self, at: int) -> None:
        """A request of any age comes once more."""
        if self.requests:
            self.ask(self.requests[at % len(self.requests)], None)

    @rule(name=st.sampled_from(IDS))
    def operator_aborts(self, name: str) -> None:
        self.harness.aborts(name)

    # --- the surroundings

    @rule()
    def markers_are_written(self) -> None:
        for message in list(self.harness.sent):
            self.mark(message, message.partitions)

    @rule(at=st.integers(0, 1000))
    def one_marker_is_written(self, at: int) -> None:
        """Perhaps one of a transaction that has ended long ago."""
        if self.harness.sent:
            message = self.harness.sent[at % len(self.harness.sent)]
            self.mark(message, {min(message.partitions)})

    def mark(self, message: SendMarkers, partitions: Collection[TopicPartition]) -> None:
        self.marked.setdefault(message.id, set()).update(partitions)
        self.harness.reports(message, *partitions)

    @rule(duration_ms=st.sampled_from([1, 30_000, 70_000, 400_000]))
    def time_passes(self, duration_ms: int) -> None:
        self.harness.passes(duration_ms)

    @rule(disk=st.sampled_from(["prompt", "prompt", "slow", "slow", "full"]))
    def change_disk(self, disk: str) -> None:
        self.harness.disk = disk

    @rule(writes=st.integers(1, 3))
    def disk_gets_on(self, writes: int) -> None:
        self.harness.flush(writes)

    @rule(survive=st.integers(0, 3))
    def crash(self, survive: int) -> None:
        """The log may have got writes that the coordinator was not told of."""
        for write in self.harness.in_flight[:survive]:
            self.harness.durable += write.records
        self.adopt(self.harness.restarted())

    # --- checks of responses

    def hear(self, token: int, result: Result) -> None:
        request, actor = self.asked.get(token, (None, None))
        if request is None or isinstance(result, ProducerIdNeeded) or result.error is not ErrorCode.NONE:
            return
        if isinstance(request, InitRequest) and request.expected is None:
            assert isinstance(result, ProducerResult)
            assert result.producer not in self.lineage, "one producer was given to two clients"
            self.takeovers[request.transactional_id] += 1
            self.lineage[result.producer] = self.takeovers[request.transactional_id]
        else:
            self.check_not_fenced(request, result)
        if isinstance(request, EndRequest):
            self.check_outcome(request)
        if actor is not None and isinstance(result, ProducerResult) and result.producer != NO_PRODUCER:
            actor.producer = result.producer

    def check_not_fenced(self, request: Request, result: Result) -> None:
        """Only the client that has taken over last is served."""
        producer = request.expected if isinstance(request, InitRequest) else request.producer
        assert producer is not None
        takeover = self.takeovers[request.transactional_id]
        if isinstance(request, InitRequest) and self.is_new(request.transactional_id):
            self.takeovers[request.transactional_id] = takeover = takeover + 1
        else:
            assert self.lineage[producer] == takeover, "a producer that was fenced is served"
        if isinstance(result, ProducerResult) and result.producer != NO_PRODUCER:
            assert result.producer.epoch <= LAST_CLIENT_EPOCH
            assert result.producer != producer, (
                "every step of a client to the next producer is seen in the epoch"
            )
            assert self.lineage.setdefault(result.producer, takeover) == takeover

    def is_new(self, name: str) -> bool:
        """Whether the id had expired when its last record was written."""
        last = [value for key, value in self.harness.durable if decode_key(key) == name][-2:]
        return len(last) < 2 or last[0] is None

    def check_outcome(self, request: EndRequest) -> None:
        """The log has the outcome before anyone hears of it."""
        outcomes = [
            value.state for value in self.harness.stored(request.transactional_id) if value.state in DECIDED
        ]
        assert outcomes[-1] is (PREPARE_COMMIT if request.commit else PREPARE_ABORT)

    # --- checks of the log, the markers and the timers

    @invariant()
    def promises_hold(self) -> None:
        if not hasattr(self, "harness"):
            return
        for name in IDS:
            self.check_log(name)
            self.check_verification(name)
            self.check_completion(name)
        next_ms = self.harness.coordinator.next_deadline_ms
        assert next_ms is None or next_ms >= self.harness.now_ms
        for message in self.harness.sent[self.checked_markers :]:
            decided = [
                value
                for value in self.harness.stored(message.transactional_id)
                if value.state is (PREPARE_COMMIT if message.commit else PREPARE_ABORT)
            ]
            assert any(
                (one.producer, one.partitions) == (message.producer, message.partitions) for one in decided
            )
        self.checked_markers = len(self.harness.sent)

    def check_log(self, name: str) -> None:
        values = [
            None if value is None else decoded(value)
            for key, value in self.harness.durable
            if decode_key(key) == name
        ]
        for before, after in pairwise(values):
            if before is None or after is None:
                assert before is None or before.state in IDLE
                continue
            fenced = (before.state, after.state) == (ONGOING, PREPARE_ABORT)
            assert fenced or after.state in TRANSITIONS[before.state]
            assert after.producer_id != before.producer_id or after.epoch >= before.epoch
            assert after.state not in DECIDED or after.partitions == before.partitions
            assert after.state is not ONGOING or after.partitions >= before.partitions
            if fenced and not self.asked_to_abort(before.producer):
                assert after.epoch == before.epoch + 1, "the coordinator aborts with an epoch of its own"

    def asked_to_abort(self, producer: Producer) -> bool:
        return any(
            isinstance(one, EndRequest) and one.producer == producer and not one.commit
            for one in self.requests
        )

    def check_completion(self, name: str) -> None:
        """A transaction is complete only when all its partitions have their marker."""
        description = self.harness.coordinator.describe(name)
        sent = [message for message in self.harness.sent if message.transactional_id == name]
        if description is not None and description.state in IDLE and sent:
            assert self.marked.get(sent[-1].id) == sent[-1].partitions

    def check_verification(self, name: str) -> None:
        """A partition is verified only for the producer of the open transaction, in which it is."""
        stored = self.harness.stored(name)
        for producer in self.lineage:
            verified = self.harness.coordinator.verify(name, producer, [ORDERS, INVOICES]).errors
            parts = {one for one, error in verified.items() if error is ErrorCode.NONE}
            if parts:
                assert stored[-1].state is ONGOING
                assert stored[-1].producer == producer
                assert stored[-1].partitions >= parts

    def teardown(self) -> None:
        """In the end the disk works, markers are written, and time passes: nothing is open, and the log has all."""
        if not hasattr(self, "harness"):
            return
        self.harness.disk = "prompt"
        self.harness.flush()
        self.harness.passes(120_000)
        self.markers_are_written()
        self.harness.passes(COMPLETION_DELAY_MS)
        assert self.harness.open_tokens == set()
        assert self.harness.in_flight == []
        assert self.harness.coordinator._store.outbox._in_flight == {}
        assert all(state in IDLE for state in self.known_states())
        assert self.descriptions(self.harness) == self.descriptions(self.harness.restarted())
        self.harness.passes(400_000)
        assert list(self.known_states()) == []
        assert self.harness.coordinator.next_deadline_ms is None
        self.promises_hold()

    def known_states(self) -> Iterable[object]:
        return (each.state for each in self.harness.coordinator.list_transactions(self.harness.now_ms))

    def descriptions(self, harness: TransactionHarness) -> list[object]:
        return [harness.coordinator.describe(name) for name in IDS]


TestTransactionsUnderFire = RandomTransactions.TestCase
TestTransactionsUnderFire.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
