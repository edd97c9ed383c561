"""Reads and checks one field of a settings struct, so that an error names the field and what was expected."""

from collections.abc import Iterator
from functools import cache
from typing import Any, get_type_hints

import msgspec

from penstock.errors import ConfigError


def convert_field(origin: str, value: object, hint: Any) -> Any:
    """`value` as the field's type; numbers and booleans may come as text, as they do from the environment."""
    try:
        return msgspec.convert(value, hint, strict=False)
    except msgspec.ValidationError as problem:
        raise ConfigError(origin, value, _expected(problem)) from None


def check_fields(settings: msgspec.Struct, prefix: str = "") -> None:
    """Raises ConfigError for the first field that is outside its type or range.

    A struct that is built by hand is not checked by msgspec, so every `validate()` ends up here. Values that are the
    field's default are not checked: reading the types of a struct takes a millisecond, and most brokers set few fields.
    """
    for name, value in _set_fields(settings):
        try:
            msgspec.convert(value, _types(type(settings))[name])
        except msgspec.ValidationError as problem:
            raise ConfigError(prefix + name, value, _expected(problem)) from None


def _set_fields(settings: msgspec.Struct) -> Iterator[tuple[str, object]]:
    """Fields whose value is not the default, without nested structs, which have a `validate()` of their own."""
    names, defaults = settings.__struct_fields__, settings.__struct_defaults__
    default_of = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    for name in names:
        value = getattr(settings, name)
        if value is not default_of.get(name, msgspec.NODEFAULT) and not isinstance(value, msgspec.Struct):
            yield name, value


@cache
def _types(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _expected(problem: msgspec.ValidationError) -> str:
    """The part of msgspec's sentence that says what was expected."""
    return str(problem).removeprefix("Expected ").split(", got ")[0].split(" - at ")[0].replace("`", "")
