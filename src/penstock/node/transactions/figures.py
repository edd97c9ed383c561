"""Open transactions as metrics and the cluster's status show them."""

from typing import NamedTuple

import msgspec

from penstock.transactions import NEVER_MS

OVERDUE_AFTER_MS = 60_000
"""A coordinator aborts a transaction at its timeout, and the markers take milliseconds. One that is open a minute later
cannot be ended: its outcome cannot be written, or a partition has no leader for its marker. Readers of committed
records wait for it."""
OVERDUE_NAMED_MAX = 20
"""Overdue transactions that one coordinator names. If a partition has no leader, thousands may wait for it."""


class OpenTransaction(NamedTuple):
    transactional_id: str
    state: str
    open_ms: int
    timeout_ms: int
    owner: str = ""
    """The owner, if this is an attempt."""

    @property
    def is_overdue(self) -> bool:
        return self.timeout_ms != NEVER_MS and self.open_ms > self.timeout_ms + OVERDUE_AFTER_MS


class TransactionFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The coordinators on this node, counted. `committed` and `aborted` count since the node was started."""

    open: int = 0
    oldest_ms: int = 0
    attempts: int = 0
    oldest_attempt_ms: int = 0
    committed: int = 0
    aborted: int = 0
