"""Decisions on changes of configs: IncrementalAlterConfigs (one by one) and AlterConfigs (all at once).

As in `decisions`, functions return records and change nothing. Either all changes of a resource are accepted, or none.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum

import msgspec

from penstock.cluster.decisions import known_topic
from penstock.cluster.records import (
    GroupConfigsChanged,
    MetadataRecord,
    NodeConfigsChanged,
    TopicConfigsChanged,
)
from penstock.cluster.state import ClusterState
from penstock.cluster.topics import INTERNAL_TOPICS
from penstock.config import (
    BrokerConfigs,
    ConfigType,
    Limits,
    broker_definition,
    check_dynamic,
    parse_overrides,
    resolve,
)
from penstock.config.group import (
    DEAD_LETTER_TOPIC,
    group_default,
    group_definition,
    parse_group_overrides,
)
from penstock.config.kinds import split_list
from penstock.config.overrides import topic_definition
from penstock.errors import ErrorCode, KafkaError


class AlterOperation(IntEnum):
    """An operation on a config, with Kafka's numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(msgspec.Struct, frozen=True, kw_only=True):
    """One config to change; only DELETE has no value."""

    name: str
    operation: AlterOperation = AlterOperation.SET
    value: str | None = None


def alter_topic_configs(
    state: ClusterState, name: str, changes: Sequence[ConfigChange]
) -> list[MetadataRecord]:
    """Changes some of a topic's configs."""
    topic = known_topic(state, name)
    inherited = state.broker.topic_defaults()
    configs = dict(topic.configs)
    for change in _distinct(changes):
        definition = topic_definition(change.name)
        current = configs.get(change.name, inherited.get(change.name, definition.default))
        _apply(configs, change, current, definition.kind.type)
    return _topic_records(state, name, configs)


def replace_topic_configs(
    state: ClusterState, name: str, configs: Mapping[str, str | None]
) -> list[MetadataRecord]:
    """Replaces all of a topic's configs."""
    known_topic(state, name)
    return _topic_records(state, name, configs)


def alter_node_configs(
    state: ClusterState, node_id: int | None, changes: Sequence[ConfigChange]
) -> list[MetadataRecord]:
    """Changes some run-time configs of one node, or (None) of all nodes."""
    configs = dict(state.node_configs.get(node_id, {}))
    for change in _distinct(changes):
        definition = broker_definition(change.name)
        current = configs.get(change.name, state.broker.value(change.name) or "")
        _apply(configs, change, current, definition.kind.type)
    return replace_node_configs(state, node_id, configs)


def replace_node_configs(
    state: ClusterState, node_id: int | None, configs: Mapping[str, str | None]
) -> list[MetadataRecord]:
    """Replaces all run-time configs of one node, or (None) of all nodes."""
    checked: dict[str, str] = {}
    for name, value in configs.items():
        checked[name] = _needed(name, value)
        check_dynamic(name, checked[name])
    if checked == state.node_configs.get(node_id, {}):
        return []
    record = NodeConfigsChanged(node_id=node_id, configs=checked)
    _check_topics_still_resolve(state, record)
    return [record]


def alter_group_configs(
    state: ClusterState, group_id: str, changes: Sequence[ConfigChange], limits: Limits
) -> list[MetadataRecord]:
    """Changes some configs of a group, which need not exist yet."""
    configs = dict(state.group_configs.get(group_id, {}))
    for change in _distinct(changes):
        definition = group_definition(change.name)
        default = group_default(definition, state.share_group_settings)
        _apply(configs, change, configs.get(change.name, default), definition.kind.type)
    return replace_group_configs(state, group_id, configs, limits)


def replace_group_configs(
    state: ClusterState, group_id: str, configs: Mapping[str, str | None], limits: Limits
) -> list[MetadataRecord]:
    """Replaces all of a group's configs."""
    _check_group_id(group_id, limits)
    checked = parse_group_overrides(configs, state.share_group_settings)
    _check_dead_letter_topic(checked)
    if checked == state.group_configs.get(group_id, {}):
        return []
    if group_id not in state.group_configs and len(state.group_configs) >= limits.max_group_configs:
        message = f"{len(state.group_configs)} groups have configs; limits.max_group_configs allows no more"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    return [GroupConfigsChanged(group_id=group_id, configs=checked)]


def _check_group_id(group_id: str, limits: Limits) -> None:
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "resource_name is empty: expected a group's name")
    if len(group_id.encode()) > limits.max_group_id_bytes:
        message = f"resource_name: longer than limits.max_group_id_bytes ({limits.max_group_id_bytes})"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _check_dead_letter_topic(configs: Mapping[str, str]) -> None:
    """The broker reads its own records from internal topics; dead letters there would break that."""
    name = configs.get(DEAD_LETTER_TOPIC)
    if name in INTERNAL_TOPICS:
        message = f"{DEAD_LETTER_TOPIC}: {name} is internal: name another topic"
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)


def _topic_records(state: ClusterState, name: str, configs: Mapping[str, str | None]) -> list[MetadataRecord]:
    topic = state.topics[name]
    checked = parse_overrides(configs)
    config = resolve(checked, state.broker.topic_defaults())
    if config.memory != topic.config.memory:
        message = f"penstock.storage of {name} was fixed when it was created; create a new topic instead"
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)
    if topic.internal and not config.cleanup_compact:
        message = f"{name} is internal and must stay compacted: cleanup.policy cannot do without compact"
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)
    if checked == topic.configs:
        return []
    return [TopicConfigsChanged(name=name, topic_id=topic.topic_id, configs=checked)]


def _check_topics_still_resolve(state: ClusterState, record: NodeConfigsChanged) -> None:
    """A new default may contradict the configs of a topic (compaction lags). It is refused here, because applying a
    record must never fail."""
    configs: dict[int | None, Mapping[str, str]] = {**state.node_configs, record.node_id: record.configs}
    node_id = state.node_id if record.node_id is None else record.node_id
    broker = BrokerConfigs(
        static=state.broker.static, all_nodes=configs.get(None, {}), this_node=configs.get(node_id, {})
    )
    defaults = broker.topic_defaults()
    resolve({}, defaults)
    for topic in state.topics.values():
        resolve(topic.configs, defaults)


def _distinct(changes: Sequence[ConfigChange]) -> Sequence[ConfigChange]:
    counts = Counter(change.name for change in changes)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"named more than once: {', '.join(twice)}")
    return changes


def _apply(configs: dict[str, str], change: ConfigChange, current: str, type_: ConfigType) -> None:
    if change.operation is AlterOperation.DELETE:
        configs.pop(change.name, None)
        return
    value = _needed(change.name, change.value)
    if change.operation is AlterOperation.SET:
        configs[change.name] = value
        return
    if type_ is not ConfigType.LIST:
        message = (
            f"{change.name} is not a list: {change.operation.name.lower()} does not apply, set it instead"
        )
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)
    configs[change.name] = _edited(current, value, change.operation)


def _edited(current: str, value: str, operation: AlterOperation) -> str:
    parts, edit = split_list(current), split_list(value)
    if operation is AlterOperation.APPEND:
        return ",".join(parts + tuple(part for part in edit if part not in parts))
    return ",".join(part for part in parts if part not in edit)


def _needed(name: str, value: str | None) -> str:
    if value is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} has no value; send one, or delete the config")
    return value.strip()
