"""The fields of records in internal topics, in Kafka's encodings: of the offsets topic and of the transaction topic.

All numbers are big-endian. A `string` is an int16 length and UTF-8 bytes, with length -1 for null; a `blob` is an
int32 length and bytes. Flexible versions have compact fields instead: a `varint` is seven bits per byte, the lowest
first, the top bit set in all but the last; a compact string is a varint of its length plus one, and UTF-8 bytes. Tagged
fields are a varint of their number, and then for each, in ascending order, a varint tag, a varint size and the value.
"""

import struct
from collections.abc import Mapping

from penstock.errors import UnknownFormat

VARINT_BYTES_MAX = 5


def string(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def blob(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def compact_string(text: str) -> bytes:
    data = text.encode()
    return varint(len(data) + 1) + data


def tagged_fields(tags: Mapping[int, bytes]) -> bytes:
    """`tags` must be in ascending order."""
    return varint(len(tags)) + b"".join(
        varint(tag) + varint(len(value)) + value for tag, value in tags.items()
    )


class FieldReader:
    """Reads fields one after the other, and never past the end. Bytes that it cannot read are UnknownFormat."""

    def __init__(self, data: bytes, source: str) -> None:
        """`source` says in errors where the record is from."""
        self._data = data
        self._source = source
        self._position = 0

    def int8(self) -> int:
        return int.from_bytes(self._take(1), "big", signed=True)

    def int16(self) -> int:
        return int.from_bytes(self._take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self._take(8), "big", signed=True)

    def whole_int16(self) -> int:
        """A value that is one number and nothing else."""
        number = self.int16()
        self.finish()
        return number

    def whole_int64(self) -> int:
        number = self.int64()
        self.finish()
        return number

    def whole_text(self) -> str:
        return self._text(len(self._data))

    def varint(self) -> int:
        number = 0
        for place in range(VARINT_BYTES_MAX):
            (byte,) = self._take(1)
            number |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                return number
        raise self.unknown("a number that does not end")

    def tags(self) -> dict[int, bytes]:
        return {self.varint(): self._take(self.varint()) for _ in range(self.varint())}

    def compact_string(self) -> str:
        return self._text(self.varint() - 1)

    def nullable_compact_string(self) -> str | None:
        """A length of 0 stands for null."""
        size = self.varint()
        return None if size == 0 else self._text(size - 1)

    def raw(self, size: int) -> bytes:
        return self._take(size)

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise self.unknown("null where text should be")
        return text

    def nullable_string(self) -> str | None:
        length = self.int16()
        return None if length == -1 else self._text(length)

    def _text(self, length: int) -> str:
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            raise self.unknown("text that is not UTF-8") from None

    def blob(self) -> bytes:
        return self._take(self.int32())

    def finish(self) -> None:
        if self._position != len(self._data):
            raise self.unknown(f"{len(self._data) - self._position} bytes too many")

    def unknown(self, what: str) -> UnknownFormat:
        return UnknownFormat(f"a record of {self._source} has {what}; start the version that wrote it")

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise self.unknown("too few bytes")
        taken = self._data[self._position : end]
        self._position = end
        return taken
