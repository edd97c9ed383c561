"""Broker configs: those that DescribeConfigs shows of a node, and those that can be changed while it runs.

Kafka has hundreds; here are those that clients and tools ask for, with the values that Penstock really uses.
Two kinds:

- *defaults of topic configs* (`log.retention.ms`, `message.max.bytes` ...), made from the topic table. They
  are dynamic: set for one node, or for all nodes under the empty name, they take effect on every topic that
  does not override them.
- *facts of the node* (`num.partitions`, `listeners` ...), read-only: they change with the config file and a restart.

A value is looked for in the layers of `BrokerConfigs`, strongest first: set for this node, set for all nodes,
started with, Kafka's default. Some times have several configs, one per unit (`log.retention.ms`, `.minutes`, `.hours`).
As in Kafka, the one in milliseconds wins and is unset by default; only that one can be set here.
"""

from collections.abc import Iterator, Mapping

import msgspec

from penstock.config.address import Address
from penstock.config.definitions import TOPIC_CONFIGS, Definition
from penstock.config.group import KAFKA_DEAD_LETTER_PREFIX
from penstock.config.kinds import LONG_MAX, ConfigSource, Kind, boolean, integer, long, short, text, words
from penstock.config.listeners import DEFAULT_LISTENER, Listener
from penstock.config.node import SERVER_REBALANCE_DELAY_MS, GroupSettings, NodeConfig
from penstock.config.overrides import parse_value
from penstock.config.share_groups import ShareGroupSettings, broker_name
from penstock.errors import ErrorCode, KafkaError
from penstock.nearest import nearest


def _fact(name: str, kind: Kind, doc: str) -> Definition:
    return Definition(name=name, kind=kind, default="", doc=doc, dynamic=False)


_FACTS = (
    _fact("advertised.listeners", words(), "The address that the node gives to clients."),
    _fact("auto.create.topics.enable", boolean(), "Whether asking for an unknown topic creates it."),
    _fact("broker.id", integer(0), "The node's number in its cluster."),
    _fact("broker.rack", text(), "The node's rack; unset if it has none."),
    _fact("connections.max.idle.ms", long(1), "How long a connection may be idle before it is closed."),
    _fact(
        "default.replication.factor",
        integer(1),
        "The number of replicas of a topic that is created without one.",
    ),
    _fact("delete.topic.enable", boolean(), "Whether topics can be deleted. They always can."),
    _fact(
        "errors.deadletterqueue.auto.create.topics.enable",
        boolean(),
        "Whether a topic for the dead letters of a share group is created if there is none. It always is.",
    ),
    _fact(
        "errors.deadletterqueue.topic.name.prefix",
        text(),
        "The beginning of the names that share groups may give in errors.deadletterqueue.topic.name.",
    ),
    _fact("fetch.max.bytes", integer(1024), "The largest Fetch response, whatever the client asks for."),
    _fact(
        "group.consumer.assignment.interval.ms",
        integer(0),
        "The default of the group config consumer.assignment.interval.ms.",
    ),
    _fact("group.consumer.assignors", words(), "The assignors of the consumer protocol (KIP-848)."),
    _fact(
        "group.consumer.heartbeat.interval.ms",
        integer(1),
        "The default of the group config consumer.heartbeat.interval.ms.",
    ),
    _fact("group.consumer.max.size", integer(1), "The most members that one consumer group may have."),
    _fact(
        "group.consumer.migration.policy",
        text(),
        "Whether groups with members may move to the consumer protocol and back.",
    ),
    _fact(
        "group.consumer.session.timeout.ms",
        integer(1),
        "The default of the group config consumer.session.timeout.ms.",
    ),
    _fact("group.initial.rebalance.delay.ms", integer(0), "How long a new group waits for more members."),
    _fact(
        "group.max.session.timeout.ms", integer(1), "The longest session timeout that a member may ask for."
    ),
    _fact("group.max.size", integer(1), "The most members that one group may have."),
    _fact(
        "group.min.session.timeout.ms", integer(1), "The shortest session timeout that a member may ask for."
    ),
    _fact("group.share.assignors", words(), "The assignors of share groups: Kafka's only one."),
    _fact("group.share.max.share.sessions", integer(1), "The most sessions of share consumers on the node."),
    _fact("group.share.max.size", integer(1), "The most members that one share group may have."),
    _fact("listener.security.protocol.map", words(), "The security protocol of each listener."),
    _fact("listeners", words(), "The addresses that the node listens on."),
    _fact("log.cleaner.enable", boolean(), "Whether compacted topics are compacted. They always are."),
    _fact("log.dir", words(), "The folder that holds the logs."),
    _fact("log.dirs", words(), "The folders that hold the logs; Penstock has one."),
    _fact("log.flush.scheduler.interval.ms", long(0), "The default of log.flush.interval.ms."),
    _fact("log.retention.hours", integer(-1), "The default of log.retention.ms, in hours."),
    _fact("log.retention.minutes", integer(-1), "log.retention.ms in minutes; never set."),
    _fact("log.roll.hours", integer(1), "The default of log.roll.ms, in hours."),
    _fact("log.roll.jitter.hours", integer(0), "The default of log.roll.jitter.ms, in hours."),
    _fact("max.connections", integer(1), "The most client connections at once."),
    _fact("max.incremental.fetch.session.cache.slots", integer(0), "The most fetch sessions on the node."),
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
        short(1),
        "The replicas of the topic that holds committed offsets.",
    ),
    _fact("penstock.http.url", text(), "The address of the node's HTTP port; empty if it has none."),
    _fact("process.roles", words(), "Every Penstock node is broker and controller in one."),
    _fact("socket.request.max.bytes", integer(1024), "The largest request that a client may send."),
    _fact(
        "transaction.max.timeout.ms",
        integer(1),
        "The longest timeout of transactions that a producer may ask for.",
    ),
    _fact(
        "transaction.state.log.num.partitions",
        integer(1),
        "The partitions of the topic that holds the state of transactions.",
    ),
    _fact(
        "transaction.state.log.replication.factor",
        short(1),
        "The replicas of the topic that holds the state of transactions.",
    ),
    _fact(
        "transactional.id.expiration.ms",
        integer(1),
        "How long a transactional id without a transaction is remembered.",
    ),
)


