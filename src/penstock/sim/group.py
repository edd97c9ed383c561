"""The core level: one group of bare cores with real logs, first with faults, then without.

A seed determines everything. It makes the group and injects its mix of faults for some seconds of virtual time while
clients write and read. Then the faults end, all replicas must converge, and every promise to clients must hold.
"""

from collections.abc import Callable
from random import Random
from uuid import UUID

from penstock.config import TopicConfig
from penstock.errors import CorruptLog, StorageError
from penstock.raft import GroupConfig, RaftSettings, Role
from penstock.sim.checks import Witness
from penstock.sim.clients import PlainProducer, Producer, Reader
from penstock.sim.disk import SimDisk
from penstock.sim.fault_mix import draw
from penstock.sim.faults import Faults
from penstock.sim.history import History
from penstock.sim.lossy_network import LossyNetwork
from penstock.sim.outcome import EventCounts, Violation
from penstock.sim.replica import Machine
from penstock.sim.scheduler import Process, Scheduler
from penstock.types import GroupId, NodeId, Replica

FAULTS_S = 6.0
HEALING_S = 30.0
LOOK_EVERY_S = 0.25
MATCHING_EVERY_S = 2.0
NEWCOMER_CHANCE = 0.25
MAX_EVENTS = 40_000
"""Ten times what a busy seed needs."""


SETTINGS = RaftSettings(
    election_timeout_s=0.4,
    heartbeat_interval_s=0.1,
    resend_timeout_s=0.15,
    prefix_timeout_s=0.5,
    catch_up_timeout_s=3.0,
    clock_drift=0.35,
    max_append_bytes=600,
    max_inflight_messages=4,
    max_inflight_bytes=1800,
    max_uncommitted_bytes=20_000,
)
"""Small windows, so that a seed fills and empties them often. A drift that no real clock has, so that the margin which
a leader leaves for it is longer than an election takes."""
CLOCK_DRIFT = 0.2
"""How much faster or slower than the scheduler's clock a machine's runs at most, where the mix has drift at all:
(1 - 0.35) / (1 - 0.2) is a little less than 1 / (1 + 0.2)."""

TOPIC = TopicConfig(segment_bytes=4000, index_interval_bytes=500)


