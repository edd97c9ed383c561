"""Consumer groups: list, describe with lag, delete, reset offsets.

Each node knows the groups that it coordinates. Lag is the number of offsets from the committed one, or the earliest one
if that is later, to the latest.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Annotated, Literal
from urllib.parse import quote

import msgspec
from msgspec import Meta

from penstock.cluster import OFFSETS_TOPIC
from penstock.errors import ErrorCode, KafkaError, PenstockError, ProtocolViolation
from penstock.kafka.handlers.inner_client import InnerClient
from penstock.kafka.handlers.leader_offsets import EARLIEST, LATEST, NOT_FOUND, get_offsets
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.consumer_protocol import PROTOCOL_TYPE, decode_assignment
from penstock.kafka.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from penstock.kafka.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from penstock.kafka.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from penstock.kafka.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.kafka.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from penstock.node import Node
from penstock.node.calls import CoordinatorOf, rows_of_each
from penstock.types import Caller, Isolation, Operation, ResourceType, TopicPartition
from penstock.web.api.offset_ranges import find_ranges
from penstock.web.api.problems import check, refused, wrong
from penstock.web.api.routing import ROWS_IN_LOOP, Call, NoParams, in_thread_if
from penstock.web.api.topics import TopicName, find_topic

SHARE = "share"
NO_MEMBER, NO_GENERATION = "", -1
"""A commit by a client that is not a member carries these: allowed while the group has no members."""

GroupName = Annotated[
    str, Meta(min_length=1, max_length=4096, description="A group's id, as consumers have it.")
]
PartitionNumber = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class GroupParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    group: GroupName


class GroupSummary(msgspec.Struct, frozen=True, kw_only=True):
    """`lag` is some seconds old, and counts partitions of which the coordinator has a replica; null if it is not
    known."""

    group: str
    state: str
    type: str
    protocol_type: str
    coordinator: int
    lag: int | None


class GroupList(msgspec.Struct, frozen=True, kw_only=True):
    """`unanswered` are nodes that did not list the groups that they coordinate."""

    groups: list[GroupSummary]
    unanswered: list[int]


class Assigned(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partitions: list[int]


class MemberFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`assignment` is null if it is not in the format of Kafka's consumers. It has the topics that the caller may
    describe."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    assignment: list[Assigned] | None


class CommittedFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`latest_offset` and `lag` are null while the partition's leader does not answer."""

    topic: str
    partition: int
    committed_offset: int
    metadata: str
    latest_offset: int | None
    lag: int | None


class UncommittedFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that a member reads, and for which no offset is committed. It has no lag: the member's
    auto.offset.reset says where it begins."""

    topic: str
    partition: int
    latest_offset: int | None


class GroupFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`lag` is the sum of the known ones. `uncommitted` has partitions that are assigned to a member, without a
    committed offset."""

    group: str
    state: str
    protocol_type: str
    protocol: str
    coordinator: int
    members: list[MemberFacts]
    offsets: list[CommittedFacts]
    lag: int
    uncommitted: list[UncommittedFacts] = []


