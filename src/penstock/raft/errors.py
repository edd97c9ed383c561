"""Errors of this room. What a peer breaks is penstock.errors.ProtocolViolation."""

from penstock.errors import PenstockError
from penstock.raft.effects import Refusal


class BrokenPromise(Exception):
    """An invariant does not hold: a bug of ours, or a disk that lost what it had flushed. The group must halt."""


class Refused(PenstockError):
    """What was asked cannot be done now; `reason` tells why."""

    def __init__(self, reason: Refusal) -> None:
        super().__init__(reason.value)
        self.reason = reason
