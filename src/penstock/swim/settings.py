"""The intervals, timeouts and limits of gossip. The defaults are those of memberlist for a local network: thousands of
clusters have run with them, and a cluster of three detects a dead machine within about eight seconds.

Times are in milliseconds here; the core uses seconds, as its clock does.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.config.fields import check_fields
from penstock.errors import ConfigError

SMALLEST_PACKET_BYTES = 1000
"""One Alive with metadata of 512 bytes, an ack and the envelope must fit together, or a member could not answer."""


class SwimSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The timing of the failure detector, and limits on the memory that peers may make it use."""

    probe_interval_ms: Annotated[int, Meta(ge=10)] = 1000
    """One member is probed in each interval; a round of n members takes n intervals."""
    probe_timeout_ms: Annotated[int, Meta(ge=1)] = 500
    """How long a direct ping may take before others are asked to try: the 99th percentile of a round trip."""
    indirect_probes: Annotated[int, Meta(ge=0, le=16)] = 3
    reliable_ping: bool = True
    """Whether a ping that was lost is also tried over the connection between nodes: finds blocked UDP."""
    suspicion_multiplier: Annotated[int, Meta(ge=2, le=32)] = 4
    """A member that enough others suspect as well has this many probe intervals, times log10(n), to refute it."""
    suspicion_max_multiplier: Annotated[int, Meta(ge=1, le=32)] = 6
    """How many times longer it has while no other member suspects it."""
    max_health_score: Annotated[int, Meta(ge=0, le=64)] = 7
    """At the default of 7, a node that is itself slow probes eight times less often and waits eight times longer."""
    retransmit_multiplier: Annotated[int, Meta(ge=1, le=32)] = 4
    """A broadcast is sent this many times log10(n + 1): an epidemic then reaches all but about n^-4 of them."""
    gossip_interval_ms: Annotated[int, Meta(ge=10)] = 200
    gossip_nodes: Annotated[int, Meta(ge=1, le=16)] = 3
    gossip_to_the_dead_ms: Annotated[int, Meta(ge=0)] = 30_000
    """How long a dead member still gets gossip: one that was merely cut off learns of the claim and refutes it."""
    push_pull_interval_ms: Annotated[int, Meta(ge=100)] = 30_000
    """Whole tables are compared this often with one member, more rarely in clusters of more than 32."""
    join_retry_ms: Annotated[int, Meta(ge=10)] = 1000
    """How often all seeds are tried while this node knows no other member."""
    rejoin_interval_ms: Annotated[int, Meta(ge=10)] = 10_000
    """How often one seed or dead member is tried, for ever: the two halves of a healed partition find each other."""
    pause_tolerance_ms: Annotated[int, Meta(ge=10)] = 1000
    """If a tick is later than this, the node was paused, and the others are not to blame for missed answers."""
    notice_interval_ms: Annotated[int, Meta(ge=0)] = 60_000
    """A problem of one kind is reported once in this time; repetitions are counted."""
    max_members: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    """Remembered dead members count too. A table of this size is 150 KB in push-pull."""
    max_packet_bytes: Annotated[int, Meta(ge=SMALLEST_PACKET_BYTES, le=65_000)] = 1400
    """Fits into one Ethernet frame after all headers: a fragmented datagram is lost with any fragment."""

    def validate(self) -> "SwimSettings":
        """Itself, if it is valid; else ConfigError that names the field."""
        check_fields(self, "gossip.")
        if self.probe_timeout_ms >= self.probe_interval_ms:
            # Indirect probes are sent at the timeout and must be answered before the interval ends.
            expected = f"below gossip.probe_interval_ms ({self.probe_interval_ms})"
            raise ConfigError("gossip.probe_timeout_ms", self.probe_timeout_ms, expected)
        return self
