"""Replicas and leaders: ElectLeaders, Alter- and ListPartitionReassignments, AlterReplicaLogDirs, DescribeQuorum.

The `cluster` package decides. A lone node leads all partitions, in its only folder, and moves none; tools that ask it
get just that.
"""

import asyncio

from penstock.cluster import METADATA_TOPIC, ClusterState, Topic, check_unclean, elect_preferred
from penstock.cluster.reassignment import list_reassignments, reassign
from penstock.errors import ErrorCode, KafkaError, StorageError
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.rows import ResponseRows
from penstock.kafka.wire.messages import describe_quorum as quorum
from penstock.kafka.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from penstock.kafka.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
    AlterReplicaLogDirTopicResult,
)
from penstock.kafka.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from penstock.kafka.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from penstock.node import Node, ReplicaFacts
from penstock.types import GroupId

LISTENER_NAME = "PLAINTEXT"
PREFERRED, UNCLEAN = 0, 1
NO_LEADER = -1


def _topic_of(state: ClusterState, name: str, index: int) -> Topic:
    topic = state.topics.get(name)
    if topic is None or not 0 <= index < topic.partitions:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{index}")
    return topic


# --- ElectLeaders


async def elect_leaders(context: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """Null asks for all partitions that their preferred leader does not lead; an unclean election, for all without a
    leader."""
    if request.election_type not in (PREFERRED, UNCLEAN):
        return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
    node, unclean = context.node, request.election_type == UNCLEAN
    try:
        state = context.cluster()
    except KafkaError as refused:  # before version 1 only partitions can carry it
        return ElectLeadersResponse(
            error_code=refused.code,
            replica_election_results=[
                ReplicaElectionResult(
                    topic=row.topic,
                    partition_result=[
                        PartitionResult(partition_id=index, error_code=refused.code)
                        for index in row.partitions
                    ],
                )
                for row in request.topic_partitions or ()
            ],
        )
    if request.topic_partitions is None:
        wanted = _in_need(node, state, unclean=unclean)
    else:
        wanted = {row.topic: row.partitions for row in request.topic_partitions}
    loop = asyncio.get_running_loop()
    deadline = loop.time() + max(request.timeout_ms, 1) / 1000
    begun = {
        topic: [await _begin_election(context, state, topic, index, unclean=unclean) for index in indexes]
        for topic, indexes in wanted.items()
    }
    return ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic,
                partition_result=[await _elected(node, state, topic, row, deadline) for row in rows],
            )
            for topic, rows in begun.items()
        ]
    )


def _in_need(node: Node, state: ClusterState, *, unclean: bool) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, group, assignment in state.groups():
        leader = node.view.partition(topic, group.partition).leader
        if leader == NO_LEADER if unclean else leader != assignment.leader:
            found.setdefault(topic.name, []).append(group.partition)
    return found


async def _begin_election(
    context: RequestContext, state: ClusterState, topic: str, index: int, *, unclean: bool
) -> tuple[PartitionResult, int]:
    """The result of asking the leader to hand over, and the node that is to lead."""
    node = context.node
    answer = PartitionResult(partition_id=index, error_code=ErrorCode.NONE, error_message=None)
    try:
        known = _topic_of(state, topic, index)
        facts = node.view.partition(known, index)
        if unclean:
            check_unclean(state, topic, index, facts.leader)
        to = elect_preferred(state, topic, index, facts.leader, ready=facts.in_sync)
        await node.controller.hand_over(
            GroupId(known.topic_id, index), facts.leader, to, caller=context.caller
        )
    except KafkaError as refused:
        answer.error_code, answer.error_message = refused.code, refused.message
        return answer, NO_LEADER
    return answer, to


async def _elected(
    node: Node, state: ClusterState, topic: str, begun: tuple[PartitionResult, int], deadline: float
) -> PartitionResult:
    """The result, once the new leader is known here: clients that ask for metadata next should find it there."""
    answer, to = begun

    def is_awaited() -> bool:
        known = state.topics.get(topic)
        return known is not None and node.view.partition(known, answer.partition_id).leader != to

    try:
        async with asyncio.timeout_at(deadline):
            while answer.error_code == ErrorCode.NONE and is_awaited():
                await node.calls.next_change()
    except TimeoutError:
        answer.error_code = ErrorCode.REQUEST_TIMED_OUT
        answer.error_message = f"node {to} was asked to take over and does not lead yet"
    return answer


# --- reassignments


