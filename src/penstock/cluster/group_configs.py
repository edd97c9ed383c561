"""The configs of groups: the values that were set, and the resulting settings."""

from collections.abc import Mapping

from penstock.config import ShareGroupConfig, ShareGroupSettings
from penstock.config.group import resolve_group


class GroupConfigs:
    """Configs by group. Every heartbeat and fetch calls `resolved`, so it is computed when configs change."""

    def __init__(
        self, settings: ShareGroupSettings, overrides: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        self.settings = settings
        self.overrides: dict[str, dict[str, str]] = {}
        self._resolved: dict[str, ShareGroupConfig] = {}
        self._default = resolve_group({}, settings)
        for group_id, configs in (overrides or {}).items():
            self.put(group_id, configs)

    def put(self, group_id: str, configs: Mapping[str, str]) -> None:
        """A group without configs is not kept."""
        if configs:
            self.overrides[group_id] = dict(configs)
            self._resolved[group_id] = resolve_group(configs, self.settings)
        else:
            self.overrides.pop(group_id, None)
            self._resolved.pop(group_id, None)

    def resolved(self, group_id: str) -> ShareGroupConfig:
        return self._resolved.get(group_id, self._default)

    def snapshot(self) -> dict[str, dict[str, str]]:
        return {group_id: dict(self.overrides[group_id]) for group_id in sorted(self.overrides)}

    def copy(self) -> "GroupConfigs":
        copy = GroupConfigs(self.settings)
        copy.overrides, copy._resolved = dict(self.overrides), dict(self._resolved)
        return copy
