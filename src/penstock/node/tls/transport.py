"""One connection with TLS: ciphertext on the side of the socket, plaintext on the side of a protocol.

It is the protocol of the socket's transport, and the transport of the inner protocol, which is made when the handshake
is over. The event loop's own TLS is not used, for three reasons: it holds as much unsent ciphertext as it was given at
once and calls that sent, so memory could not be bounded; each of its connections has a buffer of 256 KB; and it reads
no byte before a context is chosen, so that a client that speaks no TLS gets no hint.

Back pressure. `pause_writing` and `resume_writing` of the socket's transport are passed on as they are: ciphertext is
handed over at once, so "the system has taken all" means the same as without TLS. While the inner protocol does not
read, at most one read of the socket (SCRATCH_BYTES) waits here. A peer that makes TLS itself answer (key updates) and
does not read these answers is not read either.

The end. `close` sends close_notify and does not wait for the peer's: all protocols here know where a message ends.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol, cast

Buffer = bytes | bytearray | memoryview
InnerProtocol = asyncio.BufferedProtocol | asyncio.Protocol

SCRATCH_BYTES = 128 * 1024
"""One read of a socket: eight TLS records of the greatest size. Reads of half the size cost a tenth more CPU; larger
ones gain little, and this is what a connection may hold uncounted."""
PLAINTEXT_BYTES = 16 * 1024
"""The most in one TLS record."""
JOIN_UP_TO = 16 * 1024
"""Pieces are joined until they fill a TLS record: each record costs 22 bytes and a call."""

HANDSHAKE_RECORD = 0x16
"""The first byte that a TLS client sends."""


class HandshakeOwner(Protocol):
    """The port that a connection belongs to until its handshake is over."""

    scratch: memoryview

    def opened(self, connection: "TlsTransport") -> None: ...

    def context(self) -> ssl.SSLContext: ...

    def admits(self, connection: "TlsTransport") -> bool:
        """The handshake has succeeded. False: the port does not want this peer all the same."""
        ...

    def not_tls(self, connection: "TlsTransport", first: bytes) -> bytes:
        """The peer does not speak TLS; returns an answer in plaintext."""
        ...

    def failed(self, connection: "TlsTransport", problem: str) -> None: ...

    def ended(self, connection: "TlsTransport") -> None:
        """Called for every connection, once, when its handshake is over or has failed."""
        ...


class TlsTransport(asyncio.BufferedProtocol, asyncio.Transport):
    """Owned by the event loop."""

    __slots__ = (
        "_blocked",
        "_extra_facts",
        "_held",
        "_hostname",
        "_in",
        "_inner",
        "_is_buffered",
        "_new_protocol",
        "_out",
        "_owner",
        "_reading",
        "_server_side",
        "_shaking",
        "_socket",
        "_ssl",
        "closing",
        "host",
    )

    def __init__(
        self,
        owner: HandshakeOwner,
        new_protocol: Callable[[], InnerProtocol],
        *,
        dials: bool = False,
        hostname: str | None = None,
    ) -> None:
        """`new_protocol` is called when the handshake has succeeded. `hostname`: for the side that dials."""
        self._owner = owner
        self._new_protocol = new_protocol
        self._server_side = not dials
        self._hostname = hostname
        self._socket: asyncio.Transport | None = None
        self._ssl: ssl.SSLObject | None = None
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._inner: Any = None
        self._is_buffered = False
        self._shaking = True
        """Whether the handshake is not over."""
        self._blocked = False
        """Whether the socket does not take all that was written."""
        self._held = False
        """Whether nothing is read until the socket takes the answers of TLS itself."""
        self._reading = True
        """Whether the inner protocol wants to read."""
        self.closing = False
        self.host = "?"
        self._extra_facts: dict[str, object] = {}

    # --- the socket's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        self.host = str(name[0]) if name else "?"
        self._owner.opened(self)
        if not self._server_side and not self.closing:
            self._start()
            self._shake_hands()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        self._fail("the connection ended")
        inner, self._inner = self._inner, None
        self._ssl = None
        self._socket = None
        if inner is not None:
            inner.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._owner.scratch

    def buffer_updated(self, nbytes: int) -> None:
        if self.closing:
            return
        arrived = self._owner.scratch[:nbytes]
        if self._ssl is None:
            if arrived[0] != HANDSHAKE_RECORD:
                self._refuse_plaintext(bytes(arrived[:16]))
                return
            self._start()
        self._in.write(arrived)
        if self._shaking:
            self._shake_hands()
        else:
            self._read()

    def eof_received(self) -> bool:
        if self._shaking:
            self._fail(
                "the client closed the connection" if self._server_side else "it closed the connection"
            )
        elif self._inner is not None:
            self._inner.eof_received()
        return False

    def pause_writing(self) -> None:
        self._blocked = True
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._blocked = False
        if self._held:
            self._held = False
            self._set_reading()
        if self._inner is not None:
            self._inner.resume_writing()

    # --- the handshake

    def _start(self) -> None:
        self._ssl = self._owner.context().wrap_bio(
            self._in, self._out, server_side=self._server_side, server_hostname=self._hostname
        )

    def _shake_hands(self) -> None:
        assert self._ssl is not None
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._send_ciphertext()
            return
        except (ssl.SSLError, ValueError) as problem:  # ValueError: a host name that cannot be checked
            self._send_ciphertext()  # the alert, which tells the peer why
            self._fail(handshake_problem(problem))
            self._close_socket()
            return
        self._send_ciphertext()
        self._establish()

    def _establish(self) -> None:
        is_admitted = self._owner.admits(self)
        self._shaking = False
        self._owner.ended(self)
        if not is_admitted:
            self.close()
            return
        inner = self._new_protocol()
        self.set_protocol(inner)
        inner.connection_made(self)
        if not self.closing:
            self._read()

    def _refuse_plaintext(self, first: bytes) -> None:
        answer = self._owner.not_tls(self, first)
        self._over()
        if self._socket is not None:
            self._socket.write(answer)
        self._close_socket()

    def _fail(self, problem: str) -> None:
        """Reports a handshake that did not come to its end."""
        if self._shaking:
            if (
                self._ssl is not None
            ):  # otherwise nothing came, as from a load balancer that looks whether a port is open
                self._owner.failed(self, problem)
            self._over()

    def _over(self) -> None:
        self._shaking = False
        self.closing = True
        self._owner.ended(self)

    # --- plaintext in

    def _read(self) -> None:
        """Hands over what has arrived, as far as the inner protocol reads it."""
        try:
            while self._reading and not self.closing:
                if not (self._read_into() if self._is_buffered else self._read_some()):
                    break
        except ssl.SSLZeroReturnError:
            self._end_of_stream()
            return
        except ssl.SSLError as problem:
            self._break(problem)
            return
        self._send_answers()

    def _read_into(self) -> bool:
        """Fills the buffer of the inner protocol as far as possible; False if nothing more has arrived."""
        assert self._ssl is not None
        place = memoryview(self._inner.get_buffer(-1))
        size, read, count = len(place), self._ssl.read, 0
        try:
            while count < size:
                taken = cast(int, read(size - count, place[count:]))
                if not taken:
                    break
                count += taken
        except ssl.SSLWantReadError:
            if not count:
                return False
            self._inner.buffer_updated(count)
            return False
        except ssl.SSLZeroReturnError:
            if count:
                self._inner.buffer_updated(count)
            raise
        if not count:
            raise ssl.SSLZeroReturnError
        self._inner.buffer_updated(count)
        return True

    def _read_some(self) -> bool:
        assert self._ssl is not None
        try:
            data = self._ssl.read(PLAINTEXT_BYTES)
        except ssl.SSLWantReadError:
            return False
        if not data:
            raise ssl.SSLZeroReturnError
        self._inner.data_received(data)
        return True

    def _end_of_stream(self) -> None:
        """The peer has sent close_notify."""
        if self._inner is not None and not self.closing:
            self._inner.eof_received()
        self.close()

    def _break(self, problem: ssl.SSLError) -> None:
        """The peer's bytes are not TLS any more."""
        self._send_ciphertext()
        self.abort()

    def _send_answers(self) -> None:
        """Sends what TLS itself answers to what it has read."""
        if self._out.pending:
            self._send_ciphertext()
            if self._blocked and not self.closing:
                self._held = True
                self._set_reading()

    def _set_reading(self) -> None:
        if self._socket is None or self.closing or self._socket.is_closing():
            return
        if self._reading and not self._held:
            self._socket.resume_reading()
        else:
            self._socket.pause_reading()

    def _read_again(self) -> None:
        if self._reading and not self.closing and self._ssl is not None:
            self._read()

    # --- ciphertext out

    def _encrypt(self, data: Buffer) -> None:
        assert self._ssl is not None
        write, size = self._ssl.write, len(data)
        sent = write(data)
        if sent < size:
            rest = memoryview(data)
            while sent < size:
                sent += write(rest[sent:])

    def _send_ciphertext(self) -> None:
        if self._socket is not None and (data := self._out.read()):
            self._socket.write(data)

    def _close_socket(self) -> None:
        self.closing = True
        if self._socket is not None:
            self._socket.close()

    # --- the transport of the inner protocol

    def write(self, data: Buffer) -> None:
        if self.closing or not data:
            return
        try:
            self._encrypt(data)
        except ssl.SSLError as problem:
            self._break(problem)
            return
        self._send_ciphertext()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        if self.closing:
            return
        try:
            for piece in _joined(list_of_data):
                self._encrypt(piece)
        except ssl.SSLError as problem:
            self._break(problem)
            return
        self._send_ciphertext()

    def write_eof(self) -> None:
        """No more will be written; the peer is still read until it closes."""
        self._send_close_notify()
        if self._socket is not None and not self._socket.is_closing():
            self._socket.write_eof()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if self.closing and (self._socket is None or self._socket.is_closing()):
            return
        self._send_close_notify()
        self._close_socket()

    def _send_close_notify(self) -> None:
        if self._ssl is None or self._shaking:
            return
        with suppress(OSError):  # it asks for the peer's close_notify, which is not waited for
            self._ssl.unwrap()
        self._send_ciphertext()

    def abort(self) -> None:
        self.closing = True
        if self._socket is not None:
            self._socket.abort()

    def is_closing(self) -> bool:
        return self.closing or self._socket is None or self._socket.is_closing()

    def pause_reading(self) -> None:
        self._reading = False
        self._set_reading()

    def resume_reading(self) -> None:
        """Bytes that were decrypted or wait here come first, in the next turn: callers do not expect them in this."""
        self._reading = True
        self._set_reading()
        asyncio.get_running_loop().call_soon(self._read_again)

    def is_reading(self) -> bool:
        return self._reading and not self.closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._socket is not None:
            self._socket.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._socket.get_write_buffer_size() if self._socket is not None else 0

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._inner = protocol
        self._is_buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return cast(asyncio.BaseProtocol, self._inner)

    def set_extra_info(self, name: str, value: object) -> None:
        """A fact for `get_extra_info`."""
        self._extra_facts[name] = value

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name in self._extra_facts:
            return self._extra_facts[name]
        if name == "peercert":
            return self._ssl.getpeercert() if self._ssl is not None else default
        if name == "ssl_object":
            return self._ssl if self._ssl is not None else default
        if name == "sslcontext":
            return self._ssl.context if self._ssl is not None else default
        return self._socket.get_extra_info(name, default) if self._socket is not None else default


def _joined(pieces: Iterable[Buffer]) -> Iterable[Buffer]:
    """The same bytes, with small neighbours joined."""
    small: list[Buffer] = []
    size = 0
    for piece in pieces:
        if len(piece) > JOIN_UP_TO:
            if small:
                yield b"".join(small)
                small, size = [], 0
            yield piece
        else:
            small.append(piece)
            size += len(piece)
            if size > JOIN_UP_TO:
                yield b"".join(small)
                small, size = [], 0
    if small:
        yield b"".join(small)


def handshake_problem(problem: Exception) -> str:
    """OpenSSL's reason in words."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"its certificate was refused: {problem.verify_message}"
    reason = getattr(problem, "reason", None)
    return str(reason).lower().replace("_", " ") if reason else str(problem)
