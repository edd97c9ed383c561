"""Memory that clients make the broker hold: within its limit at every moment, and given back to the last byte.

`Watched` keeps the highest sum that was ever reserved, so these tests count bytes and measure no time. The kernel's
buffers of the broker's sockets are small: what clients do not read stays in the broker.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from penstock import Broker
from penstock.batch import Record, build_batch
from penstock.config import Limits, Listener
from penstock.kafka.server.connection import Connection
from penstock.kafka.server.listener import KafkaListener
from penstock.kafka.wire import ApiKey, decode_response, encode_request, join
from penstock.kafka.wire.messages import incremental_alter_configs as alter_configs
from penstock.kafka.wire.messages import metadata, share_fetch
from penstock.kafka.wire.messages.api_versions import ApiVersionsRequest
from penstock.kafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.kafka.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.node import node as node_module
from penstock.node.frames import SCRATCH_SIZE
from penstock.node.limits.memory import MemoryBudget
from tests.kafka import requests
from tests.kafka.raw import PATIENCE_SECONDS, RawClient

MEBIBYTE = 1 << 20
KERNEL_BUFFER = 8192
GROUP_CONFIG = 32
BATCH_BYTES = 200_000


class Watched(MemoryBudget):
    """A budget that remembers the most that was reserved."""

    __slots__ = ("_used", "peak")

    @property
    def used(self) -> int:  # type: ignore[override]
        return self._used

    @used.setter
    def used(self, count: int) -> None:
        self._used = count
        self.peak = max(getattr(self, "peak", 0), count)


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    start = KafkaListener.start

    async def start_with_small_buffers(
        listener: KafkaListener, ports: list[tuple[Listener, socket.socket]]
    ) -> None:
        for _, listening in ports:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER)
        await start(listener, ports)

    monkeypatch.setattr(KafkaListener, "start", start_with_small_buffers)
    monkeypatch.setattr(node_module, "MemoryBudget", Watched)


def tight(**limits: int) -> Broker:
    return Broker(http=None, limits=Limits(**limits))


def memory_of(broker: Broker) -> Watched:
    memory = broker._thread.service.node.client_memory
    assert isinstance(memory, Watched)
    return memory


def connections_of(broker: Broker) -> list[Connection]:
    listener = broker._thread.service._listener
    assert listener is not None
    return list(listener._connections)


def until(condition: Callable[[], bool]) -> None:
    """Polls the broker: it does not tell clients about its memory."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def fill(broker: Broker, topic: str, batches: int, size: int = BATCH_BYTES, **configs: str) -> None:
    with RawClient(broker) as writer:
        requests.create(writer, topic, replicas=1, **configs)
        for number in range(batches):
            requests.write(writer, topic, number.to_bytes(4, "big") + b"x" * size)


def fetch(topic: str, offset: int = 0, *, min_bytes: int = 1, max_wait_ms: int = 0) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 30)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=1 << 30,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
    )


@contextlib.contextmanager
def sleepers(broker: Broker, count: int, topic: str, fetches: int = 3) -> Iterator[list[RawClient]]:
    """Clients that ask for all records, several times at once, and read no byte of what they get."""
    clients = [RawClient(broker, receive_buffer=4096) for _ in range(count)]
    try:
        for client in clients:
            for _ in range(fetches):
                client.request(ApiKey.FETCH, 11, fetch(topic))
        yield clients
    finally:
        for client in clients:
            client.socket.close()


def test_responses_that_are_never_read_stay_within_the_limit_and_other_clients_read_everything() -> None:
    limit, batches = 8 * MEBIBYTE, 30
    with tight(max_client_memory_bytes=limit) as broker:
        fill(broker, "t", batches)
        memory = memory_of(broker)
        idle = RawClient(broker)
        idle.request(ApiKey.FETCH, 11, fetch("t", batches, max_wait_ms=600_000))
        with sleepers(broker, 100, "t"):  # 300 responses of 6 MB
            until(lambda: memory.waits > 0)
            reader = Consumer(
                {
                    "bootstrap.servers": broker.bootstrap_servers,
                    "group.id": "g",
                    "auto.offset.reset": "earliest",
                }
            )
            reader.subscribe(["t"])
            values: list[bytes] = []
            while len(values) < batches:
                messages = reader.consume(batches, timeout=PATIENCE_SECONDS)
                assert messages
                values += [message.value() for message in messages]
            reader.close()
        assert [int.from_bytes(value[:4], "big") for value in values] == list(range(batches))
        assert limit // 2 < memory.peak <= limit + SCRATCH_SIZE
        with RawClient(broker) as writer:
            requests.write(writer, "t")
        idle.answer(ApiKey.FETCH, 11)  # it was not closed with those that held memory
        idle.socket.close()
        until(lambda: memory.used == 0)


