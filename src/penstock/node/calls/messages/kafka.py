"""Kafka requests between nodes: the same messages that clients send, in the version that both sides know."""

from struct import Struct
from typing import NamedTuple

from penstock.errors import ProtocolViolation
from penstock.kafka.wire import (
    Message,
    decode_request,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
    join,
)
from penstock.node.calls.wire_message import WireMessage
from penstock.node.limits.memory import Reservation

LENGTH_SIZE = 4
_API = Struct(">hh")


class _Request(NamedTuple):
    api_key: int
    version: int
    body: Message
    memory: Reservation | None = None
    """Where the records of the response are reserved, if this node answers. It is not sent to other nodes."""


class _Response(NamedTuple):
    api_key: int
    version: int
    body: Message


class KafkaRequest(_Request, WireMessage):
    """On the wire: a request frame of Kafka's without its length."""

    def to_wire(self) -> memoryview:
        pieces = encode_request(self.api_key, self.version, 0, None, self.body)
        return memoryview(join(pieces))[LENGTH_SIZE:]

    @classmethod
    def from_wire(cls, body: memoryview) -> "KafkaRequest":
        header = decode_request_header(body)
        return cls(header.api_key, header.api_version, decode_request(header, body))


class KafkaResponse(_Response, WireMessage):
    """On the wire: the API's number and version, then a response frame of Kafka's without its length."""

    def to_wire(self) -> bytes:
        pieces = encode_response(self.api_key, self.version, 0, self.body)
        return _API.pack(self.api_key, self.version) + join(pieces)[LENGTH_SIZE:]

    @classmethod
    def from_wire(cls, body: memoryview) -> "KafkaResponse":
        if len(body) < _API.size:
            raise ProtocolViolation(f"a Kafka response of {len(body)} bytes")
        api_key, version = _API.unpack_from(body)
        return cls(api_key, version, decode_response(api_key, version, body[_API.size :])[1])