class OffsetsReset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The group's new position in a topic: `to` an offset, earliest or latest, or the first offset at a time; on all
    partitions, or on some. `dry_run`: only tell what it would be, also while the group has members."""

    topic: TopicName
    partitions: Annotated[list[PartitionNumber], Meta(min_length=1, max_length=10_000)] | None = None
    to: Literal["earliest", "latest"] | Annotated[int, Meta(ge=0, le=2**62)] | None = None
    timestamp_ms: Annotated[int, Meta(ge=0, le=2**62)] | None = None
    dry_run: bool = False

    @property
    def only_looks(self) -> bool:
        return self.dry_run


class PartitionOffset(msgspec.Struct, frozen=True, kw_only=True):
    """`before` is the offset that was committed before; null if there was none."""

    partition: int
    offset: int
    before: int | None


class OffsetsResetDone(msgspec.Struct, frozen=True, kw_only=True):
    """`dry_run`: nothing was changed."""

    group: str
    topic: str
    offsets: list[PartitionOffset]
    dry_run: bool


class Groups:
    """Operations on consumer groups."""

    def __init__(self, node: Node) -> None:
        self._node = node

    # --- queries

    async def list_groups(self, call: Call[NoParams, None]) -> GroupList:
        nodes = [one.node_id for one in self._node.view.brokers()]
        lags = await self._node.samples.latest_lags()
        rows, unanswered = await rows_of_each(nodes, lambda node: self._listed(call.client, node, lags))
        return GroupList(
            groups=await in_thread_if(len(rows) > ROWS_IN_LOOP, _by_name, rows),
            unanswered=unanswered,
        )

    async def _listed(self, client: InnerClient, node: int, lags: Mapping[str, int]) -> list[GroupSummary]:
        answer = await client.ask(ApiKey.LIST_GROUPS, ListGroupsRequest(), ListGroupsResponse, to=node)
        if answer.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode(answer.error_code), f"node {node} does not list its groups")
        return await in_thread_if(len(answer.groups) > ROWS_IN_LOOP, _summaries, answer.groups, node, lags)

    async def describe_group(self, call: Call[GroupParams, None]) -> GroupFacts:
        group = call.params.group
        found = await self.described(call.client, group)
        if found is None:
            raise await self._unknown(call.caller, group)
        offsets = await self._offsets(call.client, group)
        members = [self._member(call.caller, member, found.protocol_type) for member in found.members]
        return GroupFacts(
            group=group,
            state=found.group_state,
            protocol_type=found.protocol_type,
            protocol=found.protocol_data,
            coordinator=call.client.coordinator_of(group),
            members=members,
            offsets=offsets,
            lag=sum(row.lag or 0 for row in offsets),
            uncommitted=await self._uncommitted(call.client, members, offsets),
        )

    def _member(self, caller: Caller, member: DescribedGroupMember, protocol_type: str) -> MemberFacts:
        assignment = _assignment(member.member_assignment) if protocol_type == PROTOCOL_TYPE else None
        if assignment is not None:  # a permission on a group does not show its topics
            names = {row.topic for row in assignment}
            seen = self._node.resources.visible(caller, ResourceType.TOPIC, names)
            assignment = [row for row in assignment if row.topic in seen]
        return MemberFacts(
            member_id=member.member_id,
            instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            assignment=assignment,
        )

    async def described(self, client: InnerClient, group: str) -> DescribedGroup | None:
        """None: there is no such group."""
        if not self._node.resources.exists(OFFSETS_TOPIC):
            return None
        answer = await client.ask_role(
            CoordinatorOf(group),
            ApiKey.DESCRIBE_GROUPS,
            DescribeGroupsRequest(groups=[group]),
            DescribeGroupsResponse,
            lambda answer: answer.groups[0].error_code,
        )
        [found] = answer.groups
        if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        check(found.error_code, found.error_message)
        return found

    async def _unknown(self, caller: Caller, group: str) -> Exception:
        message = f"there is no group {group!r}; GET /v1/groups lists them"
        with suppress(PenstockError):
            if await self._node.queues.overview.descriptions(group, caller=caller):
                message = f"{group!r} is a queue: GET /v1/queues/{quote(group, safe='')} describes it"
        return refused(ErrorCode.GROUP_ID_NOT_FOUND, message, "group")

    async def _is_share_group_without_queue(self, client: InnerClient, group: str) -> bool:
        """A share group without a queue, since its topics were deleted: only this operation can delete it."""
        if not self._node.resources.exists(OFFSETS_TOPIC):
            return False
        rows = await self._listed(client, client.coordinator_of(group), {})
        is_share = any(row.group == group and row.type == SHARE for row in rows)
        return is_share and not await self._node.queues.overview.descriptions(group, caller=client.caller)

    async def _offsets(self, client: InnerClient, group: str) -> list[CommittedFacts]:
        wanted = OffsetFetchRequestGroup(group_id=group, topics=None)
        answer = await client.ask_role(
            CoordinatorOf(group),
            ApiKey.OFFSET_FETCH,
            OffsetFetchRequest(groups=[wanted]),
            OffsetFetchResponse,
            lambda answer: answer.groups[0].error_code,
        )
        check(answer.groups[0].error_code)
        topics = {
            topic.name: [row.partition_index for row in topic.partitions] for topic in answer.groups[0].topics
        }
        ranges = await find_ranges(client, topics)
        return [
            _committed(
                TopicPartition(topic.name, row.partition_index), row.committed_offset, row.metadata, ranges
            )
            for topic in sorted(answer.groups[0].topics, key=lambda topic: topic.name)
            for row in sorted(topic.partitions, key=lambda row: row.partition_index)
        ]

    async def _uncommitted(
        self, client: InnerClient, members: list[MemberFacts], offsets: list[CommittedFacts]
    ) -> list[UncommittedFacts]:
        committed = {(row.topic, row.partition) for row in offsets}
        missing: dict[str, list[int]] = {}
        for row in (row for member in members for row in member.assignment or ()):
            new = [one for one in row.partitions if (row.topic, one) not in committed]
            if new:
                missing.setdefault(row.topic, []).extend(new)
        ranges = await find_ranges(client, missing) if missing else {}
        return [
            UncommittedFacts(
                topic=topic,
                partition=one,
                latest_offset=ranges.get(TopicPartition(topic, one), (None, None))[1],
            )
            for topic in sorted(missing)
            for one in sorted(missing[topic])
        ]

    # --- changes

    async def delete_group(self, call: Call[GroupParams, None]) -> None:
        group = call.params.group
        is_consumers = await self.described(call.client, group) is not None
        if not is_consumers and not await self._is_share_group_without_queue(call.client, group):
            raise await self._unknown(call.caller, group)
        code = await self.delete(call.client, group)
        if code == ErrorCode.NON_EMPTY_GROUP:
            raise refused(code, f"group {group!r} has members: stop its consumers first", "group")
        if code != ErrorCode.GROUP_ID_NOT_FOUND:  # it existed a moment ago: an earlier attempt has deleted it
            check(code, None, "group")

    async def delete(self, client: InnerClient, group: str) -> int:
        """The error code of the group's coordinator."""
        if not self._node.resources.exists(OFFSETS_TOPIC):  # the cluster has never had a group
            return ErrorCode.GROUP_ID_NOT_FOUND
        answer = await client.ask_role(
            CoordinatorOf(group),
            ApiKey.DELETE_GROUPS,
            DeleteGroupsRequest(groups_names=[group]),
            DeleteGroupsResponse,
            lambda answer: answer.results[0].error_code,
        )
        return answer.results[0].error_code

    async def reset_offsets(self, call: Call[GroupParams, OffsetsReset]) -> OffsetsResetDone:
        group, wanted = call.params.group, call.body
        partitions = self._chosen(call)
        found = await self.described(call.client, group)
        if found is not None and found.members and not wanted.dry_run:
            raise _has_members(group)
        offsets = await self._targets(call.client, wanted, partitions)
        before = {} if found is None else await self._before(call.client, group, wanted.topic)
        if not wanted.dry_run:
            await self._commit(call.client, group, wanted.topic, offsets)
        rows = [
            PartitionOffset(partition=one, offset=offset, before=before.get(one))
            for one, offset in sorted(offsets.items())
        ]
        return OffsetsResetDone(group=group, topic=wanted.topic, offsets=rows, dry_run=wanted.dry_run)

    async def _before(self, client: InnerClient, group: str, topic: str) -> dict[int, int]:
        rows = await self._offsets(client, group)
        return {row.partition: row.committed_offset for row in rows if row.topic == topic}

    def _chosen(self, call: Call[GroupParams, OffsetsReset]) -> list[int]:
        wanted = call.body
        if (wanted.to is None) == (wanted.timestamp_ms is None):
            raise wrong("to", "expected either `to` or `timestamp_ms`")
        count = find_topic(self._node, call.caller, wanted.topic, Operation.READ).partitions
        partitions = sorted(set(range(count) if wanted.partitions is None else wanted.partitions))
        if partitions[-1] >= count:
            raise wrong("partitions", f"{partitions[-1]}: expected 0 to {count - 1}")
        return partitions

    async def _targets(
        self, client: InnerClient, wanted: OffsetsReset, partitions: list[int]
    ) -> dict[int, int]:
        first = await get_offsets(client, wanted.topic, partitions, EARLIEST, Isolation.READ_UNCOMMITTED)
        last = await get_offsets(client, wanted.topic, partitions, LATEST, Isolation.READ_UNCOMMITTED)
        if wanted.timestamp_ms is not None:
            found = await get_offsets(
                client, wanted.topic, partitions, wanted.timestamp_ms, Isolation.READ_UNCOMMITTED
            )
            return {one: last[one] if offset == NOT_FOUND else offset for one, offset in found.items()}
        if isinstance(wanted.to, int):
            for one in partitions:
                if not first[one] <= wanted.to <= last[one]:
                    expected = f"expected {first[one]} to {last[one]}, earliest or latest"
                    raise wrong("to", f"{wanted.topic}-{one} has no offset {wanted.to}: {expected}")
            return dict.fromkeys(partitions, wanted.to)
        return first if wanted.to == "earliest" else last

    async def _commit(self, client: InnerClient, group: str, topic: str, offsets: dict[int, int]) -> None:
        await self._node.groups.cores.ensure_topic()  # this may be the cluster's first group
        rows = [
            OffsetCommitRequestPartition(partition_index=one, committed_offset=offset, committed_metadata="")
            for one, offset in offsets.items()
        ]
        commit = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=NO_GENERATION,
            member_id=NO_MEMBER,
            topics=[OffsetCommitRequestTopic(name=topic, partitions=rows)],
        )
        answer = await client.ask_role(
            CoordinatorOf(group),
            ApiKey.OFFSET_COMMIT,
            commit,
            OffsetCommitResponse,
            lambda answer: answer.topics[0].partitions[0].error_code,
        )
        for row in answer.topics[0].partitions:
            if row.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
                raise _has_members(group)
            if row.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                raise await self._unknown(client.caller, group)
            check(row.error_code, None, "group")


