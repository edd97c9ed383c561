"""Publishing: records of one request become one batch for each partition, acked when a majority has them on disk.

    a partition is named     it goes there
    a key                    to the partition of the key, by the hash that all Kafka clients share
    a message id             to the partition of the id, by the same hash: ids are remembered partition by partition
    none of these            to the partitions in turn

All records of a request that go to one partition are stored together or not at all, in their order, with consecutive
offsets. One partition may succeed and another fail, so the response lists every record: 200 if all are stored, 207 if
some are. If none is, the response is the error of the first.

If a leader has moved, the batch goes to the new leader, as long as nothing can have been stored. Once that is not
certain (`outcome_unknown`), nothing is sent twice: in topics that deduplicate, a `message_id` makes it safe for the
caller to do so.

Queues and subscriptions read their instructions for a record from its headers, which any client may set. These fields
stand for headers:

    message_id      penstock-message-id   UTF-8, at most MAX_ID_BYTES
    delay_ms        penstock-delay-ms     decimal digits in ASCII
    deliver_at_ms   penstock-deliver-at   the same: milliseconds since 1970
    ttl_ms          penstock-ttl-ms       the same
"""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.batch import Record, build_batch
from penstock.batch.producing import murmur2
from penstock.cluster import Topic
from penstock.errors import ErrorCode, KafkaError, PenstockError
from penstock.kafka.handlers.inner_client import InnerClient
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.kafka.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.node import Node
from penstock.node.calls.retry import is_retryable, may_repeat
from penstock.node.dedup.message_ids import MAX_ID_BYTES
from penstock.types import Operation
from penstock.web.api.payloads import Encoding, text_bytes, value_bytes
from penstock.web.api.problems import ErrorFacts, Problem, as_problem, check, outcome_unknown, refused, wrong
from penstock.web.api.publish_checks import check_headers
from penstock.web.api.routing import Answer, Call, offloaded
from penstock.web.api.topics import TopicName

MAX_RECORDS = 10_000
"""The most records in one request: each is a Python object while it is being encoded."""
MAX_HEADERS = 1_000
ACKS_ALL = -1
COMMIT_MS = 10_000
"""How long a batch may take until a majority of the replicas has flushed it."""
NOT_APPENDED = -1
POSITIVE = 0x7FFFFFFF

MESSAGE_ID, DELAY, DELIVER_AT, TTL = (
    "penstock-message-id",
    "penstock-delay-ms",
    "penstock-deliver-at",
    "penstock-ttl-ms",
)

PartitionNumber = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TimeMs = Annotated[int, Meta(ge=0, le=2**62)]
MessageId = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES)]
"""The limit counts characters; `_delivery_headers` counts bytes."""
HeaderName = Annotated[str, Meta(max_length=1024)]


class RecordIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One record. `value` is any JSON, or a string with the other encodings; null is no value."""

    value: msgspec.Raw
    key: str | None = None
    headers: (
        Annotated[list[tuple[HeaderName, str | None]], Meta(max_length=MAX_HEADERS)]
        | Annotated[dict[HeaderName, str | None], Meta(max_length=MAX_HEADERS)]
    ) = []
    partition: PartitionNumber | None = None
    timestamp_ms: TimeMs | None = None
    message_id: MessageId | None = None
    delay_ms: TimeMs | None = None
    deliver_at_ms: TimeMs | None = None
    ttl_ms: TimeMs | None = None


class Publication(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    records: Annotated[list[RecordIn], Meta(min_length=1, max_length=MAX_RECORDS)]
    encoding: Encoding = "json"


class PublishParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All but the topic are for a body of type application/octet-stream, which is the value of one record."""

    topic: TopicName
    key: str | UnsetType = UNSET
    key_base64: str | UnsetType = UNSET
    partition: PartitionNumber | UnsetType = UNSET
    timestamp_ms: TimeMs | UnsetType = UNSET
    message_id: MessageId | UnsetType = UNSET
    delay_ms: TimeMs | UnsetType = UNSET
    deliver_at_ms: TimeMs | UnsetType = UNSET
    ttl_ms: TimeMs | UnsetType = UNSET


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """A record's partition and offset, or why it was not stored."""

    partition: int
    offset: int | None = None
    error: ErrorFacts | None = None


class PublishedRecords(msgspec.Struct, frozen=True, kw_only=True):
    """One entry for each record, in the order of the request."""

    topic: str
    records: list[Published]


def partition_of_key(key: bytes, count: int) -> int:
    """As all Kafka clients place keys."""
    return (murmur2(key) & POSITIVE) % count


class _Row(NamedTuple):
    """A record that is to be stored."""

    partition: int | None
    record: Record


Outcome = int | Problem
"""The offset of a batch's first record, or the error."""


