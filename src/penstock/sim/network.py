"""The network between simulated nodes. Like TCP it has one connection per pair of nodes, whose frames arrive whole and
in order or not at all.

Its faults are those of connections. A cut delays frames; when it lasts longer than the silence that nodes tolerate, the
connection ends and the frames under way are lost. The connections of a process that dies are reset at once; a machine
that loses power falls silent. A reset loses all frames under way. A node that wants a connection tries again until both
directions are open.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from random import Random

from penstock.config import Address
from penstock.errors import ProtocolViolation
from penstock.node.peers import Body, PeerHello, TransportEvents
from penstock.node.peers.handshake import NEWEST_VERSION
from penstock.sim.loop import NodeLoop
from penstock.sim.scheduler import Process, Scheduler
from penstock.types import NodeId

DIAL_S = 0.15
SILENCE_S = 1.0
"""A peer that has been silent for so long counts as gone."""


class Cuts:
    """Which directions between machines are closed."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}

    def cut(self, sender: str, receiver: str) -> None:
        self._counts[sender, receiver] = self._counts.get((sender, receiver), 0) + 1

    def join(self, sender: str, receiver: str) -> None:
        if self._counts.get((sender, receiver), 0) > 1:
            self._counts[sender, receiver] -= 1
        else:
            self._counts.pop((sender, receiver), None)

    def heal(self) -> None:
        self._counts.clear()

    def is_open(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) not in self._counts


class Wires:
    """All connections of a world."""

    def __init__(
        self, scheduler: Scheduler, random: Random, cuts: Cuts, latency: Callable[[str, str], float]
    ) -> None:
        self.scheduler = scheduler
        self.random = random
        self.cuts = cuts
        self.latency = latency
        self.refusals = 0.0
        """How often a transport says that too much waits already."""
        self.frames = 0
        self.lost = 0
        self._listening: dict[Address, SimTransport] = {}
        self._wires: dict[tuple[NodeId, NodeId], Wire] = {}
        scheduler.after(SILENCE_S / 4, None, self._sweep)

    def listen(self, transport: "SimTransport") -> None:
        self._listening[transport.hello.cluster] = transport

    def at(self, address: Address) -> "SimTransport | None":
        found = self._listening.get(address)
        return found if found is not None and found.is_up else None

    def connect(self, caller: "SimTransport", address: Address) -> None:
        """A call that may get through."""
        other = self.at(address)
        if other is None:
            return
        if other is caller:
            caller.found(address, caller.hello)
            return
        if not (self._is_open(caller, other) and self._is_open(other, caller)) or other.process.paused:
            return
        key = _pair(caller.hello.node, other.hello.node)
        old = self._wires.get(key)
        if old is not None and old.joins(caller, other):
            caller.found(address, other.hello)
            return
        if old is not None:
            old.fall(0.0)
        ids = (caller.hello.cluster_id, other.hello.cluster_id)
        if None not in ids and ids[0] != ids[1]:
            return
        self._wires[key] = Wire(self, caller, other, address)

    def _is_open(self, sender: "SimTransport", receiver: "SimTransport") -> bool:
        return self.cuts.is_open(sender.process.name, receiver.process.name)

    def forget(self, wire: "Wire") -> None:
        if self._wires.get(wire.key) is wire:
            del self._wires[wire.key]

    def process_died(self, process: Process) -> None:
        """The system closes its connections, and the others hear of it if anything of it reaches them."""
        for wire in [wire for wire in self._wires.values() if wire.has(process)]:
            wire.fall(0.001)

    def refuses(self) -> bool:
        return self.refusals > 0 and self.random.random() < self.refusals

    def reset_some(self) -> None:
        """One connection breaks."""
        if self._wires:
            keys = sorted(self._wires)
            self._wires[self.random.choice(keys)].fall(0.0)

    def _sweep(self) -> None:
        for wire in list(self._wires.values()):
            wire.check_silence()
        self.scheduler.after(SILENCE_S / 4, None, self._sweep)


class End:
    """One side of a connection."""

    def __init__(self, transport: "SimTransport", now: float) -> None:
        self.transport = transport
        self.life = transport.process.life
        self.heard_at = now
        self.arrives_at = now
        """When the last frame towards it arrives: the next one does not overtake it."""
        self.held: deque[tuple[int, bytes]] = deque()
        """Frames towards it that a cut holds back."""

    @property
    def is_alive(self) -> bool:
        return self.transport.process.life == self.life and self.transport.is_up


