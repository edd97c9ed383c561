"""Faults of a simulated cluster: of processes, machines, connections and disks; and requests of operators."""

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from penstock.cluster.reassignment import reassign
from penstock.node.calls import BROKER
from penstock.node.metadata.cluster_view import METADATA_GROUP
from penstock.raft import Raft, Role
from penstock.raft.leader import Leader
from penstock.sim.entries import old_segments
from penstock.sim.fault_injector import Fault, FaultInjector
from penstock.sim.host import Host
from penstock.sim.partitions import TOPIC
from penstock.types import GroupId, Offset

if TYPE_CHECKING:
    from penstock.sim.cluster import ClusterWorld

SLOWER = 0.5
"""Than at the core level: a node takes longer to come back, and a run of whole nodes lasts longer."""


GENTLE = 0.4
"""How many of those who end are asked to."""


class ClusterFaults(FaultInjector[Host]):
    """The faults of the node level."""

    PAUSES_S = (0.3, 1.0, 3.0)
    CUTS_S = (0.3, 1.5, 4.0)
    SLOW_DISK_S = 2.0
    FULL_DISK_S = (0.5, 3.0)
    FREE_BYTES = (0, 200, 2000)

    def __init__(self, world: "ClusterWorld", random: Random) -> None:
        super().__init__(world.scheduler, world.tally, random, world.hosts, world.cuts, world.power_cut)
        self._world = world
        self._wiped = False

    def begin(self) -> None:
        mix, policy = self._world.mix, self._world.policy
        faults: tuple[Fault, ...] = (
            (mix.crash, self._crash),
            (mix.power_cut, self._power_cut),
            (mix.blackout, self._blackout),
            (mix.pause, self._pause),
            (mix.isolate, self._isolate),
            (mix.cut, self._cut),
            (mix.loss * 20, self._world.wires.reset_some),
            (mix.slow_disk, self._slow_disk),
            (mix.full_disk, self._full_disk),
            (mix.broken_flush, self._break_flush),
            (mix.wipe, self._wipe),
            (mix.rot, self._rot),
            (mix.transfer, self._transfer),
            (mix.reconfigure, self._reconfigure),
            (mix.reconfigure / 4, self._decommission),
            (0.0 if policy.compact or policy.expires else mix.delete_prefix, self._delete_records),
            (0.3 if mix.clock_drift else 0.0, self._jump_clock),
        )
        self._plan_all(faults, SLOWER)
        if mix.reconfigure:
            self._scheduler.after(self._random.uniform(0, 5), None, self._join)

    def _leads(self, host: Host) -> bool:
        return host.is_assembled and any(one.core.role is Role.LEADER for one in host.members())

    # --- machines

    def _crash(self) -> None:
        host = self._victim()
        if host is None:
            return
        if host.ready and not host.paused and self._random.random() < GENTLE:
            self._note("restart", host.name)
            self._world.restart(host)
        else:
            self._note("crash", host.name)
            self._world.kill(host)

    def _jump_clock(self) -> None:
        host = self._random.choice(self._machines)
        self._note("clock jump", host.name)
        host.clock.jump(self._random.choice((-3_600_000, -1000, 1000, 3_600_000)))

    # --- connections

    def isolate_writer(self, host: Host, *, share: float = 0.25) -> None:
        """Cuts off a leader that has accepted a batch before it can send the batch to any follower."""
        chance = self._world.mix.isolate_writer * share
        if chance and not self._world.calm and self._random.random() < chance:
            self._isolate_one(host)
            host.slow_until = self._scheduler.time + self._random.choice((0.0, 1.0))

    def _isolate_one(self, host: Host) -> None:
        others = self._others(host)
        self._random.shuffle(others)
        self._note("isolation", host.name)
        directions = self._random.choice(("both", "both", "in", "out"))
        self._cut_off(host, others[self._random.choice((0, 0, 1)) :], directions)

    # --- disks

    def _break_flush(self) -> None:
        if (host := self._victim()) is not None and host.is_assembled:
            self._note("broken flush", host.name)
            host.disk.fail_flush(".log")

    def _replaceable(self) -> Host | None:
        """One whose disk may be lost: at most once in a seed, where everybody is there and a majority stays."""
        hosts = self._machines[: self._world.founders]
        if self._wiped or not all(host.ready for host in hosts) or self._is_member_lost():
            return None
        return self._random.choice(hosts)

    def _wipe(self) -> None:
        host = self._replaceable()
        if host is not None:
            self._wiped = True
            self._note("wipe", host.name)
            self._world.wipe(host)

    def _rot(self) -> None:
        """Changes a byte in a segment that is sealed and committed. A scrub, a follower or a client may find it."""
        host = self._replaceable()
        partitions = (
            [one for one in host.node.partitions.online() if one.is_replicated] if host is not None else []
        )
        for partition in partitions:
            assert host is not None
            paths = old_segments(partition.log, host.disk, partition.replica.consensus.core.commit_index)
            size = host.disk.size(paths[0]) if paths else 0
            if size:
                self._wiped = True
                self._note("bit-rot", host.name)
                self._world.rots(host, partition.group)
                host.disk.flip_bit(paths[0], self._random.randrange(size), self._random.randrange(8))
                return

    def _is_member_lost(self) -> bool:
        """Whether a group has a member that is not running."""
        here = [host for host in self._machines if host.ready]
        members = [one for host in self._running() if host.is_assembled for one in host.members()]
        configs = [one.core.config for one in members if one.core.config is not None]
        gone = [m for config in configs for m in config.members if not any(one.is_home_of(m) for one in here)]
        return bool(gone) or any(config.joint for config in configs)

    # --- operators

    def _join(self) -> None:
        for host in self._machines[self._world.founders :]:
            if not host.running and host.me is None:
                self._note("join", host.name)
                host.start()

    def _transfer(self, attempts: int = 10) -> None:
        """A partition of the clients changes its leader, as soon as one has a leader."""
        hosts = [host for host in self._running() if host.ready and not host.paused]
        led = [(host, one) for host in hosts for one in host.members() if one.core.role is Role.LEADER]
        led = [(host, one) for host, one in led if one.consensus.group != METADATA_GROUP]
        if not led:
            if attempts > 0 and not self.over:
                self._scheduler.after(0.2, None, self._transfer, attempts - 1)
            return
        host, one = self._random.choice(led)
        config = one.core.config
        assert config is not None
        self._note("transfer", host.name)
        to = self._random.choice([voter for voter in config.voters if voter != one.core.me] or config.voters)
        host.do(partial(_hand_over, host, one.consensus.group, to.node))
        if self._random.random() < 0.5:
            self._deafen_when_sent(host, one.core)

    def _deafen_when_sent(self, host: Host, core: Raft, polls: int = 100) -> None:
        """Deafens a leader at the moment when it has told its successor to campaign."""
        leader = core.part
        if isinstance(leader, Leader) and leader.transfer is not None and leader.transfer.sent:
            self._deafen(host)
        elif polls > 0:
            self._scheduler.after(0.001, None, self._deafen_when_sent, host, core, polls - 1)

    def _reconfigure(self) -> None:
        host = self._victim()
        if host is None or not host.ready or host.paused:
            return
        nodes = [int(one.node_id) for one in self._machines if one.ready]
        self._random.shuffle(nodes)
        index = self._random.randrange(self._world.partition_count)
        replicas = nodes[:3]
        if len(replicas) == 3:
            self._note("reassignment", host.name)
            host.do(partial(_reassign, host, TOPIC, index, replicas))

    def _decommission(self) -> None:
        """Once, and only where enough nodes are left for all copies."""
        ready = [host for host in self._machines if host.ready and not host.paused]
        if len(ready) < 4 or self._world.retired:
            return
        host = self._random.choice(ready)
        self._note("decommission", host.name)
        self._world.retired.append(host)
        other = self._random.choice([one for one in ready if one is not host])
        other.do(partial(other.node.controller.decommission, int(host.node_id), caller=BROKER))

    def _delete_records(self) -> None:
        for host in self._running():
            if not host.ready or host.paused:
                continue
            partition = host.node.partitions.find(TOPIC, self._random.randrange(self._world.partition_count))
            if (
                partition is not None
                and partition.serves
                and partition.high_watermark > partition.start_offset
            ):
                self._note("deletion of records", host.name)
                offset = self._random.randint(partition.start_offset, partition.high_watermark)
                host.do(partial(_delete_records, partition, offset))
                return


async def _hand_over(host: Host, group: GroupId, to: int) -> None:
    host.node.storage.transfer(group, to)


async def _reassign(host: Host, topic: str, index: int, replicas: list[int]) -> None:
    await host.node.metadata.change(lambda state: reassign(state, topic, index, replicas))


async def _delete_records(partition: "object", offset: int) -> None:
    partition.delete_records(Offset(offset))  # type: ignore[attr-defined]
