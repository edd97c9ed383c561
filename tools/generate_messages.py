"""Writes src/penstock/kafka/wire/messages/ from kio's schemas: `python tools/generate_messages.py`.

kio has every Kafka message of every version as a dataclass, generated from Kafka's own schemas, one class per
version. Here the versions of each struct are merged into one class whose SCHEMA says which version carries
which field. kio is needed to generate and to test, never to run.

What differs from kio, and why:

- durations and times are ints in milliseconds with Kafka's own `_ms` names, which kio drops;
- a few names that kio's snake-casing garbles are put right (RENAMED);
- kio does not keep the null default of arrays of structs (NULL_ARRAYS);
- kio starts Produce at version 3, as Kafka 4 does; versions 0-2 are added (EARLIER), because they must be
  advertised and are then refused with an answer rather than a closed connection;
- structs of one name that differ between an API's request and response are prefixed with the direction.
"""

import dataclasses
import datetime
import pathlib
import sys
import types
import typing
from collections.abc import Iterator

from kio.index import load_entity_module, load_entity_schema
from kio.schema.index import LoadableEntityType, api_key_map, schema_name_map
from kio.static.constants import EntityType

TARGET = pathlib.Path(__file__).parent.parent / "src/penstock/kafka/wire/messages"
NEVER = 1 << 15
WIDTH = 110

API_KEYS = [
    *range(4), *range(8, 38), *range(42, 52), 55, 57, 60, 61, 65, 66, 68, 69, *range(74, 80), 90, 91, 92,
]  # fmt: skip
DATA_MESSAGES = ["consumer_protocol_subscription", "consumer_protocol_assignment"]

RENAMED = {"enable2_pc": "enable_2pc"}
NULL_ARRAYS = {
    ("ConsumerGroupHeartbeatRequest", "topic_partitions"),
    ("CreatePartitionsTopic", "assignments"),
    ("ListPartitionReassignmentsRequest", "topics"),
}
EARLIER = {
    "produce": {
        ("ProduceRequest", "transactional_id"): 3,
        ("PartitionProduceResponse", "log_append_time_ms"): 2,
        ("ProduceResponse", "throttle_time_ms"): 1,
    }
}

KINDS = {
    "bool": "BOOL",
    "int8": "INT8",
    "int16": "INT16",
    "uint16": "UINT16",
    "int32": "INT32",
    "int64": "INT64",
    "float64": "FLOAT64",
    "uuid": "UUID16",
    "string": "STRING",
    "bytes": "BYTES",
    "records": "RECORDS",
    "error_code": "INT16",
    "timedelta_i32": "INT32",
    "timedelta_i64": "INT64",
    "datetime_i64": "INT64",
}
PYTHON_TYPES = {
    "BOOL": ("bool", "False"),
    "FLOAT64": ("float", "0.0"),
    "UUID16": ("UUID", "NO_UUID"),
    "STRING": ("str", '""'),
    "BYTES": ("bytes", 'b""'),
}


SCHEMA_NAMES = [
    *("ARRAY", "BOOL", "BYTES", "FLOAT64", "INT8", "INT16", "INT32", "INT64", "NEVER", "NO_UUID", "RECORDS"),
    *("STRING", "STRUCT", "UINT16", "UUID16", "Buffer", "Field", "Message", "Records", "Root", "Schema"),
]


@dataclasses.dataclass(kw_only=True)
class FieldPlan:
    """One field, merged over the versions that carry it."""

    name: str
    kind: str
    struct: str | None
    array: bool
    tag: int | None
    default: object
    first: int
    last: int
    nullable_from: int = NEVER

    def matches(self, other: "FieldPlan") -> bool:
        ranges = {"first": 0, "last": 0, "nullable_from": 0}
        return dataclasses.replace(self, **ranges) == dataclasses.replace(other, **ranges)  # type: ignore[arg-type]


Struct = list[FieldPlan]


@dataclasses.dataclass(kw_only=True)
class MessagePlan:
    """A request, a response or a data message: its structs, innermost first, and its versions."""

    root: str
    title: str
    structs: dict[str, Struct]
    first: int
    last: int
    flexible_from: int


