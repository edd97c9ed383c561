"""The level of machines: whole nodes, several on each machine, as `penstock serve --processes` starts them.

The first processes of three machines found the cluster, and all others join. Then whole machines lose power, one after
the other, beside gentle faults of single processes. Besides the promises of the node level, no two replicas of a
partition and no two voters of the metadata group are ever on one machine.

With more nodes than production allows (see LARGER in seeds.py) a run has no other faults, and counts what the
nodes cost each other while they are idle.
"""

from collections.abc import Iterable

import msgspec

from penstock.cluster import ClusterState
from penstock.config import Address
from penstock.node.metadata.cluster_view import METADATA_GROUP
from penstock.sim.cluster import FAULTS_S, FORMING_S, ClusterWorld
from penstock.sim.fault_mix import NEVER, FaultMix
from penstock.sim.host import Host
from penstock.sim.outcome import Violation
from penstock.sim.transaction_world import GENTLER, GENTLER_FAULTS

FOUNDING_MACHINES = 3
SMALL_MOST = 12
"""Up to so many nodes, single processes fail too."""
PROCESSES_OF_LARGE = 4
JOINING_S = 60.0
IDLE_S = 10.0
LOSSES = 2
REPLACE_AFTER_MS = 3_000
DARK_S = (0.0, 15.0, 25.0)
"""How long a machine is without power: gossip needs about ten seconds before nodes are fenced, and then replaced."""
RATES = (
    "late", "late_answers", "loss", "repeats", "stuck_flush", "crash_in_compaction", "isolate_new_leader", "lull",
    "slow_disk", "full_disk", "broken_flush", "rot", "wipe", "transfer", "reconfigure", "delete_prefix", "clock_drift",
)  # fmt: skip


class MachineWorld(ClusterWorld):
    """Everything that one seed consists of."""

    max_events = 20_000_000

    def __init__(self, seed: int, *, nodes: int | None = None, tracing: bool = False) -> None:
        self.seed = seed
        shape = self.random_for("machines")
        self.is_large = nodes is not None and nodes > SMALL_MOST
        processes = PROCESSES_OF_LARGE if self.is_large else 2
        machines = (nodes or shape.choice((6, 6, 8))) // processes
        self._machines = max(FOUNDING_MACHINES, machines)
        self._processes = processes
        super().__init__(seed, nodes=FOUNDING_MACHINES, tracing=tracing)
        self.settings = msgspec.structs.replace(self.settings, replace_after_ms=REPLACE_AFTER_MS)
        self._losses = self.random_for("losses")
        self._dark_until: dict[str, float] = {}
        if self.is_large:
            self.consumer_group = None

    def _node_ids(self) -> Iterable[int]:
        """Process 1 of every machine, then process 2, ...: clients find a host by its number."""
        return range(1, self._machines * self._processes + 1)

    def machine_of(self, node: int) -> str:
        return f"machine-{(node - 1) % self._machines + 1}"

    def seeds_of(self, host: Host) -> tuple[Address, ...]:
        return tuple(Address(f"n{number}", 7000) for number in range(1, FOUNDING_MACHINES + 1))

    def _draw_mix(self) -> FaultMix:
        """Operators and damaged disks are at the node level."""
        mix = super()._draw_mix()
        never = dict.fromkeys(("rot", "wipe", "reconfigure"), NEVER)
        if self.is_large:
            return msgspec.structs.replace(mix, **dict.fromkeys((*GENTLER_FAULTS, *RATES), NEVER))
        fewer = {name: getattr(mix, name) * GENTLER for name in GENTLER_FAULTS}
        return msgspec.structs.replace(mix, **fewer, **never)

    # --- running

    def _form(self) -> None:
        super()._form()
        for host in self.hosts[self.founders :]:
            host.start()
        deadline = self.scheduler.time + JOINING_S
        while not self._has_all():
            if self.scheduler.time > deadline:
                raise Violation("all processes join", self.convergence.obstacles())
            self._until(self.scheduler.time + 0.25)
        self.tally.add("nodes", len(self.hosts))
        if self.is_large:
            self._count_idle()

    def _has_all(self) -> bool:
        """Every node is ready and knows of all nodes."""
        return all(
            host.ready and len(host.node.metadata.state.nodes) == len(self.hosts) for host in self.hosts
        )

    def _count_idle(self) -> None:
        """The cost of nodes that do nothing: frames and datagrams between them."""
        self._until(self.scheduler.time + IDLE_S)  # plans of moves and handshakes have ended
        frames, datagrams, events = self.wires.frames, self.datagrams.sent, self.scheduler.events
        self._until(self.scheduler.time + IDLE_S)
        self.tally.add(f"frames in {IDLE_S:.0f} idle s", self.wires.frames - frames)
        self.tally.add(f"datagrams in {IDLE_S:.0f} idle s", self.datagrams.sent - datagrams)
        self.tally.add(f"events in {IDLE_S:.0f} idle s", self.scheduler.events - events)
        connections = sum(len(host.node.links.network.connected()) for host in self.hosts if host.node.links)
        self.tally.add("connections", connections // 2)

    def _gather_clients(self) -> None:
        """No machine is lost before the group has formed: without most of them it cannot."""
        if self.scheduler.time > FORMING_S:
            self.consumer_group = None
        super()._gather_clients()
        for number in range(LOSSES):
            wait = FAULTS_S * (number + self._losses.random()) / LOSSES
            self.scheduler.after(wait, None, self._lose_machine)

    def _lose_machine(self) -> None:
        machine = self.machine_of(self._losses.randrange(1, self._machines + 1))
        self.tally.add("machines lost")
        self.scheduler.note(machine, "*** the machine loses power")
        self._dark_until[machine] = self.scheduler.time + self._losses.choice(DARK_S)
        for host in self.hosts:
            if self.machine_of(host.node_id) == machine and host.running:
                self.power_cut(host)

    def _start(self, host: Host, life: int) -> None:
        wait = self._dark_until.get(self.machine_of(host.node_id), 0.0) - self.scheduler.time
        if wait > 0:
            self.scheduler.after(wait, None, self._start, host, life)
        else:
            super()._start(host, life)

    # --- promises

    def _look_now_and_then(self) -> None:
        super()._look_now_and_then()
        for host in self.hosts:
            if host.ready:
                self._check_replicas(host.node.metadata.state)
        for one in self.running_members(METADATA_GROUP):
            config = one.core.config
            if config is not None:
                self._check_apart("voters of the metadata", [voter.node for voter in config.voters])

    def _check_replicas(self, state: ClusterState) -> None:
        for topic, group, assignment in state.groups():
            self._check_apart(f"replicas of {topic.name}-{group.partition}", assignment.future)

    def _check_apart(self, what: str, nodes: Iterable[int]) -> None:
        machines = [self.machine_of(node) for node in nodes]
        if len(set(machines)) < len(machines):
            raise Violation("a machine holds one of each", f"{what} are on the machines {machines}")
