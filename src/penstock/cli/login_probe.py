"""Finds out why a broker does not let a command in: TLS, the certificate, the mechanism, the name or the password.

librdkafka tries again and again until its timeout, and then says that no broker answers. So a command that logs in or
encrypts makes one connection of its own first. A command that does neither makes it only after librdkafka has given up.
The probe says nothing where it cannot be sure: a node that is starting closes connections, too.
"""

import secrets
import socket
import ssl
from collections.abc import Mapping
from typing import TypeVar

from penstock.cli.login import is_encrypted, tls_context
from penstock.cli.problem import Problem
from penstock.errors import ErrorCode, ProtocolViolation
from penstock.kafka.wire import ApiKey, Message, decode_response, encode_request, join
from penstock.kafka.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.kafka.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.kafka.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from penstock.security.credentials import SCRAM_MECHANISMS
from penstock.security.errors import AuthenticationError
from penstock.security.scram import ScramClient

ANSWER_SECONDS = 10.0
"""A broker may delay the answer to a wrong password by some seconds."""
MAX_ANSWER_BYTES = 1024 * 1024
NONCE_BYTES = 18
NO_MECHANISM = "NONE"
"""No broker has it: the answer lists those that it has."""

M = TypeVar("M", bound=Message)


class _Closed(Exception):
    """The broker has closed the connection, or does not answer."""


def find_problem(
    address: tuple[str, int], kafka: Mapping[str, str], connect_seconds: float
) -> Problem | None:
    """What keeps a client with these settings of librdkafka out; None if nothing does, or if it is unclear."""
    try:
        with socket.create_connection(address, connect_seconds) as plain:
            plain.settimeout(ANSWER_SECONDS)
            if is_encrypted(kafka):
                return _probe_tls(plain, address, kafka)
            return _probe(plain, _text(address), kafka)
    except OSError:
        return None


def _text(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _probe_tls(plain: socket.socket, address: tuple[str, int], kafka: Mapping[str, str]) -> Problem | None:
    where = _text(address)
    context = tls_context(kafka)
    if kafka.get("ssl.endpoint.identification.algorithm") == "none":
        context.check_hostname = False
    try:
        encrypted = context.wrap_socket(plain, server_hostname=address[0])
    except ssl.SSLCertVerificationError as failure:
        return Problem(
            f"the certificate of {where} is not trusted: {failure.verify_message}",
            "--tls-ca names the file with the authority that signed it; it must name the host that you use, too",
        )
    except OSError:
        return Problem(
            f"{where} speaks no TLS",
            "leave the --tls options out, or name the port that has it with --bootstrap",
        )
    with encrypted:
        try:
            return _probe(encrypted, where, kafka)
        except ssl.SSLError as alert:  # TLS 1.3 refuses a client's certificate after the handshake
            return Problem(
                f"{where} does not accept your certificate, or wants one: {alert.reason}",
                "--tls-cert and --tls-key name a certificate that the broker's authority has signed",
            )


def _probe(connection: socket.socket, where: str, kafka: Mapping[str, str]) -> Problem | None:
    try:
        _call(connection, ApiKey.API_VERSIONS, 0, ApiVersionsRequest(), ApiVersionsResponse)
    except _Closed:
        return None if is_encrypted(kafka) else _wants_tls(where)
    try:
        return _probe_login(connection, where, kafka)
    except _Closed:
        return None


def _wants_tls(where: str) -> Problem:
    return Problem(
        f"{where} does not answer in plain text: it wants TLS, or is no Kafka port",
        "--tls-ca FILE names the authority that signed its certificate; --tls trusts the system's authorities",
    )


def _probe_login(connection: socket.socket, where: str, kafka: Mapping[str, str]) -> Problem | None:
    user, password = kafka.get("sasl.username"), kafka.get("sasl.password")
    wanted = "sasl" in kafka.get("security.protocol", "").lower()
    mechanism = kafka.get("sasl.mechanism", kafka.get("sasl.mechanisms", "")) if wanted else NO_MECHANISM
    request = SaslHandshakeRequest(mechanism=mechanism)
    offered = _call(connection, ApiKey.SASL_HANDSHAKE, 1, request, SaslHandshakeResponse)
    if offered.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        return _wants_login(where, offered.mechanisms, mechanism if wanted else None)
    if offered.error_code == ErrorCode.ILLEGAL_SASL_STATE and wanted:
        return Problem(f"{where} asks for no login", "leave --user out")
    if offered.error_code == ErrorCode.NONE and user is not None and password is not None:
        return _try_password(connection, mechanism, user, password)
    return None


def _wants_login(where: str, mechanisms: list[str], tried: str | None) -> Problem:
    offered = ", ".join(mechanisms)
    if tried is None:
        return Problem(
            f"{where} requires login",
            "--user NAME logs in, with --password-file, PENSTOCK_PASSWORD or a question for the password",
        )
    return Problem(
        f"{where} has no mechanism {tried}", f"it has {offered}: -X sasl.mechanism=NAME chooses one"
    )


def _try_password(connection: socket.socket, mechanism: str, user: str, password: str) -> Problem | None:
    known = {one.sasl_name: one for one in SCRAM_MECHANISMS}
    try:
        if mechanism == "PLAIN":
            _authenticate(connection, f"\0{user}\0{password}".encode())
        elif mechanism in known:
            client = ScramClient(known[mechanism], user, password, secrets.token_urlsafe(NONCE_BYTES))
            challenge = _authenticate(connection, client.first())
            client.verify(_authenticate(connection, client.final(challenge)))
    except (AuthenticationError, ValueError) as refused:
        return Problem(
            f"the login of {user} was refused: {refused}",
            "check the name and the password: --password-file names the file; an administrator sets another password "
            "with `penstock users passwd`",
        )
    return None


def _authenticate(connection: socket.socket, data: bytes) -> bytes:
    request = SaslAuthenticateRequest(auth_bytes=data)
    answer = _call(connection, ApiKey.SASL_AUTHENTICATE, 1, request, SaslAuthenticateResponse)
    if answer.error_code != ErrorCode.NONE:
        raise AuthenticationError(answer.error_message or "the broker gives no reason")
    return bytes(answer.auth_bytes)


def _call(connection: socket.socket, key: ApiKey, version: int, request: Message, kind: type[M]) -> M:
    """The answer. _Closed if there is none; SSLError if the broker refuses the client's certificate."""
    try:
        connection.sendall(join(encode_request(key, version, 1, "penstock-cli", request)))
        size = int.from_bytes(_read(connection, 4), "big")
        if not 0 < size <= MAX_ANSWER_BYTES:
            raise _Closed
        answer = decode_response(key, version, memoryview(_read(connection, size)))[1]
    except ssl.SSLError:
        raise
    except (OSError, ProtocolViolation) as failure:
        raise _Closed from failure
    assert isinstance(answer, kind)
    return answer


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise _Closed
        data += more
    return data
