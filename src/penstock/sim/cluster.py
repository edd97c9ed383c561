"""The node level: whole nodes, first with faults, then without.

Three or five production nodes form a cluster, an operator creates a topic, and clients write and read it while the
seed's faults hit processes, machines, disks, connections and clocks, and operators move partitions. Then the faults
end, and in bounded time each partition must have a leader, all replicas must be equal, and every promise must hold.
"""

import gc
import sys
import warnings
from collections.abc import Iterable
from functools import partial
from random import Random

from penstock.cluster import encode_record
from penstock.config import Address, ClusterSettings, GroupSettings, TransactionSettings
from penstock.errors import PenstockError
from penstock.node.calls import BROKER
from penstock.node.metadata.cluster_view import METADATA_GROUP
from penstock.raft import Role
from penstock.sim.checks import Watched, Witness
from penstock.sim.cluster_faults import ClusterFaults
from penstock.sim.compaction_checks import CommittedKeys
from penstock.sim.convergence import Convergence, check_producers, check_readable
from penstock.sim.datagrams import SimDatagrams
from penstock.sim.disk import SimDisk
from penstock.sim.fault_mix import FaultMix, draw
from penstock.sim.host import Host, WatchedReplica
from penstock.sim.loop import NodeLoop
from penstock.sim.members import SimConsumerGroup
from penstock.sim.network import Cuts, Wires
from penstock.sim.node_logs import listening
from penstock.sim.outcome import EventCounts, Violation
from penstock.sim.partitions import TOPIC, ReplicaDisks, SimPartition
from penstock.sim.policies import UNLIMITED, Policy, draw_policy
from penstock.sim.retention_checks import EXPIRY_MS, check_deletion, check_expiry
from penstock.sim.scheduler import Process, Scheduler
from penstock.sim.system_random import seeded_system
from penstock.types import GroupId, NodeId, Replica

FORMING_S = 20.0
FAULTS_S = 8.0
HEALING_S = 60.0
LOOK_EVERY_S = 0.5
RESTART_HALTED_AFTER_S = 8.0
STOPPING_S = 8.0
"""A node that takes longer to stop is killed, as service managers do."""
MAX_EVENTS = 400_000
CONSUMER_GROUP_CHANCE = 0.4
"""How many seeds have a consumer group."""


