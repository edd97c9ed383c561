"""Fetch in sessions: what a request names, and what its response leaves out."""

import asyncio
from collections.abc import Awaitable, Callable

from penstock.batch import EndMarker, Record, build_batch, check_batch
from penstock.config import NodeConfig
from penstock.errors import ErrorCode
from penstock.kafka.handlers.context import Api, RequestContext
from penstock.kafka.handlers.fetch import fetch
from penstock.kafka.handlers.registry import find_api
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.delete_topics import DeleteTopicsRequest
from penstock.kafka.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from penstock.node import Node
from penstock.node.calls import BROKER
from penstock.types import ANONYMOUS, Isolation, Operation
from tests.node.replication.test_waiting_fetches import Peer

FETCH = Api(4, 18, "fetch", on_topic=Operation.READ)
PATIENCE_SECONDS = 60.0
LONG_MS = 600_000
PARTITIONS = 20


class Consumer:
    """A consumer of the topic `t`, with a session."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.peer = Peer()
        self.session_id = self.epoch = 0
        self.isolation = Isolation.READ_UNCOMMITTED

    def request(
        self,
        offsets: dict[int, int],
        *,
        forget: tuple[int, ...] = (),
        wait_ms: int = 0,
        max_bytes: int = 1 << 20,
    ) -> FetchRequest:
        rows = [
            FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
            for index, offset in offsets.items()
        ]
        gone = [ForgottenTopic(topic="t", partitions=list(forget))] if forget else []
        return FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=self.isolation,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=[FetchTopic(topic="t", partitions=rows)] if rows else [],
            forgotten_topics_data=gone,
        )

    async def send(self, request: FetchRequest, *, version: int = 11) -> FetchResponse:
        context = RequestContext(
            node=self.node, connection=self.peer, caller=ANONYMOUS, api=FETCH, api_version=version
        )
        answer = fetch(context, request)
        if not isinstance(answer, FetchResponse):
            answer = await asyncio.wait_for(answer, PATIENCE_SECONDS)
        return answer

    async def fetch(
        self,
        offsets: dict[int, int] | None = None,
        *,
        forget: tuple[int, ...] = (),
        wait_ms: int = 0,
        max_bytes: int = 1 << 20,
    ) -> dict[int, PartitionData]:
        wanted = offsets or {}
        request = self.request(wanted, forget=forget, wait_ms=wait_ms, max_bytes=max_bytes)
        answer = await self.send(request)
        assert answer.error_code == ErrorCode.NONE
        self.session_id, self.epoch = answer.session_id, self.epoch + 1
        return {row.partition_index: row for topic in answer.responses for row in topic.partitions}

    async def open(self, *, wait_ms: int = 0) -> dict[int, PartitionData]:
        return await self.fetch(dict.fromkeys(range(PARTITIONS), 0), wait_ms=wait_ms)


def play(scenario: Callable[[Consumer], Awaitable[None]]) -> None:
    async def run() -> None:
        node = Node(NodeConfig(memory=True, http=None))
        await node.start()
        await node.controller.create_topic("t", caller=BROKER, partitions=PARTITIONS)
        await scenario(Consumer(node))
        await node.stop()

    asyncio.run(run())


async def append(node: Node, index: int, value: bytes = b"v") -> None:
    batch = memoryview(bytearray(build_batch([Record(0, 1, b"k", value, ())])))
    node.leader("t", index).append(batch, check_batch(batch))
    await node.storage.flusher.drain()


async def delete_topic(consumer: Consumer) -> None:
    api = find_api(ApiKey.DELETE_TOPICS)
    assert api is not None
    context = RequestContext(
        node=consumer.node, connection=consumer.peer, caller=ANONYMOUS, api=api, api_version=5
    )
    await api.handler(context, DeleteTopicsRequest(topic_names=["t"]))


# --- what a response has


def test_the_first_response_has_all_partitions_and_the_next_none_without_news() -> None:
    async def scenario(consumer: Consumer) -> None:
        assert sorted(await consumer.open()) == [*range(PARTITIONS)]
        assert consumer.session_id > 0
        assert await consumer.fetch() == {}
        await append(consumer.node, 7)
        found = await consumer.fetch()
        assert list(found) == [7]
        assert (found[7].high_watermark, bool(found[7].records)) == (1, True)

    play(scenario)


def test_records_come_again_until_the_consumer_names_a_later_position() -> None:
    async def scenario(consumer: Consumer) -> None:
        await consumer.open()
        await append(consumer.node, 7)
        for _ in range(2):
            assert (await consumer.fetch())[7].records
        assert await consumer.fetch({7: 1}) == {}
        await append(consumer.node, 7)
        assert list(await consumer.fetch()) == [7]

    play(scenario)


def test_a_session_looks_only_at_partitions_with_news() -> None:
    async def scenario(consumer: Consumer) -> None:
        await consumer.open()
        [session] = consumer.node.fetch_sessions
        assert not session.ready, "the consumer has everything that there is"
        for index in (3, 7):
            await append(consumer.node, index)
        assert [row.partition for row in session.ready] == [3, 7]
        await consumer.fetch()
        await consumer.fetch({3: 1, 7: 1})
        assert not session.ready

    play(scenario)


def test_a_partition_with_records_is_read_after_the_others_next_time() -> None:
    async def scenario(consumer: Consumer) -> None:
        await consumer.open()
        for index in (2, 5, 9):
            await append(consumer.node, index)
        served = []
        for _ in range(4):
            found = await consumer.fetch(max_bytes=1)
            served += [index for index, row in found.items() if row.records]
        assert served == [2, 5, 9, 2], "each request has room for one batch"

    play(scenario)


def test_forgotten_partitions_are_not_read_and_the_last_one_ends_the_session() -> None:
    async def scenario(consumer: Consumer) -> None:
        await consumer.open()
        await consumer.fetch(forget=tuple(range(1, PARTITIONS)))
        await append(consumer.node, 7)
        assert await consumer.fetch() == {}
        await consumer.fetch({8: 0})
        await append(consumer.node, 8)
        assert list(await consumer.fetch()) == [8]
        assert await consumer.fetch(forget=(0, 8)) == {}
        assert consumer.session_id == 0
        assert len(consumer.node.fetch_sessions) == 0

    play(scenario)


def test_an_error_is_repeated_until_it_is_gone() -> None:
    async def scenario(consumer: Consumer) -> None:
        await consumer.open()
        for named in ({PARTITIONS: 0}, {}, {}):
            found = await consumer.fetch(named)
            assert found[PARTITIONS].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await consumer.fetch(forget=(PARTITIONS,)) == {}

    play(scenario)


def test_a_new_start_of_the_log_is_news() -> None:
    async def scenario(consumer: Consumer) -> None:
        await append(consumer.node, 7)
        await consumer.open()
        await consumer.fetch({7: 1})
        consumer.node.leader("t", 7).delete_records(-1)
        found = await consumer.fetch({7: 1})
        assert [row.log_start_offset for row in found.values()] == [1]

    play(scenario)


# --- waiting


def test_a_waiting_request_is_answered_when_records_are_committed() -> None:
    async def scenario(consumer: Consumer) -> None:
        await consumer.open()
        waiting = asyncio.ensure_future(consumer.fetch(wait_ms=LONG_MS))
        await asyncio.sleep(0)
        await append(consumer.node, 4)
        assert list(await waiting) == [4]

    play(scenario)


def test_the_first_request_of_a_session_waits_too() -> None:
    async def scenario(consumer: Consumer) -> None:
        waiting = asyncio.ensure_future(consumer.open(wait_ms=LONG_MS))
        await asyncio.sleep(0)
        await append(consumer.node, 4)
        found = await waiting
        assert len(found) == PARTITIONS
        assert found[4].records

    play(scenario)


def test_a_deleted_topic_ends_the_wait_with_an_error() -> None:
    async def scenario(consumer: Consumer) -> None:
        await consumer.open()
        waiting = asyncio.ensure_future(consumer.fetch(wait_ms=LONG_MS))
        await asyncio.sleep(0)
        await delete_topic(consumer)
        codes = {row.error_code for row in (await waiting).values()}
        assert codes == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        await consumer.node.controller.create_topic("t", caller=BROKER, partitions=PARTITIONS)
        await consumer.fetch()
        await append(consumer.node, 4)
        assert list(await consumer.fetch()) == [4], "the session reads the new topic"

    play(scenario)


def test_a_newer_request_ends_the_one_that_waits() -> None:
    async def scenario(consumer: Consumer) -> None:
        await consumer.open()
        waiting = asyncio.ensure_future(consumer.send(consumer.request({}, wait_ms=LONG_MS)))
        await asyncio.sleep(0)
        consumer.epoch += 1
        assert await consumer.fetch() == {}
        assert (await waiting).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH

    play(scenario)


def test_all_partitions_are_checked_again_from_time_to_time() -> None:
    """A leader that has lost its replicas refuses readers before anything happens to the partition."""

    async def scenario(consumer: Consumer) -> None:
        await consumer.open()
        [session] = consumer.node.fetch_sessions
        consumer.node.leader("t", 3).leads = False
        assert await consumer.fetch() == {}
        session.recheck_s = 0.0
        found = await consumer.fetch()
        assert {index: row.error_code for index, row in found.items()} == {
            3: ErrorCode.NOT_LEADER_OR_FOLLOWER
        }

    play(scenario)


# --- sessions that are refused


def test_topics_are_named_by_id_from_the_beginning_to_the_end() -> None:
    async def scenario(consumer: Consumer) -> None:
        await consumer.open()
        answer = await consumer.send(consumer.request({}), version=13)
        assert answer.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR

    play(scenario)


def test_a_request_without_a_session_ends_the_session_that_it_names() -> None:
    async def scenario(consumer: Consumer) -> None:
        await consumer.open()
        consumer.epoch = -1
        answer = await consumer.send(consumer.request({0: 0}))
        assert (answer.error_code, answer.session_id) == (ErrorCode.NONE, 0)
        assert len(consumer.node.fetch_sessions) == 0

    play(scenario)


# --- transactions


def test_readers_of_committed_records_are_told_when_a_transaction_ends() -> None:
    async def scenario(consumer: Consumer) -> None:
        consumer.isolation = Isolation.READ_COMMITTED
        await consumer.open()
        partition = consumer.node.leader("t", 5)
        records = build_batch(
            [Record(0, 1, b"k", b"v", ())],
            producer_id=9,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        batch = memoryview(bytearray(records))
        partition.append(batch, check_batch(batch))
        await consumer.node.storage.flusher.drain()
        assert not any(row.records for row in (await consumer.fetch()).values())
        waiting = asyncio.ensure_future(consumer.fetch(wait_ms=LONG_MS))
        await asyncio.sleep(0)
        partition.append_marker(EndMarker(commit=True, coordinator_epoch=0), producer_id=9, producer_epoch=0)
        await consumer.node.storage.flusher.drain()
        assert [index for index, row in (await waiting).items() if row.records] == [5]

    play(scenario)


def test_a_session_may_read_with_another_isolation() -> None:
    async def scenario(consumer: Consumer) -> None:
        await consumer.open()
        consumer.isolation = Isolation.READ_COMMITTED
        assert await consumer.fetch() == {}
        await append(consumer.node, 4)
        assert list(await consumer.fetch()) == [4]

    play(scenario)
