"""Timeouts and limits of a group. All times are in seconds of a monotonic clock.

The defaults are for tests and tools; a node takes its values from `config/cluster.py`."""

import msgspec

from penstock.errors import ConfigError

MAX_REPLICAS = 64
"""Voters, outgoing voters or learners in one configuration. Kafka's clusters stay below ten copies of a partition; the
metadata group lists every node as a learner. Each is a peer that the leader feeds."""
MAX_TERM = 2**31 - 1
"""A batch's header has four bytes for its term."""
MAX_INDEX = 2**63 - 1
MAX_LEASE_S = 60.0
"""The longest lease that a leader may ask of its followers: for that long they elect no other one if it dies."""
LEASE_HEARTBEATS = 3
"""A lease of fewer heartbeats would end whenever one of them is late."""


class RaftSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Should be equal on all replicas of a group. While they are changed node by node, no replica's election timeout
    may be shorter than another one's `lease_s`: half of the other one's election timeout, or three of its heartbeats if
    that is more. Otherwise a replica that does not know the lease yet could vote for another leader before it ends
    (invariant 5)."""

    election_timeout_s: float = 1.5
    """A follower waits between once and twice this long for a silent leader. Ten heartbeats, as in Redpanda: a pause of
    a second does not move a leader. One whose connection broke is replaced after `lease_s`."""
    heartbeat_interval_s: float = 0.15
    resend_timeout_s: float = 0.5
    """After this long without progress, the leader asks a peer how far it is. The message is empty, so a peer whose
    disk only flushes slowly costs no more than that."""
    prefix_timeout_s: float = 10.0
    """The same while a prefix is under way, which takes the node longer to collect and send."""
    catch_up_timeout_s: float = 30.0
    """A change of members is given up when no new member has made progress for this long."""
    clock_drift: float = 0.1
    """How much slower than another one a clock may run: a leader trusts its lease for that much less time than a
    follower honours it. Real clocks differ by less than a thousandth; the rest is for machines that pause and
    resume."""
    max_append_bytes: int = 1 << 20
    """Entries in one message, unless a single entry is larger."""
    max_inflight_messages: int = 64
    max_inflight_bytes: int = 32 << 20
    """The most unacknowledged bytes per peer: four round trips of 20 ms at 400 MB/s."""
    max_uncommitted_bytes: int = 64 << 20
    """Above this the leader refuses proposals: a majority is gone, or slower than the producers."""
    eager_commit: bool = False
    """Whether the leader reports each commit to its followers at once, and not with the next append or heartbeat. For
    groups whose followers act on committed entries: the metadata group."""

    @property
    def lease_s(self) -> float:
        """How long followers vote for no other replica after a leader's heartbeat (5). Half an election timeout: if a
        leader's process dies, its connections break, and the lease is all that followers wait for. The leader of a
        group that is only slow keeps its connections, and the whole election timeout."""
        lease_s = max(self.election_timeout_s / 2, LEASE_HEARTBEATS * self.heartbeat_interval_s)
        return min(lease_s, self.election_timeout_s, MAX_LEASE_S)

    def validate(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name not in ("eager_commit", "clock_drift") and not value > 0:
                raise ConfigError(name, value, "more than 0")
        if not 0 <= self.clock_drift < 1:
            raise ConfigError("clock_drift", self.clock_drift, "0 or more and less than 1")
        if self.heartbeat_interval_s * 2 > self.election_timeout_s:
            expected = f"at most half of election_timeout_s={self.election_timeout_s}"
            raise ConfigError("heartbeat_interval_s", self.heartbeat_interval_s, expected)
