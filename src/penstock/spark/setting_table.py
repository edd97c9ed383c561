"""How `kafka.*` settings are treated: used, ignored, or refused with a reason. One table per client.

An unknown name is refused: a typo in a setting that matters would otherwise be found out in production.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from penstock.errors import ConfigError

NOT_YET: Final = "plain connections only; this Penstock has no TLS or SASL yet. Leave it out"
SECURITY: Final = ("sasl.", "ssl.", "security.")


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingTable:
    client: str
    """The name of the client that has these settings."""
    honoured: frozenset[str]
    without_effect: frozenset[str]
    refused: Mapping[str, str]
    """By name: what is expected instead."""

    def check(self, settings: Mapping[str, str]) -> None:
        """ConfigError for the first setting (names without `kafka.`) that cannot be meant."""
        for name, value in settings.items():
            if name not in self.honoured and name not in self.without_effect:
                raise ConfigError(f"kafka.{name}", value, self._expected(name))
        protocol = settings.get("security.protocol", "PLAINTEXT")
        if protocol.upper() != "PLAINTEXT":
            raise ConfigError("kafka.security.protocol", protocol, f"PLAINTEXT: {NOT_YET}")

    def _expected(self, name: str) -> str:
        if name in self.refused:
            return self.refused[name]
        if name.startswith(SECURITY):
            return NOT_YET
        near = get_close_matches(name, self.honoured | self.without_effect, n=1)
        hint = f"; did you mean kafka.{near[0]}?" if near else ""
        return f"a setting of {self.client}{hint}"
