"""Produce: appends batches to logs.

Batches are not opened here, unless their topic has rules on their content (topic_rules.py) or stores each message once
(`dedup.window.ms`, see `penstock.node.dedup.deduplication`). The first batch of a transaction on a partition waits for
the transaction's coordinator (admissions.py).
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import NamedTuple
from uuid import UUID

import msgspec

from penstock.batch import BatchHeader, check_produced
from penstock.batch.header import CODEC_MASK, LENGTH_OVERHEAD, TRANSACTIONAL_BIT
from penstock.errors import ErrorCode, KafkaError, RefusedRecords, StorageError
from penstock.kafka.handlers.admissions import Admissions, ProducerNotAdmitted
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.leading import MOVED, Hints
from penstock.kafka.handlers.topic_rules import TopicRules
from penstock.kafka.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from penstock.log import Appended
from penstock.node import Partition
from penstock.node.exclusive_producers import Writer

ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1

LOWEST_VERSION = 3
"""Older versions carry record formats 0 and 1, which are gone since Kafka 4."""
ZSTD = 4
ZSTD_SINCE_VERSION = 7

STILL_LOADING = "its new leader still reads message ids back (dedup.window.ms)"
NO_COORDINATOR = "the coordinator of the transaction has not answered in time"

SLICE_BATCHES = 250
"""Batches that are appended without a pause: one takes about 50 µs, and a request of 7 MB can hold 100,000."""

HINTED_ROWS = 1_000
"""Finding a leader takes about 20 µs."""

_Waiting = list[tuple[PartitionProduceResponse, asyncio.Future[None]]]


def produce(
    context: RequestContext, request: ProduceRequest
) -> ProduceResponse | Coroutine[None, None, ProduceResponse | None] | None:
    """All batches are appended before this returns; the coroutine waits for their commits. The exceptions are
    partitions whose new leader still reads message ids back, the first batches of transactions, and requests with very
    many batches: then the coroutine appends, and no later request overtakes it."""
    work = _Production(context, request, TopicRules())
    if sum([1 + len(topic.partition_data) for topic in request.topic_data]) > SLICE_BATCHES:
        return work.append_in_slices(context.connection.hold())
    response = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    work.append(topic.name, topic.topic_id, data, PartitionProduceResponse(index=data.index))
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )
    if work.delayed:
        return work.append_delayed(response, context.connection.hold())
    if work.waiting:
        return _await_commits(context, response, work.waiting, request.timeout_ms)
    return work.conclude(response)


class _Delayed(NamedTuple):
    """A batch for a partition that still reads its message ids back, until `loaded`; None: a transaction's first batch,
    about which the coordinator is asked."""

    loaded: asyncio.Future[None] | None
    row: PartitionProduceResponse
    name: str
    topic_id: UUID
    data: PartitionProduceData
    checked: tuple[memoryview, BatchHeader] | None = None
    """The batch, if nothing has changed it since it was checked."""


class _StillLoading(Exception):
    """The partition's message ids are being read back, until `loaded`."""

    def __init__(self, loaded: asyncio.Future[None]) -> None:
        self.loaded = loaded


