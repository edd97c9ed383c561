"""Contacts: addresses to try although nobody is known to be there.

Gossip alone never heals a cluster that was cut in two for longer than the dead are gossiped to: each half holds the
other for dead and no longer speaks to it. So seeds and dead members are tried for ever, at a low rate. A node that
knows nobody at all tries more of them, and more often.
"""

from collections.abc import Iterable

from penstock.swim.packets import ANYBODY
from penstock.swim.table import MemberTable
from penstock.swim.values import Endpoint
from penstock.types import Replica

MAX_OPEN = 256
"""Pings to contacts that may still be answered. The oldest is forgotten first."""
MAX_SEEDS = 100


class Contacts:
    """Seeds, who was found there, and which pings are under way."""

    def __init__(self, me: Replica, own_address: Endpoint) -> None:
        self._me = me
        self.own_address = own_address
        self._seeds: dict[Endpoint, Replica | None] = {}
        """Each with the member that answered there last: a seed's name need not be the one that the member uses."""
        self._open: dict[int, Endpoint] = {}

    def add_seeds(self, addresses: Iterable[Endpoint]) -> None:
        for address in addresses:
            if len(self._seeds) < MAX_SEEDS:
                self._seeds.setdefault(Endpoint(*address), None)

    @property
    def has_seeds(self) -> bool:
        return bool(self._seeds)

    def tried(self, number: int, address: Endpoint) -> None:
        self._open[number] = address
        if len(self._open) > MAX_OPEN:
            del self._open[next(iter(self._open))]

    def answered(self, number: int, by: Replica) -> bool:
        """Whether that was one of these pings."""
        address = self._open.pop(number, None)
        if address is not None and address in self._seeds:
            self._seeds[address] = by
        return address is not None

    def came_back(self, number: int) -> None:
        """This node's own ping reached it: a seed list often names everybody. The ping stays open, so that whoever
        sends it back on purpose cannot hide the seed that answers it."""
        address = self._open.get(number)
        if address in self._seeds:
            self._seeds[address] = self._me

    def seeds_to_try(self, table: MemberTable) -> list[Endpoint]:
        occupied = {member.meta.cluster for member in table.here(but=self._me)} | {self.own_address}
        return [
            address
            for address, found in self._seeds.items()
            if address not in occupied and (found is None or not table.is_here(found))
        ]

    def to_try(self, table: MemberTable) -> list[tuple[Endpoint, Replica]]:
        """Where, and for whom the packet is: of a seed nobody knows who is there now."""
        seeds = [(address, ANYBODY) for address in self.seeds_to_try(table)]
        return seeds + [(member.meta.cluster, member.replica) for member in table.dead()]