class Wire:
    """One connection of two nodes."""

    def __init__(self, wires: Wires, caller: "SimTransport", other: "SimTransport", address: Address) -> None:
        self._wires = wires
        self.key = _pair(caller.hello.node, other.hello.node)
        now = wires.scheduler.time
        self._ends = {caller.hello.node: End(caller, now), other.hello.node: End(other, now)}
        self.is_up = True
        self._tell_up(other, caller, None)
        self._tell_up(caller, other, address)

    def _tell_up(self, one: "SimTransport", other: "SimTransport", dialled: Address | None) -> None:
        end = self._ends[one.hello.node]
        end.arrives_at += self._wires.latency(other.process.name, one.process.name)
        self._wires.scheduler.at(
            end.arrives_at, one.process, one.loop.enter, one.came_up, self, other.hello, dialled
        )

    def has(self, process: Process) -> bool:
        return any(end.transport.process is process for end in self._ends.values())

    def joins(self, one: "SimTransport", other: "SimTransport") -> bool:
        """Whether it is up and these very lives of them are its ends."""
        ends = [end.transport for end in self._ends.values() if end.is_alive]
        return self.is_up and one in ends and other in ends

    # --- frames

    def send(self, sender: NodeId, kind: int, body: bytes) -> None:
        end = self._towards(sender)
        self._wires.frames += 1
        if end.held or not self._wires.cuts.is_open(self._name(sender), end.transport.process.name):
            end.held.append((kind, body))
            return
        self._carry(sender, end, kind, body)

    def _carry(self, sender: NodeId, end: End, kind: int, body: bytes) -> None:
        scheduler, receiver = self._wires.scheduler, end.transport
        latency = self._wires.latency(self._name(sender), receiver.process.name)
        end.arrives_at = max(end.arrives_at, scheduler.time + latency)
        scheduler.at(end.arrives_at, receiver.process, receiver.loop.enter, self._arrive, sender, kind, body)

    def _arrive(self, sender: NodeId, kind: int, body: bytes) -> None:
        end = self._towards(sender)
        receiver = end.transport
        # A machine that lost its power and is back knows nothing of a connection that its peer takes to be there.
        if not self.is_up or not end.is_alive or receiver.wire_to(sender) is not self:
            self._wires.lost += 1
            return
        self._wires.scheduler.note(
            receiver.process.name, f"<- n{sender} kind {kind}, {len(body)} bytes", body
        )
        try:
            receiver.events.on_frame(sender, kind, memoryview(body))
        except ProtocolViolation as violation:
            self._wires.scheduler.note(receiver.process.name, f"closes n{sender}: {violation}")
            self.fall(0.0)

    def tell_hello(self, sender: NodeId, hello: PeerHello) -> None:
        """Facts that have changed, in order with the frames."""
        end = self._towards(sender)
        latency = self._wires.latency(self._name(sender), end.transport.process.name)
        end.arrives_at = max(end.arrives_at, self._wires.scheduler.time + latency)
        receiver = end.transport
        self._wires.scheduler.at(
            end.arrives_at, receiver.process, receiver.loop.enter, receiver.heard_hello, self, hello
        )

    def _towards(self, sender: NodeId) -> End:
        """The end that is not the sender's."""
        return self._ends[self.key[1] if sender == self.key[0] else self.key[0]]

    def _name(self, node: NodeId) -> str:
        return self._ends[node].transport.process.name

    # --- silence and the end

    def check_silence(self) -> None:
        now = self._wires.scheduler.time
        for node in self.key:
            end, other = self._ends[node], self._towards(node)
            is_open = self._wires.cuts.is_open(other.transport.process.name, end.transport.process.name)
            if is_open and other.is_alive and not other.transport.process.paused:
                end.heard_at = now
                self._release(self.key[0] if node == self.key[1] else self.key[1], end)
            elif now - end.heard_at > SILENCE_S:
                self.fall(0.0)
                return

    def _release(self, sender: NodeId, end: End) -> None:
        """The cut is over: what it held back goes on its way."""
        while end.held:
            self._carry(sender, end, *end.held.popleft())

    def fall(self, delay: float) -> None:
        """The connection ends: both sides hear of it soon, and nothing more of each other by it."""
        if not self.is_up:
            return
        self.is_up = False
        self._wires.forget(self)
        for node in self.key:
            end = self._ends[node]
            self._wires.lost += len(end.held)
            other = self._towards(node).transport.hello.node
            if end.is_alive:
                latency = delay + self._wires.latency("", end.transport.process.name)
                transport = end.transport
                self._wires.scheduler.after(
                    latency, transport.process, transport.loop.enter, transport.went_down, self, other
                )


