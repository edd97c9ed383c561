"""Beside the operations on topics: the documentation of their configs, the bytes that they take on each node, and who
consumes them."""

from collections import Counter

import msgspec

from penstock.config import TOPIC_CONFIGS
from penstock.errors import ErrorCode
from penstock.kafka.handlers.inner_client import InnerClient
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from penstock.kafka.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from penstock.kafka.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from penstock.node import Node
from penstock.node.calls import BROKER, rows_of_each
from penstock.types import Operation, TopicPartition
from penstock.web.api.groups import SHARE
from penstock.web.api.offset_ranges import find_ranges
from penstock.web.api.routing import Call, NoParams
from penstock.web.api.topics import TopicParams, find_topic

GROUPS_PER_REQUEST = 100
"""Groups whose offsets are asked for at once."""

Ranges = dict[TopicPartition, tuple[int, int]]


class ConfigDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """`refused`: why Penstock accepts only the default; empty if it takes other values."""

    name: str
    type: str
    expected: str
    default: str
    doc: str
    refused: str


class ConfigDefinitions(msgspec.Struct, frozen=True, kw_only=True):
    configs: list[ConfigDefinition]


class ReplicaSize(msgspec.Struct, frozen=True, kw_only=True):
    partition: int
    node_id: int
    size_bytes: int


class TopicSizes(msgspec.Struct, frozen=True, kw_only=True):
    """`size_bytes` is the sum over all replicas. `unanswered` are nodes that are missing in it."""

    topic: str
    size_bytes: int
    replicas: list[ReplicaSize]
    unanswered: list[int]


class TopicGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group that has committed offsets of the topic. `lag` is null while no leader of a partition answers."""

    group: str
    state: str
    coordinator: int
    partitions: int
    lag: int | None


class TopicGroups(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    groups: list[TopicGroup]
    unanswered: list[int]


class TopicUsage:
    """The facts of a topic beside its partitions."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def list_topic_configs(self, call: Call[NoParams, None]) -> ConfigDefinitions:
        rows = [
            ConfigDefinition(
                name=one.name,
                type=one.kind.type.name.lower(),
                expected=one.kind.expected,
                default=one.default,
                doc=one.doc,
                refused=one.refused,
            )
            for one in sorted(TOPIC_CONFIGS.values(), key=lambda one: one.name)
            if not one.hidden
        ]
        return ConfigDefinitions(configs=rows)

    async def describe_topic_sizes(self, call: Call[TopicParams, None]) -> TopicSizes:
        name = call.params.topic
        topic = find_topic(self._node, call.caller, name, Operation.DESCRIBE)
        holders = sorted({node for assignment in topic.assignments for node in assignment.shown})
        wanted = DescribableLogDirTopic(topic=name, partitions=list(range(topic.partitions)))
        # Kafka shows sizes to those who may describe the cluster; here the topic's permission was checked.
        client = InnerClient(self._node, BROKER, call.reserved)
        rows, unanswered = await rows_of_each(holders, lambda node: self._sizes(client, wanted, node))
        return TopicSizes(
            topic=name,
            size_bytes=sum(row.size_bytes for row in rows),
            replicas=sorted(rows, key=lambda row: (row.partition, row.node_id)),
            unanswered=unanswered,
        )

    async def _sizes(
        self, client: InnerClient, wanted: DescribableLogDirTopic, node: int
    ) -> list[ReplicaSize]:
        request = DescribeLogDirsRequest(topics=[wanted])
        answer = await client.ask(ApiKey.DESCRIBE_LOG_DIRS, request, DescribeLogDirsResponse, to=node)
        found = [row for folder in answer.results for topic in folder.topics for row in topic.partitions]
        return [
            ReplicaSize(partition=row.partition_index, node_id=node, size_bytes=row.partition_size)
            for row in found
        ]

    async def list_topic_groups(self, call: Call[TopicParams, None]) -> TopicGroups:
        name = call.params.topic
        topic = find_topic(self._node, call.caller, name, Operation.DESCRIBE)
        nodes = [one.node_id for one in self._node.view.brokers()]
        ranges = await find_ranges(call.client, {name: list(range(topic.partitions))})
        rows, unanswered = await rows_of_each(
            nodes, lambda node: self._groups_at(call.client, node, name, topic.partitions, ranges)
        )
        return TopicGroups(
            topic=name,
            groups=sorted(rows, key=lambda row: row.group),
            unanswered=unanswered,
        )

    async def _groups_at(
        self, client: InnerClient, node: int, topic: str, partitions: int, ranges: Ranges
    ) -> list[TopicGroup]:
        """The groups that this node coordinates, those with offsets of the topic."""
        listed = await client.ask(ApiKey.LIST_GROUPS, ListGroupsRequest(), ListGroupsResponse, to=node)
        states = {row.group_id: row.group_state for row in listed.groups if row.group_type.lower() != SHARE}
        names, found = sorted(states), list[OffsetFetchResponseGroup]()
        for first in range(0, len(names), GROUPS_PER_REQUEST):
            some = names[first : first + GROUPS_PER_REQUEST]
            found += await self._offsets_at(client, node, some, topic, partitions)
        rows = [_used(one, states[one.group_id], node, topic, ranges) for one in found]
        return [row for row in rows if row is not None]

    async def _offsets_at(
        self, client: InnerClient, node: int, groups: list[str], topic: str, partitions: int
    ) -> list[OffsetFetchResponseGroup]:
        wanted = [OffsetFetchRequestTopics(name=topic, partition_indexes=list(range(partitions)))]
        rows = [OffsetFetchRequestGroup(group_id=group, topics=wanted) for group in groups]
        request = OffsetFetchRequest(groups=rows)
        return (await client.ask(ApiKey.OFFSET_FETCH, request, OffsetFetchResponse, to=node)).groups


def _used(
    found: OffsetFetchResponseGroup, state: str, node: int, topic: str, ranges: Ranges
) -> TopicGroup | None:
    """None if the group has no offset of the topic, or the caller may not see it."""
    if found.error_code != ErrorCode.NONE:
        return None
    rows = [row for one in found.topics for row in one.partitions if row.committed_offset >= 0]
    if not rows:
        return None
    lags: Counter[str] = Counter()
    for row in rows:
        first, last = ranges.get(TopicPartition(topic, row.partition_index), (None, None))
        if first is not None and last is not None:
            lags["known"] += 1
            lags["sum"] += max(0, last - max(row.committed_offset, first))
    return TopicGroup(
        group=found.group_id,
        state=state,
        coordinator=node,
        partitions=len(rows),
        lag=lags["sum"] if lags["known"] else None,
    )
