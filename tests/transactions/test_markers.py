"""Markers: a transaction is complete when all its partitions have one, whatever happens on the way."""

import pytest

from penstock.errors import ErrorCode
from penstock.transactions import Dialect
from penstock.transactions.states import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
)
from penstock.transactions.store import COMPLETION_DELAY_MS, WRITE_RETRY_MS
from tests.transactions.transaction_harness import (
    ID,
    INVOICES,
    OFFSETS,
    ORDERS,
    Client,
    TransactionHarness,
    complete,
    ongoing,
    ready,
)

BOTH = pytest.mark.parametrize("dialect", Dialect)


def test_a_transaction_is_complete_with_its_last_marker() -> None:
    harness, client = ongoing(Dialect.V1, ORDERS, INVOICES, OFFSETS)
    client.commits()
    harness.marks(None, ORDERS)
    harness.marks(None, ORDERS)
    harness.marks(None, OFFSETS)
    assert harness.state is PREPARE_COMMIT
    assert harness.transaction.partitions == {INVOICES}
    harness.marks(None, INVOICES)
    assert harness.state is COMPLETE_COMMIT


@BOTH
def test_a_coordinator_killed_between_decision_and_markers_is_succeeded_by_one_that_sends_them(
    dialect: Dialect,
) -> None:
    harness, client = ongoing(dialect, ORDERS, INVOICES)
    client.commits()
    (before,) = harness.sent
    harness.marks(None, ORDERS)
    harness = harness.restarted()
    (again,) = harness.sent
    assert again.producer == before.producer
    assert again.commit
    assert again.partitions == {ORDERS, INVOICES}, "the log does not say which were written"
    harness.marks()
    assert harness.state is COMPLETE_COMMIT
    assert harness.restarted().sent == []


def test_a_transaction_killed_between_its_last_marker_and_its_completion_is_completed_again() -> None:
    harness, client = ongoing()
    client.aborts()
    harness.disk = "slow"
    harness.marks()
    harness = harness.restarted()
    assert harness.state is PREPARE_ABORT
    harness.marks()
    assert harness.state is COMPLETE_ABORT


def test_an_abort_without_partitions_is_completed_after_a_crash() -> None:
    harness, client = ready(Dialect.V2)
    client.aborts()
    harness.passes(COMPLETION_DELAY_MS)
    assert harness.states[-2:] == [PREPARE_ABORT, COMPLETE_ABORT]
    crashed = harness.restarted(records=len(harness.durable) - 1)
    assert crashed.state is COMPLETE_ABORT
    assert crashed.sent == []


def test_the_completion_is_written_again_until_it_succeeds() -> None:
    harness, client = ongoing()
    client.commits()
    harness.disk = "full"
    harness.marks()
    harness.passes(3 * WRITE_RETRY_MS)
    assert harness.states[-1] is PREPARE_COMMIT
    assert client.adds() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    harness.disk = "prompt"
    harness.passes(WRITE_RETRY_MS)
    assert harness.states[-1] is COMPLETE_COMMIT
    assert harness.states.count(COMPLETE_COMMIT) == 1


def test_a_repeated_report_completes_a_transaction_whose_completion_failed_once() -> None:
    harness, client = ongoing()
    client.commits()
    harness.disk = "full"
    harness.marks()
    harness.disk = "prompt"
    harness.marks()
    harness.passes(3 * WRITE_RETRY_MS)
    assert harness.states.count(COMPLETE_COMMIT) == 1


def test_a_late_report_does_not_count_for_the_next_transaction_of_the_same_epoch() -> None:
    harness, client = complete(Dialect.V1)
    (first,) = harness.sent
    client.adds()
    client.aborts()
    assert harness.sent[-1].producer == first.producer
    harness.marks(first)
    assert harness.state is PREPARE_ABORT
    harness.marks()
    assert harness.state is COMPLETE_ABORT


def test_reports_that_nothing_waits_for_change_nothing() -> None:
    harness, _client = complete()
    (first,) = harness.sent
    before = list(harness.durable)
    harness.marks(first)
    harness.passes(harness.settings.id_expiration_ms)
    harness.marks(first)
    assert harness.durable[: len(before)] == before
    assert len(harness.durable) == len(before) + 1, "only the expiry was written"


def test_a_report_during_the_write_of_the_completion_is_not_a_second_one() -> None:
    harness, client = ongoing()
    client.commits()
    harness.disk = "slow"
    harness.marks()
    harness.marks()
    harness.flush()
    assert harness.states.count(COMPLETE_COMMIT) == 1


def test_those_who_wait_for_a_busy_id_are_answered_when_its_transaction_is_complete() -> None:
    harness, client = ongoing()
    client.commits()
    tokens = [harness.asks(lambda now, token: client.core.when_free(now, token, ID)) for _ in range(2)]
    assert harness.open_tokens.issuperset(tokens)
    harness.reports()
    assert harness.open_tokens.isdisjoint(tokens)
    assert client.adds() is ErrorCode.NONE


@BOTH
def test_a_completion_is_written_with_the_next_change(dialect: Dialect) -> None:
    """One flush serves both."""
    harness, client = ongoing(dialect)
    client.commits()
    harness.disk = "slow"
    harness.reports()
    assert harness.in_flight == []
    client.adds()
    [write] = harness.in_flight
    assert len(write.records) == 2
    harness.flush()
    assert client.error is ErrorCode.NONE
    assert harness.states[-3:] == [PREPARE_COMMIT, COMPLETE_COMMIT, ONGOING]
    harness.passes(COMPLETION_DELAY_MS)
    assert harness.in_flight == []


def test_a_completion_is_written_by_itself_when_no_change_comes() -> None:
    harness, client = ongoing()
    client.commits()
    harness.reports()
    harness.passes(COMPLETION_DELAY_MS - 1)
    assert harness.states[-1] is PREPARE_COMMIT
    assert harness.state is COMPLETE_COMMIT
    harness.passes(1)
    assert harness.states[-1] is COMPLETE_COMMIT
    assert client.adds() is ErrorCode.NONE


@BOTH
def test_a_coordinator_killed_before_it_wrote_the_completion_is_succeeded_by_one_that_marks_again(
    dialect: Dialect,
) -> None:
    harness, client = ongoing(dialect)
    client.commits()
    harness.reports()
    harness = harness.restarted()
    client.moves_to(harness)
    assert client.adds() is ErrorCode.CONCURRENT_TRANSACTIONS
    harness.reports()
    assert client.adds() is ErrorCode.NONE


def test_those_who_wait_for_an_id_whose_first_write_fails_are_answered() -> None:
    harness = TransactionHarness()
    harness.disk = "slow"
    Client(harness).inits()
    token = harness.asks(lambda now, token: harness.coordinator.when_free(now, token, ID))
    assert token in harness.open_tokens
    harness.disk = "full"
    harness.flush()
    assert token not in harness.open_tokens


def test_a_request_does_not_wait_for_an_id_that_is_free_or_unknown() -> None:
    harness, client = complete()
    for name in (ID, "unknown"):
        token = harness.asks(lambda now, token, name=name: client.core.when_free(now, token, name))
        assert token not in harness.open_tokens


def test_those_who_wait_for_an_id_that_expires_meanwhile_are_answered() -> None:
    harness, client = complete()
    harness.disk = "slow"
    harness.passes(harness.settings.id_expiration_ms)
    token = harness.asks(lambda now, token: client.core.when_free(now, token, ID))
    assert token in harness.open_tokens
    harness.flush()
    assert token not in harness.open_tokens
