"""Writes src/penstock/kafka/wire/messages/ from Kafka's schemas: `python tools/generate_messages.py`.

The `kafka-clients` jar has every message as JSON, one file per message for all of its versions. Maven fetches the jar
into `.cache/`; the Python that is made from it is part of the repository. Each struct becomes one class whose SCHEMA
says which version carries which field. The sentences with which Kafka explains its fields are left out.

What differs from Kafka's files, and why:

- Produce begins at version 3 in Kafka 4. Versions 0-2 are added (EARLIER), because they must be advertised and are then
  refused with an answer rather than a closed connection. Kafka's file still says which fields they have;
- fields have Python's names; one that snake case would garble has a better one (RENAMED);
- an array whose null means that the broker shall choose is null by default (NULL_ARRAYS);
- structs of one name that differ between an API's request and response are prefixed with the direction.
"""

import dataclasses
import json
import pathlib
import re
import sys
import typing
import zipfile

ROOT = pathlib.Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))

import kafka_launcher  # noqa: E402

TARGET = ROOT / "src/penstock/kafka/wire/messages"
NEVER = 1 << 15
WIDTH = 110

API_KEYS = [
    *range(4), *range(8, 38), *range(42, 52), 55, 60, 61, 65, 66, 68, 69, *range(74, 80), 90, 91, 92,
]  # fmt: skip
DATA_MESSAGES = ["ConsumerProtocolSubscription", "ConsumerProtocolAssignment"]

NULL_ARRAYS = {("CreatePartitionsTopic", "assignments")}
RENAMED = {"enable2_pc": "enable_2pc"}
EARLIER = {"ProduceRequest": 0, "ProduceResponse": 0}

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

Json = dict[str, typing.Any]
Versions = tuple[int, int]
"""Both ends are inclusive."""


@dataclasses.dataclass(kw_only=True)
class FieldPlan:
    """One field, with the versions that carry it."""

    name: str
    kind: str
    struct: str | None
    array: bool
    tag: int | None
    default: object
    first: int
    last: int
    nullable_from: int = NEVER


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


# ---- reading Kafka's schemas -----------------------------------------------------------------------------


def read_schemas() -> dict[str, Json]:
    """Message name -> its schema, for all messages of the jar."""
    version = kafka_launcher.CLIENTS_VERSION
    jar = kafka_launcher.fetch_clients() / f"kafka-clients-{version}.jar"
    with zipfile.ZipFile(jar) as files:
        names = [name for name in files.namelist() if re.fullmatch(r"common/message/\w+\.json", name)]
        schemas = [json.loads(without_comments(files.read(name).decode())) for name in names]
    return {schema["name"]: schema for schema in schemas}


def without_comments(text: str) -> str:
    return re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)


def plan_message(schema: Json) -> MessagePlan:
    first, last = version_range(schema["validVersions"])
    plan = MessagePlan(
        root=schema["name"],
        title=re.sub("(Request|Response)$", lambda found: f" {found[0].lower()}", schema["name"]),
        structs={},
        first=EARLIER.get(schema["name"], first),
        last=last,
        flexible_from=max(first, version_range(schema["flexibleVersions"])[0]),
    )
    versions = plan.first, plan.last
    for struct in schema.get("commonStructs", ()):
        add_struct(plan, struct["name"], struct["fields"], versions)
    add_struct(plan, plan.root, schema["fields"], versions)
    plan.structs = {key: plan.structs[key] for key in innermost_first(plan.structs, plan.root)}
    return plan


def version_range(text: str) -> Versions:
    """`3`, `3-5` or `3+`. `none` is a range that no version reaches."""
    if text == "none":
        return NEVER, NEVER
    first, _, last = text.partition("-")
    if text.endswith("+"):
        return int(text[:-1]), NEVER
    return int(first), int(last or first)


