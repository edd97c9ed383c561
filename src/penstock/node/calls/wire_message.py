"""Messages between nodes that have an encoding of their own."""

from typing import Self


class WireMessage:
    """Encodes itself; all other messages are MessagePack."""

    __slots__ = ()

    def to_wire(self) -> bytes | memoryview:
        raise NotImplementedError

    @classmethod
    def from_wire(cls, body: memoryview) -> Self:
        """Raises ProtocolViolation."""
        raise NotImplementedError
