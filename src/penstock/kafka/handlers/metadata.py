"""Metadata and DescribeTopicPartitions: which topics there are and who leads their partitions."""

import asyncio

from penstock.errors import ErrorCode, KafkaError, StorageError
from penstock.kafka.handlers import permissions
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.topic_names import resolve_topic
from penstock.kafka.wire import NO_UUID
from penstock.kafka.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from penstock.kafka.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.node import Node

ALL_TOPICS_BY_EMPTY_LIST_VERSION = 0
"""In version 0 an empty list asks for all topics; since version 1 null does, and an empty list asks for none."""

NO_LEADER = -1
LEADERS_WITHIN_SECONDS = 1.0
LOOK_AGAIN_SECONDS = 0.01

PAGE_PARTITIONS_MAX = 2000
"""The most that one page of DescribeTopicPartitions holds, as in Kafka."""


async def metadata(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    node = context.node
    wanted = request.topics
    if wanted is None or (not wanted and context.api_version == ALL_TOPICS_BY_EMPTY_LIST_VERSION):
        topics = [_describe(node, name) for name in sorted(node.metadata.state.topics)]
    else:
        topics = [await _find(node, topic, request.allow_auto_topic_creation) for topic in wanted]
    if request.include_topic_authorized_operations:
        _tell_permissions(topics)
    if node.is_cut_off and any(_lacks_leader(topic) for topic in topics):
        # Clients ask whom they are connected with, over and over: one that knows only this node would never learn
        # who leads on the other side of the cut.
        context.connection.send_away()
    ask_cluster = request.include_cluster_authorized_operations
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=one.node_id, host=one.host, port=one.port, rack=one.rack)
            for one in node.view.brokers()
        ],
        cluster_id=node.cluster_id,
        controller_id=node.view.controller_for_clients,
        topics=topics,
        cluster_authorized_operations=permissions.ON_CLUSTER if ask_cluster else permissions.NOT_ASKED,
    )


def _tell_permissions(topics: list[MetadataResponseTopic]) -> None:
    for topic in topics:
        if topic.error_code == ErrorCode.NONE:
            topic.topic_authorized_operations = permissions.ON_TOPIC


def _lacks_leader(topic: MetadataResponseTopic) -> bool:
    return any(partition.leader_id == NO_LEADER for partition in topic.partitions)


async def _find(node: Node, wanted: MetadataRequestTopic, may_create: bool) -> MetadataResponseTopic:
    """One topic as asked for, created first where client and node allow that."""
    try:
        missing = wanted.topic_id == NO_UUID and wanted.name not in node.metadata.state.topics
        if missing and may_create and node.config.auto_create_topics:
            await node.controller.create_topic(wanted.name or "")
            await _led(node, wanted.name or "")
        return _describe(node, resolve_topic(node, wanted.name, wanted.topic_id))
    except KafkaError as mistake:
        code = mistake.code
    except StorageError:
        code = ErrorCode.KAFKA_STORAGE_ERROR
    return MetadataResponseTopic(error_code=code, name=wanted.name, topic_id=wanted.topic_id, partitions=[])


async def _led(node: Node, name: str) -> None:
    """Returns when all partitions of a new topic have leaders, or should have had them: most clients that are told
    otherwise ask again only after a while."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LEADERS_WITHIN_SECONDS
    while (topic := node.metadata.state.topics.get(name)) is not None and loop.time() < deadline:
        if all(node.view.partition(topic, index).leader != NO_LEADER for index in range(topic.partitions)):
            return
        await asyncio.sleep(LOOK_AGAIN_SECONDS)


def _describe(node: Node, name: str) -> MetadataResponseTopic:
    topic = node.metadata.state.topics[name]
    return MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[_describe_partition(node, name, index) for index in range(topic.partitions)],
    )


def _describe_partition(node: Node, topic: str, index: int) -> MetadataResponsePartition:
    facts = node.view.partition(node.metadata.state.topics[topic], index)
    return MetadataResponsePartition(
        error_code=ErrorCode.NONE if facts.leader != NO_LEADER else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=facts.leader,
        leader_epoch=facts.term,
        replica_nodes=list(facts.replicas),
        isr_nodes=list(facts.in_sync),
        offline_replicas=list(facts.offline),
    )


async def describe_topic_partitions(
    context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """As Metadata, page by page: at most `response_partition_limit` partitions, then a cursor to go on from."""
    node = context.node
    names = sorted({topic.name for topic in request.topics} or node.metadata.state.topics)
    first = 0
    if request.cursor is not None:
        names = [name for name in names if name >= request.cursor.topic_name]
        first = (
            max(request.cursor.partition_index, 0) if names and names[0] == request.cursor.topic_name else 0
        )
    room = max(1, min(request.response_partition_limit, PAGE_PARTITIONS_MAX))
    response = DescribeTopicPartitionsResponse(topics=[], next_cursor=None)
    for name in names:
        if room <= 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=first)
            break
        page = _describe_page(node, name, first, room)
        response.topics.append(page)
        room -= len(page.partitions)
        first += len(page.partitions)
        if page.error_code == ErrorCode.NONE and first < node.metadata.state.topics[name].partitions:
            response.next_cursor = Cursor(topic_name=name, partition_index=first)
            break
        first = 0
    return response


def _describe_page(node: Node, name: str, first: int, room: int) -> DescribeTopicPartitionsResponseTopic:
    topic = node.metadata.state.topics.get(name)
    if topic is None:
        return DescribeTopicPartitionsResponseTopic(
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name, topic_id=NO_UUID, partitions=[]
        )
    indexes = range(first, min(first + room, topic.partitions))
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.NONE,
        name=name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[_page_partition(node, name, index) for index in indexes],
        topic_authorized_operations=permissions.ON_TOPIC,
    )


def _page_partition(node: Node, name: str, index: int) -> DescribeTopicPartitionsResponsePartition:
    facts = _describe_partition(node, name, index)
    return DescribeTopicPartitionsResponsePartition(
        error_code=facts.error_code,
        partition_index=index,
        leader_id=facts.leader_id,
        leader_epoch=facts.leader_epoch,
        replica_nodes=facts.replica_nodes,
        isr_nodes=facts.isr_nodes,
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=facts.offline_replicas,
    )
