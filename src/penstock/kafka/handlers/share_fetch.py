"""ShareFetch and ShareAcknowledge: records leased to the consumers of a queue, and their acknowledgements.

The `queue` package decides, per partition, which consumer gets which records; this module keeps sessions and builds
responses. Acknowledgements are answered when they are durable.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from penstock.errors import CorruptLog, ErrorCode, KafkaError, StorageError
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.leading import Hints
from penstock.kafka.wire.messages import share_acknowledge as acknowledge_messages
from penstock.kafka.wire.messages.share_acknowledge import ShareAcknowledgeRequest, ShareAcknowledgeResponse
from penstock.kafka.wire.messages.share_fetch import (
    AcquiredRecords,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from penstock.node import Partition
from penstock.node.queues import Acknowledgement, Consumer, QueueDriver, ShareSession
from penstock.node.queues.consumers import ConsumerIdentity, Interface
from penstock.node.queues.local_queues import internal_topic
from penstock.node.queues.sessions import FINAL_EPOCH, OPENING_EPOCH, SessionPartition
from penstock.node.queues.waiting_consumers import woken

log = logging.getLogger("penstock.kafka")

RECORD_LIMIT_MODE = 1
MAX_RECORDS = 100_000
"""At most this many records are leased at once, whatever the consumer asks for."""
PARTITIONS_PER_TURN = 50
"""Partitions that are asked before other work gets its turn; each takes some 50 µs."""
MAX_WAIT_MS = 300_000
BATCH_SHARE = 4
"""At most a quarter of the memory is reserved for the largest batch that a topic takes; few batches are so large."""
LAST_KIND = 4
"""Gap, accept, release, reject, renew."""


class _Batch(Protocol):
    """AcknowledgementBatch, of either request."""

    first_offset: int
    last_offset: int
    acknowledge_types: list[int]


Batches = Mapping[SessionPartition, Sequence[_Batch]]


async def share_fetch(context: RequestContext, request: ShareFetchRequest) -> ShareFetchResponse:
    node = context.node
    try:
        group_id, member_id = _names(context, request.group_id, request.member_id)
        batches = _fetch_batches(request)
        session = _session(context, request, group_id, member_id, batches)
    except KafkaError as mistake:
        return ShareFetchResponse(error_code=mistake.code, error_message=mistake.message)
    acked = await _acknowledge_all(context, group_id, member_id, batches)
    attempt = _Attempt(context, request, session)
    if request.share_session_epoch == FINAL_EPOCH:
        node.queues.manager.sessions.close(session)
    elif request.max_records > 0 or request.max_bytes > 0:
        await attempt.run()
    return attempt.response(acked)


async def share_acknowledge(
    context: RequestContext, request: ShareAcknowledgeRequest
) -> ShareAcknowledgeResponse:
    node = context.node
    batches = {
        (topic.topic_id, row.partition_index): row.acknowledgement_batches
        for topic in request.topics
        for row in topic.partitions
    }
    try:
        group_id, member_id = _names(context, request.group_id, request.member_id)
        if request.share_session_epoch == OPENING_EPOCH:
            message = "share_session_epoch 0: expected that of an open session; ShareFetch opens one"
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, message)
        session = node.queues.manager.sessions.find(group_id, member_id, request.share_session_epoch)
    except KafkaError as mistake:
        return ShareAcknowledgeResponse(error_code=mistake.code, error_message=mistake.message)
    acked = await _acknowledge_all(context, group_id, member_id, batches)
    if request.share_session_epoch == FINAL_EPOCH:
        node.queues.manager.sessions.close(session)
    hints = Hints(context)
    answers: dict[UUID, list[acknowledge_messages.PartitionData]] = {}
    for (topic_id, index), error in acked.items():
        row = acknowledge_messages.PartitionData(partition_index=index)
        if error is not None:
            row.error_code, row.error_message = error.code, error.message
            leader_id, epoch = _hint(hints, error.code, topic_id, index)
            row.current_leader = acknowledge_messages.LeaderIdAndEpoch(
                leader_id=leader_id, leader_epoch=epoch
            )
        answers.setdefault(topic_id, []).append(row)
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=node.resources.queue_config(group_id).record_lock_duration_ms,
        responses=[
            acknowledge_messages.ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=rows)
            for topic_id, rows in answers.items()
        ],
        node_endpoints=[
            acknowledge_messages.NodeEndpoint(
                node_id=one.node_id, host=one.host, port=one.port, rack=one.rack
            )
            for one in hints.leaders()
        ],
    )


# --- sessions


def _names(context: RequestContext, group_id: str | None, member_id: str | None) -> tuple[str, str]:
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "group_id: expected the name of a share group")
    if not member_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "member_id: expected the id that the member joined with")
    context.check_group(group_id)
    return group_id, member_id


def _fetch_batches(request: ShareFetchRequest) -> dict[SessionPartition, Sequence[_Batch]]:
    return {
        (topic.topic_id, row.partition_index): row.acknowledgement_batches
        for topic in request.topics
        for row in topic.partitions
        if row.acknowledgement_batches
    }


def _session(
    context: RequestContext, request: ShareFetchRequest, group_id: str, member_id: str, batches: Batches
) -> ShareSession:
    sessions = context.node.queues.manager.sessions
    if request.share_session_epoch == OPENING_EPOCH:
        if batches:
            message = "acknowledgement_batches: a request that opens a session cannot acknowledge anything"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        identity = ConsumerIdentity.of(
            Interface.KAFKA,
            member_id,
            name=context.caller.client_id,
            address=context.connection.peer,
            since_ms=context.node.clock.wall_ms(),
        )
        session = sessions.open(group_id, identity)
        context.connection.when_closed(lambda: sessions.close(session))
    else:
        session = sessions.find(group_id, member_id, request.share_session_epoch)
    if request.share_session_epoch != FINAL_EPOCH:
        added = [
            (topic.topic_id, row.partition_index) for topic in request.topics for row in topic.partitions
        ]
        removed = [
            (topic.topic_id, index) for topic in request.forgotten_topics_data for index in topic.partitions
        ]
        sessions.change(session, added, removed)
    return session


# --- acknowledging


async def _acknowledge_all(
    context: RequestContext, group_id: str, member_id: str, batches: Batches
) -> dict[SessionPartition, KafkaError | None]:
    """The result of each partition's acknowledgements, when they are durable."""
    waiting: dict[SessionPartition, asyncio.Future[None] | KafkaError] = {}
    for place, rows in batches.items():
        try:
            driver = await _driver(context, group_id, place, begin=False)
            waiting[place] = driver.acknowledge(member_id, [_acknowledgement(row) for row in rows])
        except KafkaError as refused:
            waiting[place] = refused
    outcomes: dict[SessionPartition, KafkaError | None] = {}
    for place, outcome in waiting.items():
        outcomes[place] = outcome if isinstance(outcome, KafkaError) else await _outcome(outcome)
    return outcomes


