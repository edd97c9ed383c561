"""One connection to one broker: blocking, requests answered in the order in which they were sent.

A connection that had any trouble (a timeout, an answer that is cut off or makes no sense, an interrupt in the
middle of a read) is closed, because nobody knows any more where the next answer starts. Whoever wants to go on
opens a new one.
"""

import select
import socket
import struct
import time
from collections import deque
from typing import Final, NamedTuple, TypeAlias

from penstock.client.errors import Garbled, Refused, Unreachable
from penstock.client.wire.settings import ClientSettings, ServerAddress
from penstock.errors import ErrorCode, ProtocolViolation
from penstock.kafka.wire import ApiKey, Message, decode_response, encode_request, schema_range
from penstock.kafka.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

CONNECT_TIMEOUT_MS_MAX: Final = 10_000
"""A host that is there answers a SYN at once; the rest of a request's time is for thinking."""
MAX_CORRELATION_ID: Final = 2**31 - 1
JOIN_BELOW_BYTES: Final = 64 << 10
"""Requests up to this size leave in one write; larger ones are not copied for it."""
MIN_CONNECT_S: Final = 0.001
"""A timeout of 0 would mean not to wait at all, which is an error of its own."""
CLIENT_NAME: Final = "penstock-client"
CLIENT_VERSION: Final = "1"

_Where: TypeAlias = tuple[str | int, ...] | tuple[int, bytes]
"""What getaddrinfo gives and connect takes."""

_LENGTH: Final = struct.Struct(">i")
_CORRELATION_AND_ERROR: Final = struct.Struct(">ih")


class _Asked(NamedTuple):
    """A request whose answer has not been read."""

    api: ApiKey
    version: int
    correlation_id: int


