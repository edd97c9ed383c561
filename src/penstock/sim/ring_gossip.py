"""Cliques without a coordinator: views that gossip, and messages that are forwarded to owners.

Such a clique promises less. Two members may see different members for a while, but a message never goes in a circle,
the dead do not come back, a newcomer takes nothing before it knows the others, and when the faults have ended all
members see the same clique and every message reaches its owner.
"""

from collections.abc import Callable
from random import Random

from penstock.ring import SLOTS, routing, slot_of
from penstock.ring.gossip import decode_gossip, encode_gossip
from penstock.ring.routing import HOPS_MAX, ForwardTo, Hold, Refuse, RunHere
from penstock.ring.view import View, ViewSettings
from penstock.sim.lossy_network import LossyNetwork
from penstock.sim.outcome import EventCounts, Violation
from penstock.sim.ring_mix import draw_ring_mix
from penstock.sim.scheduler import Event, Process, Scheduler

FAULTS_S = 20.0
HEALING_S = 60.0
MAX_EVENTS = 100_000
SETTINGS = ViewSettings(probe_ms=300, suspicion_ms=1_500, announce_ms=600)
PAUSES_S = (0.3, 1.2, 6.0)
CUTS_S = (0.5, 2.0, 5.0)
RESEND_S = 0.4
CALM_NEWCOMER_S = 4.0
"""How long the clique is watched while one more member joins in the end."""


class Item:
    """A message on its way to its owner; its first holder keeps it until it was handled."""

    __slots__ = ("is_done", "number", "slot")

    def __init__(self, number: int, slot: int) -> None:
        self.number = number
        self.slot = slot
        self.is_done = False


class GossipWorker(Process):
    """One process: a view, and the messages that it got from the carrier."""

    def __init__(self, world: "GossipWorld", name: str, worker: str, random: Random) -> None:
        super().__init__(name)
        self._world = world
        self._random = random
        self.is_up = True
        self.view = View(
            worker=worker,
            member_id=name,
            incarnation=int(world.scheduler.time * 1000) + len(world.workers),
            now_ms=self.now_ms,
            settings=SETTINGS,
        )
        self._timer: Event | None = None
        self.heard: set[str] = set()
        """The members that have spoken to this one themselves."""
        self._dropped: dict[str, int] = {}
        """The highest incarnation in which each member was dropped."""
        self._known: dict[str, int] = {}
        """The incarnations of the members that it sees."""
        self.items: list[Item] = []
        """Those that it got from the carrier and has not seen handled."""
        self._tick()
        world.scheduler.after(RESEND_S, self, self._retry)

    @property
    def now_ms(self) -> float:
        return self._world.scheduler.time * 1000

    def end(self, *, leaves: bool) -> None:
        if leaves:
            self.view.leave()
            self._send_gossip()
        self.is_up = False
        self._world.scheduler.crash(self)

    # --- gossip

    def _tick(self) -> None:
        self.view.tick(self.now_ms)
        self._after_step()

    def hear(self, data: bytes) -> None:
        if self.is_up:
            gossip = decode_gossip(data)
            self.heard.add(gossip.member_id)
            self.view.received(gossip, self.now_ms)
            self._after_step()

    def _after_step(self) -> None:
        self._send_gossip()
        if self.view.is_replaced:
            self._world.replaced(self)
            return
        if self._timer is not None:
            self._timer.cancel()
        seconds = max(0.001, (self.view.next_deadline_ms - self.now_ms) / 1000)
        self._timer = self._world.scheduler.after(seconds, self, self._tick)

    def _send_gossip(self) -> None:
        for worker, gossip in self.view.take():
            data = encode_gossip(gossip)
            for other in self._world.up:
                if other is not self and worker in (None, other.view.worker):
                    self._world.network.send(self, other, other.hear, data)

    def check(self) -> None:
        """The dead do not come back: neither by a late message of theirs, nor because others speak of them."""
        known = {peer.member_id: peer.incarnation for peer in self.view.peers.values()}
        for member_id in self._known.keys() - known.keys():
            self._dropped[member_id] = self._known[member_id]
        for member_id, incarnation in known.items():
            if incarnation <= self._dropped.get(member_id, -1):
                raise Violation(
                    "a dead member does not come back", f"{self.name} sees {member_id} in {incarnation} again"
                )
            if member_id not in self.heard:
                raise Violation("a member is known by its own word", f"{self.name} sees {member_id}")
        self._known = known

    # --- messages

    def take(self, item: Item) -> None:
        """From the carrier."""
        self.items.append(item)
        self.route(item, 0)

    def route(self, item: Item, hops: int) -> None:
        if not self.is_up:
            return
        if hops > HOPS_MAX:
            raise Violation("a message does not go in a circle", f"message {item.number} makes hop {hops}")
        match routing.route(self.view.table, self.view.member_id, item.slot, hops):
            case RunHere():
                item.is_done = True
                self._world.tally.add("handled")
            case ForwardTo(member_id=member_id):
                self._world.tally.add("forwarded")
                owner = self._world.process(member_id)
                self._world.network.send(self, owner, owner.route, item, hops + 1)
            case Hold() | Refuse():
                self._world.tally.add("held or refused")

    def _retry(self) -> None:
        """Sends items that were not handled again, by the table that is known now."""
        self.items = [item for item in self.items if not item.is_done]
        for item in self.items:
            self.route(item, 0)
        self._world.scheduler.after(RESEND_S, self, self._retry)


