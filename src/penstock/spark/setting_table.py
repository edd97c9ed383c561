"""How `kafka.*` settings are treated: used, ignored, or refused with a reason. One table per client; settings for
security (security_options.py) are the same for both.

An unknown name is refused: a typo in a setting that matters would otherwise be found out in production.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from penstock.client.security_settings import shown
from penstock.errors import ConfigError
from penstock.spark import security_options


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
            if name not in self._known:
                raise ConfigError(f"kafka.{name}", shown(name, value), self._expected(name))

    @property
    def _known(self) -> frozenset[str]:
        ours = self.honoured | self.without_effect
        return ours | security_options.HONOURED | security_options.WITHOUT_EFFECT

    def _expected(self, name: str) -> str:
        refused = {**security_options.REFUSED, **self.refused}
        if name in refused:
            return refused[name]
        near = get_close_matches(name, self._known, n=1)
        hint = f"; did you mean kafka.{near[0]}?" if near else ""
        return f"a setting of {self.client}{hint}"
