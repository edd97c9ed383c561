"""A transaction that is open for longer than its timeout is aborted, and a commit that races the abort loses or wins
wholly."""

import pytest

from penstock.errors import ErrorCode
from penstock.transactions import Dialect, Producer
from penstock.transactions.states import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    TransactionState,
)
from penstock.transactions.store import WRITE_RETRY_MS
from penstock.transactions.transaction import NEVER_MS, Transaction
from tests.transactions.transaction_harness import (
    HOUR_MS,
    INVOICES,
    ORDERS,
    TIMEOUT_MS,
    TransactionHarness,
    complete,
    ongoing,
)

BOTH = pytest.mark.parametrize("dialect", Dialect)


@BOTH
def test_a_transaction_is_aborted_when_its_time_is_up(dialect: Dialect) -> None:
    harness, client = ongoing(dialect)
    harness.passes(TIMEOUT_MS - 1)
    assert harness.state is ONGOING
    harness.passes(1)
    assert harness.state is PREPARE_ABORT
    (markers,) = harness.sent
    assert not markers.commit
    assert markers.producer == Producer(client.producer.producer_id, client.producer.epoch + 1)
    harness.marks()
    assert harness.state is COMPLETE_ABORT


def test_further_partitions_do_not_prolong_it() -> None:
    harness, client = ongoing()
    harness.passes(TIMEOUT_MS - 1)
    client.adds(INVOICES)
    harness.passes(1)
    assert harness.state is PREPARE_ABORT


def test_the_time_counts_from_the_beginning_also_after_a_failover() -> None:
    harness, _ = ongoing()
    harness.passes(TIMEOUT_MS - 1)
    harness = harness.restarted()
    harness.passes(1)
    assert harness.state is PREPARE_ABORT


def test_a_transaction_whose_time_was_up_while_no_coordinator_was_there_is_aborted_at_once() -> None:
    harness, _ = ongoing()
    harness.now_ms += 10 * TIMEOUT_MS
    harness = harness.restarted()
    harness.passes(0)
    assert harness.state is PREPARE_ABORT


def test_a_transaction_that_has_ended_does_not_time_out() -> None:
    harness, client = complete()
    harness.passes(10 * TIMEOUT_MS)
    assert harness.state is COMPLETE_COMMIT
    client.adds()
    client.commits()
    harness.passes(10 * TIMEOUT_MS)
    assert harness.state is PREPARE_COMMIT, "and one that is decided waits for its markers, however long"


def test_a_transaction_of_an_external_coordinator_never_times_out() -> None:
    """KIP-939: such a record may be in a log, though no client can begin one here."""
    value = Transaction(
        producer_id=1,
        epoch=1,
        timeout_ms=NEVER_MS,
        state=TransactionState.ONGOING,
        partitions=frozenset({ORDERS}),
        updated_ms=1,
        start_ms=1,
    )
    harness = TransactionHarness().stores(value)
    harness.passes(2 * NEVER_MS)
    assert harness.state is ONGOING
    assert harness.aborts() is ErrorCode.NONE


def test_an_abort_that_could_not_be_written_is_tried_again() -> None:
    harness, _ = ongoing()
    harness.disk = "full"
    harness.passes(TIMEOUT_MS + 5 * WRITE_RETRY_MS)
    assert harness.state is ONGOING
    harness.disk = "prompt"
    harness.passes(WRITE_RETRY_MS)
    assert harness.state is PREPARE_ABORT
    assert harness.stored()[-1].epoch == 1, "failed attempts use up no epochs"


# --- a commit that races the abort


@BOTH
def test_a_commit_that_is_being_written_when_the_time_is_up_wins(dialect: Dialect) -> None:
    harness, client = ongoing(dialect)
    harness.disk = "slow"
    client.commits()
    harness.passes(2 * TIMEOUT_MS)
    harness.flush()
    assert client.error is ErrorCode.NONE
    harness.disk = "prompt"
    harness.marks()
    assert harness.state is COMPLETE_COMMIT
    assert [markers.commit for markers in harness.sent] == [True]


@BOTH
def test_a_commit_that_could_not_be_written_in_time_is_followed_by_the_abort(dialect: Dialect) -> None:
    harness, client = ongoing(dialect)
    harness.disk = "slow"
    client.commits()
    harness.passes(2 * TIMEOUT_MS)
    harness.disk = "full"
    harness.flush()
    assert client.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    harness.disk = "prompt"
    harness.passes(WRITE_RETRY_MS)
    assert [markers.commit for markers in harness.sent] == [False]


@BOTH
def test_a_commit_that_comes_while_the_abort_is_written_is_refused(dialect: Dialect) -> None:
    harness, client = ongoing(dialect)
    harness.disk = "slow"
    harness.passes(TIMEOUT_MS)
    assert client.commits() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert client.adds(INVOICES) is ErrorCode.CONCURRENT_TRANSACTIONS
    harness.disk = "prompt"
    harness.flush()
    assert client.commits() is not ErrorCode.NONE
    harness.marks()
    refused = ErrorCode.PRODUCER_FENCED if dialect is Dialect.V1 else ErrorCode.INVALID_TXN_STATE
    assert client.commits() is refused
    assert [markers.commit for markers in harness.sent] == [False]


def test_a_client_of_v2_aborts_what_has_timed_out_and_goes_on() -> None:
    harness, client = ongoing(Dialect.V2)
    harness.passes(TIMEOUT_MS)
    harness.marks()
    client.moves_to(harness.restarted())
    assert client.aborts() is ErrorCode.NONE
    assert client.producer == Producer(1000, 1)
    assert client.adds() is ErrorCode.NONE


@BOTH
def test_a_client_whose_transaction_has_timed_out_may_continue_with_the_next_epoch(dialect: Dialect) -> None:
    """KIP-588."""
    harness, client = ongoing(dialect)
    harness.passes(TIMEOUT_MS)
    harness.marks()
    assert client.continues() is ErrorCode.NONE
    assert client.producer == Producer(1000, 1)
    assert client.adds() is ErrorCode.NONE


def test_a_transaction_of_a_node_whose_clock_was_ahead_times_out_by_the_clock_of_the_next_coordinator() -> (
    None
):
    harness, _ = ongoing()
    harness.now_ms -= HOUR_MS
    harness = harness.restarted()
    harness.passes(TIMEOUT_MS - 1)
    assert harness.state is ONGOING
    harness.passes(1)
    assert harness.state is PREPARE_ABORT
