"""SaslHandshake and SaslAuthenticate: how a Kafka client says who it is.

    state            request                          then
    START            SaslHandshake version 1          EXCHANGE
                     SaslHandshake version 0          TOKENS: frames are the mechanism's, without Kafka's header
    EXCHANGE         SaslAuthenticate                 EXCHANGE, until the client is accepted: LOGGED_IN
    TOKENS           a frame                          TOKENS, until the client is accepted: LOGGED_IN
    LOGGED_IN        SaslHandshake version 1          EXCHANGE: the client logs in again, as the same user (KIP-368)

Any other request of these two is answered with ILLEGAL_SASL_STATE. A login that fails is answered after a delay
(`node.access.logins`), and the connection is closed. The connection decides which requests a client may
send before it has logged in.
"""

import asyncio
import struct
from enum import Enum
from typing import Protocol

from penstock.errors import ErrorCode, ProtocolViolation
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.kafka.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from penstock.node import Node
from penstock.security.errors import AuthenticationError
from penstock.security.exchange import Accepted, Exchange, Rejected, Step
from penstock.security.mechanisms import OAUTHBEARER
from penstock.security.principals import name_of

_LENGTH = struct.Struct(">i")


class LoginState(Enum):
    START = "has not begun to log in"
    EXCHANGE = "logs in"
    TOKENS = "logs in, without Kafka's headers"
    LOGGED_IN = "has logged in"


class ClientOfLogin(Protocol):
    """The part of a connection that a login sets."""

    peer: str

    def logged_in(self, accepted: Accepted) -> None:
        """From now on requests are made by this principal."""
        ...

    def send_away(self) -> None: ...


class Login:
    """The login of one connection, by one of the mechanisms of its listener."""

    __slots__ = (
        "_accepted_by",
        "_client",
        "_exchange",
        "_mechanism",
        "_node",
        "host",
        "mechanisms",
        "principal",
        "state",
    )

    def __init__(self, node: Node, client: ClientOfLogin, mechanisms: tuple[str, ...]) -> None:
        self._node = node
        self._client = client
        self._exchange: Exchange | None = None
        self._mechanism = ""
        """The mechanism of the login that is under way, or was the last."""
        self._accepted_by = ""
        """The mechanism of the last login that succeeded. A handshake alone does not change it: a client that begins to
        log in again by a token, and never goes on, would otherwise outlive its user."""
        self.mechanisms = mechanisms
        self.host = ""
        self.principal: str | None = None
        """Set by the first login. A connection keeps its principal."""
        self.state = LoginState.START

    @property
    def is_deleted(self) -> bool:
        """Whether the user has no password any more. Users of an identity provider have none here."""
        if self.principal is None or self._accepted_by == OAUTHBEARER:
            return False
        return name_of(self.principal) not in self._node.metadata.state.access.users

    def handshake(self, version: int, mechanism: str) -> SaslHandshakeResponse:
        response = SaslHandshakeResponse(mechanisms=list(self.mechanisms))
        again = self.state is LoginState.LOGGED_IN and version > 0
        if self.state is not LoginState.START and not again:
            response.error_code = ErrorCode.ILLEGAL_SASL_STATE
        elif mechanism not in self.mechanisms:
            response.error_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        else:
            self._mechanism = mechanism
            self._exchange = self._node.logins.begin(mechanism)
            self.state = LoginState.EXCHANGE if version > 0 else LoginState.TOKENS
        return response

    async def authenticate(self, data: bytes) -> SaslAuthenticateResponse:
        if self.state is not LoginState.EXCHANGE:
            return SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message="expected SaslHandshake first"
            )
        step = await self._step(data)
        if isinstance(step, Rejected):
            self._client.send_away()
            return SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=step.message
            )
        lifetime_ms = self._lifetime_ms(step) if isinstance(step, Accepted) else 0
        return SaslAuthenticateResponse(auth_bytes=step.data, session_lifetime_ms=lifetime_ms)

    async def take_token(self, data: bytes) -> list[bytes | bytearray | memoryview] | None:
        """A message of the mechanism, for clients that sent version 0 of SaslHandshake. None: it was refused, and the
        mechanism has no words for that."""
        if self.state is not LoginState.TOKENS:
            # It was read before the login had ended: nothing tells whether it is a message or a request.
            raise ProtocolViolation(
                "a client sent more behind its last SASL message, before the login had ended"
            )
        step = await self._step(data)
        if isinstance(step, Rejected):
            self._client.send_away()
            return None
        return [_LENGTH.pack(len(step.data)) + step.data]

    async def _step(self, data: bytes) -> Step:
        assert self._exchange is not None
        logins = self._node.logins
        try:
            step = await logins.step(self._mechanism, self._exchange, data, self.host)
        except AuthenticationError as trouble:
            step = Rejected(trouble.reason, trouble.message)
        if isinstance(step, Accepted) and self.principal not in (None, step.principal):
            reason = f"a connection of {self.principal} tried to become {step.principal}"
            step = Rejected(reason, "a connection keeps its user: open another one")
        if isinstance(step, Accepted):
            self._accept(step)
        elif isinstance(step, Rejected):
            await self._reject(step)
        return step

    def _accept(self, accepted: Accepted) -> None:
        self._exchange = None
        self.state = LoginState.LOGGED_IN
        if self.principal is None:
            self._node.audit.logged_in(accepted.principal, self._client.peer, "kafka", self._mechanism)
        self.principal = accepted.principal
        self._accepted_by = self._mechanism
        self._client.logged_in(accepted)

    async def _reject(self, rejected: Rejected) -> None:
        self._exchange = None
        self._node.metrics.failed_logins += 1
        peer, reason = self._client.peer, rejected.reason
        self._node.audit.login_failed(self.host, peer, "kafka", self._mechanism, reason)
        await asyncio.sleep(self._node.logins.failed(self.host))

    def _lifetime_ms(self, accepted: Accepted) -> int:
        """For how long the client is known; 0 for ever."""
        return self._node.logins.lifetime_ms(accepted)


def sasl_handshake(context: RequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    login = context.connection.login
    if login is None:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
    return login.handshake(context.api_version, request.mechanism)


async def sasl_authenticate(
    context: RequestContext, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    login = context.connection.login
    if login is None:
        message = "clients do not log in on this port"
        return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=message)
    return await login.authenticate(request.auth_bytes)