def test_bytes_that_a_client_has_not_read_stay_reserved() -> None:
    with tight(max_client_memory_bytes=64 * MEBIBYTE) as broker:
        fill(broker, "t", 10)
        memory = memory_of(broker)
        with sleepers(broker, 4, "t"):
            until(lambda: sum(each.stuck_since > 0 for each in connections_of(broker)) == 4)
            assert memory.used > 4 * 9 * BATCH_BYTES
            for connection in connections_of(broker):
                assert connection._transport is not None
                assert connection.held_bytes >= connection._transport.get_write_buffer_size() > 0
            assert memory.used == sum(each.held_bytes for each in connections_of(broker))
        until(lambda: memory.used == 0)


def test_a_response_of_many_partitions_is_given_back_as_it_is_read() -> None:
    partitions, size = 8, 500_000
    with tight(max_client_memory_bytes=64 * MEBIBYTE) as broker, RawClient(broker) as client:
        requests.create(client, "wide", replicas=1, partitions=partitions)
        for index in range(partitions):
            batch = build_batch([Record(0, 1, None, bytes(size), ())])
            data = [PartitionProduceData(index=index, records=batch)]
            topics = [TopicProduceData(name="wide", partition_data=data)]
            client.call(ApiKey.PRODUCE, 9, ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics))
        wanted = [
            FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
            for index in range(partitions)
        ]
        topic = FetchTopic(topic="wide", partitions=wanted)
        client.request(ApiKey.FETCH, 11, FetchRequest(max_wait_ms=0, max_bytes=1 << 30, topics=[topic]))
        memory = memory_of(broker)
        until(lambda: memory.used > partitions * size)
        whole = int.from_bytes(client._read(4), "big")
        client._read(6 * size)
        # Less than half, with two partitions unread: what the system buffers decides how much more has gone.
        until(lambda: memory.used < 4 * size)
        client._read(whole - 6 * size)
        until(lambda: memory.used == 0)


def test_a_lone_client_gets_a_batch_that_is_larger_than_all_memory(tmp_path: Path) -> None:
    with Broker(http=None, data_dir=tmp_path) as broker:
        fill(broker, "t", 1, 3 * MEBIBYTE, max_message_bytes="10000000")
    limits = Limits(max_client_memory_bytes=MEBIBYTE)
    with Broker(http=None, data_dir=tmp_path, limits=limits) as broker, RawClient(broker) as client:
        answer = client.call(ApiKey.FETCH, 11, fetch("t"))
        assert isinstance(answer, FetchResponse)
        assert len(answer.responses[0].partitions[0].records or b"") > 3 * MEBIBYTE
        until(lambda: memory_of(broker).used == 0)


def test_a_fetch_that_waits_for_more_records_holds_none() -> None:
    with tight() as broker, RawClient(broker) as client:
        fill(broker, "t", 5)
        request = fetch("t", min_bytes=1 << 30, max_wait_ms=600_000)
        client.request(ApiKey.FETCH, 11, request)
        node = broker._thread.service.node
        until(lambda: bool(node.partitions.get("t", 0)._pending.fetches))
        frame_bytes = len(join(encode_request(ApiKey.FETCH, 11, 1, "raw", request))) - 4
        assert memory_of(broker).used == frame_bytes


