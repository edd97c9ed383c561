"""Faults of a bare group: each occurs at random, at the rate of the seed's mix.

They are the faults that Raft and the log promise to survive: crashes and power cuts of any machine at any time, pauses,
cut links, disks that are slow, full or fail to flush. A disk is lost or damaged only where a majority remains without
it, and the simulator then replaces that replica, as an operator would.
"""

from random import Random
from typing import TYPE_CHECKING

from penstock.raft import GroupConfig, RaftRefused, Role
from penstock.sim.entries import old_segments
from penstock.sim.fault_injector import FaultInjector
from penstock.sim.replica import Machine
from penstock.types import Replica

if TYPE_CHECKING:
    from penstock.sim.group import GroupWorld

LULL_S = 1.5
"""Long enough for the writes under way to end, and for several election timeouts."""
CHANGE_AGAIN_S, CHANGE_TRIES = 0.1, 6
"""How often a change to a lost replica is tried, while there is no leader or another change is under way."""
CONNECTION_BREAKS = 0.7
OPERATOR_S = 0.4
"""How often the simulated operator checks whether a replica is gone for good."""


class Faults(FaultInjector[Machine]):
    """The faults of the core level."""

    PAUSES_S = (0.2, 0.8, 2.0)
    CUTS_S = (0.3, 1.0, 3.0)
    SLOW_DISK_S = 1.5
    FULL_DISK_S = (0.5, 2.0)
    FREE_BYTES = (0, 100, 1000)

    def __init__(self, world: "GroupWorld", random: Random) -> None:
        super().__init__(
            world.scheduler, world.tally, random, world.machines, world.network.cuts, world.power_cut
        )
        self._world = world
        self._mix = world.mix
        self._aim = world.random_for("changes to a lost replica")
        self._breaks = world.random_for("connections")

    def begin(self) -> None:
        mix = self._mix
        faults = (
            (mix.crash, self._crash),
            (mix.power_cut, self._power_cut),
            (mix.blackout, self._blackout),
            (mix.pause, self._pause),
            (mix.isolate, self._isolate),
            (mix.cut, self._cut),
            (mix.slow_disk, self._slow_disk),
            (mix.full_disk, self._full_disk),
            (mix.broken_flush, self._break_flush),
            (mix.rot, self._rot),
            (mix.wipe, self._wipe),
            (mix.transfer, self._transfer),
            (mix.reconfigure, self._reconfigure),
            (mix.delete_prefix, self._delete_prefix),
            (mix.lull, self._lull),
            (mix.lost_connection, self._lose_connection),
        )
        self._plan_all(faults)
        self._scheduler.after(OPERATOR_S, None, self._replace_lost)

    def _leads(self, machine: Machine) -> bool:
        return machine.core.role is Role.LEADER

    # --- machines

    def _crash(self) -> None:
        machine = self._victim()
        if machine is not None:
            self._note("crash", machine.name)
            self._world.kill(machine)

    # --- links

    def isolate_writer(self, machine: Machine) -> None:
        """A leader has taken a batch and can send it to no follower; it goes on taking more."""
        chance = self._mix.isolate_writer
        if chance and not self.over and self._random.random() < chance:
            self._isolate_one(machine)
            if self._random.random() < 0.5:
                machine.slow_until = self._scheduler.time + 1.0

    def isolate_new_leader(self, machine: Machine) -> None:
        """Within the first heartbeat intervals of its term, before or after the term is confirmed."""
        chance = self._mix.isolate_new_leader
        if chance and not self.over and self._random.random() < chance:
            delay_s = self._random.random() * self._world.settings.heartbeat_interval_s
            self._scheduler.after(delay_s, machine, self._isolate_one, machine)

    def _lull(self) -> None:
        self._world.producers_pause_until = self._scheduler.time + LULL_S
        self._scheduler.after(LULL_S / 5, None, self._silence_leader)

    def _silence_leader(self) -> None:
        """One follower does not hear the leader, or none does. All logs are equally long, so any replica may be elected
        whom the others' leases do not stop; and followers heard nothing after the heartbeat on which the leader's
        rests."""
        leader = self._leader()
        if leader is not None and not self.over:
            self._note("lull", leader.name)
            others = self._others(leader)
            for other in self._random.choice((others, [self._random.choice(others)])):
                self._cut_link(leader, other)

    def _cut_link(self, sender: Machine, receiver: Machine) -> None:
        """Mostly the connection breaks, too. So followers campaign when the lease ends, and not only after an election
        timeout, when no lease is left that could be broken."""
        super()._cut_link(sender, receiver)
        follows = receiver.running and not receiver.paused and receiver.core.leader == sender.me
        if follows and self._breaks.random() < CONNECTION_BREAKS:
            receiver.lose_leader()

    def _lose_connection(self) -> None:
        followers = [m for m in self._running() if m.core.role is Role.FOLLOWER and not m.paused]
        if followers:
            machine = self._random.choice(followers)
            self._note("lost connection", machine.name)
            machine.lose_leader()

    def _isolate_one(self, machine: Machine) -> None:
        if self.over:
            return
        others = self._others(machine)
        self._random.shuffle(others)
        spared = self._random.choice((0, 0, 1))
        self._note("isolation", machine.name)
        self._cut_off(machine, others[spared:], self._random.choice(("both", "both", "in", "out")))

    # --- disks

    def _break_flush(self) -> None:
        machine = self._victim()
        if machine is not None:
            self._note("broken flush", machine.name)
            machine.disk.fail_flush(".log" if self._random.random() < 0.8 else "")

    def _rot(self) -> None:
        """Flips a bit that was flushed and is committed. It shows when it is read: mostly after a restart."""
        machine = self._replaceable()
        if machine is None:
            return
        paths = old_segments(machine.log, machine.disk, machine.core.commit_index)
        if not paths:
            return
        path = self._random.choice(paths)
        size = machine.disk.size(path)
        if size:
            self._note("bit-rot", machine.name)
            machine.disk.flip_bit(path, self._random.randrange(size), self._random.randrange(8))
            self._world.rots(machine)

    def _replaceable(self) -> Machine | None:
        """A machine whose disk may be lost: all members of all configurations, and of those that leaders are changing
        to, are up, and a majority remains."""
        running = self._running()
        if self._world.rotten is not None or len(running) < len(self._machines):
            return None
        alive = [machine.me for machine in running]
        cores = [machine.core for machine in running]
        named = [config for core in cores for config in (core.config, core.catching_up_for)]
        configs = [config for config in named if config is not None]
        lacks = [config for config in configs if any(member not in alive for member in config.members)]
        small = [config for config in configs if len(config.voters) < 3 or 0 < len(config.outgoing) < 3]
        return None if lacks or small else self._victim()

    def _wipe(self) -> None:
        machine = self._replaceable()
        if machine is not None:
            self._note("wipe", machine.name)
            self._world.wipe(machine)
            if self._aim.random() < 0.5:
                delay_s = self._aim.choice((0.0, 0.02, 0.2)) * self._aim.random()
                self._scheduler.after(delay_s, None, self._change_to_lost, machine.me, CHANGE_TRIES)

    # --- operators

    def _leader(self) -> Machine | None:
        leaders = [m for m in self._running() if m.core.role is Role.LEADER and not m.paused]
        return self._random.choice(leaders) if leaders else None

    def _transfer(self) -> None:
        leader = self._leader()
        if leader is None:
            return
        to = self._random.choice(self._machines)
        try:
            effects = leader.core.transfer(leader.now(), to.me)
        except RaftRefused:
            return
        self._note("transfer", leader.name)
        leader.do(effects)
        if self._random.random() < 0.5:
            self._deafen(leader)

    def _reconfigure(self) -> None:
        leader = self._leader()
        if leader is None:
            return
        everybody = [machine.me for machine in self._machines]
        self._random.shuffle(everybody)
        count = self._random.choice((3, 3, 4, 5, 2, 1))
        voters = tuple(everybody[:count])
        learners = tuple(everybody[count : count + self._random.choice((0, 0, 1))])
        self._change(leader, GroupConfig(voters, (), learners))

    def _change_to_lost(self, lost: Replica, tries: int) -> None:
        """Asks for voters that are no majority without a replica whose disk has just died. Its leader cannot know."""
        leader = self._leader()
        config = leader.core.config if leader is not None else None
        if self.over or not tries:
            return
        if leader is None or config is None or leader.core.changing:
            self._scheduler.after(CHANGE_AGAIN_S, None, self._change_to_lost, lost, tries - 1)
        elif lost in config.voters:
            others = [voter for voter in config.voters if voter != lost]
            self._change(leader, GroupConfig((lost, *others[: self._aim.choice((0, 1))])))
            self._tally.add("changes to a lost replica")

    def _change(self, leader: Machine, config: GroupConfig) -> None:
        try:
            effects = leader.core.change_config(leader.now(), config.voters, config.learners)
        except RaftRefused:
            return
        self._note("change of members", leader.name)
        leader.do(effects)

    def _replace_lost(self) -> None:
        """Replaces members whose disks were lost: the group still names their old incarnations. A change to such a
        replica is abandoned."""
        leader = self._leader()
        config = leader.core.config if leader is not None else None
        if leader is not None and config is not None and not config.joint:
            here = {machine.node: machine.me for machine in self._machines}
            target = leader.core.catching_up_for
            if target is not None and any(here[voter.node] != voter for voter in target.voters):
                leader.do(leader.core.abandon_change(leader.now()))
            voters = tuple(here[voter.node] for voter in config.voters)
            learners = tuple(here[one.node] for one in config.learners if here[one.node] not in voters)
            if (voters, learners) != (config.voters, config.learners):
                self._change(leader, GroupConfig(voters, (), learners))
                self._tally.add("lost replicas replaced")
        self._scheduler.after(OPERATOR_S, None, self._replace_lost)

    def _delete_prefix(self) -> None:
        machine = self._victim()
        if machine is not None and not machine.paused:
            log = machine.log
            committed = log.entries.offset_at(machine.core.commit_index)
            if committed > log.start_offset:
                machine.delete_prefix(self._random.randint(log.start_offset, committed))