def _topic_defaults() -> Iterator[Definition]:
    for topic in TOPIC_CONFIGS.values():
        if topic.synonym:
            doc = f"The default of the topic config {topic.name}. {topic.doc}"
            yield msgspec.structs.replace(topic, name=topic.synonym, doc=doc, synonym=topic.name)


def _share_settings() -> Iterator[Definition]:
    for field in msgspec.structs.fields(ShareGroupSettings):
        yield _fact(broker_name(field.name), integer(0), f"The setting share_groups.{field.name}.")


BROKER_CONFIGS: dict[str, Definition] = {
    definition.name: definition
    for definition in sorted(
        (*_FACTS, *_share_settings(), *_topic_defaults()), key=lambda definition: definition.name
    )
}

IDENTITY = frozenset(
    {
        "advertised.listeners",
        "broker.id",
        "broker.rack",
        "listener.security.protocol.map",
        "listeners",
        "log.dir",
        "log.dirs",
        "node.id",
        "penstock.http.url",
        "process.roles",
    }
)
"""Facts that identify a node: their value comes from its start, never from a default."""
_IDENTITY_DEFAULTS = {"broker.id": "-1", "listeners": "PLAINTEXT://:9092"}
"""Kafka shows these beside the values."""

UNITS = (
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
)
"""Configs for one thing, strongest first."""
SYNONYMS: dict[str, tuple[str, ...]] = {name: family for family in UNITS for name in family}
_UNSET = frozenset({"log.retention.minutes", *(family[0] for family in UNITS)})
"""Configs without a value unless one was set: the last of their family has the default."""

MIN_IN_SYNC = "min.insync.replicas"
"""Kafka 4 keeps it as a setting of the whole cluster, and reports it from there even if it was never set."""


class BrokerConfigs(msgspec.Struct, frozen=True, kw_only=True):
    """One node's configs in layers.

    `static` comes from `static_broker_configs`, the others from the cluster's state.
    """

    static: Mapping[str, str] = {}
    all_nodes: Mapping[str, str] = {}
    this_node: Mapping[str, str] = {}

    @property
    def cluster_wide(self) -> dict[str, str]:
        """The configs of all nodes: those that were set, and the one that is always there."""
        default = self.static.get(MIN_IN_SYNC, BROKER_CONFIGS[MIN_IN_SYNC].default)
        return {MIN_IN_SYNC: default, **self.all_nodes}

    def layers(self, name: str) -> list[tuple[ConfigSource, str]]:
        """Every value that a broker config has, strongest first."""
        found = [
            (ConfigSource.DYNAMIC_BROKER_CONFIG, self.this_node.get(name)),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, self.cluster_wide.get(name)),
            (ConfigSource.STATIC_BROKER_CONFIG, self.static.get(name)),
            (ConfigSource.DEFAULT_CONFIG, _default(name)),
        ]
        return [(source, value) for source, value in found if value is not None]

    def value(self, name: str) -> str | None:
        """None: it was not set, and has no default."""
        return next((value for _, value in self.layers(name)), None)

    def topic_defaults(self) -> dict[str, str]:
        """The defaults of this node's topics, by the topic configs' names, for `resolve`."""
        defaults: dict[str, str] = {}
        for topic in TOPIC_CONFIGS.values():
            for source, value in self.layers(topic.synonym)[:1] if topic.synonym else ():
                if source is not ConfigSource.DEFAULT_CONFIG:
                    defaults[topic.name] = value
        return defaults