class Connection:
    """Connects and agrees on versions when it is made."""

    def __init__(self, host: str, port: int, settings: ClientSettings) -> None:
        self.address = ServerAddress(host, port)
        self._settings = settings
        self._correlation_id = 0
        self._asked: deque[_Asked] = deque()
        self._ready: deque[Message] = deque()
        self._socket: socket.socket | None = _connect(self.address, settings)
        self._versions: dict[int, tuple[int, int]] = {}
        self._negotiate()

    @property
    def closed(self) -> bool:
        return self._socket is None

    @property
    def outstanding(self) -> int:
        """Answers that have yet to be received."""
        return len(self._asked) + len(self._ready)

    def version_of(self, api: ApiKey, *, at_least: int = 0, at_most: int = 1 << 15) -> int:
        """The highest version that both ends know, within the bounds that the caller can live with."""
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
        """Sends a request; its answer is to be received later, after those of the requests before it."""
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
        self._asked.append(_Asked(api, version, self._correlation_id))

    def receive(self) -> Message:
        """The answer to the oldest request that has none yet.

        The clock of request_timeout_ms starts here and not with `send`: the answer may have lain ready for long while
        the caller was busy with the one before.
        """
        return self._ready.popleft() if self._ready else self._read_answer()

    def has_answer(self) -> bool:
        """Whether `receive` would find at least the beginning of an answer, without waiting for it."""
        if self._ready:
            return True
        if self._socket is None or not self._asked:
            return False
        poll = select.poll()  # not select.select, which ends at 1,024 open files
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def call(self, api: ApiKey, message: Message, *, version: int | None = None) -> Message:
        """Sends a request and waits for its answer. Answers to earlier requests are kept for `receive`."""
        self.send(api, message, version=version)
        while len(self._asked) > 1:
            self._ready.append(self._read_answer())
        return self._read_answer()

    def close(self) -> None:
        """Calling it twice is fine. Answers that were not received are lost."""
        sock, self._socket = self._socket, None
        self._asked.clear()
        self._ready.clear()
        if sock is not None:
            sock.close()

    def _read_answer(self) -> Message:
        asked = self._next_asked()
        try:
            frame = self._read_frame(asked.api)
            return self._decode(asked, frame)
        except OSError as problem:
            self.close()
            raise self._unreachable(f"waiting for the answer to {asked.api.name}", problem) from None
        except BaseException:
            self.close()
            raise

    def _next_asked(self) -> _Asked:
        if self._asked:
            return self._asked.popleft()
        self._open_socket()
        raise RuntimeError(f"receive() from {self.address}: expected a request that has no answer yet")

    def _decode(self, asked: _Asked, frame: memoryview) -> Message:
        if len(frame) < _LENGTH.size:
            raise self._garbled(asked.api, f"{len(frame)} bytes, expected a correlation id at least")
        (correlation_id,) = _LENGTH.unpack_from(frame)
        if correlation_id != asked.correlation_id:
            raise self._garbled(
                asked.api, f"correlation id {correlation_id}, expected {asked.correlation_id}"
            )
        version = 0 if _refuses_versions(asked.api, frame) else asked.version
        try:
            return decode_response(asked.api, version, frame)[1]
        except ProtocolViolation as violation:
            raise self._garbled(asked.api, str(violation)) from None

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
        """Exactly `count` bytes, read straight to where they stay."""
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
        """Asks for versions in the newest way; a broker that does not know it says so in the oldest."""
        wish = ApiVersionsRequest(client_software_name=CLIENT_NAME, client_software_version=CLIENT_VERSION)
        version = schema_range(ApiKey.API_VERSIONS)[1]
        answer = self._ask_versions(wish, version)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            answer = self._ask_versions(wish, 0)
        if answer.error_code != ErrorCode.NONE:
            self.close()
            raise Refused(answer.error_code, f"ApiVersions at {self.address}")
        self._versions = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}

    def _ask_versions(self, wish: ApiVersionsRequest, version: int) -> ApiVersionsResponse:
        answer = self.call(ApiKey.API_VERSIONS, wish, version=version)
        assert isinstance(answer, ApiVersionsResponse)
        return answer

    def _unreachable(self, doing: str, problem: OSError) -> Unreachable:
        return Unreachable(
            f"{self.address}: {explain(problem, self._settings.request_timeout_ms)} while {doing}"
        )

    def _garbled(self, api: ApiKey, found: str) -> Garbled:
        return Garbled(f"{self.address}: the answer to {api.name}: {found}")


def _refuses_versions(api: ApiKey, frame: memoryview) -> bool:
    """Whether a broker does not know the version of an ApiVersions request: it says so in version 0, whatever was
    asked. The error code has the same place in all versions."""
    if api != ApiKey.API_VERSIONS or len(frame) < _CORRELATION_AND_ERROR.size:
        return False
    return bool(_CORRELATION_AND_ERROR.unpack_from(frame)[1] == ErrorCode.UNSUPPORTED_VERSION)


def explain(problem: OSError, timeout_ms: int) -> str:
    """An OSError in words."""
    if isinstance(problem, TimeoutError):
        return f"no answer within {timeout_ms} ms"
    return problem.strerror or str(problem) or type(problem).__name__


def _connect(address: ServerAddress, settings: ClientSettings) -> socket.socket:
    """A socket to the first of the host's addresses that takes it; each gets its share of the time."""
    timeout_ms = min(settings.request_timeout_ms, CONNECT_TIMEOUT_MS_MAX)
    choices = _resolve(address)
    deadline = time.monotonic() + timeout_ms / 1000
    trouble: OSError = TimeoutError()
    for index, (family, where) in enumerate(choices):
        share_s = (deadline - time.monotonic()) / (len(choices) - index)
        try:
            return _connect_to(family, where, max(MIN_CONNECT_S, share_s))
        except OSError as problem:
            trouble = problem
    raise Unreachable(
        f"{address}: {explain(trouble, timeout_ms)} while connecting: "
        "check that the broker runs and that this address is the right one"
    )


def _resolve(address: ServerAddress) -> list[tuple[int, _Where]]:
    try:
        # The resolver's own limits bound this; there is no way to give it one.
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
