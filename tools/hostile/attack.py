"""The hands of an attacker: connections to the nodes, which the harness closes, and what it noticed."""

import http.client
import json
import socket
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tests.kafka.raw import RawClient
from tests.kafka.requests import ask
from tools.hostile.brokers import Attacked, Brokers

HOST = "127.0.0.1"
SOCKET_SECONDS = 30.0
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: closing sends a reset."""
CREATE_VERSION = 5
CREATE_TIMEOUT_MS = 60_000


class Plan(NamedTuple):
    """The part of the generator's attacks to run."""

    seed: int = 0
    first: int = 0
    attacks: int | None = None
    seconds: float = 20.0


class HttpResponse(NamedTuple):
    status: int
    body: bytes


class Attack:
    """One attacker, for the time of one scenario."""

    def __init__(self, brokers: Brokers, plan: Plan) -> None:
        self.brokers = brokers
        self.plan = plan
        self.problems: list[str] = []
        """What the attacker itself saw and the broker should not have done."""
        self.note = ""
        """A figure of this scenario alone."""
        self.details: list[str] = []
        """More for people who look for the cause."""
        self._sockets: list[socket.socket] = []
        self._is_over = False

    @property
    def node(self) -> Attacked:
        return self.brokers.nodes[0]

    def fail(self, problem: str) -> None:
        self.problems.append(problem)

    # --- connections

    def connect(
        self, port: int, *, receive_buffer: int | None = None, source: str | None = None
    ) -> socket.socket:
        """`source`: the address to come from, another one of this machine."""
        self._check_time()
        made = socket.socket()
        if source is not None:
            made.bind((source, 0))
        if receive_buffer is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        made.settimeout(SOCKET_SECONDS)
        self._sockets.append(made)
        made.connect((HOST, port))
        return made

    def kafka(self, node: Attacked | None = None, *, receive_buffer: int | None = None) -> RawClient:
        self._check_time()
        client = RawClient((node or self.node).node, receive_buffer=receive_buffer)
        client.socket.settimeout(SOCKET_SECONDS)
        self._sockets.append(client.socket)
        return client

    def _check_time(self) -> None:
        """TimeoutError, which no scenario expects from a node: it ends the scenario."""
        if self._is_over:
            raise TimeoutError("the time of this scenario is over")

    def close(self, one: socket.socket, *, reset: bool = False) -> None:
        with suppress(OSError):
            if reset:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            one.close()
        with suppress(ValueError):
            self._sockets.remove(one)

    def close_all(self) -> None:
        for one in self._sockets:
            with suppress(OSError):
                one.close()
        self._sockets.clear()

    def give_up(self) -> None:
        """Ends whatever the attacker is doing: from another thread, when its time is over."""
        self._is_over = True
        for one in list(self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    # --- requests

    def http(self, method: str, path: str, body: object = None) -> HttpResponse:
        """A well-formed request on a connection of its own."""
        one = self.connect(self.node.http_port)
        try:
            one.sendall(http_request(method, path, None if body is None else json.dumps(body).encode()))
            return read_response(one)
        finally:
            self.close(one)

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> int:
        """The error code of the response."""
        own = [
            CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()
        ]
        with self.kafka() as client:
            wanted = CreatableTopic(name=name, num_partitions=partitions, replication_factor=-1, configs=own)
            request = CreateTopicsRequest(topics=[wanted], timeout_ms=CREATE_TIMEOUT_MS)
            answer = ask(client, ApiKey.CREATE_TOPICS, CREATE_VERSION, request, CreateTopicsResponse)
            return answer.topics[0].error_code

    def must_create(self, name: str, partitions: int = 1, **configs: str) -> None:
        code = self.create_topic(name, partitions, **configs)
        if code != ErrorCode.NONE:
            self.fail(f"topic {name} with {partitions} partitions was not created: error {code}")


def http_request(
    method: str, path: str, body: bytes | None = None, headers: Iterable[tuple[str, str]] = ()
) -> bytes:
    """The bytes of a request; with a body, also its length and type."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {HOST}", *(f"{name}: {value}" for name, value in headers)]
    if body is not None:
        lines += [f"Content-Length: {len(body)}", "Content-Type: application/json"]
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + (body or b"")


def read_response(one: socket.socket) -> HttpResponse:
    """The next response. OSError if none comes."""
    response = http.client.HTTPResponse(one)
    try:
        response.begin()
        return HttpResponse(response.status, response.read())
    except (http.client.HTTPException, ValueError) as problem:
        raise ConnectionError(f"no response: {problem!r}") from None
    finally:
        response.close()


def decoded(response: HttpResponse) -> Any:
    return json.loads(response.body)


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began
