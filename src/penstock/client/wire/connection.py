"""One connection to one broker: blocking, requests answered in the order in which they were sent.

After any failure (a timeout, an answer that is cut off or cannot be decoded, an interrupt in the middle of a read) the
connection is closed, because it is no longer known where the next answer starts. The caller opens a new one.

A login may be good for a limited time. The client then logs in again on the same connection (KIP-368), before the first
request that it sends after most of this time.
"""

import math
import secrets
import select
import socket
import struct
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from penstock.client.errors import ClientError, Garbled, LoginFailed, Refused, TlsFailed, Unreachable
from penstock.client.security_settings import NO_SECURITY, SecuritySettings
from penstock.client.wire.settings import ClientSettings, ServerAddress
from penstock.client.wire.sockets import begin_tls, connect, failure
from penstock.errors import ErrorCode, ProtocolViolation
from penstock.kafka.wire import ApiKey, Message, decode_response, encode_request, schema_range
from penstock.kafka.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.kafka.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.kafka.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from penstock.client.wire.login import Login

MAX_CORRELATION_ID: Final = 2**31 - 1
JOIN_BELOW_BYTES: Final = 64 << 10
"""Requests up to this size are joined for one write; larger ones are not copied."""
CLIENT_NAME: Final = "penstock-client"
CLIENT_VERSION: Final = "1"
BEFORE_LOGIN: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
"""What a broker answers to a client that has not logged in; on anything else it closes the connection."""
HANDSHAKE_VERSION_MIN: Final = 1
"""In version 0 the mechanism's messages have no header, and no error can be told."""
NONCE_BYTES: Final = 18
"""24 characters, as SCRAM's examples have."""
PROBE_MS: Final = 3_000
"""How long the client tries to find out why a broker has closed a new connection."""
NO_MECHANISM: Final = "?"
"""Asks a broker for the names of its mechanisms: it refuses this one and lists those that it has."""

M = TypeVar("M", bound=Message)

_LENGTH: Final = struct.Struct(">i")
_CORRELATION_AND_ERROR: Final = struct.Struct(">ih")


class _Request(NamedTuple):
    """A request whose answer has not been read."""

    api: ApiKey
    version: int
    correlation_id: int