@pytest.fixture
def _no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker closes no client that reads slowly while others wait for memory."""
    monkeypatch.setattr("penstock.kafka.server.listener.SWEEP_SECONDS", 3600.0)


@pytest.mark.usefixtures("_no_sweep")
def test_a_fetch_that_waits_for_memory_is_served_when_another_client_has_read() -> None:
    limit = 4 * MEBIBYTE
    with tight(max_client_memory_bytes=limit, max_request_bytes=limit) as broker:
        fill(broker, "t", 16, 240_000)
        memory = memory_of(broker)
        holders = [RawClient(broker, receive_buffer=4096) for _ in range(20)]
        for client in holders:
            client.request(ApiKey.FETCH, 11, fetch("t"))
        until(lambda: memory.waits > 0)
        for client in holders:
            _, answer = decode_response(ApiKey.FETCH, 11, memoryview(client.read_frame()))
            assert isinstance(answer, FetchResponse)
            assert len(answer.responses[0].partitions[0].records or b"") >= 240_000
            client.socket.close()
        assert memory.peak <= limit + SCRATCH_SIZE
        until(lambda: memory.used == 0)


def test_clients_that_leave_while_they_wait_for_memory_leave_nothing_behind() -> None:
    with tight(max_client_memory_bytes=4 * MEBIBYTE) as broker:
        fill(broker, "t", 16, 240_000)
        memory = memory_of(broker)
        with sleepers(broker, 20, "t"):
            until(lambda: memory.waits > 0)
        until(lambda: memory.used == 0)
        assert memory.first_turns == []
        with RawClient(broker) as client:
            assert requests.read(client, "t").records


def test_half_sent_requests_stay_within_the_limit_and_the_largest_are_closed() -> None:
    limit = 4 * MEBIBYTE
    with tight(max_client_memory_bytes=limit) as broker:
        hogs = [RawClient(broker) for _ in range(8)]
        memory = memory_of(broker)
        with ThreadPoolExecutor(len(hogs)) as threads:  # the broker does not read all of it
            for hog in hogs:
                threads.submit(hog.send, (2 * MEBIBYTE).to_bytes(4, "big") + b"x" * 1_500_000)
            try:
                until(lambda: memory.waits > 0)
                with RawClient(broker) as client:
                    client.call(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
                    until(lambda: memory.first_turns == [])
                    assert len(connections_of(broker)) < 9
                    client.call(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
            finally:
                for hog in hogs:
                    with contextlib.suppress(OSError):  # the broker has closed it
                        hog.socket.shutdown(socket.SHUT_RDWR)
        for hog in hogs:
            hog.socket.close()
        assert memory.peak <= limit + SCRATCH_SIZE
        until(lambda: memory.used == 0)


@pytest.mark.usefixtures("_no_sweep")
def test_a_large_request_that_waits_for_memory_is_read_when_there_is_some() -> None:
    limit = 8 * MEBIBYTE
    with tight(max_client_memory_bytes=limit) as broker, RawClient(broker) as writer:
        fill(broker, "t", 10, 800_000)
        requests.create(writer, "large", replicas=1, max_message_bytes="10000000")
        memory = memory_of(broker)
        with sleepers(broker, 2, "t", 1) as holders, ThreadPoolExecutor(1) as thread:
            until(lambda: memory.used > 4 * MEBIBYTE)
            large = requests.produce_request("large", bytes(4 * MEBIBYTE))
            # The kernel may not take all of it before the broker reads.
            sent = thread.submit(writer.request, ApiKey.PRODUCE, 9, large)
            until(lambda: bool(memory.first_turns))
            for holder in holders:
                holder.read_frame()
            sent.result(PATIENCE_SECONDS)
            writer.answer(ApiKey.PRODUCE, 9)
        assert requests.offset_at(writer, "large").offset == 1
        assert memory.peak <= limit + SCRATCH_SIZE
        until(lambda: memory.used == 0)


def test_leased_records_that_are_never_read_stay_within_the_limit_and_others_get_the_rest() -> None:
    limit, batches = 8 * MEBIBYTE, 60
    with tight(max_client_memory_bytes=limit) as broker, RawClient(broker) as client:
        fill(broker, "t", batches)
        memory = memory_of(broker)
        config = "share.auto.offset.reset"
        group = alter_configs.AlterConfigsResource(
            resource_type=GROUP_CONFIG,
            resource_name="work",
            configs=[alter_configs.AlterableConfig(name=config, config_operation=0, value="earliest")],
        )
        altered = client.call(
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            1,
            alter_configs.IncrementalAlterConfigsRequest(resources=[group]),
        )
        assert isinstance(altered, alter_configs.IncrementalAlterConfigsResponse)
        assert altered.responses[0].error_code == 0
        topic = requests.ask(
            client,
            ApiKey.METADATA,
            12,
            metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name="t")]),
            metadata.MetadataResponse,
        ).topics[0]
        place = share_fetch.FetchTopic(
            topic_id=topic.topic_id, partitions=[share_fetch.FetchPartition(partition_index=0)]
        )
        sleepers = [RawClient(broker, receive_buffer=4096) for _ in range(20)]
        for number, each in enumerate([*sleepers, client]):
            each.request(
                ApiKey.SHARE_FETCH,
                1,
                share_fetch.ShareFetchRequest(
                    group_id="work",
                    member_id=str(number),
                    max_bytes=1 << 30,
                    max_wait_ms=300_000,
                    max_records=20,
                    batch_size=20,
                    topics=[place],
                ),
            )
        until(lambda: memory.waits > 0)
        for each in sleepers:
            each.socket.close()
        answer = client.answer(ApiKey.SHARE_FETCH, 1)[1]
        assert isinstance(answer, share_fetch.ShareFetchResponse)
        assert answer.responses[0].partitions[0].acquired_records
        assert limit // 2 < memory.peak <= limit + SCRATCH_SIZE
        until(lambda: memory.used == 0)


def test_requests_that_fail_give_back_their_memory() -> None:
    with tight() as broker:
        for unknown_version in (10, 99):
            with RawClient(broker) as client:
                client.request(ApiKey.FETCH, 11, fetch("t"))
                client.send(join(encode_request(ApiKey.METADATA, 4, 1, "c" * 5000, ApiVersionsRequest())))
                header = (ApiKey.FETCH).to_bytes(2, "big") + unknown_version.to_bytes(2, "big")
                client.send((1000).to_bytes(4, "big") + header + bytes(996))
                while not client.is_closed_by_broker():
                    pass
        until(lambda: memory_of(broker).used == 0)


def test_a_request_that_could_never_be_held_is_refused_at_its_length() -> None:
    with tight(max_client_memory_bytes=4 * MEBIBYTE) as broker, RawClient(broker) as client:
        client.send((3 * MEBIBYTE + 1).to_bytes(4, "big"))
        assert client.is_closed_by_broker()
