"""Broker configs: those that DescribeConfigs shows of a node, and those that can be changed while it runs.

Kafka has hundreds; here are those that clients and tools ask for, with the values that Penstock really uses.
Two kinds:

- *defaults of topic configs* (`log.retention.ms`, `message.max.bytes` ...), made from the topic table. They
  are dynamic: set for one node, or for all nodes under the empty name, they take effect on every topic that
  does not override them.
- *facts of the node* (`num.partitions`, `listeners` ...), read-only: they change with the config file and a restart.

A value is looked for in the layers of `BrokerConfigs`, strongest first: set for this node, set for all nodes,
started with, Kafka's default.
"""

from collections.abc import Iterator, Mapping

import msgspec

from penstock.config.address import Address
from penstock.config.definitions import TOPIC_CONFIGS, Definition
from penstock.config.kinds import ConfigSource, Kind, boolean, integer, long, text, words
from penstock.config.node import NodeConfig
from penstock.config.overrides import nearest, parse_value
from penstock.errors import ErrorCode, KafkaError


def _fact(name: str, kind: Kind, doc: str) -> Definition:
    return Definition(name=name, kind=kind, default="", doc=doc, dynamic=False)


_FACTS = (
    _fact("advertised.listeners", words(), "The address that the node gives to clients."),
    _fact("auto.create.topics.enable", boolean(), "Whether asking for an unknown topic creates it."),
    _fact("broker.id", integer(0), "The node's number in its cluster."),
    _fact("connections.max.idle.ms", long(1), "How long a connection may be idle before it is closed."),
    _fact(
        "default.replication.factor",
        integer(1),
        "The number of replicas of a topic that is created without one.",
    ),
    _fact("delete.topic.enable", boolean(), "Whether topics can be deleted. They always can."),
    _fact("fetch.max.bytes", integer(1024), "The largest Fetch response, whatever the client asks for."),
    _fact("group.initial.rebalance.delay.ms", integer(0), "How long a new group waits for more members."),
    _fact(
        "group.max.session.timeout.ms", integer(1), "The longest session timeout that a member may ask for."
    ),
    _fact("group.max.size", integer(1), "The most members that one group may have."),
    _fact(
        "group.min.session.timeout.ms", integer(1), "The shortest session timeout that a member may ask for."
    ),
    _fact("listeners", words(), "The addresses that the node listens on."),
    _fact("log.cleaner.enable", boolean(), "Whether compacted topics are compacted. They always are."),
    _fact("log.dir", text(), "The folder that holds the logs."),
    _fact("log.dirs", words(), "The folders that hold the logs; Penstock has one."),
    _fact("log.retention.hours", integer(-1), "log.retention.ms in hours, rounded down."),
    _fact("log.retention.minutes", integer(-1), "log.retention.ms in minutes, rounded down."),
    _fact("log.roll.hours", integer(0), "log.roll.ms in hours, rounded down."),
    _fact("log.roll.jitter.hours", integer(0), "log.roll.jitter.ms in hours, rounded down."),
    _fact("max.connections", integer(1), "The most client connections at once."),
    _fact("node.id", integer(0), "The node's number in its cluster."),
    _fact("num.partitions", integer(1), "The number of partitions of a topic that is created without one."),
    _fact("offset.metadata.max.bytes", integer(0), "The longest text that may go with a committed offset."),
    _fact("offsets.retention.check.interval.ms", long(1), "How often expired offsets are removed."),
    _fact("offsets.retention.minutes", integer(1), "How long offsets outlive the group that committed them."),
    _fact(
        "offsets.topic.num.partitions",
        integer(1),
        "The partitions of the topic that holds committed offsets.",
    ),
    _fact(
        "offsets.topic.replication.factor",
        integer(1),
        "The replicas of the topic that holds committed offsets.",
    ),
    _fact("penstock.http.url", text(), "The address of the node's HTTP port; empty if it has none."),
    _fact("process.roles", words(), "Every Penstock node is broker and controller in one."),
    _fact("socket.request.max.bytes", integer(1024), "The largest request that a client may send."),
)


def _topic_defaults() -> Iterator[Definition]:
    for topic in TOPIC_CONFIGS.values():
        for name in topic.synonyms:
            doc = f"The default of the topic config {topic.name}. {topic.doc}"
            yield msgspec.structs.replace(topic, name=name, doc=doc, synonyms=(topic.name,))


BROKER_CONFIGS: dict[str, Definition] = {
    definition.name: definition
    for definition in sorted((*_FACTS, *_topic_defaults()), key=lambda definition: definition.name)
}

IDENTITY = frozenset(
    {
        "advertised.listeners",
        "broker.id",
        "listeners",
        "log.dir",
        "log.dirs",
        "node.id",
        "penstock.http.url",
    }
)
"""Facts that identify a node: their value comes from its start, never from a default."""

_ROUNDED_DOWN = {
    "log.retention.hours": ("log.retention.ms", 3_600_000),
    "log.retention.minutes": ("log.retention.ms", 60_000),
    "log.roll.hours": ("log.roll.ms", 3_600_000),
    "log.roll.jitter.hours": ("log.roll.jitter.ms", 3_600_000),
}


