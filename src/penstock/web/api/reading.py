"""Reading one partition from an offset or a time on, without a group: the broker stores no position, and the caller
keeps `next_offset`.

Three limits: `max_records`, `max_bytes` (of keys, values and headers; the first record is always returned, however
large it is) and `wait_ms`, the time that an empty response is held back. With `isolation=read_committed` the reader
sees no record from the first open transaction on, and none of aborted ones. Batches are unpacked in a thread, up to
UNPACKED_BYTES_MAX each.
"""

import asyncio
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request

from penstock.batch import BatchHeader, Record, iter_headers, read_records
from penstock.batch.fetched_aborts import AbortedBatches
from penstock.errors import BatchError, ErrorCode
from penstock.kafka.handlers.inner_client import InnerClient
from penstock.kafka.handlers.leader_offsets import EARLIEST, LATEST, NOT_FOUND, get_offsets
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from penstock.node import Node
from penstock.types import Isolation, Operation
from penstock.web.api.bodies import reserve
from penstock.web.api.expected import EXPECTED
from penstock.web.api.payloads import Encoding, RecordOut, record_out
from penstock.web.api.problems import Problem, check, refused, wrong
from penstock.web.api.routing import OFFLOAD_FROM_BYTES, Answer, Call, offloaded
from penstock.web.api.topics import TopicName, find_topic

MAX_RECORDS = 10_000
MAX_BYTES = 8 * 1024 * 1024
MAX_WAIT_MS = 30_000
"""Less than most proxies wait for a response."""
UNPACKED_BYTES_MAX = 64 * 1024 * 1024
"""The most that one batch may unpack to: a few kilobytes can become a hundred megabytes, in many requests at once."""

T = TypeVar("T")

WORDS = {"earliest": EARLIEST, "latest": LATEST}


StartOffset = Annotated[
    str,
    Meta(
        pattern=r"^(earliest|latest|[0-9]{1,18})$",
        extra={EXPECTED: "an offset from 0 on, `earliest` or `latest`"},
    ),
]


IsolationName = Literal["read_uncommitted", "read_committed"]


class ReadParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From `offset` (a number, earliest or latest), or from the first record that is not older than `timestamp_ms`."""

    topic: TopicName
    partition: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    offset: StartOffset | UnsetType = UNSET
    timestamp_ms: Annotated[int, Meta(ge=0, le=2**62)] | UnsetType = UNSET
    max_records: Annotated[int, Meta(ge=1, le=MAX_RECORDS)] = 100
    max_bytes: Annotated[int, Meta(ge=1, le=MAX_BYTES)] = 1024 * 1024
    wait_ms: Annotated[int, Meta(ge=0, le=MAX_WAIT_MS)] = 0
    encoding: Encoding = "json"
    isolation: IsolationName = "read_uncommitted"

    @property
    def isolation_level(self) -> Isolation:
        return Isolation[self.isolation.upper()]


class RecordsRead(msgspec.Struct, frozen=True, kw_only=True):
    """Read on at `next_offset`. At `high_watermark` there is nothing yet; for readers of committed records at
    `last_stable_offset`, which only they get."""

    topic: str
    partition: int
    records: list[RecordOut]
    next_offset: int
    high_watermark: int
    log_start_offset: int
    last_stable_offset: int | UnsetType = UNSET


class Reading:
    """Reads records."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def read_records(self, call: Call[ReadParams, None]) -> Answer[RecordsRead]:
        params = call.params
        if params.offset is not UNSET and params.timestamp_ms is not UNSET:
            raise wrong("timestamp_ms", "expected offset or timestamp_ms, not both")
        self._check_partition(call)
        offset = await self._start(call.client, params)
        work = asyncio.ensure_future(self.fetch(call.client, params, offset))
        found = await while_wanted(call.request, work)
        data = fetched_bytes(found)
        reserve(call.reserved, max(0, len(data) - call.reserved.bytes))  # the others were read by this node
        return Answer(
            200, await offloaded(OFFLOAD_FROM_BYTES if data else 0, _told, params, offset, found, data)
        )

    def _check_partition(self, call: Call[ReadParams, None]) -> None:
        params = call.params
        topic = find_topic(self._node, call.caller, params.topic, Operation.READ)
        if params.partition >= topic.partitions:
            message = (
                f"there is no partition {params.partition}: {params.topic} has {topic.partitions}, from 0 on"
            )
            raise refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message, "partition")

    async def _start(self, client: InnerClient, params: ReadParams) -> int:
        if params.timestamp_ms is not UNSET:
            offset = await self._find(client, params, params.timestamp_ms)
            return offset if offset != NOT_FOUND else await self._find(client, params, LATEST)
        asked = "earliest" if params.offset is UNSET else params.offset
        return await self._find(client, params, WORDS[asked]) if asked in WORDS else int(asked)

    async def _find(self, client: InnerClient, params: ReadParams, timestamp: int) -> int:
        found = await get_offsets(client, params.topic, [params.partition], timestamp, params.isolation_level)
        return found[params.partition]

    async def fetch(self, client: InnerClient, params: ReadParams, offset: int) -> PartitionData:
        """Stored batches from the partition's leader. Problem: it has no such offset."""
        wanted = FetchPartition(
            partition=params.partition, fetch_offset=offset, partition_max_bytes=params.max_bytes
        )
        request = FetchRequest(
            max_wait_ms=params.wait_ms,
            min_bytes=1,
            max_bytes=params.max_bytes,
            isolation_level=params.isolation_level,
            topics=[FetchTopic(topic=params.topic, partitions=[wanted])],
        )
        answer = await client.ask_role(
            client.leader_role(params.topic, params.partition),
            ApiKey.FETCH,
            request,
            FetchResponse,
            lambda answer: answer.responses[0].partitions[0].error_code,
        )
        found = answer.responses[0].partitions[0]
        if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise await self._out_of_range(client, params, offset)
        check(found.error_code, None)
        return found

    async def _out_of_range(self, client: InnerClient, params: ReadParams, offset: int) -> Problem:
        first, last = await self._find(client, params, EARLIEST), await self._find(client, params, LATEST)
        message = f"offset {offset} is not there: expected {first} to {last}, earliest or latest"
        return refused(ErrorCode.OFFSET_OUT_OF_RANGE, message, "offset")