# ---- reading kio -----------------------------------------------------------------------------------------


def plan_message(name: str, entity_type: LoadableEntityType) -> MessagePlan:
    versions = sorted(v for v, kinds in schema_name_map[name].items() if entity_type in kinds)
    assert versions == list(range(versions[0], versions[-1] + 1)), f"{name}: versions with a gap"
    structs: dict[str, Struct] = {}
    flexible_from = NEVER
    for version in reversed(versions):
        root = load_entity_schema(name, version, entity_type)
        if root.__flexible__:
            flexible_from = version
        for entity in entities_of(load_entity_module(name, version, entity_type)):
            merge_version(structs, entity, version)
    plan = MessagePlan(
        root=root.__name__,
        title=root.__name__ if entity_type is EntityType.data else f"{camel_case(name)} {entity_type.name}",
        structs=structs,
        first=versions[0],
        last=versions[-1],
        flexible_from=flexible_from,
    )
    add_earlier_versions(name, plan)
    plan.structs = {key: structs[key] for key in innermost_first(structs, plan.root)}
    return plan


def entities_of(module: types.ModuleType) -> Iterator[type]:
    for value in vars(module).values():
        if (
            dataclasses.is_dataclass(value)
            and isinstance(value, type)
            and value.__module__ == module.__name__
        ):
            yield value


def merge_version(structs: dict[str, Struct], entity: type, version: int) -> None:
    """Versions come newest first, so a field's last version is known when it is first seen."""
    merged = structs.setdefault(entity.__name__, [])
    place = 0
    for field in dataclasses.fields(entity):
        plan = plan_field(entity.__name__, field, version)
        known = next((f for f in merged if f.name == plan.name), None)
        if known is None:
            merged.insert(place, plan)
        else:
            assert known.matches(plan), f"{entity.__name__}.{plan.name} changes its type in version {version}"
            assert known.first == version + 1, (
                f"{entity.__name__}.{plan.name} has a gap after version {version}"
            )
            assert merged.index(known) >= place, f"{entity.__name__}.{plan.name} changes its place"
            known.first = version
            assert plan.nullable_from == NEVER or known.nullable_from == version + 1
            known.nullable_from = min(known.nullable_from, plan.nullable_from)
        place = merged.index(known or plan) + 1


def plan_field(owner: str, field: "dataclasses.Field[typing.Any]", version: int) -> FieldPlan:
    inner, nullable = without_none(field.type)
    array = typing.get_origin(inner) is tuple
    if array:
        inner, _ = without_none(typing.get_args(inner)[0])
    struct = str(inner.__name__) if dataclasses.is_dataclass(inner) and isinstance(inner, type) else None
    kafka_type = field.metadata.get("kafka_type", "")
    name = RENAMED.get(field.name, field.name)
    if kafka_type.startswith(("timedelta", "datetime")):
        name += "_ms"
    if kafka_type in ("uuid", "datetime_i64"):
        nullable = False  # kio's way to say "the zero id" and "-1"; the wire has no null here
    tag = field.metadata.get("tag")
    assert not (tag is not None and struct and nullable), (
        f"{owner}.{name}: a nullable tagged struct is not known here"
    )
    assert not (array and kafka_type == "uuid"), f"{owner}.{name}: an array of ids is not known here"
    default = None if (owner, name) in NULL_ARRAYS else plain_default(field)
    return FieldPlan(
        name=name,
        kind="STRUCT" if struct else KINDS[kafka_type],
        struct=struct,
        array=array,
        tag=tag,
        default=default,
        first=version,
        last=version,
        nullable_from=version if nullable else NEVER,
    )


def without_none(annotation: typing.Any) -> tuple[typing.Any, bool]:
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        (inner,) = (a for a in typing.get_args(annotation) if a is not types.NoneType)
        return inner, True
    return annotation, False


def plain_default(field: "dataclasses.Field[typing.Any]") -> object:
    """Kafka's default as a plain value; MISSING where Kafka has only the implicit one of the type."""
    default = field.default
    if field.metadata.get("kafka_type") == "datetime_i64":
        return -1 if default is None else dataclasses.MISSING
    if field.metadata.get("kafka_type") == "uuid" or dataclasses.is_dataclass(default):
        return dataclasses.MISSING
    if isinstance(default, datetime.timedelta):
        return round(default.total_seconds() * 1000)
    if field.metadata.get("kafka_type") == "error_code" and default is not dataclasses.MISSING:
        return int(default.value)
    return default