class Publishing:
    """Publishes records."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._turn = itertools.count()

    async def publish(self, call: Call[PublishParams, Publication]) -> Answer[PublishedRecords]:
        params = call.params
        now_ms = self._node.clock.wall_ms()
        if call.binary is not None:
            rows = [_binary_row(params, call.binary, now_ms)]
        else:
            if call.request.scope["query_string"]:
                _check_no_query(params)
            rows = await offloaded(call.reserved.bytes, _json_rows, call.body, now_ms)
        topic = self._known_topic(call) or await self._created_topic(call)
        field = "records[{}]." if call.binary is None else ""
        placed, batches = await offloaded(call.reserved.bytes, self._prepared, rows, topic, field)
        outcomes = await self._produce(call.client, topic.name, batches)
        return _receipt(topic.name, placed, outcomes)

    def _known_topic(self, call: Call[PublishParams, Publication]) -> Topic | None:
        try:
            return self._node.resources.topic(call.caller, call.params.topic, Operation.WRITE)
        except KafkaError as missing:
            if missing.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            return None

    async def _created_topic(self, call: Call[PublishParams, Publication]) -> Topic:
        """Creates a missing topic, if the broker does that for Kafka clients."""
        name = call.params.topic
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)
        [found] = (await call.client.ask(ApiKey.METADATA, request, MetadataResponse)).topics
        if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise refused(found.error_code, f"there is no topic {name!r}; POST /v1/topics makes one", "topic")
        check(found.error_code, None, "topic")
        return self._node.resources.topic(call.caller, name, Operation.WRITE)

    def _prepared(self, rows: list[_Row], topic: Topic, field: str) -> tuple[list[_Row], dict[int, bytes]]:
        """The rows with their partitions, and their batches. `field` names a record of the request."""
        check_headers([row.record for row in rows], topic.name, topic.config, field)
        placed = self._placed(rows, topic.partitions, f"{field}partition")
        return placed, _batches(placed)

    def _placed(self, rows: list[_Row], count: int, field: str) -> list[_Row]:
        """The rows with their partitions. `field` is the request's field that names one."""
        placed = []
        for index, row in enumerate(rows):
            partition = row.partition
            if partition is None:
                key = _placing_key(row.record)
                partition = next(self._turn) % count if key is None else partition_of_key(key, count)
            elif partition >= count:
                raise wrong(field.format(index), f"{partition}: expected 0 to {count - 1}")
            placed.append(_Row(partition, row.record))
        return placed

    # --- to the leaders

    async def _produce(
        self, client: InnerClient, topic: str, batches: dict[int, bytes]
    ) -> dict[int, Outcome]:
        retry = self._node.calls.retry()
        outcomes: dict[int, Outcome] = {}
        left = batches
        while left:
            answers = await self._produce_once(client, topic, left)
            late = retry.is_over
            again: dict[int, bytes] = {}
            for partition, answer in answers.items():
                if isinstance(answer, _Retryable) and not late:
                    again[partition] = left[partition]
                else:
                    outcomes[partition] = answer.problem if isinstance(answer, _Retryable) else answer
            left = again
            if left:
                await retry.pause()
        return outcomes

    async def _produce_once(
        self, client: InnerClient, topic: str, batches: dict[int, bytes]
    ) -> "dict[int, Outcome | _Retryable]":
        by_leader, unknown = self._node.calls.by_node(batches, lambda one: client.leader_role(topic, one))
        answers = {partition: _error(problem) for partition, problem in unknown.items()}
        sent = [
            self._send(client, to, topic, {partition: batches[partition] for partition in theirs})
            for to, theirs in by_leader.items()
        ]
        if len(sent) == 1:  # mostly, and a task for it would cost more than the request
            return answers | await sent[0]
        for told in await asyncio.gather(*sent):
            answers |= told
        return answers

    async def _send(
        self, client: InnerClient, to: int, topic: str, batches: dict[int, bytes]
    ) -> "dict[int, Outcome | _Retryable]":
        # In writable memory: the leader stamps batches in place.
        data = [
            PartitionProduceData(index=index, records=bytearray(batch)) for index, batch in batches.items()
        ]
        request = ProduceRequest(
            acks=ACKS_ALL,
            timeout_ms=COMMIT_MS,
            topic_data=[TopicProduceData(name=topic, partition_data=data)],
        )
        try:
            answer = await client.ask(ApiKey.PRODUCE, request, ProduceResponse, to=to, allowed_ms=COMMIT_MS)
        except PenstockError as trouble:
            return dict.fromkeys(batches, _error(trouble))
        return {row.index: _outcome(row) for row in answer.responses[0].partition_responses}


class _Retryable(NamedTuple):
    """Nothing was stored, and another attempt may succeed."""

    problem: Problem