class GossipWorld:
    """One seed of a clique without a coordinator."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.seed = seed
        self._random = self.random_for("world")
        self.mix = draw_ring_mix(self.random_for("weather"))
        self.scheduler = Scheduler(max_events=MAX_EVENTS, tracing=tracing)
        self.scheduler.watch = self._watch
        self.tally = EventCounts()
        self.network = LossyNetwork(self.scheduler, self.random_for("mail"), self.mix)
        self.is_calm = False
        self.workers: list[GossipWorker] = []
        self._by_id: dict[str, GossipWorker] = {}
        self._routes = self.random_for("routes")
        self.names = [f"w{number}" for number in range(self._random.choice((2, 3, 5)))]
        self._items: list[Item] = []
        self._newcomer: GossipWorker | None = None
        """The one that joins the healthy clique in the end."""
        for name in self.names:
            self.scheduler.after(self._random.random(), None, self.start, name)

    def random_for(self, name: str) -> Random:
        return Random(f"{self.seed}/gossip/{name}")

    @property
    def up(self) -> list[GossipWorker]:
        return [worker for worker in self.workers if worker.is_up]

    def process(self, member_id: str) -> GossipWorker:
        return self._by_id[member_id]

    def start(self, name: str) -> GossipWorker:
        worker = GossipWorker(self, f"{name}#{len(self.workers) + 1}", name, self.random_for(name))
        self.workers.append(worker)
        self._by_id[worker.name] = worker
        self.scheduler.note(worker.name, "*** started")
        return worker

    def replaced(self, worker: GossipWorker) -> None:
        """A later process has its name."""
        self._note("replaced", worker)
        worker.end(leaves=False)

    # --- running

    def run(self) -> None:
        for rate, act in (
            (self.mix.crash, self._crash),
            (self.mix.leave, self._leave),
            (self.mix.pause, self._pause),
            (self.mix.deaf, self._cut),
        ):
            if rate:
                self._plan(rate * 2, act)
        self._publish()
        self.scheduler.run(FAULTS_S)
        self._heal()
        self._come_to_rest()
        self._welcome_newcomer()

    def _plan(self, rate: float, act: Callable[[GossipWorker], None]) -> None:
        self.scheduler.after(self._random.expovariate(rate), None, self._strike, rate, act)

    def _strike(self, rate: float, act: Callable[[GossipWorker], None]) -> None:
        if not self.is_calm and self.up:
            act(self._random.choice(self.up))
            self._plan(rate, act)

    def _publish(self) -> None:
        item = Item(len(self._items), slot_of(str(self._random.randrange(1000)).encode()))
        self._items.append(item)
        if self.up:
            self._random.choice(self.up).take(item)
        else:
            item.is_done = True
        if self.scheduler.time < FAULTS_S:
            self.scheduler.after(self._random.random() * 0.2, None, self._publish)

    # --- faults

    def _note(self, name: str, worker: GossipWorker) -> None:
        self.tally.add(name)
        self.scheduler.note(worker.name, f"*** {name}")

    def _crash(self, worker: GossipWorker) -> None:
        self._note("crash", worker)
        self._stop(worker, leaves=False)

    def _leave(self, worker: GossipWorker) -> None:
        if not worker.paused:
            self._note("leave", worker)
            self._stop(worker, leaves=True)

    def _stop(self, worker: GossipWorker, *, leaves: bool) -> None:
        """It comes back under its name, sooner or later; its messages go to another one."""
        worker.end(leaves=leaves)
        for item in worker.items:
            self.scheduler.after(0.5, None, self._redeliver, item)
        seconds = self._random.choice((0.3, 2.0, 6.0)) * self._random.random()
        self.scheduler.after(seconds, None, self._start_again, worker.view.worker)

    def _redeliver(self, item: Item) -> None:
        if self.up:
            self._random.choice(self.up).take(item)
        else:
            self.scheduler.after(0.5, None, self._redeliver, item)

    def _start_again(self, name: str) -> None:
        if not self.is_calm and not any(worker.view.worker == name for worker in self.up):
            self.start(name)

    def _pause(self, worker: GossipWorker) -> None:
        if not worker.paused:
            self._note("pause", worker)
            worker.paused = True
            self.scheduler.after(self._random.choice(PAUSES_S), None, self._resume, worker, worker.life)

    def _resume(self, worker: GossipWorker, life: int) -> None:
        if worker.paused and worker.life == life:
            self.scheduler.resume(worker)

    def _cut(self, worker: GossipWorker) -> None:
        """From some of the others, in one direction or both."""
        self._note("cut", worker)
        seconds = self._random.choice(CUTS_S)
        for other in self.up:
            for sender, receiver in ((worker.name, other.name), (other.name, worker.name)):
                if self._random.random() < 0.6:
                    self.network.cuts.cut(sender, receiver)
                    self.scheduler.after(seconds, None, self.network.cuts.join, sender, receiver)

    # --- the end

    def _heal(self) -> None:
        self.scheduler.note("all", "*** the faults end")
        self.is_calm = True
        self.network.heal()
        for worker in self.up:
            if worker.paused:
                self.scheduler.resume(worker)
        for name in self.names:
            if not any(worker.view.worker == name for worker in self.up):
                self.start(name)

    def _come_to_rest(self) -> None:
        deadline = self.scheduler.time + HEALING_S
        while not self._is_at_rest():
            if self.scheduler.time >= deadline:
                raise Violation("a healthy clique comes to rest", self._unrest())
            self.scheduler.run(self.scheduler.time + 0.5)

    def _is_at_rest(self) -> bool:
        names = {worker.view.worker for worker in self.up}
        tables = [worker.view.table for worker in self.up]
        agreed = len({table.owners for table in tables if table is not None}) == 1 and None not in tables
        known = all(worker.view.members == names for worker in self.up)
        return agreed and known and all(item.is_done for item in self._items)

    def _unrest(self) -> str:
        views = {worker.name: sorted(worker.view.members) for worker in self.up}
        return f"{views}, {sum(not item.is_done for item in self._items)} undone messages"

    def _welcome_newcomer(self) -> None:
        self._newcomer = self.start("newcomer")
        self.scheduler.run(self.scheduler.time + CALM_NEWCOMER_S)
        self._come_to_rest()
        self.tally.add("messages", len(self._items))
        self.tally.add("network messages", self.network.sent)

    # --- checks after every event

    def _watch(self, process: Process) -> None:
        assert isinstance(process, GossipWorker)
        if not process.is_up:
            return
        process.check()
        self._check_route(process, self._routes.randrange(SLOTS))
        if process is self._newcomer:
            self._check_share(process)

    def _check_route(self, first: GossipWorker, slot: int) -> None:
        """A message for this slot, forwarded by what each member believes now."""
        at, hops = first, 0
        while True:
            step = routing.route(at.view.table, at.view.member_id, slot, hops)
            if not isinstance(step, ForwardTo):
                return
            at, hops = self.process(step.member_id), hops + 1
            if hops > HOPS_MAX:
                raise Violation("a message does not go in a circle", f"from {first.name} for slot {slot}")

    def _check_share(self, newcomer: GossipWorker) -> None:
        table = newcomer.view.table
        share = 0 if table is None else len(table.granted_to(newcomer.name))
        if share > 1.25 * SLOTS / len(self.up):
            raise Violation(
                "a newcomer takes nothing before it knows the clique",
                f"{newcomer.name} claims {share} slots beside {len(self.up) - 1} others",
            )
