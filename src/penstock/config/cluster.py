"""Settings of nodes that work together: timing of elections, when an unreachable node is replaced, replication buffers.

Every node of a cluster should have the same values. If the timing of elections differs, the election timeout of each
node must not be less than the lease of any other: half of the other's election timeout, or three of its heartbeats if
that is more (`RaftSettings.lease_s`). A follower that has just started, or has a new leader and no heartbeat from it
yet, does not know the leader's lease and waits for its own election timeout instead (invariant 5 of `raft/core.py`). If
that is shorter than the lease, it can help to elect another leader while the old one still answers readers, who then
miss the newest records. Nothing checks this, because a node does not know the settings of the others. docs/cluster.md
("Timing") says how to change the settings node by node. If other settings differ, the slower node is only slower.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.config.address import UNREACHABLE_HOSTS, Address
from penstock.config.fields import check_fields
from penstock.config.limits import KIBIBYTE, MEBIBYTE
from penstock.errors import ConfigError

HEARTBEATS_PER_ELECTION_TIMEOUT = 3
"""With fewer, one lost or late heartbeat causes an election: a pause of one interval is usual on a busy machine."""


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The table `[replication]`. docs/configuration.md quotes the text below each setting."""

    heartbeat_interval_ms: Annotated[int, Meta(ge=10)] = 150
    """How often a leader's node sends a heartbeat to each other node."""
    election_timeout_ms: Annotated[int, Meta(ge=30)] = 1_500
    """How long followers wait for a silent leader before they elect another one; up to twice as long, at random, so
    that they do not all become candidates at once. At least three heartbeats. If the connection with the leader's node
    breaks, because its process died, they wait only for the leader's lease (half of it, or three heartbeats if that is
    more), and up to three heartbeats longer."""
    fence_after_ms: Annotated[int, Meta(ge=100)] = 9_000
    """How long a node may be silent before clients are no longer sent to it. Kafka's broker.session.timeout.ms is the
    same."""
    replace_after_ms: Annotated[int, Meta(ge=0)] = 600_000
    """How long a node may be unreachable before its replicas are created on other nodes; 0 for never. Long enough for a
    restart of the machine, because copying all data is expensive."""
    auto_rebalance: bool = True
    """Whether a node that joins gets its share of replicas and leaders without a command."""
    max_moves: Annotated[int, Meta(ge=1)] = 4
    """Partitions that change their replicas at once: with more, clients would have to wait."""
    max_append_bytes: Annotated[int, Meta(ge=KIBIBYTE)] = MEBIBYTE
    """Entries in one message to a follower; a larger batch is still sent whole."""
    max_in_flight_messages: Annotated[int, Meta(ge=1)] = 64
    """Messages of entries that a leader may have on the way to a follower."""
    max_in_flight_bytes: Annotated[int, Meta(ge=KIBIBYTE)] = 32 * MEBIBYTE
    """The same in bytes, for each partition and follower."""
    max_uncommitted_bytes: Annotated[int, Meta(ge=KIBIBYTE)] = 64 * MEBIBYTE
    """Bytes of a partition that are not committed yet; past this, producers are refused."""
    peer_silence_ms: Annotated[int, Meta(ge=100)] = 5_000
    """A connection between nodes that has delivered nothing for this long is closed and opened again, whatever TCP
    says."""

    def validate(self) -> None:
        """Raises ConfigError for a setting outside its range, or for two that contradict each other."""
        check_fields(self, "replication.")
        least = HEARTBEATS_PER_ELECTION_TIMEOUT * self.heartbeat_interval_ms
        if self.election_timeout_ms < least:
            expected = (
                f"at least {HEARTBEATS_PER_ELECTION_TIMEOUT} x replication.heartbeat_interval_ms ({least}), or a "
                "single late heartbeat costs a partition its leader"
            )
            raise ConfigError("replication.election_timeout_ms", self.election_timeout_ms, expected)
        if self.fence_after_ms < self.election_timeout_ms:
            expected = f"at least replication.election_timeout_ms ({self.election_timeout_ms})"
            raise ConfigError("replication.fence_after_ms", self.fence_after_ms, expected)
        if 0 < self.replace_after_ms < self.fence_after_ms:
            expected = f"at least replication.fence_after_ms ({self.fence_after_ms}), or 0 for never"
            raise ConfigError("replication.replace_after_ms", self.replace_after_ms, expected)


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
            "nodes from other programs. Make one (`openssl rand -hex 32 > cluster.key`) and give every node a copy"
        )
        raise ConfigError("cluster_key_file", key_file, expected)
    _check_seeds(seeds)


def check_no_inter_node_settings(*, key_file: str | None, has_tls: bool) -> None:
    """Raises ConfigError for a setting of an inter-node port: this node has none. Not a part of `NodeConfig.validate`,
    because `penstock serve` gives an inter-node port to processes of one machine, and also to the last of them."""
    expected = "--cluster HOST:PORT as well: without it this node runs alone, and talks with no other node"
    if key_file is not None:
        raise ConfigError("cluster_key_file", key_file, expected)
    if has_tls:
        raise ConfigError("inter_node_tls", "a table", expected)


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
