"""Reads and checks one field of a settings struct, so that an error names the field and what was expected."""

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

    A struct that is built by hand is not checked by msgspec, so every `validate()` ends up here.
    """
    for name, hint in get_type_hints(type(settings), include_extras=True).items():
        value = getattr(settings, name)
        if not isinstance(value, msgspec.Struct):
            try:
                msgspec.convert(value, hint)
            except msgspec.ValidationError as problem:
                raise ConfigError(prefix + name, value, _expected(problem)) from None


def _expected(problem: msgspec.ValidationError) -> str:
    """The part of msgspec's sentence that says what was expected."""
    return str(problem).removeprefix("Expected ").split(", got ")[0].split(" - at ")[0].replace("`", "")
