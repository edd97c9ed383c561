"""DescribeTransactions and ListTransactions: what operators see."""

from penstock.errors import ErrorCode
from penstock.transactions import (
    Dialect,
    EndedTotals,
    Producer,
    TransactionDescription,
    TransactionState,
    state_filter,
)
from penstock.transactions.states import COMPLETE_COMMIT, EMPTY, ONGOING, PREPARE_COMMIT
from tests.transactions.transaction_harness import (
    ID,
    ORDERS,
    TIMEOUT_MS,
    Client,
    TransactionHarness,
    ongoing,
    ready,
)


def listed(harness: TransactionHarness, **filters: object) -> list[str]:
    rows = harness.coordinator.list_transactions(harness.now_ms, **filters)  # type: ignore[arg-type]
    return sorted(each.transactional_id for each in rows)


def busy() -> TransactionHarness:
    """One id in each of four states; the open transaction is 5 s old, the decided one 3 s."""
    harness = TransactionHarness()
    clients = {
        name: Client(harness, Dialect.V1, name) for name in ("empty", "open-one", "decided-one", "done-one")
    }
    for client in clients.values():
        assert client.inits() is ErrorCode.NONE
    clients["done-one"].adds()
    clients["done-one"].commits()
    harness.marks()
    clients["open-one"].adds()
    harness.passes(2000)
    clients["decided-one"].adds()
    clients["decided-one"].commits()
    harness.passes(3000)
    return harness


def test_a_description_has_everything_that_kafkas_tools_show() -> None:
    harness, client = ongoing()
    assert harness.coordinator.describe(ID) == TransactionDescription(
        transactional_id=ID,
        state=ONGOING,
        producer=client.producer,
        timeout_ms=TIMEOUT_MS,
        start_ms=harness.now_ms,
        partitions=frozenset({ORDERS}),
    )


def test_an_id_that_never_had_a_transaction_has_no_start() -> None:
    harness, _ = ready()
    assert harness.transaction.start_ms == -1
    assert harness.transaction.producer == Producer(1000, 0)


def test_an_unknown_id_has_no_description() -> None:
    assert TransactionHarness().coordinator.describe(ID) is None


def test_all_ids_are_listed_without_a_filter() -> None:
    harness = busy()
    rows = {
        each.transactional_id: each.state for each in harness.coordinator.list_transactions(harness.now_ms)
    }
    assert rows == {
        "empty": EMPTY,
        "open-one": ONGOING,
        "decided-one": PREPARE_COMMIT,
        "done-one": COMPLETE_COMMIT,
    }


def test_a_list_is_filtered_by_states() -> None:
    assert listed(busy(), states={EMPTY, ONGOING}) == ["empty", "open-one"]


def test_a_list_is_filtered_by_producer_ids() -> None:
    assert listed(busy(), producer_ids={1001, 77}) == ["open-one"]


def test_a_list_is_filtered_by_how_long_a_transaction_has_run() -> None:
    harness = busy()
    assert listed(harness, longer_than_ms=0) == ["decided-one", "open-one"]
    assert listed(harness, longer_than_ms=2999) == ["decided-one", "open-one"]
    assert listed(harness, longer_than_ms=3000) == ["open-one"]
    assert listed(harness, longer_than_ms=5000) == []


def test_a_list_is_filtered_by_a_pattern() -> None:
    assert listed(busy(), matches=lambda name: name.endswith("-one"), states={ONGOING}) == ["open-one"]


def test_ids_may_come_and_go_while_they_are_listed() -> None:
    harness = busy()
    rows = harness.coordinator.list_transactions(harness.now_ms)
    next(rows)
    Client(harness, Dialect.V1, "late").inits()
    assert len(list(rows)) == 3


def test_unknown_names_of_states_are_told() -> None:
    known, unknown = state_filter(["Ongoing", "Sleeping", "PrepareEpochFence", "ongoing"])
    assert known == {ONGOING, TransactionState.PREPARE_EPOCH_FENCE}
    assert unknown == ["Sleeping", "ongoing"]


def test_only_transactions_that_have_not_ended_are_open() -> None:
    harness = busy()
    found = {one.transactional_id: one.state for one in harness.coordinator.open_transactions()}
    assert found == {"open-one": ONGOING, "decided-one": PREPARE_COMMIT}
    again = harness.restarted()
    assert {one.transactional_id for one in again.coordinator.open_transactions()} == set(found)


def test_an_id_whose_first_transaction_is_being_written_is_not_open_yet() -> None:
    harness, client = ready()
    harness.disk = "slow"
    client.adds()
    assert list(harness.coordinator.open_transactions()) == []
    harness.flush()
    assert [one.state for one in harness.coordinator.open_transactions()] == [ONGOING]


def test_transactions_are_counted_by_outcome_when_all_markers_are_written() -> None:
    harness, client = ongoing()
    client.commits()
    assert harness.ended == EndedTotals()
    harness.marks()
    client.adds()
    client.aborts()
    harness.marks()
    assert harness.ended == EndedTotals(committed=1, aborted=1)
    harness.restarted()
    assert harness.ended == EndedTotals(committed=1, aborted=1)


def test_an_abort_without_partitions_is_not_counted() -> None:
    harness = TransactionHarness()
    client = Client(harness, Dialect.V2)
    client.inits()
    assert client.aborts() is ErrorCode.NONE
    assert harness.ended == EndedTotals()


def test_a_completion_that_cannot_be_written_is_counted_once() -> None:
    harness, client = ongoing()
    client.commits()
    harness.disk = "full"
    harness.marks()
    assert harness.ended == EndedTotals(committed=1)
    harness.disk = "prompt"
    harness.passes(60_000)
    assert harness.ended == EndedTotals(committed=1)
