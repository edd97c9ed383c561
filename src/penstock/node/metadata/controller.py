"""What any node asks of the controller, wherever that is.

The controller is the leader of the metadata group. A question goes to it directly if it is this node, else over the
inter-node port; when the controller changes meanwhile, the question goes to the next one, if asking twice does no harm.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import msgspec

from penstock.cluster import (
    ClusterState,
    MetadataRecord,
    Move,
    MoveLimits,
    NodeRegistered,
    PlacementRules,
    ProducerIdsReserved,
    TopicWish,
    decisions,
    decommission_node,
    next_moves,
    plan_leaders,
    plan_rebalance,
    register_node,
    report_damaged,
    report_moved,
    start_moves,
)
from penstock.errors import ErrorCode, KafkaError
from penstock.node.metadata.cluster_view import METADATA_GROUP
from penstock.node.metadata.metadata_log import MetadataLog
from penstock.node.replication.leaders import NO_LEADER, LeaderTable
from penstock.types import GroupId, NodeId, Replica

if TYPE_CHECKING:
    from penstock.node.peers import Rpc

FORWARD = 1
"""A Kafka request of a client, as it came."""
CREATE_TOPIC = 2
CREATE_INTERNAL_TOPIC = 3
PRODUCER_IDS = 4
REGISTER = 5
MOVED = 6
HAND_OVER = 7
"""Of the lead: the only one that is asked of a partition's leader and not of the controller."""
DECOMMISSION = 8
REBALANCE = 9
DAMAGED = 10
CREATE_TOPIC_AS = 11
"""As CREATE_TOPIC, with a number of partitions and configs."""

MAX_NODES = 20
"""All are members of the metadata group, whose configuration must fit into a sector beside the log's checkpoint, also
while it changes from five voters to five others."""
PATIENCE_SECONDS = 10.0
"""How long a question waits for a controller: an election, and then some."""
ANSWER_MS = 10_000
RETRY_SECONDS = 0.1

Seen = Callable[[], dict[int, int]]
"""Nodes that are there and their incarnations, as gossip has it."""
Forwarded = Callable[[memoryview], Awaitable[bytes]]


class InternalTopic(msgspec.Struct, frozen=True, array_like=True):
    name: str
    partitions: int


class TopicAs(msgspec.Struct, frozen=True, array_like=True):
    name: str
    partitions: int
    configs: dict[str, str]


class Moved(msgspec.Struct, frozen=True, array_like=True):
    """A leader's report: its group is now these, by the entry that ends at `index` of the group's log."""

    topic_id: bytes
    partition: int
    voters: list[tuple[int, int]]
    index: int


class Damaged(msgspec.Struct, frozen=True, array_like=True):
    """A node's report: its replica is not what it acknowledged, and would be this incarnation if it was made anew."""

    topic_id: bytes
    partition: int
    replica: tuple[int, int]
    renewal: int


class HandOver(msgspec.Struct, frozen=True, array_like=True):
    topic_id: bytes
    partition: int
    to: int


class Decommission(msgspec.Struct, frozen=True, array_like=True):
    node_id: int
    on: bool


class Rebalance(msgspec.Struct, frozen=True, array_like=True):
    """`at_once`: how many partitions may be under way."""

    dry_run: bool
    at_once: int


