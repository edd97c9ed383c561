"""A folder is deleted only by a decision: unknown folders are moved aside, and missing files are reported."""

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import uuid4

import pytest

from penstock.batch import Record, build_batch, check_batch
from penstock.cluster import MetadataSnapshot, NewTopic, decisions
from penstock.config import Address, NodeConfig
from penstock.errors import ErrorCode, KafkaError, StorageError
from penstock.node import Node
from penstock.sim import SimDisk
from penstock.types import Offset

Scenario = Callable[[Node], Awaitable[None]]


def on_node(folder: Path, scenario: Scenario) -> None:
    async def run() -> None:
        node = Node(NodeConfig(data_dir=str(folder), kafka=Address("127.0.0.1", 1)))
        await node.start()
        try:
            await scenario(node)
        finally:
            await node.stop()

    asyncio.run(run())


async def create(node: Node, name: str) -> None:
    new_topic = NewTopic(name=name, topic_id=uuid4(), partitions=1)
    await node.metadata.change(lambda state: decisions.create_topic(state, new_topic, node.controller.rules))


async def append(node: Node, topic: str, value: bytes) -> None:
    batch = memoryview(bytearray(build_batch([Record(0, 0, None, value, ())])))
    partition = node.leader(topic, 0)
    committed = partition.committed_at(partition.append(batch, check_batch(batch)))
    if committed is not None:
        await committed


def stored(node: Node, topic: str) -> bytes:
    partition = node.leader(topic, 0)
    return partition.read(Offset(0), 1 << 20, end=partition.high_watermark, at_least_one=True)


def test_written_records_survive_a_restart(tmp_path: Path) -> None:
    async def write(node: Node) -> None:
        await create(node, "t")
        await append(node, "t", b"kept")

    async def read(node: Node) -> None:
        assert b"kept" in stored(node, "t")

    on_node(tmp_path, write)
    on_node(tmp_path, read)


def test_the_folder_of_an_earlier_topic_of_that_name_is_moved_aside(tmp_path: Path) -> None:
    """For example if the topic was deleted and recreated while this node was down."""
    data, old = tmp_path / "data", tmp_path / "old"

    async def write(node: Node) -> None:
        await create(node, "t")
        await append(node, "t", b"of the first topic")

    async def make_again(node: Node) -> None:
        await node.metadata.change(lambda state: decisions.delete_topic(state, "t"))
        await create(node, "t")

    async def look(node: Node) -> None:
        assert stored(node, "t") == b""
        await append(node, "t", b"of the second topic")

    on_node(data, write)
    shutil.copytree(data / "topics" / "t-0", old)
    on_node(data, make_again)
    votes = {path.name: path.read_bytes() for path in (data / "meta").glob("votes.*")}
    shutil.copytree(old, data / "topics" / "t-0")
    assert votes
    # According to the votes, the new topic has never had a replica here.
    for name in votes:
        (data / "meta" / name).unlink()
    on_node(tmp_path / "other", write)
    for name in votes:
        shutil.copy(tmp_path / "other" / "meta" / name, data / "meta" / name)
    on_node(data, look)
    [aside] = (data / "orphans").glob("t-0.*")
    assert b"of the first topic" in b"".join(path.read_bytes() for path in aside.glob("*.log"))


@pytest.mark.parametrize("emptied", [False, True])
def test_a_replica_whose_files_are_missing_is_offline_and_does_not_start_empty(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, emptied: bool
) -> None:
    async def write(node: Node) -> None:
        await create(node, "lost")
        await append(node, "lost", b"acknowledged")
        await create(node, "kept")

    async def look(node: Node) -> None:
        with pytest.raises(KafkaError) as refusal:
            node.leader("lost", 0)
        assert refusal.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        await append(node, "kept", b"goes on")

    on_node(tmp_path, write)
    folder = tmp_path / "topics" / "lost-0"
    shutil.rmtree(folder)
    if emptied:
        folder.mkdir()
    with caplog.at_level(logging.ERROR):
        on_node(tmp_path, look)
    assert "lost-0 is missing or empty" in caplog.text


def test_a_node_without_its_metadata_does_not_start(tmp_path: Path) -> None:
    """It would vote as an empty node, and topics could be lost."""

    async def write(node: Node) -> None:
        await create(node, "t")

    async def nothing(node: Node) -> None: ...

    on_node(tmp_path, write)
    shutil.rmtree(tmp_path / "topics" / "__cluster_metadata-0")
    with pytest.raises(StorageError, match="__cluster_metadata-0 is missing or empty"):
        on_node(tmp_path, nothing)


def test_an_offline_replica_that_is_deleted_by_a_decision_can_be_created_again(tmp_path: Path) -> None:
    async def write(node: Node) -> None:
        await create(node, "t")
        await append(node, "t", b"acknowledged")

    async def make_again(node: Node) -> None:
        await node.metadata.change(lambda state: decisions.delete_topic(state, "t"))
        await create(node, "t")
        await append(node, "t", b"new")
        assert b"new" in stored(node, "t")

    on_node(tmp_path, write)
    shutil.rmtree(tmp_path / "topics" / "t-0")
    on_node(tmp_path, make_again)


def test_a_topic_that_a_snapshot_no_longer_mentions_is_moved_aside_and_not_deleted(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await create(node, "t")
        await append(node, "t", b"perhaps still wanted")
        await node.metadata.change(
            lambda state: [
                MetadataSnapshot(topics=[], node_configs=[], next_producer_id=state.next_producer_id)
            ]
        )
        assert "t" not in node.metadata.state.topics

    on_node(tmp_path, scenario)
    [aside] = (tmp_path / "orphans").glob("t-0.*")
    assert b"perhaps still wanted" in b"".join(path.read_bytes() for path in aside.glob("*.log"))


def test_a_deleted_topic_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await create(node, "t")
        await append(node, "t", b"x")
        await node.metadata.change(lambda state: decisions.delete_topic(state, "t"))

    on_node(tmp_path, scenario)
    assert not list((tmp_path / "topics").glob("t-0*"))
    assert not (tmp_path / "orphans").exists()


def test_folders_that_were_moved_aside_survive_a_power_cut() -> None:
    """Into a folder that did not exist a moment before."""
    disk = SimDisk(7)

    async def run() -> None:
        node = Node(NodeConfig(data_dir="data", kafka=Address("127.0.0.1", 1)), disk=disk)
        await node.start()
        await create(node, "t")
        await append(node, "t", b"perhaps still wanted")
        nothing = MetadataSnapshot(topics=[], node_configs=[], next_producer_id=0)
        await node.metadata.change(lambda state: [nothing])
        assert not disk.durable_names("topics/t-0")
        await node.stop()

    asyncio.run(run())
    [aside] = disk.durable_names("orphans")
    names = disk.durable_names(f"orphans/{aside}")
    stored = b"".join(bytes(disk.durable_content(f"orphans/{aside}/{name}")) for name in names)
    assert b"perhaps still wanted" in stored
