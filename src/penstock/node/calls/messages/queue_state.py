"""Requests to the leader of a partition of the queues' state topic (`node.queues.state_log`)."""

import msgspec

from penstock.queue import Backlog, Fence, Outcomes, QueueKey, StatePart
from penstock.types import NO_TERM


class ClaimState(msgspec.Struct, frozen=True, array_like=True):
    queue: QueueKey
    term: int


class ClaimedState(msgspec.Struct, frozen=True, array_like=True):
    fence: Fence
    parts: list[tuple[bytes, bytes]]
    open_settlements: list[tuple[bytes, bytes]] = []


class SaveState(msgspec.Struct, frozen=True, array_like=True):
    queue: QueueKey
    fence: Fence
    number: int
    parts: list[StatePart]


class StoreSettlement(msgspec.Struct, frozen=True, array_like=True):
    """A settlement within a transaction of this producer. `suffix`: of its key; `value`: its record."""

    queue: QueueKey
    fence: Fence
    transactional_id: str
    producer_id: int
    producer_epoch: int
    suffix: bytes
    value: bytes


class StoredSettlement(msgspec.Struct, frozen=True, array_like=True):
    """`code`: why the transaction does not take the settlement; NONE if it is stored. Any other failure is an error of
    the call: then it may be stored or not."""

    code: int


class WatchSettlements(msgspec.Struct, frozen=True, array_like=True):
    """Waits for the end of the transactions of these settlements, which were stored under this fence or an older
    one. Nodes that know no `wait_ms` wait for the default, and mean it."""

    queue: QueueKey
    fence: Fence
    suffixes: list[bytes]
    wait_ms: int = 30_000


class SettlementOutcomes(msgspec.Struct, frozen=True, array_like=True):
    """Settlements whose transactions have ended, and whether they were committed. None: ask again."""

    outcomes: Outcomes


class ResetState(msgspec.Struct, frozen=True, array_like=True):
    """`term`: of the leader in whose log the offset is."""

    queue: QueueKey
    start_offset: int
    term: int = NO_TERM


class ListStartOffsets(msgspec.Struct, frozen=True, array_like=True):
    """Asks for the queues in one partition of the state topic: those of one group, or all if `group_id` is None."""

    partition: int
    group_id: str | None


class StartOffsets(msgspec.Struct, frozen=True, array_like=True):
    rows: list[tuple[QueueKey, int]]


class CountState(msgspec.Struct, frozen=True, array_like=True):
    """Asks how many messages of a queue are not done by its stored state. The log begins and ends at these offsets;
    the others are settings of the queue."""

    queue: QueueKey
    log_start_offset: int
    end_offset: int
    delivery_limit: int
    dead_letters: bool


class CountedState(msgspec.Struct, frozen=True, array_like=True):
    """`term`: of the leader that stored the state. `state_end`: the end of the offsets about which it says anything."""

    term: int
    state_end: int
    backlog: Backlog
