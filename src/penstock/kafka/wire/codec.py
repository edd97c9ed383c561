"""Frames: the headers around messages, and the messages in them, for both ends of a connection.

A frame is what follows the 4-byte length on the wire. Decoders take a frame without its length; encoders
return buffers with the length in front, ready for `writelines`.

    request   api_key i16 | api_version i16 | correlation_id i32 | client_id nullable string | [tags] | body
    response  correlation_id i32 | [tags] | body

Tags are there when the API's version is flexible, with one exception: an ApiVersions response never has them,
since a client that asks for it does not know yet what the broker speaks. The client id is a legacy string in
all versions. (The header without a client id, v0, was ControlledShutdown's alone and is gone.)
"""

import struct
from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from penstock.errors import ProtocolViolation
from penstock.kafka.wire.apis import APIS, ApiKey, is_flexible, is_known, request_class, response_class
from penstock.kafka.wire.decoder import MAX_ELEMENTS, MAX_RESPONSE_ELEMENTS, Decoder
from penstock.kafka.wire.encoder import Encoder
from penstock.kafka.wire.primitives import InvalidField, skip_tags
from penstock.kafka.wire.schema import Buffer, Message

M = TypeVar("M", bound=Message)

_REQUEST_HEADER: Final = struct.Struct(">hhih")
_REQUEST_START: Final = struct.Struct(">ihhih")
_RESPONSE_START: Final = struct.Struct(">iix")
"""Length, correlation id, and the number of tags, which is zero."""
_RESPONSE_START_WITHOUT_TAGS: Final = struct.Struct(">ii")
_LENGTH: Final = struct.Struct(">i")

MAX_HEADER_TAGS: Final = 64
"""Kafka has none so far."""

# Compiled on first use; at most one for each API, version and direction.
_request_decoders: dict[tuple[int, int], Decoder] = {}
_response_decoders: dict[tuple[int, int], Decoder] = {}
_data_decoders: dict[tuple[type[Message], int], Decoder] = {}
_encoders: dict[tuple[type[Message], int], Encoder] = {}
_response_encoders: dict[tuple[type[Message], int], tuple[Encoder, struct.Struct]] = {}


class RequestHeader(msgspec.Struct, frozen=True, gc=False):
    """The fields before every request's body."""

    api_key: int
    """May be one that the codec does not know: check `is_known` before the body is decoded."""
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int


def decode_request_header(frame: Buffer) -> RequestHeader:
    """The header of any request, also of an API or version that is not known."""
    view = memoryview(frame)
    try:
        api_key, version, correlation_id, length = _REQUEST_HEADER.unpack_from(view)
    except struct.error:
        raise ProtocolViolation(
            f"request header: expected {_REQUEST_HEADER.size} bytes or more, found {len(view)}"
        ) from None
    client_id, position = None, _REQUEST_HEADER.size
    if length != -1:
        end = position + length
        if not position <= end <= len(view):
            raise ProtocolViolation(
                f"request header, client_id: expected {length} bytes, {len(view) - position} remain"
            )
        try:
            client_id = str(view[position:end], "utf-8")
        except UnicodeDecodeError as problem:
            raise ProtocolViolation(f"request header, client_id: expected UTF-8 ({problem.reason})") from None
        position = end
    api = APIS.get(api_key)
    if api is not None and api.flexible_from <= version <= api.last:
        if position < len(view) and view[position] == 0:
            position += 1  # no tags, as in all requests so far
        else:
            position = _skip_header_tags(view, position, "request header")
    return RequestHeader(api_key, version, correlation_id, client_id, position)


def decode_request(header: RequestHeader, frame: Buffer, max_elements: int = MAX_ELEMENTS) -> Message:
    """The request in a frame; TooManyElements if its arrays have more than that together. Bytes after its last field
    are ignored, as Kafka does: librdkafka's request for all topics has some (it writes the null array of Metadata v9
    and later in four bytes instead of one)."""
    key = header.api_key, header.api_version
    decoder = _request_decoders.get(key)
    if decoder is None:
        _require_known(*key)
        decoder = _request_decoders[key] = Decoder(request_class(header.api_key), header.api_version)
    return decoder.decode(memoryview(frame), header.body_position, max_elements)[0]


