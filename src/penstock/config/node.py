"""The settings of one node: its listeners, its data folder, and the defaults of topics and groups.

`loading.py` fills a NodeConfig from the defaults here, a TOML file, the environment and the command line.
Programs that embed a broker build one by hand; `validate()` is the one place that decides whether it can work.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from penstock.config.address import Address
from penstock.config.cluster import ClusterSettings, check_inter_node_port
from penstock.config.consumer_groups import ConsumerGroupConfig
from penstock.config.declared import DeclaredQueue, DeclaredTopic, read_declared
from penstock.config.fields import check_fields
from penstock.config.lake import LakeSettings
from penstock.config.limits import Limits
from penstock.config.listeners import (
    ClientAuth,
    FileName,
    InterNodeTls,
    Listener,
    PrincipalRules,
    TlsSettings,
    check_listeners,
    check_reachable,
    default_mechanisms,
)
from penstock.config.oidc import OidcSettings
from penstock.config.overrides import parse_overrides, resolve
from penstock.config.schema_registry import SchemaRegistrySettings
from penstock.config.share_groups import ShareGroupSettings
from penstock.config.transactions import TransactionSettings
from penstock.errors import ConfigError, KafkaError

LogLevel = Literal["debug", "info", "warning", "error", "none"]


SERVER_REBALANCE_DELAY_MS = 3_000
"""Kafka's group.initial.rebalance.delay.ms, for brokers that are processes of their own."""
USUAL_REPLICAS = 3
"""Enough to lose one and still have a majority."""
MAX_NODES = 20
"""All are members of the metadata group, whose configuration must fit into a sector beside the log's checkpoint, also
while it changes from five voters to five others."""

