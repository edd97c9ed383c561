"""CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords.

A request may name many topics; each succeeds or fails by itself, and all that succeed are committed together.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from uuid import uuid4

from penstock.cluster import (
    ClusterState,
    MetadataRecord,
    NewTopic,
    PartitionsAdded,
    PlacementRules,
    Topic,
    TopicCreated,
    TopicDeleted,
    decisions,
)
from penstock.config import TOPIC_CONFIGS
from penstock.errors import CorruptLog, ErrorCode, KafkaError, StorageError
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.offsets import FLUSH_WAIT_SECONDS
from penstock.kafka.handlers.rows import SLICE_ROWS, ResponseRows
from penstock.kafka.wire import NO_UUID
from penstock.kafka.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from penstock.kafka.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.kafka.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from penstock.kafka.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from penstock.node import Node, Partition
from penstock.node.access import Mutations
from penstock.types import Offset

log = logging.getLogger("penstock.kafka")

Records = Sequence[MetadataRecord]

DECIDED_IN_LOOP = 200
"""Partitions. A new topic takes the event loop some 100 µs, each of its partitions up to 30 µs."""

CONFIGS_SINCE_VERSION = 5
"""The response of CreateTopics has each topic's configs since then."""

CREATE_STRICT_SINCE, DELETE_STRICT_SINCE, GROW_STRICT_SINCE = 6, 5, 3
"""Since these versions of CreateTopics, DeleteTopics and CreatePartitions, clients know THROTTLING_QUOTA_EXCEEDED."""

ALL_RECORDS = -1
"""Instead of an offset, in DeleteRecords."""


Decision = Callable[[ClusterState, PlacementRules], Records]


class _Change:
    """Several decisions of one request, committed together; each one's error stays its own."""

    def __init__(self, node: Node, mutations: Mutations, *, validate_only: bool = False) -> None:
        self._node = node
        self.mutations = mutations
        self.validate_only = validate_only
        self._wanted: list[tuple[int, Decision]] = []
        self._partitions = 0
        self.errors: dict[int, KafkaError] = {}
        self.decided: dict[int, Records] = {}

    def add(self, index: int, decide: Decision, partitions: int = 1) -> None:
        """`partitions`: so many are placed."""
        self._wanted.append((index, decide))
        self._partitions += max(1, partitions)

    def refuse(self, index: int, error: KafkaError) -> None:
        """Without its traceback, which holds frames: of thousands of refusals they would be much garbage to search."""
        self.errors[index] = error.with_traceback(None)

    async def commit(self) -> None:
        try:
            await self._node.metadata.change(self._decide)
        except KafkaError as refused:  # not the controller, or no longer
            self.errors |= {index: refused for index, _ in self._wanted if index not in self.errors}
        except StorageError as refused:
            error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(refused))
            self.errors |= dict.fromkeys(self.decided, error)

    def _decide(self, state: ClusterState) -> Records | Awaitable[Records]:
        """On a copy, where each decision sees the results of those before it: used limits, names that collide. Many
        decisions are made in a thread."""
        trial, rules = state.copy(), self._node.controller.rules
        if self._partitions <= DECIDED_IN_LOOP:
            return self._decide_all(trial, rules)
        return asyncio.get_running_loop().run_in_executor(None, self._decide_all, trial, rules)

    def _decide_all(self, trial: ClusterState, rules: PlacementRules) -> Records:
        records: list[MetadataRecord] = []
        for index, decide in self._wanted:
            try:
                decided = decide(trial, rules)
                self.mutations.count(sum(_mutated(trial, record) for record in decided))
            except KafkaError as mistake:
                self.refuse(index, mistake)
                continue
            self.decided[index] = decided
            for record in decided:
                trial.apply(record)
            records.extend(decided)
        return [] if self.validate_only else records

    def succeeded(self, names: Iterable[str]) -> list[str]:
        """Those of the request's topics, in its order, whose change was committed."""
        return [
            name for index, name in enumerate(names) if index in self.decided and index not in self.errors
        ]


def _mutations(context: RequestContext, strict_since: int) -> Mutations:
    return context.node.quotas.mutations(context.caller, strict=context.api_version >= strict_since)


def _mutated(state: ClusterState, record: MetadataRecord) -> int:
    """How many partitions a record creates or deletes; `state` is the one before it."""
    match record:
        case TopicCreated(assignments=placed) | PartitionsAdded(assignments=placed):
            return len(placed)
        case TopicDeleted(topic_id=topic_id) if (topic := state.topic_by_id(topic_id)) is not None:
            return topic.partitions
        case _:
            return 0