def _has_members(group: str) -> Exception:
    message = f"group {group!r} has members, which keep their own positions: stop its consumers first"
    return refused(ErrorCode.NON_EMPTY_GROUP, message, "group")


def _assignment(blob: bytes) -> list[Assigned] | None:
    if not blob:
        return []
    try:
        found = decode_assignment(blob)
    except ProtocolViolation:
        return None
    return [Assigned(topic=row.topic, partitions=row.partitions) for row in found.assigned_partitions]


def _summaries(groups: Iterable[ListedGroup], node: int, lags: Mapping[str, int]) -> list[GroupSummary]:
    """May run in a thread, as `_by_name`."""
    return [
        GroupSummary(
            group=row.group_id,
            state=row.group_state,
            type=row.group_type,
            protocol_type=row.protocol_type,
            coordinator=node,
            lag=lags.get(row.group_id),
        )
        for row in groups
    ]


def _by_name(rows: list[GroupSummary]) -> list[GroupSummary]:
    return sorted(rows, key=lambda row: row.group)


def _committed(
    where: TopicPartition, offset: int, metadata: str | None, ranges: dict[TopicPartition, tuple[int, int]]
) -> CommittedFacts:
    first, last = ranges.get(where, (None, None))
    return CommittedFacts(
        topic=where.topic,
        partition=where.partition,
        committed_offset=offset,
        metadata=metadata or "",
        latest_offset=last,
        lag=None if first is None or last is None else max(0, last - max(offset, first)),
    )
