"""The frames between workers of a queue and the broker, as structs: docs/queues.md has the protocol."""

from struct import Struct
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from penstock.node.queues import Acknowledgement
from penstock.node.queues.failures import MAX_FAILURES, Failure
from penstock.node.queues.values import ProducerTransaction
from penstock.queue.values import AckKind
from penstock.types import TopicPartition
from penstock.web.api.clique_shapes import Epoch, MemberId, WorkerName
from penstock.web.api.jobs import Handed, Job, Range
from penstock.web.api.payloads import Encoding, record_out
from penstock.web.api.problems import Problem
from penstock.web.api.queue_shapes import MAX_DURATION_MS
from penstock.web.api.topics import TopicName
from penstock.web.websocket_frames import Frames
from penstock.web.websocket_protocol import MAX_MESSAGE_BYTES, binary_frame, text_frame

MAX_TOPICS = 1_000
MAX_CREDIT = 100_000
MAX_RANGES = 20_000
"""The most ranges in one frame: as many as fit its bytes."""
MAX_RANGE = 1_000_000
MAX_TRANSACTIONAL_ID = 8_000
"""Characters: with four bytes each they fit in the record of a settlement. The coordinator has a limit of its own."""
MAX_PRODUCER_EPOCH = 32_767

LENGTH = Struct(">I")

QueueName = Annotated[str, Meta(min_length=1, max_length=249)]
Number = Annotated[int, Meta(ge=0, le=2**62)]
Ranges = Annotated[list[tuple[Number, Number]], Meta(max_length=MAX_RANGES)]


