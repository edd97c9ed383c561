"""What a handler knows about the request beside its fields."""

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


class RequestContext(msgspec.Struct, frozen=True, kw_only=True):
    """One request's surroundings."""

    node: Node
    connection: ConnectionFacts
    client_id: str
    api_version: int
