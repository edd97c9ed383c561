"""Batches that the broker itself writes, and topics that are deleted meanwhile."""

import asyncio
from collections.abc import Callable, Coroutine
from uuid import UUID

import pytest

from penstock.batch import Record, build_batch
from penstock.cluster import decisions
from penstock.config import Address, NodeConfig
from penstock.errors import ErrorCode, KafkaError
from penstock.node import Node
from penstock.node.calls import BROKER
from penstock.node.replication.leaders import NO_LEADER
from penstock.types import GroupId

BATCH = bytes(build_batch([Record(0, 1_000, None, b"a letter", ())]))

Act = Callable[[Node], Coroutine[None, None, None]]


def play(act: Act) -> None:
    async def run() -> None:
        node = Node(NodeConfig(memory=True, http=None, kafka=Address("127.0.0.1", 1)))
        await node.start()
        try:
            await act(node)
        finally:
            await node.stop()

    asyncio.run(run())


async def delete(node: Node, name: str) -> None:
    await node.metadata.change(lambda state: decisions.delete_topic(state, name))
    await node.settled()


async def recreate(node: Node, name: str) -> UUID:
    await delete(node, name)
    topic = await node.record_forwarder.topic(name, caller=BROKER)
    await node.settled()
    return topic.topic_id


async def refusal(sent: Coroutine[None, None, int]) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        await sent
    return refused.value.code


def test_a_batch_for_a_deleted_topic_is_refused_and_not_written_to_the_next_one_of_its_name() -> None:
    async def act(node: Node) -> None:
        topic = await node.record_forwarder.topic("dead", caller=BROKER)
        await node.settled()
        assert await node.record_forwarder.append(topic, 0, BATCH, caller=BROKER) == 0
        assert await recreate(node, "dead") != topic.topic_id
        assert (
            await refusal(node.record_forwarder.append(topic, 0, BATCH, caller=BROKER))
            is ErrorCode.UNKNOWN_TOPIC_ID
        )
        assert node.leader("dead", 0).high_watermark == 0

    play(act)


def test_a_topic_that_is_deleted_while_it_has_no_leader_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def act(node: Node) -> None:
        topic = await node.record_forwarder.topic("dead", caller=BROKER)
        await node.settled()
        asked = asyncio.Event()

        def no_leader(group: GroupId) -> int:
            asked.set()
            return NO_LEADER

        with monkeypatch.context() as patch:
            patch.setattr(node.view, "leader", no_leader)
            patch.setattr(node.calls._directory, "_is_alone", False)
            sent = asyncio.get_running_loop().create_task(
                refusal(node.record_forwarder.append(topic, 0, BATCH, caller=BROKER))
            )
            await asked.wait()
            await delete(node, "dead")
            assert await sent is ErrorCode.UNKNOWN_TOPIC_ID

    play(act)
