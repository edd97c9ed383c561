"""The table of states: every transition in it happens, and no other can."""

import itertools

import pytest

from penstock.errors import ErrorCode
from penstock.transactions import Dialect, TransactionState
from penstock.transactions.states import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    DEAD,
    DECIDED,
    EMPTY,
    IDLE,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARE_EPOCH_FENCE,
    TRANSITIONS,
)
from penstock.transactions.transaction import Transaction
from tests.transactions.transaction_harness import INVOICES, TransactionHarness, complete, ongoing, ready

Transition = tuple[TransactionState, TransactionState]


def empty_to_empty() -> TransactionHarness:
    harness, client = ready()
    client.inits()
    return harness


def empty_to_ongoing() -> TransactionHarness:
    return ongoing()[0]


def empty_to_abort() -> TransactionHarness:
    harness, client = ready(Dialect.V2)
    client.aborts()
    return harness


def more_partitions() -> TransactionHarness:
    harness, client = ongoing()
    client.adds(INVOICES)
    return harness


def commit() -> TransactionHarness:
    return complete(commit=True)[0]


def abort() -> TransactionHarness:
    return complete(commit=False)[0]


def init_after_commit() -> TransactionHarness:
    harness, client = complete(commit=True)
    client.inits()
    return harness


def init_after_abort() -> TransactionHarness:
    harness, client = complete(commit=False)
    client.inits()
    return harness


def next_after_commit() -> TransactionHarness:
    harness, client = complete(commit=True)
    client.adds()
    return harness


def next_after_abort() -> TransactionHarness:
    harness, client = complete(commit=False)
    client.adds()
    return harness


def abort_after_commit() -> TransactionHarness:
    harness, client = complete(Dialect.V2, commit=True)
    client.aborts()
    return harness


def abort_after_abort() -> TransactionHarness:
    harness, client = complete(Dialect.V2, commit=False)
    client.aborts()
    return harness


HAPPENS = {
    (EMPTY, EMPTY): empty_to_empty,
    (EMPTY, ONGOING): empty_to_ongoing,
    (EMPTY, PREPARE_ABORT): empty_to_abort,
    (ONGOING, ONGOING): more_partitions,
    (ONGOING, PREPARE_COMMIT): commit,
    (ONGOING, PREPARE_ABORT): abort,
    (PREPARE_COMMIT, COMPLETE_COMMIT): commit,
    (PREPARE_ABORT, COMPLETE_ABORT): abort,
    (COMPLETE_COMMIT, EMPTY): init_after_commit,
    (COMPLETE_ABORT, EMPTY): init_after_abort,
    (COMPLETE_COMMIT, ONGOING): next_after_commit,
    (COMPLETE_ABORT, ONGOING): next_after_abort,
    (COMPLETE_COMMIT, PREPARE_ABORT): abort_after_commit,
    (COMPLETE_ABORT, PREPARE_ABORT): abort_after_abort,
}
"""The transitions that the log shows. The fence is never stored, and Dead is the deletion of the key."""
FENCE = {(ONGOING, PREPARE_EPOCH_FENCE), (PREPARE_EPOCH_FENCE, PREPARE_ABORT)}
DEATHS = {(state, DEAD) for state in IDLE}


def test_the_tests_below_cover_the_whole_table() -> None:
    table = {(before, after) for before, states in TRANSITIONS.items() for after in states}
    assert table == HAPPENS.keys() | FENCE | DEATHS


@pytest.mark.parametrize("transition", HAPPENS, ids=lambda pair: f"{pair[0].title}-{pair[1].title}")
def test_a_transition_happens_and_is_stored(transition: Transition) -> None:
    states = HAPPENS[transition]().states
    assert transition in itertools.pairwise(states)


def test_a_fence_goes_on_to_an_abort_with_a_higher_epoch_and_is_not_stored() -> None:
    harness, _client = ongoing()
    assert harness.aborts() is ErrorCode.NONE
    assert harness.states == [EMPTY, ONGOING, PREPARE_ABORT]
    assert [value.epoch for value in harness.stored()] == [0, 0, 1]


@pytest.mark.parametrize("make", [ready, complete], ids=["empty", "complete"])
@pytest.mark.parametrize("commit", [True, False])
def test_an_idle_id_dies(make: object, commit: bool) -> None:
    harness = ready()[0] if make is ready else complete(commit=commit)[0]
    harness.passes(harness.settings.id_expiration_ms)
    assert harness.durable[-1] == (harness.durable[0][0], None)
    assert harness.coordinator.describe("payments") is None


@pytest.mark.parametrize("before", TransactionState)
@pytest.mark.parametrize("after", TransactionState)
def test_a_transition_that_is_not_in_the_table_is_a_bug(
    before: TransactionState, after: TransactionState
) -> None:
    value = Transaction(producer_id=1, epoch=1, timeout_ms=1, state=before, updated_ms=1)
    if after in TRANSITIONS[before]:
        assert value.moved(after, 2).state is after
    else:
        with pytest.raises(AssertionError):
            value.moved(after, 2)


def test_an_outcome_is_never_revised() -> None:
    assert all(len(TRANSITIONS[state]) == 1 for state in DECIDED)


def test_states_have_kafkas_names_and_numbers() -> None:
    assert {state.title: int(state) for state in TransactionState} == {
        "Empty": 0,
        "Ongoing": 1,
        "PrepareCommit": 2,
        "PrepareAbort": 3,
        "CompleteCommit": 4,
        "CompleteAbort": 5,
        "Dead": 6,
        "PrepareEpochFence": 7,
    }
