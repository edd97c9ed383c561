"""The settings of one node: its listeners, its data folder, and the defaults of topics and groups.

`loading.py` fills a NodeConfig from the defaults here, a TOML file, the environment and the command line.
Programs that embed a broker build one by hand; `validate()` is the one place that decides whether it can work.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from penstock.config.address import UNREACHABLE_HOSTS, Address
from penstock.config.cluster import ClusterSettings, check_inter_node_port
from penstock.config.declared import DeclaredQueue, DeclaredTopic, read_declared
from penstock.config.fields import check_fields
from penstock.config.limits import Limits
from penstock.config.overrides import parse_overrides, resolve
from penstock.config.share_groups import ShareGroupSettings
from penstock.errors import ConfigError, KafkaError

LogLevel = Literal["debug", "info", "warning", "error", "none"]


SERVER_REBALANCE_DELAY_MS = 3_000
"""Kafka's group.initial.rebalance.delay.ms, for brokers that are processes of their own."""
USUAL_REPLICAS = 3
"""Enough to lose one and still have a majority."""


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of consumer groups. The defaults are Kafka's unless a comment says otherwise."""

    min_session_timeout_ms: Annotated[int, Meta(ge=1)] = 6_000
    max_session_timeout_ms: Annotated[int, Meta(ge=1)] = 1_800_000
    initial_rebalance_delay_ms: Annotated[int, Meta(ge=0)] = 0
    """How long an empty group's first rebalance waits for more members. 0, so that consumers of an embedded broker
    start at once; `penstock serve` has Kafka's 3000, which saves rebalances when the members start together."""
    new_member_join_timeout_ms: Annotated[int, Meta(ge=1)] = 300_000
    """How long a new member may wait for its first generation before it is removed."""
    offsets_retention_minutes: Annotated[int, Meta(ge=1)] = 7 * 24 * 60
    """How long offsets outlive the group that committed them."""
    offsets_retention_check_interval_ms: Annotated[int, Meta(ge=1)] = 600_000
    offsets_topic_partitions: Annotated[int, Meta(ge=1, le=1000)] = 50
    """Fixed once the offsets topic exists: it decides which partition a group's offsets are in."""
    state_topic_partitions: Annotated[int, Meta(ge=1, le=1000)] = 8
    """The number of partitions of the topic that stores the state of queues; fixed once it exists."""

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000

    def validate(self) -> None:
        check_fields(self, "groups.")
        if self.min_session_timeout_ms > self.max_session_timeout_ms:
            expected = f"at most groups.max_session_timeout_ms ({self.max_session_timeout_ms})"
            raise ConfigError("groups.min_session_timeout_ms", self.min_session_timeout_ms, expected)


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a node."""

    node_id: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 1
    data_dir: str = "penstock-data"
    memory: bool = False
    """Keep everything in memory: nothing is written to disk, all is lost at a stop, and data_dir is not used."""
    kafka: Address = Address("127.0.0.1", 9092)
    advertise: Address | None = None
    """The address that the node gives to clients, if it is not the one that it listens on. Port 0: the bound one."""
    http: Address | None = Address("127.0.0.1", 8080)
    cluster: Address | None = None
    """The inter-node port. None: this node is alone."""
    cluster_advertise: Address | None = None
    """The address that the node gives to other nodes, if it is not `cluster`. Port 0: the bound one."""
    seeds: tuple[Address, ...] = ()
    """Inter-node addresses of the nodes that found the cluster together, or of some that are in it, to join it. None:
    an empty node founds a cluster of its own, which others can join."""
    rack: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    """Nodes of one rack may fail together: replicas of one partition are spread over racks."""
    cluster_key_file: str | None = None
    """The secret that nodes of a cluster share. Optional when `cluster` is a loopback address, needed otherwise."""
    log_level: LogLevel = "info"
    auto_create_topics: bool = True
    num_partitions: Annotated[int, Meta(ge=1)] = 1
    default_replication_factor: Annotated[int, Meta(ge=0, le=32767)] = 0
    """0: three copies, or as many as there are nodes in the cluster if those are fewer."""
    topic_defaults: dict[str, str] = field(default_factory=dict)
    """Defaults of topic configs, by the topic configs' names."""
    topics: tuple[DeclaredTopic, ...] = ()
    """Topics that are created when the cluster starts."""
    queues: tuple[DeclaredQueue, ...] = ()
    """Queues that are created when the cluster starts."""
    status_topic: Annotated[str, Meta(max_length=249, pattern=r"^[a-zA-Z0-9._-]*$")] = "penstock.status"
    """The topic that the status log is written to. Empty: no status log."""
    groups: GroupSettings = GroupSettings()
    share_groups: ShareGroupSettings = ShareGroupSettings()
    replication: ClusterSettings = ClusterSettings()
    limits: Limits = Limits()

    @property
    def advertised(self) -> Address:
        return self.advertise or self.kafka

    @property
    def cluster_advertised(self) -> Address | None:
        return self.cluster_advertise or self.cluster

    @property
    def usual_replication_factor(self) -> int:
        """The number of replicas of new topics if there are enough nodes."""
        return self.default_replication_factor or (1 if self.cluster is None else USUAL_REPLICAS)

    @property
    def log_dir(self) -> str:
        """The data folder, as messages name it."""
        return "memory" if self.memory else self.data_dir

    def validate(self) -> "NodeConfig":
        """Returns itself, or raises ConfigError that names the first wrong field."""
        check_fields(self)
        self.groups.validate()
        self.share_groups.validate()
        self.replication.validate()
        self.limits.validate()
        self._check_storage()
        self._check_addresses()
        check_inter_node_port(
            cluster=self.cluster,
            advertised=self.cluster_advertised,
            seeds=self.seeds,
            key_file=self.cluster_key_file,
        )
        self._check_topics()
        read_declared("topics", self.topics, DeclaredTopic)
        read_declared("queues", self.queues, DeclaredQueue)
        return self

    def _check_storage(self) -> None:
        if not self.memory and not self.data_dir:
            raise ConfigError(
                "data_dir", self.data_dir, "a folder, or memory=true to keep everything in memory"
            )

    def _check_addresses(self) -> None:
        if self.advertised.host in UNREACHABLE_HOSTS:
            expected = (
                "a host that clients can reach: this one only means `every interface`. Set advertise "
                "(--advertise HOST:PORT) to the address that clients use"
            )
            raise ConfigError("advertise" if self.advertise else "kafka", str(self.advertised), expected)

    def _check_topics(self) -> None:
        if self.num_partitions > self.limits.max_partitions_per_topic:
            expected = f"at most limits.max_partitions_per_topic ({self.limits.max_partitions_per_topic})"
            raise ConfigError("num_partitions", self.num_partitions, expected)
        if self.status_topic.startswith("__") or self.status_topic in (".", ".."):
            raise ConfigError(
                "status_topic", self.status_topic, "the name of a topic that clients can read, or nothing"
            )
        if "penstock.storage" in self.topic_defaults:
            # As a default it would move existing topics from the disk to memory with a restart, and lose them.
            expected = "memory=true to keep everything in memory, or the config on single topics"
            raise ConfigError(
                "topic_defaults.penstock.storage", self.topic_defaults["penstock.storage"], expected
            )
        try:
            resolve(parse_overrides(self.topic_defaults), {})
        except KafkaError as problem:
            raise ConfigError(
                "topic_defaults", self.topic_defaults, f"valid topic configs: {problem}"
            ) from None
