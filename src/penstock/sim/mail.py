"""The network between bare cores: it may lose, repeat, delay and reorder what it carries, and every direction of every
link can be cut.

Worse than what a node's transport promises, on purpose: Raft holds without order, and the core level is where that is
shown. (`network.py` has the faithful one, for whole nodes.)
"""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

import msgspec

from penstock.raft import Message
from penstock.sim.scheduler import Process, Scheduler
from penstock.sim.weather import Weather
from penstock.types import Replica


class Mail:
    """Carries bytes from one process to another."""

    def __init__(self, scheduler: Scheduler, random: Random, weather: Weather) -> None:
        self._scheduler = scheduler
        self._random = random
        self._weather = weather
        self._cut: dict[tuple[str, str], int] = {}
        """How many cuts lie on each direction of a link."""
        self.calm = False
        """Nothing is lost, repeated or late any more."""
        self.sent = 0
        self.lost = 0

    def cut(self, sender: str, receiver: str) -> None:
        self._cut[sender, receiver] = self._cut.get((sender, receiver), 0) + 1

    def join(self, sender: str, receiver: str) -> None:
        count = self._cut.get((sender, receiver), 0) - 1
        if count > 0:
            self._cut[sender, receiver] = count
        else:
            self._cut.pop((sender, receiver), None)

    def heal(self) -> None:
        self._cut.clear()
        self.calm = True

    def is_cut(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) in self._cut

    def send_late(self, receiver: Process, deliver: Callable[..., object], *args: object) -> None:
        """Once, and when nobody counts on it any more."""
        self.sent += 1
        self._scheduler.deliver(self._random.uniform(0.3, 3.0), receiver, deliver, *args)

    def send(self, sender: Process, receiver: Process, deliver: Callable[..., object], *args: object) -> None:
        """`deliver` is called in the receiver, later, perhaps, perhaps twice."""
        self.sent += 1
        if self.is_cut(sender.name, receiver.name):
            self.lost += 1
            return
        weather, random = self._weather, self._random
        if self.calm:
            self._scheduler.deliver(weather.latency_s, receiver, deliver, *args)
            return
        if random.random() < weather.loss:
            self.lost += 1
            return
        self._scheduler.deliver(self._delay(), receiver, deliver, *args)
        if weather.repeats and random.random() < weather.repeats:
            self._scheduler.deliver(self._delay(), receiver, deliver, *args)

    def _delay(self) -> float:
        weather, random = self._weather, self._random
        if weather.late and random.random() < weather.late:
            return weather.latency_s + random.random() * weather.late_s
        return weather.latency_s * (0.5 + random.random())


class Received(NamedTuple):
    """A line of the trace, worded when somebody reads it."""

    sender: Replica
    message: Message

    def __str__(self) -> str:
        fields = (
            f"{name}={f'{len(value)} bytes' if isinstance(value, bytes) else value}"
            for name, value in msgspec.structs.asdict(self.message).items()
        )
        return f"<- n{self.sender.node} {type(self.message).__name__}({', '.join(fields)})"
