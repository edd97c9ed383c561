"""The metadata log after a crash: committed records survive, and damage is an error, not a shorter list of topics."""

import asyncio
import shutil
from pathlib import Path
from uuid import uuid4

import pytest

from penstock.cluster import NewTopic, decisions
from penstock.config import Address, NodeConfig
from penstock.errors import CorruptLog
from penstock.node import Node
from penstock.node.metadata import metadata_log

TOPICS = [f"topic-{number}" for number in range(20)]


def node_on(folder: Path) -> Node:
    return Node(NodeConfig(data_dir=str(folder), kafka=Address("127.0.0.1", 1)))


async def create_topics(node: Node) -> None:
    for name in TOPICS:
        new_topic = NewTopic(name=name, topic_id=uuid4(), partitions=1)
        await node.metadata.change(
            lambda state, new_topic=new_topic: decisions.create_topic(state, new_topic, node.controller.rules)
        )


async def leave_a_crashed_copy(folder: Path, copy: Path) -> None:
    """A node creates topics and cleans up; the copy is its folder after a kill -9 at that moment."""
    node = node_on(folder)
    await node.start()
    await create_topics(node)
    assert node.housekeeping is not None
    await node.housekeeping.tidy()
    shutil.copytree(folder, copy)
    await node.stop()


async def topics_of(folder: Path) -> list[str]:
    node = node_on(folder)
    await node.start()
    names = sorted(node.metadata.state.topics)
    await node.stop()
    return names


def test_topics_are_known_after_a_crash(tmp_path: Path) -> None:
    asyncio.run(leave_a_crashed_copy(tmp_path / "data", tmp_path / "copy"))
    assert asyncio.run(topics_of(tmp_path / "copy")) == sorted(TOPICS)


def test_a_damaged_byte_is_an_error_and_not_fewer_topics(tmp_path: Path) -> None:
    asyncio.run(leave_a_crashed_copy(tmp_path / "data", tmp_path / "copy"))
    segment = next((tmp_path / "copy" / "topics" / "__cluster_metadata-0").glob("*.log"))
    content = bytearray(segment.read_bytes())
    content[content.index(b"topic-7")] ^= 0xFF
    segment.write_bytes(content)
    with pytest.raises(CorruptLog, match="__cluster_metadata-0"):
        asyncio.run(topics_of(tmp_path / "copy"))


def test_a_log_that_has_grown_far_beyond_its_state_is_replaced_by_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_log, "SNAPSHOT_AFTER_RECORDS", 5)
    monkeypatch.setattr(metadata_log, "SNAPSHOT_FACTOR", 0)

    async def scenario() -> tuple[int, int]:
        node = node_on(tmp_path)
        await node.start()
        await create_topics(node)
        partition = node.metadata.partition
        ends = partition.start_offset, partition.high_watermark
        await node.stop()
        return ends

    start, end = asyncio.run(scenario())
    assert end - start < len(TOPICS)
    assert asyncio.run(topics_of(tmp_path)) == sorted(TOPICS)
