"""Kafka messages of any class and version, from their schemas: valid bytes, hostile values.

Most fields get a value that leads deep into the handler (a topic that exists, an epoch that fits); `hostility` is the
share of fields that do not.
"""

import random
from collections.abc import Callable
from functools import cache
from typing import Any, Final
from uuid import UUID

from penstock.batch import Record, build_batch
from penstock.kafka.wire import Message
from penstock.kafka.wire.schema import (
    ARRAY,
    BOOL,
    BYTES,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    NO_UUID,
    RECORDS,
    STRING,
    STRUCT,
    UINT16,
    UUID16,
    Field,
    default_of,
)
from tools.hostile.generator.values import (
    CONFIG_VALUES,
    CONFIGS,
    COUNTS,
    GROUPS,
    MEMBERS,
    MOST_DISTINCT,
    TOPICS,
    hostile_integer,
    hostile_string,
)

MOST_ELEMENTS = (*[20_000] * 19, 90_000)
"""Of all arrays of one request together. The most that a broker decodes is 100,000, which takes long to make."""
MOST_BYTES = 2_000_000
"""Of all copies of one string together."""
OTHERS: Final = (FLOAT64, UUID16, BYTES, RECORDS)
TIME_MS = 1_700_000_000_000
BITS: Final = {INT8: 8, INT16: 16, INT32: 32, INT64: 64}

USUAL: Final[dict[str, tuple[Any, ...]]] = {
    "acknowledge_types": (1, 2, 3, 4),
    "acks": (-1, 1, 0),
    "committed_offset": (0, 1, 5),
    "config_operation": (0, 1, 2, 3),
    "configuration_keys": CONFIGS,
    "coordinator_keys": GROUPS,
    "count": (2, 5),
    "current_leader_epoch": (-1, 0),
    "endpoint_type": (1,),
    "election_type": (0, 1),
    "generation_id": (-1, 0, 1),
    "generation_id_or_member_epoch": (-1, 0, 1),
    "group_id": GROUPS,
    "group_ids": GROUPS,
    "group_instance_id": (None, "instance"),
    "groups": GROUPS,
    "groups_names": GROUPS,
    "isolation_level": (0, 1),
    "key": GROUPS,
    "key_type": (0, 1, 2),
    "leader_epoch": (-1, 0),
    "max_bytes": (1, 100_000, 50_000_000),
    "max_records": (1, 500),
    "max_wait_ms": (0, 0, 20),
    "member_epoch": (0, -1, 1),
    "member_id": MEMBERS,
    "min_bytes": (0, 1),
    "num_partitions": (-1, 1, 3),
    "offset": (0, 1, -1),
    "partition_max_bytes": (1, 1_000_000),
    "producer_id": (-1, 0, 1000),
    "protocol_name": ("range",),
    "protocol_type": ("consumer",),
    "rebalance_timeout_ms": (10_000,),
    "replication_factor": (-1, 1),
    "resource_name": (*TOPICS, *GROUPS, "1", ""),
    "resource_type": (2, 4, 8, 32),
    "session_epoch": (-1, 0, 1, 2),
    "session_id": (0,),
    "session_timeout_ms": (10_000,),
    "share_session_epoch": (0, 1, -1),
    "subscribed_topic_names": TOPICS,
    "timeout_ms": (100, 1_000),
    "timestamp": (-1, -2, -3, TIME_MS),
    "topic": TOPICS,
    "topic_name": TOPICS,
    "topic_names": TOPICS,
    "transactional_id": (None, None, "transaction"),
    "types_filter": ("classic", "share"),
    "value": CONFIG_VALUES,
}
"""Values that a handler takes for good ones, by the names of fields."""


