"""Requests to the coordinator of a clique (`node.cliques`): the leader of a partition of `__clique_state`."""

import msgspec

from penstock.ring import CliqueDescription, CliqueOutline, Heartbeat, Table


class CliqueHeartbeat(msgspec.Struct, frozen=True, array_like=True):
    """A worker's heartbeat. The reply may be held back for `wait_ms` if it has no news."""

    clique: str
    heartbeat: Heartbeat
    wait_ms: int = 0


class AskTable(msgspec.Struct, frozen=True, array_like=True):
    """The table of a clique, when it is newer than this epoch, or after `wait_ms`."""

    clique: str
    known_epoch: int
    wait_ms: int = 0


class TableAnswer(msgspec.Struct, frozen=True, array_like=True):
    """None: there is no such clique."""

    table: Table | None


class DescribeClique(msgspec.Struct, frozen=True, array_like=True):
    clique: str


class DescribedClique(msgspec.Struct, frozen=True, array_like=True):
    """None: there is no such clique."""

    description: CliqueDescription | None


class ListCliques(msgspec.Struct, frozen=True, array_like=True):
    """The cliques of one partition of the state topic."""

    partition: int


class ListedCliques(msgspec.Struct, frozen=True, array_like=True):
    cliques: list[CliqueOutline]
