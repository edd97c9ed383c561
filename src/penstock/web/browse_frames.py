"""The frames of /v1/browse: what a client may ask for, and what a message looks like. See docs/http-api.md."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from penstock.web.api.payloads import RecordOut, record_out
from penstock.web.api.topics import TopicName
from penstock.web.scanned_record import BySchema, ScannedRecord
from penstock.web.websocket_frames import Frames

MAX_FRAME_CHARACTERS = 64 * 1024
MAX_LIMIT = 500
"""Messages that one request shows. A scan for the newest ones holds as many, to sort them by time."""
MAX_CREDIT = 10_000
MAX_PARTITIONS = 10_000
MAX_FILTER_CHARACTERS = 1_000
MAX_PATH_PARTS = 20
SHOWN_BYTES_MAX = 32 * 1024
"""The bytes of a key, a value or all headers that are shown. A person reads no more, and a thousand values of a
megabyte would fill the browser's memory; GET .../records has the whole message."""
SHOWN_HEADERS_MAX = 100
WHOLE_BYTES_MAX = 8 * 1024 * 1024
"""The same of a message that is asked for whole: as large as a body over HTTP may be. A batch of a few kilobytes may
unpack to 64 MiB, and JSON takes six characters for some bytes."""
WHOLE_HEADERS_MAX = 10_000
UTF8_BYTES_MAX = 4

Headers = tuple[tuple[str, bytes | None], ...]

Text = Annotated[str, Meta(min_length=1, max_length=MAX_FILTER_CHARACTERS)]
Credit = Annotated[int, Meta(ge=1, le=MAX_CREDIT)]


class RecordFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that is given must hold. `key` and `value` are texts that these contain; `header` is the name of a header,
    `header_value` a text that it contains. `field` is a path into JSON values (`customer.address.0.city`), and
    `field_value` what is there: a string as it is, anything else as its JSON. Keys and values that are decoded by a
    schema are compared as JSON, too. There are no patterns and no expressions:
    a filter costs one comparison for each message, whatever the caller asks for."""

    key: Text | None = None
    value: Text | None = None
    header: Text | None = None
    header_value: Text | None = None
    field: Text | None = None
    field_value: Annotated[str, Meta(max_length=MAX_FILTER_CHARACTERS)] | None = None


class Frame(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """A frame of a client."""


class Browse(Frame, frozen=True, kw_only=True, tag="browse"):
    """`start`: the newest messages, the oldest ones, those from an `offset` or a `timestamp_ms` on, or `tail` for those
    that come from now on, without an end. `credit`: how many messages the client takes before it asks for more.
    `whole`: keys, values and headers are cut only after WHOLE_BYTES_MAX; not for a tail, whose partitions each hold
    some messages."""

    topic: TopicName
    start: Literal["newest", "oldest", "offset", "timestamp", "tail"] = "newest"
    offset: Annotated[int, Meta(ge=0, le=2**62)] = 0
    timestamp_ms: Annotated[int, Meta(ge=0, le=2**62)] = 0
    partitions: (
        Annotated[
            list[Annotated[int, Meta(ge=0, le=2**31 - 1)]], Meta(min_length=1, max_length=MAX_PARTITIONS)
        ]
        | None
    ) = None
    limit: Annotated[int, Meta(ge=1, le=MAX_LIMIT)] = 100
    credit: Credit = MAX_LIMIT
    whole: bool = False
    filter: RecordFilter = RecordFilter()


class More(Frame, frozen=True, kw_only=True, tag="more"):
    """The client takes so many messages more."""

    credit: Credit


class Stop(Frame, frozen=True, kw_only=True, tag="stop"):
    """End the scan; the answer is the frame `end`."""


AnyFrame = Browse | More | Stop
FRAMES: Frames[AnyFrame] = Frames(AnyFrame, MAX_FRAME_CHARACTERS)


class DecodedOut(msgspec.Struct, frozen=True, kw_only=True):
    """A key or a value by its schema in the registry. `json` is its text, or null where `problem` says why there is
    none; `truncated`: the text is longer than shown."""

    schema_id: str
    """A number, or a GUID."""
    schema_type: str | None
    """AVRO, PROTOBUF or JSON; null if the schema is not known."""
    schema_name: str | None
    json: str | None
    truncated: bool
    problem: str | None


class BrowsedMessage(RecordOut, frozen=True, kw_only=True):
    """`key_bytes` and `value_bytes` are the whole sizes; `truncated`: the key, the value or the headers are longer than
    shown. `key_decoded` and `value_decoded` are there if a registry is set and the key or the value names a schema of
    it."""

    partition: int
    key_bytes: int | None
    value_bytes: int | None
    truncated: bool
    key_decoded: DecodedOut | None
    value_decoded: DecodedOut | None


def browsed(scanned: ScannedRecord, partition: int, whole: bool = False) -> BrowsedMessage:
    """The message as text, as far as it is UTF-8, else in base64."""
    record = scanned.record
    key, value = record.key, record.value
    most = WHOLE_BYTES_MAX if whole else SHOWN_BYTES_MAX
    cut = record._replace(
        key=_cut(key, most),
        value=_cut(value, most),
        headers=_shown_headers(record.headers, most, WHOLE_HEADERS_MAX if whole else SHOWN_HEADERS_MAX),
    )
    shown = record_out(cut, "text")
    return BrowsedMessage(
        **{name: getattr(shown, name) for name in RecordOut.__struct_fields__},
        partition=partition,
        key_bytes=None if key is None else len(key),
        value_bytes=None if value is None else len(value),
        truncated=cut != record,
        key_decoded=_decoded_out(scanned.key, most),
        value_decoded=_decoded_out(scanned.value, most),
    )


def shown_size(message: BrowsedMessage) -> int:
    """About the memory that a message takes until it is sent."""
    decoded = [one.json for one in (message.key_decoded, message.value_decoded) if one is not None]
    texts = [message.key, message.value, *decoded]
    texts += [text for header in message.headers for text in (header.name, header.value)]
    return sum(len(text) for text in texts if text is not None)


def _shown_headers(headers: Headers, left: int, most: int) -> Headers:
    """The first headers, at most so many and as many as have `left` bytes; the last one may be cut."""
    shown = list[tuple[str, bytes | None]]()
    for name, value in headers[:most]:
        if left <= 0:
            break
        name = name[:left]
        left -= len(name)
        value = _cut(value, left)
        left -= len(value or b"")
        shown.append((name, value))
    return tuple(shown)


def _decoded_out(found: BySchema | None, most: int) -> DecodedOut | None:
    if found is None:
        return None
    text = _cut(found.json, most)
    return DecodedOut(
        schema_id=str(found.decoded.key),
        schema_type=found.decoded.schema_type or None,
        schema_name=found.decoded.name or None,
        json=None if text is None else text.decode(),
        truncated=text is not None and text != found.json,
        problem=found.decoded.problem or None,
    )


def _cut(data: bytes | None, most: int) -> bytes | None:
    """A text is cut between two characters: half a character would make it base64."""
    if data is None or len(data) <= most:
        return data
    end = most
    while end > max(0, most - UTF8_BYTES_MAX) and data[end] & 0xC0 == 0x80:  # within a character
        end -= 1
    return data[:end]
