"""Members of a consumer group: they join, work, commit, and sometimes crash.

Each is a client of the classic protocol with its own state: find the coordinator, join, sync (the leader sends the
assignments), fetch the committed offsets, then heartbeat and commit. An error sends it back to one of these steps. A
member asks a node what the handlers of the Kafka port ask, without the port.
"""

from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING, TypeVar

from penstock.errors import ErrorCode, PenstockError
from penstock.groups import (
    NO_GENERATION,
    NO_MEMBER,
    CommitRequest,
    CommitResult,
    JoinRequest,
    JoinResult,
    LeavingMember,
    OffsetToCommit,
    Protocol,
    SyncRequest,
    SyncResult,
)
from penstock.node import Node
from penstock.sim.group_checks import NOTHING, GroupChecks
from penstock.sim.host import Host
from penstock.sim.node_client import ANSWER_S, REQUEST_TIMEOUT_S, put
from penstock.sim.partitions import TOPIC
from penstock.types import TopicPartition

if TYPE_CHECKING:
    from penstock.sim.cluster import ClusterWorld

T = TypeVar("T")

PARTITIONS = 5
"""Partitions whose offsets they commit: more than their topic may have. Coordinators do not check that."""
SESSION_MS = 1500
REBALANCE_MS = 2000
JOIN_TIMEOUT_S = 3.0
WAKE_S = 0.12
VANISH = 0.03
"""Chance per step that a member crashes; the chance that it leaves the group is the same."""
ISOLATED_COMMITS = 0.3
ISOLATED_SYNCS = 3.0
"""How much more often than the fault mix says a coordinator is isolated right after it has taken a request."""

_LOST = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
_STRANGER = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)


