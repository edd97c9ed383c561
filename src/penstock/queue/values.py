"""What goes into a queue partition and what comes out."""

from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import NamedTuple

import msgspec

from penstock.errors import ErrorCode
from penstock.queue.states import State


class AckKind(IntEnum):
    """What a member says of a message, by the numbers of Kafka's protocol."""

    GAP = 0
    """There was none at this offset; done, as if accepted."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4
    """Not done yet: the lease runs from now."""


class Acquired(NamedTuple):
    """Consecutive offsets that a member holds now, and the how manieth delivery this is for each of them."""

    first: int
    last: int
    deliveries: int


class AckResult(NamedTuple):
    """What became of an acknowledgement. If it waits, it is durable when `saved` gives its token back."""

    error: ErrorCode
    waits: bool


class DeathReason(StrEnum):
    """Why a message goes to the dead letters."""

    DELIVERY_LIMIT = "delivery_limit"
    REJECTED = "rejected"


class DeadLetter(NamedTuple):
    """Consecutive offsets whose records are to be copied to the dead letters."""

    first: int
    last: int
    deliveries: int
    reason: DeathReason


class Notes(msgspec.Struct, frozen=True, kw_only=True):
    """What there was to see when a part of the log was read."""

    gaps: Sequence[tuple[int, int]] = ()
    """First and last offsets at which there is nothing to deliver: compacted away, or control batches. In order."""
    deferred: Sequence[tuple[int, int]] = ()
    """(offset, due_ms): not to be delivered before."""
    expiring: Sequence[tuple[int, int]] = ()
    """(offset, at_ms): not to be delivered from then on."""
    keys: Sequence[int | None] = ()
    """One 64-bit hash per offset read, None without a key; only for key-ordered queues. Two keys of one hash merely
    wait for each other."""


NO_NOTES = Notes()


class Changes(NamedTuple):
    """Records to be written as one batch. A value of None deletes what the key names."""

    number: int
    records: list[tuple[bytes, bytes | None]]
    """Keys without what names the partition: see `storage.encode_key`."""


class Run(NamedTuple):
    """Consecutive offsets of which the same is known."""

    first: int
    last: int
    state: State
    deliveries: int = 0
    member: str | None = None
    until_ms: int | None = None


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """A queue partition in numbers."""

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
