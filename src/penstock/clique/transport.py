"""The interface between a clique and its carrier. There are two implementations: for carriers that forward
(forwarding_transport.py), and for Penstock, whose brokers hand messages to owners themselves
(penstock_transport.py)."""

from collections.abc import Callable, Collection
from typing import Protocol

from penstock.clique.codecs import Codec
from penstock.clique.coordination import Coordinator
from penstock.clique.handlers import HandlerTable
from penstock.clique.membership import Membership
from penstock.clique.message import Message
from penstock.clique.pubsub import Capabilities
from penstock.clique.runner import HandlerRunner


class Codecs:
    """The codec of each stream."""

    def __init__(self, default: Codec, handlers: HandlerTable) -> None:
        self._default = default
        self._handlers = handlers
        self._known: dict[str, Codec] = {}

    def of(self, stream: str) -> Codec:
        """For every message: each stream is looked up once."""
        codec = self._known.get(stream)
        if codec is None:
            codec = self._known[stream] = self._handlers.codec_of(stream) or self._default
        return codec


class Transport(Protocol):
    """On the application's event loop, except for `open_coordinator`."""

    @property
    def capabilities(self) -> Capabilities:
        """Known once it is open."""
        ...

    async def open(self) -> None:
        """From now on `publish` and `request` work."""
        ...

    def new_member_id(self) -> str:
        """Of one incarnation of this worker: never used before."""
        ...

    async def open_coordinator(self) -> Coordinator:
        """On the loop of the control thread, with a connection of its own."""
        ...

    async def attach(
        self, membership: Membership, runner: HandlerRunner, on_failure: Callable[[Exception], None]
    ) -> None:
        """This process is a worker. It may be given messages as soon as it owns slots. `on_failure`: is told why it
        cannot get any, and never will."""
        ...

    async def begin_intake(self) -> None:
        """The worker is a member: takes messages of its streams."""
        ...

    async def publish(self, message: Message, timeout_s: float) -> None: ...

    async def request(self, message: Message, timeout_s: float) -> bytes:
        """The value of the response."""
        ...

    # --- slots

    def table_changed(self) -> None:
        """Looks at the membership: messages of slots that are not granted to this worker any more, and that have not
        begun, go elsewhere. May be called when nothing has changed."""
        ...

    async def hand_over(self, slots: Collection[int]) -> None:
        """Nothing runs for these slots any more, and they will be released when this returns."""
        ...

    def lose(self, slots: Collection[int]) -> None:
        """The same for slots that another worker may own already."""
        ...

    # --- the end

    async def end_intake(self) -> None:
        """Takes no more messages from the streams."""
        ...

    async def drain(self, timeout_s: float) -> None:
        """Waits until nothing is left that this process is responsible for."""
        ...

    async def close(self) -> None: ...

    @property
    def in_flight(self) -> int:
        """Messages that this process has got and that are not handled."""
        ...
