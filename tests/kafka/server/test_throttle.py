"""Clients above their quotas: answered at once, with the time for which their connection is not read then."""

import asyncio
import select
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace

import pytest

from penstock import Broker
from penstock.errors import ErrorCode
from penstock.kafka.server import throttle
from penstock.kafka.server.throttle import BusyTime
from penstock.kafka.wire import ApiKey, Message
from penstock.kafka.wire.messages import api_versions, create_partitions, create_topics, delete_topics, fetch
from penstock.kafka.wire.messages import metadata as looking
from penstock.kafka.wire.messages.produce import ProduceResponse
from penstock.security.quotas import QuotaKind
from tests.kafka.quota_requests import Entity, set_quotas
from tests.kafka.raw import RawClient
from tests.kafka.requests import ask, create, fetch_request, produce_request, write
from tests.kafka.trio import Trio

RAW: Entity = {"client_id": "raw"}
"""The client id of a raw client."""
TURNS = 20
VALUE = bytes(100_000)
Unique = Callable[[str], str]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(http=None) as broker:
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker) as client:
        yield client


@pytest.fixture
def topic(client: RawClient) -> str:
    create(client, "orders", replicas=1)
    return "orders"


def produce(client: RawClient, topic: str, value: bytes = VALUE) -> ProduceResponse:
    return ask(client, ApiKey.PRODUCE, 9, produce_request(topic, value), ProduceResponse)


def read(client: RawClient, topic: str) -> fetch.FetchResponse:
    return ask(client, ApiKey.FETCH, 12, fetch_request(topic, 0), fetch.FetchResponse)


def look(client: RawClient) -> None:
    client.call(ApiKey.API_VERSIONS, 0, api_versions.ApiVersionsRequest())


def is_read(broker: Broker, client: RawClient) -> bool:
    """Whether the broker answers a request within TURNS turns."""
    client.request(ApiKey.METADATA, 8, looking.MetadataRequest(topics=[]))
    with RawClient(broker) as other:
        for _ in range(TURNS):
            look(other)
    readable, _, _ = select.select([client.socket], [], [], 0)
    return bool(readable)


def throttled(broker: Broker) -> dict[str, int]:
    node = broker._thread.service.node
    assert node is not None
    return node.metrics.throttled


# --- bytes


def test_a_producer_above_its_quota_is_answered_and_then_not_read(
    broker: Broker, client: RawClient, topic: str
) -> None:
    set_quotas(client, RAW, producer_byte_rate=1)
    answer = produce(client, topic)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    assert answer.throttle_time_ms > len(VALUE)
    assert not is_read(broker, client)
    assert throttled(broker) == {QuotaKind.PRODUCER_BYTE_RATE: 1}


def test_a_client_within_its_quota_is_not_throttled(broker: Broker, client: RawClient, topic: str) -> None:
    set_quotas(client, RAW, producer_byte_rate=1_000_000_000, consumer_byte_rate=1_000_000_000)
    assert produce(client, topic).throttle_time_ms == 0
    answer = read(client, topic)
    assert answer.throttle_time_ms == 0
    assert len(answer.responses[0].partitions[0].records or b"") > len(VALUE)
    assert is_read(broker, client)
    assert throttled(broker) == {}


def test_a_throttled_connection_goes_on_when_its_time_is_over(client: RawClient, topic: str) -> None:
    set_quotas(client, RAW, producer_byte_rate=9_900)
    answer = produce(client, topic)
    assert answer.throttle_time_ms > 0
    assert produce(client, topic, b"small").responses[0].partition_responses[0].error_code == ErrorCode.NONE


def test_requests_that_were_sent_together_are_answered_one_throttle_time_after_the_other(
    client: RawClient, topic: str
) -> None:
    set_quotas(client, RAW, producer_byte_rate=9_900)
    for _ in range(2):
        client.request(ApiKey.PRODUCE, 9, produce_request(topic, VALUE))
    times = [client.answer(ApiKey.PRODUCE, 9)[1] for _ in range(2)]
    assert all(isinstance(answer, ProduceResponse) and answer.throttle_time_ms > 0 for answer in times)


def test_a_producer_that_wants_no_answer_is_throttled_too(
    broker: Broker, client: RawClient, topic: str
) -> None:
    set_quotas(client, RAW, producer_byte_rate=1)
    client.request(ApiKey.PRODUCE, 9, produce_request(topic, VALUE, acks=0))
    assert not is_read(broker, client)


def test_clients_of_one_quota_share_it_and_others_do_not(
    broker: Broker, client: RawClient, topic: str
) -> None:
    set_quotas(client, RAW, producer_byte_rate=1)
    produce(client, topic)
    with RawClient(broker) as same:
        assert produce(same, topic, b"v").throttle_time_ms > 0


def test_a_consumer_above_its_quota_gets_no_records_until_it_is_below(
    client: RawClient, broker: Broker, topic: str
) -> None:
    for _ in range(3):
        write(client, topic, bytes(9_000))
    set_quotas(client, RAW, consumer_byte_rate=1_000)
    first = read(client, topic)
    assert first.throttle_time_ms == 0
    assert len(first.responses[0].partitions[0].records or b"") <= 10_000
    second = read(client, topic)
    assert second.throttle_time_ms > 0
    assert second.responses == []
    assert throttled(broker) == {QuotaKind.CONSUMER_BYTE_RATE: 1}


def test_a_batch_that_exceeds_the_quota_by_itself_is_sent_and_paid_for(
    client: RawClient, broker: Broker, topic: str
) -> None:
    write(client, topic, VALUE)
    set_quotas(client, RAW, consumer_byte_rate=1)
    answer = read(client, topic)
    assert len(answer.responses[0].partitions[0].records or b"") > len(VALUE)
    assert answer.throttle_time_ms > 0
    assert not is_read(broker, client)