def _acknowledgement(row: _Batch) -> Acknowledgement:
    count = row.last_offset - row.first_offset + 1
    if count < 1 or len(row.acknowledge_types) not in (1, count):
        message = (
            f"acknowledge_types: {len(row.acknowledge_types)} for offsets {row.first_offset} to {row.last_offset}; "
            "expected one for all, or one for each"
        )
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    if any(not 0 <= kind <= LAST_KIND for kind in row.acknowledge_types):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"acknowledge_types: expected numbers from 0 to {LAST_KIND}"
        )
    return Acknowledgement(row.first_offset, row.last_offset, bytes(row.acknowledge_types))


async def _outcome(durable: asyncio.Future[None]) -> KafkaError | None:
    try:
        await durable
    except KafkaError as refused:
        return refused
    return None


async def _driver(
    context: RequestContext, group_id: str, place: SessionPartition, *, begin: bool
) -> QueueDriver:
    resources, operation = context.node.resources, context.api.on_topic
    topic_id, index = place
    topic = resources.topic_by_id(context.caller, topic_id, operation)
    if topic.internal:
        raise internal_topic(topic.name)
    try:
        partition = resources.partition(context.caller, None, topic_id, index, operation)
        return await context.node.queues.manager.driver(group_id, topic_id, partition, begin=begin)
    except KafkaError as refused:
        if refused.code == ErrorCode.OFFSET_NOT_AVAILABLE:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, refused.message) from refused
        if refused.code == ErrorCode.GROUP_ID_NOT_FOUND:  # deleted, and all leases with it
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, refused.message) from refused
        raise


# --- fetching


