"""Faults of the ring level: each occurs at random, at the rate of the seed's mix."""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from penstock.sim.scheduler import Process

if TYPE_CHECKING:
    from penstock.sim.ring_worker import RingWorker
    from penstock.sim.ring_world import RingWorld

PAUSES_S = (0.5, 2.5, 7.0)
"""Shorter than a lease, longer, and longer than several."""
DEAF_S = (0.5, 1.9, 4.0)
NEWCOMERS_S = (0.5, 3.0, 8.0)
PROCESSES_MAX = 8


class RingFaults:
    """Injects faults until `over` is set."""

    def __init__(self, world: "RingWorld", random: Random) -> None:
        self._world = world
        self._scheduler = world.scheduler
        self._random = random
        self.over = False

    def begin(self) -> None:
        mix = self._world.mix
        faults: tuple[tuple[float, Callable[[], None]], ...] = (
            (mix.crash, self._crash),
            (mix.leave, self._leave),
            (mix.newcomer, self._newcomer),
            (mix.namesake, self._namesake),
            (mix.pause, self._pause),
            (mix.deaf, self._deaf),
            (mix.drop_session, self._drop_session),
            (mix.fail_over, self._fail_over),
            (mix.coordinator_pause, self._pause_coordinator),
            (mix.leader_crash, self._crash_leader),
            (mix.leader_deaf, self._deafen_leader),
        )
        for rate, act in faults:
            if rate:
                self._plan(rate, act)

    def _plan(self, rate: float, act: Callable[[], None]) -> None:
        self._scheduler.after(self._random.expovariate(rate), None, self._strike, rate, act)

    def _strike(self, rate: float, act: Callable[[], None]) -> None:
        if not self.over:
            act()
            self._plan(rate, act)

    def _note(self, name: str, who: str) -> None:
        self._world.tally.add(name)
        self._scheduler.note(who, f"*** {name}")

    # --- workers

    def _victim(self) -> "RingWorker | None":
        up = self._world.up
        return self._random.choice(up) if up else None

    def _crash(self) -> None:
        if (worker := self._victim()) is not None:
            self._note("crash", worker.name)
            worker.crash()
            self._start_again(worker.core.worker)

    def _start_again(self, name: str) -> None:
        seconds = self._random.random() * self._world.mix.restart_s
        self._scheduler.after(seconds, None, self._start, name)

    def _start(self, name: str) -> None:
        """Under the same name, unless the world has ended its faults and started it already."""
        if not self.over and len(self._world.up) < PROCESSES_MAX:
            self._world.start(name)

    def _leave(self) -> None:
        if (worker := self._victim()) is not None and not worker.paused:
            self._note("leave", worker.name)
            worker.leave()
            self._start_again(worker.core.worker)

    def _newcomer(self) -> None:
        if len(self._world.up) < PROCESSES_MAX:
            worker = self._world.start(f"n{self._random.randrange(100)}")
            self._note("newcomer", worker.name)
            self._scheduler.after(self._random.choice(NEWCOMERS_S), None, self._end, worker)

    def _end(self, worker: "RingWorker") -> None:
        """Half of the newcomers leave, the others just end. Some of them do so after the faults have ended, and a
        namesake may be the only process of its worker then: another one starts. In a clique that loses all its
        processes nobody would be left to judge leases."""
        if not worker.is_up:
            return
        if worker.paused or self._random.random() < 0.5:
            worker.crash()
        else:
            worker.leave()
        if self.over:
            self._world.start_missing()

    def _namesake(self) -> None:
        worker = self._victim()
        if worker is not None and len(self._world.up) < PROCESSES_MAX:
            self._note("namesake", worker.core.worker)
            other = self._world.start(worker.core.worker)
            self._scheduler.after(self._random.choice(NEWCOMERS_S), None, self._end, other)

    # --- pauses

    def _pause(self) -> None:
        if (worker := self._victim()) is not None and not worker.paused:
            self._note("pause", worker.name)
            self._world.witness.excuse(worker)
            self._sleep(worker)

    def _sleep(self, process: Process) -> None:
        process.paused = True
        seconds = self._random.choice(PAUSES_S)
        self._scheduler.after(seconds, None, self._resume, process, process.life)

    def _resume(self, process: Process, life: int) -> None:
        if process.paused and process.life == life:
            self._scheduler.resume(process)

    def resume_all(self) -> None:
        for process in (*self._world.up, *self._world.coordinators.nodes, self._world.leader):
            if process.paused:
                self._scheduler.resume(process)

    def _pause_coordinator(self) -> None:
        leader = self._world.coordinators.leader
        if not leader.paused:
            self._note("coordinator paused", leader.name)
            self._sleep(leader)

    # --- links

    def _deaf(self) -> None:
        if (worker := self._victim()) is not None:
            self._note("deaf", worker.name)
            self._cut_off(worker)

    def _cut_off(self, process: Process) -> None:
        """From whatever keeps the state of the clique, in one direction or both."""
        seconds = self._random.choice(DEAF_S)
        direction = self._random.choice(("in", "out", "both"))
        cuts = self._world.network.cuts
        for other in (*(node.name for node in self._world.coordinators.nodes), "cell"):
            if direction != "in":
                cuts.cut(process.name, other)
                self._scheduler.after(seconds, None, cuts.join, process.name, other)
            if direction != "out":
                cuts.cut(other, process.name)
                self._scheduler.after(seconds, None, cuts.join, other, process.name)

    def _drop_session(self) -> None:
        sessions = self._world.leader.sessions
        if sessions:
            session = self._random.choice(sessions)
            self._note("session dropped", session.worker.name)
            session.break_off(self._random)

    # --- nodes

    def _fail_over(self) -> None:
        self._note("coordinator fails over", self._world.coordinators.leader.name)
        self._world.coordinators.fail_over()

    def _crash_leader(self) -> None:
        self._note("leader crashed", "leader")
        self._world.leader.crash()

    def _deafen_leader(self) -> None:
        self._note("leader deaf", "leader")
        self._cut_off(self._world.leader)
