"""Consumer groups on this node: their members, their committed offsets, and requests about them.

Coordinators (`penstock.groups`) decide; each is a durable core on one partition of the offsets topic. Here each request
finds the coordinator of its group and waits for the reply.
"""

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from penstock.cluster import OFFSETS_TOPIC
from penstock.config import GroupSettings, Limits
from penstock.errors import ErrorCode, KafkaError
from penstock.groups import (
    CommitRequest,
    CommitResult,
    CommittedOffset,
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    Coordinator,
    DeleteGroupsResult,
    DeleteOffsetsResult,
    GroupDescription,
    GroupListing,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    SyncRequest,
    SyncResult,
)
from penstock.node.coordination.applied_metadata import AppliedMetadata, AppliedTopics, Visible
from penstock.node.coordination.assignment_jobs import AssignmentJobs
from penstock.node.coordination.durable_cores import DurableCores
from penstock.node.metadata.cluster_view import ClusterView
from penstock.node.metadata.controller import Controller
from penstock.node.metadata.metadata_log import MetadataLog
from penstock.node.parts import Part, TopicChanges
from penstock.node.replication.partition import Partition
from penstock.node.scheduling.clock import Clock
from penstock.types import NO_EVENTS, EventSink, TopicPartition


class GroupManager(Part):
    """Sends each request to the coordinator of its group. Every method is called on the event loop."""

    def __init__(
        self,
        *,
        metadata: MetadataLog,
        controller: Controller,
        view: ClusterView,
        clock: Clock,
        settings: GroupSettings,
        limits: Limits,
        visible: Visible,
        events: EventSink = NO_EVENTS,
    ) -> None:
        """`visible` tells which topics a member's regular expression may find."""
        self._topics = AppliedTopics(metadata)
        self._jobs = AssignmentJobs()
        cluster = AppliedMetadata(metadata.state, visible)
        self.cores = DurableCores(
            OFFSETS_TOPIC,
            lambda: Coordinator(self._topics, settings, limits, cluster, events),
            partitions=settings.offsets_topic_partitions,
            metadata=metadata,
            controller=controller,
            view=view,
            clock=clock,
            send=self._jobs,
        )
        """The coordinators: each decides for the groups that hash to its partition."""
        self.reserved: set[str] = set()
        """Groups that are subscriptions with a subscriber: no consumer can join them."""
        self._topic_ids = {name: topic.topic_id for name, topic in metadata.state.topics.items()}
        """The topic that each name stood for when the metadata last changed."""

    # --- members

    async def join(self, request: JoinRequest) -> JoinResult:
        try:
            host = await self.cores.host_of(request.group_id)
            self._check_unreserved(request.group_id)
            return await host.ask(JoinResult, lambda now, token: host.core.join(now, token, request))
        except KafkaError as refusal:
            return JoinResult(error=refusal.code, member_id=request.member_id)

    async def sync(self, request: SyncRequest) -> SyncResult:
        try:
            host = await self.cores.host_of(request.group_id)
            return await host.ask(SyncResult, lambda now, token: host.core.sync(now, token, request))
        except KafkaError as refusal:
            return SyncResult(error=refusal.code)

    async def heartbeat(
        self, group_id: str, generation: int, member_id: str, instance_id: str | None
    ) -> ErrorCode:
        try:
            host = await self.cores.host_of(group_id)
        except KafkaError as refusal:
            return refusal.code
        return host.core.heartbeat(host.now_ms, group_id, member_id, generation, instance_id)

    async def leave(self, group_id: str, members: Sequence[LeavingMember]) -> LeaveResult:
        try:
            host = await self.cores.host_of(group_id)
            return await host.ask(
                LeaveResult, lambda now, token: host.core.leave(now, token, group_id, members)
            )
        except KafkaError as refusal:
            return LeaveResult(error=refusal.code)

    async def consumer_heartbeat(self, request: ConsumerHeartbeat) -> ConsumerHeartbeatResult:
        """A heartbeat of a member that uses the protocol of KIP-848."""
        try:
            host = await self.cores.host_of(request.group_id)
            self._check_unreserved(request.group_id)
            return await host.ask(
                ConsumerHeartbeatResult, lambda now, token: host.core.consumer_heartbeat(now, token, request)
            )
        except KafkaError as refusal:
            return ConsumerHeartbeatResult(error=refusal.code, message=refusal.message)

    def _check_unreserved(self, group_id: str) -> None:
        if group_id in self.reserved:
            message = f"{group_id!r} is a subscription that is in use"
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)

    # --- offsets

    async def commit(self, request: CommitRequest) -> CommitResult:
        """With a producer, the offsets are part of its transaction: the caller has asked the transaction's coordinator
        whether the group is too."""
        # Before any wait: the names stand for the topics that exist now.
        request = self._with_topic_ids(request)
        try:
            host = await self.cores.host_of(request.group_id)
            if request.producer is not None:
                # The log would refuse the batch as well, but its refusal has no code that a client could be told.
                host.partition.log.producers.next_sequence(request.producer)
            return await host.ask(
                CommitResult, lambda now, token: host.core.commit_offsets(now, token, request)
            )
        except KafkaError as refusal:
            partitions = (TopicPartition(offset.topic, offset.partition) for offset in request.offsets)
            return CommitResult(errors=dict.fromkeys(partitions, refusal.code))

    def unstable(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> Collection[TopicPartition]:
        """The partitions for which an open transaction has an offset of the group; KafkaError like `committed`."""
        host = self.cores.find(group_id)
        return host.core.unstable_offsets(group_id, partitions) if host is not None else ()

    def committed(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """A group's committed offsets, of these partitions or all; none for an unknown group. KafkaError if the
        coordinator cannot tell now: consumers that mistook that for "none" would start over."""
        host = self.cores.find(group_id)
        return host.core.fetch_offsets(group_id, partitions) if host is not None else {}

    def check_fetch(self, group_id: str, member_id: str, epoch: int) -> None:
        """KafkaError if the member may not begin where the group has committed: it is unknown, or its epoch is old."""
        host = self.cores.find(group_id)
        code = ErrorCode.UNKNOWN_MEMBER_ID
        if host is not None:
            code = host.core.check_fetch(group_id, member_id, epoch)
        if code:
            raise KafkaError(code, f"{group_id}: {member_id!r} with epoch {epoch}")

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> DeleteOffsetsResult:
        try:
            host = await self.cores.host_of(group_id)
            return await host.ask(
                DeleteOffsetsResult,
                lambda now, token: host.core.delete_offsets(now, token, group_id, partitions),
            )
        except KafkaError as refusal:
            return DeleteOffsetsResult(error=refusal.code)

    def _with_topic_ids(self, request: CommitRequest) -> CommitRequest:
        """A client that names an id has read from that topic, even if another topic has the name by now."""
        offsets = (
            each if each.topic_id is not None else replace(each, topic_id=self._topics.id_of(each.topic))
            for each in request.offsets
        )
        return replace(request, offsets=tuple(offsets))

    def role_changed(self, partition: Partition) -> None:
        self.cores.role_changed(partition)

    async def stop(self) -> None:
        self._jobs.stop()
        self.cores.stop()

    def metadata_changed(self, topics: TopicChanges) -> None:
        """Offsets of a topic that is gone must not count for the next topic of that name. Coordinators on other nodes
        find out by the topics' ids."""
        names = (*topics.vanished, *topics.changed)
        gone = [name for name in names if self._stands_for_another(name)]
        for host in self.cores.hosts():
            if host.is_ready:
                host.tell(partial(host.core.topics_changed, names=names))
            if gone:
                host.tell(partial(host.core.topics_deleted, topics=gone))

    def _stands_for_another(self, name: str) -> bool:
        """Whether the topic that had this name is gone; another topic may have the name now."""
        before, now = self._topic_ids.pop(name, None), self._topics.id_of(name)
        if now is not None:
            self._topic_ids[name] = now
        return before is not None and before != now

    # --- administration

    def list(self, states: Collection[str], types: Collection[str]) -> Iterator[GroupListing]:
        """The caller may pause."""
        for host in self.cores.loaded().values():
            yield from host.core.list_groups(states, types)

    def summaries(self, held: Container[TopicPartition] | None = None) -> Iterator["GroupSummary"]:
        """Every group with its offsets, of these partitions or all, for metrics. The caller may pause."""
        for host in self.cores.loaded().values():
            for row in host.core.list_groups():
                known = host.core.member_count(row.group_id)
                if known is None:
                    continue  # it was deleted during a pause
                partitions = host.core.committed_partitions(row.group_id)
                if held is not None:
                    partitions = [partition for partition in partitions if partition in held]
                offsets = host.core.fetch_offsets(row.group_id, partitions)
                yield GroupSummary(
                    group_id=row.group_id,
                    state=known[0],
                    member_count=known[1],
                    offsets={partition: committed.offset for partition, committed in offsets.items()},
                )

    def describe(self, group_id: str) -> GroupDescription | None:
        """None: there is no such group. KafkaError if the coordinator cannot tell now."""
        host = self.cores.find(group_id)
        return host.core.describe(group_id) if host is not None else None

    def member_count(self, group_id: str) -> int:
        """Counts the members of a group of either protocol. KafkaError like `describe`."""
        host = self.cores.find(group_id)
        known = host.core.member_count(group_id) if host is not None else None
        return 0 if known is None else known[1]

    def describe_consumer_group(self, group_id: str) -> ConsumerGroupDescription | None:
        """The same for a group of the protocol of KIP-848."""
        host = self.cores.find(group_id)
        return host.core.describe_consumer_group(group_id) if host is not None else None

    async def delete(self, group_ids: Sequence[str]) -> dict[str, ErrorCode]:
        codes: dict[str, ErrorCode] = {}
        for group_id in dict.fromkeys(group_ids):
            codes.update((await self._delete_one(group_id)).errors)
        return codes

    async def _delete_one(self, group_id: str) -> DeleteGroupsResult:
        try:
            host = await self.cores.host_of(group_id)
            return await host.ask(
                DeleteGroupsResult, lambda now, token: host.core.delete_groups(now, token, [group_id])
            )
        except KafkaError as refusal:
            return DeleteGroupsResult(errors={group_id: refusal.code})


class GroupSummary(NamedTuple):
    """A group, as metrics show it."""

    group_id: str
    state: str
    member_count: int
    offsets: Mapping[TopicPartition, int]
