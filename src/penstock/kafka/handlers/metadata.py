"""Metadata and DescribeTopicPartitions: the topics there are and the leaders of their partitions."""

from functools import partial

from penstock.cluster import Topic
from penstock.errors import ErrorCode, KafkaError, StorageError
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.rows import ResponseRows
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
from penstock.types import ResourceType

ALL_TOPICS_BY_EMPTY_LIST_VERSION = 0
"""In version 0 an empty list asks for all topics; since version 1 null does, and an empty list asks for none."""

NO_LEADER = -1
LEADERS_WITHIN_SECONDS = 1.0

PAGE_PARTITIONS_MAX = 2000
"""The most that one page of DescribeTopicPartitions holds, as in Kafka."""


async def metadata(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    node, rows = context.node, ResponseRows(context)
    wanted = request.topics
    if wanted is None or (not wanted and context.api_version == ALL_TOPICS_BY_EMPTY_LIST_VERSION):
        topics = [await _describe(context, topic, rows) for topic in context.visible_topics()]
    else:
        topics = [await _find(context, topic, request.allow_auto_topic_creation, rows) for topic in wanted]
    if request.include_topic_authorized_operations:
        _add_operations(context, topics)
    if node.is_cut_off and any(_lacks_leader(topic) for topic in topics):
        # A client keeps asking the node that it is connected with. If it only knew this node, it would never learn
        # which nodes lead on the other side of the network partition.
        context.connection.send_away()
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=one.node_id, host=one.host, port=one.port, rack=one.rack)
            for one in node.view.brokers(context.connection.listener_name)
        ],
        cluster_id=node.cluster_id,
        controller_id=node.view.controller_for_clients,
        topics=topics,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = context.allowed_operations(ResourceType.CLUSTER)
    return response


def _add_operations(context: RequestContext, topics: list[MetadataResponseTopic]) -> None:
    for topic in topics:
        if topic.error_code == ErrorCode.NONE and topic.name is not None:
            operations = context.allowed_operations(ResourceType.TOPIC, topic.name)
            topic.topic_authorized_operations = operations


def _lacks_leader(topic: MetadataResponseTopic) -> bool:
    return any(partition.leader_id == NO_LEADER for partition in topic.partitions)


async def _find(
    context: RequestContext, wanted: MetadataRequestTopic, may_create: bool, rows: ResponseRows
) -> MetadataResponseTopic:
    """One topic as asked for, created first where client and node allow that."""
    try:
        try:
            topic = context.named_topic(wanted.name, wanted.topic_id)
        except KafkaError as missing:
            may_create = may_create and context.node.config.auto_create_topics
            if missing.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or not may_create:
                raise
            topic = await _create(context, wanted.name or "")
        return await _describe(context, topic, rows)
    except KafkaError as mistake:
        code = mistake.code
    except StorageError:
        code = ErrorCode.KAFKA_STORAGE_ERROR
    await rows.pause()
    return MetadataResponseTopic(error_code=code, name=wanted.name, topic_id=wanted.topic_id, partitions=[])


async def _create(context: RequestContext, name: str) -> Topic:
    """Returns when all partitions of the new topic have leaders, or after a timeout: if the response named no leader,
    most clients would ask again only after a while."""
    node = context.node
    node.resources.check_create_topic(context.caller, name)
    await node.controller.create_topic(name, caller=context.caller)
    topic = context.topic(name)
    await node.new_partitions.known_here(name, LEADERS_WITHIN_SECONDS)
    return topic


async def _describe(context: RequestContext, topic: Topic, rows: ResponseRows) -> MetadataResponseTopic:
    described = MetadataResponseTopic(
        error_code=ErrorCode.NONE, name=topic.name, topic_id=topic.topic_id, is_internal=topic.internal
    )
    try:
        describe = partial(_describe_partition, context.node, topic)
        described.partitions = await rows.build(describe, range(topic.partitions))
    except KafkaError as too_many:
        described.error_code = too_many.code
    return described


def _describe_partition(node: Node, topic: Topic, index: int) -> MetadataResponsePartition:
    facts = node.view.partition(topic, index)
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
    """Answers as Metadata does, in pages of at most `response_partition_limit` partitions, with a cursor."""
    named = sorted({topic.name for topic in request.topics})
    names = named or [topic.name for topic in context.visible_topics()]
    first, cursor = 0, request.cursor
    if cursor is not None:
        if cursor.partition_index < 0 or (named and cursor.topic_name not in named):
            return _refused_cursor(request)
        names = [name for name in names if name >= cursor.topic_name]
        first = cursor.partition_index if names and names[0] == cursor.topic_name else 0
    left = max(1, min(request.response_partition_limit, PAGE_PARTITIONS_MAX))
    response = DescribeTopicPartitionsResponse(topics=[], next_cursor=None)
    for name in names:
        if left <= 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=first)
            break
        page, partitions = _describe_page(context, name, first, left)
        response.topics.append(page)
        left -= len(page.partitions)
        first += len(page.partitions)
        if first < partitions:
            response.next_cursor = Cursor(topic_name=name, partition_index=first)
            break
        first = 0
    return response


def _refused_cursor(request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    """A cursor with a negative partition, or with a topic that the request does not name. The response has no error
    code of its own, so that every topic has it."""
    refused = [
        DescribeTopicPartitionsResponseTopic(
            error_code=ErrorCode.INVALID_REQUEST, name=topic.name, topic_id=NO_UUID, partitions=[]
        )
        for topic in request.topics
    ]
    return DescribeTopicPartitionsResponse(topics=refused, next_cursor=None)


def _describe_page(
    context: RequestContext, name: str, first: int, most: int
) -> tuple[DescribeTopicPartitionsResponseTopic, int]:
    """At most `most` partitions of a topic from `first` on, and how many it has."""
    try:
        topic = context.topic(name)
    except KafkaError as refused:
        return DescribeTopicPartitionsResponseTopic(
            error_code=refused.code, name=name, topic_id=NO_UUID, partitions=[]
        ), 0
    indexes = range(first, min(first + most, topic.partitions))
    page = DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.NONE,
        name=name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[_page_partition(context.node, topic, index) for index in indexes],
        topic_authorized_operations=context.allowed_operations(ResourceType.TOPIC, name),
    )
    return page, topic.partitions


def _page_partition(node: Node, topic: Topic, index: int) -> DescribeTopicPartitionsResponsePartition:
    facts = _describe_partition(node, topic, index)
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
