"""A client that may send anything: raw frames over a socket, also such as no well-behaved client would send."""

import socket
import ssl
from collections.abc import Iterable
from typing import Protocol

from penstock.kafka.wire import Message, decode_response, encode_request, join

PATIENCE_SECONDS = 60.0


class Reachable(Protocol):
    """A broker, or one node of several."""

    @property
    def bootstrap_servers(self) -> str: ...


class RawClient:
    """One connection to a broker, with TLS if the broker names an authority."""

    def __init__(self, broker: Reachable, *, receive_buffer: int | None = None) -> None:
        host, port = broker.bootstrap_servers.rsplit(":", 1)
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(PATIENCE_SECONDS)
        self.socket.connect((host, int(port)))
        authority = getattr(broker, "tls_ca_file", None)
        if authority is not None:
            context = ssl.create_default_context(cafile=authority)
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        self._correlation = 0

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def request(self, api_key: int, version: int, message: Message) -> None:
        """Sends a well-formed request without waiting for its answer."""
        self._correlation += 1
        self.send(join(encode_request(api_key, version, self._correlation, "raw", message)))

    def answer(self, api_key: int, version: int) -> tuple[int, Message]:
        """The next answer: its correlation id and its body."""
        return decode_response(api_key, version, memoryview(self.read_frame()))

    def call(self, api_key: int, version: int, message: Message) -> Message:
        self.request(api_key, version, message)
        correlation, body = self.answer(api_key, version)
        assert correlation == self._correlation
        return body

    def read_frame(self) -> bytes:
        return self._read(int.from_bytes(self._read(4), "big"))

    def is_closed_by_broker(self) -> bool:
        """Waits for the broker to close; False if it sends something instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _read(self, count: int) -> bytes:
        parts: list[bytes] = []
        while count:
            part = self.socket.recv(min(count, 1 << 20))
            if not part:
                raise ConnectionError("the broker closed the connection")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def frame(*parts: bytes | Iterable[int]) -> bytes:
    payload = b"".join(bytes(part) for part in parts)
    return len(payload).to_bytes(4, "big") + payload
