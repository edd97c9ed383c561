"""EndTxn in both dialects: the outcome, repeated requests, delayed ones, and the last epoch."""

import pytest

from penstock.errors import ErrorCode
from penstock.transactions import NO_PRODUCER, Dialect, Producer, ProducerResult, TransactionState
from penstock.transactions.states import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
)
from penstock.transactions.transaction import LAST_CLIENT_EPOCH, MAX_EPOCH
from tests.transactions.transaction_harness import (
    INVOICES,
    ORDERS,
    Client,
    TransactionHarness,
    at_epoch,
    complete,
    ongoing,
    ready,
)

BOTH = pytest.mark.parametrize("dialect", Dialect)
OUTCOMES = pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
COMMIT, ABORT = True, False


@BOTH
@OUTCOMES
def test_the_outcome_is_stored_then_told_then_marked_then_completed(dialect: Dialect, commit: bool) -> None:
    harness, client = ongoing(dialect, ORDERS, INVOICES)
    harness.disk = "slow"
    assert client.ends(commit=commit) is None
    assert harness.sent == []
    harness.flush()
    assert client.error is ErrorCode.NONE
    assert harness.state is (PREPARE_COMMIT if commit else PREPARE_ABORT)
    (markers,) = harness.sent
    assert (markers.commit, markers.partitions) == (commit, {ORDERS, INVOICES})
    harness.marks()
    assert harness.states[-1] is (PREPARE_COMMIT if commit else PREPARE_ABORT)
    harness.flush()
    assert harness.state is harness.states[-1] is (COMPLETE_COMMIT if commit else COMPLETE_ABORT)
    assert harness.transaction.partitions == frozenset()


def test_v1_keeps_the_epoch() -> None:
    harness, client = complete(Dialect.V1)
    assert client.result == ProducerResult(producer=NO_PRODUCER)
    assert harness.sent[0].producer == client.producer == Producer(1000, 0)
    assert client.adds() is ErrorCode.NONE


def test_v2_raises_the_epoch_and_marks_with_the_new_one() -> None:
    harness, client = complete(Dialect.V2)
    assert harness.sent[0].producer == client.producer == Producer(1000, 1)
    assert harness.stored()[-1].dialect == Dialect.V2
    assert client.adds() is ErrorCode.NONE


@BOTH
def test_a_failed_write_decides_nothing(dialect: Dialect) -> None:
    harness, client = ongoing(dialect)
    harness.disk = "full"
    assert client.commits() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert client.result == ProducerResult(error=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert harness.sent == []
    assert harness.state is ONGOING
    harness.disk = "prompt"
    assert client.aborts() is ErrorCode.NONE


# --- refusals


@BOTH
def test_an_unknown_id_and_an_unknown_producer_are_refused(dialect: Dialect) -> None:
    harness, client = ongoing(dialect)
    assert Client(harness, dialect, "unknown").commits() is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert Client(harness, dialect, "").commits() is ErrorCode.INVALID_REQUEST
    client.producer = Producer(77, 0)
    assert client.commits() is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@BOTH
@pytest.mark.parametrize("epoch", [-1, 1, 2, 4, 5])
def test_another_epoch_is_fenced_in_an_open_transaction(dialect: Dialect, epoch: int) -> None:
    harness, client = at_epoch(3, dialect, ONGOING)
    client.producer = Producer(500, epoch)
    assert client.commits() is ErrorCode.PRODUCER_FENCED
    assert harness.state is ONGOING


def state_after(dialect: Dialect, state: TransactionState) -> tuple[TransactionHarness, Client]:
    """A client in one of the states without a transaction, and a response that it may have lost."""
    if state is EMPTY:
        harness, client = ready(dialect)
        client.continues(adopts=False)
        return harness, client
    return complete(dialect, commit=state is COMPLETE_COMMIT, adopts=False)


ITS, FENCED, NONE = ErrorCode.INVALID_TXN_STATE, ErrorCode.PRODUCER_FENCED, ErrorCode.NONE


@pytest.mark.parametrize(
    ("state", "commit", "expected"),
    [
        (EMPTY, ABORT, ITS),
        (EMPTY, COMMIT, ITS),
        (COMPLETE_ABORT, ABORT, NONE),
        (COMPLETE_ABORT, COMMIT, ITS),
        (COMPLETE_COMMIT, ABORT, ITS),
        (COMPLETE_COMMIT, COMMIT, NONE),
    ],
)
def test_v1_without_a_transaction(state: TransactionState, commit: bool, expected: ErrorCode) -> None:
    harness, client = ready() if state is EMPTY else complete(commit=state is COMPLETE_COMMIT)
    before = list(harness.durable)
    assert client.ends(commit=commit) is expected
    assert harness.durable == before


@pytest.mark.parametrize(
    ("state", "commit", "expected"),
    [
        (EMPTY, ABORT, FENCED),
        (EMPTY, COMMIT, FENCED),
        (COMPLETE_ABORT, ABORT, NONE),
        (COMPLETE_ABORT, COMMIT, ITS),
        (COMPLETE_COMMIT, ABORT, ITS),
        (COMPLETE_COMMIT, COMMIT, NONE),
    ],
)
def test_v2_without_a_transaction_repeated_with_the_last_epoch(
    state: TransactionState, commit: bool, expected: ErrorCode
) -> None:
    harness, client = state_after(Dialect.V2, state)
    before = list(harness.durable)
    assert client.ends(commit=commit) is expected
    assert harness.durable == before
    if expected is NONE:
        assert client.producer == harness.transaction.producer == Producer(1000, 1)


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_ABORT, COMPLETE_COMMIT])
def test_v2_without_a_transaction_aborts_with_the_next_epoch_and_refuses_to_commit(
    state: TransactionState,
) -> None:
    harness, client = state_after(Dialect.V2, state)
    client.producer = Producer(1000, 1)
    assert client.commits() is ITS
    markers = len(harness.sent)
    assert client.aborts() is NONE
    assert client.producer == Producer(1000, 2)
    assert harness.state is COMPLETE_ABORT
    assert len(harness.sent) == markers, "there is nothing to mark"