class MessageMaker:
    """Makes the messages of one attack."""

    def __init__(self, chance: random.Random, topic_ids: list[UUID], hostility: float) -> None:
        self._chance = chance
        self._topic_ids = topic_ids
        self._hostility = hostility
        self._elements_left = chance.choice(MOST_ELEMENTS)
        self._copies = 1
        """Of the element that is made, in all arrays around it."""
        self.learned: dict[str, Any] = {}
        """Ids that the broker has given to this attacker, by the names of fields."""

    def make(self, cls: type[Message], version: int) -> Message:
        values = {}
        for field in cls.SCHEMA:
            if field.in_version(version) and (field.tag is None or self._chance.random() < 0.3):
                values[field.name] = self._value(cls, field, version)
        return cls(**values)

    def _value(self, cls: type[Message], field: Field, version: int) -> Any:
        if field.nullable_from <= version and self._chance.random() < 0.1:
            return None
        if field.kind == ARRAY:
            return self._array(field, version)
        if field.kind == STRUCT:
            return self.make(field.struct, version)
        if self._chance.random() < self._hostility:
            return self._hostile(field.kind)
        value = self._usual(cls, field)
        return "" if value is None and field.kind == STRING and field.nullable_from > version else value

    # --- arrays

    def _array(self, field: Field, version: int) -> list[Any]:
        """Of one element mostly; some repeat one element thousands of times, some have hundreds of different ones."""
        is_hostile = self._chance.random() < self._hostility
        count = self._chance.choice(COUNTS) if is_hostile else self._chance.choice((1, 1, 1, 2))
        count = min(count, self._elements_left)
        self._elements_left -= count
        self._copies *= max(count, 1)
        try:
            if count <= 3 or (count <= MOST_DISTINCT and self._chance.random() < 0.5):
                return [self._element(field, version) for _ in range(count)]
            return self._repeated(field, version, count)
        finally:
            self._copies //= max(count, 1)

    def _repeated(self, field: Field, version: int, count: int) -> list[Any]:
        left, self._elements_left = self._elements_left, self._elements_left // count
        element = self._element(field, version)  # which may have arrays itself
        self._elements_left = left - count * (left // count - self._elements_left)
        return [element] * count

    def _element(self, field: Field, version: int) -> Any:
        if isinstance(field.of, str):
            if self._chance.random() < self._hostility:
                return self._hostile(field.of)
            return self._usual_of(field.name, field.of)
        return self.make(field.struct, version)

    # --- single values

    def _hostile(self, kind: str) -> Any:
        chance = self._chance
        most = max(MOST_BYTES // self._copies, 1)
        if kind in BITS:
            return hostile_integer(chance, BITS[kind])
        makers: dict[str, Callable[[], Any]] = {
            BOOL: lambda: chance.random() < 0.5,
            UINT16: lambda: chance.choice((0, 1, 65_535)),
            FLOAT64: lambda: chance.choice((0.0, -1.0, float("inf"), float("nan"))),
            UUID16: lambda: UUID(int=chance.choice((0, 1, 2**128 - 1, chance.getrandbits(128)))),
            STRING: lambda: hostile_string(chance)[:most],
            BYTES: lambda: chance.randbytes(chance.choice((0, 1, 7, 1_000, 100_000)))[:most],
            RECORDS: lambda: broken_records(chance)[:most],
        }
        return makers[kind]()

    def _usual(self, cls: type[Message], field: Field) -> Any:
        if field.name == "name":
            return self._chance.choice(CONFIGS if "Config" in cls.__name__ else TOPICS)
        if field.name in self.learned and self._chance.random() < 0.8:
            return self.learned[field.name]
        if self._knows(field.name, field.kind) or field.kind in (UUID16, RECORDS):
            return self._usual_of(field.name, field.kind)
        return self._chance.choice((default_of(cls, field.name), self._usual_of(field.name, field.kind)))

    @staticmethod
    def _knows(name: str, kind: str) -> bool:
        """Whether the values for this name are of this kind: some names have several kinds."""
        return (
            name in USUAL
            and isinstance(USUAL[name][-1], str if kind == STRING else int)
            and kind not in OTHERS
        )

    def _usual_of(self, name: str, kind: str) -> Any:
        chance = self._chance
        if self._knows(name, kind):
            return chance.choice(USUAL[name])
        if kind == UUID16:
            return chance.choice(self._topic_ids) if self._topic_ids else NO_UUID
        if kind == RECORDS:
            return some_records(chance)[: max(MOST_BYTES // self._copies, 1)]
        if kind == STRING:
            return chance.choice(TOPICS)
        if kind == BYTES:
            return chance.randbytes(10)
        return chance.randint(0, 1) if kind == BOOL else float(0) if kind == FLOAT64 else chance.randint(0, 3)


def some_records(chance: random.Random) -> bytes:
    """A valid batch."""
    count = chance.choice((1, 1, 3, 100))
    key = chance.choice((None, b"key"))
    rows = [Record(at, TIME_MS + at, key, chance.randbytes(20), ()) for at in range(count)]
    return build_batch(rows, compression=chance.choice((0, 0, 1, 2, 3, 4)))


def broken_records(chance: random.Random) -> bytes:
    """Bytes that are nearly a batch."""
    batch = bytearray(some_records(chance))
    wish = chance.randrange(6)
    if wish == 0:
        for _ in range(chance.randint(1, 5)):
            batch[chance.randrange(len(batch))] = chance.randrange(256)
    elif wish == 1:
        del batch[chance.randrange(len(batch)) :]
    elif wish == 2:
        batch += some_records(chance)
    elif wish == 3:
        return chance.randbytes(chance.choice((0, 1, 61, 1_000)))
    elif wish == 4:
        rows = [Record(0, TIME_MS, None, b"value", ())]
        return build_batch(
            rows, producer_id=2**62, producer_epoch=32_767, base_sequence=2**31 - 1, last_offset_delta=60_000
        )
    else:
        return bomb()
    return bytes(batch)


@cache
def bomb() -> bytes:
    """A small batch that unpacks to 20 MB."""
    return build_batch([Record(0, 2**62, None, bytes(20_000_000), ())], compression=4)
