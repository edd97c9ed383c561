"""A village of members on a made-up network: one heap of events, one seed, no real time. Packets get lost and late,
members pause and stop, paths are cut and mended, and everything that anybody came to believe is written down."""

import heapq
import itertools
from collections.abc import Callable, Iterable
from random import Random
from typing import NamedTuple

import msgspec

from penstock.swim import (
    Conflict,
    Effect,
    Endpoint,
    MemberChanged,
    MemberMeta,
    Refused,
    SaveIncarnation,
    SendPacket,
    SendReliable,
    Session,
    State,
    Swim,
    SwimSettings,
)
from penstock.types import NodeId, Replica

KEY = b"the village's own key"


def meta(node: int, folder: int = 0, **about: object) -> MemberMeta:
    fields: dict[str, object] = {
        "cluster_id": "village",
        "cluster": Endpoint(f"10.0.0.{node}", 9192),
        **about,
    }
    return MemberMeta(node=node, folder_incarnation=folder or 1000 + node, **fields)  # type: ignore[arg-type]


class Belief(NamedTuple):
    """At a time, one member came to hold another for something."""

    time: float
    observer: int
    subject: int
    state: State


class Villager:
    """A member, its post box and its disk."""

    def __init__(self, about: MemberMeta, chance: Random, settings: SwimSettings, key: bytes | None) -> None:
        self.meta = about
        self.house = about.node
        """By which its post finds it: the node's id, unless two have the same one."""
        self.chance = chance
        self.settings = settings
        self.key = key
        self.saved_incarnation = -1
        self.boots = 0
        self.is_up = False
        self.paused_until = 0.0
        self.wakes_at = float("inf")
        self.alarm = -1
        """The only one that still counts: an alarm that is set to earlier leaves the later one to ring in vain."""
        self.delay = (0.0, 0.0)
        """Seconds that everything to and from it takes longer: too little CPU, a long queue."""
        self.core: Swim
        self.troubles: list[Refused | Conflict] = []

    def boot(self, now: float) -> list[Effect]:
        self.boots += 1
        self.wakes_at = float("inf")
        self.is_up = True
        self.core = Swim(
            meta=self.meta,
            last_incarnation=self.saved_incarnation,
            epoch=self.boots,
            key=self.key,
            settings=self.settings,
            random=self.chance,
            now=now,
        )
        return self.core.start(now)

    def believes(self, node: int) -> State | None:
        """None: it never heard of that node."""
        states = [member.state for member in self.core.members.values() if member.node == node]
        return min(states, default=None)