# --- request time


def test_a_client_that_keeps_the_event_loop_busy_is_throttled_for_a_second_at_most(
    broker: Broker, client: RawClient, topic: str
) -> None:
    set_quotas(client, RAW, request_percentage=0.0001)
    assert 0 < produce(client, topic).throttle_time_ms <= 1000
    assert QuotaKind.REQUEST_PERCENTAGE in throttled(broker)


def test_versions_may_be_asked_for_without_being_counted(broker: Broker, client: RawClient) -> None:
    set_quotas(client, RAW, request_percentage=0.0001)
    with RawClient(broker) as other:
        look(other)
    assert QuotaKind.REQUEST_PERCENTAGE not in throttled(broker)


def test_the_busy_time_of_a_coroutine_leaves_its_waits_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(throttle, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    async def work(future: "asyncio.Future[None]") -> Message:
        clock[0] += 3
        await future
        clock[0] += 4
        return api_versions.ApiVersionsResponse(error_code=7)

    async def run() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        busy = BusyTime(work(future))
        task = asyncio.ensure_future(_await(busy))
        await asyncio.sleep(0)
        clock[0] += 100
        future.set_result(None)
        assert isinstance(answer := await task, api_versions.ApiVersionsResponse)
        assert (answer.error_code, busy.seconds) == (7, 7.0)

    asyncio.run(run())


def test_a_measured_coroutine_can_be_cancelled() -> None:
    async def run() -> None:
        future: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(_await(BusyTime(_await(future))))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert future.cancelled()

    asyncio.run(run())


async def _await(busy: Awaitable[Message | None]) -> Message | None:
    return await busy


# --- mutations


def create_many(
    client: RawClient, *names: str, partitions: int, version: int
) -> create_topics.CreateTopicsResponse:
    request = create_topics.CreateTopicsRequest(
        topics=[
            create_topics.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
            for name in names
        ],
        timeout_ms=10_000,
    )
    return ask(client, ApiKey.CREATE_TOPICS, version, request, create_topics.CreateTopicsResponse)


def test_topics_beyond_the_quota_of_mutations_are_refused(broker: Broker, client: RawClient) -> None:
    set_quotas(client, RAW, controller_mutation_rate=1)
    answer = create_many(client, "first", "second", partitions=50, version=7)
    assert [row.error_code for row in answer.topics] == [0, ErrorCode.THROTTLING_QUOTA_EXCEEDED]
    assert answer.throttle_time_ms > 0
    assert not is_read(broker, client)
    assert throttled(broker) == {QuotaKind.CONTROLLER_MUTATION_RATE: 1}


def test_clients_that_do_not_know_the_refusal_are_served_and_throttled(
    broker: Broker, client: RawClient
) -> None:
    set_quotas(client, RAW, controller_mutation_rate=1)
    answer = create_many(client, "first", "second", partitions=50, version=5)
    assert [row.error_code for row in answer.topics] == [0, 0]
    assert answer.throttle_time_ms > 0
    assert not is_read(broker, client)


def test_deleted_and_added_partitions_count_as_mutations(broker: Broker, client: RawClient) -> None:
    create(client, "large", replicas=1, partitions=50)
    create(client, "small", replicas=1)
    set_quotas(client, RAW, controller_mutation_rate=1)
    deleting = delete_topics.DeleteTopicsRequest(
        topics=[delete_topics.DeleteTopicState(name="large"), delete_topics.DeleteTopicState(name="small")],
        timeout_ms=10_000,
    )
    deleted = ask(client, ApiKey.DELETE_TOPICS, 6, deleting, delete_topics.DeleteTopicsResponse)
    assert [row.error_code for row in deleted.responses] == [0, ErrorCode.THROTTLING_QUOTA_EXCEEDED]
    growing = create_partitions.CreatePartitionsRequest(
        topics=[create_partitions.CreatePartitionsTopic(name="small", count=2, assignments=None)],
        timeout_ms=10_000,
    )
    with RawClient(broker) as other:
        grown = ask(other, ApiKey.CREATE_PARTITIONS, 3, growing, create_partitions.CreatePartitionsResponse)
    assert grown.results[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED


def test_a_client_of_another_node_is_throttled_as_the_controller_says(trio: Trio, unique: Unique) -> None:
    controller = trio.controller()
    other = next(one for one in trio.running if one != controller)
    with trio.client(other) as client, trio.client(other) as second:
        set_quotas(client, RAW, controller_mutation_rate=1)
        trio.eventually(lambda: all(trio.node(one).quotas.in_force for one in trio.running))
        answer = create_many(client, unique("a"), unique("b"), partitions=50, version=7)
        assert answer.throttle_time_ms > 0
        client.request(ApiKey.METADATA, 8, looking.MetadataRequest(topics=[]))
        for _ in range(TURNS):
            look(second)
        readable, _, _ = select.select([client.socket], [], [], 0)
        assert not readable
        set_quotas(second, RAW, controller_mutation_rate=None)


# --- connections


def test_connections_above_the_rate_of_their_address_are_closed_after_a_while(broker: Broker) -> None:
    with RawClient(broker) as client:
        set_quotas(client, {"ip": "127.0.0.1"}, connection_creation_rate=1)
    clients = [RawClient(broker) for _ in range(30)]
    try:
        look(clients[0])
        assert clients[-1].is_closed_by_broker()
        assert throttled(broker)[QuotaKind.CONNECTION_CREATION_RATE] > 0
    finally:
        for one in clients:
            one.socket.close()