class GroupWorld:
    """One seed of the core level: machines, network, clients, faults and checks."""

    def __init__(self, seed: int, *, nodes: int | None = None, tracing: bool = False) -> None:
        self.seed = seed
        self._random = self.random_for("world")
        self._halts = self.random_for("halts")
        self.mix = draw(self.random_for("weather"))
        self.scheduler = Scheduler(max_events=MAX_EVENTS, tracing=tracing)
        self.tally = EventCounts()
        self.settings = SETTINGS
        self.topic = TOPIC
        self.group = GroupId(UUID(int=1), 0)
        self.folder = "topics/sim-0"
        self.history = History()
        self.witness = Witness(self.group, self, self.folder)
        self.network = LossyNetwork(self.scheduler, self.random_for("mail"), self.mix)
        self.founding: GroupConfig | None = None
        self.rotten: Machine | None = None
        """The machine whose disk is damaged: at most one."""
        self._old_disks: dict[Replica, SimDisk] = {}
        self.calm = False
        """The faults have ended."""
        self.producers_pause_until = 0.0
        self.required_replicas = self.random_for("required replicas").choice((1, 2, 3, 4))
        founders = nodes or self._random.choice((3, 3, 5))
        spares = self._random.choice((0, 1, 2)) if self.mix.reconfigure else 0
        self.machines = [
            Machine(self, NodeId(number), self.random_for(f"machine {number}"), rate)
            for number, rate in enumerate(self._clock_rates(founders + spares), start=1)
        ]
        self._found(founders)
        self.faults = Faults(self, self.random_for("faults"))
        self.producers: list[Producer | PlainProducer] = [
            (Producer if number <= 2 else PlainProducer)(self, number, self.random_for(f"producer {number}"))
            for number in range(1, 4)
        ]
        self.readers = [Reader(self, number, self.random_for(f"reader {number}")) for number in range(1, 3)]

    @property
    def keyed(self) -> bool:
        return False

    @property
    def servers(self) -> list[Machine]:
        return self.machines

    def random_for(self, name: str) -> Random:
        """A separate generator for each part, so that a change in one part does not change the others."""
        return Random(f"{self.seed}/{name}")

    def _clock_rates(self, count: int) -> list[float]:
        """Chance rarely makes one clock slow and all others fast, which is where a lease has least to spare."""
        random, drift = self.random_for("clocks"), CLOCK_DRIFT if self.mix.clock_drift else 0.0
        if random.random() < 0.5:
            return [1 + random.uniform(-1, 1) * drift for _ in range(count)]
        slow = random.randrange(count)
        return [1 - drift if number == slow else 1 + drift for number in range(count)]

    def _found(self, founders: int) -> None:
        """Starts each machine once to get its identity, and again with the identities of all."""
        for machine in self.machines:
            machine.start()
            machine.stop()
            machine.disk.process_died()
        self.founding = GroupConfig(tuple(machine.me for machine in self.machines[:founders]))
        for machine in self.machines:
            machine.start()
        self.scheduler.watch = self._watch

    # --- running

    def run(self) -> None:
        self.faults.begin()
        self._wake_clients()
        self._look_now_and_then()
        self.scheduler.run(FAULTS_S)
        self._heal()
        self._converge(writing_s=0.5)
        self._finish()
        if self._random.random() < NEWCOMER_CHANCE:
            self._check_newcomer()

    def _watch(self, process: Process) -> None:
        assert isinstance(process, Machine)
        if process.running:
            self.witness.look(process)

    def _look_now_and_then(self) -> None:
        self.witness.check_leases()
        if self.scheduler.time % MATCHING_EVERY_S < LOOK_EVERY_S:
            self.witness.check_matching([machine for machine in self.machines if machine.running])
        self.scheduler.after(LOOK_EVERY_S, None, self._look_now_and_then)

    def _wake_clients(self) -> None:
        if self.calm or self.scheduler.time >= self.producers_pause_until:
            for producer in self.producers:
                producer.wake()
        for reader in self.readers:
            reader.wake()
        wait = self.mix.write_every_s * (0.5 + self._random.random())
        self.scheduler.after(wait, None, self._wake_clients)

    # --- what happens to machines

    def disk_of(self, replica: Replica) -> SimDisk | None:
        if replica in self._old_disks:
            return self._old_disks[replica]
        return next((machine.disk for machine in self.machines if machine.me == replica), None)

    def folders_of(self, replica: Replica, folder: str) -> list[str]:
        return [folder]

    def running(self, replica: Replica) -> Machine | None:
        return next((one for one in self.machines if one.running and one.me == replica), None)

    def aim(self, machine: Machine, chance: float) -> None:
        """Plans a crash that hits the machine during its present work."""
        if not self.calm and chance and self._random.random() < chance:
            delay = self._random.choice((0.0, self.mix.flush_s * self._random.random(), 0.02))
            cut = self._random.random() < 0.7
            self.scheduler.after(delay, machine, self._hit, machine, cut)

    def _hit(self, machine: Machine, cut: bool) -> None:
        self.tally.add("aimed crash")
        self.scheduler.note(machine.name, "*** aimed crash")
        if cut:
            self.power_cut(machine)
        else:
            self.kill(machine)

    def kill(self, machine: Machine) -> None:
        """The process dies and the machine keeps running: nothing is lost unless a flush had failed before. Even then
        the system may still show what is lost."""
        self._stop(machine)
        machine.disk.process_died()

    def power_cut(self, machine: Machine) -> None:
        self._stop(machine)
        machine.lose_power()

    def restart_halted(self, machine: Machine) -> None:
        """The machine starts again, or only the process: then the system may still show bytes that the disk lost."""
        if self._halts.random() < 0.5:
            self.kill(machine)
        else:
            self.power_cut(machine)

    def wipe(self, machine: Machine) -> None:
        """It will come back as another replica."""
        self._stop(machine)
        self.replace_disk(machine)

    def replace_disk(self, machine: Machine) -> None:
        self._old_disks[machine.me] = machine.disk
        machine.disk = SimDisk(machine.random.getrandbits(32))
        if machine is self.rotten:
            self.rotten = self.witness.rotten = None

    def _stop(self, machine: Machine) -> None:
        if not machine.running:
            return
        machine.stop()
        self.witness.forget(machine.me)
        wait = self._random.random() * self.mix.restart_s
        self.scheduler.after(wait, None, self._start, machine, machine.life)

    def _start(self, machine: Machine, life: int) -> None:
        if machine.running or machine.life != life:
            return
        try:
            machine.start()
        except CorruptLog as problem:
            if machine is not self.rotten:
                raise Violation("a crash never looks like rot", f"{machine.name}: {problem}") from problem
            self.tally.add("rot found at start")
            self.replace_disk(machine)
            machine.start()
        except StorageError:
            # Its disk fails while it starts.
            self.tally.add("halts for a failed disk")
            machine.running = True
            self.restart_halted(machine)
            return
        self.witness.look(machine)

    def rots(self, machine: Machine) -> None:
        """The damage may be found when the log is opened, by a peer that is sent the entry, or not at all so far."""
        self.rotten = machine
        self.witness.rotten = machine.me
        self.kill(machine)

    # --- messages

    def carry(
        self,
        sender: Machine,
        to: Replica,
        receive: Callable[..., object],
        data: bytes,
        *,
        answer: bool = False,
    ) -> None:
        receiver = self.machines[to.node - 1]
        deliver = getattr(receiver, receive.__name__)
        if answer and not self.calm and self._random.random() < self.mix.late_answers:
            self.network.send_late(receiver, deliver, sender.me, to, data)
        else:
            self.network.send(sender, receiver, deliver, sender.me, to, data)

    # --- the end

    def _heal(self) -> None:
        self.scheduler.note("all", "*** the faults end")
        self.faults.over = True
        self.calm = True
        self.network.heal()
        if self.rotten is not None and self.rotten.running:
            # A scrub would have found the damage by now.
            self.wipe(self.rotten)
        for machine in self.machines:
            machine.heal()
            if machine.paused:
                self.scheduler.resume(machine)

    def _converge(self, *, writing_s: float) -> None:
        """All replicas must converge in bounded time, and the group must take writes: those under way, and those of the
        first moments after the faults."""
        deadline = self.scheduler.time + HEALING_S
        while not self._is_settled():
            if self.scheduler.time >= deadline:
                raise Violation("a healthy group comes to rest", self._unrest())
            for producer in self.producers:
                producer.stopped = self.scheduler.time >= deadline - HEALING_S + writing_s
            self.scheduler.run(self.scheduler.time + 0.25)

    def _is_settled(self) -> bool:
        leader = self._sole_leader()
        if leader is None or not all(producer.stopped and not producer.busy for producer in self.producers):
            return False
        config = leader.core.config
        if config is None or config.joint or leader.core.changing:
            return False
        members = self._members(config)
        end = leader.log.entries.end_index
        return len(members) == len(config.members) and all(
            (one.core.commit_index, one.log.entries.end_index, one.log.entries.flushed_index)
            == (end, end, end)
            and not one.is_saving
            for one in members
        )

    def _sole_leader(self) -> Machine | None:
        if not all(machine.running for machine in self.machines):
            return None
        leaders = [machine for machine in self.machines if machine.core.role is Role.LEADER]
        return leaders[0] if len(leaders) == 1 else None

    def _members(self, config: GroupConfig) -> list[Machine]:
        return [machine for machine in self.machines if machine.me in config.members]

    def _unrest(self) -> str:
        states = [
            f"{m.name} is {m.core.role.value} in {m.core.term}, "
            f"commit {m.core.commit_index} of {m.log.entries.end_index}"
            if m.running
            else f"{m.name} is down"
            for m in self.machines
        ]
        busy = sum(producer.busy for producer in self.producers)
        return "; ".join([*states, f"{busy} writes unanswered after {HEALING_S:.0f} s of calm"])

    def _finish(self) -> None:
        leader = self._sole_leader()
        assert leader is not None
        assert leader.core.config is not None
        self.witness.check_equal(self._members(leader.core.config))
        self.witness.check_matching(self.machines)
        self.history.check(self.witness.truth)
        self._check_producers(leader)
        self._check_enough(leader)
        self._check_start(leader)
        self.tally.add("messages", self.network.sent)
        self.tally.add("messages lost", self.network.lost)
        self.tally.add("entries committed", len(self.witness.truth))
        self.tally.add("writes acknowledged", self.history.acks)
        self.tally.add("reads answered", self.history.reads)

    def _check_start(self, leader: Machine) -> None:
        """Followers soon start where their leader does, so that readers do not see the start go back with the next
        leader."""
        leader.delete_prefix(leader.log.end_offset)
        self.scheduler.run(self.scheduler.time + 1.0)
        assert leader.core.config is not None
        for one in self._members(leader.core.config):
            if one.log.start_offset < leader.log.start_offset:
                raise Violation(
                    "followers start where their leader does",
                    f"{one.name} starts at {one.log.start_offset}, the leader at {leader.log.start_offset}",
                )

    def _check_enough(self, leader: Machine) -> None:
        """All are up and have flushed everything, so writes may be acknowledged if there are enough voters at all. Some
        replies may still be on their way."""
        self.scheduler.run(self.scheduler.time + 0.5)
        assert leader.core.config is not None
        voters = len(leader.core.config.voters)
        is_enough = voters >= self.required_replicas or leader.core.config.members == (leader.me,)
        expected = leader.core.commit_index if is_enough else 0
        if leader.core.enough_index != expected:
            raise Violation(
                "what enough replicas have flushed is acknowledged",
                f"{leader.name} says {leader.core.enough_index} of {leader.core.commit_index}, with {voters} voters",
            )

    def _check_newcomer(self) -> None:
        """One more replica loses its disk, after all entries were deleted everywhere: it installs the prefix, and must
        then know the same producers as the others."""
        leader = self._sole_leader()
        if leader is None or leader.core.config is None or len(leader.core.config.voters) < 3:
            return
        victim = next(one for one in self._members(leader.core.config) if one is not leader)
        self.scheduler.note(victim.name, "*** wiped as a newcomer")
        self.wipe(victim)
        self._converge(writing_s=0.0)
        leader = self._sole_leader()
        assert leader is not None
        if leader.core.config is not None and victim.me in leader.core.config.voters:
            self._check_producers(leader)

    def _check_producers(self, leader: Machine) -> None:
        """The state of producers decides on duplicates after the next election: it must be the same on all replicas."""
        expected = _producers(leader)
        assert leader.core.config is not None
        for one in self._members(leader.core.config):
            if _producers(one) != expected:
                raise Violation(
                    "replicas remember the same of producers",
                    f"{one.name} has {_producers(one)}, the leader {expected}",
                )


def _producers(machine: Machine) -> list[tuple[int, int, tuple[int, ...]]]:
    """The newest batch of each producer."""
    return sorted((row[0], row[1], tuple(row[3][-1])[:4]) for row in machine.log.producers.rows() if row[3])