# --- repeated and delayed requests


@BOTH
@OUTCOMES
def test_a_repeated_request_waits_for_the_markers_and_is_answered_as_the_first(
    dialect: Dialect, commit: bool
) -> None:
    harness, client = ongoing(dialect)
    client.ends(commit=commit, adopts=False)
    first = client.result
    assert client.ends(commit=commit, adopts=False) is ErrorCode.CONCURRENT_TRANSACTIONS
    harness.marks()
    for _ in range(2):
        assert client.ends(commit=commit, adopts=False) is NONE
        assert client.result == first


@BOTH
@OUTCOMES
def test_a_repeated_request_is_answered_as_the_first_after_a_failover(dialect: Dialect, commit: bool) -> None:
    harness, client = ongoing(dialect)
    client.ends(commit=commit, adopts=False)
    first = client.result
    harness = harness.restarted()
    client.moves_to(harness)
    assert client.ends(commit=commit, adopts=False) is ErrorCode.CONCURRENT_TRANSACTIONS
    harness.marks()
    client.moves_to(harness.restarted())
    assert client.ends(commit=commit, adopts=False) is NONE
    assert client.result == first


@BOTH
@OUTCOMES
def test_the_other_outcome_never_follows_a_decision(dialect: Dialect, commit: bool) -> None:
    _harness, client = ongoing(dialect)
    client.ends(commit=commit, adopts=False)
    for _ in range(2):
        assert client.ends(commit=not commit, adopts=False) is not NONE
        client.moves_to(client.harness.restarted())
    client.harness.marks()
    assert client.ends(commit=not commit, adopts=False) is ITS
    assert {markers.commit for markers in client.harness.sent} == {commit}


@OUTCOMES
def test_a_delayed_request_of_v2_does_not_end_the_next_transaction(commit: bool) -> None:
    harness, client = complete(Dialect.V2, adopts=False)
    late = Client(harness, Dialect.V2)
    late.producer = client.producer
    client.adopts()
    client.adds()
    assert late.ends(commit=commit) is FENCED
    assert harness.state is ONGOING
    client.aborts()
    harness.marks()
    assert late.ends(commit=commit) is FENCED
    assert harness.state is COMPLETE_ABORT


def test_a_delayed_request_of_v1_ends_the_next_transaction_because_nothing_tells_them_apart() -> None:
    """The gap of the old protocol, as in Kafka: see `ending.py`."""
    harness, client = complete(Dialect.V1)
    client.adds()
    assert client.commits() is NONE
    assert harness.state is PREPARE_COMMIT


