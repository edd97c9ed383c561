"""The rows of DescribeConfigs: each config's value, where it comes from, and its values in the weaker layers."""

from collections.abc import Collection, Iterable, Mapping
from itertools import dropwhile

import msgspec

from penstock.config.broker import BROKER_CONFIGS, SYNONYMS, BrokerConfigs
from penstock.config.definitions import TOPIC_CONFIGS, Definition
from penstock.config.group import GROUP_CONFIGS, group_default
from penstock.config.kinds import ConfigSource, ConfigType
from penstock.config.share_groups import ShareGroupSettings


class ConfigSynonym(msgspec.Struct, frozen=True, kw_only=True):
    """One of the places that a config's value could come from."""

    name: str
    value: str
    source: ConfigSource


class ConfigEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One config as clients see it. `synonyms` begins with the value in force, if that comes from one of them."""

    name: str
    value: str | None
    """None: not set, and without a default."""
    source: ConfigSource
    type: ConfigType
    read_only: bool
    doc: str
    synonyms: tuple[ConfigSynonym, ...]
    sensitive: bool = False


def describe_topic(
    overrides: Mapping[str, str], broker: BrokerConfigs, names: Collection[str] | None = None
) -> list[ConfigEntry]:
    """A topic's configs, all of them or those named; names that do not exist are left out, as Kafka does."""
    wanted, defaults = _wanted(TOPIC_CONFIGS.values(), names, overrides), broker.topic_defaults()
    return [
        _entry(
            topic,
            overrides.get(topic.name, defaults.get(topic.name, topic.default)),
            _topic_synonyms(topic, overrides, broker),
            read_only=False,
        )
        for topic in wanted
    ]


def describe_broker(broker: BrokerConfigs, names: Collection[str] | None = None) -> list[ConfigEntry]:
    """One node's configs, all of them or those named."""
    return [
        _entry(
            definition,
            broker.value(definition.name),
            _broker_synonyms(definition.name, broker),
            read_only=not definition.dynamic,
        )
        for definition in _wanted(BROKER_CONFIGS.values(), names, {})
    ]


def describe_all_nodes(broker: BrokerConfigs, names: Collection[str] | None = None) -> list[ConfigEntry]:
    """The configs of all nodes (the broker resource with an empty name): those that were set, and
    `min.insync.replicas`."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    return [
        _entry(
            BROKER_CONFIGS[name],
            value,
            (ConfigSynonym(name=name, value=value, source=source),),
            read_only=False,
        )
        for name, value in sorted(broker.cluster_wide.items())
        if names is None or name in names
    ]


def describe_group(
    overrides: Mapping[str, str], settings: ShareGroupSettings, names: Collection[str] | None = None
) -> list[ConfigEntry]:
    """A group's configs, all of them or those named. A group need not exist to have some. As in Kafka, each shows one
    source: the group itself, or the default, also where `settings` has another default than Kafka."""
    entries = []
    for config in _wanted(GROUP_CONFIGS.values(), names, overrides):
        source = (
            ConfigSource.DYNAMIC_GROUP_CONFIG if config.name in overrides else ConfigSource.DEFAULT_CONFIG
        )
        value = overrides.get(config.name, group_default(config, settings))
        synonym = ConfigSynonym(name=config.name, value=value, source=source)
        entries.append(_entry(config, value, (synonym,), read_only=False))
    return entries


def _wanted(
    definitions: Iterable[Definition], names: Collection[str] | None, overrides: Mapping[str, str]
) -> list[Definition]:
    if names is not None:
        return [definition for definition in definitions if definition.name in names]
    return [definition for definition in definitions if not definition.hidden or definition.name in overrides]


def _entry(
    definition: Definition, value: str | None, synonyms: tuple[ConfigSynonym, ...], *, read_only: bool
) -> ConfigEntry:
    return ConfigEntry(
        name=definition.name,
        value=value,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        type=definition.kind.type,
        read_only=read_only,
        doc=definition.doc,
        synonyms=synonyms,
    )


def _topic_synonyms(
    topic: Definition, overrides: Mapping[str, str], broker: BrokerConfigs
) -> tuple[ConfigSynonym, ...]:
    inherited = _broker_synonyms(topic.synonym, broker) if topic.synonym else ()
    if topic.name not in overrides:
        return inherited
    source = ConfigSource.DYNAMIC_TOPIC_CONFIG
    return (ConfigSynonym(name=topic.name, value=overrides[topic.name], source=source), *inherited)


def _broker_synonyms(name: str, broker: BrokerConfigs) -> tuple[ConfigSynonym, ...]:
    """The values of a config and of those with the same meaning, by layers. As in Kafka, there are none if the config
    itself has no value, and none that are stronger than the config itself."""
    rows = [
        ConfigSynonym(name=each, value=value, source=source)
        for each in SYNONYMS.get(name, (name,))
        for source, value in broker.layers(each)
    ]
    rows.sort(key=lambda row: row.source)
    return tuple(dropwhile(lambda row: row.name != name, rows))
