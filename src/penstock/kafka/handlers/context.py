"""What a handler knows about the request beside its fields."""

from collections.abc import Callable
from typing import Protocol

import msgspec

from penstock.node import Node


class ConnectionFacts(Protocol):
    """What handlers may know and set of a connection."""

    peer: str
    client_software: str

    def send_away(self) -> None:
        """The connection ends with the answer to this request: another node may know what this one cannot."""
        ...

    def when_closed(self, callback: Callable[[], None]) -> None:
        """Calls back once, soon after the connection has ended, whatever the reason; at once if it has already."""
        ...

    def hold(self) -> Callable[[], None]:
        """Starts no other request of this connection until the function that is returned is called: what this one is to
        do is not done yet, and a later one must not overtake it. Calling it twice does no harm."""
        ...


class RequestContext(msgspec.Struct, frozen=True, kw_only=True):
    """One request's surroundings."""

    node: Node
    connection: ConnectionFacts
    client_id: str
    api_version: int
