"""Heartbeats: the one request by which a worker joins its clique, stays in it, hands slots over and leaves.

A worker sends a heartbeat several times per lease, and at once when it has something to report. The reply tells it the
newest table if it does not know it. Both are plain values: msgspec writes them as JSON or msgpack.
"""

from enum import StrEnum

import msgspec

from penstock.errors import ErrorCode, KafkaError
from penstock.ring.names import NAME_RULE, is_name
from penstock.ring.slots import SLOTS, check_bitmap
from penstock.ring.table import NO_EPOCH, Table

DEFAULT_LEASE_MS = 8_000
"""A crash costs this long. Shorter leases end when a busy machine delays a few heartbeats."""
HEARTBEAT_TIMEOUTS_PER_LEASE = 4
"""A member gives up a heartbeat after this part of a lease, and sends another one."""
LEASE_MS_MIN = 500
"""Below, ordinary pauses of a process (garbage collection, a busy machine) would end leases all the time."""
LEASE_MS_MAX = 600_000
"""A crashed worker keeps its slots for so long, and nothing can take them earlier."""


class CliqueLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The most of each thing that a worker can make a coordinator keep."""

    max_members: int = 512
    """Members of one clique: with more, a share would be below eight slots, and shares could not be even."""
    max_cliques: int = 1_000
    """Cliques on one partition of the state topic; each costs about 150 KB of memory while it has members."""
    max_member_id_bytes: int = 64
    max_streams: int = 64
    """Streams that one worker handles: they are stored with each change of the clique."""
    max_streams_bytes: int = 4_096
    """The names of these streams together. So the state of a clique, which is one record, has 2.5 MB at most; a usual
    one has 10 to 30 KB."""


LIMITS = CliqueLimits()


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A worker reports to its clique."""

    worker: str
    """The name under which it gets its slots back after a restart."""
    member_id: str
    """This incarnation of the worker: random, and never used again."""
    sequence: int
    """Grows with each heartbeat of a member: a heartbeat that comes late or twice changes nothing."""
    lease_ms: int = DEFAULT_LEASE_MS
    """For how long it may start handlers without a reply. The first heartbeat decides; the reply says what holds."""
    epoch: int = NO_EPOCH
    """The newest table that it knows, or (before it is a member) the epoch that a reply has introduced it to."""
    held: bytes = b""
    """The slots that it has not let go of, as a bitmap: owned ones, and those where something still runs."""
    leaving: bool = False
    """It wants to hand everything over and go. It cannot change its mind."""
    streams: tuple[str, ...] = ()
    """The streams that it handles; for people who ask about the clique."""
    overdue: int = 0
    """How many slots it does not hand over because its on_release has not returned in time; for the same people."""

    def check(self, limits: CliqueLimits = LIMITS) -> "Heartbeat":
        """Raises KafkaError for a heartbeat that no worker sends; gives the heartbeat back otherwise."""
        _check_name("worker", self.worker)
        size = len(self.member_id.encode("utf-8", "surrogatepass"))
        most = limits.max_member_id_bytes
        _check("member_id", self.member_id[:80], 0 < size <= most, f"1 to {most} bytes")
        _check("sequence", self.sequence, self.sequence >= 1, "1 or more")
        _check("epoch", self.epoch, 0 <= self.epoch < 2**63, "0 or more")
        in_range = LEASE_MS_MIN <= self.lease_ms <= LEASE_MS_MAX
        _check("lease_ms", self.lease_ms, in_range, f"{LEASE_MS_MIN} to {LEASE_MS_MAX}")
        few = len(self.streams) <= limits.max_streams
        _check("streams", len(self.streams), few, f"at most {limits.max_streams} of them")
        size = sum(len(stream.encode("utf-8", "surrogatepass")) for stream in self.streams)
        small = size <= limits.max_streams_bytes
        _check("streams", f"{size} bytes", small, f"at most {limits.max_streams_bytes} bytes of names")
        for stream in self.streams:
            _check_name("streams", stream)
        _check("overdue", self.overdue, 0 <= self.overdue <= SLOTS, f"0 to {SLOTS}")
        try:
            check_bitmap(self.held)
        except ValueError as wrong:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"held: {wrong}") from None
        return self


def check_clique_name(name: str) -> str:
    """Raises KafkaError for what is no name (`names.py`); gives the name back otherwise."""
    return _check_name("clique", name)


def _check_name(field: str, name: str) -> str:
    _check(field, name[:80], is_name(name), NAME_RULE)
    return name


def _check(field: str, value: object, fine: bool, expected: str) -> None:
    if not fine:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{field} is {value!r}: expected {expected}")


class HeartbeatStatus(StrEnum):
    """Where the worker stands."""

    OK = "ok"
    """It is a member, and its lease counts from the moment at which it sent the heartbeat."""
    INTRODUCED = "introduced"
    """It is not a member yet. It joins with its next heartbeat, which names the epoch of this reply."""
    NAME_TAKEN = "name_taken"
    """Another incarnation has its name, until that has left or its lease has ended: ask again after `retry_ms`."""
    FENCED = "fenced"
    """It is no longer a member: it must drop all slots and begin again with a new member id and epoch 0."""
    FULL = "full"
    """The clique has as many members as it may have: ask again after `retry_ms`."""


class HeartbeatReply(msgspec.Struct, frozen=True, kw_only=True):
    """The clique's answer to a heartbeat."""

    status: HeartbeatStatus
    sequence: int
    """Of the heartbeat that this answers."""
    epoch: int
    """The newest one."""
    lease_ms: int
    """Of this member; 0 if it is not one."""
    retry_ms: int = 0
    """When to ask again, for those who are not members; 0: at once."""
    table: Table | None = None
    """For a member that does not know the newest one."""
