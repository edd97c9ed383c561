"""A broker's facts about a topic, from several requests: placement, offsets, settings."""

from collections.abc import Iterable
from typing import Any

from confluent_kafka import IsolationLevel, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    ConfigSource,
    OffsetSpec,
    ResourceType,
    TopicMetadata,
)

from penstock.cli.connection import REQUEST_TIMEOUT_S, Connection

Partitions = dict[tuple[str, int], int]
"""An offset for each (topic, partition)."""


def all_topics(connection: Connection) -> dict[str, TopicMetadata]:
    return connection.metadata(connection.admin(), "listing topics").topics


def partition_numbers(connection: Connection, admin: AdminClient, topic: str) -> list[int]:
    return [partition.id for partition in _placement(connection, admin, topic).partitions]


def _placement(connection: Connection, admin: AdminClient, topic: str) -> Any:
    [future] = admin.describe_topics(TopicCollection([topic])).values()
    return connection.wait(future, f"looking for topic {topic}")


def offsets_at(
    connection: Connection,
    admin: AdminClient,
    partitions: Iterable[tuple[str, int]],
    spec: OffsetSpec,
    *,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> Partitions:
    """The offset of each partition at a point such as earliest, latest or a timestamp (-1: none). For readers of
    committed records, a partition ends where its first open transaction begins."""
    request = {TopicPartition(topic, partition): spec for topic, partition in partitions}
    if not request:
        return {}
    futures = admin.list_offsets(request, isolation_level=isolation, request_timeout=REQUEST_TIMEOUT_S)
    return {
        (where.topic, where.partition): connection.wait(future, f"asking for offsets of {where.topic}").offset
        for where, future in futures.items()
    }


def describe(connection: Connection, topic: str, *, all_configs: bool = False) -> dict[str, Any]:
    """Everything about one topic, as plain data."""
    admin = connection.admin()
    placement = _placement(connection, admin, topic)
    where = [(topic, partition.id) for partition in placement.partitions]
    starts = offsets_at(connection, admin, where, OffsetSpec.earliest())
    ends = offsets_at(connection, admin, where, OffsetSpec.latest())
    return {
        "topic": topic,
        "topic_id": str(placement.topic_id),
        "internal": placement.is_internal,
        "partitions": [
            _partition(partition, starts[topic, partition.id], ends[topic, partition.id])
            for partition in placement.partitions
        ],
        "configs": _configs(connection, admin, topic, all_configs),
    }


def _partition(partition: Any, start: int, end: int) -> dict[str, Any]:
    return {
        "partition": partition.id,
        "leader": partition.leader.id if partition.leader else None,
        "replicas": [node.id for node in partition.replicas],
        "isr": [node.id for node in partition.isr],
        "start_offset": start,
        "end_offset": end,
        "messages": end - start,
    }


def config_names(connection: Connection, admin: AdminClient, topic: str) -> list[str]:
    """The names of all settings that the broker knows."""
    return list(_configs(connection, admin, topic, everything=True))


def _configs(
    connection: Connection, admin: AdminClient, topic: str, everything: bool
) -> dict[str, str | None]:
    [future] = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    entries = connection.wait(future, f"reading the settings of {topic}")
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {name: entry.value for name, entry in entries.items() if everything or entry.source == own}
