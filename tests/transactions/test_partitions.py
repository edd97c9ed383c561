"""AddPartitionsToTxn, AddOffsetsToTxn, and the verification of partitions (KIP-890)."""

import pytest

from penstock.config import Limits
from penstock.errors import ErrorCode
from penstock.transactions import AddRequest, Dialect, ErrorResult, Producer
from penstock.transactions.states import EMPTY, ONGOING
from penstock.types import TopicPartition
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


@BOTH
def test_the_first_partition_begins_the_transaction(dialect: Dialect) -> None:
    harness, client = ready(dialect)
    harness.passes(500)
    assert client.adds(ORDERS) is ErrorCode.NONE
    assert harness.state is ONGOING
    assert harness.transaction.start_ms == harness.now_ms
    assert harness.stored()[-1].dialect == dialect


def test_further_partitions_and_offsets_join_it() -> None:
    harness, client = ongoing()
    began_ms = harness.now_ms
    harness.passes(500)
    client.adds(INVOICES, OFFSETS)
    assert harness.transaction.partitions == {ORDERS, INVOICES, OFFSETS}
    assert harness.transaction.start_ms == began_ms


def test_partitions_that_are_in_already_cost_no_write() -> None:
    harness, client = ongoing(Dialect.V1, ORDERS, INVOICES)
    writes = len(harness.durable)
    assert client.adds(INVOICES) is ErrorCode.NONE
    assert len(harness.durable) == writes


def test_the_next_transaction_begins_without_the_partitions_of_the_last() -> None:
    harness, client = complete()
    client.adds(INVOICES)
    assert harness.transaction.partitions == {INVOICES}


def test_an_unknown_id_is_refused() -> None:
    client = Client(TransactionHarness())
    assert client.adds() is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert client.verifies(ORDERS) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]


def test_another_producer_id_is_refused() -> None:
    _harness, client = ready()
    client.producer = Producer(77, 0)
    assert client.adds() is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert client.verifies(ORDERS) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]


@pytest.mark.parametrize("epoch", [-1, 0, 2])
def test_another_epoch_is_fenced(epoch: int) -> None:
    harness, client = ready()
    client.inits()
    client.producer = Producer(1000, epoch)
    assert client.adds() is ErrorCode.PRODUCER_FENCED
    assert client.verifies(ORDERS) == [ErrorCode.PRODUCER_FENCED]
    assert harness.state is EMPTY


def test_no_partitions_and_no_id_are_refused() -> None:
    harness, client = ready()
    assert Client(harness, transactional_id="").adds() is ErrorCode.INVALID_REQUEST
    nothing = AddRequest(
        transactional_id=ID, producer=client.producer, partitions=frozenset(), dialect=Dialect.V1
    )
    token = harness.asks(lambda now, token: harness.coordinator.add_partitions(now, token, nothing))
    assert harness.replies[token] == ErrorResult(error=ErrorCode.INVALID_REQUEST)
    assert harness.state is EMPTY


def test_nothing_joins_a_transaction_that_is_decided() -> None:
    harness, client = ongoing()
    client.commits()
    assert client.adds(INVOICES) is ErrorCode.CONCURRENT_TRANSACTIONS
    harness.marks()
    assert client.adds(INVOICES) is ErrorCode.NONE


def test_a_failed_write_adds_nothing() -> None:
    harness, client = ready()
    harness.disk = "full"
    assert client.adds() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.state is EMPTY
    harness.disk = "prompt"
    assert client.adds() is ErrorCode.NONE


def test_no_more_partitions_than_the_limit() -> None:
    harness = TransactionHarness(limits=Limits(max_transaction_partitions=2))
    _, client = ready(harness=harness)
    assert client.adds(ORDERS, INVOICES) is ErrorCode.NONE
    assert client.adds(OFFSETS) is ErrorCode.POLICY_VIOLATION
    assert client.adds(ORDERS) is ErrorCode.NONE
    assert harness.transaction.partitions == {ORDERS, INVOICES}


# --- verification


def test_only_partitions_of_the_open_transaction_are_verified() -> None:
    _, client = ongoing()
    other = TopicPartition("orders", 1)
    assert client.verifies(ORDERS, other) == [ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE]


@pytest.mark.parametrize("make", [ready, complete])
def test_without_a_transaction_no_partition_is_verified(make: object) -> None:
    _, client = ready() if make is ready else complete()
    assert client.verifies(ORDERS) == [ErrorCode.TRANSACTION_ABORTABLE]


def test_a_partition_is_not_verified_before_the_log_has_it() -> None:
    harness, client = ready()
    harness.disk = "slow"
    client.adds()
    assert client.verifies(ORDERS) == [ErrorCode.TRANSACTION_ABORTABLE]
    harness.flush()
    assert client.verifies(ORDERS) == [ErrorCode.NONE]


def test_a_partition_is_not_verified_any_more_from_the_end_of_the_transaction_on() -> None:
    harness, client = ongoing()
    harness.disk = "slow"
    client.commits()
    assert client.verifies(ORDERS) == [ErrorCode.CONCURRENT_TRANSACTIONS]
    harness.flush()
    assert client.verifies(ORDERS) == [ErrorCode.CONCURRENT_TRANSACTIONS]