class _Attempt:
    """One ShareFetch: reads the session's partitions, waits, and reads again."""

    def __init__(self, context: RequestContext, request: ShareFetchRequest, session: ShareSession) -> None:
        self._context = context
        self._node = context.node
        self._request = request
        self._session = session
        self._client = f"client {context.caller.client_id!r} at {context.connection.peer}"
        self._rows: dict[SessionPartition, PartitionData] = {}
        self._drivers: list[QueueDriver] = []
        limit = self._node.config.limits.fetch_max_bytes
        self._bytes_left = min(request.max_bytes, limit)
        self._memory = context.memory
        self._records_left = max(1, min(request.max_records or MAX_RECORDS, MAX_RECORDS))

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(self._request.max_wait_ms, MAX_WAIT_MS) / 1000
        await self._look()
        if self._bytes_left <= 0:
            return  # a consumer that cannot take anything must not be woken instead of one that can
        while not self._rows and not self._session.closed:
            if not await self._woken(deadline):
                return
            await self._look()

    async def _woken(self, deadline: float) -> bool:
        """Waits for records, or for a change of access rules: the next look finds out what is allowed."""
        consumer = Consumer()
        unwatch = self._node.access.watch(consumer.set)
        try:
            return await woken(consumer, self._drivers, self._session.member_id, deadline)
        finally:
            unwatch()

    async def _look(self) -> None:
        """Takes records for this consumer from each partition. Errors end the wait: the client gets them at once."""
        self._drivers = []
        for count, place in enumerate(list(self._session.partitions), 1):
            if count % PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)
            try:
                self._context.check_group(self._session.group_id)
                driver = await _driver(self._context, self._session.group_id, place, begin=True)
                self._drivers.append(driver)
                if not self._session.closed:
                    driver.consumers.attach(self._session.identity)
                if self._bytes_left > 0 and self._records_left > 0 and not self._session.closed:
                    await self._take(place, driver)
            except KafkaError as mistake:
                self._refuse(place, mistake)
            except (StorageError, CorruptLog) as trouble:
                log.error("share fetch: %s", trouble)
                self._refuse(place, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(trouble)))
        self._session.rotate()

    async def _take(self, place: SessionPartition, driver: QueueDriver) -> None:
        reserved, taken = await self._reserve(driver.partition), 0
        try:
            if reserved and not self._session.closed:
                taken = self._deliver(place, driver, min(self._bytes_left, reserved))
        finally:
            self._memory.resize(self._memory.bytes - reserved + taken)

    async def _reserve(self, partition: Partition) -> int:
        """Reserves memory for what may be taken from a partition, at least for one batch. A response that has records
        already does not wait for it: 0 then."""
        budget = self._memory.budget
        batch = min(partition.config.max_message_bytes, budget.max_bytes // BATCH_SHARE)
        if budget.room and batch <= budget.free:
            count = max(batch, min(self._bytes_left, budget.room))
            self._memory.take(count)
        elif self._rows:
            count = 0
        else:
            count = max(batch, budget.small)
            await self._memory.wait_for(count)
        return count

    def _deliver(self, place: SessionPartition, driver: QueueDriver, max_bytes: int) -> int:
        """Leases records to this consumer; returns their size."""
        delivery = driver.deliver(
            self._session.member_id,
            self._records_left,
            max_bytes,
            whole_batches=self._request.share_acquire_mode != RECORD_LIMIT_MODE,
            unpacks=False,
            client=self._client,
        )
        if not delivery.acquired:
            return 0
        self._bytes_left -= len(delivery.records)
        self._records_left -= sum(one.last - one.first + 1 for one in delivery.acquired)
        self._rows[place] = PartitionData(
            partition_index=place[1],
            records=delivery.records,
            acquired_records=[
                AcquiredRecords(first_offset=one.first, last_offset=one.last, delivery_count=one.deliveries)
                for one in delivery.acquired
            ],
        )
        return len(delivery.records)

    def _refuse(self, place: SessionPartition, mistake: KafkaError) -> None:
        row = PartitionData(partition_index=place[1], error_code=mistake.code, error_message=mistake.message)
        self._rows[place] = row

    def response(self, acked: Mapping[SessionPartition, KafkaError | None]) -> ShareFetchResponse:
        hints = Hints(self._context)
        answers: dict[UUID, list[PartitionData]] = {}
        for place in _all_partitions(self._rows, acked):
            topic_id, index = place
            row = self._rows.get(place) or PartitionData(partition_index=index)
            if row.records is None:
                row.records = b""
            refused = acked.get(place)
            if refused is not None:
                row.acknowledge_error_code, row.acknowledge_error_message = refused.code, refused.message
            code = row.error_code or row.acknowledge_error_code
            leader_id, epoch = _hint(hints, code, topic_id, index)
            row.current_leader = LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=epoch)
            answers.setdefault(topic_id, []).append(row)
        lease_ms = self._node.resources.queue_config(self._session.group_id).record_lock_duration_ms
        return ShareFetchResponse(
            acquisition_lock_timeout_ms=lease_ms,
            responses=[
                ShareFetchableTopicResponse(topic_id=topic_id, partitions=rows)
                for topic_id, rows in answers.items()
            ],
            node_endpoints=[
                NodeEndpoint(node_id=one.node_id, host=one.host, port=one.port, rack=one.rack)
                for one in hints.leaders()
            ],
        )


def _all_partitions(*tables: Mapping[SessionPartition, object]) -> Iterable[SessionPartition]:
    return dict.fromkeys(place for table in tables for place in table)


def _hint(hints: Hints, code: int, topic_id: UUID, index: int) -> tuple[int, int]:
    """Leader and epoch for a refusal that sends the client elsewhere; -1 otherwise."""
    hint = hints.find(code, None, topic_id, index)
    return (hint.leader.node_id, hint.epoch) if hint is not None else (-1, -1)