def add_earlier_versions(name: str, plan: MessagePlan) -> None:
    starts = EARLIER.get(name)
    if starts is None:
        return
    for owner, fields in plan.structs.items():
        for field in fields:
            if field.first == plan.first:
                field.first = starts.get((owner, field.name), 0)
            if field.nullable_from == plan.first:
                field.nullable_from = field.first
    plan.first = 0


def innermost_first(structs: dict[str, Struct], root: str) -> list[str]:
    order: list[str] = []
    for field in structs[root]:
        if field.struct is not None:
            order += [name for name in innermost_first(structs, field.struct) if name not in order]
    return [*order, root]


def separate_names(request: MessagePlan, response: MessagePlan) -> None:
    """Structs that request and response share stay shared; namesakes that differ get the direction's name."""
    clashing = find_clashes(request.structs, response.structs)
    for plan, prefix in ((request, "Request"), (response, "Response")):
        renamed = {name: prefix + name for name in clashing}
        plan.structs = {renamed.get(name, name): fields for name, fields in plan.structs.items()}
        for fields in plan.structs.values():
            for field in fields:
                field.struct = renamed.get(field.struct, field.struct) if field.struct else None


def find_clashes(ours: dict[str, Struct], theirs: dict[str, Struct]) -> list[str]:
    """Structs come innermost first, so whether an inner one clashes is known when its owner is looked at."""
    clashing: list[str] = []
    for name, fields in ours.items():
        if name in theirs and (fields != theirs[name] or any(f.struct in clashing for f in fields)):
            clashing.append(name)
    return clashing


# ---- writing Python --------------------------------------------------------------------------------------


def render_module(messages: list[MessagePlan], *, summary: str) -> str:
    seen: set[str] = set()
    classes = []
    for message in messages:
        for name, fields in message.structs.items():
            if name not in seen:
                seen.add(name)
                classes.append(
                    render_class(name, fields, message, records=message.title.endswith("response"))
                )
    body = "\n\n".join(classes)
    head = f'"""{summary}\n\nGenerated by tools/generate_messages.py; do not edit.\n"""\n\n'
    return head + render_imports(body) + "\n\n" + body


def render_imports(body: str) -> str:
    lines = ["from typing import ClassVar"]
    if "UUID = " in body:
        lines.append("from uuid import UUID")
    lines.append("")
    if "field(default_factory=" in body:
        lines += ["import msgspec", ""]
    words = split_words(body)
    names = [name for name in SCHEMA_NAMES if name in words]
    one_line = f"from penstock.kafka.wire.schema import {', '.join(names)}"
    if len(one_line) <= WIDTH:
        lines.append(one_line)
    else:
        lines += ["from penstock.kafka.wire.schema import (", *(f"    {name}," for name in names), ")"]
    return "\n".join(lines) + "\n"


def split_words(text: str) -> set[str]:
    return set("".join(c if c.isalnum() or c == "_" else " " for c in text).split())


def render_class(name: str, fields: Struct, message: MessagePlan, *, records: bool) -> str:
    lines = [f"class {name}(Message, kw_only=True, gc=False):"]
    lines += [f"    {render_attribute(field, sends_records=records)}" for field in fields]
    if fields:
        lines.append("")
    lines += render_schema(fields)
    if name == message.root:
        flexible = "NEVER" if message.flexible_from == NEVER else str(message.flexible_from)
        root = f'Root("{message.title}", {message.first}, {message.last}, {flexible})'
        lines.append(f"    ROOT: ClassVar[Root | None] = {root}")
    return "\n".join(lines) + "\n"