def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, message: Message
) -> list[Buffer]:
    raw = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(raw)
    out = bytearray(_REQUEST_START.pack(0, api_key, version, correlation_id, length))
    out += raw
    if is_flexible(api_key, version):
        out.append(0)
    return _framed(_encoder(type(message), version).encode(message, out))


def encode_response(api_key: int, version: int, correlation_id: int, message: Message) -> list[Buffer]:
    key = type(message), version
    try:
        encoder, start = _response_encoders[key]
    except KeyError:
        start = _RESPONSE_START if _response_has_tags(api_key, version) else _RESPONSE_START_WITHOUT_TAGS
        encoder, start = _response_encoders[key] = Encoder(*key), start
    pieces = encoder.encode(message, bytearray(start.pack(0, correlation_id)))
    _LENGTH.pack_into(pieces[0], 0, sum(map(len, pieces)) - _LENGTH.size)
    return pieces


def decode_response(api_key: int, version: int, frame: Buffer) -> tuple[int, Message]:
    """The correlation id and the message."""
    key = api_key, version
    decoder = _response_decoders.get(key)
    if decoder is None:
        _require_known(*key)
        decoder = _response_decoders[key] = Decoder(response_class(api_key), version)
    view = memoryview(frame)
    if len(view) < _LENGTH.size:
        raise ProtocolViolation(f"response header: expected {_LENGTH.size} bytes or more, found {len(view)}")
    (correlation_id,) = _LENGTH.unpack_from(view)
    position = _LENGTH.size
    if _response_has_tags(api_key, version):
        position = _skip_header_tags(view, position, "response header")
    return correlation_id, _decode(decoder, view, position, MAX_RESPONSE_ELEMENTS)


def encode_message(message: Message, version: int) -> bytes:
    """A message alone, without a frame."""
    return join(_encoder(type(message), version).encode(message, bytearray()))


def decode_message(cls: type[M], version: int, buffer: Buffer, *, whole: bool = True) -> M:
    """A message alone, without a frame; `whole=False` lets more bytes follow it."""
    decoder = _data_decoders.get((cls, version))
    if decoder is None:
        decoder = _data_decoders[cls, version] = Decoder(cls, version)
    message = _decode(decoder, memoryview(buffer), 0, MAX_ELEMENTS, whole=whole)
    assert isinstance(message, cls)
    return message


def join(pieces: Iterable[Buffer]) -> bytes:
    """Joins several buffers, for tests and for callers without `writelines`."""
    return b"".join(pieces)


def _decode(decoder: Decoder, view: memoryview, position: int, budget: int, *, whole: bool = True) -> Message:
    message, end = decoder.decode(view, position, budget)
    if whole and end != len(view):
        raise ProtocolViolation(
            f"{decoder.title}: expected the end at byte {end}, {len(view) - end} more follow"
        )
    return message


def _encoder(cls: type[Message], version: int) -> Encoder:
    encoder = _encoders.get((cls, version))
    if encoder is None:
        encoder = _encoders[cls, version] = Encoder(cls, version)
    return encoder


def _framed(pieces: list[Buffer]) -> list[Buffer]:
    """Writes the length into the bytes that the first piece reserves for it."""
    first = pieces[0]
    assert isinstance(first, bytearray)
    _LENGTH.pack_into(first, 0, sum(map(len, pieces)) - _LENGTH.size)
    return pieces


def _require_known(api_key: int, version: int) -> None:
    if not is_known(api_key, version):
        raise ProtocolViolation(f"API key {api_key} v{version}: expected an API and version that is known")


def _response_has_tags(api_key: int, version: int) -> bool:
    return is_flexible(api_key, version) and api_key != ApiKey.API_VERSIONS


def _skip_header_tags(view: memoryview, position: int, what: str) -> int:
    try:
        count = view[position]
        return skip_tags(view, position + 1, count, MAX_HEADER_TAGS)[0]
    except IndexError:
        raise ProtocolViolation(f"{what}, tagged fields: expected more than {len(view)} bytes") from None
    except InvalidField as problem:
        raise ProtocolViolation(f"{what}, tagged fields: {problem}") from None
