"""One client's connection: frames in, responses out, in the order of the requests.

Kafka's clients expect responses in request order and rely on requests of one connection taking effect in order. So
requests run one at a time, with one exception that durability needs: a Produce may start while Produces before it wait
for their flush, so that a pipelining producer shares flush cycles instead of paying for one each. A Produce that cannot
append yet holds back those behind it (`hold`): idempotent producers number their batches.

Quotas: a client above one is answered; then the port does not read from its connection for a while (`throttle`).

Back pressure: at most `max_in_flight` requests are held per connection, then its socket is not read; nothing new starts
while the client does not read its responses, and one that never does is closed by the listener's sweep.

Memory (`node.limits.memory`): everything that is held for the client is reserved in the listener's budget. A half-read
request has the connection's reservation `_arriving`. A whole one has its own, in the queue and then in its slot, where
the handler adds what it reads for the response. The bytes of a response belong to `_unsent` until the system has taken
them.
"""

import asyncio
import logging
import math
import re
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Coroutine
from inspect import CORO_CREATED, getcoroutinestate
from typing import TYPE_CHECKING, cast

import msgspec

from penstock.config import Listener
from penstock.errors import KafkaError, ProtocolViolation
from penstock.kafka.handlers.login import Login, LoginState
from penstock.kafka.handlers.registry import BEFORE_LOGIN
from penstock.kafka.handlers.rows import encode_off_loop
from penstock.kafka.wire import ApiKey, Message, RequestHeader, decode_request_header, encode_response
from penstock.node.frames import FrameReader
from penstock.node.limits.memory import Reservation
from penstock.security.exchange import Accepted
from penstock.types import ANONYMOUS, ANONYMOUS_PRINCIPAL, Caller

if TYPE_CHECKING:
    from penstock.kafka.server.listener import KafkaListener

log = logging.getLogger("penstock.kafka")

Buffers = list[bytes | bytearray | memoryview]
Response = Coroutine[None, None, Message | Buffers | None]

_DIGITS = re.compile("[0-9]+")

LINGER_NOT = struct.pack("ii", 1, 0)

JOIN_UP_TO = 64 * 1024
"""Responses of at most this size together are copied into one buffer: cheaper than one more buffer for the kernel."""

TURN_SECONDS = 0.01
"""Produces that wait for nothing are started one after the other, for about so long; then others get their turn."""

LARGE_REQUEST_BYTES = 64 * 1024
"""A request of more than this may have a response of so many rows that it is encoded off the event loop."""

TLS_RECORD = b"\x16\x03"
"""The first bytes of a client that speaks TLS."""
TLS_HINT = "it speaks TLS, and this port does not: set security.protocol=PLAINTEXT there, or tls_cert here"

WRITE_BYTES = 1024 * 1024
"""Of more, the transport gets so many bytes at a time, or one larger piece: it gives their memory back when it has sent
them all."""


TOKEN = RequestHeader(ApiKey.SASL_AUTHENTICATE, -1, 0, None, 0)
"""Stands for the header of a frame that has none: a message of a SASL mechanism after SaslHandshake version 0."""


class _Slot(msgspec.Struct, eq=False):
    """One request in the order of responses: filled when the request is done."""

    header: RequestHeader
    memory: Reservation
    """Of the request and what was read for its response, then of the response."""
    started: float
    done: bool = False
    answer: Buffers | None = None
    task: asyncio.Task[None] | None = None
    waiting_for: Response | None = None

    def give_up(self) -> None:
        """The client has gone, and nothing waits for the response."""
        if self.task is not None and self.waiting_for is not None:
            self.task.cancel()
            if getcoroutinestate(self.waiting_for) == CORO_CREATED:
                self.waiting_for.close()  # its task will never get to run it
        self.memory.release()


