"""The metadata log after a crash: committed records survive, and damage is an error, not a shorter list of topics.
Large changes are applied in slices."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import pytest

from penstock.cluster import ClusterState, MetadataRecord, NewTopic, decisions, encode_record
from penstock.config import Address, NodeConfig
from penstock.errors import CorruptLog, ErrorCode, KafkaError, NotExecuted, StorageError
from penstock.node import Node
from penstock.node.calls import BROKER
from penstock.node.coordination.internal_topic import append_records
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


# --- large changes


def creations(node: Node, count: int) -> list[MetadataRecord]:
    trial = node.metadata.state.copy()
    records: list[MetadataRecord] = []
    for number in range(count):
        new_topic = NewTopic(name=f"many-{number}", topic_id=uuid4(), partitions=1)
        records += decisions.create_topic(trial, new_topic, node.controller.rules)
    return records


def play(scenario: Callable[[Node], Awaitable[None]]) -> None:
    async def run() -> None:
        node = Node(NodeConfig(memory=True, kafka=Address("127.0.0.1", 1)))
        await node.start()
        try:
            await scenario(node)
        finally:
            await node.stop()

    asyncio.run(run())


def test_the_records_of_a_large_change_are_applied_in_slices_and_all_before_it_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metadata_log, "SLICE_BYTES", 1)

    async def scenario(node: Node) -> None:
        records = creations(node, 20)
        change = asyncio.ensure_future(node.metadata.change(lambda _: records))
        seen = [0]
        while not change.done():
            seen.append(len(node.metadata.state.topics))
            await asyncio.sleep(0)
        assert max(after - before for before, after in pairwise(seen)) == 1
        assert len(node.metadata.state.topics) == 20

    play(scenario)


def test_the_next_change_is_decided_when_all_records_before_it_are_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metadata_log, "SLICE_BYTES", 1)

    async def scenario(node: Node) -> None:
        records = creations(node, 20)
        known: list[int] = []

        def decide(state: ClusterState) -> list[MetadataRecord]:
            known.append(len(state.topics))
            return []

        changes = [node.metadata.change(lambda _: records), node.metadata.change(decide)]
        await asyncio.gather(*changes)
        assert known == [20]

    play(scenario)


def test_a_decision_that_waits_is_refused_if_the_metadata_has_changed_meanwhile() -> None:
    """Another controller may have been elected and resigned."""

    async def scenario(node: Node) -> None:
        records = creations(node, 2)
        metadata = node.metadata

        async def decide() -> list[MetadataRecord]:
            append_records(metadata.partition, [(None, encode_record(records[0]))], stamp_ms=0)
            while metadata.applied == 0:
                await metadata.next_change()
            return records[1:]

        with pytest.raises(NotExecuted, match="another controller"):
            await metadata.change(lambda _: decide())
        assert sorted(metadata.state.topics) == ["many-0"]

    play(scenario)


def test_a_node_that_has_all_records_does_not_apply_their_snapshot_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(node: Node) -> None:
        await node.metadata.change(lambda _: creations(node, 2))
        before = dict(node.metadata.state.topics)
        snapshot = node.metadata.state.snapshot()
        await node.metadata.change(lambda _: [snapshot])
        topics = node.metadata.state.topics
        assert all(topics[name] is topic for name, topic in before.items())

    play(scenario)


def test_damage_that_is_found_in_a_later_slice_stops_the_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_log, "SLICE_BYTES", 1)

    async def scenario(node: Node) -> None:
        records = creations(node, 3)
        apply, applied = node.metadata.state.apply, []

        def failing(record: MetadataRecord) -> frozenset[str]:
            applied.append(record)
            if len(applied) == 2:
                raise CorruptLog("topics/__cluster_metadata-0", 7, "changed")
            return apply(record)

        monkeypatch.setattr(node.metadata.state, "apply", failing)
        with pytest.raises(StorageError, match="is not applied here"):
            await node.metadata.change(lambda _: records)
        assert isinstance(node.metadata.partition.offline_reason, CorruptLog)
        assert len(node.metadata.state.topics) == 1

    play(scenario)


def test_a_stop_gives_up_a_change_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other nodes may have stopped before: nothing is committed any more."""
    monkeypatch.setattr(metadata_log, "STOP_SECONDS", 0.0)

    async def scenario(node: Node) -> None:
        begun = asyncio.Event()

        async def decide() -> list[MetadataRecord]:
            begun.set()
            await asyncio.get_running_loop().create_future()
            return []

        change = asyncio.ensure_future(node.metadata.change(lambda _: decide()))
        await begun.wait()
        await asyncio.wait_for(node.metadata.stop(), 60)
        with pytest.raises(KafkaError, match="this node stops") as refused:
            await change
        assert refused.value.code is ErrorCode.NOT_CONTROLLER

    play(scenario)


def refuse(state: ClusterState) -> list[MetadataRecord]:
    raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, "there is one")


@pytest.mark.parametrize("decide", [refuse, lambda state: []])
def test_a_controller_whose_lease_has_ended_answers_nothing_from_its_state(
    decide: Callable[[ClusterState], list[MetadataRecord]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another controller may have deleted the topic already, before this one notices that it was deposed."""

    async def scenario(node: Node) -> None:
        monkeypatch.setattr(type(node.metadata.partition), "may_serve", property(lambda _: False))
        with pytest.raises(NotExecuted) as refused:
            await node.metadata.change(decide)
        assert refused.value.code is ErrorCode.NOT_CONTROLLER

    play(scenario)


# --- waiting


def test_a_wait_ends_when_a_change_is_applied_or_its_time_is_over() -> None:
    async def scenario(node: Node) -> None:
        def is_created() -> bool:
            return "t" in node.metadata.state.topics

        assert not await node.metadata.until(is_created, 0.01)
        waiting = asyncio.create_task(node.metadata.until(is_created, 60))
        await asyncio.sleep(0)
        assert not waiting.done()
        await node.controller.create_topic("t", caller=BROKER)
        assert await waiting

    play(scenario)
