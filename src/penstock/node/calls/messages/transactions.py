"""Requests to coordinators of transactions, and from them to the leaders of partitions."""

import msgspec

from penstock.types import GroupId


class JoinTransaction(msgspec.Struct, frozen=True, array_like=True):
    """A leader has the first batch of a transaction on some of its partitions: are they part of the transaction?"""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: list[tuple[str, int]]
    adds: bool
    """V2: the coordinator adds them. V1: the client has added them, and this only asks whether it has."""


class JoinedTransaction(msgspec.Struct, frozen=True, array_like=True):
    codes: list[int]
    """An error code for each partition, in the order of the request."""


class Marker(msgspec.Struct, frozen=True, array_like=True):
    """The end of a transaction on one partition."""

    group: GroupId
    leader_term: int
    """The term in which the asked node leads the partition, as the coordinator knows it."""
    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_term: int
    """The term in which the coordinator leads its own partition: Kafka's coordinator epoch."""
    markers_id: int
    """Grows from transaction to transaction of one coordinator in its term."""


class WriteMarkers(msgspec.Struct, frozen=True, array_like=True):
    """Markers of many transactions, for partitions that the asked node leads."""

    markers: list[Marker]


class WrittenMarkers(msgspec.Struct, frozen=True, array_like=True):
    codes: list[int]
    """An error code for each marker, in the order of the request; NONE if it is committed."""


class LendAttempt(msgspec.Struct, frozen=True, array_like=True):
    """A task of an owner asks for a producer (`transactions/attempts.py`)."""

    owner: str
    version: int
    timeout_ms: int


class LentAttempt(msgspec.Struct, frozen=True, array_like=True):
    producer_id: int
    producer_epoch: int
    is_committed: bool
    """There is no producer, because the version is committed already."""


class CommitVersion(msgspec.Struct, frozen=True, array_like=True):
    owner: str
    version: int
    winners: list[tuple[int, int]]
    """Producer ids and epochs."""


class RollbackVersion(msgspec.Struct, frozen=True, array_like=True):
    owner: str
    version: int


class DecidedVersion(msgspec.Struct, frozen=True, array_like=True):
    was_committed: bool
    """An earlier request has committed it, or a later version."""


class RenewAttempts(msgspec.Struct, frozen=True, array_like=True):
    owner: str


class AbortTransaction(msgspec.Struct, frozen=True, array_like=True):
    """An operator aborts the transaction that began then, and no later one of the same id."""

    transactional_id: str
    start_ms: int
