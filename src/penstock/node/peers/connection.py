"""One connection to another node: the handshake, then frames both ways.

Writing: frames of one turn of the loop are gathered and handed to the socket together, small ones joined, large ones as
they are. Frames that the socket does not take wait here, up to `max_peer_queue_bytes`; beyond that `send` drops them.
Nothing ever waits for a peer: consensus resends lost frames, and an unbounded queue would only delay new ones. Frames
of the urgent kinds overtake all others that wait here, so that a heartbeat is not late because a replica catches up.

Reading: each frame is passed on at once, and senders limit themselves (by bytes in flight). If frames that arrived
together take long, the rest is passed on in the next turns of the loop, and nothing is read meanwhile.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

import msgspec

from penstock.config import Address, Limits
from penstock.errors import ProtocolViolation
from penstock.node.frames import FrameReader
from penstock.node.peers.frames import FACTS, FIRST_BUFFER, HEAD, KIND_SIZE, PING, REFUSAL
from penstock.node.peers.handshake import Handshake, PeerRefused
from penstock.node.peers.hello import ANY_NODE, HELLO_MAX_BYTES, PeerHello, decode_hello, decode_refusal
from penstock.node.peers.seal import TAG_SIZE, FrameSeal
from penstock.node.peers.transport import FIRST_FREE_KIND, Body, Buffer, TransportEvents

log = logging.getLogger("penstock.peers")

WRITE_HIGH_WATER = 512 * 1024
"""Bytes that the transport holds before it says stop. Small, so that urgent frames overtake as much as possible."""

PORTION_BYTES = 1024 * 1024
"""Handed to the transport at once: enough for one large write, no more than twice its high water."""

JOIN_UP_TO = 16 * 1024
"""Pieces up to this size are copied together: cheaper than one more buffer for the kernel."""


SLICE_SECONDS = 0.01
"""Frames are handled for so long before other work gets its turn. A single frame is never interrupted."""

FRAME_OVERHEAD = HEAD.size + TAG_SIZE
"""Bytes that a frame counts beside its body, with or without a key."""

_Frame = tuple[int, int, list[Buffer]]
"""Kind, size of the body, and the body in pieces."""


class Traffic(msgspec.Struct):
    """Counters of all peers together, for metrics."""

    bytes_in: int = 0
    bytes_out: int = 0
    frames_dropped: int = 0


class ConnectionOwner(Protocol):
    """The network that a connection belongs to."""

    scratch: memoryview
    limits: Limits
    events: TransportEvents
    traffic: Traffic
    urgent_kinds: frozenset[int]
    now: float

    def opened(self, connection: "PeerConnection") -> Handshake: ...

    def refused(self, connection: "PeerConnection", refused: PeerRefused) -> None: ...

    def established(self, connection: "PeerConnection") -> None: ...

    def facts_changed(self, connection: "PeerConnection", hello: PeerHello) -> None: ...

    def lost(self, connection: "PeerConnection") -> None: ...


class PeerConnection(asyncio.BufferedProtocol):
    """Owned by the event loop and by one PeerNetwork."""

    def __init__(
        self, owner: ConnectionOwner, *, dialled: Address | None = None, expects: int = ANY_NODE
    ) -> None:
        self._owner = owner
        self.dialled = dialled
        self.expects = expects
        self.where = str(dialled or "?")
        self.host = dialled.host if dialled else "?"
        self.told: PeerHello | None = None
        """The facts of this node that the peer was told last."""
        self.peer: PeerHello | None = None
        """The other node, once the handshake has succeeded."""
        self.closed = False
        self.reason = "the other side closed it"
        """Why it ended."""
        self.opened_at = self.last_heard = self.last_sent = owner.now
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the handshake is over, with or without success."""
        self.refused: PeerRefused | None = None
        self.version = 0
        """The version of the protocol that both sides speak; 0 before the handshake is over."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._handshake: Handshake | None = None
        self._frames: FrameReader | None = None
        self._seal_out: FrameSeal | None = None
        self._seal_in: FrameSeal | None = None
        self._tag_size = 0
        self._arrived: deque[bytearray] = deque()
        self._holds_reading = False
        """Frames have arrived that wait for a later turn."""
        self._urgent: deque[_Frame] = deque()
        self._waiting: deque[_Frame] = deque()
        self._queued_bytes = 0
        self._scheduled = False
        self._paused = False

    # --- the socket's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        name = transport.get_extra_info("peername")
        if self.dialled is None and name:
            self.where, self.host = str(Address(name[0], name[1])), str(name[0])
        self._handshake = self._owner.opened(self)
        opening = self._handshake.opening()
        if opening:
            self._transport.write(opening)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and not self.closed:
            self.reason = str(exc)
        self.closed = True
        self._arrived.clear()
        self._urgent.clear()
        self._waiting.clear()
        self._queued_bytes = 0
        if not self.over.done():
            self.over.set_result(None)
        self._owner.lost(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frames is not None:
            return self._frames.buffer()
        return self._owner.scratch[:HELLO_MAX_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        self.last_heard = self._owner.now
        if self.closed or self.refused is not None:
            return  # read and dropped, so that a reset does not destroy this node's refusal on its way
        self._owner.traffic.bytes_in += nbytes
        self._guard(self._take_bytes, nbytes)

    def _take_bytes(self, nbytes: int) -> None:
        if self._frames is None:
            self._shake_hands(self._owner.scratch[:nbytes])
        else:
            self._deliver(self._frames.filled(nbytes))

    def _guard(self, act: Callable[..., None], *arguments: object) -> None:
        """Closes the connection if the other node, or this one, makes a mistake."""
        try:
            act(*arguments)
        except ProtocolViolation as violation:
            self.close(str(violation))
        except Exception as bug:
            log.error("a bug in handling a frame of %s", self.peer or self.where, exc_info=bug)
            self.close("this node failed to handle a frame (see the traceback above)")

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush()

    # --- the handshake

    def _shake_hands(self, data: memoryview) -> None:
        assert self._handshake is not None
        assert self._transport is not None
        try:
            answer = self._handshake.feed(data)
        except PeerRefused as refused:
            self._end(refused)
            return
        if answer:
            self._transport.write(answer)
        if self._handshake.over:
            self._establish(self._handshake)

    def _end(self, refused: PeerRefused) -> None:
        """Says why and half-closes; the other side or the deadline closes the rest."""
        assert self._transport is not None
        self.refused = refused
        self.reason = str(refused)
        if refused.farewell:
            self._transport.write(refused.farewell)
            self._transport.write_eof()
        else:
            self._transport.abort()
        self._owner.refused(self, refused)
        if not self.over.done():
            self.over.set_result(None)

    def _establish(self, handshake: Handshake) -> None:
        self.peer = handshake.hello
        self.version = handshake.version
        seals = handshake.seals()
        if seals is not None:
            self._seal_out, self._seal_in = seals
            self._tag_size = TAG_SIZE
        self._frames = FrameReader(self._owner.scratch, self._owner.limits.max_peer_frame_bytes, FIRST_BUFFER)
        rest = handshake.rest()
        self._handshake = None
        self._owner.established(self)
        if not self.over.done():
            self.over.set_result(None)
        if rest:
            self._deliver(self._frames.take(rest))

    # --- frames in

    def _deliver(self, frames: list[bytearray]) -> None:
        self._arrived.extend(frames)
        if not self._holds_reading:
            self._handle_arrived()

    def _handle_arrived(self) -> None:
        began = time.perf_counter()
        while self._arrived and not self.closed:
            self._handle(self._arrived.popleft())
            if self._arrived and time.perf_counter() - began >= SLICE_SECONDS:
                self._hold_reading(True)
                self._loop.call_soon(self._guard, self._handle_arrived)
                return
        self._hold_reading(False)

    def _hold_reading(self, hold: bool) -> None:
        if self._holds_reading != hold and self._transport is not None and not self._transport.is_closing():
            self._holds_reading = hold
            if hold:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _handle(self, frame: bytearray) -> None:
        assert self.peer is not None
        body = memoryview(frame)[KIND_SIZE:]
        if self._seal_in is not None:
            body = self._unsealed(self._seal_in, frame, body)
        if frame[0] >= FIRST_FREE_KIND:
            self._owner.events.on_frame(self.peer.node, frame[0], body)
        else:
            self._own_frame(frame[0], body)

    def _unsealed(self, seal: FrameSeal, frame: bytearray, body: memoryview) -> memoryview:
        head = HEAD.pack(len(frame), frame[0])
        if len(body) < TAG_SIZE or not seal.is_next(head, body[:-TAG_SIZE], body[-TAG_SIZE:]):
            raise ProtocolViolation("a frame with a wrong tag: changed, repeated or moved on its way")
        return body[:-TAG_SIZE]

    def _own_frame(self, kind: int, body: memoryview) -> None:
        if kind == FACTS:
            self._owner.facts_changed(self, decode_hello(body))
        elif kind == REFUSAL:
            self._end(PeerRefused(decode_refusal(body), ours=False, hello=self.peer))
        elif kind != PING:
            raise ProtocolViolation(f"a frame of the unknown kind {kind}")

    # --- frames out

    def send(self, kind: int, body: Body) -> bool:
        """Queues the frame, or drops it and returns False. ValueError for one that is larger than peers accept."""
        pieces = body if type(body) is list else [cast(Buffer, body)]
        size = sum([len(piece) for piece in pieces])
        if self.closed or self.refused is not None or not self._fits(size):
            self._owner.traffic.frames_dropped += 1
            return False
        queue = self._urgent if kind in self._owner.urgent_kinds else self._waiting
        queue.append((kind, size, pieces))
        self._queued_bytes += size + FRAME_OVERHEAD
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush_turn)
        return True

    def _fits(self, size: int) -> bool:
        limits = self._owner.limits
        if size > limits.max_peer_frame_bytes - KIND_SIZE - TAG_SIZE:
            raise ValueError(f"a frame of {size} bytes: the limit is {limits.max_peer_frame_bytes}")
        assert self._transport is not None
        return self.waiting_bytes + size <= limits.max_peer_queue_bytes

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were accepted for this peer and the system has not taken yet."""
        assert self._transport is not None
        return self._queued_bytes + self._transport.get_write_buffer_size()

    def _flush_turn(self) -> None:
        self._scheduled = False
        self._flush()

    def _flush(self) -> None:
        transport = self._transport
        while (self._urgent or self._waiting) and not self._paused:
            if transport is None or transport.is_closing():
                return
            portion = self._next_portion()
            self.last_sent = self._owner.now
            if len(portion) == 1:
                transport.write(portion[0])
            else:
                transport.writelines(portion)

    def _next_portion(self) -> list[Buffer]:
        """Frames are sealed here and not before: a tag counts the frames that went out, and urgent ones overtake."""
        portion: list[Buffer] = []
        small: list[Buffer] = []
        taken = 0
        while taken < PORTION_BYTES and (queue := self._urgent or self._waiting):
            kind, size, pieces = queue.popleft()
            taken += size + FRAME_OVERHEAD
            head = HEAD.pack(KIND_SIZE + size + self._tag_size, kind)
            small.append(head)
            if size <= JOIN_UP_TO:
                small.extend(pieces)
            else:
                portion.append(b"".join(small))
                portion.extend(pieces)
                small.clear()
            if self._seal_out is not None:
                small.append(self._seal_out.tag(head, pieces))
        if small:
            portion.append(b"".join(small))
        self._queued_bytes -= taken
        self._owner.traffic.bytes_out += taken
        return portion

    # --- the end

    def close(self, reason: str) -> None:
        """Ends the connection at once; waiting frames are dropped. Also ends a `shut_down` that takes too long."""
        if not self.closed:
            self.closed = True
            self.reason = reason
        self.abort()

    def not_opened(self, reason: str) -> None:
        """There will be no connection: TLS has failed before it began."""
        self.closed = True
        self.reason = reason
        if not self.over.done():
            self.over.set_result(None)

    def abort(self) -> None:
        """Ends the connection without sending the rest."""
        if self._transport is not None:
            self._transport.abort()

    def shut_down(self) -> None:
        """This node stops: queued frames are sent, then the connection ends."""
        self._flush()
        self.closed = True
        self.reason = "this node stops"
        if self._transport is not None:
            self._transport.close()