def add_struct(plan: MessagePlan, name: str, fields: list[Json], versions: Versions) -> None:
    """`versions`: those of the field that holds the struct."""
    assert name not in plan.structs, f"{plan.root}: two structs with the name {name}"
    plan.structs[name] = []
    for field in fields:
        carried = overlap(versions, version_range(field["versions"]))
        if carried is not None:
            plan.structs[name].append(plan_field(name, field, *carried))
            if "fields" in field:
                add_struct(plan, struct_name(field), field["fields"], carried)


def overlap(one: Versions, other: Versions) -> Versions | None:
    first, last = max(one[0], other[0]), min(one[1], other[1])
    return (first, last) if first <= last else None


def struct_name(field: Json) -> str:
    return str(field["type"]).removeprefix("[]")


def plan_field(owner: str, field: Json, first: int, last: int) -> FieldPlan:
    array, inner = field["type"].startswith("[]"), struct_name(field)
    name = snake_case(field["name"])
    nullable_from = first_nullable(field, first, last)
    tag, struct = field.get("tag"), None if inner in KINDS else inner
    assert tag is None or field["taggedVersions"] == field["versions"], f"{owner}.{name}: tagged later"
    assert tag is None or array or struct is None or nullable_from == NEVER, (
        f"{owner}.{name}: a nullable tagged struct is not known here"
    )
    assert not (array and inner == "uuid"), f"{owner}.{name}: an array of ids is not known here"
    return FieldPlan(
        name=name,
        kind="STRUCT" if struct else KINDS[inner],
        struct=struct,
        array=array,
        tag=tag,
        default=None if (owner, name) in NULL_ARRAYS else plain_default(field),
        first=first,
        last=last,
        nullable_from=nullable_from,
    )


def first_nullable(field: Json, first: int, last: int) -> int:
    """The first version in which the field may be null. Of versions `first` to `last`, all or none end the range."""
    since, until = version_range(field.get("nullableVersions", "none"))
    assert until >= last or until < first, f"{field['name']} is not nullable any more in version {until + 1}"
    return max(since, first) if until >= last else NEVER


def snake_case(name: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    return RENAMED.get(words, words)


def plain_default(field: Json) -> object:
    """Kafka's default as a plain value; MISSING where Kafka has only the implicit one of the type."""
    default = field.get("default", dataclasses.MISSING)
    if default == "null":
        return None
    if field["type"] == "bool" and isinstance(default, str):
        return default == "true"
    if field["type"].startswith(("int", "uint")) and isinstance(default, str):
        return int(default, 0)
    return default


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
            f'    {key}: Api("{name}", "{plan.title.split()[0]}", {plan.first}, {plan.last}, {flexible}),'
        )
    return "\n".join([*lines, "}"]) + "\n"


# ---- all of it -------------------------------------------------------------------------------------------


def generate() -> dict[str, str]:
    """File name -> text, for the whole messages folder."""
    schemas = read_schemas()
    requests = {schema["apiKey"]: schema for schema in schemas.values() if schema["type"] == "request"}
    files = {
        "__init__.py": '"""Kafka\'s messages, one file per API. Generated by tools/generate_messages.py."""\n'
    }
    apis: dict[int, tuple[str, MessagePlan]] = {}
    for key in API_KEYS:
        request = plan_message(requests[key])
        name = request.root.removesuffix("Request")
        response = plan_message(schemas[f"{name}Response"])
        check_alike(request, response)
        separate_names(request, response)
        apis[key] = snake_case(name), request
        summary = f"{name} (API key {key}), versions {request.first}-{request.last}."
        files[f"{snake_case(name)}.py"] = render_module([request, response], summary=summary)
    for name in DATA_MESSAGES:
        plan = plan_message(schemas[name])
        summary = f"{plan.root}, versions {plan.first}-{plan.last}: what a group's members tell each other."
        files[f"{snake_case(name)}.py"] = render_module([plan], summary=summary)
    files["index.py"] = render_index(apis)
    return files


def check_alike(request: MessagePlan, response: MessagePlan) -> None:
    ours = request.first, request.last, request.flexible_from
    theirs = response.first, response.last, response.flexible_from
    assert ours == theirs, f"{request.root}: request and response differ in versions"


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
