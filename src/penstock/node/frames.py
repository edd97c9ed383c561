"""Cuts a byte stream into frames, for Kafka clients and for other nodes: a big-endian u32 length, then that many bytes.

Most frames arrive whole in one read. So all connections of a listener read into one shared scratch buffer, and small
frames are copied out of it; an idle connection owns no buffer at all. A frame that is not yet whole gets a buffer of
its own, and the socket reads the rest straight into that: of a large frame only the part that came with the frames
before it is copied.

A buffer grows with the bytes that have *arrived*, never with the length that the peer *announced*: a length of 100 MB
followed by silence costs `first_buffer` bytes. A listener sets that to what a peer may cost before it has sent much:
little for unknown clients, more for nodes that have introduced themselves. A full buffer grows with the next read: a
listener whose peers share some memory asks how much that will take (`wants`), and does not read before it is there.
"""

from penstock.errors import ProtocolViolation

LENGTH_SIZE = 4
SCRATCH_SIZE = 256 * 1024

FIRST_BUFFER = 64 * 1024
"""The size of the first buffer for a frame from a client."""

WHOLE_UP_TO = 2 * 1024 * 1024
"""Frames up to this size get their whole buffer once they have filled the first one: doubling moves each byte about
once more. It holds one batch of the default max.message.bytes (1 MiB), and one message of entries between nodes."""


class FrameReader:
    """One connection's half-read frame. Call `buffer()`, let the socket fill it, then `filled(n)`."""

    __slots__ = ("_first_buffer", "_have", "_length", "_max_bytes", "_prefix", "_scratch", "half")

    def __init__(self, scratch: memoryview, max_bytes: int, first_buffer: int = FIRST_BUFFER) -> None:
        self._scratch = scratch
        self._max_bytes = max_bytes
        self._first_buffer = first_buffer
        self.half: bytearray | None = None
        """The buffer of a frame that has not arrived whole."""
        self._have = 0
        self._length = 0
        self._prefix = b""

    def set_max(self, max_bytes: int) -> None:
        """The largest frame from now on."""
        self._max_bytes = max_bytes

    def buffer(self, sizehint: int = -1) -> memoryview:
        """The place for the next bytes of the stream. `sizehint` is the event loop's and is ignored."""
        if self.half is not None:
            if self._have == len(self.half):
                self._grow(self.half)
            return memoryview(self.half)[self._have :]
        return self._scratch[len(self._prefix) :] if self._prefix else self._scratch

    @property
    def waiting_bytes(self) -> int:
        """Memory that a half-read frame holds."""
        return len(self.half) if self.half is not None else len(self._prefix)

    @property
    def wants(self) -> int:
        """How much larger the buffer will be for the next bytes."""
        frame = self.half
        return self._next_size(frame) - len(frame) if frame is not None and self._have == len(frame) else 0

    def take(self, data: bytes) -> list[bytearray]:
        """`filled`, for bytes that came before there was a reader."""
        frames: list[bytearray] = []
        while data:
            place = self.buffer()
            portion = data[: len(place)]
            place[: len(portion)] = portion
            frames += self.filled(len(portion))
            data = data[len(portion) :]
        return frames

    def filled(self, count: int) -> list[bytearray]:
        """`count` bytes arrived in the buffer; returns the frames that are now whole, without their lengths."""
        if self.half is not None:
            return self._filled_frame(self.half, count)
        scratch, end, position = self._scratch, count, 0
        if self._prefix:
            end += len(self._prefix)
            scratch[: len(self._prefix)] = self._prefix
            self._prefix = b""
        frames: list[bytearray] = []
        while end - position >= LENGTH_SIZE:
            start = position + LENGTH_SIZE
            length = int.from_bytes(scratch[position:start], "big")
            if not 0 < length <= self._max_bytes:
                raise ProtocolViolation(
                    f"frame length {length}: expected 1 to {self._max_bytes} bytes (does the peer speak this "
                    "protocol, without TLS?)"
                )
            position = start + length
            if end < position:
                self._begin_frame(length, scratch[start:end])
                return frames
            frames.append(bytearray(scratch[start:position]))
        if position < end:
            self._prefix = bytes(scratch[position:end])
        return frames

    def _begin_frame(self, length: int, head: memoryview) -> None:
        self._length = length
        self._have = len(head)
        self.half = bytearray(min(length, max(self._first_buffer, 2 * len(head))))
        self.half[: len(head)] = head

    def _filled_frame(self, frame: bytearray, count: int) -> list[bytearray]:
        self._have += count
        if self._have < self._length:
            return []
        self.half = None
        return [frame]

    def _grow(self, frame: bytearray) -> None:
        """Copies into a larger buffer; resizing in place is refused while the socket holds a view of it."""
        larger = bytearray(self._next_size(frame))
        larger[: self._have] = frame
        self.half = larger

    def _next_size(self, frame: bytearray) -> int:
        return self._length if self._length <= WHOLE_UP_TO else min(self._length, 2 * len(frame))
