"""kio as oracle: instances of its dataclasses, made at random from their fields, and the same in our classes.

The generator is our own rather than hypothesis's `from_type`: building strategies for some 650 classes takes
longer than all of the tests, and what matters here is chosen by hand: empty and null, both sides of a
varint's one-byte limit, the ends of each integer's range, defaults of tagged fields.
"""

import dataclasses
import datetime
import io
import random
import types
import typing
import uuid

import kio.schema.errors
from kio.index import load_entity_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_writer
from kio.static.constants import EntityType

from penstock.kafka.wire import NO_UUID, Message
from penstock.kafka.wire.schema import Field

INT_RANGES = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
RENAMED = {"enable2_pc": "enable_2pc"}
RENAMED_SINCE = {("TxnOffsetCommitRequest", "generation_id"): "generation_id_or_member_epoch"}
"""Fields to which Kafka has given another name since the version that kio was made from."""
MILLISECOND = datetime.timedelta(milliseconds=1)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def kio_versions(api_key: int) -> list[int]:
    return sorted(schema_name_map[api_key_map[api_key]])


def kio_class(api_key: int, version: int, direction: str) -> type:
    return load_entity_schema(api_key_map[api_key], version, EntityType[direction])


def kio_bytes(instance: object) -> bytes:
    out = io.BytesIO()
    entity_writer(type(instance))(out, instance)
    return out.getvalue()


def random_instance(cls: type, chance: random.Random) -> object:
    return cls(**{field.name: random_field(field, chance) for field in dataclasses.fields(cls)})


def random_field(field: dataclasses.Field, chance: random.Random) -> object:
    tagged = "tag" in field.metadata
    if tagged and field.default is not dataclasses.MISSING and chance.random() < 0.5:
        return field.default
    inner, nullable = without_none(field.type)
    # A tagged field says null by its absence, so None is there only as the default.
    if nullable and not tagged and chance.random() < 0.3:
        return None
    if typing.get_origin(inner) is not tuple:
        return random_value(inner, field, chance)
    element, _ = without_none(typing.get_args(inner)[0])
    longest = 2 if dataclasses.is_dataclass(element) else chance.choice([3, 3, 150])
    return tuple(random_value(element, field, chance) for _ in range(chance.randint(0, longest)))


def random_value(inner: typing.Any, field: dataclasses.Field, chance: random.Random) -> object:
    if dataclasses.is_dataclass(inner):
        return random_instance(inner, chance)
    kind = field.metadata["kafka_type"]
    if kind in INT_RANGES:
        low, high = INT_RANGES[kind]
        return inner(chance.choice([low, high, 0, 1, chance.randint(low, high)]))
    return getattr(RandomValues, kind)(chance)


class RandomValues:
    """One maker for each of kio's types that is not a plain integer."""

    @staticmethod
    def bool(chance: random.Random) -> bool:
        return chance.random() < 0.5

    @staticmethod
    def float64(chance: random.Random) -> float:
        return chance.choice([0.0, -1.5, 1e300, chance.random()])

    @staticmethod
    def string(chance: random.Random) -> str:
        return chance.choice(["", "orders", "größe-√2-🚰", "x" * 126, "x" * 127, "y" * 300])

    @staticmethod
    def bytes(chance: random.Random) -> bytes:
        return chance.choice(
            [b"", b"\x00\xff", chance.randbytes(126), chance.randbytes(127), chance.randbytes(2000)]
        )

    records = bytes

    @staticmethod
    def uuid(chance: random.Random) -> uuid.UUID | None:
        return chance.choice([None, uuid.UUID(int=chance.getrandbits(128) | 1)])

    @staticmethod
    def error_code(chance: random.Random) -> kio.schema.errors.ErrorCode:
        return chance.choice(list(kio.schema.errors.ErrorCode))

    @staticmethod
    def timedelta_i32(chance: random.Random) -> datetime.timedelta:
        return chance.choice([-1, 0, 2**31 - 1, chance.randint(0, 10**9)]) * MILLISECOND

    @staticmethod
    def timedelta_i64(chance: random.Random) -> datetime.timedelta:
        return chance.choice([-1, 0, chance.randint(0, 10**13)]) * MILLISECOND

    @staticmethod
    def datetime_i64(chance: random.Random) -> datetime.datetime:
        return EPOCH + chance.randint(0, 10**13) * MILLISECOND


def without_none(annotation: typing.Any) -> tuple[typing.Any, bool]:
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        (inner,) = (a for a in typing.get_args(annotation) if a is not types.NoneType)
        return inner, True
    return annotation, False


def to_ours(instance: object, cls: type[Message]) -> Message:
    """The same message as one of our classes, field by field and by name."""
    rows = {field.name: field for field in cls.SCHEMA}
    values = {}
    for field in dataclasses.fields(typing.cast(typing.Any, instance)):
        kind = field.metadata.get("kafka_type", "")
        name = RENAMED_SINCE.get((cls.__name__, field.name)) or RENAMED.get(field.name, field.name)
        if kind.startswith(("timedelta", "datetime")):
            name += "_ms"
        values[name] = our_value(getattr(instance, field.name), kind, rows[name])
    return cls(**values)


def our_value(value: typing.Any, kind: str, row: Field) -> object:
    if isinstance(value, tuple):
        return [our_value(element, kind, row) for element in value]
    if dataclasses.is_dataclass(value):
        return to_ours(value, row.struct)
    if kind == "uuid":
        return NO_UUID if value is None else value
    if kind == "error_code":
        return value.value
    if kind.startswith("timedelta"):
        return value // MILLISECOND
    if kind.startswith("datetime"):
        return -1 if value is None else (value - EPOCH) // MILLISECOND
    return value