def render_attribute(field: FieldPlan, *, sends_records: bool) -> str:
    python_type, default = PYTHON_TYPES.get(field.kind, ("int", "0"))
    if field.kind == "RECORDS":
        python_type = "Records" if sends_records else "Buffer"
    optional = field.nullable_from != NEVER or field.kind == "RECORDS"
    if field.struct is not None:
        python_type, default = field.struct, f"msgspec.field(default_factory={field.struct})"
        optional = optional or (field.tag is not None and not field.array)
    if field.array:
        python_type, default = f"list[{python_type}]", "[]"
    if optional:
        python_type += " | None"
        default = default if field.array else "None"
    if field.default is not dataclasses.MISSING and field.default != ():
        default = f'"{field.default}"' if isinstance(field.default, str) else repr(field.default)
    return f"{field.name}: {python_type} = {default}"


def render_schema(fields: Struct) -> list[str]:
    if not fields:
        return ["    SCHEMA: ClassVar[Schema] = ()"]
    rows = [f"        {render_row(field)}," for field in fields]
    one_line = f"    SCHEMA: ClassVar[Schema] = ({render_row(fields[0])},)"
    if len(fields) == 1 and len(one_line) <= WIDTH:
        return [one_line]
    return ["    SCHEMA: ClassVar[Schema] = (", *rows, "    )"]


def render_row(field: FieldPlan) -> str:
    inner = field.struct or field.kind
    parts = [f'"{field.name}"', "ARRAY" if field.array else field.kind, str(field.first), str(field.last)]
    if field.array or field.struct:
        parts.append(inner)
    if field.nullable_from != NEVER:
        parts.append(f"nullable_from={field.nullable_from}")
    if field.tag is not None:
        parts.append(f"tag={field.tag}")
    return f"Field({', '.join(parts)})"


def render_index(apis: dict[int, tuple[str, MessagePlan]]) -> str:
    lines = [
        '"""Every API that the codec knows, without importing its messages.',
        "",
        "Generated by tools/generate_messages.py; do not edit.",
        '"""',
        "",
        "from enum import IntEnum",
        "from typing import Final",
        "",
        "from penstock.kafka.wire.schema import NEVER, Api",
        "",
        "",
        "class ApiKey(IntEnum):",
        *(f"    {name.upper()} = {key}" for key, (name, _) in apis.items()),
        "",
        "",
        "APIS: Final[dict[int, Api]] = {",
    ]
    for key, (name, plan) in apis.items():
        flexible = "NEVER" if plan.flexible_from == NEVER else str(plan.flexible_from)
        lines.append(
            f'    {key}: Api("{name}", "{camel_case(name)}", {plan.first}, {plan.last}, {flexible}),'
        )
    return "\n".join([*lines, "}"]) + "\n"


def camel_case(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


# ---- all of it -------------------------------------------------------------------------------------------


def generate() -> dict[str, str]:
    """File name -> text, for the whole messages folder."""
    files = {
        "__init__.py": '"""Kafka\'s messages, one file per API. Generated by tools/generate_messages.py."""\n'
    }
    apis: dict[int, tuple[str, MessagePlan]] = {}
    for key in API_KEYS:
        name = api_key_map[key]
        request = plan_message(name, EntityType.request)
        response = plan_message(name, EntityType.response)
        assert (request.first, request.last, request.flexible_from) == (
            response.first,
            response.last,
            response.flexible_from,
        ), f"{name}: request and response differ in versions"
        separate_names(request, response)
        apis[key] = name, request
        summary = f"{camel_case(name)} (API key {key}), versions {request.first}-{request.last}."
        files[f"{name}.py"] = render_module([request, response], summary=summary)
    for name in DATA_MESSAGES:
        plan = plan_message(name, EntityType.data)
        summary = f"{plan.root}, versions {plan.first}-{plan.last}: what a group's members tell each other."
        files[f"{name}.py"] = render_module([plan], summary=summary)
    files["index.py"] = render_index(apis)
    return files


def main() -> None:
    TARGET.mkdir(parents=True, exist_ok=True)
    files = generate()
    for stale in TARGET.glob("*.py"):
        if stale.name not in files:
            stale.unlink()
    for name, text in files.items():
        (TARGET / name).write_text(text)
    print(f"{len(files)} files, {sum(text.count(chr(10)) for text in files.values())} lines", file=sys.stderr)


if __name__ == "__main__":
    main()
