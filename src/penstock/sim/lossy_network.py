"""The network between bare cores: it may lose, repeat, delay and reorder messages, and each direction of each link can
be cut.

It is worse than a node's transport on purpose: Raft is correct without ordered delivery, and the core level shows that.
(`network.py` models TCP connections, for whole nodes.)
"""

from collections.abc import Callable
from random import Random
from typing import NamedTuple, Protocol

import msgspec

from penstock.raft import Message
from penstock.sim.network import Cuts
from penstock.sim.scheduler import Process, Scheduler
from penstock.types import Replica


class NetworkFaults(Protocol):
    """The part of a mix of faults that is about the network; see `fault_mix.FaultMix`."""

    @property
    def latency_s(self) -> float: ...
    @property
    def loss(self) -> float: ...
    @property
    def repeats(self) -> float: ...
    @property
    def late(self) -> float: ...
    @property
    def late_s(self) -> float: ...


class LossyNetwork:
    """Carries messages from one process to another."""

    def __init__(self, scheduler: Scheduler, random: Random, mix: NetworkFaults) -> None:
        self._scheduler = scheduler
        self._random = random
        self._mix = mix
        self.cuts = Cuts()
        self.calm = False
        """No message is lost, repeated or delayed any more."""
        self.sent = 0
        self.lost = 0

    def heal(self) -> None:
        self.cuts.heal()
        self.calm = True

    def send_late(self, receiver: Process, deliver: Callable[..., object], *args: object) -> None:
        """Delivers the message once, up to three seconds later."""
        self.sent += 1
        self._scheduler.deliver(self._random.uniform(0.3, 3.0), receiver, deliver, *args)

    def send(self, sender: Process, receiver: Process, deliver: Callable[..., object], *args: object) -> None:
        """`deliver` is called in the receiver, later, perhaps, perhaps twice."""
        self.sent += 1
        if not self.cuts.is_open(sender.name, receiver.name):
            self.lost += 1
            return
        mix, random = self._mix, self._random
        if self.calm:
            self._scheduler.deliver(mix.latency_s, receiver, deliver, *args)
            return
        if random.random() < mix.loss:
            self.lost += 1
            return
        self._scheduler.deliver(self._delay(), receiver, deliver, *args)
        if mix.repeats and random.random() < mix.repeats:
            self._scheduler.deliver(self._delay(), receiver, deliver, *args)

    def _delay(self) -> float:
        mix, random = self._mix, self._random
        if mix.late and random.random() < mix.late:
            return mix.latency_s + random.random() * mix.late_s
        return mix.latency_s * (0.5 + random.random())


class MessageReceived(NamedTuple):
    """A line of the trace, formatted when it is printed."""

    sender: Replica
    message: Message

    def __str__(self) -> str:
        fields = (
            f"{name}={f'{len(value)} bytes' if isinstance(value, bytes) else value}"
            for name, value in msgspec.structs.asdict(self.message).items()
        )
        return f"<- n{self.sender.node} {type(self.message).__name__}({', '.join(fields)})"
