"""Datagrams between simulated nodes: lost, delayed, repeated and out of order, at the rates of the fault mix."""

from random import Random

from penstock.node.membership.datagrams import Receive
from penstock.sim.loop import NodeLoop
from penstock.sim.network import Cuts
from penstock.sim.scheduler import Process, Scheduler
from penstock.swim import GossipEndpoint


class SimDatagrams:
    """All datagrams of a world."""

    def __init__(
        self, scheduler: Scheduler, random: Random, cuts: Cuts, *, loss: float, repeats: float
    ) -> None:
        self._scheduler = scheduler
        self._random = random
        self._cuts = cuts
        self.loss = loss
        self.repeats = repeats
        self.sent = 0
        self._open: dict[GossipEndpoint, SimSocket] = {}

    def at_node(self, process: Process, loop: NodeLoop) -> "NodeDatagrams":
        return NodeDatagrams(self, process, loop)

    def bind(self, socket: "SimSocket") -> None:
        self._open[socket.local] = socket

    def carry(self, sender: "SimSocket", to: GossipEndpoint, data: bytes) -> None:
        self.sent += 1
        receiver = self._open.get(to)
        if receiver is None or not receiver.is_alive:
            return
        if not self._cuts.is_open(sender.process.name, receiver.process.name):
            return
        copies = 1 + (self._random.random() < self.repeats)
        for _ in range(copies):
            if self._random.random() >= self.loss:
                delay = self._random.expovariate(1 / 0.005)
                self._scheduler.at(
                    self._scheduler.time + delay, receiver.process, receiver.receive, sender.local, data
                )


class NodeDatagrams:
    """The seam that one life of a node gets."""

    def __init__(self, world: SimDatagrams, process: Process, loop: NodeLoop) -> None:
        self._world = world
        self._process = process
        self._loop = loop

    async def open(self, bind: GossipEndpoint, receive: Receive) -> "SimSocket":
        socket = SimSocket(self._world, self._process, self._loop, bind, receive)
        self._world.bind(socket)
        return socket


class SimSocket:
    def __init__(
        self, world: SimDatagrams, process: Process, loop: NodeLoop, local: GossipEndpoint, receive: Receive
    ) -> None:
        self._world = world
        self.process = process
        self._life = process.life
        self._loop = loop
        self.local = local
        self._receive = receive
        self._closed = False

    @property
    def is_alive(self) -> bool:
        """Whether the process that opened it has not crashed since."""
        return self.process.life == self._life

    def send(self, to: GossipEndpoint, data: bytes) -> None:
        if not self._closed:
            self._world.carry(self, to, data)

    def receive(self, sender: GossipEndpoint, data: bytes) -> None:
        if not self._closed:
            self._loop.enter(self._receive, sender, data)

    def close(self) -> None:
        self._closed = True
