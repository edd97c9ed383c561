"""The frames of push, from subscribers and with messages for them. See docs/push.md."""

from collections.abc import Sequence
from struct import Struct
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from penstock.batch import Record, iter_headers
from penstock.node.subscriptions import RecordEncoder, Rows, SubscribeRequest
from penstock.queue.subscription import SubscriberSettings
from penstock.types import Isolation, TopicPartition
from penstock.web.api.payloads import Encoding, record_out
from penstock.web.api.reading import IsolationName
from penstock.web.api.topics import TopicName
from penstock.web.websocket_frames import Frames
from penstock.web.websocket_protocol import binary_frame, text_frame

MAX_FRAME_BYTES = 512 * 1024
"""A thousand topics with the longest names there are."""
MAX_TOPICS = 1_000
MAX_CREDIT = 100_000
MAX_TTL_MS = 10 * 365 * 24 * 3600 * 1000

LENGTH = Struct(">I")

Name = Annotated[str, Meta(min_length=1, max_length=249)]
Credit = Annotated[int, Meta(ge=1, le=MAX_CREDIT)]
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Frame(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """A frame of a subscriber."""


class Subscribe(Frame, frozen=True, kw_only=True, tag="subscribe"):
    subscription: Name
    topics: Annotated[list[TopicName], Meta(min_length=1, max_length=MAX_TOPICS)]
    read_old: bool = False
    take_over: bool = False
    credit: Credit = 100
    encoding: Literal["json", "text", "base64", "batch"] = "json"
    isolation: IsolationName = "read_uncommitted"
    ack_timeout_ms: Annotated[int, Meta(ge=100, le=24 * 3600 * 1000)] = 30_000
    ttl_ms: Annotated[int, Meta(ge=1_000, le=MAX_TTL_MS)] = 7 * 24 * 3600 * 1000

    @property
    def request(self) -> SubscribeRequest:
        return SubscribeRequest(
            name=self.subscription,
            topics=tuple(self.topics),
            read_old=self.read_old,
            take_over=self.take_over,
            encoder=ENCODERS[self.encoding],
            isolation=Isolation[self.isolation.upper()],
            ttl_ms=self.ttl_ms,
            settings=SubscriberSettings(credit=self.credit, ack_timeout_ms=self.ack_timeout_ms),
        )


class AckFrame(Frame, frozen=True, kw_only=True, tag="ack"):
    topic: str
    partition: Number
    offset: Number


class CreditFrame(Frame, frozen=True, kw_only=True, tag="credit"):
    credit: Credit


class Unsubscribe(Frame, frozen=True, kw_only=True, tag="unsubscribe"):
    pass


class Ping(Frame, frozen=True, kw_only=True, tag="ping"):
    pass


AnyFrame = Subscribe | AckFrame | CreditFrame | Unsubscribe | Ping
FRAMES: Frames[AnyFrame] = Frames(AnyFrame, MAX_FRAME_BYTES)

# --- messages


class TextEncoder:
    """Messages as JSON, many in a frame."""

    keeps_batches = False

    def __init__(self, encoding: Encoding) -> None:
        self._encoding: Encoding = encoding

    def body(self, key: TopicPartition, record: Record) -> bytes:
        about = msgspec.json.encode(record_out(record, self._encoding))
        # Topics are named in ASCII, without anything that JSON would escape.
        return b'{"topic":"%s","partition":%d,%s' % (key.topic.encode(), key.partition, about[1:])

    def frame(self, page: Rows, rows: Sequence[int]) -> bytes:
        bodies = page.bodies[rows[0] : rows[-1] + 1]
        if len(bodies) != len(rows):
            bodies = [page.bodies[row] for row in rows]
        return text_frame(b'{"type":"messages","messages":[%s]}' % b",".join(bodies))


class BatchHead(msgspec.Struct, frozen=True, kw_only=True):
    """The head of a binary frame, before the batches."""

    type: Literal["messages"] = "messages"
    topic: str
    partition: int
    offsets: list[tuple[int, int]]
    """First and last of the messages that are sent: the batches may hold more."""


class BatchEncoder:
    """Stored batches as they are: the length of a head (four bytes, big-endian), the head as JSON, the batches."""

    keeps_batches = True

    def body(self, key: TopicPartition, record: Record) -> bytes:
        raise AssertionError("batches are sent as they are")

    def frame(self, page: Rows, rows: Sequence[int]) -> bytes:
        offsets = [page.offsets[row] for row in rows]
        head = BatchHead(topic=page.key.topic, partition=page.key.partition, offsets=_runs(offsets))
        text = msgspec.json.encode(head)
        batches = _covering(page.data, offsets[0], offsets[-1])
        return binary_frame(b"".join((LENGTH.pack(len(text)), text, batches)))


ENCODERS: dict[str, RecordEncoder] = {
    "json": TextEncoder("json"),
    "text": TextEncoder("text"),
    "base64": TextEncoder("base64"),
    "batch": BatchEncoder(),
}


def _runs(offsets: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for offset in offsets:
        if runs and runs[-1][1] == offset - 1:
            runs[-1] = runs[-1][0], offset
        else:
            runs.append((offset, offset))
    return runs


def _covering(data: bytes, first: int, last: int) -> bytes:
    """The batches that hold some of these offsets."""
    held = [
        (position, position + header.size)
        for position, header in iter_headers(data)
        if header.next_offset > first and header.base_offset <= last
    ]
    return data[held[0][0] : held[-1][1]]
