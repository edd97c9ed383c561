"""What a leader knows of one replica, and how it feeds it.

PROBE      where the logs part is not known: one message at a time, until one is accepted
REPLICATE  known: a window of messages under way, each sent on the assumption that the ones before it arrive
PREFIX     what the replica needs next is deleted here: a prefix is under way, and nothing else

PROBE --accepted--> REPLICATE --rejected, or no progress for a while--> PROBE
PROBE, REPLICATE --needs what is deleted--> PREFIX --installed--> REPLICATE

Besides, a peer may be *hushed*: what it needs next cannot be sent as it should be, because it rots on one of the two
disks or on the way. It is tried again, ever more rarely, and is sent nothing between.
"""

from collections import deque
from enum import Enum

import msgspec

from penstock.raft.settings import RaftSettings
from penstock.types import Replica

HUSH_FIRST_S = 0.5
HUSH_LONGEST_S = 30.0
"""The first pause is for a fault on the way, which will most likely not be there again; the longest for rot that only
another leader, or a person, can mend: each try reads and sends a window in vain."""


class PeerState(Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    PREFIX = "prefix"


class ReplicaProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far one replica is, for people and for in-sync sets. The leader itself is among them."""

    replica: Replica
    match_index: int
    """Flushed there."""
    next_index: int
    state: PeerState
    last_contact: float
    beat_sent_at: float
    """When the newest beat that it answered was sent: all that beat said is known there."""
    learner: bool


class Peer:
    """One replica, seen by its leader. The leader has one of itself, which is never sent anything."""

    __slots__ = (
        "contact_at",
        "hush_s",
        "hushed_until",
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
        """Silent for an election timeout: it is sent nothing until it answers a beat."""
        self.inflight: deque[tuple[int, int]] = deque()
        """(end index, bytes) of each append that is neither answered nor given up."""
        self.inflight_bytes = 0
        self.progress_at = now
        """When it last got on, or was last sent something while it lacked nothing."""
        self.contact_at = now
        """When it was last heard of, as far as is known. A new leader gives everybody one election timeout."""
        self.lease_at = float("-inf")
        """When the newest beat that it answered was sent (5)."""
        self.hush_s = 0.0
        self.hushed_until = float("-inf")

    def hush(self, now: float) -> None:
        self.hush_s = min(self.hush_s * 2, HUSH_LONGEST_S) or HUSH_FIRST_S
        self.hushed_until = now + self.hush_s

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
