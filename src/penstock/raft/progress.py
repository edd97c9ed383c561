"""The leader's view of one peer, and the mode in which it sends entries to it.

PROBE      the leader does not know where the logs diverge: it sends one message at a time, until one is accepted
REPLICATE  it knows: a window of messages is under way, each sent on the assumption that the ones before it arrive
PREFIX     the entries that the replica needs next are deleted here: a prefix is under way, and nothing else

PROBE --accepted--> REPLICATE --rejected, or no progress for a while--> PROBE
PROBE, REPLICATE --needs what is deleted--> PREFIX --installed--> REPLICATE

Besides, a peer may be *paused for damage*: the entries that it needs next cannot be sent or stored as they were
written, because they are damaged on one of the two disks or on the way. The leader tries again, at growing intervals,
and sends nothing in between.
"""

from collections import deque
from enum import Enum

import msgspec

from penstock.raft.settings import RaftSettings
from penstock.types import Replica

DAMAGE_PAUSE_FIRST_S = 0.5
DAMAGE_PAUSE_LONGEST_S = 30.0
"""The first pause is for damage on the way, which will most likely not happen again; the longest for damage on a disk,
which only another leader or a person can repair: each try reads and sends a window for nothing."""


class PeerState(Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    PREFIX = "prefix"


class ReplicaProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far one replica is, for operators and for in-sync sets. The leader itself is one of them."""

    replica: Replica
    match_index: int
    """Flushed there."""
    next_index: int
    state: PeerState
    last_contact: float
    heartbeat_sent_at: float
    """When the newest heartbeat that it answered was sent: the replica knows everything that this heartbeat said."""
    learner: bool


class Peer:
    """One replica, as its leader sees it. The leader has one for itself, to which it sends nothing."""

    __slots__ = (
        "contact_at",
        "damage_pause_s",
        "damage_pause_until",
        "inflight",
        "inflight_bytes",
        "lease_at",
        "match_index",
        "matched",
        "next_index",
        "paused",
        "probe_sent",
        "progress_at",
        "replica",
        "state",
    )

    def __init__(self, replica: Replica, next_index: int, now: float) -> None:
        self.replica = replica
        self.match_index = 0
        """Flushed there and equal to the leader's log. Only ever grows within a term (9)."""
        self.next_index = next_index
        self.state = PeerState.PROBE
        self.matched = False
        """It has accepted something in this term, so that an append at match_index cannot be rejected."""
        self.probe_sent = False
        self.paused = False
        """Silent for an election timeout: it is sent nothing until it answers a heartbeat."""
        self.inflight: deque[tuple[int, int]] = deque()
        """(end index, bytes) of each append that is neither answered nor given up."""
        self.inflight_bytes = 0
        self.progress_at = now
        """When it last made progress, or was last sent something while it lacked nothing."""
        self.contact_at = now
        """When it was last heard. A new leader gives every peer one election timeout."""
        self.lease_at = float("-inf")
        """When the newest heartbeat that it answered was sent (5)."""
        self.damage_pause_s = 0.0
        self.damage_pause_until = float("-inf")

    def pause_for_damage(self, now: float) -> None:
        self.damage_pause_s = min(self.damage_pause_s * 2, DAMAGE_PAUSE_LONGEST_S) or DAMAGE_PAUSE_FIRST_S
        self.damage_pause_until = now + self.damage_pause_s

    def has_room(self, settings: RaftSettings) -> bool:
        return (
            len(self.inflight) < settings.max_inflight_messages
            and self.inflight_bytes < settings.max_inflight_bytes
        )

    def sent(self, end_index: int, size: int) -> None:
        self.inflight.append((end_index, size))
        self.inflight_bytes += size
        self.next_index = end_index

    def received(self, index: int) -> bool:
        """It has written all below. True if that answers an append."""
        inflight = self.inflight
        if index > self.next_index:
            self.next_index = index
        answered = False
        while inflight and inflight[0][0] <= index:
            self.inflight_bytes -= inflight.popleft()[1]
            answered = True
        return answered

    def probe_at(self, index: int) -> None:
        self.state = PeerState.PROBE
        self.next_index = index
        self.probe_sent = False
        self._forget_inflight()

    def replicate_from(self, index: int) -> None:
        self.state = PeerState.REPLICATE
        self.next_index = index
        self.probe_sent = False
        self._forget_inflight()

    def await_prefix(self, now: float) -> None:
        self.state = PeerState.PREFIX
        self.progress_at = now
        self._forget_inflight()

    def _forget_inflight(self) -> None:
        self.inflight.clear()
        self.inflight_bytes = 0
