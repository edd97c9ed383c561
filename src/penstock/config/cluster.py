"""How nodes work together: the timing of elections, when a silent node is given up, how much replication may hold.

Every node of a cluster should have the same values; nothing breaks when they differ, the slower one only is slower.
"""

from typing import Annotated, get_type_hints

import msgspec
from msgspec import Meta

from penstock.config.address import UNREACHABLE_HOSTS, Address
from penstock.config.fields import check_fields
from penstock.config.limits import KIBIBYTE, MEBIBYTE
from penstock.errors import ConfigError

BEATS_PER_ELECTION_TIMEOUT = 3
"""With fewer, one lost or late beat is an election: a pause of one interval is nothing unusual on a busy machine."""


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The table `[replication]`. `meaning(name)` says what a setting does."""

    heartbeat_interval_ms: Annotated[
        int, Meta(ge=10, description="How often a leader's node tells each other node that it is there.")
    ] = 150
    election_timeout_ms: Annotated[
        int,
        Meta(
            ge=30,
            description="How long followers wait for a silent leader before they elect another one; up to twice as "
            "long, by chance, so that they do not all stand at once. At least three heartbeats.",
        ),
    ] = 1_500
    fence_after_ms: Annotated[
        int,
        Meta(
            ge=100,
            description="How long a node may be silent before clients are no longer led to it. Kafka's "
            "broker.session.timeout.ms is the same.",
        ),
    ] = 9_000
    replace_after_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="How long a node may be away before its replicas are made anew on other nodes; 0 for never. "
            "Long enough for a restart of the machine: copying everything is dear.",
        ),
    ] = 600_000
    auto_rebalance: Annotated[
        bool,
        Meta(description="Whether a node that joins is given its share of replicas and leaders by itself."),
    ] = True
    max_moves: Annotated[
        int,
        Meta(ge=1, description="Partitions that change their replicas at once: more would starve clients."),
    ] = 4
    max_append_bytes: Annotated[
        int,
        Meta(
            ge=KIBIBYTE,
            description="Entries in one message to a follower; a larger batch still travels whole.",
        ),
    ] = MEBIBYTE
    max_in_flight_messages: Annotated[
        int,
        Meta(ge=1, description="Messages of entries that a partition sends a follower ahead of its answers."),
    ] = 64
    max_in_flight_bytes: Annotated[
        int, Meta(ge=KIBIBYTE, description="The same in bytes, for each partition and follower.")
    ] = 32 * MEBIBYTE
    max_uncommitted_bytes: Annotated[
        int,
        Meta(
            ge=KIBIBYTE,
            description="What a partition may hold that its majority does not have yet; past it, producers wait.",
        ),
    ] = 64 * MEBIBYTE
    snapshot_after_bytes: Annotated[
        int,
        Meta(
            ge=64 * KIBIBYTE,
            description="How far the log of the cluster's metadata grows before a snapshot of the state replaces it.",
        ),
    ] = 8 * MEBIBYTE
    peer_silence_ms: Annotated[
        int,
        Meta(
            ge=100,
            description="A connection between nodes that has brought nothing for this long is dead, whatever TCP "
            "says: it is closed and made anew.",
        ),
    ] = 5_000

    def validate(self) -> None:
        """Raises ConfigError for what is outside its range or does not fit together."""
        check_fields(self, "replication.")
        least = BEATS_PER_ELECTION_TIMEOUT * self.heartbeat_interval_ms
        if self.election_timeout_ms < least:
            expected = (
                f"at least {BEATS_PER_ELECTION_TIMEOUT} x replication.heartbeat_interval_ms ({least}), or a "
                "single late heartbeat costs a partition its leader"
            )
            raise ConfigError("replication.election_timeout_ms", self.election_timeout_ms, expected)
        if self.fence_after_ms < self.election_timeout_ms:
            expected = f"at least replication.election_timeout_ms ({self.election_timeout_ms})"
            raise ConfigError("replication.fence_after_ms", self.fence_after_ms, expected)
        if 0 < self.replace_after_ms < self.fence_after_ms:
            expected = f"at least replication.fence_after_ms ({self.fence_after_ms}), or 0 for never"
            raise ConfigError("replication.replace_after_ms", self.replace_after_ms, expected)


def meaning(name: str) -> str:
    """What a setting does, for the manual and for help texts."""
    meta: Meta = get_type_hints(ClusterSettings, include_extras=True)[name].__metadata__[-1]
    return meta.description or ""


def check_inter_node_port(
    *, cluster: Address | None, advertised: Address | None, seeds: tuple[Address, ...], key_file: str | None
) -> None:
    """Raises ConfigError unless nodes could find, reach and trust each other with these settings."""
    if cluster is None or advertised is None:
        _check_alone(advertised, seeds)
        return
    if advertised.host in UNREACHABLE_HOSTS:
        expected = (
            "a host that other nodes can reach: this one only means `every interface`. Set cluster_advertise "
            "(--set cluster_advertise=HOST:PORT) to the address that other nodes use"
        )
        raise ConfigError(
            "cluster" if advertised == cluster else "cluster_advertise", str(advertised), expected
        )
    if key_file is None and not cluster.is_loopback:
        expected = (
            f"--cluster-key-file FILE: other machines can reach the inter-node port {cluster}, and only a key tells "
            "nodes from strangers. Make one (`openssl rand -hex 32 > cluster.key`) and give every node a copy"
        )
        raise ConfigError("cluster_key_file", key_file, expected)
    _check_seeds(seeds)


def _check_alone(advertised: Address | None, seeds: tuple[Address, ...]) -> None:
    if seeds:
        shown = ",".join(str(seed) for seed in seeds)
        expected = "--cluster HOST:PORT as well: the port on which this node talks with the seeds"
        raise ConfigError("seeds", shown, expected)
    if advertised is not None:
        expected = "--cluster HOST:PORT as well: without it there is no inter-node port to advertise"
        raise ConfigError("cluster_advertise", str(advertised), expected)


def _check_seeds(seeds: tuple[Address, ...]) -> None:
    for number, seed in enumerate(seeds):
        if seed.host in UNREACHABLE_HOSTS or seed.port == 0:
            raise ConfigError("seeds", str(seed), "addresses that can be reached, such as 10.0.0.1:7000")
        if seed in seeds[:number]:
            raise ConfigError("seeds", str(seed), "each seed once")
