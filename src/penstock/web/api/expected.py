"""Describes in words the values that a field of a request may have. msgspec's own errors say only that a value does not
match a pattern, or is not one of the allowed values, and do not list them."""

import re
from collections.abc import Iterator
from typing import Any

from msgspec import inspect

EXPECTED = "expected"
"""The key, in the `extra` of a Meta, of the words to use instead of a pattern."""

_STEP = re.compile(r"[^.\[\]]+|\[[^\]]*\]")
_ITEMS = (inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType)


def expected_of(wanted: Any, field: str) -> str:
    """The allowed values of a struct's field (`records[2].key`, as msgspec names it); empty if there are no words."""
    found = [inspect.type_info(wanted)]
    for step in _STEP.findall(field):
        found = [inner for one in found for inner in _inside(one, step)]
    words = [word for one in found for word in _words(one)]
    return " or ".join(dict.fromkeys(words))


def _inside(kind: inspect.Type, step: str) -> Iterator[inspect.Type]:
    for one in _plain(kind):
        if isinstance(one, inspect.StructType):
            yield from (field.type for field in one.fields if field.encode_name == step)
            if one.tag_field == step:
                yield inspect.LiteralType((one.tag,))
        elif isinstance(one, _ITEMS):
            yield one.item_type
        elif isinstance(one, inspect.DictType):
            yield one.value_type


def _plain(kind: inspect.Type) -> Iterator[inspect.Type]:
    """Every type that it may be."""
    if isinstance(kind, inspect.Metadata):
        yield from _plain(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _plain(one)
    else:
        yield kind


def _words(kind: inspect.Type) -> Iterator[str]:
    if isinstance(kind, inspect.Metadata):
        told = (kind.extra or {}).get(EXPECTED)
        yield from [str(told)] if told else _words(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _words(one)
    elif isinstance(kind, inspect.LiteralType):
        yield " or ".join(f"`{value}`" for value in kind.values)
    elif isinstance(kind, inspect.IntType):
        yield "a number"
