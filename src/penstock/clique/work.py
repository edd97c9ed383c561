"""A message on its way through a worker: from the transport that brought it, to its handler, and back with the
outcome."""

import itertools
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from penstock.clique.chains import Chain
from penstock.clique.handlers import Handler
from penstock.clique.lanes import LaneKey
from penstock.clique.message import Message


class Handled(NamedTuple):
    """The handler has returned."""

    result: Any


class Failed(NamedTuple):
    """The handler has failed for good, or the message can have no handler: it is a dead letter, with this reason. The
    sender of a request is told."""

    problem: Exception
    attempts: int


class Returned(NamedTuple):
    """No handler has begun it, or none runs any more: it goes to the owner of its slot, wherever that is now."""

    attempts: int


class Expired(NamedTuple):
    """A request whose sender has given up: nothing is to be done."""


Outcome = Handled | Failed | Returned | Expired


class Confirmation(Protocol):
    """Something that will be done: a future, or a lighter one."""

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None: ...


Settle = Callable[[Outcome], Confirmation | None]
"""Tells the transport. The slot counts as in use until this is confirmed: while an acknowledgement is under way, the
slot must not go to another owner, who would get the message again."""

Announce = Callable[[Callable[[bool], None]], None]
"""Tells the transport that a handler is about to begin a message; the argument is called with whether the transport has
taken note of it."""

_numbers: Final = itertools.count()


class Work:
    """One message or request for one handler."""

    __slots__ = (
        "announce",
        "attempts",
        "chain",
        "deadline",
        "epoch",
        "handler",
        "is_request",
        "lane_key",
        "message",
        "settle",
        "size",
        "slot",
        "table_epoch",
    )

    def __init__(
        self,
        handler: Handler,
        message: Message,
        *,
        key: bytes | None,
        slot: int,
        settle: Settle,
        is_request: bool = False,
        attempts: int = 0,
        chain: Chain | None = None,
        deadline: float | None = None,
        announce: Announce | None = None,
        table_epoch: int = 0,
    ) -> None:
        self.handler = handler
        self.message = message
        self.slot = slot
        self.lane_key: LaneKey = key if key is not None else next(_numbers)
        self.settle = settle
        self.is_request = is_request
        """A sender waits for the result."""
        self.attempts = attempts
        """How often its handler was called before."""
        self.chain = chain
        """Of the handler that has sent this request."""
        self.deadline = deadline
        """By the wall clock: a request that has not begun by then does not begin."""
        self.announce = announce
        """To be called before its handler is called for the first time."""
        self.table_epoch = table_epoch
        """Of the table by which this worker got it, which may be newer than the one that it knows."""
        self.epoch: int | None = None
        """Of its slot, when its handler was called."""
        self.size = len(message.value or b"") + len(message.key or b"")

    def __repr__(self) -> str:
        return f"{self.message!r} in slot {self.slot}"
