"""A simulated cluster of members on a simulated network: one heap of events, one seed, no real time. Packets are lost
or late, members pause and stop, paths are cut and healed, and every change of what a member believes is recorded."""

import heapq
import itertools
from collections.abc import Callable, Iterable
from random import Random
from typing import NamedTuple

import msgspec

from penstock.swim import (
    Conflict,
    Effect,
    GossipEndpoint,
    MemberChanged,
    MemberMeta,
    PacketRefused,
    SaveIncarnation,
    SendPacket,
    SendReliable,
    Session,
    State,
    Swim,
    SwimSettings,
)
from penstock.types import NodeId, Replica

KEY = b"the cluster's own key"
SALT = bytes(range(16))


def meta(node: int, folder: int = 0, **about: object) -> MemberMeta:
    fields: dict[str, object] = {
        "cluster_id": "cluster",
        "cluster": GossipEndpoint(f"10.0.0.{node}", 9192),
        **about,
    }
    return MemberMeta(node=node, folder_incarnation=folder or 1000 + node, **fields)  # type: ignore[arg-type]


class Belief(NamedTuple):
    """When one member began to believe that another is in a state."""

    time: float
    observer: int
    subject: int
    state: State


class Host:
    """A member, its inbox and its disk."""

    def __init__(self, about: MemberMeta, chance: Random, settings: SwimSettings, key: bytes | None) -> None:
        self.meta = about
        self.host_id = about.node
        """The address of its packets: the node's id, unless two hosts have the same one."""
        self.chance = chance
        self.settings = settings
        self.key = key
        self.saved_incarnation = -1
        self.boots = 0
        self.is_up = False
        self.paused_until = 0.0
        self.wakes_at = float("inf")
        self.alarm = -1
        """Number of the valid timer. A later timer that it replaced stays in the heap and is ignored."""
        self.delay = (0.0, 0.0)
        """Seconds that everything to and from it takes longer: too little CPU, a long queue."""
        self.core: Swim
        self.troubles: list[PacketRefused | Conflict] = []

    def boot(self, now: float) -> list[Effect]:
        self.boots += 1
        self.wakes_at = float("inf")
        self.is_up = True
        self.core = Swim(
            meta=self.meta,
            last_incarnation=self.saved_incarnation,
            epoch=self.boots,
            key=self.key,
            salt=self.chance.getrandbits(128).to_bytes(16, "big"),
            settings=self.settings,
            random=self.chance,
            now=now,
        )
        return self.core.start(now)

    def believes(self, node: int) -> State | None:
        """None: it does not know that node."""
        states = [member.state for member in self.core.members.values() if member.node == node]
        return min(states, default=None)


