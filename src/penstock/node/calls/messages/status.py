"""Requests to each node about its replicas, for the status of the cluster."""

from typing import NamedTuple

import msgspec

from penstock.types import GroupId


class ReplicaRow(NamedTuple):
    """One replica of a partition, as the partition's leader knows it."""

    node_id: int
    end_offset: int
    lag: int
    bytes_behind: int
    silent_ms: int
    learner: bool


class HeldBackRow(NamedTuple):
    """Expired records that retention keeps because of a queue: see `undone_retention`."""

    queue: str | None
    size_bytes: int
    records: int
    overdue_ms: int


class OverdueRow(NamedTuple):
    """A transaction that should have ended long ago: see `node.transactions.figures`."""

    transactional_id: str
    state: str
    open_ms: int
    timeout_ms: int


class LedPartition(msgspec.Struct, frozen=True, array_like=True):
    """One partition that the answering node leads."""

    group: GroupId
    replicas: tuple[ReplicaRow, ...]
    held_back: HeldBackRow | None = None
    overdue: tuple[OverdueRow, ...] = ()
    """The overdue transactions of the coordinator on this partition, if it has one."""


class DamagedReplica(msgspec.Struct, frozen=True, array_like=True):
    """A replica of the answering node that takes no part in its group, or is damaged."""

    topic: str
    partition: int
    reason: str
    takes_part: bool = False