class Connection(asyncio.BufferedProtocol):
    """The protocol of one client's connection. Owned by the event loop."""

    is_audited = True
    is_inner = False

    __slots__ = (
        "_arriving",
        "_caller",
        "_client_id",
        "_draining_since",
        "_frames",
        "_groups",
        "_growing",
        "_handed_over",
        "_holds",
        "_leaving",
        "_listener",
        "_lost",
        "_moved",
        "_paused",
        "_pieces",
        "_principal",
        "_queue",
        "_reading",
        "_restricted",
        "_sending",
        "_slots",
        "_throttled",
        "_transport",
        "_unsent",
        "_when_closed",
        "client_software",
        "closed",
        "get_buffer",
        "last_active",
        "login",
        "opened_at",
        "peer",
        "session_ends",
        "settings",
        "why_closed",
    )

    def __init__(self, listener: "KafkaListener", settings: Listener) -> None:
        self._listener = listener
        self.settings = settings
        """Of the port by which the client came."""
        self.login = Login(listener.node, self, settings.mechanisms) if settings.mechanisms else None
        self._restricted = self.login is not None
        """Whether the client must log in, for the first time or again, before it may send anything else."""
        longest = listener.limits.max_login_bytes if self._restricted else listener.max_request_bytes
        self._frames = FrameReader(listener.scratch, longest)
        self.get_buffer = self._frames.buffer  # type: ignore[method-assign]
        """The event loop calls it before each read."""
        self._transport: asyncio.Transport | None = None
        self._slots: deque[_Slot] = deque()
        self._queue: deque[tuple[RequestHeader, bytearray, Reservation]] = deque()
        self._arriving = listener.memory.reserve()
        self._growing = False
        """Whether a half-read request waits for memory."""
        self._unsent = listener.memory.reserve()
        self._pieces: Buffers = []
        """Of responses, for the time when the transport has sent what it has."""
        self._handed_over = 0
        """Bytes that the transport has and has not sent."""
        self._paused = False
        self._moved = 0
        """Bytes that came from the client, and that the transport got for it."""
        self._throttled: asyncio.TimerHandle | None = None
        """Set while the client is throttled: the timer that ends it."""
        self._reading = True
        self._sending = False
        self._leaving = False
        self._lost = False
        self._holds = 0
        self._when_closed: list[Callable[[], None]] = []
        self._draining_since = 0.0
        self.closed = False
        self.last_active = self.opened_at = listener.now
        self.session_ends = math.inf
        """When the client must log in again, by the event loop's clock."""
        self.peer = "?"
        self._principal = ANONYMOUS_PRINCIPAL
        self._groups: tuple[str, ...] = ()
        self._caller = ANONYMOUS
        """The caller of the last request. Made again only when a request comes with another client id."""
        self._client_id: str | None = ""
        self.why_closed: str | None = None
        """The reason, if the broker closed the connection because of the client."""
        self.client_software = ""

    # --- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # Any byte that the system does not take pauses writing: so the end of the pause tells that all were taken.
        self._transport.set_write_buffer_limits(high=0)
        name = transport.get_extra_info("peername")
        if name:
            self.peer = f"{name[0]}:{name[1]}"
            # A client that has shown a certificate is the principal that its subject names.
            self._principal = transport.get_extra_info("principal", ANONYMOUS_PRINCIPAL)
            self._caller = Caller(self._principal, name[0])
            if self._principal != ANONYMOUS_PRINCIPAL:
                self._lift_restriction()
            if self.login is not None:
                self.login.host = name[0]
        if not self._listener.admit(self):
            self.close(f"over limits.max_connections={self._listener.max_connections}")
        elif name and (delay_ms := self._listener.node.quotas.connected(name[0])):
            # As in Kafka: not read, and closed after a while. If it were served then, a client could open any number.
            self.throttle(delay_ms)
            self._listener.loop.call_later(
                delay_ms / 1000, self.close, "over the quota connection_creation_rate of its address"
            )

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._throttled is not None:
            self._throttled.cancel()
        self._drop_queue()
        for slot in self._slots:
            slot.give_up()
        self._slots.clear()
        self._pieces.clear()
        self._arriving.release()
        self._unsent.release()
        self._listener.forget(self)
        self._lost = True
        for callback in self._when_closed:
            self._listener.loop.call_soon(callback)  # the others are called even if one fails
        self._when_closed.clear()

    def buffer_updated(self, nbytes: int) -> None:
        listener, frames = self._listener, self._frames
        memory = listener.memory
        self.last_active = listener.now
        listener.metrics.bytes_in += nbytes
        self._moved += nbytes
        try:
            for frame in frames.filled(nbytes):
                header, size = decode_request_header(frame) if not self._takes_tokens else TOKEN, len(frame)
                memory.used += size - self._arriving.bytes
                self._arriving.bytes = 0
                self._queue.append((header, frame, Reservation(memory, size)))
        except ProtocolViolation as violation:
            speaks_tls = self._moved == nbytes and bytes(listener.scratch[:2]) == TLS_RECORD
            self.close(TLS_HINT if speaks_tls else str(violation))
            return
        if frames.half is not None:
            self._count_arriving()
        if memory.used > memory.max_bytes:
            listener.stop_reading()
        self._pump()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._paused = True
        self._draining_since = self._draining_since or self._listener.now

    def resume_writing(self) -> None:
        self._paused = False
        self._unsent.give_back(self._handed_over)
        self._handed_over = 0
        self._write_pieces()
        if not self._paused:
            self._draining_since = 0.0
            self._pump()

    # --- for the listener's sweep

    @property
    def stuck_since(self) -> float:
        """The time since which the client has not read its responses; 0 if it reads them."""
        return self._draining_since

    @property
    def listener_name(self) -> str:
        return self.settings.name

    @property
    def busy(self) -> bool:
        return bool(self._slots) or self._throttled is not None

    @property
    def held_bytes(self) -> int:
        """Memory that the broker holds for this client."""
        requests = sum(memory.bytes for _, _, memory in self._queue)
        return self._arriving.bytes + requests + sum(s.memory.bytes for s in self._slots) + self._unsent.bytes

    @property
    def moved_bytes(self) -> int:
        """How much the client has sent and read so far: it does its part while this grows."""
        unread = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return self._moved - unread

    def close(self, reason: str) -> None:
        """Closes because of a client's mistake, with one log line for many connections with the same mistake."""
        if not self.closed and self._transport is not None:
            self._listener.warnings.warn(_DIGITS.sub("#", reason), f"closing {self.peer}: {reason}")
            self.closed = True
            self.why_closed = reason
            self._drop_queue()
            self.abort()

    def reset(self, reason: str) -> None:
        """Closes a connection that holds memory, and drops the bytes that wait for it in the system's buffers."""
        if self._transport is not None:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
        self.close(reason)

    def shut_down(self) -> None:
        """The broker stops: responses that are ready are sent, then the connection is closed."""
        self.closed = True
        if self._transport is not None:
            self._transport.writelines(self._pieces)
            self._pieces = []
            self._transport.close()

    # --- quotas

    def throttle(self, milliseconds: int) -> None:
        """Reads and starts nothing for so long, or for longer if it is throttled for longer already."""
        loop = self._listener.loop
        until = loop.time() + milliseconds / 1000
        if (
            milliseconds <= 0
            or self.closed
            or (self._throttled is not None and self._throttled.when() >= until)
        ):
            return
        if self._throttled is not None:
            self._throttled.cancel()
        self._throttled = loop.call_at(until, self._end_throttling)
        self.set_reading()

    def _end_throttling(self) -> None:
        self._throttled = None
        self._pump()

    # --- for handlers

    def send_away(self) -> None:
        self._leaving = True

    def when_closed(self, callback: Callable[[], None]) -> None:
        if self._lost:
            self._listener.loop.call_soon(callback)
        else:
            self._when_closed.append(callback)

    def hold(self) -> Callable[[], None]:
        self._holds += 1
        held = True

        def let_go() -> None:
            nonlocal held
            if held:
                held = False
                self._holds -= 1
                self._pump()

        return let_go

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- requests

    def _pump(self) -> None:
        """Starts requests that may start now, and pauses or resumes reading."""
        queue, slots = self._queue, self._slots
        began = 0.0
        while queue and not (self.closed or self._draining_since or self._holds or self._throttled):
            if slots and not self._may_overlap(queue[0][0]):
                break
            self._start(*queue.popleft())
            if slots:
                began = began or slots[-1].started
                if slots[-1].started - began > TURN_SECONDS and queue:
                    self._listener.loop.call_soon(self._pump)
                    break
        self.set_reading()

    def set_reading(self) -> None:
        """Reads from the socket unless the client, its requests or the memory of all clients are in the way."""
        listener = self._listener
        wanted = (
            len(self._queue) < listener.limits.max_in_flight_requests_per_connection
            and not self._draining_since
            and not self._growing
            and self._throttled is None
            and not listener.is_full
        )
        if wanted != self._reading and self._transport is not None and not self.closed:
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    @property
    def _takes_tokens(self) -> bool:
        """Whether frames are messages of a SASL mechanism, without Kafka's header."""
        return self.login is not None and self.login.state is LoginState.TOKENS

    def _may_overlap(self, header: RequestHeader) -> bool:
        """Whether a request may start while others wait: a Produce behind Produces."""
        return (
            header.api_key == ApiKey.PRODUCE
            and self._slots[-1].header.api_key == ApiKey.PRODUCE
            and len(self._slots) < self._listener.limits.max_in_flight_requests_per_connection
        )

    def _count_arriving(self) -> None:
        """Counts the buffer of a half-read request. If it is full, it needs more memory before more can be read."""
        frames, memory = self._frames, self._arriving
        memory.resize(frames.waiting_bytes)
        if more := frames.wants:
            large = memory.bytes + more > memory.budget.small
            if not (memory.try_take_large(more) if large else memory.try_take(more)):
                self._growing = True
                memory.line_up(more, self._read_on, large=large)

    def _read_on(self) -> None:
        self._growing = False
        self._listener.loop.call_soon(self.set_reading)

    def _drop_queue(self) -> None:
        for _, _, memory in self._queue:
            memory.release()
        self._queue.clear()

    def _start(self, header: RequestHeader, frame: bytearray, memory: Reservation) -> None:
        """Handles a request at once if it need not wait; otherwise in a task of its own."""
        slot = _Slot(header, memory, time.perf_counter())
        self._slots.append(slot)
        try:
            if self._restricted:
                self._check_restricted(header)
            if header.client_id != self._client_id:
                self._set_client_id(header.client_id)
            answer = self._listener.dispatch(self, self._caller, header, memoryview(frame), memory)
        except Exception as problem:  # noqa: BLE001 - `_fail` sorts it out
            self._fail(slot, problem)
            return
        if answer is None or isinstance(answer, list):
            self._done(slot, answer)
        else:
            slot.waiting_for = answer
            slot.task = self._listener.loop.create_task(self._finish(slot, answer))

    def _set_client_id(self, client_id: str | None) -> None:
        longest = self._listener.limits.max_client_id_bytes
        if client_id is not None and len(client_id) > longest:
            raise ProtocolViolation(f"client_id of {len(client_id)} characters: expected {longest} at most")
        self._client_id = client_id
        self._caller = Caller(self._principal, self._caller.host, client_id or "", self._groups)

    # --- logins

    def _check_restricted(self, header: RequestHeader) -> None:
        if header.api_key not in BEFORE_LOGIN:
            why = (
                "its login has expired" if self._principal != ANONYMOUS_PRINCIPAL else "it has not logged in"
            )
            raise ProtocolViolation(f"API {header.api_key} of a client: {why} (SASL)")

    def logged_in(self, accepted: Accepted) -> None:
        """Requests are made by this principal, until its session ends."""
        self._principal, self._groups = accepted.principal, accepted.groups
        self._caller = Caller(self._principal, self._caller.host, self._client_id or "", self._groups)
        lifetime_ms = self._listener.node.logins.lifetime_ms(accepted)
        self.session_ends = self._listener.loop.time() + lifetime_ms / 1000 if lifetime_ms else math.inf
        self._lift_restriction()

    def _lift_restriction(self) -> None:
        self._restricted = False
        self._frames.set_max(self._listener.max_request_bytes)

    def restrict(self) -> None:
        """The session has ended: the client must log in again before anything else."""
        self._restricted = True

    @property
    def waits_for_login(self) -> bool:
        """Whether the client has not logged in for the first time."""
        return self._restricted and self._principal == ANONYMOUS_PRINCIPAL

    async def _finish(self, slot: _Slot, response: Response) -> None:
        try:
            answer = await response
            if isinstance(answer, Message):
                header = slot.header
                if slot.memory.bytes > LARGE_REQUEST_BYTES:
                    answer = await encode_off_loop(header, answer)
                else:
                    answer = encode_response(
                        header.api_key, header.api_version, header.correlation_id, answer
                    )
            self._done(slot, answer)
        except Exception as problem:  # noqa: BLE001 - `_fail` sorts it out
            self._fail(slot, problem)
        finally:
            if self._lost:
                slot.memory.release()

    def _fail(self, slot: _Slot, problem: Exception) -> None:
        """The client made a mistake, or this broker has a bug: both close this connection and no other."""
        header = slot.header
        self._listener.metrics.request_done(header.api_key, time.perf_counter() - slot.started, True)
        if isinstance(problem, ProtocolViolation):
            self.close(str(problem))
        elif isinstance(problem, KafkaError):
            self.close(f"API {header.api_key} v{header.api_version}: {problem}")
        else:
            log.error(
                "API %s v%s of %s: the broker has a bug; the request fails and its connection is closed",
                header.api_key,
                header.api_version,
                self.peer,
                exc_info=problem,
            )
            self.close("the broker has a bug (the traceback is above)")

    def _done(self, slot: _Slot, answer: Buffers | None) -> None:
        self._listener.metrics.request_done(slot.header.api_key, time.perf_counter() - slot.started, False)
        if self.closed:
            return
        slot.answer = answer
        slot.memory.resize(sum(map(len, answer)) if answer is not None else 0)
        slot.done = True
        if not self._sending:
            self._sending = True
            self._listener.loop.call_soon(self._send_answers)

    def _send_answers(self) -> None:
        """Runs once per turn of the event loop: a flush that completes a hundred requests costs one write."""
        self._sending = False
        slots = self._slots
        out: Buffers = []
        size = 0
        while slots and slots[0].done:
            slot = slots.popleft()
            if slot.answer is not None:
                out.extend(slot.answer)
            size += slot.memory.bytes
            slot.memory.bytes = 0
        self._unsent.bytes += size
        if out and self._transport is not None and not self._transport.is_closing():
            self._listener.metrics.bytes_out += size
            if size <= JOIN_UP_TO and not self._paused:
                self._transport.write(b"".join(out))
                self._written(size)
            else:
                self._pieces += out
                self._write_pieces()
        if self._leaving and not slots:
            self._drop_queue()
            self.shut_down()
        if self._queue or not self._reading:
            self._pump()

    def _write_pieces(self) -> None:
        """Gives the transport as much as it takes."""
        assert self._transport is not None
        while self._pieces and not self._paused:
            size = count = 0
            while size < WRITE_BYTES and count < len(self._pieces):
                size += len(self._pieces[count])
                count += 1
            some = self._pieces[:count]
            del self._pieces[:count]
            self._transport.writelines(some)
            self._written(size)

    def _written(self, size: int) -> None:
        """The transport has the bytes. It has paused if the system did not take them all."""
        self._moved += size
        if self._paused:
            self._handed_over = size
        else:
            self._unsent.bytes -= size
            self._listener.memory.give_back(size)
