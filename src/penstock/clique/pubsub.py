"""The pub/sub system that carries a clique: what it must do, and what it says it can do.

A carrier is any object with the methods of `PubSub`. It needs queue groups: of the subscribers of one group, one gets
each message. Everything else is a *capability* that it declares, and the guarantee of a clique follows from them
(guarantees.py).

A carrier belongs to the event loop on which `connect` was called. A clique has two connections: one for messages, on
the loop of the application, and one for membership, on a loop in a thread of its own. So a handler that blocks the
loop does not cost the worker its slots."""

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol

import msgspec


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a carrier can do, beyond publishing and subscribing with queue groups."""

    durable: bool = False
    """Stored messages survive a crash of the carrier, and wait while no worker of the clique runs."""
    ordered: bool = False
    """Messages of one publisher reach a subscriber in the order in which they were published."""
    acks: bool = False
    """A message that a subscriber of a queue group has not acknowledged when it disconnects goes to another one."""
    exclusive: bool = False
    """The carrier itself hands the messages of a slot to the slot's owner only, and takes acks from no other."""
    compare_and_set: bool = False
    """`store` has cells that change only if they are as the writer has seen them."""


class Delivery(Protocol):
    """A message that a subscriber has received."""

    @property
    def subject(self) -> str: ...

    @property
    def data(self) -> bytes: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def reply(self) -> str | None:
        """The subject that an answer goes to, if the publisher asked for one."""
        ...

    def ack(self) -> None:
        """The message is handled. Without the capability `acks` this does nothing."""
        ...

    def nack(self) -> None:
        """The message goes to another subscriber of the group, or to this one again."""
        ...


class Subscription(Protocol):
    """Ends with `unsubscribe`, and with the connection."""

    async def unsubscribe(self) -> None: ...


Callback = Callable[[Delivery], Awaitable[None]]
"""Is awaited for one message at a time, in the order of arrival. While it waits, the carrier holds the others back."""


class Cell(NamedTuple):
    """A value, and the number of the change that made it."""

    revision: int
    value: bytes


class CellStore(Protocol):
    """Values that change by compare-and-set."""

    async def get(self, key: str) -> Cell | None:
        """The newest value, of a carrier that is replicated too: an older one could hide a change of owners."""
        ...

    async def put(self, key: str, value: bytes, revision: int) -> int | None:
        """Replaces the value that has this revision (0: none), and returns the new revision. None: it has another."""
        ...


class PubSub(Protocol):
    """One connection to a pub/sub system. docs/cliques.md shows how to write one."""

    @property
    def capabilities(self) -> Capabilities:
        """Known once `connect` has returned."""
        ...

    @property
    def max_message_bytes(self) -> int | None:
        """The largest message that it takes; None: it has no limit. Known once `connect` has returned."""
        ...

    @property
    def store(self) -> CellStore | None:
        """None without the capability `compare_and_set`."""
        ...

    async def connect(self) -> None:
        """Connects, on the running event loop."""
        ...

    def another(self) -> "PubSub":
        """A second connection to the same system, not connected yet. It will be used on another event loop."""
        ...

    async def publish(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None, reply: str | None = None
    ) -> None:
        """Headers have names and values of ASCII, and reach every subscriber with the data."""
        ...

    async def subscribe(
        self, subject: str, callback: Callback, queue_group: str | None = None
    ) -> Subscription:
        """From when it has returned, the callback gets what is published to the subject; of the subscribers of a queue
        group, one of them gets each message."""
        ...

    async def close(self) -> None: ...