async def _led(node: Node, change: _Change, topics: Iterable[str], timeout_ms: int) -> None:
    """Returns when clients can use the new partitions, or after the request's timeout: they exist in any case."""
    created = [] if change.validate_only else change.succeeded(topics)
    await node.new_partitions.known_everywhere(created, max(timeout_ms, 0) / 1000)


def _twice(names: Iterable[str]) -> set[str]:
    """Names that a request has more than once; they are refused, because which of them counts would be a guess."""
    return {name for name, count in Counter(names).items() if count > 1}


def _duplicate(name: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, f"topic {name!r} is in the request more than once")


# --- CreateTopics


async def create_topics(context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    change = _Change(
        context.node, _mutations(context, CREATE_STRICT_SINCE), validate_only=request.validate_only
    )
    twice = _twice(topic.name for topic in request.topics)
    rows = ResponseRows(context)
    for index, topic in enumerate(request.topics):
        try:
            context.node.resources.check_create_topic(context.caller, topic.name)
            if topic.name in twice:
                raise _duplicate(topic.name)
            rows.reserve(1)
            change.add(index, _creation(topic), max(topic.num_partitions, len(topic.assignments)))
        except KafkaError as refused:
            change.refuse(index, refused)
        await rows.pause()
    await change.commit()
    await _led(context.node, change, (topic.name for topic in request.topics), request.timeout_ms)
    response = CreateTopicsResponse(throttle_time_ms=change.mutations.throttle_ms, topics=[])
    for index, topic in enumerate(request.topics):
        response.topics.append(result := _created(topic, index, change))
        if context.api_version >= CONFIGS_SINCE_VERSION and result.error_code == ErrorCode.NONE:
            _describe(context, result, _created_record(change, index), rows)
            await rows.pause(len(TOPIC_CONFIGS))
        await rows.pause()
    return response


def _creation(topic: CreatableTopic) -> Decision:
    new_topic = NewTopic(
        name=topic.name,
        topic_id=uuid4(),
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments={row.partition_index: row.broker_ids for row in topic.assignments},
        configs={config.name: config.value for config in topic.configs},
    )
    return lambda state, rules: decisions.create_topic(state, new_topic, rules)


def _created(topic: CreatableTopic, index: int, change: _Change) -> CreatableTopicResult:
    error = change.errors.get(index)
    if error is not None:
        return CreatableTopicResult(
            name=topic.name, error_code=error.code, error_message=error.message, configs=None
        )
    record = _created_record(change, index)
    return CreatableTopicResult(
        name=topic.name,
        topic_id=record.topic_id,
        error_code=ErrorCode.NONE,
        num_partitions=len(record.assignments),
        replication_factor=len(record.assignments[0]),
    )


def _created_record(change: _Change, index: int) -> TopicCreated:
    record = change.decided[index][0]
    assert isinstance(record, TopicCreated)
    return record


def _describe(
    context: RequestContext, result: CreatableTopicResult, record: TopicCreated, rows: ResponseRows
) -> None:
    """Adds the topic's configs, if the response has room for them: the topic exists in any case."""
    try:
        rows.reserve(len(TOPIC_CONFIGS))
    except KafkaError as refused:
        result.configs, result.topic_config_error_code = None, refused.code
        return
    result.configs = [
        CreatableTopicConfigs(
            name=entry.name,
            value=entry.value,
            read_only=entry.read_only,
            config_source=entry.source,
            is_sensitive=entry.sensitive,
        )
        for entry in context.node.resources.topic_configs(record.configs)
    ]


# --- DeleteTopics


async def delete_topics(context: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    # Newer versions have `topics`, older ones `topic_names`.
    wanted = request.topics or [DeleteTopicState(name=name) for name in request.topic_names]
    change = _Change(context.node, _mutations(context, DELETE_STRICT_SINCE))
    rows = ResponseRows(context)
    found: dict[int, Topic] = {}
    for index, topic in enumerate(wanted):
        try:
            rows.reserve(1)
            found[index] = context.named_topic(topic.name, topic.topic_id)
        except KafkaError as mistake:
            change.refuse(index, mistake)
        await rows.pause()
    twice = _twice(topic.name for topic in found.values())
    for index, known in found.items():
        if known.name in twice:
            change.refuse(index, _duplicate(known.name))
        else:
            change.add(index, _deletion(known.name))
        await rows.pause()
    await change.commit()
    response = DeleteTopicsResponse(throttle_time_ms=change.mutations.throttle_ms, responses=[])
    for index, topic in enumerate(wanted):
        response.responses.append(_deleted(topic, found.get(index), change.errors.get(index)))
        await rows.pause()
    return response


def _deletion(name: str) -> Decision:
    return lambda state, _: decisions.delete_topic(state, name)


def _deleted(wanted: DeleteTopicState, topic: Topic | None, error: KafkaError | None) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=topic.name if topic is not None else wanted.name,
        topic_id=topic.topic_id if topic is not None else wanted.topic_id,
        error_code=error.code if error is not None else ErrorCode.NONE,
        error_message=error.message if error is not None else None,
    )


# --- CreatePartitions


async def create_partitions(
    context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    change = _Change(
        context.node, _mutations(context, GROW_STRICT_SINCE), validate_only=request.validate_only
    )
    twice = _twice(topic.name for topic in request.topics)
    rows = ResponseRows(context)
    for index, topic in enumerate(request.topics):
        try:
            rows.reserve(1)
            context.check_topic_name(topic.name)
            if topic.name in twice:
                raise _duplicate(topic.name)
            change.add(index, _growth(topic), topic.count)
        except KafkaError as refused:
            change.refuse(index, refused)
        await rows.pause()
    await change.commit()
    await _led(context.node, change, (topic.name for topic in request.topics), request.timeout_ms)
    response = CreatePartitionsResponse(throttle_time_ms=change.mutations.throttle_ms, results=[])
    for index, topic in enumerate(request.topics):
        response.results.append(_grown(topic, change.errors.get(index)))
        await rows.pause()
    return response


def _growth(topic: CreatePartitionsTopic) -> Decision:
    assignments = None if topic.assignments is None else [row.broker_ids for row in topic.assignments]
    return lambda state, rules: decisions.create_partitions(
        state, topic.name, topic.count, rules, assignments
    )


def _grown(topic: CreatePartitionsTopic, error: KafkaError | None) -> CreatePartitionsTopicResult:
    if error is None:
        return CreatePartitionsTopicResult(name=topic.name, error_code=ErrorCode.NONE)
    return CreatePartitionsTopicResult(name=topic.name, error_code=error.code, error_message=error.message)


# --- DeleteRecords


async def delete_records(context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Answers when the replicas know too: no reader should see deleted records again after a change of leader."""
    wanted = [(topic.name, row) for topic in request.topics for row in topic.partitions]
    results: list[DeleteRecordsPartitionResult] = []
    for start in range(0, len(wanted), SLICE_ROWS):
        part = wanted[start : start + SLICE_ROWS]
        results += await asyncio.gather(
            *(_delete_before(context, name, row, request.timeout_ms) for name, row in part)
        )
    answered = iter(results)
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(name=topic.name, partitions=[next(answered) for _ in topic.partitions])
            for topic in request.topics
        ]
    )


async def _delete_before(
    context: RequestContext, topic: str, wanted: DeleteRecordsPartition, timeout_ms: int
) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(partition_index=wanted.partition_index, low_watermark=-1)
    try:
        partition = context.node.resources.partition(
            context.caller, topic, NO_UUID, wanted.partition_index, context.api.on_topic, writes=True
        )
        if not (partition.config.cleanup_delete or partition.config.cleanup_acked):
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION, f"{topic}: its cleanup.policy has neither delete nor acked"
            )
        await _flush_first(partition, wanted.offset, timeout_ms)
        low_watermark = partition.delete_records(Offset(wanted.offset))
        async with asyncio.timeout(max(timeout_ms, 1) / 1000):
            await partition.start_is_known()
        result.low_watermark = low_watermark
    except TimeoutError:
        result.error_code = ErrorCode.REQUEST_TIMED_OUT
    except KafkaError as mistake:
        result.error_code = mistake.code
    except (StorageError, CorruptLog) as trouble:
        log.error("delete records: %s", trouble)
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    return result


async def _flush_first(partition: Partition, before: int, timeout_ms: int) -> None:
    """Waits for the flush of the records to delete: their producers may have an answer already, and a log deletes only
    what it has flushed."""
    if before == ALL_RECORDS:
        end = partition.high_watermark if partition.is_replicated else partition.log.end_offset
    else:
        end = Offset(before)
    with suppress(TimeoutError):
        async with asyncio.timeout(min(max(timeout_ms, 1) / 1000, FLUSH_WAIT_SECONDS)):
            await partition.flushed_to(end)
