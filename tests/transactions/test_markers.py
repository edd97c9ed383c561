"""Markers: a transaction is complete when all its partitions have one, whatever happens on the way."""

import pytest

from penstock.errors import ErrorCode
from penstock.transactions import Dialect
from penstock.transactions.states import COMPLETE_ABORT, COMPLETE_COMMIT, PREPARE_ABORT, PREPARE_COMMIT
from penstock.transactions.store import WRITE_RETRY_MS
from tests.transactions.transaction_harness import INVOICES, OFFSETS, ORDERS, complete, ongoing, ready

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
    assert harness.states[-2:] == [PREPARE_ABORT, COMPLETE_ABORT]
    crashed = harness.restarted(records=len(harness.durable) - 1)
    assert crashed.state is COMPLETE_ABORT
    assert crashed.sent == []


def test_the_completion_is_written_again_until_it_succeeds() -> None:
    harness, client = ongoing()
    client.commits()
    harness.disk = "full"
    harness.marks()
    assert harness.state is PREPARE_COMMIT
    harness.passes(3 * WRITE_RETRY_MS)
    assert harness.state is PREPARE_COMMIT
    assert client.adds() is ErrorCode.CONCURRENT_TRANSACTIONS
    harness.disk = "prompt"
    harness.passes(WRITE_RETRY_MS)
    assert harness.state is COMPLETE_COMMIT
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