class _Production(msgspec.Struct):
    """One request while it is served."""

    context: RequestContext
    request: ProduceRequest
    rules: TopicRules
    waiting: _Waiting = []
    """Rows whose batches are not committed yet."""
    delayed: list[_Delayed] = []
    admissions: Admissions | None = None
    """None while the request has no transactional batch."""

    def append(
        self,
        name: str,
        topic_id: UUID,
        data: PartitionProduceData,
        row: PartitionProduceResponse,
        checked: tuple[memoryview, BatchHeader] | None = None,
    ) -> PartitionProduceResponse:
        """Appends one partition's batch, if that can be done now, and fills its row of the response. `checked`: the
        batch, if it was delayed after it had been checked."""
        context, acks = self.context, self.request.acks
        try:
            if acks not in (ACKS_ALL, ACKS_LEADER, ACKS_NONE):
                raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={acks}: expected 0, 1 or -1 (all)")
            partition = context.node.resources.partition(
                context.caller, name, topic_id, data.index, context.api.on_topic, writes=True
            )
            if acks == ACKS_ALL:
                partition.check_in_sync()
            checked = checked or _checked(data, partition, context.api_version)
            batch, header = checked
            if header.attributes & TRANSACTIONAL_BIT:
                self._check_admitted(partition, header)
            if partition.config.exclusive_producer:
                appended = self._store_exclusively(partition, batch, header)
            else:
                appended = self._store(partition, batch, header)
        except _StillLoading as loading:
            self.delayed.append(_Delayed(loading.loaded, row, name, topic_id, data))
            return row
        except ProducerNotAdmitted:
            self.delayed.append(_Delayed(None, row, name, topic_id, data, checked))
            return row
        except KafkaError as mistake:
            row.base_offset, row.error_code, row.error_message = -1, mistake.code, mistake.message
            if isinstance(mistake, RefusedRecords):
                row.record_errors = _name_records(mistake)
            return row
        except StorageError as refused:
            code = ErrorCode.KAFKA_STORAGE_ERROR
            row.base_offset, row.error_code, row.error_message = -1, code, str(refused)
            return row
        row.base_offset = appended.base_offset
        row.log_append_time_ms = appended.timestamp_ms
        row.log_start_offset = partition.start_offset
        # A producer that hears of a message sent before must be able to rely on it: it is committed first.
        if acks == ACKS_ALL or (
            acks == ACKS_LEADER and appended.duplicate and partition.config.dedup_window_ms > 0
        ):
            committed = partition.committed_at(appended)
            if committed is not None:
                self.waiting.append((row, committed))
        return row

    async def append_in_slices(self, let_go: Callable[[], None]) -> ProduceResponse | None:
        """Lets others run after every SLICE_BATCHES batches."""
        response, count = ProduceResponse(responses=[]), 0
        try:
            for topic in self.request.topic_data:
                answer = TopicProduceResponse(
                    name=topic.name, topic_id=topic.topic_id, partition_responses=[]
                )
                response.responses.append(answer)
                for data in topic.partition_data:
                    row = PartitionProduceResponse(index=data.index)
                    answer.partition_responses.append(self.append(topic.name, topic.topic_id, data, row))
                    count += 1
                    if count % SLICE_BATCHES == 0:
                        await asyncio.sleep(0)
                count += 1  # there may be topics without batches
                if count % SLICE_BATCHES == 0:
                    await asyncio.sleep(0)
            if self.delayed:
                return await self.append_delayed(response, let_go)
        finally:
            let_go()
        if self.waiting:
            return await _await_commits(self.context, response, self.waiting, self.request.timeout_ms)
        return self.conclude(response)

    async def append_delayed(
        self, response: ProduceResponse, let_go: Callable[[], None]
    ) -> ProduceResponse | None:
        """Appends the delayed batches when their partitions have loaded and the coordinators of transactions have
        answered, or when the request's timeout ends. A batch may be delayed again: see `led_partitions.py`, (2)."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max(self.request.timeout_ms, 1) / 1000
        try:
            while self.delayed:
                delayed, self.delayed = self.delayed, []
                await self._wait_for(delayed, deadline - loop.time())
                for one in delayed:
                    self.append(one.name, one.topic_id, one.data, one.row, one.checked)
                if loop.time() >= deadline:
                    break
            for one in self.delayed:
                # Clients try that again, and need not look for another leader.
                one.row.base_offset, one.row.error_code = -1, ErrorCode.NOT_ENOUGH_REPLICAS
                one.row.error_message = STILL_LOADING if one.loaded is not None else NO_COORDINATOR
        finally:
            let_go()
        if self.waiting:
            return await _await_commits(self.context, response, self.waiting, self.request.timeout_ms)
        return self.conclude(response)

    async def _wait_for(self, delayed: list[_Delayed], timeout_seconds: float) -> None:
        waits: set[asyncio.Future[None]] = {one.loaded for one in delayed if one.loaded is not None}
        asking = None
        if self.admissions is not None:
            asking = asyncio.get_running_loop().create_task(self.admissions.ask())
            waits.add(asking)
        try:
            await asyncio.wait(waits, timeout=max(timeout_seconds, 0))
        finally:
            if asking is not None and not asking.done():
                asking.cancel()
        if asking is not None and asking.done():
            asking.result()

    def _check_admitted(self, partition: Partition, header: BatchHeader) -> None:
        if self.admissions is None:
            self.admissions = Admissions(self.context, self.request)
        self.admissions.check(partition, header)

    def conclude(self, response: ProduceResponse) -> ProduceResponse | None:
        """The response when nothing is left to wait for."""
        if self.request.acks == ACKS_NONE:
            _fail_unanswered(response)
            return None
        return _with_hints(self.context, response)

    def _store_exclusively(self, partition: Partition, batch: memoryview, header: BatchHeader) -> Appended:
        context, node = self.context, self.context.node
        writer = Writer(context.connection, context.caller.client_id, header.producer_id)
        node.exclusive.check(partition.name, partition.group, partition.term, writer)
        appended = self._store(partition, batch, header)
        node.exclusive.take(partition.group, partition.term, writer, node.clock.wall_ms())
        return appended

    def _store(self, partition: Partition, batch: memoryview, header: BatchHeader) -> Appended:
        node, config = self.context.node, partition.config
        if not config.dedup_window_ms:
            batch, header = self.rules.apply(batch, header, config, node.clock.wall_ms())
            return partition.append(batch, header)
        memory = node.dedup.of(partition)
        if memory.loading is not None:
            raise _StillLoading(memory.loading)
        batch, header = self.rules.apply(batch, header, config, node.clock.wall_ms())
        most = self.rules.inflatable(config)
        return memory.append(batch, header, self.rules.message_ids(batch, header, config), most)


def _name_records(refused: RefusedRecords) -> list[BatchIndexAndErrorMessage]:
    return [
        BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=reason)
        for index, reason in refused.reasons.items()
    ]


def _with_hints(context: RequestContext, response: ProduceResponse) -> ProduceResponse:
    """Adds the current leader to each refusal that sends the client to another node; of very many, to the first ones:
    without a hint, clients ask for metadata."""
    rows = [
        (topic, row)
        for topic in response.responses
        for row in topic.partition_responses
        if row.error_code in MOVED
    ]
    if not rows:
        return response
    hints = Hints(context)
    for topic, row in rows[:HINTED_ROWS]:
        if (hint := hints.find(row.error_code, topic.name, topic.topic_id, row.index)) is not None:
            row.current_leader = LeaderIdAndEpoch(leader_id=hint.leader.node_id, leader_epoch=hint.epoch)
    response.node_endpoints = [
        NodeEndpoint(node_id=one.node_id, host=one.host, port=one.port, rack=one.rack)
        for one in hints.leaders()
    ]
    return response


def _checked(
    data: PartitionProduceData, partition: Partition, api_version: int
) -> tuple[memoryview, BatchHeader]:
    """The one batch that a partition's data may hold, checked."""
    if api_version < LOWEST_VERSION:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION, f"Produce v{api_version}: expected v{LOWEST_VERSION} or newer"
        )
    if not data.records:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"{partition.name}: expected one record batch, found none")
    batch = memoryview(data.records)
    header = check_produced(batch)
    size, attributes = LENGTH_OVERHEAD + header.batch_length, header.attributes
    if size != len(batch):
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"{partition.name}: expected one record batch, found bytes after it"
        )
    if size > partition.config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"{partition.name}: a batch of {size} bytes, expected at most "
            f"max.message.bytes={partition.config.max_message_bytes}",
        )
    if attributes & CODEC_MASK == ZSTD and api_version < ZSTD_SINCE_VERSION:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce v{ZSTD_SINCE_VERSION} or newer"
        )
    return batch, header


