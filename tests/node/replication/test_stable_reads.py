"""Readers of committed records: where they end, what they are told of aborted transactions, and what wakes them."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest

from penstock.batch import EndMarker, Record, build_batch, check_batch, iter_headers
from penstock.config import NodeConfig
from penstock.errors import ErrorCode, KafkaError
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.fetch import fetch
from penstock.kafka.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from penstock.log import Appended
from penstock.node import FetchWaiter, Node, Partition
from penstock.node.calls import BROKER
from penstock.node.coordination.internal_topic import records_of
from penstock.types import ANONYMOUS, Isolation, Offset
from tests.node.replication.test_waiting_fetches import FETCH, PATIENCE_SECONDS, Peer, play

READ_UNCOMMITTED, READ_COMMITTED = Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED


def send(partition: Partition, producer_id: int, sequence: int, *, epoch: int = 0, size: int = 1) -> None:
    """A batch of one record in a transaction; producer -1: in none. Its time is that of the markers, or these would
    begin new segments."""
    now_ms = partition._clock.wall_ms()
    batch = bytearray(
        build_batch(
            [Record(0, now_ms, b"k", b"v" * size)],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=producer_id >= 0,
        )
    )
    partition.append(batch, check_batch(batch))


def end(
    partition: Partition, producer_id: int, *, commit: bool, epoch: int = 0, coordinator: int = 0
) -> Appended:
    marker = EndMarker(commit, coordinator)
    return partition.append_marker(marker, producer_id=producer_id, producer_epoch=epoch)


async def committed(partition: Partition, appended: Appended) -> None:
    future = partition.committed_at(appended)
    if future is not None:
        await asyncio.wait_for(future, PATIENCE_SECONDS)


def ends(partition: Partition) -> tuple[int, int]:
    return partition.end_for(READ_UNCOMMITTED), partition.end_for(READ_COMMITTED)


def start_fetch(
    node: Node,
    offset: int,
    isolation: Isolation,
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1000,
) -> FetchResponse | Awaitable[FetchResponse]:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        isolation_level=isolation,
        topics=[FetchTopic(topic="t", partitions=[wanted])],
    )
    context = RequestContext(node=node, connection=Peer(), caller=ANONYMOUS, api=FETCH, api_version=11)
    return fetch(context, request)


def fetched(node: Node, offset: int, isolation: Isolation, max_bytes: int = 1000) -> PartitionData:
    answer = start_fetch(node, offset, isolation, max_bytes=max_bytes)
    assert isinstance(answer, FetchResponse)
    return answer.responses[0].partitions[0]


def test_the_ends_move_with_the_watermark_and_never_before() -> None:
    async def scenario(node: Node, partition: Partition) -> None:
        drain = node.storage.flusher.drain
        send(partition, -1, 0)
        send(partition, 7, 0)
        send(partition, -1, 0)
        assert ends(partition) == (0, 0)
        await drain()
        assert ends(partition) == (3, 1)
        end(partition, 7, commit=True)
        assert ends(partition) == (3, 1), "the marker may still be lost"
        await drain()
        assert ends(partition) == (4, 4)

    play(scenario)


def test_a_fetch_names_the_aborted_transactions_in_what_it_returns() -> None:
    async def scenario(node: Node, partition: Partition) -> None:
        send(partition, 8, 0)  # 0
        send(partition, 7, 0)  # 1
        end(partition, 7, commit=False)  # 2
        send(partition, 7, 1)  # 3
        end(partition, 7, commit=True)  # 4
        end(partition, 8, commit=False)  # 5
        send(partition, 9, 0)  # 6
        await node.storage.flusher.drain()
        row = fetched(node, 0, READ_COMMITTED)
        assert row.aborted_transactions is not None
        told = [(one.producer_id, one.first_offset) for one in row.aborted_transactions]
        assert told == [(8, 0), (7, 1)]
        assert (row.high_watermark, row.last_stable_offset) == (7, 6)
        [*_, (_, last)] = iter_headers(bytes(row.records or b""))
        assert last.next_offset == 6
        first = fetched(node, 0, READ_COMMITTED, max_bytes=1).aborted_transactions or []
        assert [one.producer_id for one in first] == [8], (
            "one batch was returned, and one of them overlaps it"
        )
        later = fetched(node, 3, READ_COMMITTED).aborted_transactions or []
        assert [one.producer_id for one in later] == [8]
        assert fetched(node, 6, READ_COMMITTED).aborted_transactions == []
        everything = fetched(node, 0, READ_UNCOMMITTED)
        assert everything.aborted_transactions is None
        assert everything.last_stable_offset == 6

    play(scenario)


def test_the_end_is_never_below_the_start_of_the_log() -> None:
    """Deletion does not end a transaction: its readers wait at the start until the marker comes."""

    async def scenario(node: Node, partition: Partition) -> None:
        drain = node.storage.flusher.drain
        send(partition, 7, 0)
        for _ in range(4):
            send(partition, -1, 0)
        await drain()
        assert ends(partition) == (5, 0)
        partition.delete_records(Offset(3))
        assert ends(partition) == (5, 3)
        assert fetched(node, 3, READ_COMMITTED).records == b""
        end(partition, 7, commit=False)
        await drain()
        assert ends(partition) == (6, 6)

    play(scenario)


def test_a_waiting_reader_of_committed_records_wakes_when_a_transaction_ends_and_not_before() -> None:
    async def scenario(node: Node, partition: Partition) -> None:
        drain = node.storage.flusher.drain
        loop = asyncio.get_running_loop()
        both = FetchWaiter(1, loop.create_future()), FetchWaiter(10_000, loop.create_future(), READ_COMMITTED)
        for waiter in both:
            partition.add_waiter(waiter)
        send(partition, 7, 0, size=20_000)
        await drain()
        assert [waiter.future.done() for waiter in both] == [True, False]
        end(partition, 7, commit=True)
        await drain()
        assert both[1].future.done()
        for waiter in both:
            partition.remove_waiter(waiter)

    play(scenario)


def test_without_transactions_a_reader_of_committed_records_waits_for_its_bytes() -> None:
    async def scenario(node: Node, partition: Partition) -> None:
        waiter = FetchWaiter(150, asyncio.get_running_loop().create_future(), READ_COMMITTED)
        partition.add_waiter(waiter)
        for done in (False, False, True):
            send(partition, -1, 0)
            await node.storage.flusher.drain()
            assert waiter.future.done() is done

    play(scenario)


def test_a_fetch_that_waits_at_the_last_stable_offset_returns_what_a_marker_decides() -> None:
    async def scenario(node: Node, partition: Partition) -> None:
        drain = node.storage.flusher.drain
        send(partition, 7, 0)
        await drain()
        answer = start_fetch(node, 0, READ_COMMITTED, max_wait_ms=600_000, min_bytes=10_000)
        assert not isinstance(answer, FetchResponse)
        waiting = asyncio.ensure_future(answer)
        await asyncio.sleep(0)
        end(partition, 7, commit=False)
        await drain()
        row = (await asyncio.wait_for(waiting, PATIENCE_SECONDS)).responses[0].partitions[0]
        [(_, data), (_, marker)] = iter_headers(bytes(row.records or b""))
        assert (data.control, marker.control) == (False, True)
        assert [one.first_offset for one in row.aborted_transactions or []] == [0]

    play(scenario)


def test_markers_of_fenced_producers_and_coordinators_are_refused() -> None:
    async def scenario(node: Node, partition: Partition) -> None:
        send(partition, 7, 0, epoch=1)
        with pytest.raises(KafkaError) as caught:
            end(partition, 7, commit=True, epoch=0)
        assert caught.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
        end(partition, 7, commit=True, epoch=1, coordinator=3)
        with pytest.raises(KafkaError) as caught:
            end(partition, 7, commit=True, epoch=1, coordinator=2)
        assert caught.value.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED
        await node.storage.flusher.drain()

    play(scenario)


def test_a_core_that_reads_an_internal_topic_gets_no_markers() -> None:
    async def scenario(node: Node, partition: Partition) -> None:
        end(partition, 7, commit=True)
        send(partition, 7, 0)
        end(partition, 7, commit=True)
        send(partition, -1, 0)
        end(partition, 7, commit=True)
        await node.storage.flusher.drain()
        log = partition.log
        read = records_of(partition, log.read(partition.start_offset, 1_000_000, limit=log.end_offset))
        assert [record.offset for record in read] == [1, 3]

    play(scenario)


def test_a_restarted_node_ends_where_it_ended_before(tmp_path: Path) -> None:
    config = NodeConfig(data_dir=str(tmp_path), http=None)

    async def fill() -> None:
        node = Node(config)
        await node.start()
        await node.controller.create_topic("t", caller=BROKER)
        partition = node.leader("t", 0)
        for producer_id in (7, 8, 9):
            send(partition, producer_id, 0)
        end(partition, 7, commit=False)
        await committed(partition, end(partition, 9, commit=False))
        assert ends(partition) == (5, 1)
        await node.stop()

    async def look() -> None:
        node = Node(config)
        await node.start()
        partition = node.leader("t", 0)
        await partition.flushed_to(partition.log.end_offset)
        assert ends(partition) == (5, 1)
        await committed(partition, end(partition, 8, commit=True))
        assert ends(partition) == (6, 6)
        told = fetched(node, 0, READ_COMMITTED).aborted_transactions or []
        assert [(one.producer_id, one.first_offset) for one in told] == [(7, 0), (9, 2)]
        await node.stop()

    asyncio.run(fill())
    asyncio.run(look())
