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


ALL_GROUPS = ""
"""Instead of a group's name, which is never empty."""


class ListSamples(msgspec.Struct, frozen=True, array_like=True):
    """Asks for the samples after a time; with the lag of one group, if it is named, or of ALL_GROUPS. With `topics`,
    the last sample has the figures of topics."""

    since_ms: int
    group: str | None = None
    topics: bool = False


class TopicFigures(NamedTuple):
    """The replicas of a topic on one node: their bytes, and the messages per second of those that it leads."""

    size_bytes: int
    message_rate: float


class Sample(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The figures of one node at one moment: see `node.status.samples`."""

    time_ms: int
    bytes_in: int
    bytes_out: int
    messages: int
    requests: int
    connections: int
    lag: int
    ready: int
    leased: int
    delayed: int
    lags: dict[str, int] = {}
    """The lags of groups by name."""
    topics: dict[str, TopicFigures] = {}
    """By name, if they were asked for. Only the last ones are kept."""

    def only(self, group: str | None) -> "Sample":
        """The same without the lags of other groups."""
        if group == ALL_GROUPS:
            return self
        lag = None if group is None else self.lags.get(group)
        return msgspec.structs.replace(self, lags={} if group is None or lag is None else {group: lag})
