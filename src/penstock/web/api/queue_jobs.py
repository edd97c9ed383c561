"""Receiving and settling the messages of a queue, one request at a time.

Each job comes with a *receipt*, which settles it on any node. A receipt is valid until the lease ends, for one delivery
from one queue: if the same consumer receives the same job again, it gets another receipt. There is no connection whose
end would return jobs to the queue, so only time does; the WebSocket `/v1/work` returns them at once.
"""

import asyncio
import base64
import binascii
from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, NamedTuple
from uuid import UUID, uuid4

import msgspec
from msgspec import Meta

from penstock.batch import unpacked_total
from penstock.errors import ErrorCode, KafkaError, PenstockError, Unanswered
from penstock.node import Node
from penstock.node.calls.messages.queues import (
    DeliveryId,
    MessageSettlement,
    ReceivedBatch,
    ReceiveRequest,
    SettleRequest,
)
from penstock.node.queues.failures import MAX_TEXT, MAX_TYPE
from penstock.queue.values import AckKind
from penstock.types import Caller, GroupId, Operation, ResourceType
from penstock.web.api.bodies import reserve
from penstock.web.api.dead_letters import QueueParams
from penstock.web.api.jobs import OpenedBatches, Range, open_jobs
from penstock.web.api.payloads import Encoding, RecordOut, record_out
from penstock.web.api.problems import ErrorFacts, as_problem, wrong
from penstock.web.api.queue_shapes import MAX_DURATION_MS
from penstock.web.api.queues import check_may_read_all, unknown_queue
from penstock.web.api.reading import MAX_WAIT_MS, while_wanted
from penstock.web.api.routing import Answer, Call, offloaded
from penstock.web.api.topics import TopicName, find_topic
from penstock.web.callers import while_allowed

MAX_JOBS = 1_000
MAX_BYTES = 1024 * 1024
MAX_PARTITIONS = 10_000
RECEIPT_VERSION = 2

ConsumerName = Annotated[str, Meta(min_length=1, max_length=249)]
ReceiptText = Annotated[str, Meta(min_length=1, max_length=3_000)]
"""Two names of 249 characters, of up to four bytes each, in base64."""
Receipts = Annotated[list[ReceiptText], Meta(max_length=MAX_JOBS)]


ErrorType = Annotated[str, Meta(max_length=MAX_TYPE)]
ErrorText = Annotated[str, Meta(max_length=MAX_TEXT)]