class SimulatedCluster:
    """All hosts, and the paths between them."""

    def __init__(
        self,
        count: int,
        *,
        seed: int,
        loss: float = 0.0,
        latency: tuple[float, float] = (0.001, 0.010),
        settings: SwimSettings | None = None,
        reliable: bool = True,
        records: bool = False,
    ) -> None:
        self.random = Random(seed)
        self.loss = loss
        self.latency = latency
        self.settings = settings or SwimSettings()
        self.has_reliable = reliable
        self.now = 0.0
        self.beliefs: list[Belief] = []
        self.packets_sent = 0
        self.records = records
        self.recorded: list[tuple[GossipEndpoint, GossipEndpoint, bytes]] = []
        """With `records`: every packet with its source and target, for tests that eavesdrop."""
        self._events: list[tuple[float, int, int, object]] = []
        self._order = itertools.count()
        self._sides: dict[int, int] = {}
        self.members: dict[int, Host] = {}
        for node in range(1, count + 1):
            self.add(meta(node))

    def add(self, about: MemberMeta, key: bytes | None = KEY) -> Host:
        host = Host(about, Random(self.random.random()), self.settings, key)
        self.members[about.node] = host
        return host

    def adds_a_copy(self, node: int, host_id: int) -> Host:
        """Copies the node's folder to another host, to be started there later than the original."""
        original = self.members[node]
        elsewhere = GossipEndpoint(f"10.0.1.{host_id}", 9192)
        about = msgspec.structs.replace(original.meta, cluster=elsewhere)
        copy = self.members[host_id] = Host(about, Random(self.random.random()), self.settings, KEY)
        copy.host_id, copy.boots, copy.saved_incarnation = host_id, original.boots, original.saved_incarnation
        return copy

    # Faults and time

    def is_connected(self) -> None:
        """Every host's handshake with every other. A copy gets none: the original had its connections before."""
        nodes = [host for host in self.up if host.host_id == host.meta.node]
        for one in nodes:
            for other in nodes:
                if one is not other:
                    session = Session(other.meta.replica, other.boots)
                    node = NodeId(other.meta.node)
                    self._carry_out(one, one.core.connected(self.now, node, session))

    def starts(self, nodes: Iterable[int] | None = None, seeds: Iterable[int] = (1,)) -> None:
        addresses = [self.members[seed].meta.cluster for seed in seeds]
        for node in nodes or list(self.members):
            host = self.members[node]
            self._carry_out(host, host.boot(self.now))
            self._carry_out(host, host.core.join(self.now, addresses))

    def stops(self, *nodes: int) -> None:
        for node in nodes:
            self.members[node].is_up = False

    def leaves(self, node: int) -> None:
        host = self.members[node]
        self._carry_out(host, host.core.leave(self.now))

    def pauses(self, node: int, duration: float) -> None:
        """It neither sends nor receives; packets that arrive meanwhile wait in its inbox."""
        self.members[node].paused_until = self.now + duration

    def is_cut(self, *sides: Iterable[int]) -> None:
        """Only members of one side reach each other."""
        self._sides = {node: index for index, side in enumerate(sides) for node in side}

    def is_healed(self) -> None:
        self._sides = {}

    def passes(self, duration: float) -> None:
        end = self.now + duration
        while self._events and self._events[0][0] <= end:
            time, _, node, what = heapq.heappop(self._events)
            host = self.members[node]
            if not host.is_up:
                continue
            if host.paused_until > time:
                self._put(host.paused_until, node, what)
                continue
            self.now = max(self.now, time)
            self._happens(host, what)
        self.now = end

    def _happens(self, host: Host, what: object) -> None:
        core = host.core
        match what:
            case ("packet", source, data):
                self._carry_out(host, core.step(self.now, source, data))
            case ("frame", sender, data):
                self._carry_out(host, core.step_reliable(self.now, sender, data))
            case ("tick", alarm) if alarm == host.alarm:
                host.wakes_at = float("inf")
                due = core.next_deadline <= self.now
                self._carry_out(host, core.tick(self.now) if due else [])

    def _carry_out(self, host: Host, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendPacket(to=to, data=data):
                    self._send(host, to, data)
                case SendReliable(to=to, data=data):
                    self._send_reliable(host, to, data)
                case MemberChanged(member=member, state=state):
                    self.beliefs.append(Belief(self.now, host.meta.node, member.node, state))
                case SaveIncarnation(incarnation=incarnation):
                    host.saved_incarnation = incarnation
                case PacketRefused() | Conflict():
                    host.troubles.append(effect)
        if host.core.next_deadline < host.wakes_at:
            host.wakes_at = host.core.next_deadline
            host.alarm = next(self._order)
            self._put(max(self.now, host.wakes_at), host.host_id, ("tick", host.alarm))

    def _send(self, sender: Host, to: GossipEndpoint, data: bytes) -> None:
        assert len(data) <= self.settings.max_packet_bytes
        self.packets_sent += 1
        if self.records:
            self.recorded.append((sender.meta.cluster, to, data))
        for host in self._reached(sender, to):
            if self.random.random() >= self.loss:
                arrival = self._arrival(sender, host)
                self._put(arrival, host.host_id, ("packet", sender.meta.cluster, data))

    def _send_reliable(self, sender: Host, to: NodeId | GossipEndpoint, data: bytes) -> None:
        connected = self.has_reliable and sender.host_id == sender.meta.node  # a copy never is
        for host in self._reached(sender, to) if connected else ():
            frame = ("frame", NodeId(sender.meta.node), data)
            self._put(self._arrival(sender, host), host.host_id, frame)

    def _reached(self, sender: Host, to: NodeId | GossipEndpoint) -> list[Host]:
        here = self._sides.get(sender.meta.node)
        return [
            host
            for host in self.members.values()
            if to in (host.host_id, host.meta.cluster) and self._sides.get(host.meta.node) == here
        ]

    def _arrival(self, *both: Host) -> float:
        delays = sum(self.random.uniform(*host.delay) for host in both)
        return self.now + self.random.uniform(*self.latency) + delays

    def _put(self, time: float, node: int, what: object) -> None:
        heapq.heappush(self._events, (time, next(self._order), node, what))

    # Observations

    @property
    def up(self) -> list[Host]:
        return [host for host in self.members.values() if host.is_up]

    def all_see(self, node: int, state: State | None) -> bool:
        others = (host for host in self.up if host.meta.node != node)
        return all(host.believes(node) is state for host in others)

    @property
    def agrees_that_all_are_alive(self) -> bool:
        return all(self.all_see(host.meta.node, State.ALIVE) for host in self.up)

    def deaths(self, since: float = 0.0) -> list[Belief]:
        return [belief for belief in self.beliefs if belief.state is State.DEAD and belief.time >= since]

    def passes_until(self, claim_holds: Callable[[], bool], limit: float, step: float = 0.5) -> float:
        """Lets time pass until the claim holds, and returns how long that took. Fails after `limit` seconds."""
        begin = self.now
        while not claim_holds():
            assert self.now - begin < limit, f"not within {limit} s"
            self.passes(step)
        return self.now - begin


def replica(node: int, folder: int = 0) -> Replica:
    return Replica(NodeId(node), folder or 1000 + node)
