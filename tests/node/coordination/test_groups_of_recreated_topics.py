"""A node dies after a topic was deleted and before its offsets were: they are not used for the next topic of that
name."""

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from uuid import uuid4

import pytest

from penstock.batch import Record
from penstock.cluster import OFFSETS_TOPIC, NewTopic, TopicCreated, decisions
from penstock.config import Address, GroupSettings, NodeConfig
from penstock.errors import ErrorCode, KafkaError
from penstock.groups import CommitRequest, OffsetToCommit
from penstock.node import MetadataLog, Node
from penstock.node.coordination.internal_topic import entries_between
from penstock.types import TopicPartition

GROUP = "billing"
ORDERS, INVOICES = TopicPartition("orders", 0), TopicPartition("invoices", 0)

Act = Callable[[Node], Coroutine[None, None, None]]


async def run(folder: Path, act: Act) -> None:
    node = Node(
        NodeConfig(
            data_dir=str(folder),
            kafka=Address("127.0.0.1", 1),
            groups=GroupSettings(offsets_topic_partitions=1),
        )
    )
    await node.start()
    try:
        await act(node)
    finally:
        await node.stop()


async def create(node: Node, name: str) -> None:
    new_topic = NewTopic(name=name, topic_id=uuid4(), partitions=1)
    await node.metadata.change(lambda state: decisions.create_topic(state, new_topic, node.controller.rules))


async def delete(node: Node, name: str) -> None:
    await node.metadata.change(lambda state: decisions.delete_topic(state, name))


async def commit(node: Node, partition: TopicPartition, offset: int) -> ErrorCode:
    wanted = OffsetToCommit(topic=partition.topic, partition=partition.partition, offset=offset)
    result = await node.groups.commit(CommitRequest(group_id=GROUP, offsets=(wanted,)))
    return result.errors[partition]


def committed(node: Node) -> dict[TopicPartition, int]:
    return {partition: found.offset for partition, found in node.groups.committed(GROUP).items()}


def stored_about(node: Node, topic: str) -> list[bytes | None]:
    """The values of the records about offsets of this topic."""
    partition = node.partitions.get(OFFSETS_TOPIC, 0)
    entries = entries_between(partition, partition.start_offset, partition.high_watermark)
    records = [entry.content for entry in entries if isinstance(entry.content, Record)]
    return [record.value for record in records if topic.encode() in (record.key or b"")]


async def commit_and_lose_the_coordinator(node: Node) -> None:
    for partition in (ORDERS, INVOICES):
        await create(node, partition.topic)
        assert await commit(node, partition, 500) is ErrorCode.NONE
    node.groups.cores.stop()  # from now on it writes nothing, as if it had died
    await delete(node, "orders")


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """The folder after a kill -9 between the deletion of `orders` and that of its offsets."""
    copy = tmp_path / "copy"

    async def act(node: Node) -> None:
        await commit_and_lose_the_coordinator(node)
        shutil.copytree(tmp_path / "data", copy)

    asyncio.run(run(tmp_path / "data", act))
    return copy


def test_a_topic_that_is_recreated_after_a_crash_has_no_offsets(crashed: Path) -> None:
    async def act(node: Node) -> None:
        assert committed(node) == {INVOICES: 500}
        await create(node, "orders")
        assert committed(node) == {INVOICES: 500}
        assert await commit(node, ORDERS, 2) is ErrorCode.NONE
        assert committed(node) == {ORDERS: 2, INVOICES: 500}

    asyncio.run(run(crashed, act))


def test_a_topic_that_was_recreated_before_the_crash_has_no_offsets(tmp_path: Path) -> None:
    async def recreate(node: Node) -> None:
        await commit_and_lose_the_coordinator(node)
        await create(node, "orders")

    async def look(node: Node) -> None:
        assert committed(node) == {INVOICES: 500}
        [summary] = node.groups.summaries()
        assert summary.offsets == {INVOICES: 500}, "and no lag is told of it"

    asyncio.run(run(tmp_path, recreate))
    asyncio.run(run(tmp_path, look))


def test_leftover_offsets_of_the_deleted_topic_are_deleted_at_the_next_start(crashed: Path) -> None:
    async def start_and_stop(node: Node) -> None:
        assert await commit(node, INVOICES, 501) is ErrorCode.NONE  # runs after the cleanup

    async def look(node: Node) -> None:
        assert stored_about(node, "orders")[-1] is None
        assert committed(node) == {INVOICES: 501}

    asyncio.run(run(crashed, start_and_stop))
    asyncio.run(run(crashed, look))


def test_a_topic_that_is_deleted_and_recreated_in_one_update_has_no_offsets(tmp_path: Path) -> None:
    """A node that was behind applies both at once, and never sees the name unused."""

    async def act(node: Node) -> None:
        await create(node, "orders")
        assert await commit(node, ORDERS, 500) is ErrorCode.NONE
        old = node.metadata.state.topics["orders"]
        new = TopicCreated(name="orders", topic_id=uuid4(), assignments=[[int(node.node_id)]], configs={})
        await node.metadata.change(lambda state: [*decisions.delete_topic(state, old.name), new])
        assert node.metadata.state.topics["orders"].topic_id == new.topic_id
        assert committed(node) == {}
        await create(node, "invoices")
        assert await commit(node, INVOICES, 1) is ErrorCode.NONE
        assert stored_about(node, "orders")[-1] is None

    asyncio.run(run(tmp_path, act))


def test_a_coordinator_waits_for_metadata_that_is_as_new_as_its_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would treat a topic that it does not know yet as deleted."""

    async def prepare(node: Node) -> None:
        await create(node, "orders")
        assert await commit(node, ORDERS, 500) is ErrorCode.NONE

    async def act(node: Node) -> None:
        [host] = node.groups.cores.hosts()
        assert host._loading is not None
        with pytest.raises(KafkaError) as refused:
            committed(node)
        assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await commit(node, ORDERS, 1) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        monkeypatch.undo()
        await create(node, "invoices")
        await host._loading
        assert committed(node) == {ORDERS: 500}

    asyncio.run(run(tmp_path, prepare))
    monkeypatch.setattr(MetadataLog, "applied", 0)
    asyncio.run(run(tmp_path, act))


def test_a_commit_that_waited_while_its_topic_was_recreated_is_refused(tmp_path: Path) -> None:
    """The first commit waits until the offsets topic exists."""

    async def act(node: Node) -> None:
        await create(node, "orders")
        ensure_topic = node.groups.cores.ensure_topic

        async def slowly() -> None:
            await delete(node, "orders")
            await create(node, "orders")
            await ensure_topic()

        node.groups.cores.ensure_topic = slowly  # type: ignore[method-assign]
        assert await commit(node, ORDERS, 500) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert committed(node) == {}

    asyncio.run(run(tmp_path, act))


def test_an_offset_with_a_topic_id_is_not_used_for_the_next_topic_of_that_name(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        await create(node, "orders")
        known = node.metadata.state.topics["orders"].topic_id
        wanted = OffsetToCommit(topic="orders", partition=0, offset=500, topic_id=known)
        request = CommitRequest(group_id=GROUP, offsets=(wanted,))
        await node.groups.cores.ensure_topic()
        assert (await node.groups.commit(request)).errors == {ORDERS: ErrorCode.NONE}
        await delete(node, "orders")
        await create(node, "orders")
        refused = await node.groups.commit(request)
        assert refused.errors == {ORDERS: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert committed(node) == {}

    asyncio.run(run(tmp_path, act))
