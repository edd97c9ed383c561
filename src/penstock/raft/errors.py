"""Errors of the core. A peer's wrong message is a penstock.errors.ProtocolViolation."""

from penstock.errors import PenstockError
from penstock.raft.effects import RaftRefusal


class BrokenPromise(Exception):
    """An invariant does not hold: a bug, or a disk that lost flushed bytes. The group must halt."""


class RaftRefused(PenstockError):
    """The request cannot be executed now; `reason` says why."""

    def __init__(self, reason: RaftRefusal) -> None:
        super().__init__(reason.value)
        self.reason = reason
