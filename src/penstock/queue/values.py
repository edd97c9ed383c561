"""Inputs and outputs of a queue partition."""

from array import array
from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import NamedTuple

import msgspec

from penstock.errors import ErrorCode
from penstock.queue.states import State


class AckKind(IntEnum):
    """A member's decision about a message, by the numbers of Kafka's protocol."""

    GAP = 0
    """There was no record at this offset; done, as if accepted."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4
    """Not done yet: the lease starts again from now."""


class Acquired(NamedTuple):
    """Consecutive offsets that a member holds now, and the number of this delivery, from 1."""

    first: int
    last: int
    deliveries: int


class Acknowledgement(NamedTuple):
    """A member's decision about a range: one kind for all of it, or one for each offset. `delay_ms` is the retry delay
    of a release."""

    first: int
    last: int
    kinds: bytes
    delay_ms: int | None = None


class AckResult(NamedTuple):
    """The result of an acknowledgement. If `waits`, it is durable when `saved` returns its token."""

    error: ErrorCode
    waits: bool


class AckResults(NamedTuple):
    """The same for many: one error for each, and whether any of them waits."""

    errors: list[ErrorCode]
    waits: bool


class Withdrawn(NamedTuple):
    """How many messages a new table of lanes took from members: those that the member had not begun, and others."""

    returned: int
    released: int


class DeadLetterReason(StrEnum):
    """Why a message goes to the dead letters."""

    DELIVERY_LIMIT = "delivery_limit"
    REJECTED = "rejected"


class DeadLetterRange(NamedTuple):
    """Consecutive offsets whose records are to be copied to the dead letters."""

    first: int
    last: int
    deliveries: int
    reason: DeadLetterReason
    member: str | None = None
    """The member that held them last; None if a restart found them."""


class ScanResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of reading a part of the log."""

    gaps: Sequence[tuple[int, int]] = ()
    """First and last offsets without a record to deliver: compacted away, or control batches. In order."""
    deferred: Sequence[tuple[int, int]] = ()
    """(offset, due_ms): not to be delivered before."""
    expiring: Sequence[tuple[int, int]] = ()
    """(offset, at_ms): not to be delivered from then on."""
    keys: Sequence[int | None] = ()
    """One 64-bit hash per offset read, None without a key; only for key-ordered queues. If two keys have the same hash,
    their messages wait for each other, and nothing else happens."""
    lanes: "array[int] | None" = None
    """The lane of each offset read, as unsigned 16-bit numbers ("H"); only for queues with lanes."""


EMPTY_SCAN = ScanResult()


class StateChanges(NamedTuple):
    """Records to be written as one batch. A value of None deletes what the key names."""

    number: int
    records: list[tuple[bytes, bytes | None]]
    """Key suffixes only: see `state_records.encode_key`."""


class Run(NamedTuple):
    """Consecutive offsets with the same state."""

    first: int
    last: int
    state: State
    deliveries: int = 0
    member: str | None = None
    until_ms: int | None = None


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """How much a queue partition keeps in memory: leases, members that hold them, chunks."""

    leases: int
    members: int
    chunks: int
    ready_lanes: int = 0
    """Lanes with available messages; 0 in a queue without lanes."""
    lane_owners: int = 0
    """Owners that have lanes."""
    lane_epoch: int = 0
    """The epoch of the table by which messages are delivered."""
