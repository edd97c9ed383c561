"""An Avro schema that uses types of others: their definitions go where they are used first."""

import json
from collections.abc import Mapping
from typing import Any

from .problems import PayloadError, shown


def inlined(text: str, references: Mapping[str, str]) -> str:
    """The schema as JSON that stands alone. `references` are in order: none uses a later one."""
    if not references:
        return text
    pending: dict[str, Any] = {}
    try:
        for other in references.values():
            found = json.loads(other)
            pending[_full_name(found, "")] = found
        return json.dumps(_resolved(json.loads(text), "", pending))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise PayloadError(
            f"the Avro schema or one that it refers to cannot be read: {shown(error)}"
        ) from None


def _resolved(schema: Any, space: str, pending: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_resolved(one, space, pending) for one in schema]
    if isinstance(schema, str):
        name = schema if "." in schema or not space else f"{space}.{schema}"
        definition = pending.pop(name if name in pending else schema, None)
        return schema if definition is None else _resolved(_rooted(definition), "", pending)
    inner = str(schema.get("namespace", space)) if "name" in schema else space
    changed = dict(schema)
    for part in ("type", "items", "values"):
        if part in schema and not (part == "type" and schema["type"] in ("record", "error", "enum", "fixed")):
            changed[part] = _resolved(schema[part], inner, pending)
    if "fields" in schema:
        changed["fields"] = [
            {**one, "type": _resolved(one["type"], inner, pending)} for one in schema["fields"]
        ]
    return changed


def _rooted(definition: dict[str, Any]) -> dict[str, Any]:
    """With the namespace spelled out, so that it does not get that of the place where it is used."""
    return (
        definition
        if "." in definition["name"]
        else {**definition, "namespace": definition.get("namespace", "")}
    )


def _full_name(schema: dict[str, Any], space: str) -> str:
    name, space = str(schema["name"]), str(schema.get("namespace", space))
    return name if "." in name or not space else f"{space}.{name}"