class Receive(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Up to `max` jobs, after up to `wait_ms` for the first; from all topics of the queue, if `topics` is left out.
    `consumer` is a name of your own, or the one of the first response. `standby`: also wait while another consumer
    holds an exclusive queue."""

    topics: Annotated[list[TopicName], Meta(min_length=1, max_length=1_000)] | None = None
    max: Annotated[int, Meta(ge=1, le=MAX_JOBS)] = 10
    wait_ms: Annotated[int, Meta(ge=0, le=MAX_WAIT_MS)] = 1_000
    encoding: Encoding = "json"
    consumer: ConsumerName | None = None
    standby: bool = False


class JobOut(RecordOut, frozen=True, kw_only=True):
    """`deliveries` counts this one, too."""

    receipt: str
    topic: str
    partition: int
    deliveries: int


class Received(msgspec.Struct, frozen=True, kw_only=True):
    queue: str
    consumer: str
    lease_ms: int
    jobs: list[JobOut]


class Retry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`delay_ms`: by default what the queue's settings say. `error_type` and `error_text` say why, for the dead
    letter."""

    receipt: ReceiptText
    delay_ms: Annotated[int, Meta(ge=0, le=MAX_DURATION_MS)] | None = None
    error_type: ErrorType = ""
    error_text: ErrorText = ""


class Rejection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`error_type` and `error_text` say why, for the dead letter."""

    receipt: ReceiptText
    error_type: ErrorType = ""
    error_text: ErrorText = ""


class SettleJobs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`accept`: done. `retry`: to be tried again. `reject`: to the dead letters. `renew`: the lease runs from now."""

    accept: Receipts = []
    retry: Annotated[list[Retry], Meta(max_length=MAX_JOBS)] = []
    reject: Annotated[list[ReceiptText | Rejection], Meta(max_length=MAX_JOBS)] = []
    renew: Receipts = []


class RefusedReceipt(msgspec.Struct, frozen=True, kw_only=True):
    receipt: str
    error: ErrorFacts


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """How many are settled, and which were refused."""

    settled: int
    refused: list[RefusedReceipt]


class JobReceipt(msgspec.Struct, frozen=True, array_like=True):
    """The content of a receipt."""

    version: int
    queue: str
    consumer: str
    topic_id: bytes
    partition: int
    offset: int
    by: DeliveryId

    @property
    def place(self) -> GroupId:
        return GroupId(UUID(bytes=self.topic_id), self.partition)

    def encode(self) -> str:
        return base64.urlsafe_b64encode(msgspec.msgpack.encode(self)).decode().rstrip("=")


class QueueJobs:
    """Receiving and settling."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._batches = OpenedBatches()

    # --- receiving

    async def receive_jobs(self, call: Call[QueueParams, Receive]) -> Answer[Received]:
        queue, wanted = call.params.queue, call.body
        names = wanted.topics or await self._topics(call.caller, queue)
        partitions = self._partitions(call.caller, names)
        consumer = wanted.consumer or f"http-{uuid4().hex}"
        client = call.request.client
        asked = ReceiveRequest(
            group_id=queue,
            consumer=consumer,
            client=f"{consumer} at {client.host}" if client is not None else "",
            partitions=list(partitions),
            max_records=wanted.max,
            max_bytes=MAX_BYTES,
            wait_ms=wanted.wait_ms,
            standby=wanted.standby,
            is_named=wanted.consumer is not None,
        )
        receiving = asyncio.ensure_future(self._node.queues.router.receive(asked, caller=call.caller))
        received = await while_allowed(
            self._node,
            lambda: self._check_topics(call.caller, queue, wanted.topics, names),
            asyncio.ensure_future(while_wanted(call.request, receiving)),
        )
        jobs = await self._opened(call, asked, partitions, received)
        lease_ms = self._node.resources.queue_config(queue).record_lock_duration_ms
        answer = Received(queue=queue, consumer=consumer, lease_ms=lease_ms, jobs=jobs)
        size = sum(len(row.records) for row in received)
        return Answer(200, await offloaded(size, msgspec.json.encode, answer))

    async def _topics(self, caller: Caller, queue: str) -> Collection[str]:
        """All topics of the queue."""
        names = await self._node.queues.overview.topics(queue, caller=caller)
        if not names:
            raise unknown_queue(queue, f"there is no queue {queue!r} yet: create it, or name `topics`")
        check_may_read_all(self._node, caller, queue, names)
        return names

    def _check_topics(
        self, caller: Caller, queue: str, named: Collection[str] | None, topics: Collection[str]
    ) -> None:
        """Refuses a caller that may not read all of these topics any more."""
        if named is None:
            check_may_read_all(self._node, caller, queue, topics)
        for name in named or ():
            self._node.resources.check(caller, Operation.READ, ResourceType.TOPIC, name)

    def _partitions(self, caller: Caller, names: Collection[str]) -> dict[GroupId, str]:
        """Partitions, and the names of their topics."""
        found: dict[GroupId, str] = {}
        for name in names:
            topic = find_topic(self._node, caller, name, Operation.READ, "topics")
            found |= {GroupId(topic.topic_id, index): name for index in range(topic.partitions)}
        if len(found) > MAX_PARTITIONS:
            raise wrong("topics", f"they have {len(found)} partitions: at most {MAX_PARTITIONS} at once")
        return found

    async def _opened(
        self,
        call: Call[QueueParams, Receive],
        asked: ReceiveRequest,
        partitions: dict[GroupId, str],
        received: Iterable[ReceivedBatch],
    ) -> list[JobOut]:
        jobs: list[JobOut] = []
        for row in received:
            reserve(call.reserved, unpacked_total(row.records))
            opened = await offloaded(
                unpacked_total(row.records), open_jobs, row.records, row.acquired, self._batches
            )
            await self._settle_unreadable(
                asked, row.partition, AckKind.REJECT, opened.unreadable, call.caller
            )
            await self._settle_unreadable(asked, row.partition, AckKind.GAP, opened.missing, call.caller)
            for record, deliveries in opened.jobs:
                receipt = JobReceipt(
                    RECEIPT_VERSION,
                    asked.group_id,
                    asked.consumer,
                    row.partition.topic_id.bytes,
                    row.partition.partition,
                    record.offset,
                    DeliveryId(row.driver_id, deliveries),
                )
                jobs.append(
                    JobOut(
                        receipt=receipt.encode(),
                        topic=partitions[row.partition],
                        partition=row.partition.partition,
                        deliveries=deliveries,
                        **msgspec.structs.asdict(record_out(record, call.body.encoding)),
                    )
                )
        return jobs

    async def _settle_unreadable(
        self, asked: ReceiveRequest, place: GroupId, kind: AckKind, ranges: Sequence[Range], caller: Caller
    ) -> None:
        """Settles messages that the consumer cannot be sent: else they would be delivered again and again."""
        rows = [
            MessageSettlement(offset, kind) for first, last in ranges for offset in range(first, last + 1)
        ]
        if rows:
            request = SettleRequest(asked.group_id, asked.consumer, place, rows)
            await self._node.queues.router.settle(request, caller=caller)

    # --- settling

    async def settle_jobs(self, call: Call[QueueParams, SettleJobs]) -> Answer[Settled]:
        queue = call.params.queue
        told = _settlements(call.body)
        groups: dict[JobReceipt, dict[int, tuple[str, MessageSettlement]]] = {}
        for row, receipt in told:
            offsets = groups.setdefault(msgspec.structs.replace(receipt, offset=0), {})
            if receipt.offset in offsets:
                raise wrong("accept", f"receipt {row.text} is there more than once")
            settlement = MessageSettlement(receipt.offset, row.kind, row.delay_ms, row.failure)
            offsets[receipt.offset] = row.text, settlement
        work = (self._settle_some(queue, like, rows, call.caller) for like, rows in groups.items())
        refused = [row for rows in await asyncio.gather(*work) for row in rows]
        answer = Settled(settled=len(told) - len(refused), refused=refused)
        return Answer(207 if refused else 200, answer)

    async def _settle_some(
        self, queue: str, like: JobReceipt, rows: dict[int, tuple[str, MessageSettlement]], caller: Caller
    ) -> list[RefusedReceipt]:
        """Receipts that differ only in their offset."""
        if like.queue != queue:
            facts = ErrorFacts(code="wrong_queue", message=await self._wrong_queue(caller, queue, like.queue))
            return [RefusedReceipt(receipt=text, error=facts) for text, _ in rows.values()]
        settlements = [settlement for _, settlement in rows.values()]
        try:
            self._check_may_read(caller, like.place)
            request = SettleRequest(queue, like.consumer, like.place, settlements, like.by)
            refused = await self._node.queues.router.settle(request, caller=caller)
        except PenstockError as trouble:
            facts = _unsettled(trouble, self._is_known(caller, like.place))
            return [RefusedReceipt(receipt=text, error=facts) for text, _ in rows.values()]
        return [
            RefusedReceipt(
                receipt=rows[offset][0], error=ErrorFacts(code="lease_over", message=error.message)
            )
            for offset, error in sorted(refused.items())
        ]

    async def _wrong_queue(self, caller: Caller, queue: str, actual: str) -> str:
        message = f"this receipt is of queue {actual!r}, not of {queue!r}"
        return (
            message
            if await self._node.queues.overview.descriptions(queue, caller=caller)
            else f"{message}, which does not exist"
        )

    def _check_may_read(self, caller: Caller, place: GroupId) -> None:
        """A consumer that has lost READ on the topic decides no longer about the jobs that it holds."""
        try:
            self._node.resources.topic_by_id(caller, place.topic_id, Operation.READ)
        except KafkaError as refusal:
            if (
                refusal.code != ErrorCode.UNKNOWN_TOPIC_ID
            ):  # the leader knows topics that this node does not know yet
                raise

    def _is_known(self, caller: Caller, place: GroupId) -> bool:
        """Whether this node knows the partition. It may not know a new one yet, so the answer only explains why no
        leader was found."""
        try:
            topic = self._node.resources.topic_by_id(caller, place.topic_id, Operation.READ)
        except KafkaError:
            return False
        return place.partition < topic.partitions


def _unsettled(trouble: PenstockError, is_known: bool) -> ErrorFacts:
    is_denied = isinstance(trouble, KafkaError) and trouble.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    is_known = is_known or is_denied
    if isinstance(trouble, KafkaError) and (trouble.code == ErrorCode.UNKNOWN_TOPIC_ID or not is_known):
        message = (
            "no topic here has the id in this receipt: it was deleted, or the receipt is another cluster's"
        )
        return ErrorFacts(code="unknown_topic_id", message=message)
    if isinstance(trouble, KafkaError) and not isinstance(trouble, Unanswered):
        return as_problem(trouble).facts
    message = f"{trouble}; it may have been settled nevertheless: settle it again at once"
    return ErrorFacts(code="outcome_unknown", message=message)


class _Told(NamedTuple):
    """One receipt of a request, and what is to be done with its job."""

    text: str
    field: str
    kind: AckKind
    delay_ms: int | None = None
    failure: tuple[str, str] | None = None


def _settlements(body: SettleJobs) -> list[tuple[_Told, JobReceipt]]:
    rows = [_Told(text, f"accept[{at}]", AckKind.ACCEPT) for at, text in enumerate(body.accept)]
    rows += [
        _Told(one.receipt, f"retry[{at}].receipt", AckKind.RELEASE, one.delay_ms, _failure(one))
        for at, one in enumerate(body.retry)
    ]
    for at, one in enumerate(body.reject):
        if isinstance(one, Rejection):
            rows.append(_Told(one.receipt, f"reject[{at}].receipt", AckKind.REJECT, failure=_failure(one)))
        else:
            rows.append(_Told(one, f"reject[{at}]", AckKind.REJECT))
    rows += [_Told(text, f"renew[{at}]", AckKind.RENEW) for at, text in enumerate(body.renew)]
    if not rows:
        raise wrong("accept", "nothing to settle: expected receipts in accept, retry, reject or renew")
    return [(row, _receipt(row.text, row.field)) for row in rows]


def _failure(one: Retry | Rejection) -> tuple[str, str] | None:
    return (one.error_type, one.error_text) if one.error_type or one.error_text else None


def _receipt(text: str, field: str) -> JobReceipt:
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        receipt = msgspec.msgpack.decode(data, type=JobReceipt)
        UUID(bytes=receipt.topic_id)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise wrong(field, "not a receipt: send one that `receive` returned") from None
    if (
        receipt.version != RECEIPT_VERSION
        or not 0 <= receipt.partition < 2**31
        or not 0 <= receipt.offset < 2**62
    ):
        raise wrong(field, "not a receipt of this version")
    return receipt