class SimTransport:
    """One node's side of the network, for one life of it."""

    def __init__(
        self,
        wires: Wires,
        process: Process,
        loop: NodeLoop,
        hello: PeerHello,
        events: TransportEvents,
        *,
        audit: Callable[[NodeId, int, bytes], None],
    ) -> None:
        """`audit` sees every frame before it leaves."""
        self._audit = audit
        self._wires = wires
        self.process = process
        self.loop = loop
        self.hello = hello
        self.events = events
        self._life = process.life
        self._started = False
        self._peers: dict[NodeId, Address] = {}
        self._seeds: dict[Address, NodeId | None] = {}
        """The addresses to connect to, and the node that was found at each."""
        self._connected: dict[NodeId, PeerHello] = {}
        self._up: dict[NodeId, Wire] = {}

    @property
    def is_up(self) -> bool:
        return self._started and self.process.life == self._life

    def wire_to(self, node: NodeId) -> Wire | None:
        return self._up.get(node)

    # --- Transport

    async def start(self) -> None:
        self._started = True
        self._wires.listen(self)
        self._dial()

    async def stop(self) -> None:
        for wire in list(self._up.values()):
            wire.fall(0.0)
        self._started = False

    def send(self, to: NodeId, kind: int, body: Body) -> bool:
        wire = self._up.get(to)
        if wire is None or not wire.is_up or self._wires.refuses():
            return False
        data = b"".join(body) if isinstance(body, list) else bytes(body)
        self._audit(to, kind, data)
        wire.send(self.hello.node, kind, data)
        return True

    def connected(self) -> Mapping[NodeId, PeerHello]:
        return self._connected

    def version_of(self, node: NodeId) -> int:
        return NEWEST_VERSION if node in self._connected else 0

    def introduce(self, me: PeerHello) -> None:
        self.hello = me
        for wire in self._up.values():
            wire.tell_hello(me.node, me)

    def set_peers(self, peers: Mapping[NodeId, Address]) -> None:
        self._peers = {node: address for node, address in peers.items() if node != self.hello.node}

    def dial_seeds(self, addresses: Iterable[Address]) -> None:
        for address in addresses:
            self._seeds.setdefault(address, None)

    # --- calling

    def _dial(self) -> None:
        if not self.is_up:
            return
        for node, address in sorted(self._peers.items()):
            if node not in self._up:
                self._wires.connect(self, address)
        for address, found in list(self._seeds.items()):
            if found is None or (found not in self._up and found != self.hello.node):
                self._wires.connect(self, address)
        self.loop.call_later(DIAL_S * (0.5 + self._wires.random.random()), self._dial)

    def found(self, address: Address, hello: PeerHello) -> None:
        """The address belongs to a node that is known by another one already, or to this node itself."""
        if address in self._seeds and hello.node in (self.hello.node, *self._connected):
            self._seeds[address] = hello.node
            self.events.on_hello(hello, address)

    # --- what wires tell, on this node's loop

    def came_up(self, wire: Wire, hello: PeerHello, dialled: Address | None) -> None:
        if not wire.is_up:
            return
        old = self._up.get(hello.node)
        if old is not None:
            self.went_down(old, hello.node)
        self._up[hello.node] = wire
        self._connected[hello.node] = hello
        if dialled in self._seeds:
            self._seeds[dialled] = hello.node
        self.events.on_hello(hello, dialled)
        self.events.on_up(hello.node)

    def heard_hello(self, wire: Wire, hello: PeerHello) -> None:
        if self._up.get(hello.node) is wire:
            self._connected[hello.node] = hello
            self.events.on_hello(hello, None)

    def went_down(self, wire: Wire, node: NodeId) -> None:
        if self._up.get(node) is wire:
            del self._up[node]
            del self._connected[node]
            self.events.on_down(node)


def _pair(one: NodeId, other: NodeId) -> tuple[NodeId, NodeId]:
    return (one, other) if one < other else (other, one)
