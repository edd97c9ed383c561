"""The rows of DescribeConfigs: each config's value, where it comes from, and its values in the weaker layers."""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from penstock.config.broker import BROKER_CONFIGS, BrokerConfigs
from penstock.config.definitions import TOPIC_CONFIGS, Definition
from penstock.config.group import GROUP_CONFIGS
from penstock.config.kinds import ConfigSource, ConfigType


class ConfigSynonym(msgspec.Struct, frozen=True, kw_only=True):
    """One of the places that a config's value could come from."""

    name: str
    value: str
    source: ConfigSource


class ConfigEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One config as clients see it. `synonyms` begins with the value in force."""

    name: str
    value: str
    source: ConfigSource
    type: ConfigType
    read_only: bool
    doc: str
    synonyms: tuple[ConfigSynonym, ...]
    sensitive: bool = False

    @property
    def is_default(self) -> bool:
        """DescribeConfigs v0 has this instead of the source."""
        return self.source is ConfigSource.DEFAULT_CONFIG


def describe_topic(
    overrides: Mapping[str, str], broker: BrokerConfigs, names: Collection[str] | None = None
) -> list[ConfigEntry]:
    """A topic's configs, all of them or those named; names that do not exist are left out, as Kafka does."""
    wanted = _wanted(TOPIC_CONFIGS.values(), names, overrides)
    return [_entry(topic, _topic_synonyms(topic, overrides, broker), read_only=False) for topic in wanted]


def describe_broker(broker: BrokerConfigs, names: Collection[str] | None = None) -> list[ConfigEntry]:
    """One node's configs, all of them or those named."""
    wanted = _wanted(BROKER_CONFIGS.values(), names, {})
    return [
        _entry(definition, _broker_synonyms(definition.name, broker), read_only=not definition.dynamic)
        for definition in wanted
    ]


def describe_all_nodes(broker: BrokerConfigs, names: Collection[str] | None = None) -> list[ConfigEntry]:
    """The configs that were set for all nodes (the broker resource with an empty name), and no others."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    return [
        _entry(BROKER_CONFIGS[name], (ConfigSynonym(name=name, value=value, source=source),), read_only=False)
        for name, value in sorted(broker.all_nodes.items())
        if names is None or name in names
    ]


def describe_group(overrides: Mapping[str, str], names: Collection[str] | None = None) -> list[ConfigEntry]:
    """A group's configs, all of them or those named. A group need not exist to have some."""
    wanted = _wanted(GROUP_CONFIGS.values(), names, overrides)
    return [_entry(config, _group_synonyms(config, overrides), read_only=False) for config in wanted]


def _wanted(
    definitions: Iterable[Definition], names: Collection[str] | None, overrides: Mapping[str, str]
) -> list[Definition]:
    if names is not None:
        return [definition for definition in definitions if definition.name in names]
    return [definition for definition in definitions if not definition.hidden or definition.name in overrides]


def _entry(definition: Definition, synonyms: tuple[ConfigSynonym, ...], *, read_only: bool) -> ConfigEntry:
    return ConfigEntry(
        name=definition.name,
        value=synonyms[0].value,
        source=synonyms[0].source,
        type=definition.kind.type,
        read_only=read_only,
        doc=definition.doc,
        synonyms=synonyms,
    )


def _topic_synonyms(
    topic: Definition, overrides: Mapping[str, str], broker: BrokerConfigs
) -> tuple[ConfigSynonym, ...]:
    own = [
        ConfigSynonym(name=topic.name, value=overrides[topic.name], source=ConfigSource.DYNAMIC_TOPIC_CONFIG)
        for name in (topic.name,)
        if name in overrides
    ]
    inherited = [synonym for name in topic.synonyms for synonym in _broker_synonyms(name, broker)]
    # With several broker names the defaults come last, whichever name they are under.
    inherited.sort(key=lambda synonym: synonym.source is ConfigSource.DEFAULT_CONFIG)
    default = ConfigSynonym(name=topic.name, value=topic.default, source=ConfigSource.DEFAULT_CONFIG)
    return tuple(own + (inherited or [default]))


def _group_synonyms(config: Definition, overrides: Mapping[str, str]) -> tuple[ConfigSynonym, ...]:
    default = ConfigSynonym(name=config.name, value=config.default, source=ConfigSource.DEFAULT_CONFIG)
    if config.name not in overrides:
        return (default,)
    source = ConfigSource.DYNAMIC_GROUP_CONFIG
    return (ConfigSynonym(name=config.name, value=overrides[config.name], source=source), default)


def _broker_synonyms(name: str, broker: BrokerConfigs) -> tuple[ConfigSynonym, ...]:
    return tuple(
        ConfigSynonym(name=name, value=value, source=source) for source, value in broker.layers(name)
    )
