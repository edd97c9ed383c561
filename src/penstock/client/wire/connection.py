"""One connection to one broker: blocking, requests answered in the order in which they were sent.

After any failure (a timeout, an answer that is cut off or cannot be decoded, an interrupt in the middle of a read) the
connection is closed, because it is no longer known where the next answer starts. The caller opens a new one.
"""

import select
import socket
import struct
import time
from collections import deque
from typing import Final, NamedTuple, TypeAlias, TypeVar

from penstock.client.errors import Garbled, Refused, Unreachable
from penstock.client.wire.settings import ClientSettings, ServerAddress
from penstock.errors import ErrorCode, ProtocolViolation
from penstock.kafka.wire import ApiKey, Message, decode_response, encode_request, schema_range
from penstock.kafka.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

CONNECT_TIMEOUT_MS_MAX: Final = 10_000
"""A host that is up answers a SYN at once; the rest of request_timeout_ms is for the broker's work."""
MAX_CORRELATION_ID: Final = 2**31 - 1
JOIN_BELOW_BYTES: Final = 64 << 10
"""Requests up to this size are joined for one write; larger ones are not copied."""
MIN_CONNECT_S: Final = 0.001
"""A timeout of 0 would make the socket non-blocking, and connect would fail at once."""
CLIENT_NAME: Final = "penstock-client"
CLIENT_VERSION: Final = "1"

M = TypeVar("M", bound=Message)

_Where: TypeAlias = tuple[str | int, ...] | tuple[int, bytes]
"""An address as getaddrinfo returns it and connect takes it."""

_LENGTH: Final = struct.Struct(">i")
_CORRELATION_AND_ERROR: Final = struct.Struct(">ih")


class _Request(NamedTuple):
    """A request whose answer has not been read."""

    api: ApiKey
    version: int
    correlation_id: int


class Connection:
    """Its constructor connects and negotiates API versions."""

    def __init__(self, host: str, port: int, settings: ClientSettings) -> None:
        self.address = ServerAddress(host, port)
        self._settings = settings
        self._correlation_id = 0
        self._requests: deque[_Request] = deque()
        self._ready: deque[Message] = deque()
        self._socket: socket.socket | None = _connect(self.address, settings)
        self._versions: dict[int, tuple[int, int]] = {}
        self._negotiate()

    @property
    def closed(self) -> bool:
        return self._socket is None

    @property
    def outstanding(self) -> int:
        """The number of answers that are not received yet."""
        return len(self._requests) + len(self._ready)

    def version_of(self, api: ApiKey, *, at_least: int = 0, at_most: int = 1 << 15) -> int:
        """The highest version that client and broker support, within the caller's bounds."""
        first, last = schema_range(api)
        theirs = self._versions.get(api)
        if theirs is not None:
            version = min(last, theirs[1], at_most)
            if version >= max(first, theirs[0], at_least):
                return version
        offer = "no version" if theirs is None else f"versions {theirs[0]} to {theirs[1]}"
        wanted = f"{max(first, at_least)} to {min(last, at_most)}"
        raise Refused(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{api.name} at {self.address}",
            f"the broker has {offer}, this client {wanted}: connect to a newer broker",
        )

    def send(self, api: ApiKey, message: Message, *, version: int | None = None) -> None:
        """Sends a request. Answers are received later, in the order of the requests."""
        if version is None:
            version = self.version_of(api)
        self._correlation_id = self._correlation_id % MAX_CORRELATION_ID + 1
        pieces = encode_request(api, version, self._correlation_id, self._settings.client_id, message)
        if sum(map(len, pieces)) <= JOIN_BELOW_BYTES:
            pieces = [b"".join(pieces)]
        try:
            sock = self._open_socket()
            sock.settimeout(self._settings.request_timeout_ms / 1000)
            for piece in pieces:
                sock.sendall(piece)
        except OSError as problem:
            self.close()
            raise self._unreachable("sending", problem) from None
        except BaseException:
            self.close()
            raise
        self._requests.append(_Request(api, version, self._correlation_id))

    def receive(self) -> Message:
        """The answer to the oldest request that has none yet.

        request_timeout_ms starts here and not with `send`: the answer may have been ready for long while the caller was
        busy with the one before.
        """
        return self._ready.popleft() if self._ready else self._read_answer()

    def has_answer(self) -> bool:
        """Whether `receive` would find at least the beginning of an answer, without waiting for it."""
        if self._ready:
            return True
        if self._socket is None or not self._requests:
            return False
        poll = select.poll()  # not select.select, which ends at 1,024 open files
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def call(self, api: ApiKey, message: Message, *, version: int | None = None) -> Message:
        """Sends a request and waits for its answer. Answers to earlier requests are kept for `receive`."""
        self.send(api, message, version=version)
        while len(self._requests) > 1:
            self._ready.append(self._read_answer())
        return self._read_answer()

    def close(self) -> None:
        """May be called again. Answers that were not received are lost."""
        sock, self._socket = self._socket, None
        self._requests.clear()
        self._ready.clear()
        if sock is not None:
            sock.close()

    def _read_answer(self) -> Message:
        request = self._next_request()
        try:
            frame = self._read_frame(request.api)
            return self._decode(request, frame)
        except OSError as problem:
            self.close()
            raise self._unreachable(f"waiting for the answer to {request.api.name}", problem) from None
        except BaseException:
            self.close()
            raise

    def _next_request(self) -> _Request:
        if self._requests:
            return self._requests.popleft()
        self._open_socket()
        raise RuntimeError(f"receive() from {self.address}: expected a request that has no answer yet")

    def _decode(self, request: _Request, frame: memoryview) -> Message:
        if len(frame) < _LENGTH.size:
            raise self._garbled(request.api, f"{len(frame)} bytes, expected a correlation id at least")
        (correlation_id,) = _LENGTH.unpack_from(frame)
        if correlation_id != request.correlation_id:
            raise self._garbled(
                request.api, f"correlation id {correlation_id}, expected {request.correlation_id}"
            )
        version = 0 if _refuses_versions(request.api, frame) else request.version
        try:
            return decode_response(request.api, version, frame)[1]
        except ProtocolViolation as violation:
            raise self._garbled(request.api, str(violation)) from None

    def _read_frame(self, api: ApiKey) -> memoryview:
        deadline = time.monotonic() + self._settings.request_timeout_ms / 1000
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, deadline))
        if not 0 <= length <= self._settings.max_response_bytes:
            raise self._garbled(
                api,
                f"a length of {length} bytes, expected 0 to {self._settings.max_response_bytes} "
                "(max_response_bytes); a port with TLS or another service answers like this",
            )
        return self._read(length, deadline)

    def _read(self, count: int, deadline: float) -> memoryview:
        """Exactly `count` bytes, without a copy."""
        sock = self._open_socket()
        view = memoryview(bytearray(count))
        position = 0
        while position < count:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError
            sock.settimeout(remaining_s)
            received = sock.recv_into(view[position:])
            if not received:
                raise ConnectionResetError(f"the broker closed the connection after {position} bytes")
            position += received
        return view

    def _open_socket(self) -> socket.socket:
        if self._socket is None:
            raise Unreachable(f"the connection to {self.address} is closed")
        return self._socket

    def _negotiate(self) -> None:
        """Asks with the newest version of ApiVersions; a broker that does not know it answers in version 0."""
        request = ApiVersionsRequest(client_software_name=CLIENT_NAME, client_software_version=CLIENT_VERSION)
        version = schema_range(ApiKey.API_VERSIONS)[1]
        answer = expect(self.call(ApiKey.API_VERSIONS, request, version=version), ApiVersionsResponse)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            answer = expect(self.call(ApiKey.API_VERSIONS, request, version=0), ApiVersionsResponse)
        if answer.error_code != ErrorCode.NONE:
            self.close()
            raise Refused(answer.error_code, f"ApiVersions at {self.address}")
        self._versions = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}

    def _unreachable(self, doing: str, problem: OSError) -> Unreachable:
        return Unreachable(
            f"{self.address}: {explain(problem, self._settings.request_timeout_ms)} while {doing}"
        )

    def _garbled(self, api: ApiKey, found: str) -> Garbled:
        return Garbled(f"{self.address}: the answer to {api.name}: {found}")


