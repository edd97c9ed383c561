"""A waiting fetch is woken by its bytes, whenever they were appended."""

import asyncio
from collections.abc import Awaitable, Callable

from penstock.batch import Record, build_batch, check_batch
from penstock.config import NodeConfig
from penstock.kafka.handlers.context import Api, RequestContext
from penstock.kafka.handlers.fetch import fetch
from penstock.kafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.node import FetchWaiter, Node, Partition
from penstock.node.calls import BROKER
from penstock.types import ANONYMOUS, Operation

FETCH = Api(4, 18, "fetch", on_topic=Operation.READ)
PATIENCE_SECONDS = 60.0
MAX_WAIT_MS = 600_000


class Peer:
    peer = "127.0.0.1:1"
    client_software = ""

    def send_away(self) -> None: ...

    def when_closed(self, callback: Callable[[], None]) -> None: ...

    def hold(self) -> Callable[[], None]:
        return lambda: None


def play(scenario: Callable[[Node, Partition], Awaitable[None]]) -> None:
    async def run() -> None:
        node = Node(NodeConfig(memory=True, http=None))
        await node.start()
        await node.controller.create_topic("t", caller=BROKER)
        await scenario(node, node.leader("t", 0))
        await node.stop()

    asyncio.run(run())


def append(partition: Partition) -> None:
    batch = memoryview(bytearray(build_batch([Record(0, 1, b"k", b"v", ())])))
    partition.append(batch, check_batch(batch))


def test_bytes_committed_before_the_wait_begins_are_not_missed() -> None:
    """The first read happens when the request arrives, the wait begins a turn of the event loop later."""

    async def scenario(node: Node, partition: Partition) -> None:
        wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        request = FetchRequest(
            max_wait_ms=MAX_WAIT_MS, min_bytes=1, topics=[FetchTopic(topic="t", partitions=[wanted])]
        )
        context = RequestContext(node=node, connection=Peer(), caller=ANONYMOUS, api=FETCH, api_version=11)
        answer = fetch(context, request)
        assert not isinstance(answer, FetchResponse), "there is nothing to read yet"
        append(partition)
        await node.storage.flusher.drain()
        response = await asyncio.wait_for(answer, PATIENCE_SECONDS)
        assert response.responses[0].partitions[0].records

    play(scenario)


def test_bytes_appended_during_a_flush_wake_waiting_fetches_after_their_own_flush() -> None:
    async def scenario(node: Node, partition: Partition) -> None:
        stored = partition.log
        append(partition)
        first = stored.flushes.begin()
        append(partition)
        assert first is not None
        first.run()
        stored.flushes.finish(first)
        partition.replica.flushed()
        assert partition.high_watermark == 1
        waiter = FetchWaiter(1, asyncio.get_running_loop().create_future())
        partition.add_waiter(waiter)
        await node.storage.flusher.drain()
        assert partition.high_watermark == 2
        await asyncio.wait_for(waiter.future, PATIENCE_SECONDS)

    play(scenario)