def list_partition_reassignments(
    context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    wanted = (
        None if request.topics is None else {topic.name: topic.partition_indexes for topic in request.topics}
    )
    topics: dict[str, OngoingTopicReassignment] = {}
    try:
        state = context.cluster()
    except KafkaError as refused:
        return ListPartitionReassignmentsResponse(
            error_code=refused.code, error_message=refused.message, topics=[]
        )
    for one in list_reassignments(state, wanted):
        row = topics.setdefault(one.topic, OngoingTopicReassignment(name=one.topic, partitions=[]))
        row.partitions.append(
            OngoingPartitionReassignment(
                partition_index=one.partition,
                replicas=list(one.replicas),
                adding_replicas=list(one.adding),
                removing_replicas=list(one.removing),
            )
        )
    return ListPartitionReassignmentsResponse(topics=list(topics.values()))


async def alter_partition_reassignments(
    context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    try:
        context.cluster()
    except KafkaError as refused:
        return AlterPartitionReassignmentsResponse(
            error_code=refused.code, error_message=refused.message, responses=[]
        )
    may_change_factor, rows = request.allow_replication_factor_change, ResponseRows(context)
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=may_change_factor,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    await _reassignment(context.node, topic.name, row, may_change_factor, rows)
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


async def _reassignment(
    node: Node, topic: str, wanted: ReassignablePartition, may_change_factor: bool, rows: ResponseRows
) -> ReassignablePartitionResponse:
    """Moving a partition to where it is succeeds, as it does in Kafka; null cancels a move."""
    answer = ReassignablePartitionResponse(partition_index=wanted.partition_index)
    await rows.pause()
    try:
        await node.metadata.change(
            lambda state: reassign(
                state,
                topic,
                wanted.partition_index,
                wanted.replicas,
                nodes=(node.node_id,),
                may_change_factor=may_change_factor,
            )
        )
    except KafkaError as refused:
        answer.error_code, answer.error_message = refused.code, refused.message
    except StorageError as refused:
        answer.error_code, answer.error_message = ErrorCode.KAFKA_STORAGE_ERROR, str(refused)
    return answer


async def alter_replica_log_dirs(
    context: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    rows = ResponseRows(context)
    return AlterReplicaLogDirsResponse(
        results=[await _moved(context, row.path, topic, rows) for row in request.dirs for topic in row.topics]
    )


async def _moved(
    context: RequestContext, path: str, topic: AlterReplicaLogDirTopic, rows: ResponseRows
) -> AlterReplicaLogDirTopicResult:
    results, node = [], context.node
    await rows.pause()
    for index in topic.partitions:
        await rows.pause()
        code = ErrorCode.NONE if path == node.config.log_dir else ErrorCode.LOG_DIR_NOT_FOUND
        try:
            _topic_of(context.cluster(), topic.name, index)
            if not node.partitions.holds(topic.name, index):
                code = ErrorCode.REPLICA_NOT_AVAILABLE
        except KafkaError as refused:
            code = refused.code
        results.append(AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code))
    return AlterReplicaLogDirTopicResult(topic_name=topic.name, partitions=results)


# --- DescribeQuorum


async def describe_quorum(
    context: RequestContext, request: quorum.DescribeQuorumRequest
) -> quorum.DescribeQuorumResponse:
    node = context.node
    try:
        context.cluster()
    except KafkaError as refused:
        return quorum.DescribeQuorumResponse(
            error_code=refused.code, error_message=refused.message, topics=[]
        )
    rows = ResponseRows(context)
    return quorum.DescribeQuorumResponse(
        topics=[
            quorum.ResponseTopicData(
                topic_name=topic.topic_name,
                partitions=[
                    await _quorum(node, topic.topic_name, row.partition_index, rows)
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ],
        nodes=[
            quorum.Node(
                node_id=one.node_id,
                listeners=[quorum.Listener(name=LISTENER_NAME, host=one.host, port=one.port)],
            )
            for one in node.view.brokers(context.connection.listener_name)
        ],
    )


async def _quorum(node: Node, topic: str, index: int, rows: ResponseRows) -> quorum.ResponsePartitionData:
    await rows.pause()
    if (topic, index) != (METADATA_TOPIC, 0):
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return quorum.ResponsePartitionData(partition_index=index, error_code=code, leader_id=-1)
    partition = node.metadata.partition
    if not partition.leads:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return quorum.ResponsePartitionData(partition_index=index, error_code=code, leader_id=-1)
    replicas = partition.replica.progress()
    return quorum.ResponsePartitionData(
        partition_index=index,
        leader_id=node.node_id,
        leader_epoch=partition.term,
        high_watermark=partition.high_watermark,
        current_voters=[_replica_state(node, row) for row in replicas if not row.learner],
        observers=[_replica_state(node, row) for row in replicas if row.learner],
    )


def _replica_state(node: Node, row: ReplicaFacts) -> quorum.ReplicaState:
    heard_ms = node.clock.wall_ms() - row.silent_ms
    return quorum.ReplicaState(
        replica_id=row.node_id,
        log_end_offset=row.end_offset,
        last_fetch_timestamp=heard_ms,
        last_caught_up_timestamp=heard_ms if row.lag == 0 else -1,
    )