class Village:
    """All of them, and the paths between them."""

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
        self.recorded: list[tuple[Endpoint, Endpoint, bytes]] = []
        """With `records`: every packet with its source and target, for those who listen at the wire."""
        self._events: list[tuple[float, int, int, object]] = []
        self._order = itertools.count()
        self._sides: dict[int, int] = {}
        self.members: dict[int, Villager] = {}
        for node in range(1, count + 1):
            self.add(meta(node))

    def add(self, about: MemberMeta, key: bytes | None = KEY) -> Villager:
        villager = Villager(about, Random(self.random.random()), self.settings, key)
        self.members[about.node] = villager
        return villager

    def adds_a_copy(self, node: int, house: int) -> Villager:
        """Somebody copies the node's folder and starts it elsewhere, later than the original."""
        original = self.members[node]
        elsewhere = Endpoint(f"10.0.1.{house}", 9192)
        about = msgspec.structs.replace(original.meta, cluster=elsewhere)
        copy = self.members[house] = Villager(about, Random(self.random.random()), self.settings, KEY)
        copy.house, copy.boots, copy.saved_incarnation = house, original.boots, original.saved_incarnation
        return copy

    # What happens to the village

    def is_connected(self) -> None:
        """Everybody's handshake with everybody else. A copy gets none: the original had its connections before."""
        nodes = [villager for villager in self.up if villager.house == villager.meta.node]
        for one in nodes:
            for other in nodes:
                if one is not other:
                    session = Session(other.meta.replica, other.boots)
                    node = NodeId(other.meta.node)
                    self._carry_out(one, one.core.connected(self.now, node, session))

    def starts(self, nodes: Iterable[int] | None = None, seeds: Iterable[int] = (1,)) -> None:
        addresses = [self.members[seed].meta.cluster for seed in seeds]
        for node in nodes or list(self.members):
            villager = self.members[node]
            self._carry_out(villager, villager.boot(self.now))
            self._carry_out(villager, villager.core.join(self.now, addresses))

    def stops(self, *nodes: int) -> None:
        for node in nodes:
            self.members[node].is_up = False

    def leaves(self, node: int) -> None:
        villager = self.members[node]
        self._carry_out(villager, villager.core.leave(self.now))

    def pauses(self, node: int, duration: float) -> None:
        """It neither sends nor hears; what comes meanwhile waits in its post box."""
        self.members[node].paused_until = self.now + duration

    def is_cut(self, *sides: Iterable[int]) -> None:
        """Only members of one side reach each other."""
        self._sides = {node: index for index, side in enumerate(sides) for node in side}

    def is_mended(self) -> None:
        self._sides = {}

    def passes(self, duration: float) -> None:
        end = self.now + duration
        while self._events and self._events[0][0] <= end:
            time, _, node, what = heapq.heappop(self._events)
            villager = self.members[node]
            if not villager.is_up:
                continue
            if villager.paused_until > time:
                self._put(villager.paused_until, node, what)
                continue
            self.now = max(self.now, time)
            self._happens(villager, what)
        self.now = end

    def _happens(self, villager: Villager, what: object) -> None:
        core = villager.core
        match what:
            case ("packet", source, data):
                self._carry_out(villager, core.step(self.now, source, data))
            case ("frame", sender, data):
                self._carry_out(villager, core.step_reliable(self.now, sender, data))
            case ("tick", alarm) if alarm == villager.alarm:
                villager.wakes_at = float("inf")
                due = core.next_deadline <= self.now
                self._carry_out(villager, core.tick(self.now) if due else [])

    def _carry_out(self, villager: Villager, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendPacket(to=to, data=data):
                    self._send(villager, to, data)
                case SendReliable(to=to, data=data):
                    self._send_reliable(villager, to, data)
                case MemberChanged(member=member, state=state):
                    self.beliefs.append(Belief(self.now, villager.meta.node, member.node, state))
                case SaveIncarnation(incarnation=incarnation):
                    villager.saved_incarnation = incarnation
                case Refused() | Conflict():
                    villager.troubles.append(effect)
        if villager.core.next_deadline < villager.wakes_at:
            villager.wakes_at = villager.core.next_deadline
            villager.alarm = next(self._order)
            self._put(max(self.now, villager.wakes_at), villager.house, ("tick", villager.alarm))

    def _send(self, sender: Villager, to: Endpoint, data: bytes) -> None:
        assert len(data) <= self.settings.max_packet_bytes
        self.packets_sent += 1
        if self.records:
            self.recorded.append((sender.meta.cluster, to, data))
        for villager in self._reached(sender, to):
            if self.random.random() >= self.loss:
                arrival = self._arrival(sender, villager)
                self._put(arrival, villager.house, ("packet", sender.meta.cluster, data))

    def _send_reliable(self, sender: Villager, to: NodeId | Endpoint, data: bytes) -> None:
        connected = self.has_reliable and sender.house == sender.meta.node  # a copy never is
        for villager in self._reached(sender, to) if connected else ():
            frame = ("frame", NodeId(sender.meta.node), data)
            self._put(self._arrival(sender, villager), villager.house, frame)

    def _reached(self, sender: Villager, to: NodeId | Endpoint) -> list[Villager]:
        here = self._sides.get(sender.meta.node)
        return [
            villager
            for villager in self.members.values()
            if to in (villager.house, villager.meta.cluster) and self._sides.get(villager.meta.node) == here
        ]

    def _arrival(self, *both: Villager) -> float:
        delays = sum(self.random.uniform(*villager.delay) for villager in both)
        return self.now + self.random.uniform(*self.latency) + delays

    def _put(self, time: float, node: int, what: object) -> None:
        heapq.heappush(self._events, (time, next(self._order), node, what))

    # What can be said of it

    @property
    def up(self) -> list[Villager]:
        return [villager for villager in self.members.values() if villager.is_up]

    def everybody_sees(self, node: int, state: State | None) -> bool:
        others = (villager for villager in self.up if villager.meta.node != node)
        return all(villager.believes(node) is state for villager in others)

    @property
    def agrees_that_all_are_alive(self) -> bool:
        return all(self.everybody_sees(villager.meta.node, State.ALIVE) for villager in self.up)

    def deaths(self, since: float = 0.0) -> list[Belief]:
        return [belief for belief in self.beliefs if belief.state is State.DEAD and belief.time >= since]

    def passes_until(self, claim_holds: Callable[[], bool], limit: float, step: float = 0.5) -> float:
        """Lets time pass until the claim holds; how long that took. Fails when it does not within `limit` seconds."""
        begin = self.now
        while not claim_holds():
            assert self.now - begin < limit, f"not within {limit} s"
            self.passes(step)
        return self.now - begin


def replica(node: int, folder: int = 0) -> Replica:
    return Replica(NodeId(node), folder or 1000 + node)