MigrationPolicy = Literal["bidirectional", "upgrade", "downgrade", "disabled"]


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of consumer groups. The defaults are Kafka's unless a comment says otherwise."""

    min_session_timeout_ms: Annotated[int, Meta(ge=1)] = 6_000
    """The shortest session timeout that a member of the classic protocol may ask for."""
    max_session_timeout_ms: Annotated[int, Meta(ge=1)] = 1_800_000
    """The longest one."""
    initial_rebalance_delay_ms: Annotated[int, Meta(ge=0)] = 0
    """How long an empty group's first rebalance waits for more members. 0, so that consumers of an embedded broker
    start at once; `penstock serve` has Kafka's 3000, which saves rebalances when the members start together."""
    new_member_join_timeout_ms: Annotated[int, Meta(ge=1)] = 300_000
    """How long a new member may wait for its first generation before it is removed."""
    offsets_retention_minutes: Annotated[int, Meta(ge=1)] = 7 * 24 * 60
    """How long offsets outlive the group that committed them."""
    offsets_retention_check_interval_ms: Annotated[int, Meta(ge=1)] = 600_000
    """How often the broker looks for such offsets that have expired."""
    offsets_topic_partitions: Annotated[int, Meta(ge=1, le=1000)] = 50
    """Fixed once the offsets topic exists: it decides which partition a group's offsets are in."""
    consumer_session_timeout_ms: Annotated[int, Meta(ge=1_000, le=1_800_000)] = 45_000
    """How long a member of a group of the consumer protocol (KIP-848) may be silent before it is removed."""
    consumer_heartbeat_interval_ms: Annotated[int, Meta(ge=100, le=600_000)] = 5_000
    """How often such members send heartbeats."""
    consumer_assignment_interval_ms: Annotated[int, Meta(ge=0, le=15_000)] = 1_000
    """The shortest time between two computations of the assignment of such a group."""
    consumer_migration_policy: MigrationPolicy = "bidirectional"
    """Whether a group with members may move to the consumer protocol (`upgrade`), back (`downgrade`), both
    (`bidirectional`), or not at all (`disabled`)."""
    state_topic_partitions: Annotated[int, Meta(ge=1, le=1000)] = 8
    """The number of partitions of the topic that stores the state of queues; fixed once it exists."""

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000

    @property
    def consumer(self) -> ConsumerGroupConfig:
        """The defaults of groups of the consumer protocol."""
        return ConsumerGroupConfig(
            session_timeout_ms=self.consumer_session_timeout_ms,
            heartbeat_interval_ms=self.consumer_heartbeat_interval_ms,
            assignment_interval_ms=self.consumer_assignment_interval_ms,
        )

    def validate(self) -> None:
        check_fields(self, "groups.")
        if self.min_session_timeout_ms > self.max_session_timeout_ms:
            expected = f"at most groups.max_session_timeout_ms ({self.max_session_timeout_ms})"
            raise ConfigError("groups.min_session_timeout_ms", self.min_session_timeout_ms, expected)
        if self.consumer_heartbeat_interval_ms >= self.consumer_session_timeout_ms:
            expected = f"less than groups.consumer_session_timeout_ms ({self.consumer_session_timeout_ms})"
            given = self.consumer_heartbeat_interval_ms
            raise ConfigError("groups.consumer_heartbeat_interval_ms", given, expected)


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a node."""

    node_id: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 1
    processes: Annotated[int, Meta(ge=1, le=MAX_NODES)] = 1
    """Nodes that `penstock serve` runs on this machine, each in a process of its own: see `processes.py`."""
    data_dir: str = "penstock-data"
    memory: bool = False
    """Keep everything in memory: nothing is written to disk, all is lost at a stop, and data_dir is not used."""
    kafka: Address = Address("127.0.0.1", 9092)
    advertise: Address | None = None
    """The address that the node gives to clients, if it is not the one that it listens on. Port 0: the bound one."""
    listeners: tuple[Listener, ...] = ()
    """Several listeners for Kafka clients. None: one, of `kafka`, `advertise` and the settings `tls_...`."""
    http: Address | None = Address("127.0.0.1", 8080)
    tls_cert: FileName | None = None
    """The certificate of the Kafka port and of the HTTP port, a PEM file. None: no TLS."""
    tls_key: FileName | None = None
    tls_ca: FileName | None = None
    """The authorities that sign clients' certificates. With it, clients need a certificate; where login is required,
    they may log in with a certificate instead of a password."""
    tls_client_auth: ClientAuth | None = None
    """Whether clients show a certificate: `none`, `wanted` or `required`. None: as `tls_ca` says."""
    tls_principal_rules: PrincipalRules = "DEFAULT"
    http_tls: TlsSettings | bool | None = None
    """TLS of the HTTP port. None: as `tls_cert` and the others say; False: none."""
    require_login: bool = False
    """Clients must log in, and may do only what a rule allows."""
    plain_without_tls: bool = False
    """Allows SASL/PLAIN and OAUTHBEARER, which send passwords and tokens as they are, on a listener without TLS that
    other machines can reach."""
    super_users: tuple[str, ...] = ("User:admin",)
    """Principals that may do everything."""
    http_hosts: tuple[str, ...] = ()
    """More names at which clients reach the HTTP port, behind a proxy for example; `*`: any name. A request whose Host
    header has another name is refused: see docs/security.md."""
    http_trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of proxies before the HTTP port: the node takes the client's address from their header
    X-Forwarded-For. From all others the header counts for nothing."""
    max_session_ms: Annotated[int, Meta(ge=0)] = 0
    """Clients must log in again after so long: Kafka clients on their connection (KIP-368), others by opening another
    WebSocket. 0: only when their token expires."""
    metrics_without_login: bool = False
    """Whether `/metrics` needs no login."""
    cluster: Address | None = None
    """The inter-node port. None: this node is alone."""
    cluster_advertise: Address | None = None
    """The address that the node gives to other nodes, if it is not `cluster`. Port 0: the bound one."""
    seeds: tuple[Address, ...] = ()
    """Inter-node addresses of the nodes that found the cluster together, or of some that are in it, to join it. None:
    an empty node founds a cluster of its own, which others can join."""
    rack: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    """Nodes of one rack may fail together: replicas of one partition are spread over racks."""
    machine: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    """Nodes of one machine hold at most one replica of a partition together. `processes` sets it; set it yourself where
    you start several nodes on one machine. It is also the rack of a node without one."""
    cluster_key_file: str | None = None
    """The secret that nodes of a cluster share. Optional when `cluster` is a loopback address, needed otherwise."""
    inter_node_tls: InterNodeTls | None = None
    """TLS between nodes, with certificates on both sides. None: frames are authenticated, and not encrypted."""
    log_level: LogLevel = "info"
    auto_create_topics: bool = True
    num_partitions: Annotated[int, Meta(ge=1)] = 1
    default_replication_factor: Annotated[int, Meta(ge=0, le=32767)] = 0
    """0: three copies, or one for each machine if there are fewer machines. A node that does not share its machine
    counts as one."""
    topic_defaults: dict[str, str] = field(default_factory=dict)
    """Defaults of topic configs, by the topic configs' names."""
    topics: tuple[DeclaredTopic, ...] = ()
    """Topics that are created when the cluster starts."""
    queues: tuple[DeclaredQueue, ...] = ()
    """Queues that are created when the cluster starts."""
    status_topic: Annotated[str, Meta(max_length=249, pattern=r"^[a-zA-Z0-9._-]*$")] = "penstock.status"
    """The topic that the status log is written to. Empty: no status log."""
    audit_topic: Annotated[str, Meta(max_length=249, pattern=r"^[a-zA-Z0-9._-]*$")] = ""
    """A topic for the events of the audit log. Empty: they are in the status log."""
    audit_data_sample_ms: Annotated[int, Meta(ge=0)] = 0
    """Milliseconds between two audit events of the same caller that writes or reads the same topic. 0: none."""
    groups: GroupSettings = GroupSettings()
    share_groups: ShareGroupSettings = ShareGroupSettings()
    transactions: TransactionSettings = TransactionSettings()
    lake: LakeSettings = LakeSettings()
    schema_registry: SchemaRegistrySettings = SchemaRegistrySettings()
    oidc: OidcSettings = OidcSettings()
    replication: ClusterSettings = ClusterSettings()
    limits: Limits = Limits()

    @property
    def advertised(self) -> Address:
        """The address that nodes and tools are told: that of the first listener."""
        return self.listeners[0].advertised if self.listeners else self.advertise or self.kafka

    @property
    def rack_name(self) -> str | None:
        """The rack that other nodes and clients are told."""
        return self.rack or self.machine

    @property
    def common_tls(self) -> TlsSettings | None:
        """TLS by the settings that begin with `tls_`."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        client_auth = self.tls_client_auth
        if client_auth is None and self.tls_ca is not None and self.require_login:
            client_auth = "wanted"
        return TlsSettings(
            cert=self.tls_cert,
            key=self.tls_key,
            ca=self.tls_ca,
            client_auth=client_auth,
            principal_rules=self.tls_principal_rules,
        )

    @property
    def kafka_listeners(self) -> tuple[Listener, ...]:
        """All listeners for Kafka clients, each with its mechanisms."""
        one = Listener(bind=self.kafka, advertise=self.advertise, tls=self.common_tls)
        return tuple(self._with_mechanisms(listener) for listener in self.listeners or (one,))

    def _with_mechanisms(self, listener: Listener) -> Listener:
        if listener.mechanisms is not None:
            return listener
        encrypted = listener.tls is not None or self.plain_without_tls
        usual = default_mechanisms(listener.bind, encrypted=encrypted, tokens=self.oidc.is_set)
        return msgspec.structs.replace(listener, mechanisms=usual if self.require_login else ())

    @property
    def http_encryption(self) -> TlsSettings | None:
        """TLS of the HTTP port."""
        if isinstance(self.http_tls, TlsSettings):
            return self.http_tls
        return self.common_tls if self.http_tls is None else None

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
        self.transactions.validate()
        self.replication.validate()
        self.oidc.validate()
        self.schema_registry.validate()
        self._check_lake()
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

    def _check_lake(self) -> None:
        self.lake.validate()
        if self.lake.root and self.require_login and not self.lake.client_config:
            expected = "a file with the login of the process that writes the tables, because of require_login"
            raise ConfigError("lake.client_config", self.lake.client_config, expected)

    def _check_addresses(self) -> None:
        """The listeners, and TLS on all ports."""
        self._check_common_tls()
        if self.listeners:
            self._check_no_common_listener()
        else:
            check_reachable("advertise" if self.advertise else "kafka", self.advertised)
        check_listeners(self.kafka_listeners, plain_without_tls=self.plain_without_tls)
        if self.http_tls is True:
            raise ConfigError("http_tls", True, "a table with cert and key, or false for no TLS")
        if isinstance(self.http_tls, TlsSettings):
            self.http_tls.validate("http_tls")
        if self.inter_node_tls is not None:
            check_fields(self.inter_node_tls, "inter_node_tls.")

    def _check_no_common_listener(self) -> None:
        """A setting that has no effect must not look as if it had one."""
        for name, default in (("kafka", NodeConfig().kafka), ("advertise", None)):
            value = getattr(self, name)
            if value != default:
                expected = "nothing, because there are [[listeners]]: each has its own `bind` and `advertise`"
                raise ConfigError(name, str(value), expected)

    def _check_common_tls(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_cert"
            raise ConfigError(missing, None, "a PEM file: --tls-cert and --tls-key belong together")
        common = self.common_tls
        if common is not None:
            common.validate("tls")
        else:
            self._check_no_tls_settings()

    def _check_no_tls_settings(self) -> None:
        for name, default in (
            ("tls_ca", None),
            ("tls_client_auth", None),
            ("tls_principal_rules", "DEFAULT"),
        ):
            if (value := getattr(self, name)) != default:
                expected = "--tls-cert and --tls-key as well: without them, there is no TLS"
                raise ConfigError(name, value, expected)

    def _check_topics(self) -> None:
        if self.num_partitions > self.limits.max_partitions_per_topic:
            expected = f"at most limits.max_partitions_per_topic ({self.limits.max_partitions_per_topic})"
            raise ConfigError("num_partitions", self.num_partitions, expected)
        for setting, topic in (("status_topic", self.status_topic), ("audit_topic", self.audit_topic)):
            if topic.startswith("__") or topic in (".", ".."):
                raise ConfigError(setting, topic, "the name of a topic that clients can read, or nothing")
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
