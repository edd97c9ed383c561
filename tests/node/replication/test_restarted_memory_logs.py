"""A topic in memory begins at 0 again when its node restarts, and stored state about the old log is not applied to
the new one."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from uuid import uuid4

from penstock.batch import Record, build_batch, check_batch
from penstock.cluster import NewTopic, decisions
from penstock.config import Address, GroupSettings, NodeConfig
from penstock.errors import ErrorCode, KafkaError
from penstock.node import Node
from penstock.node.calls import BROKER
from penstock.node.queues import Acknowledgement, QueueDriver
from penstock.queue.values import AckKind

GROUP, MEMBER = "workers", "member-1"
ACCEPT = bytes([AckKind.ACCEPT])
EVERYTHING = 1 << 20

Act = Callable[[Node], Coroutine[None, None, None]]


async def run(folder: Path, act: Act) -> None:
    node = Node(
        NodeConfig(
            data_dir=str(folder),
            kafka=Address("127.0.0.1", 1),
            groups=GroupSettings(state_topic_partitions=1, offsets_topic_partitions=1),
        )
    )
    await node.start()
    try:
        await act(node)
    finally:
        await node.stop()


async def create(node: Node, **configs: str) -> None:
    named = {"penstock.storage": "memory"} | {key.replace("_", "."): one for key, one in configs.items()}
    new_topic = NewTopic(name="jobs", topic_id=uuid4(), partitions=1, configs=named)
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


def taken(driver: QueueDriver) -> list[int]:
    delivery = driver.deliver(MEMBER, 100, EVERYTHING)
    return [offset for one in delivery.acquired for offset in range(one.first, one.last + 1)]


async def accept(driver: QueueDriver, first: int, last: int) -> None:
    await driver.acknowledge(MEMBER, [Acknowledgement(first, last, ACCEPT)])


def test_messages_after_a_restart_are_delivered_even_if_their_offsets_were_done_before(
    tmp_path: Path,
) -> None:
    async def work(node: Node) -> None:
        await create(node)
        driver = await queue(node)
        await publish(node, 20)
        assert taken(driver) == list(range(20))
        await accept(driver, 0, 19)

    async def come_back(node: Node) -> None:
        assert node.leader("jobs", 0).high_watermark == 0, "nothing is left of it"
        await publish(node, 5)
        driver = await queue(node)
        assert taken(driver) == list(range(5))
        await accept(driver, 0, 2)

    async def come_back_again(node: Node) -> None:
        await publish(node, 30)
        assert taken(await queue(node)) == list(range(30))

    asyncio.run(run(tmp_path, work))
    asyncio.run(run(tmp_path, come_back))
    asyncio.run(run(tmp_path, come_back_again))


def test_acknowledgements_above_the_start_offset_are_dropped_too(tmp_path: Path) -> None:
    """The start offset alone does not show it: it is 0 before and after."""

    async def work(node: Node) -> None:
        await create(node)
        driver = await queue(node)
        await publish(node, 10)
        taken(driver)
        await accept(driver, 5, 9)

    async def come_back(node: Node) -> None:
        await publish(node, 10)
        assert taken(await queue(node)) == list(range(10))
        [driver] = node.queues.manager.drivers()
        driver.end(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "to be read again"))
        assert taken(await queue(node)) == list(range(10)), "nor is it stored any more"

    asyncio.run(run(tmp_path, work))
    asyncio.run(run(tmp_path, come_back))


def test_without_a_restart_finished_messages_stay_finished_for_the_next_driver(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        await create(node)
        driver = await queue(node)
        await publish(node, 10)
        taken(driver)
        await accept(driver, 0, 3)
        await accept(driver, 6, 7)
        driver.end(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "to be read again"))
        assert taken(await queue(node)) == [4, 5, 8, 9]

    asyncio.run(run(tmp_path, act))


def test_a_queue_that_is_set_to_an_offset_of_this_log_begins_there(tmp_path: Path) -> None:
    """Before it was first driven, and after."""

    async def act(node: Node) -> None:
        await create(node)
        await publish(node, 10)
        topic = node.metadata.state.topics["jobs"]
        await node.queues.overview.reset(GROUP, topic, 0, 6, caller=BROKER)
        assert taken(await queue(node)) == [6, 7, 8, 9]
        await node.queues.overview.reset(GROUP, topic, 0, 8, caller=BROKER)
        assert taken(await queue(node)) == [8, 9]

    asyncio.run(run(tmp_path, act))


def test_undelivered_messages_are_not_deleted_because_of_acks_from_before_the_restart(
    tmp_path: Path,
) -> None:
    async def work(node: Node) -> None:
        await create(node, cleanup_policy="acked", penstock_acked_min_age_ms="0")
        driver = await queue(node)
        await publish(node, 20)
        taken(driver)
        await accept(driver, 0, 19)

    async def come_back(node: Node) -> None:
        await publish(node, 5)
        partition = node.leader("jobs", 0)
        await node.acked.clean()
        assert partition.start_offset == 0, "the queue has not even been opened"
        driver = await queue(node)
        assert taken(driver) == list(range(5))
        await accept(driver, 0, 4)
        await node.acked.clean()
        assert partition.start_offset == 5, "and what is acked goes as ever"

    asyncio.run(run(tmp_path, work))
    asyncio.run(run(tmp_path, come_back))