def expect(answer: Message, kind: type[M]) -> M:
    """The answer with its type. The codec has made it for the request's API, so this never fails."""
    if not isinstance(answer, kind):
        raise Garbled(f"{type(answer).__name__} where {kind.__name__} was expected")
    return answer


def _refuses_versions(api: ApiKey, frame: memoryview) -> bool:
    """Whether a broker does not know the version of an ApiVersions request: it then answers in version 0. The error
    code has the same position in all versions."""
    if api != ApiKey.API_VERSIONS or len(frame) < _CORRELATION_AND_ERROR.size:
        return False
    return bool(_CORRELATION_AND_ERROR.unpack_from(frame)[1] == ErrorCode.UNSUPPORTED_VERSION)


def explain(problem: OSError, timeout_ms: int) -> str:
    """The text of an OSError."""
    if isinstance(problem, TimeoutError):
        return f"no answer within {timeout_ms} ms"
    return problem.strerror or str(problem) or type(problem).__name__


def _connect(address: ServerAddress, settings: ClientSettings) -> socket.socket:
    """A socket to the first of the host's addresses that accepts; the time is divided among them."""
    timeout_ms = min(settings.request_timeout_ms, CONNECT_TIMEOUT_MS_MAX)
    choices = _resolve(address)
    deadline = time.monotonic() + timeout_ms / 1000
    failure: OSError = TimeoutError()
    for index, (family, where) in enumerate(choices):
        share_s = (deadline - time.monotonic()) / (len(choices) - index)
        try:
            return _connect_to(family, where, max(MIN_CONNECT_S, share_s))
        except OSError as problem:
            failure = problem
    raise Unreachable(
        f"{address}: {explain(failure, timeout_ms)} while connecting: "
        "check that the broker runs and that this address is the right one"
    )


def _resolve(address: ServerAddress) -> list[tuple[int, _Where]]:
    try:
        # Only the resolver's own limits bound this; it has no timeout argument.
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as problem:
        raise Unreachable(
            f"{address}: the host name cannot be resolved ({getattr(problem, 'strerror', None) or problem}): "
            "check bootstrap_servers and the addresses that the brokers advertise",
            retriable=getattr(problem, "errno", None) == socket.EAI_AGAIN,
        ) from None
    return [(family, where) for family, _kind, _protocol, _name, where in found]


def _connect_to(family: int, where: _Where, timeout_s: float) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.connect(where)
    except BaseException:
        sock.close()
        raise
    return sock
