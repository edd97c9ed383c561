"""How messages become bytes and back. A clique has a codec, and each of its streams may have another one.

    RecordCodec     the bytes are the value; key and headers are the carrier's own. The default on Penstock: records of
                    any Kafka client are messages
    WrappingCodec   key, value and headers in a msgpack array. The default where the carrier has no keys
    JsonCodec       {"key": "alice", "value": <any JSON>, "headers": {...}}
    MsgpackCodec    the same fields as a msgpack map; the value is any msgpack
    FlowCodec       the layout of the Go framework flow: u32 length, stream, u32 length, key, data; big-endian

A codec is any object with `encode` and `decode`. `decode` raises anything for bytes that make no sense: the clique
sends them to the dead letters as they are. Requests and responses go through the codec of their stream, too."""

from struct import Struct
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from penstock.clique.errors import Undecodable
from penstock.clique.message import Message, MessageHeaders

_U32: Final = Struct(">I")


@runtime_checkable
class Codec(Protocol):
    """`encode` and `decode` must be inverse as far as the bytes can carry a message."""

    def encode(self, message: Message) -> bytes:
        """The bytes of a message. Raises ValueError if they cannot carry it."""
        ...

    def decode(self, stream: str, data: bytes) -> Message:
        """The message in bytes that came from this stream."""
        ...


def check_codec(codec: Codec | None) -> None:
    """TypeError for anything else: the name of a codec, or its class instead of an object."""
    if codec is not None and (isinstance(codec, type) or not isinstance(codec, Codec)):
        raise TypeError(f"codec={codec!r}: expected an object with encode and decode, such as JsonCodec()")


class RecordCodec:
    """The bytes are the value. Key and headers are those of the carrier, if it has any."""

    carries_key = False

    def encode(self, message: Message) -> bytes:
        return message.value or b""

    def decode(self, stream: str, data: bytes) -> Message:
        return Message(stream=stream, value=data)


class _Wrapped(msgspec.Struct, frozen=True, array_like=True):
    """Fields may be added at the end: older readers skip them."""

    version: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class WrappingCodec:
    """Key, value and headers in a msgpack array: [1, key, value, [[name, value], ...]]."""

    VERSION: Final = 1

    def __init__(self) -> None:
        self._decoder = msgspec.msgpack.Decoder(_Wrapped)

    def encode(self, message: Message) -> bytes:
        wrapped = _Wrapped(self.VERSION, message.key, message.value, message.headers)
        return msgspec.msgpack.encode(wrapped)

    def decode(self, stream: str, data: bytes) -> Message:
        try:
            wrapped = self._decoder.decode(data)
        except msgspec.MsgspecError as problem:
            raise Undecodable(
                f"not a wrapped message: {problem}. Does {stream} need another codec?"
            ) from None
        if wrapped.version != self.VERSION:
            raise Undecodable(f"a wrapped message of version {wrapped.version}: expected {self.VERSION}")
        return Message(stream=stream, value=wrapped.value, key=wrapped.key, headers=wrapped.headers)


class _Document(msgspec.Struct, frozen=True, omit_defaults=True):
    value: msgspec.Raw = msgspec.Raw(b"")
    key: Any = None
    """Text; in msgpack it may be bytes, too."""
    headers: dict[str, str | None] = {}


class JsonCodec:
    """A JSON object with the fields key, value and headers; only `value` must be there, and it may be any JSON. So keys
    and headers must be UTF-8, and `message.value` is the JSON text of the value."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(_Document)

    def encode(self, message: Message) -> bytes:
        value = message.value or b"null"
        try:
            msgspec.json.decode(value, type=msgspec.Raw)
            key = None if message.key is None else message.key.decode()
        except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
            raise ValueError(
                f"{message!r} cannot be JSON: {problem}; use another codec, or json=..."
            ) from None
        return msgspec.json.encode(_Document(msgspec.Raw(value), key, _text_headers(message.headers)))

    def decode(self, stream: str, data: bytes) -> Message:
        try:
            document = self._decoder.decode(data)
        except msgspec.MsgspecError as problem:
            raise Undecodable(f'not a JSON object with the field "value": {problem}') from None
        return _message(stream, document)


class MsgpackCodec:
    """A msgpack map with the fields key, value and headers; only `value` must be there, and it may be any msgpack.
    `message.value` is the msgpack of the value: msgspec.msgpack.decode(message.value) makes an object of it."""

    def __init__(self) -> None:
        self._decoder = msgspec.msgpack.Decoder(_Document)

    def encode(self, message: Message) -> bytes:
        value = message.value if message.value is not None else msgspec.msgpack.encode(None)
        try:
            msgspec.msgpack.decode(value, type=msgspec.Raw)
        except msgspec.MsgspecError as problem:
            raise ValueError(f"{message!r}: its value is not msgpack: {problem}") from None
        return msgspec.msgpack.encode(
            _Document(msgspec.Raw(value), message.key, _text_headers(message.headers))
        )

    def decode(self, stream: str, data: bytes) -> Message:
        try:
            document = self._decoder.decode(data)
        except msgspec.MsgspecError as problem:
            raise Undecodable(f'not a msgpack map with the field "value": {problem}') from None
        return _message(stream, document)


class FlowCodec:
    """The default layout of the Go framework flow: u32 length, stream, u32 length, key, data; big-endian. An empty key
    is no key, as in flow. It has no headers: those of a message are not sent."""

    def encode(self, message: Message) -> bytes:
        stream, key = message.stream.encode(), message.key or b""
        return b"".join((_U32.pack(len(stream)), stream, _U32.pack(len(key)), key, message.value or b""))

    def decode(self, stream: str, data: bytes) -> Message:
        name, rest = _prefixed(data, 0, "stream")
        key, rest = _prefixed(data, rest, "key")
        try:
            return Message(stream=name.decode() or stream, value=data[rest:], key=key or None)
        except UnicodeDecodeError as problem:
            raise Undecodable(f"the name of the stream is not UTF-8: {problem}") from None


def carries_key(codec: Codec) -> bool:
    """Whether the bytes of a message hold its key. A codec says that they do not by `carries_key = False`."""
    return bool(getattr(codec, "carries_key", True))


def _prefixed(data: bytes, start: int, what: str) -> tuple[bytes, int]:
    """The bytes after their length, and where they end."""
    begin = start + _U32.size
    if begin > len(data):
        raise Undecodable(f"{len(data)} bytes end before the length of the {what}")
    end = begin + _U32.unpack_from(data, start)[0]
    if end > len(data):
        raise Undecodable(f"the {what} ends at byte {end} of {len(data)}")
    return data[begin:end], end


def _message(stream: str, document: _Document) -> Message:
    key, value = document.key, bytes(document.value)
    if not value:
        raise Undecodable('the field "value" is missing')
    if isinstance(key, str):
        key = key.encode()
    if key is not None and not isinstance(key, bytes):
        raise Undecodable(f'the field "key" is {key!r:.80}: expected text')
    pairs = tuple((name, None if text is None else text.encode()) for name, text in document.headers.items())
    return Message(stream=stream, value=value, key=key, headers=pairs)


def _text_headers(headers: MessageHeaders) -> dict[str, str | None]:
    """The last header of each name."""
    try:
        return {name: None if value is None else value.decode() for name, value in headers}
    except UnicodeDecodeError as problem:
        raise ValueError(f"a header is not UTF-8: {problem}; use another codec") from None
