"""Frames between nodes, byte by byte.

    length  u32, big-endian: how many bytes follow it (kind, body and tag)
    kind    u8: below 16 the transport's own (below), from 16 on the node's
    body
    tag     16 bytes, only between nodes that have a key (seal.py)

Reading: all connections read into one shared scratch buffer and small frames are copied out of it. A frame that is not
yet whole gets a buffer of its own, and the socket reads the rest straight into that: of a large frame only what came
with the frames before it is copied. Buffers above WHOLE_UP_TO grow with what has arrived, never with what was
announced, so that a length of 64 MiB followed by silence costs WHOLE_UP_TO bytes; doubling moves each byte about once
more.
"""

from struct import Struct

from penstock.errors import ProtocolViolation

HEAD = Struct(">IB")
LENGTH_SIZE = 4
KIND_SIZE = 1

INTRODUCTION = 1
REFUSAL = 2
PING = 3
FACTS = 4

SCRATCH_SIZE = 256 * 1024
WHOLE_UP_TO = 2 * 1024 * 1024
"""A frame up to this size gets all of its buffer at once: it holds one message of entries (1 MiB by default) with room
to spare. Only nodes that have introduced themselves get this far."""

_LENGTH = Struct(">I")


class FrameReader:
    """One connection's half-read frame. Call `buffer()`, let the socket fill it, then `filled(n)`."""

    __slots__ = ("_frame", "_have", "_length", "_max_bytes", "_prefix", "_scratch")

    def __init__(self, scratch: memoryview, max_bytes: int) -> None:
        self._scratch = scratch
        self._max_bytes = max_bytes
        self._frame: bytearray | None = None
        self._have = 0
        self._length = 0
        self._prefix = b""

    def buffer(self) -> memoryview:
        """Where the next bytes of the stream belong."""
        if self._frame is not None:
            return memoryview(self._frame)[self._have :]
        return self._scratch[len(self._prefix) :]

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
        if self._frame is None:
            return self._filled_scratch(count)
        self._have += count
        if self._have < len(self._frame):
            return []
        if self._have < self._length:
            self._grow(self._frame)
            return []
        frame, self._frame = self._frame, None
        return [frame]

    def _grow(self, frame: bytearray) -> None:
        # A new one: resizing in place is refused while the socket holds a view of it.
        larger = bytearray(min(self._length, 2 * len(frame)))
        larger[: self._have] = frame
        self._frame = larger

    def _filled_scratch(self, count: int) -> list[bytearray]:
        scratch = self._scratch
        end = count + len(self._prefix)
        if self._prefix:
            scratch[: len(self._prefix)] = self._prefix
            self._prefix = b""
        frames: list[bytearray] = []
        position = 0
        while end - position >= LENGTH_SIZE:
            (length,) = _LENGTH.unpack_from(scratch, position)
            start = position + LENGTH_SIZE
            if not 0 < length <= self._max_bytes:
                raise ProtocolViolation(f"a frame of {length} bytes: expected 1 to {self._max_bytes}")
            if end - start < length:
                self._begin(length, scratch[start:end])
                return frames
            position = start + length
            frames.append(bytearray(scratch[start:position]))
        self._prefix = bytes(scratch[position:end])
        return frames

    def _begin(self, length: int, head: memoryview) -> None:
        self._length = length
        self._have = len(head)
        self._frame = bytearray(min(length, WHOLE_UP_TO))  # more than the scratch buffer can bring
        self._frame[: len(head)] = head
