"""Functions that a generated decoder calls in rare cases: long varints, tags, refusals.

The generated code itself handles the usual case (a one-byte varint, no tags, lengths that fit).
"""

import struct
from functools import lru_cache
from typing import Final, NoReturn
from uuid import UUID

from penstock.kafka.wire.schema import MAX_STRING_BYTES, NO_UUID

MAX_CACHED_UUIDS: Final = 4096
"""Topic ids come again and again, and making a UUID costs as much as decoding a whole partition."""


class InvalidField(Exception):
    """A check failed; the message says what was expected. The codec turns it into a ProtocolViolation."""


class CountOverLimit(InvalidField):
    """More elements than the caller allows; there may be bytes enough for them."""


def rest_of_varint(buf: memoryview, pos: int, first: int) -> tuple[int, int]:
    """An unsigned varint whose first byte, read already, says that there is more; 5 bytes at most."""
    byte = buf[pos]
    pos += 1
    value = first & 0x7F | (byte & 0x7F) << 7
    if byte < 0x80:
        return value, pos
    for shift in (14, 21, 28):
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
    raise InvalidField("expected a varint of at most 5 bytes")


def read_varint(buf: memoryview, pos: int) -> tuple[int, int]:
    first = buf[pos]
    return (first, pos + 1) if first < 0x80 else rest_of_varint(buf, pos + 1, first)


def read_tag(buf: memoryview, pos: int) -> tuple[int, int, int]:
    """A tagged field's tag, where its value ends and where it starts."""
    tag, pos = read_varint(buf, pos)
    size, pos = read_varint(buf, pos)
    if size > len(buf) - pos:
        raise InvalidField(f"expected a tagged field of {size} bytes, {len(buf) - pos} remain")
    return tag, pos + size, pos


def skip_tags(buf: memoryview, pos: int, count: int, budget: int) -> tuple[int, int]:
    """Past tagged fields that this version does not know; `count` is the first byte of their number."""
    if count > 127:
        count, pos = rest_of_varint(buf, pos, count)
    if count > budget:
        refuse_count(count, 2, len(buf) - pos, budget)
    for _ in range(count):
        _, pos, _ = read_tag(buf, pos)
    return pos, budget - count


@lru_cache(maxsize=MAX_CACHED_UUIDS)
def to_uuid(raw: bytes) -> UUID:
    value = UUID(bytes=raw)
    return NO_UUID if value == NO_UUID else value


def refuse_negative(length: int, nullable: bool) -> NoReturn:
    if length == -1:
        raise InvalidField("expected a value, found null")
    raise InvalidField(f"expected a length{' or null' if nullable else ''}, found {length}")


def refuse_length(length: int, remaining: int) -> NoReturn:
    if length > remaining:
        raise InvalidField(f"expected {length} bytes, {remaining} remain")
    raise InvalidField(f"expected a string of at most {MAX_STRING_BYTES} bytes, found {length}")


def refuse_count(count: int, smallest: int, remaining: int, budget: int) -> NoReturn:
    if count * smallest > remaining:
        raise InvalidField(
            f"expected {count} elements of at least {smallest} bytes, {remaining} bytes remain"
        )
    raise CountOverLimit(f"expected at most {budget} more elements in this message, found {count}")


def refuse_mark(mark: int) -> NoReturn:
    raise InvalidField(f"expected 1 (a struct) or -1 (null), found {mark}")


def refuse_tag_size(missing: int) -> NoReturn:
    raise InvalidField(f"expected the tagged field to end {missing} bytes further")


HELPERS: Final = {
    "read_tag": read_tag,
    "refuse_count": refuse_count,
    "refuse_length": refuse_length,
    "refuse_mark": refuse_mark,
    "refuse_negative": refuse_negative,
    "refuse_tag_size": refuse_tag_size,
    "rest_of_varint": rest_of_varint,
    "skip_tags": skip_tags,
    "to_uuid": to_uuid,
    "unpack_from": struct.unpack_from,
}