def _outcome(row: PartitionProduceResponse) -> Outcome | _Retryable:
    if row.error_code == ErrorCode.NONE:
        return row.base_offset
    problem = refused(row.error_code, row.error_message)
    if row.base_offset != NOT_APPENDED:
        return outcome_unknown(problem.message)
    return _Retryable(problem) if is_retryable(row.error_code) else problem


def _error(trouble: PenstockError) -> Outcome | _Retryable:
    problem = as_problem(trouble)
    is_undone = isinstance(trouble, KafkaError) and may_repeat(trouble, repeatable=False)
    return _Retryable(problem) if is_undone else problem


def _receipt(topic: str, rows: Sequence[_Row], outcomes: dict[int, Outcome]) -> Answer[PublishedRecords]:
    sent: dict[int, int] = {}
    records = []
    for row in rows:
        assert row.partition is not None
        outcome = outcomes[row.partition]
        place = sent.get(row.partition, 0)
        sent[row.partition] = place + 1
        if isinstance(outcome, Problem):
            records.append(Published(partition=row.partition, error=outcome.facts))
        else:
            records.append(Published(partition=row.partition, offset=outcome + place))
    problems = [outcome for outcome in outcomes.values() if isinstance(outcome, Problem)]
    if len(problems) == len(outcomes):
        raise problems[0]
    return Answer(207 if problems else 200, PublishedRecords(topic=topic, records=records))


# --- records


def _json_rows(body: Publication, now_ms: int) -> list[_Row]:
    return [
        _json_row(record, body.encoding, f"records[{i}]", now_ms) for i, record in enumerate(body.records)
    ]


def _json_row(record: RecordIn, encoding: Encoding, where: str, now_ms: int) -> _Row:
    pairs = record.headers.items() if isinstance(record.headers, dict) else record.headers
    headers = [(name, text_bytes(value, encoding, f"{where}.headers")) for name, value in pairs]
    headers += _delivery_headers(record, where)
    built = Record(
        0,
        now_ms if record.timestamp_ms is None else record.timestamp_ms,
        text_bytes(record.key, encoding, f"{where}.key"),
        value_bytes(record.value, encoding, f"{where}.value"),
        tuple(headers),
    )
    return _Row(record.partition, built)


def _binary_row(params: PublishParams, value: bytes, now_ms: int) -> _Row:
    if params.key is not UNSET and params.key_base64 is not UNSET:
        raise wrong("key_base64", "expected key or key_base64, not both")
    key = None
    if params.key is not UNSET:
        key = params.key.encode()
    elif params.key_base64 is not UNSET:
        key = text_bytes(params.key_base64, "base64", "key_base64")
    timestamp_ms = now_ms if params.timestamp_ms is UNSET else params.timestamp_ms
    partition = None if params.partition is UNSET else params.partition
    return _Row(partition, Record(0, timestamp_ms, key, value, tuple(_delivery_headers(params, ""))))


def _delivery_headers(asked: RecordIn | PublishParams, where: str) -> list[tuple[str, bytes | None]]:
    """The headers that queues and subscriptions read."""
    given = [
        (MESSAGE_ID, asked.message_id),
        (DELAY, asked.delay_ms),
        (DELIVER_AT, asked.deliver_at_ms),
        (TTL, asked.ttl_ms),
    ]
    found: list[tuple[str, bytes | None]] = [
        (name, str(value).encode()) for name, value in given if value is not None and value is not UNSET
    ]
    names = [name for name, _ in found]
    if any(name == MESSAGE_ID and len(value or b"") > MAX_ID_BYTES for name, value in found):
        field = f"{where}.message_id" if where else "message_id"
        raise wrong(field, f"expected at most {MAX_ID_BYTES} bytes of UTF-8")
    if DELAY in names and DELIVER_AT in names:
        field = f"{where}.deliver_at_ms" if where else "deliver_at_ms"
        raise wrong(field, "expected delay_ms or deliver_at_ms, not both")
    return found


def _placing_key(record: Record) -> bytes | None:
    """The bytes whose hash decides the partition of a record without one; None: there are none."""
    if record.key is not None:
        return record.key
    ids = [value for name, value in record.headers if name == MESSAGE_ID]
    return ids[-1] if ids else None


def _check_no_query(params: PublishParams) -> None:
    for name in PublishParams.__struct_fields__:
        if name != "topic" and getattr(params, name) is not UNSET:
            raise wrong(name, "for a body of type application/octet-stream; in JSON each record has its own")


def _batches(rows: Sequence[_Row]) -> dict[int, bytes]:
    by_partition: dict[int, list[Record]] = {}
    for row in rows:
        assert row.partition is not None
        records = by_partition.setdefault(row.partition, [])
        records.append(row.record._replace(offset=len(records)))
    return {partition: build_batch(records) for partition, records in by_partition.items()}
