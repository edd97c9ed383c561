"""The level of groups: whole nodes as at the node level, with members of one consumer group (KIP-848) for clients.

Checks what the members were told:

1  A partition is in the hands of one member at most, at every moment: from the answer that gives it to the member until
   the request that says that it gave it up, the member's death, or the end of its session as the member counts it.
2  After the faults the group becomes stable: exactly the live members are in it, and every partition has an owner.
"""

from contextlib import suppress

import msgspec

from penstock.config import GroupSettings
from penstock.errors import ErrorCode, PenstockError
from penstock.groups import ConsumerHeartbeat, ConsumerHeartbeatResult
from penstock.groups.consumer_values import LEAVING, NOTHING, Assignment
from penstock.node import Node
from penstock.sim.cluster import FORMING_S, ClusterWorld
from penstock.sim.fault_mix import FaultMix
from penstock.sim.host import Host
from penstock.sim.node_client import NoAnswer, NodeClient
from penstock.sim.outcome import Violation
from penstock.sim.partitions import TOPIC

GROUP = "consumers"
SESSION_MS = 2_000
TRUSTED_S = SESSION_MS / 1000 * 0.6
"""How long a member counts on its session after it has sent a heartbeat: clocks of nodes drift."""
REBALANCE_MS = 4_000
HEARTBEAT_S = 0.1
DIE = 0.01
LEAVE = 0.06
"""The chances per heartbeat that a member crashes, and that it leaves and comes back: then others must give up what
they got."""
BUSY_HEARTBEATS = (0, 3, 8)
"""How many heartbeats a member needs to take an assignment over: it must finish what it does."""
GENTLER = 0.3
GENTLER_FAULTS = ("crash_at_flush", "crash_new_leader", "crash", "power_cut", "blackout", "pause", "isolate")

_STRANGER = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNRELEASED_INSTANCE_ID)


class ConsumerWorld(ClusterWorld):
    """Everything that one seed consists of."""

    def __init__(self, seed: int, *, nodes: int | None = None, tracing: bool = False) -> None:
        super().__init__(seed, nodes=nodes or 3, tracing=tracing)
        random = self.random_for("groups")
        self.consumer_group = None
        self.group_settings = GroupSettings(
            consumer_session_timeout_ms=SESSION_MS,
            consumer_heartbeat_interval_ms=100,
            consumer_assignment_interval_ms=random.choice((0, 300)),
            offsets_topic_partitions=1,
        )
        static = random.choice((0, 1))
        self.members = [
            SimConsumer(self, f"consumer {number}", is_static=number < static)
            for number in range(random.choice((2, 3)))
        ]

    def _draw_mix(self) -> FaultMix:
        """Fewer faults than at the node level, so that members get on between them."""
        mix = super()._draw_mix()
        return msgspec.structs.replace(mix, **{name: getattr(mix, name) * GENTLER for name in GENTLER_FAULTS})

    def _draw_partition_count(self) -> int:
        return self._random.choice((4, 5))

    def check_hands(self) -> None:
        owners: dict[object, str] = {}
        for member in self.members:
            for partition in member.hands:
                if partition in owners:
                    detail = f"{partition[1]} is in the hands of {owners[partition]} and {member.name}"
                    raise Violation("a partition is in the hands of one member", detail)
                owners[partition] = member.name

    # --- running

    def _gather_clients(self) -> None:
        """Every member has an answer before the faults begin."""
        for member in self.members:
            member.start(member.run)
        while not all(member.epoch for member in self.members):
            if self.scheduler.time > FORMING_S:
                raise Violation("members join", self.client_obstacles())
            self._until(self.scheduler.time + 0.25)

    @property
    def clients_are_settled(self) -> bool:
        """Check 2."""
        alive = [member for member in self.members if not member.is_gone]
        held = sorted(index for member in alive for _, index in member.hands)
        return held == list(range(self.partition_count)) and self._is_stable(len(alive))

    def _is_stable(self, members: int) -> bool:
        for host in self.hosts:
            for one in host.node.groups.summaries() if host.ready else ():
                if one.group_id == GROUP:
                    return one.state == "Stable" and one.member_count == members
        return False

    def client_obstacles(self) -> str:
        told = [
            f"{member.name} in {member.epoch} has {sorted(index for _, index in member.hands)}"
            for member in self.members
            if not member.is_gone
        ]
        known = [
            f"{host.name}: {one.state} with {one.member_count}"
            for host in self.hosts
            if host.ready
            for one in host.node.groups.summaries()
            if one.group_id == GROUP
        ]
        return "; ".join([*told, *known])

    def _check_clients(self) -> None:
        self.check_hands()

    def _count(self) -> None:
        super()._count()
        self.tally.add("partitions that changed hands", sum(member.taken for member in self.members))

    def _dispose(self) -> None:
        for member in self.members:
            member.end()
        super()._dispose()