async def _await_commits(
    context: RequestContext, response: ProduceResponse, waiting: _Waiting, timeout_ms: int
) -> ProduceResponse:
    """Waits for all commits. A batch that is not committed in time gets REQUEST_TIMED_OUT, and may still commit."""
    timer = asyncio.get_running_loop().call_later(max(timeout_ms, 1) / 1000, _time_out, waiting, timeout_ms)
    try:
        for answer, committed in waiting:
            try:
                await committed
            except KafkaError as mistake:
                answer.error_code, answer.error_message = mistake.code, mistake.message
            except StorageError as refused:
                answer.error_code, answer.error_message = ErrorCode.KAFKA_STORAGE_ERROR, str(refused)
    finally:
        timer.cancel()
    return _with_hints(context, response)


def _time_out(waiting: _Waiting, timeout_ms: int) -> None:
    late = KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"not committed within {timeout_ms} ms; it may be later")
    for _, committed in waiting:
        if not committed.done():
            committed.set_exception(late)


def _fail_unanswered(response: ProduceResponse) -> None:
    """With acks=0 there is no answer to carry an error: closing the connection is how Kafka tells the producer."""
    for topic in response.responses:
        for answer in topic.partition_responses:
            if answer.error_code:
                raise KafkaError(ErrorCode(answer.error_code), f"acks=0: {answer.error_message}")
