"""Offset commits of many groups at the same time cost one write, and each is answered separately."""

import asyncio
from pathlib import Path
from uuid import uuid4

from penstock.batch import iter_headers
from penstock.cluster import OFFSETS_TOPIC, NewTopic, decisions
from penstock.config import Address, GroupSettings, NodeConfig
from penstock.errors import ErrorCode
from penstock.groups import CommitRequest, OffsetToCommit
from penstock.node import Node
from penstock.types import TopicPartition

ORDERS = TopicPartition("orders", 0)


async def start(folder: Path) -> Node:
    node = Node(
        NodeConfig(
            data_dir=str(folder),
            kafka=Address("127.0.0.1", 1),
            groups=GroupSettings(offsets_topic_partitions=1),
        )
    )
    await node.start()
    return node


async def commit(node: Node, group: str, offset: int, metadata: str = "") -> ErrorCode:
    wanted = OffsetToCommit(topic="orders", partition=0, offset=offset, metadata=metadata)
    result = await node.groups.commit(CommitRequest(group_id=group, offsets=(wanted,)))
    return result.errors[ORDERS]


async def committed_together(folder: Path, groups: int, metadata: str) -> list[int]:
    """The number of records in each batch that these commits wrote."""
    node = await start(folder)
    try:
        new_topic = NewTopic(name="orders", topic_id=uuid4(), partitions=1)
        await node.metadata.change(
            lambda state: decisions.create_topic(state, new_topic, node.controller.rules)
        )
        assert await commit(node, "first", 1) == ErrorCode.NONE
        partition = node.leader(OFFSETS_TOPIC, 0)
        before = partition.high_watermark
        outcomes = await asyncio.gather(
            *(commit(node, f"g{number}", number, metadata) for number in range(groups))
        )
        assert set(outcomes) == {ErrorCode.NONE}
        for number in range(groups):
            assert node.groups.committed(f"g{number}")[ORDERS].offset == number
        data = partition.log.read(before, 10_000_000, limit=partition.high_watermark)
        return [header.record_count for _, header in iter_headers(data)]
    finally:
        await node.stop()


def test_simultaneous_commits_are_one_batch(tmp_path: Path) -> None:
    assert asyncio.run(committed_together(tmp_path, 100, "")) == [100]


def test_a_batch_of_commits_has_a_bounded_size(tmp_path: Path) -> None:
    counts = asyncio.run(committed_together(tmp_path, 100, "x" * 4_000))
    assert sum(counts) == 100
    assert max(counts) <= 66  # of 4 KB each, in 256 KB


def test_simultaneous_commits_survive_a_restart(tmp_path: Path) -> None:
    asyncio.run(committed_together(tmp_path, 20, "note"))

    async def look() -> None:
        node = await start(tmp_path)
        try:
            for number in range(20):
                driver = await node.groups.cores.host_of(f"g{number}")
                found = driver.core.fetch_offsets(f"g{number}", None)[ORDERS]
                assert (found.offset, found.metadata) == (number, "note")
        finally:
            await node.stop()

    asyncio.run(look())
