"""Faults that both levels inject: of machines, links and disks, each at random, at the rate of the seed's mix."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Generic, TypeVar

from penstock.sim.machine import SimMachine
from penstock.sim.network import Cuts
from penstock.sim.outcome import EventCounts
from penstock.sim.scheduler import Scheduler

M = TypeVar("M", bound=SimMachine)

Fault = tuple[float, Callable[[], None]]
"""How often it occurs, per second, and what it does."""


class FaultInjector(ABC, Generic[M]):
    """Injects faults until `over` is set."""

    PAUSES_S: Sequence[float]
    CUTS_S: Sequence[float]
    SLOW_DISK_S: float
    FULL_DISK_S: Sequence[float]
    FREE_BYTES: Sequence[int]
    """Left on a disk that becomes full."""

    def __init__(
        self,
        scheduler: Scheduler,
        tally: EventCounts,
        random: Random,
        machines: list[M],
        cuts: Cuts,
        power_cut: Callable[[M], None],
    ) -> None:
        self._scheduler = scheduler
        self._tally = tally
        self._random = random
        self._machines = machines
        self._cuts = cuts
        self._cut_power = power_cut
        self.over = False

    def _plan_all(self, faults: Iterable[Fault], scale: float = 1.0) -> None:
        for rate, act in faults:
            if rate:
                self._plan(rate * scale, act)

    def _plan(self, rate: float, act: Callable[[], None]) -> None:
        self._scheduler.after(self._random.expovariate(rate), None, self._strike, rate, act)

    def _strike(self, rate: float, act: Callable[[], None]) -> None:
        if not self.over:
            act()
            self._plan(rate, act)

    def _note(self, name: str, who: str) -> None:
        self._tally.add(name)
        self._scheduler.note(who, f"*** {name}")

    # --- victims

    @abstractmethod
    def _leads(self, machine: M) -> bool:
        """Whether a running machine has a leader."""

    def _running(self) -> list[M]:
        return [machine for machine in self._machines if machine.running]

    def _victim(self) -> M | None:
        """A machine with a leader in half of the cases: it has most to lose."""
        running = self._running()
        leading = [machine for machine in running if self._leads(machine)]
        if leading and self._random.random() < 0.5:
            return self._random.choice(leading)
        return self._random.choice(running) if running else None

    # --- machines

    def _power_cut(self) -> None:
        if (machine := self._victim()) is not None:
            self._note("power cut", machine.name)
            self._cut_power(machine)

    def _blackout(self) -> None:
        self._note("blackout", "all")
        for machine in self._running():
            self._cut_power(machine)

    def _pause(self) -> None:
        machine = self._victim()
        if machine is not None and not machine.paused:
            self._note("pause", machine.name)
            machine.paused = True
            seconds = self._random.choice(self.PAUSES_S)
            self._scheduler.after(seconds, None, self._resume, machine, machine.life)

    def _resume(self, machine: M, life: int) -> None:
        if machine.paused and machine.life == life:
            self._scheduler.resume(machine)

    # --- links

    def _isolate(self) -> None:
        if (machine := self._victim()) is not None:
            self._isolate_one(machine)

    @abstractmethod
    def _isolate_one(self, machine: M) -> None:
        """Cuts a machine off from all others, or from all but one; in both directions or in one."""

    def _cut_off(self, machine: M, others: Iterable[M], directions: str) -> None:
        for other in others:
            if directions != "in":
                self._cut_link(machine, other)
            if directions != "out":
                self._cut_link(other, machine)

    def _others(self, machine: M) -> list[M]:
        return [other for other in self._machines if other is not machine]

    def _cut(self) -> None:
        one, other = self._random.sample(self._machines, 2)
        self._note("directed cut", f"{one.name}>{other.name}")
        self._cut_link(one, other)

    def _cut_link(self, sender: M, receiver: M) -> None:
        self._cuts.cut(sender.name, receiver.name)
        seconds = self._random.choice(self.CUTS_S)
        self._scheduler.after(seconds, None, self._cuts.join, sender.name, receiver.name)

    def _deafen(self, machine: M) -> None:
        """A leader that hands over must not learn too soon of its successor."""
        for other in self._others(machine):
            if not self.over:
                self._cut_link(other, machine)

    # --- disks

    def _slow_disk(self) -> None:
        if (machine := self._victim()) is not None:
            self._note("slow disk", machine.name)
            machine.slow_until = self._scheduler.time + self.SLOW_DISK_S

    def _full_disk(self) -> None:
        if (machine := self._victim()) is not None:
            self._note("full disk", machine.name)
            machine.disk.capacity = machine.disk.used() + self._random.choice(self.FREE_BYTES)
            self._scheduler.after(self._random.choice(self.FULL_DISK_S), None, self._free_disk, machine)

    def _free_disk(self, machine: M) -> None:
        machine.disk.capacity = None