class GroupMember:
    """One consumer, through all its lives."""

    def __init__(
        self, world: "ClusterWorld", checks: GroupChecks, number: int, random: Random, *, static: bool
    ) -> None:
        self._world = world
        self._ledger = checks
        self._name = f"m{number}"
        self._random = random
        self._instance = self._name if static else None
        self._lives = 0
        self._request = 0
        self._waits = False
        self._away_until = 0.0
        self.away = False
        self.gone = False
        """Whether it has left for good."""
        self.resting = False
        """It commits no more: in the end all logs must be equal."""
        self._begin()

    def _begin(self) -> None:
        """A new process: it knows nothing."""
        self._lives += 1
        self._coordinator: Host | None = None
        self._member_id = NO_MEMBER
        self._positions: dict[int, int] = {}
        """How far it got, or tried to get, with each partition it ever had."""
        self._leave_generation()

    def _leave_generation(self) -> None:
        self.generation = NO_GENERATION
        self._joined: JoinResult | None = None
        self.owned: tuple[int, ...] | None = None
        """None: not assigned yet."""
        self._knows_offsets = False

    @property
    def is_working(self) -> bool:
        return not self.away and self.owned is not None and self._knows_offsets

    # --- steps

    def wake(self) -> None:
        """Its next step, unless it waits for an answer."""
        if self.gone or self._waits or self._world.scheduler.time < self._away_until:
            return
        self.away = False
        if not self._world.calm and self._random.random() < VANISH:
            self._vanish()
        elif self._coordinator is None:
            self._find()
        elif self._joined is None:
            self._join(self._coordinator)
        elif self.owned is None:
            self._sync(self._coordinator, self._joined)
        elif not self._knows_offsets:
            self._fetch(self._coordinator, self.owned)
        elif self.owned and not self.resting and self._random.random() < 0.5:
            self._commit(self._coordinator, self.owned)
        elif not self._world.calm and self._random.random() < VANISH:
            self._leave(self._coordinator)
        else:
            self._heartbeat(self._coordinator)

    def die(self) -> None:
        """The member crashes without leaving the group."""
        self._begin()
        self.gone, self._waits = True, False
        self._request += 1

    def _vanish(self) -> None:
        self._world.tally.add("group members crashed")
        self._go_away()

    def _go_away(self) -> None:
        """Stops for a time that is shorter or longer than a session."""
        self._begin()
        self.away = True
        self._away_until = self._world.scheduler.time + self._random.choice((0.2, 1.0, 3.0))

    def _find(self) -> None:
        async def find(node: Node) -> int:
            await node.groups.cores.ensure_topic()
            return node.view.coordinator(self._ledger.group_id).node_id

        def found(node_id: int) -> None:
            self._coordinator = self._world.hosts[node_id - 1]

        self._ask(self._random.choice(self._world.hosts), find, found)

    def _join(self, coordinator: Host) -> None:
        request = JoinRequest(
            group_id=self._ledger.group_id,
            member_id=self._member_id,
            new_member_id=f"{self._name}-{self._lives}-{self._request}",
            instance_id=self._instance,
            protocol_type="sim",
            protocols=(Protocol("any", b""),),
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            requires_known_member_id=True,
        )

        def joined(result: JoinResult) -> None:
            if result.error is ErrorCode.MEMBER_ID_REQUIRED:
                self._member_id = result.member_id
            elif result.error is ErrorCode.NONE:
                self._member_id, self.generation, self._joined = result.member_id, result.generation, result
            else:
                self._refused(result.error)

        self._ask(coordinator, lambda node: node.groups.join(request), joined, timeout_s=JOIN_TIMEOUT_S)

    def _sync(self, coordinator: Host, joined: JoinResult) -> None:
        request = SyncRequest(
            group_id=self._ledger.group_id,
            generation=self.generation,
            member_id=self._member_id,
            instance_id=self._instance,
            assignments=self._assign([one.member_id for one in joined.members]),
        )
        owner = self._instance or self._member_id

        def told(result: SyncResult) -> None:
            if result.error is ErrorCode.NONE:
                self._ledger.assigned(owner, request.generation, result.assignment)

        def synced(result: SyncResult) -> None:
            if result.error is ErrorCode.NONE:
                self.owned = tuple(result.assignment)
            else:
                self._refused(result.error)

        self._ask(coordinator, lambda node: node.groups.sync(request), synced, told, timeout_s=JOIN_TIMEOUT_S)
        if request.assignments:
            self._world.faults.isolate_writer(coordinator, share=ISOLATED_SYNCS)

    def _assign(self, members: list[str]) -> dict[str, bytes]:
        """Each partition to one of them; never twice the same way, so that generations cannot be mistaken."""
        if not members:
            return {}
        self._random.shuffle(members)
        shares = {member: members.index(member) for member in members}
        return {member: bytes(range(share, PARTITIONS, len(members))) for member, share in shares.items()}

    def _fetch(self, coordinator: Host, owned: tuple[int, ...]) -> None:
        reached = {partition: self._ledger.reached(partition) for partition in owned}

        async def fetch(node: Node) -> dict[int, int]:
            wanted = [TopicPartition(TOPIC, partition) for partition in owned]
            found = node.groups.committed(self._ledger.group_id, wanted)
            return {one.partition: found[one].offset if one in found else NOTHING for one in wanted}

        def told(offsets: dict[int, int]) -> None:
            for partition, offset in offsets.items():
                self._ledger.shown(self._name, partition, offset, reached=reached[partition])

        def fetched(offsets: dict[int, int]) -> None:
            for partition, offset in offsets.items():
                self._positions[partition] = max(self._positions.get(partition, NOTHING), offset)
            self._knows_offsets = True

        self._ask(coordinator, fetch, fetched, told)

    def _commit(self, coordinator: Host, owned: tuple[int, ...]) -> None:
        chosen = self._random.sample(owned, self._random.randint(1, len(owned)))
        for partition in chosen:
            self._positions[partition] += self._random.choice((1, 1, 5))
        offsets = {partition: self._positions[partition] for partition in chosen}
        request = CommitRequest(
            group_id=self._ledger.group_id,
            generation=self.generation,
            member_id=self._member_id,
            instance_id=self._instance,
            offsets=tuple(
                OffsetToCommit(topic=TOPIC, partition=partition, offset=offset)
                for partition, offset in offsets.items()
            ),
        )

        def told(result: CommitResult) -> None:
            codes = {one.partition: code for one, code in result.errors.items()}
            taken = {p: offset for p, offset in offsets.items() if codes[p] is ErrorCode.NONE}
            if taken:
                self._ledger.acknowledged(taken)

        def committed(result: CommitResult) -> None:
            for code in result.errors.values():
                if code is not ErrorCode.NONE:
                    self._refused(code)

        self._ask(coordinator, lambda node: node.groups.commit(request), committed, told)
        self._world.faults.isolate_writer(coordinator, share=ISOLATED_COMMITS)

    def _heartbeat(self, coordinator: Host) -> None:
        group_id, generation, member_id = self._ledger.group_id, self.generation, self._member_id

        def answered(code: ErrorCode) -> None:
            if code is not ErrorCode.NONE:
                self._refused(code)

        self._ask(
            coordinator,
            lambda node: node.groups.heartbeat(group_id, generation, member_id, self._instance),
            answered,
        )

    def _leave(self, coordinator: Host) -> None:
        self._world.tally.add("group members left")
        leaving = [LeavingMember(member_id=self._member_id, instance_id=self._instance)]
        self._ask(
            coordinator, lambda node: node.groups.leave(self._ledger.group_id, leaving), lambda result: None
        )
        self._waits = False
        self._go_away()

    def _refused(self, code: ErrorCode) -> None:
        """Back to the step that this error means."""
        if code in _LOST:
            self._coordinator = None
            return
        if code in _STRANGER:
            self._member_id = NO_MEMBER
        self._leave_generation()

    # --- questions

    def _ask(
        self,
        host: Host,
        question: Callable[[Node], Awaitable[T]],
        then: Callable[[T], None],
        told: Callable[[T], None] = lambda result: None,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        """`told` gets every answer; `then` only one that is still waited for."""
        self._request += 1
        self._waits = True
        scheduler, request = self._world.scheduler, self._request

        def arrived(result: T | None) -> None:
            if result is not None:
                told(result)
            if request == self._request and self._waits:
                self._waits = False
                if result is None:
                    self._coordinator = None
                else:
                    then(result)

        def answer(result: T | PenstockError) -> None:
            told = None if isinstance(result, PenstockError) else result
            scheduler.after(ANSWER_S, None, arrived, told)

        delay = self._random.random() * 0.01
        scheduler.deliver(delay, host, put, host, question, answer)
        scheduler.after(timeout_s, None, arrived, None)


class SimConsumerGroup:
    """A group with all its members."""

    def __init__(self, world: "ClusterWorld", random: Random) -> None:
        self._world = world
        self._random = random
        self.checks = GroupChecks("workers")
        count, static = random.choice((2, 3, 4)), random.choice((0, 0, 1, 2))
        self._members = [
            GroupMember(
                world, self.checks, number, world.random_for(f"member {number}"), static=number <= static
            )
            for number in range(1, count + 1)
        ]

    def begin(self) -> None:
        for member in self._members:
            self._wake(member)

    def _wake(self, member: GroupMember) -> None:
        member.wake()
        wait = WAKE_S * (0.5 + self._random.random())
        self._world.scheduler.after(wait, None, self._wake, member)

    def last_blow(self) -> None:
        """The faults end with the death of a member, and often of its coordinator too: the next one must find out."""
        if self._random.random() < 0.5:
            return
        self._world.tally.add("group members gone for good")
        self._members.pop(self._random.randrange(len(self._members))).die()
        for host in self._world.hosts:
            if host.ready and any(
                one.group_id == self.checks.group_id for one in host.node.groups.summaries()
            ):
                self._world.kill(host)
                return

    def rest(self) -> None:
        """No more commits."""
        for member in self._members:
            member.resting = True

    @property
    def is_settled(self) -> bool:
        """All members work in one generation, and every partition has an owner (3)."""
        if not all(member.is_working for member in self._members):
            return False
        generations = {member.generation for member in self._members}
        owned = sorted(partition for member in self._members for partition in member.owned or ())
        return len(generations) == 1 and owned == list(range(PARTITIONS)) and self._has_no_other_member()

    def _has_no_other_member(self) -> bool:
        """Whether the coordinator says that the group has no other member."""
        for host in self._world.hosts:
            if host.ready:
                for one in host.node.groups.summaries():
                    if one.group_id == self.checks.group_id:
                        return one.state == "Stable" and one.member_count == len(self._members)
        return False

    def obstacles(self) -> str:
        told = [
            f"{member._name} {'is away' if member.away else f'in {member.generation} has {member.owned}'}"
            for member in self._members
        ]
        return f"group {self.checks.group_id}: {', '.join(told)}"

    def check(self) -> None:
        """Checks, at the end, that the coordinator knows every commit that was acknowledged."""
        checks = self.checks
        for host in self._world.hosts:
            if host.ready:
                for one in host.node.groups.summaries():
                    offsets = {where.partition: offset for where, offset in one.offsets.items()}
                    for partition in range(PARTITIONS) if one.group_id == checks.group_id else ():
                        reached = checks.reached(partition)
                        checks.shown(host.name, partition, offsets.get(partition, NOTHING), reached=reached)
        self._world.tally.add("group generations", len(checks.generations))
        self._world.tally.add("group commits acknowledged", checks.commits)
