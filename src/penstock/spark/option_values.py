"""Reads options: names are case-insensitive, values are checked, errors name the option.

Spark passes options as strings. `Reader` removes them one by one, so that any that remain at the end are unknown
options, which is an error.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from penstock.client.security_settings import shown
from penstock.errors import ConfigError

_TRUE, _FALSE = "true", "false"
_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class Reader:
    """Options of one data source, each to be asked for by its documented name."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        self._known: dict[str, str] = {}

    def has(self, name: str) -> bool:
        self._known[name.lower()] = name
        return name.lower() in self._values

    def text(self, name: str, default: str | None = None) -> str | None:
        self._known[name.lower()] = name
        return self._values.get(name.lower(), default)

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in (_TRUE, _FALSE):
            raise ConfigError(name, value, "true or false")
        return value.lower() == _TRUE

    def number(self, name: str, *, least: int = 0) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        return whole_number(name, value, least=least)

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        value = self.text(name, default) or ""
        for word in allowed:
            if value.lower() == word.lower():
                return word
        raise ConfigError(name, value, f"one of {', '.join(allowed)}")

    def duration_ms(self, name: str, default_ms: int) -> int:
        """A number with a unit, as Spark writes times: 15m, 30s, 100ms. A bare number is milliseconds."""
        value = self.text(name)
        if value is None:
            return default_ms
        text = value.strip().lower()
        digits = text.rstrip("abcdefghijklmnopqrstuvwxyz")
        unit = text[len(digits) :] or "ms"
        if not digits.strip().isdecimal() or unit not in _MS:
            raise ConfigError(name, value, "a time such as 100ms, 30s, 15m or 1h")
        return int(digits) * _MS[unit]

    def given(self, names: Iterable[str]) -> dict[str, str]:
        """Those of these options that were given."""
        return {name: self._values[name.lower()] for name in names if self.has(name)}

    def prefixed(self, prefix: str) -> dict[str, str]:
        """All options that start so, without the prefix."""
        found = {name: value for name, value in self._values.items() if name.startswith(prefix)}
        self._known.update({name: name for name in found})
        return {name[len(prefix) :]: value for name, value in found.items()}

    def refuse_others(self) -> None:
        for name, value in self._values.items():
            if name not in self._known:
                near = get_close_matches(name, self._known, n=1)
                hint = f"did you mean {self._known[near[0]]}?" if near else "docs/spark.md lists them"
                raise ConfigError(name, shown(name, value), f"a known option; {hint}")


def whole_number(name: str, value: str, *, least: int = 0, most: int = 2**63 - 1) -> int:
    try:
        number = int(value.strip())
    except ValueError:
        raise ConfigError(name, value, "a whole number") from None
    if not least <= number <= most:
        raise ConfigError(name, value, f"a whole number from {least} to {most}")
    return number
