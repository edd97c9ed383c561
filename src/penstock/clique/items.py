"""A message or request on a carrier that forwards: from where it came to this worker, to the owner of its slot."""

from collections.abc import Mapping
from typing import Protocol

from penstock.clique.chains import CHAIN_HEADER, Chain
from penstock.clique.handlers import Handler
from penstock.clique.message import Message
from penstock.clique.ordering import OrderMark
from penstock.clique.peers import PeerLinks
from penstock.clique.wire import DEADLINE_HEADER, Done, GaveBack


class Source(Protocol):
    """Where an item came from, and who wants to know that it is handled."""

    def done(self) -> None:
        """It is handled, or a dead letter."""
        ...

    def give_back(self, attempts: int) -> bool:
        """Returns the item to where it came from, if that is possible."""
        ...


class PeerSource:
    """Another worker has forwarded it."""

    __slots__ = ("_address", "_forward_id", "_links")

    def __init__(self, links: PeerLinks, address: str, forward_id: int) -> None:
        self._links = links
        self._address = address
        self._forward_id = forward_id

    def done(self) -> None:
        self._links.send(self._address, Done(self._forward_id))

    def give_back(self, attempts: int) -> bool:
        self._links.send(self._address, GaveBack(self._forward_id, attempts))
        return True


class Item:
    """`identity` is the same for every copy of a message, as far as that can be known."""

    __slots__ = (
        "attempts",
        "chain",
        "data",
        "deadline",
        "handler",
        "headers",
        "hops",
        "identity",
        "key",
        "mark",
        "message",
        "reply",
        "slot",
        "sources",
        "stream",
    )

    def __init__(
        self,
        *,
        stream: str,
        data: bytes,
        headers: Mapping[str, str],
        reply: str | None,
        message: Message,
        handler: Handler,
        key: bytes | None,
        slot: int,
        identity: str,
        mark: OrderMark | None,
        source: Source | None,
        hops: int = 0,
        attempts: int = 0,
    ) -> None:
        self.stream = stream
        self.data = data
        self.headers = headers
        self.reply = reply
        self.message = message
        self.handler = handler
        self.key = key
        self.slot = slot
        self.identity = identity
        self.sources = [] if source is None else [source]
        self.hops = hops
        self.attempts = attempts
        self.chain = Chain.parse(headers.get(CHAIN_HEADER))
        self.mark = mark
        self.deadline = deadline_of(headers)
        """By the wall clock, in seconds."""

    @property
    def is_request(self) -> bool:
        return self.reply is not None

    @property
    def size(self) -> int:
        return len(self.data)

    def done(self) -> None:
        for source in self.sources:
            source.done()

    def give_back(self) -> bool:
        """Whether every source has taken it back."""
        self.sources = [source for source in self.sources if not source.give_back(self.attempts)]
        return not self.sources and not self.is_own_request

    @property
    def is_own_request(self) -> bool:
        """A request of this process, which no other one holds."""
        return self.is_request and self.hops == 0

    def __repr__(self) -> str:
        return f"{self.message!r} in slot {self.slot}"


def deadline_of(headers: Mapping[str, str]) -> float | None:
    text = headers.get(DEADLINE_HEADER, "")
    return int(text) / 1000 if text.isascii() and text.isdigit() else None
