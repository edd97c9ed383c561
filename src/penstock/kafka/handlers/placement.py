"""Where replicas are and who leads them: ElectLeaders, Alter- and ListPartitionReassignments, AlterReplicaLogDirs,
DescribeQuorum.

With one node each of these has only one possible outcome: the node leads all it holds, in its only folder, and nothing
is ever on its way elsewhere. Tools ask nevertheless, and get that outcome instead of an API that is missing.
"""

from penstock.cluster import METADATA_TOPIC
from penstock.errors import ErrorCode
from penstock.kafka.handlers.context import RequestContext
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
)
from penstock.node import Node

LISTENER_NAME = "PLAINTEXT"
PREFERRED, UNCLEAN = 0, 1


def _exists(node: Node, topic: str, index: int) -> bool:
    known = node.metadata.state.topics.get(topic)
    return known is not None and 0 <= index < known.partitions


# --- ElectLeaders


def elect_leaders(context: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """Null asks for an election wherever one is needed: nowhere."""
    if request.election_type not in (PREFERRED, UNCLEAN):
        return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(
                topic=row.topic,
                partition_result=[_election(context.node, row.topic, index) for index in row.partitions],
            )
            for row in request.topic_partitions or []
        ]
    )


def _election(node: Node, topic: str, index: int) -> PartitionResult:
    if not _exists(node, topic, index):
        code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{index}"
    elif not node.partitions.is_online(topic, index):
        code, message = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"{topic}-{index} is offline"
    else:
        code, message = ErrorCode.ELECTION_NOT_NEEDED, f"{topic}-{index} has the only leader it can have"
    return PartitionResult(partition_id=index, error_code=code, error_message=message)


# --- reassignments


def list_partition_reassignments(
    context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse()


def alter_partition_reassignments(
    context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[_reassignment(context.node, topic.name, row) for row in topic.partitions],
            )
            for topic in request.topics
        ],
    )


def _reassignment(node: Node, topic: str, wanted: ReassignablePartition) -> ReassignablePartitionResponse:
    """Moving a partition to where it is succeeds, as it does in Kafka; null would cancel a move."""
    answer = ReassignablePartitionResponse(partition_index=wanted.partition_index)
    if not _exists(node, topic, wanted.partition_index):
        answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        answer.error_message = f"there is no partition {topic}-{wanted.partition_index}"
    elif wanted.replicas is None:
        answer.error_code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        answer.error_message = f"{topic}-{wanted.partition_index} is not being moved"
    elif wanted.replicas != [node.node_id]:
        answer.error_code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        answer.error_message = f"replicas {wanted.replicas}: the only node is {node.node_id}"
    return answer


def alter_replica_log_dirs(
    context: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    return AlterReplicaLogDirsResponse(
        results=[_moved(context.node, row.path, topic) for row in request.dirs for topic in row.topics]
    )


def _moved(node: Node, path: str, topic: AlterReplicaLogDirTopic) -> AlterReplicaLogDirTopicResult:
    results = []
    for index in topic.partitions:
        code = ErrorCode.NONE if path == node.log_dir else ErrorCode.LOG_DIR_NOT_FOUND
        if not _exists(node, topic.name, index):
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        results.append(AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code))
    return AlterReplicaLogDirTopicResult(topic_name=topic.name, partitions=results)


# --- DescribeQuorum


def describe_quorum(
    context: RequestContext, request: quorum.DescribeQuorumRequest
) -> quorum.DescribeQuorumResponse:
    node = context.node
    host, port = node.advertised
    listener = quorum.Listener(name=LISTENER_NAME, host=host, port=port)
    return quorum.DescribeQuorumResponse(
        topics=[
            quorum.ResponseTopicData(
                topic_name=topic.topic_name,
                partitions=[_quorum(node, topic.topic_name, row.partition_index) for row in topic.partitions],
            )
            for topic in request.topics
        ],
        nodes=[quorum.Node(node_id=node.node_id, listeners=[listener])],
    )


def _quorum(node: Node, topic: str, index: int) -> quorum.ResponsePartitionData:
    if (topic, index) != (METADATA_TOPIC, 0):
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return quorum.ResponsePartitionData(partition_index=index, error_code=code, leader_id=-1)
    partition, now_ms = node.metadata.partition, node.clock.wall_ms()
    voter = quorum.ReplicaState(
        replica_id=node.node_id,
        log_end_offset=partition.log.end_offset,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )
    return quorum.ResponsePartitionData(
        partition_index=index,
        leader_id=node.node_id,
        leader_epoch=partition.term,
        high_watermark=partition.high_watermark,
        current_voters=[voter],
    )
