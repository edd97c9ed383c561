"""A broker with scripted answers: late, wrong, truncated, or none. Real sockets, one thread each."""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from penstock.errors import ErrorCode
from penstock.kafka.wire import (
    ApiKey,
    Message,
    decode_request,
    decode_request_header,
    encode_response,
    join,
    schema_range,
)
from penstock.kafka.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from penstock.kafka.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.kafka.wire.messages.sasl_handshake import SaslHandshakeResponse

TOPIC = "fake"
NODE_ID = 7
PATIENCE_SECONDS = 60.0


class Request(NamedTuple):
    """A received request."""

    api: ApiKey
    version: int
    correlation_id: int
    message: Message


class Raw(NamedTuple):
    """Bytes to send instead of a proper answer; the connection is closed after them."""

    data: bytes


class Silence(NamedTuple):
    """No answer, and the connection stays open."""


SILENCE = Silence()
HANG_UP = Raw(b"")
Answer = Message | Raw | Silence
Handler = Callable[[Request], Answer]


class FakeBroker:
    """Knows ApiVersions and Metadata (one topic of one partition, led by itself), and no login; the test supplies other
    handlers."""

    def __init__(self, handlers: Mapping[ApiKey, Handler] | None = None) -> None:
        self._handlers: dict[ApiKey, Handler] = {
            ApiKey.API_VERSIONS: lambda _: versions(),
            ApiKey.METADATA: lambda _: self.metadata(),
            ApiKey.SASL_HANDSHAKE: lambda _: SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE),
            **(handlers or {}),
        }
        self.requests: list[Request] = []
        self._came = threading.Condition()
        self.connections = 0
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> "FakeBroker":
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self._open):
            _shut(connection)
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)

    def teach(self, api: ApiKey, handler: Handler) -> None:
        self._handlers[api] = handler

    def send_raw(self, data: bytes) -> None:
        """Bytes on the newest connection, from within a handler that then keeps silent; lost if the client is gone."""
        with suppress(OSError):
            self._open[-1].sendall(data)

    def asked(self, api: ApiKey) -> list[Request]:
        return [request for request in self.requests if request.api == api]

    def wait_for(self, api: ApiKey, count: int) -> None:
        """Waits for this many requests of a kind."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.asked(api)) >= count, PATIENCE_SECONDS)

    def metadata(self, *, leader: int = NODE_ID, port: int | None = None) -> MetadataResponse:
        broker = MetadataResponseBroker(node_id=NODE_ID, host="127.0.0.1", port=port or self.port)
        partition = MetadataResponsePartition(partition_index=0, leader_id=leader)
        topic = MetadataResponseTopic(name=TOPIC, partitions=[partition])
        return MetadataResponse(brokers=[broker], controller_id=NODE_ID, topics=[topic])

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while (frame := _read_frame(connection)) is not None:
                    header = decode_request_header(frame)
                    message = decode_request(header, frame)
                    api = ApiKey(header.api_key)
                    request = Request(api, header.api_version, header.correlation_id, message)
                    with self._came:
                        self.requests.append(request)
                        self._came.notify_all()
                    answer = self._handlers[api](request)
                    if isinstance(answer, Raw):
                        connection.sendall(answer.data)
                        _shut(connection)
                        return
                    if isinstance(answer, Message):
                        connection.sendall(frame_of(request, answer))
            except OSError:
                return


def versions(**ranges: tuple[int, int]) -> ApiVersionsResponse:
    """The versions of the codec, or other ranges for the named APIs."""
    rows = []
    for api in ApiKey:
        first, last = ranges.get(api.name.lower(), schema_range(api))
        rows.append(ApiVersion(api_key=api, min_version=first, max_version=last))
    return ApiVersionsResponse(api_keys=rows)


def frame_of(request: Request, answer: Message, *, correlation_id: int | None = None) -> bytes:
    number = request.correlation_id if correlation_id is None else correlation_id
    return join(encode_response(request.api, request.version, number, answer))


def in_turn(*answers: Answer) -> Handler:
    """One answer after another; the last one for ever."""
    rest: Iterator[Answer] = iter(answers)
    last = answers[-1]
    return lambda _: next(rest, last)


def _read_frame(connection: socket.socket) -> bytes | None:
    length = _read(connection, 4)
    return None if length is None else _read(connection, int.from_bytes(length, "big"))


def _read(connection: socket.socket, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            return None
        data += part
    return data


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):  # the other end was faster
        connection.shutdown(socket.SHUT_RDWR)
