"""A coordinator that starts from any prefix of the log completes what was decided there, and nothing else."""

import pytest

from penstock.errors import ErrorCode
from penstock.transactions import Dialect, TransactionState
from penstock.transactions.states import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    DECIDED,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
)
from tests.transactions.transaction_harness import (
    INVOICES,
    ORDERS,
    TIMEOUT_MS,
    Client,
    TransactionHarness,
    ready,
)

BOTH = pytest.mark.parametrize("dialect", Dialect)


def eventful(dialect: Dialect) -> TransactionHarness:
    """A commit, an abort, a timeout, a takeover, and a second id in between."""
    harness, client = ready(dialect)
    other = Client(harness, dialect, "other")
    other.inits()
    client.adds(ORDERS)
    client.adds(INVOICES)
    client.commits()
    other.adds(ORDERS)
    harness.marks(harness.sent[0])
    client.adds(ORDERS)
    client.aborts()
    harness.marks(harness.sent[1])
    other.commits()
    harness.marks(harness.sent[2])
    client.adds(INVOICES)
    harness.passes(TIMEOUT_MS)
    harness.marks(harness.sent[3])
    client.inits()
    client.adds(ORDERS)
    second = Client(harness, dialect)
    second.inits()
    harness.marks(harness.sent[4])
    second.inits()
    return harness


@BOTH
def test_every_prefix_of_the_log_is_continued(dialect: Dialect) -> None:
    whole = eventful(dialect)
    for records in range(len(whole.durable) + 1):
        harness = whole.restarted(records)
        decided = {
            each.transactional_id: each.state
            for each in harness.coordinator.list_transactions(harness.now_ms, states=DECIDED)
        }
        assert {one.transactional_id: _state(one.commit) for one in harness.sent} == decided
        for one in list(harness.sent):
            harness.reports(one)
        for name, state in decided.items():
            description = harness.coordinator.describe(name)
            assert description is not None
            assert description.state is (COMPLETE_COMMIT if state is PREPARE_COMMIT else COMPLETE_ABORT)
        assert not list(harness.coordinator.list_transactions(harness.now_ms, states=DECIDED))


@BOTH
def test_every_prefix_of_the_log_lets_a_new_client_begin(dialect: Dialect) -> None:
    whole = eventful(dialect)
    for records in range(len(whole.durable) + 1):
        harness = whole.restarted(records)
        client = Client(harness, dialect)
        for _ in range(2):
            for one in list(harness.sent):
                harness.marks(one)
            client.inits()
        assert client.adds() is ErrorCode.NONE
        assert client.commits() is ErrorCode.NONE


@BOTH
def test_an_open_transaction_goes_on_after_a_failover(dialect: Dialect) -> None:
    harness, client = ready(dialect)
    client.adds(ORDERS)
    harness = harness.restarted()
    client.moves_to(harness)
    assert harness.sent == []
    assert harness.state is ONGOING
    client.adds(INVOICES)
    assert client.commits() is ErrorCode.NONE
    assert harness.sent[0].partitions == {ORDERS, INVOICES}


@BOTH
def test_a_state_that_was_written_and_not_reported_counts(dialect: Dialect) -> None:
    """The coordinator crashes when the log has its record and it has not answered."""
    harness, client = ready(dialect)
    client.adds(ORDERS)
    harness.disk = "slow"
    assert client.commits() is None
    harness.durable += harness.in_flight[0].records
    harness = harness.restarted()
    client.moves_to(harness)
    assert harness.state is PREPARE_COMMIT
    assert client.commits() is ErrorCode.CONCURRENT_TRANSACTIONS
    harness.marks()
    assert client.commits() is ErrorCode.NONE


def test_the_next_coordinator_knows_all_that_the_last_one_knew() -> None:
    for dialect in Dialect:
        harness = eventful(dialect)
        again = harness.restarted()
        for name in ("payments", "other"):
            assert again.coordinator.describe(name) == harness.coordinator.describe(name)


def _state(commit: bool) -> TransactionState:
    return PREPARE_COMMIT if commit else PREPARE_ABORT
