"""Messages that the carrier gave to this worker, until they are handled: how many there may be, and which are left at
the end."""

import asyncio
from contextlib import suppress

from penstock.clique.limits import BUFFERED_BYTES_MAX, IN_FLIGHT_MAX
from penstock.clique.pubsub import Delivery


class CarrierSource:
    """A message that the carrier gave to this worker (items.Source)."""

    __slots__ = ("_delivery", "_intake", "size")

    def __init__(self, delivery: Delivery, intake: "Intake") -> None:
        self._delivery = delivery
        self._intake = intake
        self.size = len(delivery.data)

    def done(self) -> None:
        self._delivery.ack()
        self._intake.remove(self)

    def give_back(self, attempts: int) -> bool:
        """The carrier would give it to any worker again; this one can bring it to the owner as well."""
        return False

    def abandon(self) -> None:
        self._delivery.nack()


class Intake:
    """Bounds messages from the carrier, not those from other workers: these must always get an answer."""

    def __init__(self) -> None:
        self._sources: dict[CarrierSource, None] = {}
        self._bytes = 0
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._sources)

    @property
    def _is_full(self) -> bool:
        return len(self._sources) >= IN_FLIGHT_MAX or self._bytes >= BUFFERED_BYTES_MAX

    async def take(self, delivery: Delivery) -> CarrierSource:
        """Waits while this worker holds too much: the carrier then keeps messages, or gives them to other workers."""
        while self._is_full:
            self._changed.clear()
            await self._changed.wait()
        source = CarrierSource(delivery, self)
        self._sources[source] = None
        self._bytes += source.size
        return source

    def remove(self, source: CarrierSource) -> None:
        if source in self._sources:
            del self._sources[source]
            self._bytes -= source.size
            self._changed.set()

    async def wait_for_change(self, timeout_s: float) -> None:
        """Until one more is handled, or for so long."""
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    def abandon(self) -> int:
        """This worker ends: returns what it has not handled to the carrier, and how much that is."""
        sources = list(self._sources)
        self._sources.clear()
        for source in sources:
            source.abandon()
        return len(sources)
