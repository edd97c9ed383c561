"""Offsets in transactions on a real log: how they are stored, in which order with the markers, and what survives a
restart, a compaction and a refused write."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import uuid4

import pytest

from penstock.batch import BatchHeader, EndMarker
from penstock.cluster import OFFSETS_TOPIC, NewTopic, decisions, topics
from penstock.config import Address, GroupSettings, NodeConfig
from penstock.errors import ErrorCode, KafkaError, StorageError
from penstock.groups import CommitRequest, OffsetToCommit
from penstock.log import Appended
from penstock.node import Node, Partition
from penstock.node.coordination import core_host
from penstock.types import Producer, TopicPartition
from tests.log.tools import compact, stored

GROUP = "billing"
Act = Callable[[Node], Awaitable[None]]


def play(folder: Path, act: Act) -> None:
    """One life of a node with the topic `orders`."""

    async def live() -> None:
        config = NodeConfig(
            data_dir=str(folder),
            kafka=Address("127.0.0.1", 1),
            groups=GroupSettings(offsets_topic_partitions=1),
        )
        node = Node(config)
        await node.start()
        try:
            if "orders" not in node.metadata.state.topics:
                orders = NewTopic(name="orders", topic_id=uuid4(), partitions=1)
                await node.metadata.change(
                    lambda state: decisions.create_topic(state, orders, node.controller.rules)
                )
            await act(node)
        finally:
            await node.stop()

    asyncio.run(live())


async def commit(
    node: Node, offset: int, *, producer: Producer | None = None, partition: int = 0, metadata: str = ""
) -> ErrorCode:
    one = OffsetToCommit(topic="orders", partition=partition, offset=offset, metadata=metadata)
    result = await node.groups.commit(CommitRequest(group_id=GROUP, offsets=(one,), producer=producer))
    return result.errors[TopicPartition("orders", partition)]


def end(node: Node, producer: Producer, *, commits: bool, coordinator_epoch: int = 0) -> Appended:
    return node.groups.cores.write_marker(0, EndMarker(commits, coordinator_epoch), producer)


async def ended(node: Node, producer: Producer, *, commits: bool) -> None:
    """As a caller sees it that waits for the marker to be committed."""
    committed = offsets_log(node).committed_at(end(node, producer, commits=commits))
    if committed is not None:
        await committed


def offsets_log(node: Node) -> Partition:
    return node.leader(OFFSETS_TOPIC, 0)


def state(node: Node) -> tuple[dict[int, int], set[int]]:
    """The offsets that count, and the partitions that are not stable."""
    committed = {each.partition: found.offset for each, found in node.groups.committed(GROUP).items()}
    return committed, {each.partition for each in node.groups.unstable(GROUP)}


def batches(node: Node) -> list[BatchHeader]:
    return [header for header, _ in stored(offsets_log(node).log)]


def test_offsets_of_a_transaction_are_transactional_batches_of_its_producer(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        assert await commit(node, 1) is ErrorCode.NONE
        both = await asyncio.gather(
            commit(node, 5, producer=Producer(7, 3)),
            commit(node, 6, producer=Producer(7, 3), partition=1),
            commit(node, 7, producer=Producer(8, 0)),
            commit(node, 2, partition=2),
        )
        assert set(both) == {ErrorCode.NONE}
        await commit(node, 8, producer=Producer(7, 3))
        rows = [
            (one.transactional, one.producer_id, one.producer_epoch, one.base_sequence, one.record_count)
            for one in batches(node)
        ]
        assert rows == [
            (False, -1, -1, -1, 1),
            (True, 7, 3, 0, 2),
            (True, 8, 0, 0, 1),
            (False, -1, -1, -1, 1),
            (True, 7, 3, 2, 1),
        ]

    play(tmp_path, act)


def test_a_caller_that_waited_for_the_marker_finds_the_offsets(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        await commit(node, 5, producer=Producer(7, 0))
        assert state(node) == ({}, {0})
        await ended(node, Producer(7, 0), commits=True)
        assert state(node) == ({0: 5}, set())
        await ended(node, Producer(7, 0), commits=True)
        assert state(node) == ({0: 5}, set())

    play(tmp_path, act)


def test_a_marker_is_behind_the_writes_of_the_same_turn(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        await commit(node, 1)
        before = asyncio.ensure_future(commit(node, 5, producer=Producer(7, 0)))
        while not offsets_log_waits(node):
            await asyncio.sleep(0)
        end(node, Producer(7, 0), commits=True)
        after = asyncio.ensure_future(commit(node, 6, producer=Producer(7, 0)))
        assert await asyncio.gather(before, after) == [ErrorCode.NONE, ErrorCode.NONE]
        assert [one.control for one in batches(node)] == [False, False, True, False]
        assert state(node) == ({0: 5}, {0})

    play(tmp_path, act)


def offsets_log_waits(node: Node) -> bool:
    """Whether the coordinator has asked for a write that is not appended yet."""
    return bool(node.groups.cores.get(0)._unwritten)


def test_everything_survives_a_restart(tmp_path: Path) -> None:
    seven, eight = Producer(7, 0), Producer(8, 0)
    before: list[object] = []

    async def begin(node: Node) -> None:
        await commit(node, 1)
        await commit(node, 5, producer=seven)
        await commit(node, 6, producer=eight, partition=1)
        await ended(node, seven, commits=True)
        await commit(node, 7, producer=seven, partition=2)
        assert state(node) == ({0: 5}, {1, 2})
        before.append(state(node))

    async def go_on(node: Node) -> None:
        await node.groups.cores.host_of(GROUP)
        assert [state(node)] == before
        await ended(node, eight, commits=True)
        await ended(node, seven, commits=False)
        assert state(node) == ({0: 5, 1: 6}, set())

    async def look(node: Node) -> None:
        await node.groups.cores.host_of(GROUP)
        assert state(node) == ({0: 5, 1: 6}, set())
        assert await commit(node, 8, producer=seven) is ErrorCode.NONE, "its sequence goes on"

    play(tmp_path, begin)
    play(tmp_path, go_on)
    play(tmp_path, look)


def test_a_producer_whose_epoch_was_raised_cannot_commit(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        assert await commit(node, 1, producer=Producer(7, 0)) is ErrorCode.NONE
        await ended(node, Producer(7, 1), commits=False)
        assert await commit(node, 2, producer=Producer(7, 0)) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert state(node) == ({}, set())
        assert await commit(node, 3, producer=Producer(7, 1)) is ErrorCode.NONE
        with pytest.raises(KafkaError) as refused:
            end(node, Producer(7, 0), commits=True)
        assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
        assert state(node) == ({}, {0})

    play(tmp_path, act)


def test_a_producer_that_is_fenced_in_the_same_turn_is_told_to_retry(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        await commit(node, 1)
        newer, older = await asyncio.gather(
            commit(node, 2, producer=Producer(7, 1)), commit(node, 3, producer=Producer(7, 0))
        )
        assert (newer, older) == (ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        await ended(node, Producer(7, 1), commits=True)
        assert state(node) == ({0: 2}, set())

    play(tmp_path, act)


def test_the_limit_of_open_transactions_is_told_to_the_client(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        await commit(node, 1)
        offsets_log(node).log.transactions._max_open = 1
        assert await commit(node, 1, producer=Producer(7, 0)) is ErrorCode.NONE
        assert await commit(node, 2, producer=Producer(8, 0)) is ErrorCode.POLICY_VIOLATION
        await ended(node, Producer(7, 0), commits=True)
        assert await commit(node, 2, producer=Producer(8, 0)) is ErrorCode.NONE

    play(tmp_path, act)


def test_a_commit_that_the_log_refused_is_not_pending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise StorageError("the disk is full")

    async def act(node: Node) -> None:
        await commit(node, 1)
        with monkeypatch.context() as patch:
            patch.setattr(Partition, "append", refuse)
            assert await commit(node, 5, producer=Producer(7, 0)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
            with pytest.raises(StorageError):
                end(node, Producer(7, 0), commits=True)
        assert state(node) == ({0: 1}, set())
        assert await commit(node, 6, producer=Producer(7, 0)) is ErrorCode.NONE
        await ended(node, Producer(7, 0), commits=True)
        assert state(node) == ({0: 6}, set())

    play(tmp_path, act)


def test_no_marker_is_written_past_a_coordinator_that_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def begin(node: Node) -> None:
        await commit(node, 5, producer=Producer(7, 0))

    async def go_on(node: Node) -> None:
        # A coordinator that reads its log in slices stands for one with a large log.
        [host] = node.groups.cores.hosts()
        again = core_host.CoreHost(node.groups.cores._make(), host.partition, node.clock, node.metadata, None)
        monkeypatch.setattr(core_host, "LOAD_AT_ONCE_BYTES", 0)
        monkeypatch.setitem(node.groups.cores._hosts, 0, again)
        again.start()
        with pytest.raises(KafkaError) as refused:
            end(node, Producer(7, 0), commits=True)
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        while not again.is_ready:
            await asyncio.sleep(0)
        await ended(node, Producer(7, 0), commits=True)
        assert state(node) == ({0: 5}, set())
        host.stop()

    play(tmp_path, begin)
    play(tmp_path, go_on)


def test_a_large_transaction_is_stored_in_several_batches(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        many = tuple(
            OffsetToCommit(topic="orders", partition=number, offset=number) for number in range(2500)
        )
        producer = Producer(7, 0)
        await node.groups.commit(CommitRequest(group_id=GROUP, offsets=many, producer=producer))
        assert sum(one.record_count for one in batches(node)) == 2500
        assert {one.producer_id for one in batches(node)} == {7}
        await ended(node, producer, commits=True)
        assert state(node) == ({number: number for number in range(2500)}, set())

    play(tmp_path, act)


# --- compaction


def test_compaction_keeps_pending_offsets_and_the_outcome_of_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {
        "cleanup.policy": "compact",
        "internal.segment.bytes": "2000",
        "min.cleanable.dirty.ratio": "0.01",
    }
    monkeypatch.setitem(topics.INTERNAL_CONFIGS, OFFSETS_TOPIC, small)
    seven, eight, nine = Producer(7, 0), Producer(8, 0), Producer(9, 0)
    expected = {0: 105, 1: 200, 2: 300, 9: 9}

    async def fill(node: Node, times: int) -> None:
        for _ in range(times):
            await commit(node, 9, partition=9, metadata="x" * 400)

    async def write(node: Node) -> None:
        for number in range(100, 106):
            await commit(node, number, producer=seven)
            await ended(node, seven, commits=True)
        await commit(node, 199, producer=seven, partition=1)
        await commit(node, 200, partition=1)
        await ended(node, seven, commits=True)
        await commit(node, 300, producer=eight, partition=2)
        await ended(node, eight, commits=True)
        await commit(node, 301, producer=eight, partition=2)
        await ended(node, eight, commits=False)
        await fill(node, 10)
        await commit(node, 400, producer=nine, partition=3)
        await fill(node, 10)
        compacts(node)
        assert state(node) == (expected, {3})

    async def read(node: Node) -> None:
        await node.groups.cores.host_of(GROUP)
        assert state(node) == (expected, {3})
        await ended(node, nine, commits=True)
        await fill(node, 10)
        compacts(node)

    async def read_again(node: Node) -> None:
        await node.groups.cores.host_of(GROUP)
        assert state(node) == ({**expected, 3: 400}, set())

    play(tmp_path, write)
    play(tmp_path, read)
    play(tmp_path, read_again)


def compacts(node: Node) -> None:
    log = offsets_log(node).log
    before = len(batches(node))
    assert compact(log, node.clock.wall_ms())
    assert len(batches(node)) < before
