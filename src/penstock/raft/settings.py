"""How patient a group is and how much it lets pile up. All times are seconds by a clock that never goes back."""

import msgspec

from penstock.errors import ConfigError

MAX_REPLICAS = 64
"""Voters, outgoing voters or learners in one configuration. Kafka's clusters stay below ten copies of a partition; the
metadata group lists every node as a learner. Each is a peer that the leader feeds."""
MAX_TERM = 2**31 - 1
"""A batch's header has four bytes for its term."""
MAX_INDEX = 2**63 - 1


class RaftSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Equal on all replicas of a group: the lease of one (invariant 5) rests on the patience of the others."""

    election_timeout_s: float = 1.5
    """A follower waits between once and twice this long for its leader. Ten beats, as in Redpanda: a pause of a second
    does not move a leader, a dead one is replaced within about two."""
    beat_interval_s: float = 0.15
    resend_timeout_s: float = 0.5
    """Without progress for this long, a peer is asked what it has. An empty message, so a disk that merely flushes
    slowly costs nothing but that."""
    prefix_timeout_s: float = 10.0
    """As above while a prefix is under way: the node gathers and sends it in its own time."""
    catch_up_patience_s: float = 30.0
    """A change of members is given up when none of the new ones has got on for this long."""
    clock_drift: float = 0.1
    """How much slower than another's a clock may run: a leader trusts its lease that much shorter than a follower
    honours it. Real clocks differ by less than a thousandth; the rest is for paused machines that resume."""
    max_append_bytes: int = 1 << 20
    """What one message carries, unless a single entry is larger."""
    max_inflight_messages: int = 64
    max_inflight_bytes: int = 8 << 20
    """Per peer, unacknowledged: two round trips of 10 ms at 400 MB/s."""
    max_uncommitted_bytes: int = 64 << 20
    """Above this the leader takes no proposals: a majority is gone or slower than the producers."""
    eager_commit: bool = False
    """Tell followers of each commit at once and not with the next append or beat. For groups whose followers act on
    what is committed: the metadata group."""

    def validate(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name not in ("eager_commit", "clock_drift") and not value > 0:
                raise ConfigError(name, value, "more than 0")
        if not 0 <= self.clock_drift < 1:
            raise ConfigError("clock_drift", self.clock_drift, "0 or more and less than 1")
        if self.beat_interval_s * 2 > self.election_timeout_s:
            expected = f"at most half of election_timeout_s={self.election_timeout_s}"
            raise ConfigError("beat_interval_s", self.beat_interval_s, expected)