def _default(name: str) -> str | None:
    if name in IDENTITY or name in _UNSET:
        return _IDENTITY_DEFAULTS.get(name)
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
    parse_value(definition.synonym, value)


def static_broker_configs(config: NodeConfig) -> dict[str, str]:
    """The settings that a node was started with, by the broker configs' names."""
    facts = _facts(config)
    configs = {name: fact for name, fact in facts.items() if name in IDENTITY or fact != _DEFAULT_FACTS[name]}
    for name, value in config.topic_defaults.items():
        if synonym := TOPIC_CONFIGS[name].synonym:
            configs[synonym] = value
    return configs


def _facts(config: NodeConfig) -> dict[str, str]:
    groups, limits, listeners = config.groups, config.limits, config.kafka_listeners
    folder = "memory" if config.memory else config.data_dir
    facts: dict[str, object] = {
        "advertised.listeners": ",".join(_listener(one, one.advertised) for one in listeners),
        "auto.create.topics.enable": str(config.auto_create_topics).lower(),
        "broker.id": config.node_id,
        "broker.rack": config.rack_name,
        "connections.max.idle.ms": limits.idle_timeout_ms,
        "default.replication.factor": config.usual_replication_factor,
        "delete.topic.enable": "true",
        "errors.deadletterqueue.auto.create.topics.enable": "true",
        "errors.deadletterqueue.topic.name.prefix": KAFKA_DEAD_LETTER_PREFIX,
        "fetch.max.bytes": limits.fetch_max_bytes,
        "group.consumer.assignment.interval.ms": groups.consumer_assignment_interval_ms,
        "group.consumer.assignors": "uniform,range",
        "group.consumer.heartbeat.interval.ms": groups.consumer_heartbeat_interval_ms,
        "group.consumer.max.size": limits.max_group_members,
        "group.consumer.migration.policy": groups.consumer_migration_policy,
        "group.consumer.session.timeout.ms": groups.consumer_session_timeout_ms,
        "group.initial.rebalance.delay.ms": groups.initial_rebalance_delay_ms,
        "group.max.session.timeout.ms": groups.max_session_timeout_ms,
        "group.max.size": limits.max_group_members,
        "group.min.session.timeout.ms": groups.min_session_timeout_ms,
        "group.share.assignors": "simple",
        "group.share.max.share.sessions": limits.max_share_sessions,
        "group.share.max.size": limits.max_group_members,
        "listener.security.protocol.map": ",".join(f"{_name(one)}:{one.protocol}" for one in listeners),
        "listeners": ",".join(_listener(one, one.bind) for one in listeners),
        "log.cleaner.enable": "true",
        "log.dir": folder,
        "log.dirs": folder,
        "log.flush.scheduler.interval.ms": LONG_MAX,
        "log.retention.hours": 168,
        "log.roll.hours": 168,
        "log.roll.jitter.hours": 0,
        "max.connections": limits.max_connections,
        "max.incremental.fetch.session.cache.slots": limits.max_fetch_sessions,
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
        "transaction.max.timeout.ms": config.transactions.max_timeout_ms,
        "transaction.state.log.num.partitions": config.transactions.topic_partitions,
        "transaction.state.log.replication.factor": config.usual_replication_factor,
        "transactional.id.expiration.ms": config.transactions.id_expiration_ms,
    }
    for field in msgspec.structs.fields(ShareGroupSettings):
        facts[broker_name(field.name)] = getattr(config.share_groups, field.name)
    return {name: str(fact) for name, fact in facts.items() if fact is not None}


def _listener(listener: Listener, address: Address) -> str:
    return f"{_name(listener)}://{address}"


def _name(listener: Listener) -> str:
    """Kafka calls a listener that has no name of its own by its protocol."""
    return listener.protocol if listener.name == DEFAULT_LISTENER else listener.name.upper()


def _http_url(config: NodeConfig) -> str:
    """The URL of the HTTP port. If it listens on all addresses, its host is the one that clients are given."""
    if config.http is None:
        return ""
    host = config.advertised.host if config.http.host in ("", "0.0.0.0", "::") else config.http.host
    scheme = "https" if config.http_encryption is not None else "http"
    return f"{scheme}://{Address(host, config.http.port)}"


_DEFAULT_FACTS = _facts(
    NodeConfig(groups=GroupSettings(initial_rebalance_delay_ms=SERVER_REBALANCE_DELAY_MS))
)