class Frame(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """A frame of a worker."""


class CliqueClaim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The worker is this member of the clique whose queue it asks for, and knows this table."""

    worker: WorkerName
    member_id: MemberId
    epoch: Epoch = 0


class Work(Frame, frozen=True, kw_only=True, tag="work"):
    queue: QueueName
    topics: Annotated[list[TopicName], Meta(min_length=1, max_length=MAX_TOPICS)]
    credit: Annotated[int, Meta(ge=0, le=MAX_CREDIT)] = 100
    encoding: Literal["json", "text", "base64", "batch"] = "json"
    standby: bool = False
    name: Annotated[str, Meta(max_length=249)] = ""
    clique: CliqueClaim | None = None


class FailedRange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a worker retries or rejects jobs. Texts are cut by the queue."""

    first: Number
    last: Number
    error_type: str = ""
    error_text: str = ""


class TransactionClaim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The open transaction of a producer, as its coordinator knows it."""

    id: Annotated[str, Meta(min_length=1, max_length=MAX_TRANSACTIONAL_ID)]
    producer_id: Number
    epoch: Annotated[int, Meta(ge=0, le=MAX_PRODUCER_EPOCH)]


class Settle(Frame, frozen=True, kw_only=True, tag="settle"):
    number: Number
    topic: str
    partition: Number
    accept: Ranges = []
    retry: Ranges = []
    delay_ms: Annotated[int, Meta(ge=0, le=MAX_DURATION_MS)] | None = None
    reject: Ranges = []
    renew: Ranges = []
    failures: Annotated[list[FailedRange], Meta(max_length=MAX_RANGES)] = []
    unbegun: Ranges = msgspec.field(default_factory=list, name="return")
    announce: Ranges = []
    """Of a clique's worker: jobs that it is about to begin, and that were to be announced."""
    epoch: Epoch | None = None
    """Of a clique's worker: the newest table that it knew when it began these jobs."""
    transaction: TransactionClaim | None = None
    """The settlement is a part of this transaction."""

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def final(self) -> list[tuple[int, int]]:
        """Ranges that the worker does not lease any more."""
        return [*self.accept, *self.retry, *self.reject, *self.unbegun]

    @property
    def final_count(self) -> int:
        return sum(last - first + 1 for first, last in self.final)

    def producer_transaction(self) -> ProducerTransaction | None:
        """Problem if the frame has more than a transaction can contain."""
        if self.transaction is None:
            return None
        if self.renew or self.unbegun or self.announce:
            message = "a transaction has `accept`, `retry` and `reject`: send the others in another frame"
            raise Problem(400, "invalid_transaction", message)
        return ProducerTransaction(self.transaction.id, self.transaction.producer_id, self.transaction.epoch)

    def acknowledgements(self) -> list[Acknowledgement]:
        """Problem if a range is invalid."""
        kinds = (
            (AckKind.ACCEPT, self.accept),
            (AckKind.RELEASE, self.retry),
            (AckKind.REJECT, self.reject),
            (AckKind.RENEW, self.renew),
        )
        return [
            Acknowledgement(*_checked(one), bytes([kind]), self.delay_ms)
            for kind, ranges in kinds
            for one in ranges
        ]

    def reasons(self) -> dict[int, Failure]:
        """By offset, of those that are retried or rejected. Problem if a range is invalid."""
        found: dict[int, Failure] = {}
        left = MAX_FAILURES  # offsets to look at, also if ranges repeat them
        for one in self.failures:
            _checked((one.first, one.last))
            if left:
                failure = Failure(one.error_type, one.error_text).cut()
                offsets = range(one.first, one.last + 1)[:left]
                left -= len(offsets)
                found |= dict.fromkeys(offsets, failure)
        return found

    def returned(self) -> list[tuple[int, int]]:
        """Ranges that the worker has not begun. Problem if one is invalid."""
        return [_checked(one) for one in self.unbegun]

    def announced(self) -> list[tuple[int, int]]:
        """Ranges that a clique's worker is about to begin. Problem if one is invalid."""
        return [_checked(one) for one in self.announce]


class CreditFrame(Frame, frozen=True, kw_only=True, tag="credit"):
    credit: Annotated[int, Meta(ge=0, le=MAX_CREDIT)]


class EpochFrame(Frame, frozen=True, kw_only=True, tag="epoch"):
    """A clique's worker knows this table."""

    epoch: Epoch


class Ping(Frame, frozen=True, kw_only=True, tag="ping"):
    pass


AnyFrame = Work | Settle | CreditFrame | EpochFrame | Ping
FRAMES: Frames[AnyFrame] = Frames(AnyFrame, MAX_MESSAGE_BYTES)


def _checked(given: tuple[int, int]) -> tuple[int, int]:
    first, last = given
    if not 0 <= last - first < MAX_RANGE:
        message = f"{first} to {last}: expected a first and a last offset, at most {MAX_RANGE} in all"
        raise Problem(400, "invalid_range", message)
    return given


# --- jobs


class BatchHead(msgspec.Struct, frozen=True, kw_only=True):
    """The head of a binary frame, before the batches."""

    type: Literal["jobs"] = "jobs"
    topic: str
    partition: int
    acquired: list[Handed]
    """First, last, deliveries: the batches may hold records of other workers, too."""
    announce: list[Range] | msgspec.UnsetType = msgspec.UNSET
    """Jobs that a clique's worker announces before it begins them."""
    epoch: int | msgspec.UnsetType = msgspec.UNSET
    """Of the table by which a clique's worker gets them."""


class CliqueFacts(NamedTuple):
    """What the worker of a clique is told about jobs."""

    announce: list[Range] = []
    epoch: int = 0


NO_CLIQUE = CliqueFacts()


def batch_frame(
    key: TopicPartition, data: bytes, acquired: list[Handed], facts: CliqueFacts = NO_CLIQUE
) -> bytes:
    """The length of a head (four bytes, big-endian), the head as JSON, record batches."""
    head = msgspec.json.encode(
        BatchHead(
            topic=key.topic,
            partition=key.partition,
            acquired=acquired,
            announce=facts.announce or msgspec.UNSET,
            epoch=facts.epoch or msgspec.UNSET,
        )
    )
    return binary_frame(b"".join((LENGTH.pack(len(head)), head, data)))


def jobs_frame(
    key: TopicPartition, jobs: list[Job], encoding: Encoding, facts: CliqueFacts = NO_CLIQUE
) -> bytes:
    to_announce = {offset for first, last in facts.announce for offset in range(first, last + 1)}
    bodies = [_body(key, job, encoding, job.record.offset in to_announce) for job in jobs]
    epoch = b'"epoch":%d,' % facts.epoch if facts.epoch else b""
    return text_frame(b'{"type":"jobs",%s"jobs":[%s]}' % (epoch, b",".join(bodies)))


def _body(key: TopicPartition, job: Job, encoding: Encoding, to_announce: bool) -> bytes:
    about = msgspec.json.encode(record_out(job.record, encoding))
    # Topics are named in ASCII, without anything that JSON would escape.
    return b'{"topic":"%s","partition":%d,"deliveries":%d,%s%s' % (
        key.topic.encode(),
        key.partition,
        job.deliveries,
        b'"announce":true,' if to_announce else b"",
        about[1:],
    )
