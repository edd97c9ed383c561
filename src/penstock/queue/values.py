"""Inputs and outputs of a queue partition."""

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


class AckResult(NamedTuple):
    """The result of an acknowledgement. If `waits`, it is durable when `saved` returns its token."""

    error: ErrorCode
    waits: bool


class DeadLetterReason(StrEnum):
    """Why a message goes to the dead letters."""

    DELIVERY_LIMIT = "delivery_limit"
    REJECTED = "rejected"


class DeadLetter(NamedTuple):
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


EMPTY_SCAN = ScanResult()


class Changes(NamedTuple):
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
    """The figures of a queue partition."""

    start_offset: int
    saved_start_offset: int | None
    next_offset: int
    available: int
    leased: int
    deferred: int
    waiting: int
    dying: int
    leases: int
    members: int
    chunks: int
    next_due_ms: int | None
