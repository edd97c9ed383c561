"""The controller: it decides about topics, placement and nodes, on whichever node leads the metadata group.

`Controller` has both sides. Its methods ask the controller, wherever that is (`node.calls`), and its handlers answer on
the node that has the role.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple
from uuid import uuid4

import msgspec

from penstock.cluster import (
    ClusterState,
    MetadataRecord,
    Move,
    MoveLimits,
    NewTopic,
    NodeRegistered,
    PlacementRules,
    ProducerIdsReserved,
    decisions,
    decommission_node,
    machine_count,
    next_moves,
    plan_leaders,
    plan_rebalance,
    register_node,
    report_damaged,
    report_moved,
    start_moves,
)
from penstock.config.node import MAX_NODES
from penstock.errors import ErrorCode, KafkaError
from penstock.node.calls import BROKER, CONTROLLER, AtNode, Calls, methods
from penstock.node.calls.messages.controller import (
    CreateInternalTopic,
    CreateTopic,
    DecommissionNode,
    PlannedLead,
    PlannedMove,
    ProducerIdBlock,
    Rebalance,
    RebalanceStep,
    ReportDamage,
    ReportVoters,
    ReserveProducerIds,
    TransferLeadership,
)
from penstock.node.calls.retry import RETRY_SECONDS
from penstock.node.metadata.metadata_log import MetadataLog
from penstock.node.metadata.planning import planned
from penstock.node.replication.leaders import NO_LEADER, LeaderTable
from penstock.types import Caller, GroupId, NodeId, Replica

Seen = Callable[[], dict[int, int]]
"""Nodes that gossip knows to be alive, with their incarnations."""


class Controller:
    """Asks the controller, and answers if this node has that role."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        metadata: MetadataLog,
        leaders: LeaderTable,
        rules: PlacementRules,
        is_factor_wanted: bool,
        calls: Calls,
        seen: Seen,
        transfer: Callable[[GroupId, int], None],
    ) -> None:
        """`is_factor_wanted`: the default replication factor was configured and holds whatever the number of nodes.
        `transfer` hands over a group that this node leads; KafkaError says why not."""
        self._rules = rules
        self._is_factor_wanted = is_factor_wanted
        self._node_id = node_id
        self._metadata = metadata
        self._leaders = leaders
        self._calls = calls
        self._seen = seen
        self._transfer = transfer
        self._producer_ids = range(0)
        self._reserving: asyncio.Task[None] | None = None
        calls.serve(methods.CREATE_TOPIC, self._create_topic)
        calls.serve(methods.CREATE_INTERNAL_TOPIC, self._create_internal_topic)
        calls.serve(methods.RESERVE_PRODUCER_IDS, self._reserve_producer_ids)
        calls.serve(methods.METADATA_END, self._metadata_end)
        calls.serve(methods.REGISTER_NODE, self._register_node)
        calls.serve(methods.REPORT_VOTERS, self._report_voters)
        calls.serve(methods.REPORT_DAMAGE, self._report_damage)
        calls.serve(methods.TRANSFER_LEADERSHIP, self._transfer_leadership)
        calls.serve(methods.DECOMMISSION_NODE, self._decommission_node)
        calls.serve(methods.REBALANCE, self._rebalance)

    @property
    def rules(self) -> PlacementRules:
        """How new topics are placed. With fewer machines than the default replication factor, each gets a replica;
        but a cluster that three nodes founded counts as three, also while the third has not registered yet."""
        state = self._metadata.state
        config = self._metadata.partition.replica.group_config
        founders = [voter.node for voter in config.voters] if config is not None else [self._node_id]
        factor = self._rules.default_replication_factor
        if not self._is_factor_wanted:
            factor = min(factor, machine_count(state, {*state.nodes, *founders}))
        return msgspec.structs.replace(self._rules, default_replication_factor=factor)

    # --- asking

    async def create_topic(
        self,
        name: str,
        *,
        caller: Caller,
        partitions: int = decisions.DEFAULT,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Creates a topic because it is used. Another request may create it at the same time: that is no error."""
        request = CreateTopic(name, partitions, dict(configs or {}))
        await self._calls.ask(CONTROLLER, methods.CREATE_TOPIC, request, caller=caller)
        await self._applied(name)

    async def create_internal_topic(self, name: str, partitions: int) -> None:
        """Creates one of the broker's own topics unless it exists."""
        request = CreateInternalTopic(name, partitions)
        await self._calls.ask(CONTROLLER, methods.CREATE_INTERNAL_TOPIC, request, caller=BROKER)
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
            request = ReserveProducerIds(self._node_id)
            block = await self._calls.ask(CONTROLLER, methods.RESERVE_PRODUCER_IDS, request, caller=BROKER)
            self._producer_ids = range(block.first, block.end)
        finally:
            self._reserving = None

    async def register(self, node: NodeRegistered) -> None:
        await self._calls.ask(CONTROLLER, methods.REGISTER_NODE, node, caller=BROKER)

    async def report_moved(self, group: GroupId, voters: Sequence[Replica], index: int) -> None:
        request = ReportVoters(group, list(voters), index)
        await self._calls.ask(CONTROLLER, methods.REPORT_VOTERS, request, caller=BROKER)

    async def report_damaged(self, group: GroupId, replica: Replica, renewal: int) -> None:
        request = ReportDamage(group, replica, renewal)
        await self._calls.ask(CONTROLLER, methods.REPORT_DAMAGE, request, caller=BROKER)

    async def hand_over(self, group: GroupId, leader: int, to: int, *, caller: Caller) -> None:
        """Asks a partition's leader to let another replica lead. KafkaError says why not."""
        request = TransferLeadership(group, to)
        try:
            await self._calls.ask(AtNode(NodeId(leader)), methods.TRANSFER_LEADERSHIP, request, caller=caller)
        except KafkaError as refused:
            if refused.code != ErrorCode.BROKER_NOT_AVAILABLE:
                raise
            raise KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, refused.message) from refused

    async def decommission(self, node_id: int, *, on: bool = True, caller: Caller) -> None:
        """Has a node emptied and then removed, or cancels that. KafkaError says why not."""
        request = DecommissionNode(node_id, on)
        await self._calls.ask(CONTROLLER, methods.DECOMMISSION_NODE, request, caller=caller)

    async def rebalance(self, *, dry_run: bool, at_once: int, caller: Caller) -> RebalanceStep:
        """Starts as many moves as may be under way at once and, when none is left, hands leadership to the preferred
        replicas. The controller does not remember that a rebalance is wanted: an operator asks until it is done, and
        one who stops asking leaves nothing half done."""
        return await self._calls.ask(
            CONTROLLER, methods.REBALANCE, Rebalance(dry_run, at_once), caller=caller
        )

    async def catch_up(self) -> None:
        """Returns when this node has applied all metadata that the controller knows now."""
        end = await self._calls.ask(CONTROLLER, methods.METADATA_END, None, caller=BROKER)
        while self._metadata.applied < end:
            await self._metadata.next_change()

    async def _applied(self, topic: str) -> None:
        """Waits until this node has applied the creation of a topic."""
        metadata = self._metadata
        if not await metadata.until(lambda: topic in metadata.state.topics, RETRY_SECONDS):
            message = f"{topic} was created and is not known here yet"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)

    # --- answering

    async def _create_topic(self, caller: Caller, request: CreateTopic) -> None:
        configs: dict[str, str | None] = dict(request.configs)
        new_topic = NewTopic(
            name=request.name, topic_id=uuid4(), partitions=request.partitions, configs=configs
        )
        try:
            await self._metadata.change(lambda state: decisions.create_topic(state, new_topic, self.rules))
        except KafkaError as refused:
            if refused.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise

    async def _create_internal_topic(self, caller: Caller, request: CreateInternalTopic) -> None:
        topic_id = uuid4()

        def decide(state: ClusterState) -> Sequence[MetadataRecord]:
            if request.name in state.topics:
                return []
            return decisions.create_internal_topic(
                state, request.name, topic_id, request.partitions, self.rules
            )

        await self._metadata.change(decide)

    async def _reserve_producer_ids(self, caller: Caller, request: ReserveProducerIds) -> ProducerIdBlock:
        records = await self._metadata.change(
            lambda state: decisions.reserve_producer_ids(state, request.node_id)
        )
        block = next(record for record in records if isinstance(record, ProducerIdsReserved))
        return ProducerIdBlock(block.first, block.end)

    async def _metadata_end(self, caller: Caller, request: None) -> int:
        await self._metadata.caught_up()
        self._metadata.check_controller()
        # A controller that another one may have replaced does not know what its successor has decided.
        self._metadata.partition.check_readable()
        return self._metadata.applied

    async def _register_node(self, caller: Caller, node: NodeRegistered) -> None:
        known = self._metadata.state.nodes
        if node.node_id not in known and len(known) >= MAX_NODES:
            message = f"node {node.node_id} cannot join: the cluster has {len(known)} nodes, its limit"
            raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
        await self._metadata.change(lambda state: register_node(state, node, self._seen()))

    async def _report_voters(self, caller: Caller, report: ReportVoters) -> None:
        await self._metadata.change(
            lambda state: report_moved(state, report.group, report.voters, report.index)
        )

    async def _report_damage(self, caller: Caller, report: ReportDamage) -> None:
        await self._metadata.change(
            lambda state: report_damaged(state, report.group, report.replica, report.renewal)
        )

    def _transfer_leadership(self, caller: Caller, request: TransferLeadership) -> None:
        self._transfer(request.group, request.to)

    async def _decommission_node(self, caller: Caller, request: DecommissionNode) -> None:
        await self._metadata.change(lambda state: decommission_node(state, request.node_id, on=request.on))

    async def _rebalance(self, caller: Caller, request: Rebalance) -> RebalanceStep:
        self._metadata.check_controller()
        begun = [] if request.dry_run else await self._begin_moves(MoveLimits(at_once=request.at_once))
        copy, leaders = self._metadata.state.copy(), self._leaders.copy()
        left = await planned(copy, lambda state: _work_left(state, leaders))
        is_idle = not (request.dry_run or left.moves or left.under_way)
        handed_over = await self._hand_over_all(left.leads, caller) if is_idle else []
        return RebalanceStep(
            begun=tuple(map(_planned, begun)),
            handed_over=tuple(handed_over),
            moves_left=tuple(map(_planned, left.moves)),
            leads_left=tuple(left.leads),
            under_way=left.under_way,
        )

    async def _begin_moves(self, limits: MoveLimits) -> list[Move]:
        begun: list[Move] = []

        async def decide(state: ClusterState) -> Sequence[MetadataRecord]:
            begun[:] = await planned(state.copy(), lambda copy: next_moves(copy, limits))
            return start_moves(state, begun)

        await self._metadata.change(decide)
        return begun

    async def _hand_over_all(self, leads: Sequence[PlannedLead], caller: Caller) -> list[PlannedLead]:
        """The transfers that the leaders agreed to; the next rebalance request asks the others again."""
        done: list[PlannedLead] = []
        for lead in leads:
            topic = self._metadata.state.topics.get(lead.topic)
            if topic is not None:
                with suppress(KafkaError):
                    group = GroupId(topic.topic_id, lead.partition)
                    await self.hand_over(group, lead.leader, lead.to, caller=caller)
                    done.append(lead)
        return done


class _WorkLeft(NamedTuple):
    """The rest of a rebalance."""

    moves: list[Move]
    leads: list[PlannedLead]
    under_way: int


def _work_left(state: ClusterState, leaders: LeaderTable) -> _WorkLeft:
    under_way = sum(assignment.target is not None for _, _, assignment in state.groups())
    return _WorkLeft(plan_rebalance(state), _misplaced_leads(state, leaders), under_way)


def _misplaced_leads(state: ClusterState, table: LeaderTable) -> list[PlannedLead]:
    known = {group: table.get(group) for _, group, _ in state.groups()}
    leaders = {group: int(row.leader) for group, row in known.items() if row.leader != NO_LEADER}
    ready = {group: row.in_sync for group, row in known.items()}
    return [
        PlannedLead(topic=topic.name, partition=group.partition, leader=leaders[group], to=to)
        for group, to in plan_leaders(state, leaders, ready)
        if (topic := state.topic_by_id(group.topic_id)) is not None
    ]


def _planned(move: Move) -> PlannedMove:
    return PlannedMove(
        topic=move.topic,
        partition=move.group.partition,
        replicas=move.replicas,
        target=move.target,
        copies=move.copies,
        reason=move.reason.value,
    )