async def while_wanted(request: Request, work: "asyncio.Task[T]") -> T:
    """The result of the work, which is cancelled when its caller disconnects or the node stops."""
    gone = asyncio.ensure_future(_gone(request))
    stopping = asyncio.ensure_future(request.app.state.stopping.wait())
    try:
        await asyncio.wait({work, gone, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise Problem(503, "not_ready", "the node is stopping; ask another one")
        return work.result()
    finally:
        for task in (gone, stopping, work):
            task.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def fetched_bytes(found: PartitionData) -> bytes:
    records = found.records or b""
    return b"".join(records) if isinstance(records, list | tuple) else bytes(records)


def _told(params: ReadParams, offset: int, found: PartitionData, data: bytes) -> bytes:
    """Unpacks the batches one by one, until there are enough records. A batch that does not unpack ends the response
    before it; if it is the first, it is the error."""
    records: list[RecordOut] = []
    remaining = params.max_bytes
    next_offset = offset
    aborted = AbortedBatches((one.producer_id, one.first_offset) for one in found.aborted_transactions or ())
    for position, header in iter_headers(data):
        try:
            is_left_out = aborted.covers(header) or header.control
            opened = [] if is_left_out else read_records(data, position, max_bytes=UNPACKED_BYTES_MAX)
        except BatchError as trouble:
            if not records:
                raise _unreadable(header, trouble) from None
            break
        for record in opened:
            if record.offset < offset:
                continue
            size = _size(record)
            if records and (size > remaining or len(records) >= params.max_records):
                return _encoded(params, found, records, record.offset)
            remaining -= size
            records.append(record_out(record, params.encoding))
        next_offset = max(next_offset, header.next_offset)
    return _encoded(params, found, records, next_offset)


def _unreadable(header: BatchHeader, trouble: BatchError) -> Problem:
    message = (
        f"the batch at offset {header.base_offset} does not unpack to records within {UNPACKED_BYTES_MAX} bytes "
        f"({trouble}); read on at offset {header.next_offset}"
    )
    return Problem(422, "unreadable_batch", message, "offset")


def _size(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def _encoded(params: ReadParams, found: PartitionData, records: list[RecordOut], next_offset: int) -> bytes:
    answer = RecordsRead(
        topic=params.topic,
        partition=params.partition,
        records=records,
        next_offset=next_offset,
        high_watermark=found.high_watermark,
        log_start_offset=found.log_start_offset,
        last_stable_offset=found.last_stable_offset if params.isolation_level else UNSET,
    )
    return msgspec.json.encode(answer)
