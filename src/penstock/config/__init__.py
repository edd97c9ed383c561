"""Settings as frozen values: of topics, groups and nodes, and the limits on everything that a peer controls."""

from penstock.config.address import Address
from penstock.config.broker import BrokerConfigs, broker_definition, check_dynamic, static_broker_configs
from penstock.config.cluster import ClusterSettings
from penstock.config.consumer_groups import ConsumerGroupConfig, resolve_consumer_group
from penstock.config.declared import DeclaredQueue, DeclaredTopic
from penstock.config.definitions import TOPIC_CONFIGS
from penstock.config.describing import (
    ConfigEntry,
    describe_all_nodes,
    describe_broker,
    describe_group,
    describe_topic,
)
from penstock.config.group import GROUP_CONFIGS, ShareGroupConfig
from penstock.config.kinds import ConfigSource, ConfigType
from penstock.config.lake import LakeSettings
from penstock.config.limits import Limits
from penstock.config.listeners import DEFAULT_LISTENER, InterNodeTls, Listener, TlsSettings
from penstock.config.node import GroupSettings, NodeConfig
from penstock.config.overrides import parse_overrides, resolve
from penstock.config.schema_registry import SchemaRegistrySettings
from penstock.config.share_groups import ShareGroupSettings, share_group_settings
from penstock.config.topic import TopicConfig
from penstock.config.transactions import TransactionSettings

__all__ = [
    "DEFAULT_LISTENER",
    "GROUP_CONFIGS",
    "TOPIC_CONFIGS",
    "Address",
    "BrokerConfigs",
    "ClusterSettings",
    "ConfigEntry",
    "ConfigSource",
    "ConfigType",
    "ConsumerGroupConfig",
    "DeclaredQueue",
    "DeclaredTopic",
    "GroupSettings",
    "InterNodeTls",
    "LakeSettings",
    "Limits",
    "Listener",
    "NodeConfig",
    "SchemaRegistrySettings",
    "ShareGroupConfig",
    "ShareGroupSettings",
    "TlsSettings",
    "TopicConfig",
    "TransactionSettings",
    "broker_definition",
    "check_dynamic",
    "describe_all_nodes",
    "describe_broker",
    "describe_group",
    "describe_topic",
    "parse_overrides",
    "resolve",
    "resolve_consumer_group",
    "share_group_settings",
    "static_broker_configs",
]
