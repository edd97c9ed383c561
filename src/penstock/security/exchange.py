"""One login, message by message: the interface that every SASL mechanism has.

A port creates an Exchange when a client has chosen a mechanism, and gives it each message of the client:

    Challenge   send `data` and wait for the client's next message
    Accepted    send `data`; the client is `principal`, and a member of `groups`, until `expires_ms`
    Rejected    send `message` with the error SASL_AUTHENTICATION_FAILED and close; write `reason` to the log

After Accepted or Rejected the exchange is over; a further message is Rejected. An exchange does not wait and needs no
clock. Verifying a PLAIN password takes some milliseconds of CPU, so a port may call `step` in a thread.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Protocol

import msgspec

from penstock.security.errors import AuthenticationError


class Challenge(msgspec.Struct, frozen=True):
    """The server's part of an exchange that goes on."""

    data: bytes


class Accepted(msgspec.Struct, frozen=True):
    """The client has proved who it is."""

    data: bytes
    principal: str
    groups: tuple[str, ...] = ()
    """Principals, as `Group:ops`."""
    expires_ms: int | None = None
    """When its token expires; None for passwords."""

    @property
    def principals(self) -> tuple[str, ...]:
        """All principals that the client acts for, as the authorizer takes them."""
        return (self.principal, *self.groups)


class Rejected(msgspec.Struct, frozen=True):
    """The client is not who it says, or does not speak the mechanism."""

    reason: str
    """For the log; never contains a secret."""
    message: str
    """For the client; does not tell whether a user exists."""


Step = Challenge | Accepted | Rejected


class Exchange(Protocol):
    """One login by one mechanism."""

    def step(self, data: bytes) -> Step:
        """What to do after this message of the client. It never raises because of the client's bytes."""
        ...


class State(Enum):
    """Where an exchange is. Each mechanism has a table of the states that it uses."""

    FIRST = "waits for the client's first message"
    FINAL = "waits for the client's proof"
    FAILED = "has told the client that it failed, and waits for its consent"
    OVER = "is over"


Handler = Callable[[bytes], tuple[Challenge | Accepted, State]]
"""What one state does with a message: the step and the next state. It raises AuthenticationError to reject."""


class TableExchange:
    """An Exchange by a table of states. Every message leaves its state: none can be tried twice."""

    __slots__ = ("_state", "_table")

    def __init__(self, table: Mapping[State, Handler]) -> None:
        self._table = table
        self._state = State.FIRST

    def step(self, data: bytes) -> Step:
        """See Exchange."""
        handler = self._table.get(self._state)
        self._state = State.OVER
        if handler is None:
            return Rejected("a message after the end of the exchange", "the login is over")
        try:
            step, self._state = handler(data)
        except AuthenticationError as error:
            return Rejected(error.reason, error.message)
        return step
