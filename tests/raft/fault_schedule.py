"""A group of replicas under a random schedule of faults: a seed decides what happens next, and every step is checked.

All replicas share one simulated clock, which the schedule moves too. A seed draws its own mix of faults, since a mix
that always has everything rarely has much of anything. Half of the crashes hit a replica with unsaved or unflushed
state, because only these can lose something.

Checked as it happens (the numbers are those of core.py):
- no term has two leaders (2)
- an entry that is committed on one replica is the same on all and for ever (3, 7, 8, 9, 12)
- a leader has all that was ever committed (3)
- before an entry is committed, a majority of each half of its leader's configuration has flushed it, with its term (11)
- while one replica has a lease no other leads in a later term (5)
- logs that agree on a term agree below (7)
Then the faults end: all replicas run, no message is lost, and all must reach the same log and accept a write (8).
"""

from random import Random

from penstock.raft import (
    Committed,
    Effect,
    GroupConfig,
    Install,
    Message,
    RaftRefused,
    RaftRoleChanged,
    RaftSettings,
    Role,
    Truncate,
)
from penstock.types import Replica
from tests.raft.machine import Machine, replica
from tests.raft.toy_log import Entry, ToyLog

SETTINGS = RaftSettings(
    election_timeout_s=1.0,
    heartbeat_interval_s=0.1,
    resend_timeout_s=0.3,
    prefix_timeout_s=0.6,
    catch_up_timeout_s=4.0,
    max_append_bytes=300,
    max_inflight_messages=4,
    max_inflight_bytes=900,
)


QUIET_MOMENTS = 400
"""Each of 50 ms: twenty election timeouts, five times as long as a change of members may wait for a newcomer."""


class InvariantBroken(AssertionError):
    """An invariant does not hold. Not an AssertionError of the core's own."""


