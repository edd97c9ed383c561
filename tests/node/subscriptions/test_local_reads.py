"""Reads for subscribers from partitions that this node leads: which are done without a request, and which are not."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from confluent_kafka import Producer

from penstock import Broker
from penstock.batch import read_records
from penstock.client import Client
from penstock.node.subscriptions.local_reads import BATCH_BYTES, LocalReads
from penstock.node.subscriptions.values import BatchesRead, Bounds
from penstock.types import Isolation, TopicPartition

KEY = TopicPartition("orders", 0)
ASKED = BatchesRead(b"the leader's answer")
PAGE_BYTES = 64 * 1024


class AskedReader:
    """In place of requests to leaders."""

    def __init__(self) -> None:
        self.asked: list[tuple[TopicPartition, int]] = []

    async def read(
        self, key: TopicPartition, offset: int, *, max_bytes: int, wait_ms: int, isolation: Isolation
    ) -> BatchesRead:
        self.asked.append((key, offset))
        return ASKED

    async def bounds(
        self, topic: str, partitions: Sequence[int], isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> Mapping[int, Bounds]:
        return {}

    async def ends_of_terms(self, topic: str, terms: Mapping[int, int]) -> Mapping[int, int]:
        return {}


class Scene:
    """A broker with a topic of three messages."""

    def __init__(self, broker: Broker, client: Client) -> None:
        self.client = client
        self.servers = broker.bootstrap_servers
        self.requests = AskedReader()
        self.node: Any = broker._thread.service.node  # type: ignore[union-attr]
        self._loop: asyncio.AbstractEventLoop = self.node.audit._now.__self__
        self.reads = LocalReads(self.node, self.requests)
        client.admin.create_topic("orders")
        for value in (b"a", b"b", b"c"):
            client.publish("orders", value)

    def start(self, work: Callable[[], Awaitable[BatchesRead]]) -> "Any":
        async def run() -> BatchesRead:
            return await work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop)

    def read(
        self,
        offset: int,
        wait_ms: int = 0,
        key: TopicPartition = KEY,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> BatchesRead:
        found: BatchesRead = self.begin(offset, wait_ms, key, isolation).result(30)
        return found

    def begin(
        self,
        offset: int,
        wait_ms: int,
        key: TopicPartition = KEY,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> Any:
        return self.start(
            lambda: self.reads.read(key, offset, max_bytes=PAGE_BYTES, wait_ms=wait_ms, isolation=isolation)
        )


@pytest.fixture
def scene() -> Iterator[Scene]:
    with Broker() as broker, Client(broker.bootstrap_servers) as client:
        yield Scene(broker, client)


def test_records_are_read_without_a_request(scene: Scene) -> None:
    data = scene.read(1).data
    assert [record.value for record in read_records(data, 0)] == [b"b"]
    assert not scene.requests.asked


def test_at_the_end_a_read_waits_for_the_next_commit(scene: Scene) -> None:
    assert scene.read(3).data == b""
    assert scene.read(3, wait_ms=10).data == b""
    waiting = scene.begin(3, 30_000)
    scene.client.publish("orders", b"d")
    assert [record.value for record in read_records(waiting.result(30).data, 0)] == [b"d"]
    assert not scene.requests.asked


def test_a_reader_of_committed_records_is_told_which_transactions_were_aborted(scene: Scene) -> None:
    committed = Isolation.READ_COMMITTED
    producer = Producer({"bootstrap.servers": scene.servers, "transactional.id": "t"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("orders", b"d")
    producer.flush(30)
    assert scene.read(3).data
    assert not scene.read(3, isolation=committed).data
    producer.abort_transaction(30)
    deadline = time.monotonic() + 30
    while not (read := scene.read(3, wait_ms=1_000, isolation=committed)).data:
        assert time.monotonic() < deadline  # until the end of the transaction is written
    assert [first for _, first in read.aborted] == [3]
    assert not scene.requests.asked


def test_all_else_is_left_to_requests(scene: Scene) -> None:
    """Offsets that the log does not have, other nodes' partitions, topics that do not exist, large batches."""
    scene.client.publish("orders", b"x" * BATCH_BYTES)
    elsewhere = TopicPartition("elsewhere", 0)
    for key, offset in ((KEY, 3), (KEY, 100), (elsewhere, 0), (TopicPartition("orders", 7), 0)):
        assert scene.read(offset, key=key) == ASKED
        assert scene.requests.asked.pop() == (key, offset)


def test_without_memory_it_is_left_to_requests(scene: Scene) -> None:
    taken = scene.node.client_memory.reserve()

    async def take() -> BatchesRead:
        taken.resize(scene.node.client_memory.free)
        try:
            return await scene.reads.read(
                KEY, 0, max_bytes=PAGE_BYTES, wait_ms=0, isolation=Isolation.READ_UNCOMMITTED
            )
        finally:
            taken.resize(0)

    assert scene.start(take).result(30) == ASKED
