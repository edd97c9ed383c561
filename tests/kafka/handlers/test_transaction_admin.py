"""Transactions as operators see them, and the markers that operators write."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from penstock import Broker
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages import describe_producers, describe_transactions, list_transactions
from penstock.kafka.wire.messages import write_txn_markers as markers
from penstock.log import Appended
from penstock.node import Partition
from tests.kafka.committed_records import committed_values, last_stable_offset
from tests.kafka.raw import RawClient
from tests.kafka.requests import ask, create
from tests.kafka.transactional_producer import TIMEOUT_MS, TransactionalProducer, persist

Unique = Callable[[str], str]


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker) as connected:
        yield connected


@pytest.fixture
def topic(client: RawClient, unique: Unique) -> str:
    name = unique("payments")
    create(client, name, replicas=1)
    return name


@pytest.fixture
def producer(client: RawClient, topic: str, unique: Unique) -> TransactionalProducer:
    """With an open transaction."""
    made = TransactionalProducer(client, unique("producer"))
    made.begin()
    made.write(topic, "a")
    return made


def describe(client: RawClient, transactional_id: str) -> describe_transactions.TransactionState:
    request = describe_transactions.DescribeTransactionsRequest(transactional_ids=[transactional_id])
    response = describe_transactions.DescribeTransactionsResponse
    return ask(client, ApiKey.DESCRIBE_TRANSACTIONS, 0, request, response).transaction_states[0]


def listed(
    client: RawClient, version: int = 2, **filters: object
) -> list_transactions.ListTransactionsResponse:
    request = list_transactions.ListTransactionsRequest(**filters)  # type: ignore[arg-type]
    return ask(client, ApiKey.LIST_TRANSACTIONS, version, request, list_transactions.ListTransactionsResponse)


def states(response: list_transactions.ListTransactionsResponse) -> dict[str, str]:
    assert response.error_code == ErrorCode.NONE
    return {one.transactional_id: one.transaction_state for one in response.transaction_states}


def test_a_transaction_is_described_with_its_partitions(
    client: RawClient, topic: str, producer: TransactionalProducer
) -> None:
    found = describe(client, producer.transactional_id)
    assert (found.error_code, found.transaction_state) == (ErrorCode.NONE, "Ongoing")
    assert (found.producer_id, found.producer_epoch) == (producer.producer_id, producer.epoch)
    assert found.transaction_timeout_ms == TIMEOUT_MS
    assert found.transaction_start_time_ms > 0
    assert [(one.topic, one.partitions) for one in found.topics] == [(topic, [0])]


def test_an_unknown_id_is_not_found(client: RawClient, producer: TransactionalProducer) -> None:
    assert describe(client, "unknown").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_ids_are_listed_by_state_producer_and_pattern(
    client: RawClient, producer: TransactionalProducer, unique: Unique
) -> None:
    idle = TransactionalProducer(client, unique("idle"))
    idle.begin()
    open_id, idle_id = producer.transactional_id, idle.transactional_id
    every = states(listed(client, 0))
    assert (every[open_id], every[idle_id]) == ("Ongoing", "Empty")
    assert idle_id not in states(listed(client, 0, state_filters=["Ongoing"]))
    assert states(listed(client, 0, producer_id_filters=[idle.producer_id])) == {idle_id: "Empty"}
    assert idle_id not in states(listed(client, 1, duration_filter=0))
    assert open_id not in states(listed(client, 1, duration_filter=3_600_000))
    assert states(listed(client, 2, transactional_id_pattern=f"{idle_id[:-1]}.")) == {idle_id: "Empty"}
    assert states(listed(client, 2, transactional_id_pattern=idle_id[:-1])) == {}, "the whole id must match"


def test_unknown_states_are_named_and_list_nothing(
    client: RawClient, producer: TransactionalProducer
) -> None:
    answer = listed(client, 0, state_filters=["Asleep"])
    assert (answer.unknown_state_filters, answer.transaction_states) == (["Asleep"], [])


@pytest.mark.parametrize("pattern", ["(", "a" * 1_001])
def test_a_pattern_that_is_wrong_or_too_long_is_refused(
    client: RawClient, producer: TransactionalProducer, pattern: str
) -> None:
    answer = listed(client, transactional_id_pattern=pattern)
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_producer_is_described_with_the_start_of_its_transaction(
    client: RawClient, topic: str, producer: TransactionalProducer
) -> None:
    wanted = describe_producers.TopicRequest(name=topic, partition_indexes=[0])
    request = describe_producers.DescribeProducersRequest(topics=[wanted])
    response = describe_producers.DescribeProducersResponse
    answer = ask(client, ApiKey.DESCRIBE_PRODUCERS, 0, request, response)
    [found] = answer.topics[0].partitions[0].active_producers
    assert (found.producer_id, found.current_txn_start_offset) == (producer.producer_id, 0)


# --- WriteTxnMarkers


def write_markers(
    client: RawClient,
    producer: TransactionalProducer,
    *topics: str,
    version: int = 1,
    coordinator_epoch: int = 0,
) -> list[int]:
    """The codes for partition 0 of each topic."""
    marker = markers.WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        transaction_result=False,
        coordinator_epoch=coordinator_epoch,
        topics=[markers.WritableTxnMarkerTopic(name=topic, partition_indexes=[0]) for topic in topics],
    )
    request = markers.WriteTxnMarkersRequest(markers=[marker])
    answer = ask(client, ApiKey.WRITE_TXN_MARKERS, version, request, markers.WriteTxnMarkersResponse)
    return [topic.partitions[0].error_code for topic in answer.markers[0].topics]


def write_marker(client: RawClient, producer: TransactionalProducer, topic: str, *, version: int = 1) -> int:
    return write_markers(client, producer, topic, version=version)[0]


@pytest.mark.parametrize("version", [1, 2])
def test_an_operator_ends_a_hanging_transaction(
    client: RawClient, topic: str, producer: TransactionalProducer, version: int
) -> None:
    assert last_stable_offset(client, topic) == 0
    assert write_marker(client, producer, topic, version=version) == ErrorCode.NONE
    assert last_stable_offset(client, topic) == 2
    assert committed_values(client, topic) == []


@pytest.mark.parametrize(
    ("topic_name", "code"),
    [
        ("no-such-topic", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("__transaction_state", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_a_marker_for_an_unknown_or_internal_topic_is_refused(
    client: RawClient, producer: TransactionalProducer, topic_name: str, code: int
) -> None:
    assert write_marker(client, producer, topic_name) == code


def test_a_marker_without_a_producer_is_refused(
    client: RawClient, topic: str, producer: TransactionalProducer
) -> None:
    producer.producer_id = -1
    assert write_marker(client, producer, topic) == ErrorCode.INVALID_REQUEST


def test_the_marker_of_an_operator_does_not_keep_the_coordinator_from_ending_the_next_transaction(
    client: RawClient, topic: str, producer: TransactionalProducer
) -> None:
    """The operator may name any coordinator epoch."""
    assert write_markers(client, producer, topic, coordinator_epoch=2**31 - 1) == [ErrorCode.NONE]
    producer.finish(commit=True)
    producer.write(topic, "b")
    producer.finish(commit=True)
    persist(lambda: producer.add(topic))  # once more: the markers are written
    assert committed_values(client, topic) == ["b"]


def test_the_markers_of_one_request_are_waited_for_together(
    client: RawClient,
    topic: str,
    producer: TransactionalProducer,
    unique: Unique,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one is only committed when the second one is waited for."""
    other = unique("payments")
    create(client, other, replicas=1)
    committed_at, waiting = Partition.committed_at, dict[str, asyncio.Future[None]]()

    def held(partition: Partition, appended: Appended) -> asyncio.Future[None] | None:
        if partition.name.topic not in (topic, other):
            return committed_at(partition, appended)
        waiting[partition.name.topic] = asyncio.get_running_loop().create_future()
        if len(waiting) == 2:
            for future in waiting.values():
                future.set_result(None)
        return waiting[partition.name.topic]

    monkeypatch.setattr(Partition, "committed_at", held)
    assert write_markers(client, producer, topic, other) == [ErrorCode.NONE, ErrorCode.NONE]
