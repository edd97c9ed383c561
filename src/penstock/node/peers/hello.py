"""The messages of the handshake: the facts of a node, and refusals.

Both structs travel as MessagePack maps or arrays. Fields that a newer node adds are skipped by an older one, so a field
may be added without a new protocol version when it has a default.
"""

from enum import IntEnum
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from penstock.config import Address
from penstock.config.listeners import MAX_LISTENERS
from penstock.errors import ProtocolViolation
from penstock.types import NodeId, Replica

HELLO_MAX_BYTES = 16 * 1024
"""A hello is a few hundred bytes; with the longest names and a hundred seeds it is still below this. This
limits the memory that a connection costs before its node is known."""

ANY_NODE = -1
"""In place of a node id: whichever node answers."""

_SHOWN_CHARACTERS = 400

T = TypeVar("T")

_Text = Annotated[str, Meta(max_length=255)]
_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class PeerHello(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one node, as it tells them."""

    node: Annotated[NodeId, Meta(ge=0, le=2**31 - 1)]
    incarnation: _Number
    """Made with the data folder: a node that lost its folder is another one under the same id."""
    run: _Number
    """Drawn at each start of the process: two connections of one run are one node that dialled twice, two runs at
    once are two processes that claim one identity."""
    gossip_epoch: _Number = 0
    """The epoch of the same run in gossip's packets; 0 from a node of a version that does not send it."""
    cluster_id: _Text | None = None
    """None: not in a cluster yet."""
    founders: tuple[Replica, ...] = ()
    """The founders of `cluster_id`; every node of a cluster knows and keeps them."""
    cluster: Address
    """Where other nodes reach this one."""
    kafka: Address
    http: Address | None = None
    rack: _Text | None = None
    seeds: tuple[Address, ...] = ()
    """The list that the node was started with."""
    version: _Text = ""
    """The version of the software; shown to people only."""
    listeners: Annotated[dict[_Text, Address], Meta(max_length=MAX_LISTENERS)] = {}
    """The addresses for Kafka clients by the listeners' names; empty for a node that has one without a name."""
    https: bool = False
    """Whether the HTTP port has TLS."""
    machine: _Text | None = None
    """The machine that the node shares with others."""
    decrypts_gossip: bool = False
    """Whether the node reads encrypted gossip; False from a node of a version that does not say it."""

    @property
    def replica(self) -> Replica:
        return Replica(self.node, self.incarnation)

    def __str__(self) -> str:
        return f"node {self.node} at {self.cluster}"


class RefusalCode(IntEnum):
    """Why two nodes do not talk. Numbers are part of the protocol."""

    MALFORMED = 1
    """The message is not of this protocol, or is damaged."""
    VERSION = 2
    KEY = 3
    CLUSTER = 4
    DUPLICATE_ID = 5
    ALREADY_CONNECTED = 6
    """One connection per pair is enough. This is no fault and not worth a log line."""
    ITSELF = 7
    """A node that dialled its own address: seeds lists do that."""
    TOO_MANY = 8


QUIET = frozenset({RefusalCode.ALREADY_CONNECTED, RefusalCode.ITSELF})
"""Refusals that are normal and not logged."""


class PeerRefusal(msgspec.Struct, frozen=True, array_like=True):
    """A refusal with its reason, for the other side's log."""

    code: int
    reason: str

    def __str__(self) -> str:
        return printable(self.reason)


class Introduction(msgspec.Struct, frozen=True, array_like=True):
    """One side's half of the handshake. The listener may introduce itself and refuse in one message, so that the
    dialler learns which node it reached."""

    hello: PeerHello
    expects: int = ANY_NODE
    """The node that the dialler wants to reach; ANY_NODE if it does not matter. If another node answers, the
    dialler only learns which one: a connection that the two have already stays as it was."""
    refusal: PeerRefusal | None = None


_encoder = msgspec.msgpack.Encoder()
_introductions = msgspec.msgpack.Decoder(Introduction)
_hellos = msgspec.msgpack.Decoder(PeerHello)
_refusals = msgspec.msgpack.Decoder(PeerRefusal)


def encode(message: Introduction | PeerHello | PeerRefusal) -> bytes:
    return _encoder.encode(message)


def decode_introduction(body: bytes | memoryview) -> Introduction:
    introduction = _decode(_introductions, body)
    _check_addresses(introduction.hello)
    return introduction


def decode_hello(body: bytes | memoryview) -> PeerHello:
    hello = _decode(_hellos, body)
    _check_addresses(hello)
    return hello


def decode_refusal(body: bytes | memoryview) -> PeerRefusal:
    return _decode(_refusals, body)


def printable(text: str) -> str:
    """A text from another node, fit for a log: one line, no control characters, of limited length."""
    return "".join(char if char.isprintable() else "?" for char in text[:_SHOWN_CHARACTERS])


def _decode(decoder: "msgspec.msgpack.Decoder[T]", body: bytes | memoryview) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise ProtocolViolation(f"a hello that cannot be read: {problem}") from None


def _check_addresses(hello: PeerHello) -> None:
    """Addresses are dialled, logged and shown, so they must be plausible."""
    for address in (hello.cluster, hello.kafka, hello.http, *hello.seeds, *hello.listeners.values()):
        if address is not None and not (0 <= address.port <= 65535 and _is_host(address.host)):
            raise ProtocolViolation(f"a hello with the address {printable(str(address))}")


def _is_host(host: str) -> bool:
    """The empty host is valid too: an HTTP port that listens on all interfaces may have it."""
    return len(host) <= 255 and host.isprintable() and " " not in host
