"""A broker's facts about a consumer group: members, committed offsets, lag."""

from contextlib import suppress
from typing import Any

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from penstock.cli import queue_consumers, share_groups
from penstock.cli.connection import REQUEST_TIMEOUT_S, Connection
from penstock.cli.problem import Problem
from penstock.cli.topic_facts import Partitions, offsets_at

NO_OFFSET = -1001
"""librdkafka's mark for "this group has committed nothing here"."""


class IsQueue(Problem):
    """The group is a share group."""

    def __init__(self, group: str, state: str) -> None:
        super().__init__(f"{group} is a queue (a share group)", f"penstock queues describe {group}")
        self.state = state


def member_counts(connection: Connection, admin: AdminClient, groups: list[str]) -> dict[str, int]:
    """How many members each group has; without those whose coordinator does not answer."""
    if not groups:
        return {}
    found: dict[str, int] = {}
    for group, future in admin.describe_consumer_groups(groups, request_timeout=REQUEST_TIMEOUT_S).items():
        with suppress(Problem):
            found[group] = len(connection.wait(future, f"looking for group {group}").members)
    return found


def _describe_queue(connection: Connection, group: str, state: str) -> dict[str, Any]:
    facts = {"group": group, "type": share_groups.SHARE, "state": state}
    return facts | queue_consumers.listed(connection, group)


def committed(connection: Connection, admin: AdminClient, group: str) -> Partitions:
    """The group's committed offsets."""
    [future] = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    answer = connection.wait(future, f"reading the offsets of {group}")
    return {
        (where.topic, where.partition): where.offset
        for where in answer.topic_partitions or []
        if where.offset != NO_OFFSET
    }


def describe(connection: Connection, group: str) -> dict[str, Any]:
    """The group's state, members, and how far behind it is on every partition, as plain data."""
    admin = connection.admin()
    offsets = committed(connection, admin, group)
    try:
        found = existing(connection, admin, group, offsets)
    except IsQueue as queue:
        return _describe_queue(connection, group, queue.state)
    members = [_member(member) for member in found.members]
    return {
        "group": group,
        "type": found.type.name.lower() if found.type else None,
        "state": state_of(found),
        "assignor": found.partition_assignor,
        "coordinator": f"{found.coordinator.host}:{found.coordinator.port}" if found.coordinator else None,
        "members": members,
        "offsets": _lags(connection, admin, offsets, members),
    }


def state_of(group: Any) -> str:
    """librdkafka has no name for the states of a group of the consumer protocol whose partitions are moving."""
    is_consumer = group.type is ConsumerGroupType.CONSUMER
    is_moving = is_consumer and group.state is ConsumerGroupState.UNKNOWN
    return "rebalancing" if is_moving else str(group.state.name.lower())


def existing(connection: Connection, admin: AdminClient, group: str, offsets: Partitions) -> Any:
    """librdkafka's description of a group that has members or `offsets`; a Problem if it has neither."""
    [future] = admin.describe_consumer_groups([group], request_timeout=REQUEST_TIMEOUT_S).values()
    found = connection.wait(future, f"looking for group {group}")
    if found.state.name == "DEAD" and not offsets and not found.members:
        states = share_groups.find(connection, admin).states
        if group in states:
            raise IsQueue(group, states[group])
        raise Problem(
            f"there is no group {group}",
            "`penstock groups list` shows what there is, `penstock queues list` the queues",
        )
    return found


def _member(member: Any) -> dict[str, Any]:
    held = member.assignment.topic_partitions if member.assignment else []
    return {
        "member_id": member.member_id,
        "instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "partitions": [[where.topic, where.partition] for where in held],
    }


def _lags(
    connection: Connection, admin: AdminClient, offsets: Partitions, members: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    holders = {(t, p): member["member_id"] for member in members for t, p in member["partitions"]}
    partitions = sorted({*offsets, *holders})
    ends = offsets_at(connection, admin, partitions, OffsetSpec.latest())
    return [
        {
            "topic": topic,
            "partition": partition,
            "committed": offsets.get((topic, partition)),
            "end_offset": ends[topic, partition],
            "lag": _lag(offsets.get((topic, partition)), ends[topic, partition]),
            "member_id": holders.get((topic, partition)),
        }
        for topic, partition in partitions
    ]


def _lag(offset: int | None, end: int) -> int | None:
    return None if offset is None else max(0, end - offset)


def move(connection: Connection, admin: AdminClient, group: str, targets: Partitions) -> None:
    """Commits new offsets for a group that has no members."""
    wanted = [TopicPartition(topic, partition, offset) for (topic, partition), offset in targets.items()]
    request = ConsumerGroupTopicPartitions(group, wanted)
    [future] = admin.alter_consumer_group_offsets([request]).values()
    answer = connection.wait(future, f"moving {group}")
    for where in answer.topic_partitions or []:
        if where.error is not None:
            raise Problem(f"moving {group} on {where.topic}-{where.partition}: {where.error.str()}")
