"""Kinds of values: how a setting's text is parsed, and how its rule is explained in an error.

Kafka sends every config as a string. A `Kind` turns that string into a value or raises `ValueError`; the
caller knows the setting's name and makes the error that the client sees. The numbers of `ConfigType` and
`ConfigSource` are those that DescribeConfigs puts on the wire.
"""

import math
from collections.abc import Callable
from enum import IntEnum

import msgspec

SHORT_MAX = 2**15 - 1
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

LONGEST_NUMBER = 20
"""Digits and sign of the smallest int64; anything longer is refused before it is converted."""


class ConfigType(IntEnum):
    """A config's type, as DescribeConfigs v3 and later name it."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Where a config's value comes from. If a topic's or broker's config has several, the lowest number wins."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_GROUP_CONFIG = 8


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A rule for values: `parse` raises ValueError for a text that `expected` does not describe."""

    type: ConfigType
    expected: str
    parse: Callable[[str], object]


def integer(minimum: int, maximum: int = INT_MAX, *, but_not: int | None = None) -> Kind:
    upper = "upwards" if maximum == INT_MAX else f"to {maximum}"
    gap = "" if but_not is None else f" but not {but_not}"
    return Kind(
        type=ConfigType.INT,
        expected=f"a whole number from {minimum} {upper}{gap}",
        parse=lambda text: _whole(text, minimum, maximum, but_not),
    )


def short(minimum: int) -> Kind:
    return Kind(
        type=ConfigType.SHORT,
        expected=f"a whole number from {minimum} to {SHORT_MAX}",
        parse=lambda text: _whole(text, minimum, SHORT_MAX, None),
    )


def long(minimum: int) -> Kind:
    return Kind(
        type=ConfigType.LONG,
        expected=f"a whole number from {minimum} upwards",
        parse=lambda text: _whole(text, minimum, LONG_MAX, None),
    )


def double(minimum: float, maximum: float) -> Kind:
    def parse(text: str) -> float:
        value = float(text)
        # NaN compares false with everything, so it would pass a naive "not below, not above" check.
        if math.isnan(value) or not minimum <= value <= maximum:
            raise ValueError(text)
        return value

    return Kind(type=ConfigType.DOUBLE, expected=f"a number from {minimum:g} to {maximum:g}", parse=parse)


def boolean() -> Kind:
    def parse(text: str) -> bool:
        return {"true": True, "false": False}[_known(text.lower(), ("true", "false"))]

    return Kind(type=ConfigType.BOOLEAN, expected="true or false", parse=parse)


def choice(*values: str) -> Kind:
    def parse(text: str) -> str:
        return _known(text, values)

    return Kind(type=ConfigType.STRING, expected=f"one of {', '.join(values)}", parse=parse)


def choices(*values: str) -> Kind:
    """A list of some of `values`, none of them twice. It may be empty."""

    def parse(text: str) -> tuple[str, ...]:
        parts = tuple(_known(part, values) for part in split_list(text))
        if len(set(parts)) != len(parts):
            raise ValueError(text)
        return parts

    expected = f"a comma-separated list out of {', '.join(values)}, none of them twice"
    return Kind(type=ConfigType.LIST, expected=expected, parse=parse)


def words() -> Kind:
    """A list of any strings."""
    return Kind(type=ConfigType.LIST, expected="a comma-separated list", parse=split_list)


def text() -> Kind:
    return Kind(type=ConfigType.STRING, expected="a text", parse=str)


def split_list(value: str) -> tuple[str, ...]:
    """A list config's parts: Kafka trims them, and drops the one empty part that an empty text would make."""
    return tuple(part.strip() for part in value.split(",")) if value.strip() else ()


def _whole(text: str, minimum: int, maximum: int, but_not: int | None) -> int:
    # int() accepts more than Java does: Kafka refuses underscores and digits of other scripts.
    if not text.isascii() or "_" in text or len(text) > LONGEST_NUMBER:
        raise ValueError(text)
    value = int(text)
    if value == but_not or not minimum <= value <= maximum:
        raise ValueError(text)
    return value


def _known(text: str, values: tuple[str, ...]) -> str:
    if text not in values:
        raise ValueError(text)
    return text
