"""Which partitions a query reads, and between which offsets, from its options. Pure: no broker is asked.

    which    subscribe "a,b" | subscribePattern "a.*" | assign {"a": [0, 1]}
    where    earliest | latest | {"a": {"0": 23, "1": -1}} (-2 earliest, -1 latest) | a time | {"a": {"0": time}}

A time means the first record at or after it.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import ConfigError
from penstock.types import TopicPartition

EARLIEST: Final = -2
LATEST: Final = -1

MAX_TOPIC_LENGTH: Final = 249


@dataclass(frozen=True, kw_only=True, slots=True)
class Subscription:
    """Exactly one of the three is given."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[TopicPartition, ...] = ()

    def wanted_topics(self) -> tuple[str, ...] | None:
        """The topics to ask the broker for; None: all, since a pattern has to be matched against all names."""
        if self.pattern:
            return None
        return self.topics or tuple(sorted({tp.topic for tp in self.partitions}))

    def select(self, there: Mapping[str, Collection[int]]) -> list[TopicPartition]:
        """The partitions to read, of those that exist, in order."""
        if self.partitions:
            return sorted(tp for tp in self.partitions if tp.partition in there.get(tp.topic, ()))
        chosen: Iterable[str] = self.topics
        if self.pattern:
            chosen = (name for name in there if re.fullmatch(self.pattern, name))
        return sorted(
            TopicPartition(name, number) for name in set(chosen) & set(there) for number in there[name]
        )

    def missing(self, there: Mapping[str, Collection[int]]) -> list[str]:
        """Topics or partitions that the options name and that do not exist. A pattern names none."""
        if self.partitions:
            gone = (tp for tp in self.partitions if tp.partition not in there.get(tp.topic, ()))
            return [str(tp) for tp in sorted(gone)]
        return sorted(set(self.topics) - set(there))

    @property
    def option(self) -> str:
        return "subscribePattern" if self.pattern else "assign" if self.partitions else "subscribe"

    @property
    def text(self) -> str:
        return self.pattern or ", ".join(map(str, self.partitions)) or ",".join(self.topics)

    def __str__(self) -> str:
        return f"{self.option}={self.text}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """One end of the range that is read. `option` is the option that it comes from, for errors."""

    option: str
    everywhere: int | None = None
    """EARLIEST or LATEST, for all partitions."""
    by_partition: Mapping[TopicPartition, int] | None = None
    """An offset, EARLIEST or LATEST for each; it must name all partitions."""
    time_ms: int | None = None
    time_by_partition: Mapping[TopicPartition, int] | None = None
    else_latest: bool = False
    """Whether a time after the last record means LATEST; otherwise it is an error."""

    @property
    def is_by_time(self) -> bool:
        return self.time_ms is not None or self.time_by_partition is not None

    def named(self) -> Mapping[TopicPartition, int] | None:
        return self.by_partition if self.by_partition is not None else self.time_by_partition


def parse_topics(option: str, text: str) -> tuple[str, ...]:
    names = tuple(sorted({name.strip() for name in text.split(",") if name.strip()}))
    if not names:
        raise ConfigError(option, text, "one or more topics, separated by commas")
    for name in names:
        if not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", name) or name in (".", ".."):
            raise ConfigError(
                option,
                text,
                f"topic names of letters, digits, '.', '_' and '-', at most {MAX_TOPIC_LENGTH} long",
            )
    return names


def parse_pattern(option: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as problem:
        raise ConfigError(option, text, f"a regular expression ({problem})") from None
    if not text:
        raise ConfigError(option, text, "a regular expression that matches whole topic names")
    return text


def parse_assign(option: str, text: str) -> tuple[TopicPartition, ...]:
    expected = 'JSON such as {"orders": [0, 1]}'
    topic_partitions = []
    for topic, numbers in _json_object(option, text, expected).items():
        if not isinstance(numbers, list) or not all(_is_whole(number) and number >= 0 for number in numbers):
            raise ConfigError(option, text, expected)
        topic_partitions += [TopicPartition(topic, number) for number in numbers]
    if not topic_partitions:
        raise ConfigError(option, text, expected)
    return tuple(sorted(set(topic_partitions)))


def parse_offsets(option: str, text: str, *, least: int) -> dict[TopicPartition, int]:
    """{"orders": {"0": 23, "1": -1}}; numbers from `least` on."""
    expected = 'JSON such as {"orders": {"0": 23, "1": 42}}'
    topic_partitions: dict[TopicPartition, int] = {}
    for topic, by_partition in _json_object(option, text, expected).items():
        if not isinstance(by_partition, dict):
            raise ConfigError(option, text, expected)
        for number, offset in by_partition.items():
            if not number.isdecimal() or not _is_whole(offset):
                raise ConfigError(option, text, expected)
            if offset < least:
                raise ConfigError(option, text, f"numbers from {least} on, and {topic}-{number} has {offset}")
            topic_partitions[TopicPartition(topic, int(number))] = offset
    if not topic_partitions:
        raise ConfigError(option, text, expected)
    return topic_partitions


def _json_object(option: str, text: str, expected: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        raise ConfigError(option, text, expected) from None
    if not isinstance(value, dict):
        raise ConfigError(option, text, expected)
    return value


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
