"""DescribeCluster and DescribeLogDirs: the nodes there are and the space they use."""

from penstock.errors import ErrorCode, KafkaError
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from penstock.kafka.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from penstock.node import Node
from penstock.types import ResourceType

BROKERS_ENDPOINT = 1


async def describe_cluster(
    context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    node = context.node
    if request.endpoint_type != BROKERS_ENDPOINT:
        return DescribeClusterResponse(
            error_code=ErrorCode.INVALID_REQUEST,
            error_message=f"endpoint_type={request.endpoint_type}: only brokers ({BROKERS_ENDPOINT}) can be reached",
            cluster_id=node.cluster_id,
        )
    response = DescribeClusterResponse(
        cluster_id=node.cluster_id,
        controller_id=node.view.controller_for_clients,
        brokers=[
            DescribeClusterBroker(broker_id=one.node_id, host=one.host, port=one.port, rack=one.rack)
            for one in node.view.brokers(context.connection.listener_name)
        ],
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = context.allowed_operations(ResourceType.CLUSTER)
    return response


async def describe_log_dirs(
    context: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    node = context.node
    try:
        context.cluster()
    except KafkaError as refused:
        return DescribeLogDirsResponse(error_code=refused.code)
    wanted = (
        None if request.topics is None else {topic.topic: set(topic.partitions) for topic in request.topics}
    )
    total_bytes, usable_bytes = node.disk_space()
    return DescribeLogDirsResponse(
        results=[
            DescribeLogDirsResult(
                log_dir=node.config.log_dir,
                topics=_sizes(node, wanted),
                total_bytes=total_bytes,
                usable_bytes=usable_bytes,
            )
        ]
    )


def _sizes(node: Node, wanted: dict[str, set[int]] | None) -> list[DescribeLogDirsTopic]:
    topics: dict[str, DescribeLogDirsTopic] = {}
    for partition in node.partitions.online():
        name, index = partition.name
        if wanted is not None and index not in wanted.get(name, ()):
            continue
        row = topics.get(name)
        if row is None:
            row = topics[name] = DescribeLogDirsTopic(name=name, partitions=[])
        row.partitions.append(
            DescribeLogDirsPartition(
                partition_index=index, partition_size=partition.log.size_bytes, offset_lag=0
            )
        )
    return list(topics.values())
