"""Cutting a byte stream into Kafka frames: a big-endian int32 length, then that many bytes.

Theory: most frames arrive whole in one read, so all connections of a listener read into one shared scratch buffer and
small frames are copied out of it; an idle connection therefore owns no buffer at all. A frame that is not yet whole
gets a buffer of its own and the socket reads straight into that. The buffer grows with what has *arrived*, never with
what the peer *announced*: a length of 100 MB followed by silence costs GROW_FROM bytes.
"""

from penstock.errors import ProtocolViolation

LENGTH_SIZE = 4
SCRATCH_SIZE = 256 * 1024
GROW_FROM = 64 * 1024
"""First buffer for a large frame; it doubles as it fills, up to the announced length."""

WHOLE_UP_TO = 1024 * 1024 + 64 * 1024
"""Frames up to one default-sized batch get their whole buffer once they have filled GROW_FROM: doubling would copy."""


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

    @property
    def waiting_bytes(self) -> int:
        """Memory that a half-read frame holds."""
        return len(self._frame) if self._frame is not None else len(self._prefix)

    def filled(self, count: int) -> list[bytearray]:
        """`count` bytes arrived in the buffer; returns the frames that are now whole."""
        if self._frame is not None:
            return self._filled_frame(count)
        return self._filled_scratch(count)

    def _filled_frame(self, count: int) -> list[bytearray]:
        frame = self._frame
        assert frame is not None
        self._have += count
        if self._have < len(frame):
            return []
        if len(frame) < self._length:
            self._grow()
            return []
        self._frame = None
        return [frame]

    def _grow(self) -> None:
        """Copies into a larger buffer; resizing in place is refused while the socket holds a view of it."""
        assert self._frame is not None
        whole = self._length <= WHOLE_UP_TO
        larger = bytearray(self._length if whole else min(self._length, 2 * len(self._frame)))
        larger[: self._have] = self._frame
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
            length = self._checked_length(scratch, position)
            start = position + LENGTH_SIZE
            if end - start < length:
                self._begin_frame(length, scratch[start:end])
                return frames
            frames.append(bytearray(scratch[start : start + length]))
            position = start + length
        self._prefix = bytes(scratch[position:end])
        return frames

    def _checked_length(self, scratch: memoryview, position: int) -> int:
        length = int.from_bytes(scratch[position : position + LENGTH_SIZE], "big", signed=True)
        if 0 < length <= self._max_bytes:
            return length
        raise ProtocolViolation(
            f"frame length {length}: expected 1 to {self._max_bytes} bytes (is this a Kafka client, without TLS?)"
        )

    def _begin_frame(self, length: int, head: memoryview) -> None:
        self._length = length
        self._have = len(head)
        self._frame = bytearray(min(length, max(GROW_FROM, 2 * len(head))))
        self._frame[: len(head)] = head
