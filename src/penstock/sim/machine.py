"""A computer of either level: its process and its disk."""

from random import Random

from penstock.sim.disk import SimDisk
from penstock.sim.scheduler import Process


class SimMachine(Process):
    """One process, which may be down, and one disk."""

    def __init__(self, name: str, random: Random) -> None:
        super().__init__(name)
        self.random = random
        self.disk = SimDisk(random.getrandbits(32))
        self.running = False
        self.slow_until = 0.0

    def lose_power(self) -> None:
        """Its process is dead already."""
        capacity = self.disk.capacity
        self.disk = self.disk.after_power_cut(self.random.getrandbits(32))
        self.disk.capacity = capacity

    def heal(self) -> None:
        """Its disk works again."""
        self.disk.capacity = None
        self.disk.forgive()
        self.slow_until = 0.0