class ClusterWorld:
    """Everything that one seed of the node level consists of."""

    max_events = MAX_EVENTS

    def __init__(self, seed: int, *, nodes: int | None = None, tracing: bool = False) -> None:
        self.seed = seed
        self._random = self.random_for("world")
        self._halts = self.random_for("halts")
        self.policy = self._draw_policy()
        self.topic_defaults = self.policy.topic_defaults()
        self.mix = self._draw_mix()
        self.scheduler = Scheduler(max_events=self.max_events, tracing=tracing)
        self.tally = EventCounts()
        self.calm = True
        """No faults: before they begin and after they have ended."""
        self.partition_count = self._draw_partition_count()
        self.settings = ClusterSettings(
            heartbeat_interval_ms=100,
            election_timeout_ms=500,
            fence_after_ms=2_000,
            replace_after_ms=self._random.choice((0, 3_000)),
            auto_rebalance=self._random.random() < 0.5,
        )
        self.transaction_settings = TransactionSettings()
        self.cuts = Cuts()
        self.wires = Wires(self.scheduler, self.random_for("wires"), self.cuts, self._latency)
        self.wires.refusals = self.mix.loss / 5
        self.datagrams = SimDatagrams(
            self.scheduler,
            self.random_for("datagrams"),
            self.cuts,
            loss=self.mix.loss,
            repeats=self.mix.repeats,
        )
        self._link_random = self.random_for("links")
        self.founders = nodes or self._random.choice((3, 3, 3, 5))
        self.hosts = [
            Host(self, NodeId(number), self.random_for(f"host {number}")) for number in self._node_ids()
        ]
        self.witnesses: dict[GroupId, Witness] = {}
        self._halted_since: dict[str, float] = {}
        """When each host was first seen with replicas that halted, or was last restarted for them."""
        self.partitions = [SimPartition(self, index) for index in range(self.partition_count)]
        group_random = self.random_for("consumer group")
        self.group_settings = GroupSettings(
            min_session_timeout_ms=500,
            initial_rebalance_delay_ms=group_random.choice((0, 300)),
            offsets_topic_partitions=group_random.choice((1, 2)),
        )
        self.consumer_group = (
            SimConsumerGroup(self, group_random) if group_random.random() < CONSUMER_GROUP_CHANCE else None
        )
        self.convergence = Convergence(self)
        self.faults = ClusterFaults(self, self.random_for("faults"))
        self._old_disks: dict[Replica, SimDisk] = {}
        self._stopped_loops: list[NodeLoop] = []
        self._bug: Violation | None = None
        self._rotten: Host | None = None
        self.retired: list[Host] = []
        """Decommissioned hosts: they get no more requests."""
        self.scheduler.watch = self._watch

    def random_for(self, name: str) -> Random:
        return Random(f"{self.seed}/node/{name}")

    def _draw_policy(self) -> Policy:
        return draw_policy(self.random_for("policy"))

    def _draw_mix(self) -> FaultMix:
        return draw(self.random_for("weather"))

    def _draw_partition_count(self) -> int:
        return self._random.choice((1, 2))

    def _node_ids(self) -> Iterable[int]:
        """The founders first."""
        spares = 1 if self.mix.reconfigure else 0
        return range(1, self.founders + spares + 1)

    def machine_of(self, node: int) -> str | None:
        """The machine that a node names as its own."""
        return None

    def seeds_of(self, host: Host) -> tuple[Address, ...]:
        return tuple(Address(f"n{number}", 7000) for number in range(1, self.founders + 1))

    def _latency(self, sender: str, receiver: str) -> float:
        base = 0.002 if self.calm else self.mix.latency_s
        if not self.calm and self.mix.late and self._link_random.random() < self.mix.late / 4:
            return base + self._link_random.random() * self.mix.late_s / 4
        return base * (0.5 + self._link_random.random())

    # --- running

    def run(self) -> None:
        with (
            seeded_system(self.random_for("system")),
            listening(self.scheduler, self.found_bug, self._found_rot),
            warnings.catch_warnings(),
        ):
            try:
                self._run()
            finally:
                self._dispose()

    def _run(self) -> None:
        for host in self.hosts[: self.founders]:
            host.start()
        self._form()
        self._look_now_and_then()
        self._wake_clients()
        self._gather_clients()
        self.calm = False
        self.faults.begin()
        self._until(self.scheduler.time + FAULTS_S)
        if self.consumer_group is not None:
            self.consumer_group.last_blow()
        self._heal()
        self._converge()
        if self.policy.retention_ms != UNLIMITED:
            self._let_expire()
        self._finish()

    def _until(self, moment: float) -> None:
        self.scheduler.run(moment)
        if self._bug is not None:
            raise self._bug

    def _form(self) -> None:
        """Forms the cluster and creates the topic."""
        asked = False
        while not self._leaders_of_all():
            if self.scheduler.time > FORMING_S:
                raise Violation("a cluster forms", self.convergence.obstacles())
            if not asked and all(host.ready for host in self.hosts[: self.founders]):
                asked = True
                host = self.hosts[0]
                host.do(partial(host.node.controller.create_topic, TOPIC, caller=BROKER))
            self._until(self.scheduler.time + 0.25)

    def _gather_clients(self) -> None:
        """Forms the consumer group before the faults begin, which are too short and too many for its first steps."""
        if self.consumer_group is None:
            return
        self.consumer_group.begin()
        while not self.consumer_group.is_settled:
            if self.scheduler.time > FORMING_S:
                raise Violation("a group forms", self.client_obstacles())
            self._until(self.scheduler.time + 0.25)

    @property
    def clients_are_settled(self) -> bool:
        return self.consumer_group is None or self.consumer_group.is_settled

    def client_obstacles(self) -> str:
        return self.consumer_group.obstacles() if self.consumer_group is not None else ""

    def _check_clients(self) -> None:
        if self.consumer_group is not None:
            self.consumer_group.check()

    def _leaders_of_all(self) -> bool:
        return all(self._serving(partition) is not None for partition in self.partitions)

    def _serving(self, partition: SimPartition) -> Host | None:
        found = []
        for host in self.hosts:
            if host.ready:
                held = host.node.partitions.find(TOPIC, partition.index)
                if held is not None and held.serves:
                    found.append(host)
        return found[0] if len(found) == 1 else None

    def _watch(self, process: Process) -> None:
        if self._bug is not None:
            raise self._bug
        if isinstance(process, Host) and process.is_assembled:
            for one in process.members():
                self.witness_of(one).look(one)
            self._check_metadata(process)

    def _check_metadata(self, host: Host) -> None:
        """Nodes apply only committed metadata."""
        metadata = host.node.metadata
        if hasattr(metadata, "partition") and metadata.applied > metadata.partition.high_watermark:
            raise Violation(
                "only committed metadata is applied",
                f"{host.name} has applied {metadata.applied} of {metadata.partition.high_watermark}",
            )

    def witness_of(self, one: WatchedReplica) -> Witness:
        group = one.consensus.group
        witness = self.witnesses.get(group)
        if witness is None:
            witness = self.witnesses[group] = Witness(group, ReplicaDisks(self, group), one.log.path)
            witness.on_elected = self._elected
            witness.leaders_choose_start = True
            if one.log.config.cleanup_compact:
                witness.committed_keys = CommittedKeys()
            elif self.policy.expires and group != METADATA_GROUP:
                witness.on_start_moved = self._deleted
        return witness

    def _deleted(self, one: Watched, old: int, new: int) -> None:
        assert isinstance(one, WatchedReplica)
        self.tally.add("starts moved by retention")
        witness = self.witnesses[one.consensus.group]
        batches = [entry.data for offset, entry in witness.batches.items() if old <= offset < new]
        check_deletion(self.policy, one, batches, new)

    def _elected(self, one: Watched) -> None:
        assert isinstance(one, WatchedReplica)
        self.aim(one.host, self.mix.crash_new_leader / 2)

    def _look_now_and_then(self) -> None:
        for group, witness in self.witnesses.items():
            witness.check_leases()
            witness.check_matching(self.running_members(group))
        self.scheduler.after(LOOK_EVERY_S, None, self._look_now_and_then)

    def running_members(self, group: GroupId) -> list[WatchedReplica]:
        return [
            one
            for host in self.hosts
            if host.is_assembled
            for one in host.members()
            if one.consensus.group == group
        ]

    def _wake_clients(self) -> None:
        for partition in self.partitions:
            for client in (*partition.producers, *partition.readers):
                client.wake()
        wait = 2 * self.mix.write_every_s * (0.5 + self._random.random())
        self.scheduler.after(wait, None, self._wake_clients)

    # --- what happens to machines

    def disk_of(self, replica: Replica) -> SimDisk | None:
        buried = [disk for node, disk in self._old_disks.items() if replica.life_of(node) is not None]
        return (
            buried[0] if buried else next((one.disk for one in self.hosts if one.is_home_of(replica)), None)
        )

    def aim(self, host: Host, chance: float) -> None:
        if not self.calm and chance and self._random.random() < chance:
            delay = self.mix.flush_s * self._random.random()
            self.scheduler.after(delay, host, self._hit, host, self._random.random() < 0.7)

    def _hit(self, host: Host, cut: bool) -> None:
        self.tally.add("aimed crash")
        self.scheduler.note(host.name, "*** aimed crash")
        if cut:
            self.power_cut(host)
        else:
            self.kill(host)

    def kill(self, host: Host) -> None:
        self._stop(host)
        self.wires.process_died(host)
        host.disk.process_died()

    def restart(self, host: Host) -> None:
        """It is asked to stop, and gets some seconds for it."""
        host.ready = False
        life = host.life

        def ended() -> None:
            self.scheduler.after(0.0, None, self._end, host, life)

        host.leave(ended)
        self.scheduler.after(STOPPING_S, None, self._end, host, life)

    def _end(self, host: Host, life: int) -> None:
        if host.running and host.life == life:
            self.kill(host)

    def power_cut(self, host: Host) -> None:
        self._stop(host)
        host.lose_power()

    def wipe(self, host: Host) -> None:
        self._stop(host)
        if host.me is not None:
            self._old_disks[host.me] = host.disk
        host.disk = SimDisk(host.random.getrandbits(32))

    def rots(self, host: Host, group: GroupId) -> None:
        """The host's disk is damaged. The simulated operator replaces it when the faults end at the latest."""
        self._rotten = host
        self.witnesses[group].rotten = host.node.storage.raft.replica(group)

    def is_rotten(self, host: Host) -> bool:
        return host is self._rotten

    def halted(self, host: Host, problem: str) -> None:
        """The host could not start, or stopped for its disk. It starts again: the machine, or only the process."""
        self.tally.add("halts for a failed disk")
        self.scheduler.note(host.name, f"halts: {problem}")
        self.scheduler.after(0.0, None, self._restart_halted, host, host.life)

    def _restart_halted(self, host: Host, life: int) -> None:
        if host.life != life:
            return
        if self._halts.random() < 0.5:
            self.kill(host)
        else:
            self.power_cut(host)

    def _stop(self, host: Host) -> None:
        if not host.running:
            return
        for group, watched in host.watched().items():
            self.witnesses[group].forget(watched.me)
        host.stop()
        wait = self._random.random() * self.mix.restart_s
        self.scheduler.after(wait, None, self._start, host, host.life)

    def _start(self, host: Host, life: int) -> None:
        if not host.running and host.life == life:
            host.start()

    # --- bugs and remains

    def found_bug(self, message: str, problem: BaseException | None) -> None:
        if isinstance(problem, Violation):
            self._bug = self._bug or problem
        elif isinstance(problem, PenstockError):
            # The request was refused, and no caller waits for it any more: one log line is enough.
            self.scheduler.note("log", f"{message}: {problem}", b"")
        else:
            self._bug = self._bug or Violation("a bug", f"{message}: {problem!r}")

    def _found_rot(self, message: str) -> None:
        if self._rotten is None:
            self._bug = self._bug or Violation("a crash never looks like rot", message)

    def bury(self, loop: NodeLoop) -> None:
        self._stopped_loops.append(loop)

    def _dispose(self) -> None:
        """Tasks of crashed processes run once more when they are collected: their errors are dropped."""
        for host in self.hosts:
            if host.running:
                host.stop()
        for loop in self._stopped_loops:
            for task in loop.tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            for loop in self._stopped_loops:
                loop.tasks.clear()
            self._stopped_loops.clear()
            self.scheduler.clear()
            for host in self.hosts:
                host.forget()
            gc.collect()
        finally:
            sys.unraisablehook = hook

    # --- the end

    def _heal(self) -> None:
        self.scheduler.note("all", "*** the faults end")
        self.faults.over = self.calm = True
        self.cuts.heal()
        self.wires.refusals = 0.0
        self.datagrams.loss = self.datagrams.repeats = 0.0
        for host in self.hosts:
            host.heal()
            if host.paused:
                self.scheduler.resume(host)
        if self._rotten is not None:
            self.tally.add("rotten disks replaced")
            self.wipe(self._rotten)

    def _converge(self) -> None:
        deadline = self.scheduler.time + HEALING_S
        while not self.convergence.is_available():
            if self.scheduler.time >= deadline:
                raise Violation("a healthy cluster comes to rest", self.convergence.obstacles())
            self._restart_offline()
            if self.scheduler.time > deadline - HEALING_S + 1.0:
                self._stop_writing()
            self._until(self.scheduler.time + 0.5)

    def _let_expire(self) -> None:
        """Old records are deleted, also where nothing is written any more."""
        self._until(self.scheduler.time + (self.policy.retention_ms + EXPIRY_MS) / 1000)
        self._converge()
        now_ms = min(host.clock.wall_ms() for host in self.hosts)
        for partition in self.partitions:
            leader = next(
                one for one in self.running_members(partition.witness.group) if one.core.role is Role.LEADER
            )
            check_expiry(self.policy, leader, partition.witness.batches, now_ms=now_ms)

    def _stop_writing(self) -> None:
        for partition in self.partitions:
            for producer in partition.producers:
                producer.stopped = True
        if self.consumer_group is not None:
            self.consumer_group.rest()

    def _restart_offline(self) -> None:
        """Replicas that halted take no part until their node restarts or rebuilds them. After a while the simulated
        operator restarts the node, and waits again."""
        for host in self.hosts:
            if host.is_assembled and (rot := host.found_rot()) is not None:
                raise Violation("a crash never looks like rot", f"{host.name}: {rot}")
            if not (host.is_assembled and host.has_halted_replicas()):
                self._halted_since.pop(host.name, None)
                continue
            since = self._halted_since.setdefault(host.name, self.scheduler.time)
            if self.scheduler.time - since >= RESTART_HALTED_AFTER_S:
                self._halted_since[host.name] = self.scheduler.time
                self.scheduler.note(host.name, "*** restarted for its halted replicas")
                self.power_cut(host)

    def _finish(self) -> None:
        for group in self.convergence.groups():
            witness = self.witnesses[group]
            members = self.running_members(group)
            leader = next(one for one in members if one.core.role is Role.LEADER)
            config = leader.core.config
            assert config is not None
            part = [one for one in members if one.me in config.members]
            witness.check_equal(part)
            witness.check_matching(part)
            check_producers(part)
            check_readable(part)
        self._check_states()
        for partition in self.partitions:
            partition.history.check(partition.witness.truth)
        self._check_clients()
        self._count()

    def _check_states(self) -> None:
        """All nodes have the same metadata."""
        states = [
            (host, encode_record(host.node.metadata.state.snapshot())) for host in self.convergence.expected()
        ]
        for host, state in states:
            if state != states[0][1]:
                raise Violation(
                    "all nodes have the same metadata", f"{host.name} and {states[0][0].name} differ"
                )

    def _count(self) -> None:
        self.tally.add("frames", self.wires.frames)
        self.tally.add("frames lost", self.wires.lost)
        for witness in self.witnesses.values():
            self.tally.add("entries committed", len(witness.truth))
            self.tally.add("elections won", len(witness.leaders))
        for partition in self.partitions:
            self.tally.add("writes acknowledged", partition.history.acks)
            self.tally.add("reads answered", partition.history.reads)
