"""What a handler knows about the request beside its fields."""

from typing import Protocol

import msgspec

from penstock.node import Node


class ConnectionFacts(Protocol):
    """What handlers may know and set of a connection."""

    peer: str
    client_software: str


class RequestContext(msgspec.Struct, frozen=True, kw_only=True):
    """One request's surroundings."""

    node: Node
    connection: ConnectionFacts
    client_id: str
    api_version: int
