"""Contacts: addresses to try although no member is known to be there.

Gossip alone never heals a cluster that was cut in two for longer than dead members get gossip: each half takes the
other for dead and no longer sends to it. So seeds and dead members are tried for ever, at a low rate. A node that knows
no other member tries more of them, and more often.
"""

from collections.abc import Iterable

from penstock.swim.packets import ANY_RECEIVER
from penstock.swim.table import MemberTable
from penstock.swim.values import GossipEndpoint
from penstock.types import Replica

MAX_OPEN = 256
"""Pings to contacts that may still be answered. The oldest is forgotten first."""
MAX_SEEDS = 100


class Contacts:
    """Seeds, the members that answered there, and the pings that are under way."""

    def __init__(self, me: Replica, own_address: GossipEndpoint) -> None:
        self._me = me
        self.own_address = own_address
        self._seeds: dict[GossipEndpoint, Replica | None] = {}
        """Each with the member that answered there last: a member's own address may differ from the seed's."""
        self._open: dict[int, GossipEndpoint] = {}

    def add_seeds(self, addresses: Iterable[GossipEndpoint]) -> None:
        for address in addresses:
            if len(self._seeds) < MAX_SEEDS:
                self._seeds.setdefault(GossipEndpoint(*address), None)

    @property
    def has_seeds(self) -> bool:
        return bool(self._seeds)

    def tried(self, number: int, address: GossipEndpoint) -> None:
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
        """This node's own ping reached itself: a seed list often includes the node. The ping stays open, so that a peer
        that sends it back on purpose cannot hide the seed that answers it."""
        address = self._open.get(number)
        if address in self._seeds:
            self._seeds[address] = self._me

    def seeds_to_try(self, table: MemberTable) -> list[GossipEndpoint]:
        occupied = {member.meta.cluster for member in table.present(but=self._me)} | {self.own_address}
        return [
            address
            for address, found in self._seeds.items()
            if address not in occupied and (found is None or not table.is_present(found))
        ]

    def to_try(self, table: MemberTable) -> list[tuple[GossipEndpoint, Replica]]:
        """Addresses and receivers. Which member is at a seed's address is unknown, so its receiver is ANY_RECEIVER."""
        seeds = [(address, ANY_RECEIVER) for address in self.seeds_to_try(table)]
        return seeds + [(member.meta.cluster, member.replica) for member in table.dead()]