class Connection:
    """Its constructor connects, negotiates API versions, and logs in."""

    def __init__(self, host: str, port: int, settings: ClientSettings) -> None:
        self.address = ServerAddress(host, port)
        self._settings = settings
        self._correlation_id = 0
        self._requests: deque[_Request] = deque()
        self._ready: deque[Message] = deque()
        self._has_served = False
        """Whether a request was answered that needs no login."""
        self._login_again_s = math.inf
        """On the monotonic clock."""
        self._versions: dict[int, tuple[int, int]] = {}
        self._socket: socket.socket | None = self._open_socket()
        self._negotiate()
        if settings.security.mechanism:
            self._log_in()

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
        if time.monotonic() >= self._login_again_s:
            self._log_in()
        if version is None:
            version = self.version_of(api)
        self._correlation_id = self._correlation_id % MAX_CORRELATION_ID + 1
        pieces = encode_request(api, version, self._correlation_id, self._settings.client_id, message)
        if sum(map(len, pieces)) <= JOIN_BELOW_BYTES:
            pieces = [b"".join(pieces)]
        try:
            sock = self._checked_socket()
            sock.settimeout(self._settings.request_timeout_ms / 1000)
            for piece in pieces:
                sock.sendall(piece)
        except OSError as problem:
            self.close()
            raise failure(problem, self.address, self._settings, "sending") from None
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
        if self._settings.security.tls and self._socket.pending():  # type: ignore[attr-defined]  # SSLSocket's
            return True
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
            answer = self._decode(request, frame)
        except OSError as problem:
            self.close()
            raise self._lost(request.api, problem) from None
        except BaseException:
            self.close()
            raise
        self._has_served |= request.api not in BEFORE_LOGIN
        return answer

    def _next_request(self) -> _Request:
        if self._requests:
            return self._requests.popleft()
        self._checked_socket()
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
        sock = self._checked_socket()
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

    def _checked_socket(self) -> socket.socket:
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

    # --- logins

    def _log_in(self) -> None:
        """Answers to earlier requests are kept for `receive`."""
        from penstock.client.wire.login import (  # most clients do not log in
            REAUTHENTICATE_AFTER,
            login_messages,
        )

        self._login_again_s = math.inf
        began_s = time.monotonic()
        try:
            self._choose_mechanism()
            nonce = secrets.token_urlsafe(NONCE_BYTES)
            lifetime_ms = self._exchange(login_messages(self._settings.security, nonce))
        except BaseException:
            self.close()
            raise
        if lifetime_ms > 0:
            self._login_again_s = began_s + lifetime_ms / 1000 * REAUTHENTICATE_AFTER

    def _choose_mechanism(self) -> None:
        from penstock.client.wire.login import handshake_refused

        security = self._settings.security
        answer = self._handshake(security.mechanism)
        if answer.error_code != ErrorCode.NONE:
            raise handshake_refused(self.address, security, answer.error_code, answer.mechanisms)

    def _handshake(self, mechanism: str) -> SaslHandshakeResponse:
        version = self.version_of(ApiKey.SASL_HANDSHAKE, at_least=HANDSHAKE_VERSION_MIN)
        answer = self.call(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism=mechanism), version=version)
        return expect(answer, SaslHandshakeResponse)

    def _exchange(self, login: "Login") -> int:
        """Returns how many milliseconds the login is good for; 0: for ever."""
        from penstock.client.wire.login import login_refused
        from penstock.security.errors import AuthenticationError

        data = next(login)
        while True:
            request = SaslAuthenticateRequest(auth_bytes=data)
            answer = expect(self.call(ApiKey.SASL_AUTHENTICATE, request), SaslAuthenticateResponse)
            if answer.error_code != ErrorCode.NONE:
                raise login_refused(self.address, self._settings.security, answer.error_message)
            try:
                data = login.send(answer.auth_bytes)
            except StopIteration:
                return answer.session_lifetime_ms
            except AuthenticationError as doubt:
                raise LoginFailed(f"{self.address}: {doubt}: check that this is the right broker") from None

    # --- failures

    def _open_socket(self) -> socket.socket:
        sock = connect(self.address, self._settings)
        if not self._settings.security.tls:
            return sock
        try:
            return begin_tls(sock, self.address, self._settings)
        except Unreachable as lost:
            raise _tls_unwanted(self.address, self._settings) or lost from None

    def _lost(self, api: ApiKey, problem: OSError) -> ClientError:
        """The connection broke before the answer came. A broker that wants TLS, or a login, closes a new one without a
        word: then the client finds out."""
        if isinstance(problem, ConnectionError) and not self._has_served:
            reason = self._why_closed(api)
            if reason is not None:
                return reason
        return failure(problem, self.address, self._settings, f"waiting for the answer to {api.name}")

    def _why_closed(self, api: ApiKey) -> ClientError | None:
        security = self._settings.security
        if api == ApiKey.API_VERSIONS and not security.tls:
            return _tls_wanted(self.address)
        if api not in BEFORE_LOGIN and not security.mechanism:
            return _login_wanted(self.address, self._settings)
        return None

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


def _tls_wanted(address: ServerAddress) -> TlsFailed | None:
    from penstock.client.tls_context import CA_NAMES, speaks_tls

    if not speaks_tls(*address, PROBE_MS / 1000):
        return None
    advice = f"name the authority that signed its certificate: {CA_NAMES}"
    return TlsFailed(f"{address}: this port speaks TLS only: {advice}", problem="wanted")


def _tls_unwanted(address: ServerAddress, settings: ClientSettings) -> TlsFailed | None:
    try:
        Connection(*address, _probing(settings, NO_SECURITY)).close()
    except ClientError:
        return None
    from penstock.client.tls_context import no_tls

    return no_tls(str(address))


def _probing(settings: ClientSettings, security: SecuritySettings) -> ClientSettings:
    timeout_ms = min(PROBE_MS, settings.request_timeout_ms)
    return replace(settings, request_timeout_ms=timeout_ms, security=security)


def _login_wanted(address: ServerAddress, settings: ClientSettings) -> LoginFailed | None:
    from penstock.client.wire.login import login_required

    offered = _offered_instead(address, settings, NO_MECHANISM)
    return login_required(address, offered) if offered else None


def mechanism_missing(address: ServerAddress, settings: ClientSettings, mechanism: str) -> LoginFailed | None:
    """Whether the broker does not offer a mechanism, which this client need not know. `settings` have no login."""
    from penstock.client.wire.login import handshake_refused

    offered = _offered_instead(address, settings, mechanism)
    wanted = replace(settings.security, mechanism=mechanism)
    refusal = ErrorCode.UNSUPPORTED_SASL_MECHANISM
    return handshake_refused(address, wanted, refusal, offered) if offered else None


def _offered_instead(address: ServerAddress, settings: ClientSettings, mechanism: str) -> list[str]:
    """The mechanisms of a broker that does not offer this one; empty if it does, or has no logins, or is gone."""
    try:
        probe = Connection(*address, _probing(settings, settings.security))
        try:
            answer = probe._handshake(mechanism)
        finally:
            probe.close()
    except ClientError:
        return []
    return answer.mechanisms if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM else []
