"""Where a queue begins, and which requests do not create one."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from penstock.batch import Record, build_batch, check_batch
from penstock.cluster import STATE_TOPIC, NewTopic, decisions
from penstock.config import Address, GroupSettings, NodeConfig
from penstock.errors import ErrorCode, KafkaError
from penstock.node import Node
from penstock.node.calls import BROKER
from penstock.node.calls.messages.queues import (
    AcceptRequest,
    MessageSettlement,
    PeekRequest,
    ScheduledRequest,
    SettleRequest,
)
from penstock.node.queues import QueueDriver
from penstock.queue.values import AckKind
from penstock.types import GroupId

GROUP, MEMBER = "workers", "member-1"
EVERYTHING = 1 << 20

Act = Callable[[Node], Coroutine[None, None, None]]


def play(folder: Path, act: Act) -> None:
    async def run() -> None:
        groups = GroupSettings(state_topic_partitions=3)
        node = Node(NodeConfig(data_dir=str(folder), kafka=Address("127.0.0.1", 1), groups=groups))
        await node.start()
        try:
            await act(node)
        finally:
            await node.stop()

    asyncio.run(run())


async def create(node: Node, partitions: int = 1) -> None:
    new_topic = NewTopic(name="jobs", topic_id=uuid4(), partitions=partitions)
    await node.metadata.change(lambda state: decisions.create_topic(state, new_topic, node.controller.rules))
    await node.settled()


async def grow(node: Node, partitions: int) -> None:
    rules = node.controller.rules
    await node.metadata.change(lambda state: decisions.create_partitions(state, "jobs", partitions, rules))
    await node.settled()


async def publish(node: Node, index: int, count: int) -> None:
    rows = [Record(at, node.clock.wall_ms(), None, b"%d" % at, ()) for at in range(count)]
    batch = memoryview(bytearray(build_batch(rows)))
    partition = node.leader("jobs", index)
    committed = partition.committed_at(partition.append(batch, check_batch(batch)))
    if committed is not None:
        await committed


def topic_id(node: Node) -> UUID:
    return node.metadata.state.topics["jobs"].topic_id


async def queue(node: Node, index: int = 0) -> QueueDriver:
    return await node.queues.manager.driver(GROUP, topic_id(node), node.leader("jobs", index))


async def taken(node: Node, index: int = 0) -> list[int]:
    delivery = (await queue(node, index)).deliver(MEMBER, 100, EVERYTHING)
    return [offset for one in delivery.acquired for offset in range(one.first, one.last + 1)]


# --- added partitions


def test_an_added_partition_is_read_from_its_beginning(tmp_path: Path) -> None:
    """Its first messages are written before any consumer knows it."""

    async def act(node: Node) -> None:
        await create(node)
        await publish(node, 0, 3)
        assert await taken(node) == [], "a queue that its consumer began has what comes from then on"
        await grow(node, 3)
        await publish(node, 1, 5)
        await publish(node, 2, 5)
        assert await taken(node, 1) == await taken(node, 2) == list(range(5))

    play(tmp_path, act)


def test_the_first_partitions_begin_with_new_messages_opened_one_by_one_or_at_once(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        await create(node, partitions=6)
        for index in range(1, 6):  # the first is empty
            await publish(node, index, 5)
        for index in range(3):
            assert await taken(node, index) == []
        assert await asyncio.gather(*(taken(node, index) for index in range(3, 6))) == [[], [], []]
        await publish(node, 4, 2)
        assert await taken(node, 4) == [5, 6]

    play(tmp_path, act)


def test_a_created_queue_has_all_messages_of_an_added_partition(tmp_path: Path) -> None:
    """Its number of partitions at the start is not stored: it follows from the partitions that have state."""

    async def act(node: Node) -> None:
        await create(node, partitions=2)
        topic = node.metadata.state.topics["jobs"]
        for index in range(2):
            await node.queues.overview.reset(GROUP, topic, index, 0, caller=BROKER)
        await grow(node, 3)
        await publish(node, 2, 5)
        assert await taken(node, 2) == list(range(5))

    play(tmp_path, act)


def test_a_recreated_queue_treats_all_partitions_as_its_first(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        await create(node)
        assert await taken(node) == []
        await grow(node, 2)
        await publish(node, 1, 5)
        await node.queues.overview.forget(GROUP, caller=BROKER)
        assert await taken(node, 0) == await taken(node, 1) == []

    play(tmp_path, act)


def test_the_record_of_partition_counts_is_not_listed_as_a_queue(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        await create(node, partitions=2)
        await queue(node)
        assert [
            (one.topic, one.partition) for one in await node.queues.overview.descriptions(caller=BROKER)
        ] == [("jobs", 0)]

    play(tmp_path, act)


# --- requests that mention a deleted queue


async def deleted(node: Node) -> GroupId:
    """A queue with a leased message."""
    await create(node)
    await queue(node)
    await publish(node, 0, 3)
    assert await taken(node) == [0, 1, 2]
    await node.queues.overview.forget(GROUP, caller=BROKER)
    return GroupId(topic_id(node), 0)


async def is_still_gone(node: Node) -> bool:
    return not await node.queues.overview.descriptions(caller=BROKER) and not list(
        node.queues.manager.drivers()
    )


def test_a_late_settlement_does_not_recreate_a_deleted_queue(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        place = await deleted(node)
        state_topic = node.metadata.state.topics[STATE_TOPIC]
        ends = [node.leader(STATE_TOPIC, index).high_watermark for index in range(state_topic.partitions)]
        rows = [MessageSettlement(offset, AckKind.ACCEPT) for offset in (0, 1)]
        refused = await node.queues.router.settle(SettleRequest(GROUP, MEMBER, place, rows), caller=BROKER)
        assert {offset: error.code for offset, error in refused.items()} == dict.fromkeys(
            (0, 1), ErrorCode.INVALID_RECORD_STATE
        )
        assert await is_still_gone(node)
        assert ends == [
            node.leader(STATE_TOPIC, index).high_watermark for index in range(state_topic.partitions)
        ], "and nothing at all is written of it"

    play(tmp_path, act)


def test_reading_a_deleted_queue_does_not_recreate_it(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        place = await deleted(node)
        for looking in (
            node.queues.router.peek(PeekRequest(GROUP, place, 0, 10, False), caller=BROKER),
            node.queues.router.scheduled(ScheduledRequest(GROUP, place, 10), caller=BROKER),
            node.queues.router.accept(AcceptRequest(GROUP, place, 0), caller=BROKER),
        ):
            with pytest.raises(KafkaError) as refused:
                await looking
            assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
        assert await is_still_gone(node)

    play(tmp_path, act)


def test_a_consumer_that_arrives_during_a_read_creates_the_queue(tmp_path: Path) -> None:
    """The read had found the queue, which was deleted before it continued."""

    async def act(node: Node) -> None:
        await create(node)
        store = node.queues.manager._store

        async def found(_: object) -> int:
            return 0

        start_of, store.start_of = store.start_of, found  # type: ignore[assignment, method-assign]
        partition = node.leader("jobs", 0)
        looks = asyncio.ensure_future(
            node.queues.manager.driver(GROUP, topic_id(node), partition, begin=False)
        )
        await asyncio.sleep(0)
        store.start_of = start_of  # type: ignore[method-assign]
        works = asyncio.ensure_future(queue(node))
        assert await works is await looks

    play(tmp_path, act)
