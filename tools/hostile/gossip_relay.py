"""An attacker between the nodes: gossip passes through its hands, so that it can send datagrams again and out of order.

It has no key. The relays are those of the tests for cut networks; connections pass unchanged.
"""

import random
from collections import deque
from collections.abc import Iterable

from tests.faults.network_cuts import NetworkCuts

MOST_KEPT = 20_000
LONGEST_DELAY_SECONDS = 0.2
ANY_NODE = 0


class GossipRelay(NetworkCuts):
    """Keeps what passes. `reorders`: each datagram is delayed by another time."""

    def __init__(self, node_ids: Iterable[int]) -> None:
        super().__init__(node_ids)
        self.reorders = False
        self.reordered = 0
        self._kept: deque[tuple[int, int, bytes]] = deque(maxlen=MOST_KEPT)
        """Source, target and bytes."""
        self._chance = random.Random(0)

    async def _introduce(self, *streams: object) -> int:
        """Reads nothing: with a key, a node's introduction begins with a proof. No way is ever closed here."""
        return ANY_NODE

    def take_datagram(self, target: int, data: bytes, port: int) -> None:
        source = next((node for node, real in self._real_ports.items() if real == port), None)
        if source is None:
            return
        self._kept.append((source, target, data))
        delay = self._chance.uniform(0, LONGEST_DELAY_SECONDS) if self.reorders else 0.0
        self.reordered += self.reorders
        self._loop.call_later(delay, self._send, source, target, data)

    def replay(self, count: int) -> int:
        """Sends datagrams of before again, in any order, also to nodes that they were not for. How many."""
        kept = list(self._kept)
        if not kept:
            return 0
        chosen = self._chance.choices(kept, k=count)
        for number, (source, target, data) in enumerate(chosen):
            others = [node for node in self.ports if node != source]
            to = target if number % 4 else self._chance.choice(others)
            self._loop.call_soon_threadsafe(self._send, source, to, data)
        return len(chosen)

    def _send(self, source: int, target: int, data: bytes) -> None:
        transport = self._datagrams.get(source)
        if transport is not None and not transport.is_closing():
            transport.sendto(data, ("127.0.0.1", self._real_ports[target]))