class SimConsumer(NodeClient):
    """One consumer, through all its lives."""

    def __init__(self, world: ConsumerWorld, name: str, *, is_static: bool) -> None:
        super().__init__(world, name)
        self._group = world
        self._instance = name if is_static else None
        self._lives = 0
        self._coordinator: Host | None = None
        self._trusted_until = 0.0
        self.taken = 0
        self.is_gone = False
        self._begin()

    def _begin(self) -> None:
        self._lives += 1
        self._member_id = f"{self.name} {self._lives}"
        self._forget()

    def _forget(self) -> None:
        self.epoch = 0
        self._owned: Assignment = NOTHING
        self._target: Assignment = NOTHING
        self._busy = 0
        self._is_complete = True
        """Whether the next request says everything: the coordinator may have missed the last one."""
        self._is_confirmed = False
        """Whether the coordinator has heard what the member owns."""

    @property
    def hands(self) -> Assignment:
        return self._owned if self.world.scheduler.time < self._trusted_until else NOTHING

    async def run(self) -> None:
        while not self.is_gone:
            await self.pause(HEARTBEAT_S)
            if not self.world.calm and self.random.random() < DIE:
                await self._die()
                continue
            if not self.world.calm and self._owned and self.random.random() < LEAVE:
                await self._leave()
                continue
            sent = self.world.scheduler.time
            try:
                result = await self._heartbeat()
            except (NoAnswer, PenstockError):
                self._lose_coordinator()
                continue
            self._hear(result, sent)

    def _lose_coordinator(self) -> None:
        self._coordinator, self._is_complete = None, True

    async def _die(self) -> None:
        self.world.tally.add("consumers that died")
        self._begin()
        await self.pause(self.random.choice((0.1, 1.0, 3.0)))

    async def _leave(self) -> None:
        """It may not be heard: then its session ends."""
        request = ConsumerHeartbeat(
            group_id=GROUP, member_id=self._member_id, member_epoch=LEAVING, instance_id=self._instance
        )
        self._begin()
        if self._coordinator is not None:
            with suppress(NoAnswer, PenstockError):
                await self.ask(self._coordinator, lambda node: node.groups.consumer_heartbeat(request))
        await self.pause(0.5)

    async def _heartbeat(self) -> ConsumerHeartbeatResult:
        if self._coordinator is None:
            self._coordinator = await self._find()
        request = ConsumerHeartbeat(
            group_id=GROUP,
            member_id=self._member_id,
            member_epoch=self.epoch,
            instance_id=self._instance,
            rebalance_timeout_ms=REBALANCE_MS if self._is_complete else -1,
            topics=(TOPIC,) if self._is_complete else None,
            owned=self._owned if self._is_complete or not self._is_confirmed else None,
        )

        async def heartbeat(node: Node) -> ConsumerHeartbeatResult:
            return await node.groups.consumer_heartbeat(request)

        return await self.ask(self._coordinator, heartbeat)

    async def _find(self) -> Host:
        async def find(node: Node) -> int:
            await node.groups.cores.ensure_topic()
            return node.view.coordinator(GROUP).node_id

        return self.host(await self.ask(self.any_host(), find))

    def _hear(self, result: ConsumerHeartbeatResult, sent: float) -> None:
        if result.error is not ErrorCode.NONE:
            if result.error in _STRANGER:
                self._forget()
            self._lose_coordinator()
            return
        self.epoch, self._is_complete, self._is_confirmed = result.member_epoch, False, True
        self._trusted_until = sent + TRUSTED_S
        if result.assignment is not None:
            self._target, self._is_confirmed = result.assignment, False
            self._busy = 0 if self.world.calm else self.random.choice(BUSY_HEARTBEATS)
        self._busy -= 1
        if self._owned != self._target and self._busy < 0:
            self.taken += len(self._target - self._owned)
            self._owned, self._is_confirmed = self._target, False
        self._group.check_hands()