@pytest.mark.parametrize(
    ("next_commit", "late_commit"), [(True, True), (True, False), (False, False), (False, True)]
)
def test_a_delayed_request_of_v1_changes_nothing_when_the_next_transaction_has_ended(
    next_commit: bool, late_commit: bool
) -> None:
    harness, client = complete(Dialect.V1, commit=late_commit)
    client.adds()
    client.ends(commit=next_commit)
    before = list(harness.durable)
    assert client.ends(commit=late_commit) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert harness.durable == before
    harness.marks()
    before = list(harness.durable)
    assert client.ends(commit=late_commit) is (NONE if next_commit is late_commit else ITS)
    assert harness.durable == before


# --- the last epoch


def test_v1_ends_transactions_at_the_last_epoch_as_at_any_other() -> None:
    harness, client = at_epoch(LAST_CLIENT_EPOCH, Dialect.V1, ONGOING)
    assert client.commits() is NONE
    harness.marks()
    assert client.adds() is NONE
    assert client.producer == Producer(500, LAST_CLIENT_EPOCH)


@OUTCOMES
def test_v2_goes_on_with_a_new_producer_id_after_the_last_epoch(commit: bool) -> None:
    harness, client = at_epoch(LAST_CLIENT_EPOCH, Dialect.V2, ONGOING)
    assert client.ends(commit=commit) is NONE
    assert harness.sent[0].producer == Producer(500, MAX_EPOCH), "the markers are the old producer's"
    assert client.producer == Producer(1000, 0)
    assert client.adds() is ErrorCode.CONCURRENT_TRANSACTIONS, "not refused: it is only early"
    assert client.commits() is ErrorCode.CONCURRENT_TRANSACTIONS
    harness.marks()
    assert harness.transaction.producer == Producer(1000, 0)
    assert client.adds() is NONE


def test_v2_reaches_the_last_epoch_without_a_new_producer_id() -> None:
    harness, client = at_epoch(LAST_CLIENT_EPOCH - 1, Dialect.V2, ONGOING)
    client.commits()
    harness.marks()
    assert client.producer == Producer(500, LAST_CLIENT_EPOCH)
    assert client.adds() is NONE


@OUTCOMES
def test_a_request_that_used_up_the_last_epoch_can_be_repeated_also_after_a_failover(commit: bool) -> None:
    harness, client = at_epoch(LAST_CLIENT_EPOCH, Dialect.V2, ONGOING)
    client.ends(commit=commit, adopts=False)
    first = client.result
    harness = harness.restarted()
    client.moves_to(harness)
    assert client.ends(commit=commit, adopts=False) is ErrorCode.CONCURRENT_TRANSACTIONS
    harness.marks()
    client.moves_to(harness.restarted())
    assert client.ends(commit=not commit, adopts=False) is ITS
    assert client.ends(commit=commit, adopts=False) is NONE
    assert client.result == first


def test_an_abort_of_v2_without_a_transaction_at_the_last_epoch_gets_a_new_producer_id() -> None:
    harness, client = at_epoch(LAST_CLIENT_EPOCH, Dialect.V2, EMPTY)
    assert client.aborts() is NONE
    assert client.producer == harness.transaction.producer == Producer(1000, 0)


# --- operators


def test_an_operator_aborts_an_open_transaction() -> None:
    harness, client = ongoing()
    assert harness.aborts() is NONE
    assert not harness.sent[0].commit
    harness.marks()
    assert harness.state is COMPLETE_ABORT
    assert client.commits() is FENCED


def test_an_operator_aborts_only_the_transaction_that_was_meant() -> None:
    harness, client = ongoing()
    seen_ms = harness.transaction.start_ms
    client.commits()
    harness.marks()
    harness.passes(1)
    client.adds()
    assert harness.aborts(start_ms=seen_ms) is ITS
    assert harness.state is ONGOING
    assert harness.aborts(start_ms=harness.transaction.start_ms) is NONE


def test_an_operator_cannot_abort_what_is_not_open() -> None:
    harness, client = ready()
    assert harness.aborts("unknown") is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert harness.aborts() is ITS
    client.adds()
    client.commits()
    assert harness.aborts() is ErrorCode.CONCURRENT_TRANSACTIONS
    harness.marks()
    assert harness.aborts() is ITS


def test_an_operators_abort_that_was_not_written_is_told() -> None:
    harness, _ = ongoing()
    harness.disk = "full"
    assert harness.aborts() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.state is ONGOING