class BrokerConfigs(msgspec.Struct, frozen=True, kw_only=True):
    """One node's configs in layers.

    `static` comes from `static_broker_configs`, the others from the cluster's state.
    """

    static: Mapping[str, str] = {}
    all_nodes: Mapping[str, str] = {}
    this_node: Mapping[str, str] = {}

    def layers(self, name: str) -> list[tuple[ConfigSource, str]]:
        """Every value that a broker config has, strongest first; the default is always the last."""
        found = [
            (ConfigSource.DYNAMIC_BROKER_CONFIG, self.this_node.get(name)),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, self.all_nodes.get(name)),
            (ConfigSource.STATIC_BROKER_CONFIG, self.static.get(name)),
            (ConfigSource.DEFAULT_CONFIG, self._default(name)),
        ]
        return [(source, value) for source, value in found if value is not None]

    def value(self, name: str) -> str:
        return self.layers(name)[0][1]

    def topic_defaults(self) -> dict[str, str]:
        """The defaults of this node's topics, by the topic configs' names, for `resolve`."""
        defaults: dict[str, str] = {}
        for topic in TOPIC_CONFIGS.values():
            # A stronger synonym wins even from a weaker layer, as in Kafka.
            for name in topic.synonyms:
                source, value = self.layers(name)[0]
                if source is not ConfigSource.DEFAULT_CONFIG:
                    defaults[topic.name] = value
                    break
        return defaults

    def _default(self, name: str) -> str | None:
        if name in _ROUNDED_DOWN:
            base, unit = _ROUNDED_DOWN[name]
            value = int(self.value(base))
            return str(value if value < 0 else value // unit)
        if name in IDENTITY:
            return None
        return _DEFAULT_FACTS.get(name, BROKER_CONFIGS[name].default)


def broker_definition(name: str) -> Definition:
    """The definition of a broker config; an unknown name is refused with the nearest known one."""
    if name not in BROKER_CONFIGS:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"unknown broker config {name}{nearest(name, BROKER_CONFIGS)}"
        )
    return BROKER_CONFIGS[name]


def check_dynamic(name: str, value: str) -> None:
    """Raises KafkaError unless a running broker can take this value."""
    definition = broker_definition(name)
    if not definition.dynamic:
        message = f"{name} cannot change while the node runs; set it in the node's configuration and restart"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    parse_value(definition.synonyms[0], value)


def static_broker_configs(config: NodeConfig) -> dict[str, str]:
    """The settings that a node was started with, by the broker configs' names."""
    facts = _facts(config)
    configs = {name: fact for name, fact in facts.items() if name in IDENTITY or fact != _DEFAULT_FACTS[name]}
    for name, value in config.topic_defaults.items():
        for synonym in TOPIC_CONFIGS[name].synonyms[:1]:
            configs[synonym] = value
    return configs


def _facts(config: NodeConfig) -> dict[str, str]:
    groups, limits = config.groups, config.limits
    folder = "memory" if config.memory else config.data_dir
    facts = {
        "advertised.listeners": f"PLAINTEXT://{config.advertised}",
        "auto.create.topics.enable": str(config.auto_create_topics).lower(),
        "broker.id": config.node_id,
        "connections.max.idle.ms": limits.idle_timeout_ms,
        "default.replication.factor": config.usual_replication_factor,
        "delete.topic.enable": "true",
        "fetch.max.bytes": limits.fetch_max_bytes,
        "group.initial.rebalance.delay.ms": groups.initial_rebalance_delay_ms,
        "group.max.session.timeout.ms": groups.max_session_timeout_ms,
        "group.max.size": limits.max_group_members,
        "group.min.session.timeout.ms": groups.min_session_timeout_ms,
        "listeners": f"PLAINTEXT://{config.kafka}",
        "log.cleaner.enable": "true",
        "log.dir": folder,
        "log.dirs": folder,
        "max.connections": limits.max_connections,
        "node.id": config.node_id,
        "num.partitions": config.num_partitions,
        "offset.metadata.max.bytes": limits.max_offset_metadata_bytes,
        "offsets.retention.check.interval.ms": groups.offsets_retention_check_interval_ms,
        "offsets.retention.minutes": groups.offsets_retention_minutes,
        "offsets.topic.num.partitions": groups.offsets_topic_partitions,
        "offsets.topic.replication.factor": config.usual_replication_factor,
        "penstock.http.url": _http_url(config),
        "process.roles": "broker,controller",
        "socket.request.max.bytes": limits.max_request_bytes,
    }
    return {name: str(fact) for name, fact in facts.items()}


def _http_url(config: NodeConfig) -> str:
    """The URL of the HTTP port. If it listens on all addresses, its host is the one that clients are given."""
    if config.http is None:
        return ""
    host = config.advertised.host if config.http.host in ("", "0.0.0.0", "::") else config.http.host
    return f"http://{Address(host, config.http.port)}"


_DEFAULT_FACTS = _facts(NodeConfig())
