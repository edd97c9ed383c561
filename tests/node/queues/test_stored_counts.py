"""The messages of queues that are not loaded are counted in their stored state."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from uuid import uuid4

from penstock.batch import EndMarker, Record, build_batch, check_batch
from penstock.cluster import NewTopic, decisions
from penstock.config import Address, GroupSettings, NodeConfig
from penstock.node import Node
from penstock.node.calls import BROKER
from penstock.node.calls.messages.queue_state import CountState
from penstock.node.calls.messages.queues import QueueDescription
from penstock.node.queues import Acknowledgement, QueueDriver, state_log
from penstock.queue import Backlog, QueueKey
from penstock.queue.state_records import HEAD_SUFFIX, Head, chunk_suffix, encode_chunk, encode_head
from penstock.queue.states import CHUNK_SIZE, DONE, UNREAD
from penstock.queue.values import AckKind
from penstock.types import Term

GROUP, MEMBER = "workers", "member-1"
ACCEPT = bytes([AckKind.ACCEPT])
EVERYTHING = 1 << 20

Act = Callable[[Node], Coroutine[None, None, None]]


def play(folder: Path, act: Act) -> None:
    async def run() -> None:
        groups = GroupSettings(state_topic_partitions=1)
        node = Node(NodeConfig(data_dir=str(folder), kafka=Address("127.0.0.1", 1), groups=groups))
        await node.start()
        try:
            await act(node)
        finally:
            await node.stop()

    asyncio.run(run())


async def create(node: Node, **configs: str) -> None:
    new_topic = NewTopic(name="jobs", topic_id=uuid4(), partitions=1, configs=configs)
    await node.metadata.change(lambda state: decisions.create_topic(state, new_topic, node.controller.rules))
    await node.settled()


async def publish(node: Node, count: int) -> None:
    rows = [Record(at, node.clock.wall_ms(), None, b"%d" % at, ()) for at in range(count)]
    batch = memoryview(bytearray(build_batch(rows)))
    partition = node.leader("jobs", 0)
    committed = partition.committed_at(partition.append(batch, check_batch(batch)))
    if committed is not None:
        await committed


async def queue(node: Node) -> QueueDriver:
    topic_id = node.metadata.state.topics["jobs"].topic_id
    return await node.queues.manager.driver(GROUP, topic_id, node.leader("jobs", 0))


async def described(node: Node) -> QueueDescription:
    [found] = await node.queues.overview.descriptions(caller=BROKER, counted=True)
    assert not list(node.queues.manager.drivers()), "it was not loaded for that"
    return found


async def work_on_five(node: Node) -> None:
    """Three of five messages are done, not the first."""
    driver = await queue(node)
    await publish(node, 5)
    driver.deliver(MEMBER, 5, EVERYTHING)
    await driver.acknowledge(MEMBER, [Acknowledgement(1, 3, ACCEPT)])


def test_a_queue_without_a_driver_has_the_numbers_of_its_stored_state(tmp_path: Path) -> None:
    async def work(node: Node) -> None:
        await create(node)
        await work_on_five(node)

    async def come_back(node: Node) -> None:
        found = await described(node)
        assert (found.undone, found.available, found.leased, found.rate) == (2, 2, 0, 0.0)
        await publish(node, 3)
        assert (await described(node)).undone == 5

    play(tmp_path, work)
    play(tmp_path, come_back)


def test_markers_of_transactions_behind_the_last_message_are_not_counted(tmp_path: Path) -> None:
    async def work(node: Node) -> None:
        await create(node)
        await work_on_five(node)

    async def come_back(node: Node) -> None:
        partition = node.leader("jobs", 0)
        for _ in range(2):
            await publish(node, 1)
            marker = partition.append_marker(EndMarker(True, 0), producer_id=7, producer_epoch=0)
            committed = partition.committed_at(marker)
            if committed is not None:
                await committed
        found = await described(node)
        assert (found.undone, found.available, found.end_offset) == (4, 4, 9)

    play(tmp_path, work)
    play(tmp_path, come_back)


def test_messages_that_retention_deleted_are_not_counted(tmp_path: Path) -> None:
    async def work(node: Node) -> None:
        await create(node)
        await work_on_five(node)

    async def come_back(node: Node) -> None:
        partition = node.leader("jobs", 0)
        partition.delete_records(partition.high_watermark)
        found = await described(node)
        assert (found.undone, found.start_offset, found.end_offset) == (0, 5, 5)

    play(tmp_path, work)
    play(tmp_path, come_back)


def test_a_queue_whose_log_in_memory_was_replaced_has_all_messages_of_the_new_log(tmp_path: Path) -> None:
    """Its stored state is about offsets of a log that no longer exists."""

    async def work(node: Node) -> None:
        await create(node, **{"penstock.storage": "memory"})
        await work_on_five(node)

    async def come_back(node: Node) -> None:
        await publish(node, 4)
        assert (await described(node)).undone == 4
        driver = await queue(node)
        assert driver.backlog == Backlog(available=4), "the queue itself starts again, too"

    play(tmp_path, work)
    play(tmp_path, come_back)


def test_other_work_goes_on_while_a_long_state_is_counted(tmp_path: Path) -> None:
    chunks = 20 * state_log.CHUNKS_PER_TURN

    async def act(node: Node) -> None:
        await create(node)
        key = QueueKey(GROUP, node.metadata.state.topics["jobs"].topic_id, 0)
        await save(node, key, chunks)
        turns = 0
        request = CountState(key, 0, chunks * CHUNK_SIZE, 5, True)
        counting = asyncio.ensure_future(node.queues.manager._store.count(request))
        while not counting.done():
            turns += 1
            await asyncio.sleep(0)
        assert (await counting).backlog == Backlog(available=chunks * CHUNK_SIZE // 2)
        assert turns >= 20

    play(tmp_path, act)


async def save(node: Node, key: QueueKey, chunks: int) -> None:
    """Stored state in which every other message is done."""
    store = node.queues.manager._store
    fence = (await store.claim(key, 1)).fence
    chunk = encode_chunk(bytearray((UNREAD, DONE)) * (CHUNK_SIZE // 2), bytearray(CHUNK_SIZE))
    parts = [(chunk_suffix(number), chunk) for number in range(chunks)]
    await store.save(key, fence, 1, [(HEAD_SUFFIX, encode_head(Head(Term(1), 0))), *parts])