class FaultSchedule:
    """One group under the faults of one seed."""

    def __init__(self, seed: int, *, steps: int = 1500) -> None:
        self.random = random = Random(seed)
        self.steps = steps
        self.now = 1000.0
        self.voters = random.choice([3, 3, 5, 5, 5, 1])
        self.flight: list[tuple[Replica, Replica, Message]] = []
        self.cut: list[Replica] = []
        self.severed: list[tuple[Replica, Replica]] = []
        """(from, to): nothing passes this way."""
        self.truth: list[Entry] = []
        """All entries that were ever committed, in order."""
        self.leaders: dict[int, Replica] = {}
        self.written = 0
        self.truncations = 0
        founding = GroupConfig(tuple(replica(node) for node in range(1, self.voters + 1)))
        self.machines = {
            one: self._machine(one, founding if one.node <= self.voters else None)
            for one in (replica(node) for node in range(1, max(self.voters, 3) + 3))
        }
        self.rates = {one: 1 + random.uniform(-0.04, 0.04) for one in self.machines}
        """Clocks run at different speeds, within what the settings allow."""
        self._draw_faults()
        for machine in self.machines.values():
            machine.start(self._clock(machine))

    def _machine(self, me: Replica, founding: GroupConfig | None) -> Machine:
        # Tight jitter: candidates that start at the same time are the interesting ones.
        spread = self.random.choice([0.05, 0.5, 1.0])
        return Machine(
            me,
            founding,
            self._send,
            settings=SETTINGS,
            jitter=lambda: self.random.random() * spread,
            watch=self._watch,
        )

    def _draw_faults(self) -> None:
        """How often each action happens: some never."""
        random = self.random

        def sometimes(weight: float) -> float:
            return weight * random.choice([0, 0.3, 1, 3])

        self.acts = {
            self._deliver: 40.0,
            self._tick: 8.0,
            self._pass_time: random.choice([0.5, 2.0]),
            self._flush: random.choice([2.0, 8.0]),
            self._save: random.choice([2.0, 8.0]),
            self._heartbeat: random.choice([3.0, 8.0, 20.0]),
            self._propose: 4.0,
            self._crash: sometimes(0.15),
            self._start: 2.0,
            self._crash_and_restart: sometimes(0.25),
            self._cut: sometimes(0.15),
            self._sever: sometimes(0.3),
            self._join: 0.6,
            self._silence: random.choice([0.05, 0.2, 0.6]),
            self._lose_connection: sometimes(0.5),
            self._transfer: sometimes(0.5),
            self._change: sometimes(0.6),
            self._delete_prefix: sometimes(0.5),
        }
        self.loss = random.choice([0, 0, 0.02, 0.1, 0.2])
        self.repeats = random.choice([0, 0.02, 0.2])
        self.disorder = random.choice([0, 0.1, 0.5, 1])
        self.pace = random.choice([0.1, 0.3, 1])
        """How much time actions take. If little, only silences cause elections, and these succeed."""

    def _clock(self, machine: Machine) -> float:
        return self.now * self.rates[machine.me]

    # ---- faults and progress

    def run(self) -> None:
        acts, weights = list(self.acts), list(self.acts.values())
        for step in range(self.steps):
            self.random.choices(acts, weights)[0]()
            self._check_leases()
            if step % 100 == 0:
                self._check_matching()
        self._heal()

    def _send(self, sender: Replica, to: Replica, message: Message) -> None:
        if not self._passes(sender, to) or self.random.random() < self.loss:
            return
        self.flight.append((sender, to, message))
        if self.random.random() < self.repeats:
            self.flight.append((sender, to, message))

    def _passes(self, sender: Replica, to: Replica) -> bool:
        return sender not in self.cut and to not in self.cut and (sender, to) not in self.severed

    def _running(self) -> list[Machine]:
        return [machine for machine in self.machines.values() if machine.core is not None]

    def _pick(self) -> Machine | None:
        running = self._running()
        return self.random.choice(running) if running else None

    def _leader(self) -> Machine | None:
        leaders = [machine for machine in self._running() if machine.raft.role is Role.LEADER]
        return self.random.choice(leaders) if leaders else None

    def _deliver(self) -> None:
        for _ in range(min(len(self.flight), self.random.choice([1, 2, 4]))):
            self._deliver_one()

    def _deliver_one(self) -> None:
        late = self.random.random() < self.disorder
        sender, to, message = self.flight.pop(self.random.randrange(len(self.flight)) if late else 0)
        machine = self.machines[to]
        if machine.core is not None and self._passes(sender, to):
            now = self._clock(machine)
            machine.do(now, machine.raft.step(now, sender, message))

    def _tick(self) -> None:
        self.now += self.random.random() * 0.02 * self.pace
        due = [machine for machine in self._running() if machine.raft.next_deadline <= self._clock(machine)]
        if due:
            machine = self.random.choice(due)
            machine.do(self._clock(machine), machine.raft.tick(self._clock(machine)))

    def _pass_time(self) -> None:
        self.now += self.random.choice([0.05, 0.2, 0.6]) * self.pace

    def _flush(self) -> None:
        dirty = [machine for machine in self._running() if machine.log.flushed_index < machine.log.end_index]
        if dirty:
            machine = self.random.choice(dirty)
            machine.flush(self._clock(machine))

    def _save(self) -> None:
        busy = [machine for machine in self._running() if machine.unsaved]
        if busy:
            machine = self.random.choice(busy)
            machine.save(self._clock(machine))

    def _heartbeat(self) -> None:
        """Some followers hear it, and some of the leader's answers come back, after a while."""
        leader = self._leader()
        if leader is not None:
            self._heartbeat_from(leader)

    def _heartbeat_from(self, leader: Machine) -> None:
        sent_at, heartbeat = self._clock(leader), leader.raft.heartbeat()
        peers = [peer for peer in self._running() if peer is not leader and self._passes(leader.me, peer.me)]
        self.now += self.random.choice([0, 0.01, 0.1]) * self.pace
        for peer in peers:
            if self.random.random() < self.loss or peer.raft.config is None:
                continue
            now = self._clock(peer)
            peer.do(now, peer.raft.step_heartbeat(now, leader.me, heartbeat))
            heard = peer.raft.heard(now, leader.me, heartbeat.term, SETTINGS.lease_s)
            if self.random.random() < self.loss or not self._passes(peer.me, leader.me):
                continue
            if heard:
                leader.raft.answered(sent_at, peer.me, heartbeat.term)
            else:
                leader.do(sent_at, leader.raft.refused(self._clock(leader), peer.me, peer.raft.term))

    def _propose(self) -> None:
        machine = self._leader()
        if machine is not None and machine.raft.may_propose() is None:
            self.written += 1
            content = b"%d" % self.written + b"." * self.random.choice([0, 0, 100, 400])
            machine.propose(self._clock(machine), self.random.choice([1, 1, 2, 5]), content)

    def _crash(self) -> None:
        running = self._running()
        exposed = [m for m in running if m.unsaved or m.log.flushed_index < m.log.end_index]
        if exposed and self.random.random() < 0.5:
            running = exposed
        if running:
            machine = self.random.choice(running)
            log = machine.log
            machine.crash(self.random.randint(log.flushed_index, log.end_index))

    def _start(self) -> None:
        down = [machine for machine in self.machines.values() if machine.core is None]
        if down:
            machine = self.random.choice(down)
            machine.start(self._clock(machine))

    def _cut(self) -> None:
        machine = self._leader() if self.random.random() < 0.5 else self._pick()
        if machine is not None and machine.me not in self.cut:
            self.cut.append(machine.me)

    def _sever(self) -> None:
        """A leader and another replica cannot reach each other, at least one way, while all others reach both.
        Sometimes that lasts until that replica gives the leader up, which the others have no reason to do."""
        leader, other = self._leader(), self._pick()
        if leader is None or other is None or leader is other:
            return
        self.severed = [(leader.me, other.me)]
        if self.random.random() < 0.7:
            self.severed.append((other.me, leader.me))
        for _ in range(self.random.choice([0, 12, 20])):
            if leader.raft.role is Role.LEADER:
                self.now += 0.1
                self._heartbeat_from(leader)
        if other.core is not None:
            other.do(self._clock(other), other.raft.tick(self._clock(other)))

    def _join(self) -> None:
        if self.cut:
            self.cut.pop(self.random.randrange(len(self.cut)))
        if self.random.random() < 0.3:
            self.severed = []

    def _crash_and_restart(self) -> None:
        """A replica with unsaved state crashes and restarts at once, before or after its silence at the start."""
        exposed = [machine for machine in self._running() if machine.unsaved] or self._running()
        if exposed:
            machine = self.random.choice(exposed)
            machine.crash(machine.log.flushed_index)
            machine.start(self._clock(machine))
            self.now += self.random.choice([0, 0, 1.1])

    def _silence(self) -> None:
        """No heartbeats for longer than some election timeouts: one candidate, or several; others may hear the next
        heartbeat."""
        self.now += self.random.choice([1.1, 1.6])
        running = self._running()
        for machine in self.random.sample(running, self.random.randint(0, len(running))):
            machine.do(self._clock(machine), machine.raft.tick(self._clock(machine)))

    def _lose_connection(self) -> None:
        """A follower's connection with its leader breaks, and some time passes."""
        machine = self._pick()
        if machine is not None:
            machine.raft.leader_lost(self._clock(machine))
            self.now += self.random.choice([0, 0.3, 0.6])
            machine.do(self._clock(machine), machine.raft.tick(self._clock(machine)))

    def _transfer(self) -> None:
        machine = self._leader()
        if machine is not None:
            self._ask(
                machine, lambda now: machine.raft.transfer(now, self.random.choice(list(self.machines)))
            )

    def _change(self) -> None:
        machine = self._leader()
        if machine is None:
            return
        if self.random.random() < 0.3:
            self._ask(machine, machine.raft.abandon_change)
        members = list(self.machines)
        self.random.shuffle(members)
        count = self.random.choice([1, 2, 3, 3, 4, 5])
        voters, others = tuple(members[:count]), members[count:]
        learners = tuple(others[: self.random.choice([0, 0, 1])])
        self._ask(machine, lambda now: machine.raft.change_config(now, voters, learners))

    def _ask(self, machine: Machine, act) -> None:
        now = self._clock(machine)
        try:
            effects = act(now)
        except RaftRefused:
            return
        machine.do(now, effects)

    def _delete_prefix(self) -> None:
        machine = self._pick()
        if machine is not None:
            index = self.random.randint(0, machine.raft.commit_index)
            machine.delete_prefix(self._clock(machine), index)

    # ---- invariants

    def _watch(self, machine: Machine, effect: Effect) -> None:
        """Called before an effect is carried out."""
        match effect:
            case RaftRoleChanged(Role.LEADER, term):
                if self.leaders.setdefault(term, machine.me) != machine.me:
                    raise InvariantBroken(f"{self.leaders[term]} and {machine.me} lead in term {term}")
                self._check_complete(machine)
            case Committed(index, _):
                self._check_commit(machine, index)
            case Install(message):
                if message.first_index > self._truth_end():
                    raise InvariantBroken("a prefix that is not committed")
            case Truncate(end_index):
                self.truncations += 1
                if end_index < machine.raft.commit_index:
                    raise InvariantBroken(f"{machine.me} cuts at {end_index} below its commit")

    def _truth_end(self) -> int:
        return self.truth[-1].end if self.truth else 0

    def _check_complete(self, machine: Machine) -> None:
        if machine.log.end_index < self._truth_end():
            raise InvariantBroken(f"{machine.me} leads without what is committed")
        self._compare(machine, self._truth_end())

    def _check_commit(self, machine: Machine, index: int) -> None:
        if index > self._truth_end():
            self._check_majority(machine, index)
            for entry in machine.log.entries:
                if self._truth_end() <= entry.start and entry.end <= index:
                    self.truth.append(entry)
            if self._truth_end() != index:
                raise InvariantBroken(f"{machine.me} commits {index}, of which it lacks a part")
        self._compare(machine, index)

    def _check_majority(self, machine: Machine, index: int) -> None:
        """Looks at what is on the disks, running or not."""
        term = machine.log.term_before(index)

        def has(one: Replica) -> bool:
            log = self.machines[one].log
            return log.flushed_index >= index and log.term_before(index) in (term, None)

        # Not the newest: the same call may have taken the next step of a change.
        config = machine.raft.config_at(machine.log.end_index)
        assert config is not None
        if not config.is_quorum([one for one in self.machines if has(one)]):
            raise InvariantBroken(f"{machine.me} commits {index}, which no majority has flushed")

    def _compare(self, machine: Machine, end: int) -> None:
        """Its log below `end` is what was committed."""
        log = machine.log
        mine = [entry for entry in log.entries if entry.end <= end]
        theirs = [entry for entry in self.truth if log.first_index <= entry.start and entry.end <= end]
        if mine != theirs:
            raise InvariantBroken(f"{machine.me} has other entries below {end} than were committed")

    def _check_leases(self) -> None:
        leaders = [machine for machine in self._running() if machine.raft.role is Role.LEADER]
        newest = max([machine.raft.term for machine in leaders], default=0)
        end_index = self.truth[-1].end if self.truth else 0
        for machine in leaders:
            if machine.raft.may_serve(self._clock(machine)):
                if machine.raft.term < newest:
                    raise InvariantBroken(
                        f"{machine.me} may serve in {machine.raft.term}, but {newest} has a leader"
                    )
                if machine.raft.commit_index < end_index:
                    raise InvariantBroken(
                        f"{machine.me} may serve {machine.raft.commit_index} of {end_index}"
                    )

    def _check_matching(self) -> None:
        logs = [machine.log for machine in self.machines.values()]
        for number, log in enumerate(logs):
            for other in logs[number + 1 :]:
                _check_pair(log, other)

    # ---- recovery after the faults

    def _heal(self) -> None:
        self.loss = self.repeats = 0
        self.cut, self.severed = [], []
        for machine in self.machines.values():
            if machine.core is None:
                machine.start(self._clock(machine))
        self._converge()
        leader = max(
            self._running(), key=lambda machine: (machine.raft.role is Role.LEADER, machine.raft.term)
        )
        before = self._truth_end()
        leader.propose(self._clock(leader), 1, b"last")
        self._converge()
        if self._truth_end() <= before:
            raise InvariantBroken("a healthy group does not commit")
        self._check_matching()

    def _converge(self) -> None:
        problem = "nothing was tried"
        for moment in range(QUIET_MOMENTS):
            self._quiet_moment()
            if moment % 10 == 9:
                problem = self._unconverged()
                if not problem:
                    return
        raise InvariantBroken(problem)

    def _quiet_moment(self) -> None:
        self.now += 0.05
        for machine in self._running():
            now = self._clock(machine)
            machine.do(now, machine.raft.tick(now))
        for _ in range(8):
            self._finish_disks()
            arriving, self.flight = self.flight, []
            for sender, to, message in arriving:
                machine = self.machines[to]
                machine.do(self._clock(machine), machine.raft.step(self._clock(machine), sender, message))
        for leader in [m for m in self._running() if m.raft.role is Role.LEADER]:
            self._quiet_heartbeat(leader)

    def _quiet_heartbeat(self, leader: Machine) -> None:
        sent_at, heartbeat = self._clock(leader), leader.raft.heartbeat()
        for progress in leader.raft.progress():
            peer = self.machines[progress.replica]
            if peer is leader or leader.raft.role is not Role.LEADER:
                continue
            now = self._clock(peer)
            peer.do(now, peer.raft.step_heartbeat(now, leader.me, heartbeat))
            if peer.raft.heard(now, leader.me, heartbeat.term, SETTINGS.lease_s):
                leader.raft.answered(sent_at, peer.me, heartbeat.term)
            else:
                leader.do(sent_at, leader.raft.refused(sent_at, peer.me, peer.raft.term))

    def _finish_disks(self) -> None:
        for machine in self._running():
            while machine.unsaved:
                machine.save(self._clock(machine))
            if machine.log.flushed_index < machine.log.end_index:
                machine.flush(self._clock(machine))

    def _unconverged(self) -> str:
        leaders = [machine for machine in self._running() if machine.raft.role is Role.LEADER]
        if not leaders:
            return "a healthy group has no leader"
        leader = max(leaders, key=lambda machine: machine.raft.term)
        config = leader.raft.config
        if config is None or config.joint or leader.raft.changing or leader.raft.may_propose() is not None:
            return "a change of members or leaders does not end"
        for one in config.members:
            raft, log = self.machines[one].raft, self.machines[one].log
            if (raft.commit_index, log.end_index) != (leader.log.end_index, leader.log.end_index):
                return f"{one} has {raft.commit_index} of {log.end_index}, not {leader.log.end_index}"
        return ""


def _check_pair(log: ToyLog, other: ToyLog) -> None:
    """From the last entry that both have with one term downwards, both have the same."""
    low = max(log.first_index, other.first_index)
    theirs = {entry.end: entry for entry in other.entries}
    same = [
        entry.end for entry in log.entries if entry.end in theirs and theirs[entry.end].term == entry.term
    ]
    if not same or same[-1] <= low:
        return
    mine = [entry for entry in log.entries if low <= entry.start and entry.end <= same[-1]]
    if mine != [entry for entry in other.entries if low <= entry.start and entry.end <= same[-1]]:
        raise InvariantBroken(f"two logs have the same term at {same[-1]} and differ below")