class PlannedMove(msgspec.Struct, frozen=True, kw_only=True):
    """One partition's replicas as they are and as they shall be, and why, in words. `copies` are the nodes that have to
    be sent its data; none when only the preferred leader changes."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    target: tuple[int, ...]
    copies: tuple[int, ...]
    reason: str


class PlannedLead(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    leader: int
    to: int


class RebalanceStep(msgspec.Struct, frozen=True, kw_only=True):
    """What one call has set going, and what is left: moves that wait for their turn, leads that are not where they
    belong (also those that are just being handed over), and how many moves are under way."""

    begun: tuple[PlannedMove, ...]
    handed_over: tuple[PlannedLead, ...]
    moves_left: tuple[PlannedMove, ...]
    leads_left: tuple[PlannedLead, ...]
    under_way: int

    @property
    def done(self) -> bool:
        return not (self.moves_left or self.leads_left or self.under_way)


class IdBlock(msgspec.Struct, frozen=True, array_like=True):
    first: int
    end: int


_pack = msgspec.msgpack.encode
_registered = msgspec.msgpack.Decoder(NodeRegistered)
_packed = msgspec.msgpack.Encoder(uuid_format="bytes")


Serve = Callable[[memoryview], Awaitable[bytes]]


def _without_sender(serve: Serve) -> Callable[[NodeId, memoryview], Awaitable[bytes]]:
    return lambda sender, question: serve(question)


class Controller:
    """Asks the controller, and answers where this node is it."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        metadata: MetadataLog,
        leaders: LeaderTable,
        rules: PlacementRules,
        is_factor_wanted: bool,
        rpc: "Rpc | None",
        seen: Seen,
        transfer: Callable[[GroupId, int], None],
    ) -> None:
        """`is_factor_wanted`: the default replication factor was set by a person and is to be kept, whatever the number
        of nodes. `transfer` hands over a group that this node leads; KafkaError says why not."""
        self._rules = rules
        self._is_factor_wanted = is_factor_wanted
        self._node_id = node_id
        self._metadata = metadata
        self._leaders = leaders
        self._rpc = rpc
        self._seen = seen
        self._transfer = transfer
        self._producer_ids = range(0)
        self._reserving: asyncio.Task[None] | None = None
        self.forwarded: Forwarded | None = None
        """How a client's request that another node forwards is answered; whoever serves clients sets it."""
        self._serve: dict[int, Serve] = {
            FORWARD: self._serve_forwarded,
            CREATE_TOPIC: self._serve_create_topic,
            CREATE_TOPIC_AS: self._serve_create_topic_as,
            CREATE_INTERNAL_TOPIC: self._serve_create_internal_topic,
            PRODUCER_IDS: self._serve_producer_ids,
            REGISTER: self._serve_register,
            MOVED: self._serve_moved,
            HAND_OVER: self._serve_hand_over,
            DECOMMISSION: self._serve_decommission,
            REBALANCE: self._serve_rebalance,
            DAMAGED: self._serve_damaged,
        }
        if rpc is not None:
            for method, serve in self._serve.items():
                rpc.handle(method, _without_sender(serve))

    @property
    def rules(self) -> PlacementRules:
        """How new topics are placed. A default of three copies does not keep a cluster of two from having topics; but a
        cluster that was founded by three is not taken for one of two because the third is late."""
        known = len(self._metadata.state.nodes)
        config = self._metadata.partition.consensus.core.config
        founders = len(config.voters) if config is not None else 1
        factor = self._rules.default_replication_factor
        if not self._is_factor_wanted:
            factor = min(factor, max(known, founders))
        return msgspec.structs.replace(self._rules, default_replication_factor=factor)

    # --- asking

    async def create_topic(
        self, name: str, *, partitions: int = decisions.DEFAULT, configs: Mapping[str, str] | None = None
    ) -> None:
        """Creates a topic because somebody used it; that two did so at once is no error."""
        if partitions == decisions.DEFAULT and not configs:
            await self._ask(CREATE_TOPIC, name.encode())
        else:
            await self._ask(CREATE_TOPIC_AS, _pack(TopicAs(name, partitions, dict(configs or {}))))
        await self._applied(name)

    async def create_internal_topic(self, name: str, partitions: int) -> None:
        """Creates one of the broker's own topics unless it is there."""
        await self._ask(CREATE_INTERNAL_TOPIC, _pack(InternalTopic(name, partitions)))
        await self._applied(name)

    async def next_producer_id(self) -> int:
        """An id that no producer has had; blocks of them are reserved in the log, so most calls write nothing."""
        while not self._producer_ids:
            if self._reserving is None:
                self._reserving = asyncio.get_running_loop().create_task(self._reserve())
            await asyncio.shield(self._reserving)
        producer_id = self._producer_ids[0]
        self._producer_ids = self._producer_ids[1:]
        return producer_id

    async def _reserve(self) -> None:
        try:
            question = self._node_id.to_bytes(4, "big")
            block = msgspec.msgpack.decode(await self._ask(PRODUCER_IDS, question), type=IdBlock)
            self._producer_ids = range(block.first, block.end)
        finally:
            self._reserving = None

    async def register(self, node: NodeRegistered) -> None:
        await self._ask(REGISTER, _packed.encode(node))

    async def report_moved(self, group: GroupId, voters: Sequence[Replica], index: int) -> None:
        rows = [(int(voter.node), voter.incarnation) for voter in voters]
        await self._ask(MOVED, _pack(Moved(group.topic_id.bytes, group.partition, rows, index)))

    async def report_damaged(self, group: GroupId, replica: Replica, renewal: int) -> None:
        row = (int(replica.node), replica.incarnation)
        await self._ask(DAMAGED, _pack(Damaged(group.topic_id.bytes, group.partition, row, renewal)))

    async def hand_over(self, group: GroupId, leader: int, to: int) -> None:
        """Asks a partition's leader to let another replica lead. KafkaError says why not."""
        question = _pack(HandOver(group.topic_id.bytes, group.partition, to))
        if leader == self._node_id or self._rpc is None:
            await self._serve_hand_over(memoryview(question))
            return
        from penstock.node.peers import CallFailed

        try:
            await self._rpc.call(NodeId(leader), HAND_OVER, question, ANSWER_MS)
        except CallFailed as failed:
            raise KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, str(failed)) from failed

    async def forward(self, request: bytes | memoryview) -> memoryview:
        """A client's request, answered by the controller. Not sent twice: it may have been carried out."""
        return await self._ask(FORWARD, request, twice=False)

    async def _ask(self, method: int, question: bytes | memoryview, *, twice: bool = True) -> memoryview:
        if self._rpc is None:
            return memoryview(await self._serve[method](memoryview(question)))
        from penstock.node.peers import CallFailed, CallProblem

        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_SECONDS
        while True:
            try:
                return await self._ask_once(self._rpc, method, question)
            except CallFailed as failed:
                reason: Exception = failed
                if not twice and failed.problem is not CallProblem.NOT_CONNECTED:
                    raise
            except KafkaError as refused:
                if refused.code not in (ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_LEADER_OR_FOLLOWER):
                    raise
                reason = refused
            if loop.time() > deadline:
                raise KafkaError(ErrorCode.NOT_CONTROLLER, f"there is no controller: {reason}")
            await asyncio.sleep(RETRY_SECONDS)

    async def _ask_once(self, rpc: "Rpc", method: int, question: bytes | memoryview) -> memoryview:
        leader = self._leaders.get(METADATA_GROUP).leader
        if leader == self._node_id:
            return memoryview(await self._serve[method](memoryview(question)))
        if leader == NO_LEADER:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "none is elected")
        return await rpc.call(NodeId(leader), method, question, ANSWER_MS)

    async def _applied(self, topic: str) -> None:
        """The controller knows the topic; this node soon does."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while topic not in self._metadata.state.topics:
                    await self._metadata.next_change()
        except TimeoutError:
            message = f"{topic} was created and is not known here yet"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message) from None

    # --- answering

    async def _serve_forwarded(self, question: memoryview) -> bytes:
        self._metadata.check_controller()
        assert self.forwarded is not None
        return await self.forwarded(question)

    async def _serve_create_topic(self, question: memoryview) -> bytes:
        await self._create(TopicWish(name=str(question, "utf-8"), topic_id=uuid4()))
        return b""

    async def _serve_create_topic_as(self, question: memoryview) -> bytes:
        wish = msgspec.msgpack.decode(question, type=TopicAs)
        configs: dict[str, str | None] = dict(wish.configs)
        await self._create(
            TopicWish(name=wish.name, topic_id=uuid4(), partitions=wish.partitions, configs=configs)
        )
        return b""

    async def _create(self, wish: TopicWish) -> None:
        try:
            await self._metadata.change(lambda state: decisions.create_topic(state, wish, self.rules))
        except KafkaError as refused:
            if refused.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise

    async def _serve_create_internal_topic(self, question: memoryview) -> bytes:
        wish = msgspec.msgpack.decode(question, type=InternalTopic)
        topic_id = uuid4()

        def decide(state: ClusterState) -> Sequence[MetadataRecord]:
            if wish.name in state.topics:
                return []
            return decisions.create_internal_topic(state, wish.name, topic_id, wish.partitions, self.rules)

        await self._metadata.change(decide)
        return b""

    async def _serve_producer_ids(self, question: memoryview) -> bytes:
        node_id = int.from_bytes(question, "big")
        records = await self._metadata.change(lambda state: decisions.reserve_producer_ids(state, node_id))
        block = next(record for record in records if isinstance(record, ProducerIdsReserved))
        return _pack(IdBlock(block.first, block.end))

    async def _serve_register(self, question: memoryview) -> bytes:
        node = _registered.decode(question)
        known = self._metadata.state.nodes
        if node.node_id not in known and len(known) >= MAX_NODES:
            message = f"node {node.node_id} cannot join: the cluster has {len(known)} nodes, its limit"
            raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
        await self._metadata.change(lambda state: register_node(state, node, self._seen()))
        return b""

    async def _serve_moved(self, question: memoryview) -> bytes:
        report = msgspec.msgpack.decode(question, type=Moved)
        group = GroupId(UUID(bytes=report.topic_id), report.partition)
        voters = [Replica(NodeId(node), incarnation) for node, incarnation in report.voters]
        await self._metadata.change(lambda state: report_moved(state, group, voters, report.index))
        return b""

    async def _serve_damaged(self, question: memoryview) -> bytes:
        report = msgspec.msgpack.decode(question, type=Damaged)
        group = GroupId(UUID(bytes=report.topic_id), report.partition)
        replica = Replica(NodeId(report.replica[0]), report.replica[1])
        await self._metadata.change(lambda state: report_damaged(state, group, replica, report.renewal))
        return b""

    async def _serve_hand_over(self, question: memoryview) -> bytes:
        wish = msgspec.msgpack.decode(question, type=HandOver)
        self._transfer(GroupId(UUID(bytes=wish.topic_id), wish.partition), wish.to)
        return b""

    # --- what operators ask for

    async def decommission(self, node_id: int, *, on: bool = True) -> None:
        """Has a node emptied and then removed, or lets it stay after all. KafkaError says why not."""
        await self._ask(DECOMMISSION, _pack(Decommission(node_id, on)))

    async def rebalance(self, *, dry_run: bool, at_once: int) -> RebalanceStep:
        """Sets going as many moves as may be under way at once, and when none is left, hands leads to whom they belong.
        Nobody remembers that a rebalance is wanted: whoever wants all of it asks until it is done, and whoever stops
        asking leaves nothing half done."""
        answer = await self._ask(REBALANCE, _pack(Rebalance(dry_run, at_once)))
        return msgspec.msgpack.decode(answer, type=RebalanceStep)

    async def _serve_decommission(self, question: memoryview) -> bytes:
        wish = msgspec.msgpack.decode(question, type=Decommission)
        await self._metadata.change(lambda state: decommission_node(state, wish.node_id, on=wish.on))
        return b""

    async def _serve_rebalance(self, question: memoryview) -> bytes:
        wish = msgspec.msgpack.decode(question, type=Rebalance)
        self._metadata.check_controller()
        begun = [] if wish.dry_run else await self._begin_moves(MoveLimits(at_once=wish.at_once))
        state = self._metadata.state
        left = plan_rebalance(state)
        under_way = sum(assignment.target is not None for _, _, assignment in state.groups())
        leads = self._misplaced_leads()
        handed_over = [] if wish.dry_run or left or under_way else await self._hand_over_all(leads)
        step = RebalanceStep(
            begun=tuple(map(_planned, begun)),
            handed_over=tuple(handed_over),
            moves_left=tuple(map(_planned, left)),
            leads_left=tuple(leads),
            under_way=under_way,
        )
        return _pack(step)

    async def _begin_moves(self, limits: MoveLimits) -> list[Move]:
        begun: list[Move] = []

        def decide(state: ClusterState) -> Sequence[MetadataRecord]:
            begun[:] = next_moves(state, limits)
            return start_moves(state, begun)

        await self._metadata.change(decide)
        return begun

    def _misplaced_leads(self) -> list[PlannedLead]:
        known = {group: self._leaders.get(group) for _, group, _ in self._metadata.state.groups()}
        leaders = {group: int(row.leader) for group, row in known.items() if row.leader != NO_LEADER}
        ready = {group: row.in_sync for group, row in known.items()}
        planned = plan_leaders(self._metadata.state, leaders, ready)
        return [
            PlannedLead(topic=topic.name, partition=group.partition, leader=leaders[group], to=to)
            for group, to in planned
            if (topic := self._metadata.state.topic_by_id(group.topic_id)) is not None
        ]

    async def _hand_over_all(self, leads: Sequence[PlannedLead]) -> list[PlannedLead]:
        """Those that their leaders agreed to; the others may be asked again later."""
        done: list[PlannedLead] = []
        for lead in leads:
            topic = self._metadata.state.topics.get(lead.topic)
            if topic is not None:
                with suppress(KafkaError):
                    await self.hand_over(GroupId(topic.topic_id, lead.partition), lead.leader, lead.to)
                    done.append(lead)
        return done


def _planned(move: Move) -> PlannedMove:
    return PlannedMove(
        topic=move.topic,
        partition=move.group.partition,
        replicas=move.replicas,
        target=move.target,
        copies=move.copies,
        reason=move.reason.value,
    )
