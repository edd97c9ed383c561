"""The ring level: workers of one clique, whatever keeps its state, and the leader that hands out its messages.

A seed determines everything. Its faults last for some seconds of virtual time, while messages are published and
handled. Then the faults end, all workers must become members that own even shares, and every message must have been
handled.
"""

from random import Random

from penstock.ring import Heartbeat, slot_of
from penstock.sim.lossy_network import LossyNetwork
from penstock.sim.outcome import EventCounts, Violation
from penstock.sim.ring_checks import RingWitness
from penstock.sim.ring_faults import RingFaults
from penstock.sim.ring_leader import RingLeader
from penstock.sim.ring_membership import Cell, Coordinators, Membership
from penstock.sim.ring_mix import draw_ring_mix
from penstock.sim.ring_worker import RingWorker
from penstock.sim.scheduler import Process, Scheduler

FAULTS_S = 25.0
HEALING_S = 90.0
MAX_EVENTS = 100_000
NODES = 2
CELL_CHANCE = 0.3
"""How often the state is in a cell with compare-and-set, and not with a coordinator."""
CELL_LATENCY_S = 0.01
"""With a longer latency there is no cell. One change takes two round trips, in which no other may succeed, so members
whose heartbeats fill that time keep others out: docs/cliques.md says how many a cell has room for."""


class RingWorld:
    """One seed of the ring level."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.seed = seed
        self._random = self.random_for("world")
        self.mix = draw_ring_mix(self.random_for("weather"))
        self.scheduler = Scheduler(max_events=MAX_EVENTS, tracing=tracing)
        self.tally = EventCounts()
        self._is_worst = self._random.random() < 0.5
        self.witness = RingWitness()
        self.network = LossyNetwork(self.scheduler, self.random_for("mail"), self.mix)
        self.is_calm = False
        """The faults have ended."""
        self.coordinators = Coordinators(self, self.random_for("coordinators"), self._rates(NODES, worst=1))
        has_cell = self._random.random() < CELL_CHANCE and self.mix.latency_s <= CELL_LATENCY_S
        self.membership: Membership = Cell(self, self.random_for("cell")) if has_cell else self.coordinators
        self.leader = RingLeader(self, self.random_for("leader"))
        self.workers: list[RingWorker] = []
        """All processes that were ever started; most are down in the end."""
        self.witness.claimants = lambda: self.up
        self.names = [f"w{number}" for number in range(self._random.choice((2, 3, 4)))]
        for name in self.names:
            self.scheduler.after(self._random.random(), None, self.start, name)
        self.keys = [f"k{number}" for number in range(self.mix.keys)]
        self.faults = RingFaults(self, self.random_for("faults"))

    def random_for(self, name: str) -> Random:
        """A separate generator for each part, so that a change in one part does not change the others."""
        return Random(f"{self.seed}/ring/{name}")

    def _rates(self, count: int, worst: int) -> list[float]:
        """`worst`: 1 or -1, the direction in which a clock endangers leases; chance rarely makes all of them so."""
        drift, random = self.mix.clock_drift, self._random
        return [1 + drift * (worst if self._is_worst else random.uniform(-1, 1)) for _ in range(count)]

    # --- workers

    def start(self, name: str) -> RingWorker:
        number = len(self.workers) + 1
        random = self.random_for(f"worker {number}")
        (rate,) = self._rates(1, worst=-1)
        worker = RingWorker(self, f"{name}#{number}", name, random, rate)
        self.workers.append(worker)
        self.scheduler.note(worker.name, "*** started")
        return worker

    @property
    def up(self) -> list[RingWorker]:
        return [worker for worker in self.workers if worker.is_up]

    def is_running(self, process: Process, heartbeat: Heartbeat) -> bool:
        return (
            isinstance(process, RingWorker)
            and process.is_up
            and process.core.member_id == heartbeat.member_id
        )

    def clock_of(self, process: Process) -> float:
        assert isinstance(process, RingWorker)
        return process.now_ms

    # --- running

    def run(self) -> None:
        self.faults.begin()
        self._publish()
        self.scheduler.run(FAULTS_S)
        self._heal()
        self._come_to_rest()
        self._finish()

    def _publish(self) -> None:
        key = self._random.choice(self.keys)
        self.witness.published(key, slot_of(key.encode()))
        self.scheduler.deliver(0.0, self.leader, self.leader.read)
        wait = self.mix.publish_every_s * (0.5 + self._random.random())
        if self.scheduler.time + wait < FAULTS_S:
            self.scheduler.after(wait, None, self._publish)

    def _heal(self) -> None:
        self.scheduler.note("all", "*** the faults end")
        self.is_calm = True
        self.faults.over = True
        self.network.heal()
        self.faults.resume_all()
        staying = {worker.core.worker: worker for worker in self.up if not worker.core.leaving}
        for worker in self.up:
            if staying.get(worker.core.worker, worker) is not worker:
                worker.crash()  # of several processes with one name the last one goes on
        self.start_missing()

    def start_missing(self) -> None:
        """Starts a process for each worker that has none, or only one that leaves."""
        staying = {worker.core.worker for worker in self.up if not worker.core.leaving}
        for name in self.names:
            if name not in staying:
                self.start(name)

    def _come_to_rest(self) -> None:
        deadline = self.scheduler.time + HEALING_S
        while not self._is_at_rest():
            if self.scheduler.time >= deadline:
                raise Violation("a healthy clique comes to rest", self._unrest())
            self.scheduler.run(self.scheduler.time + 0.5)

    def _is_at_rest(self) -> bool:
        state = self.witness.state
        if state is None or state.revoked or not self.leader.is_done:
            return False
        staying = {worker.core.member_id for worker in self.up if not worker.core.leaving}
        members = {member.member_id for member in state.members.values()}
        is_complete = state.members.keys() >= set(self.names)
        return is_complete and members == staying and len(staying) == len(self.up)

    def _unrest(self) -> str:
        state = self.witness.state
        undone = [str(message) for message in self.witness.messages if not message.completed]
        members = sorted(state.members) if state is not None else []
        return (
            f"members {members}, {len(state.revoked) if state else 0} slots on their way, processes "
            f"{[worker.name for worker in self.up]}, {len(undone)} undone messages {undone[:5]}, settled "
            f"{self.leader.queue.start_offset} of {len(self.witness.messages)}"
        )

    def _finish(self) -> None:
        """At least once."""
        for message in self.witness.messages:
            if not message.completed:
                raise Violation("every message is handled", f"{message} was acknowledged and never handled")
        self.tally.add("messages", len(self.witness.messages))
        self.tally.add("handled again", sum(each.completed - 1 for each in self.witness.messages))
        self.tally.add("network messages", self.network.sent)
        self.tally.add("processes", len(self.workers))
