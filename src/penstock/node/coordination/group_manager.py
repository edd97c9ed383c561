"""Drives the group coordinators: one per partition of the offsets topic, each deciding for the groups that hash to it.

The leader of such a partition is the coordinator's home. `partition_moved` starts one where this node begins to lead,
and stops it where it no longer does. A coordinator that has much to read does so piece by piece, and clients are told
to come back; one that has little is there at once. So are they while this node's metadata is older than what the
coordinator before had: which topics are gone could not be told from which are not known here yet.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from msgspec.structs import replace

from penstock.cluster import OFFSETS_TOPIC
from penstock.config import GroupSettings, Limits
from penstock.errors import ErrorCode, KafkaError, PenstockError, StorageError
from penstock.groups import (
    CommitRequest,
    CommitResult,
    CommittedOffset,
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
    offsets_partition,
)
from penstock.node.clock import Clock
from penstock.node.coordination.coordinator_driver import CoordinatorDriver
from penstock.node.coordination.share_groups import AppliedMetadata
from penstock.node.metadata.cluster_view import ClusterView
from penstock.node.metadata.controller import Controller
from penstock.node.metadata.metadata_log import MetadataLog
from penstock.node.replication.partition import Partition
from penstock.types import NO_EVENTS, EventSink, TopicPartition

log = logging.getLogger("penstock.groups")

LOAD_AT_ONCE_BYTES = 128 * 1024
"""A partition of at most this size is replayed in one go: some milliseconds."""


class GroupManager:
    """Finds a group's coordinator and speaks with it. Every method is called on the event loop."""

    def __init__(
        self,
        *,
        metadata: MetadataLog,
        controller: Controller,
        view: ClusterView,
        clock: Clock,
        settings: GroupSettings,
        limits: Limits,
        events: EventSink = NO_EVENTS,
    ) -> None:
        self._metadata = metadata
        self._events = events
        self._state = metadata.state
        self._topics = AppliedTopics(metadata)
        self._surroundings = AppliedMetadata(metadata.state)
        self._controller = controller
        self._view = view
        self._clock = clock
        self._settings = settings
        self._limits = limits
        self.reserved: set[str] = set()
        """Groups that are subscriptions with a subscriber now: no consumer can join them."""
        self._drivers: dict[int, CoordinatorDriver] = {}
        self._loading: dict[int, _Loading] = {}
        self._topic_ids: dict[str, UUID] = {}
        """What each name stood for when the metadata last changed."""

    def partition_moved(self, partition: Partition) -> None:
        """This node began or ceased to lead a partition of the offsets topic."""
        index = partition.name.partition
        driver = self._drivers.get(index)
        if driver is not None and not (partition.serves and partition.term == driver.term):
            self._drivers.pop(index).stop()
        loading = self._loading.get(index)
        if loading is not None and not (partition.serves and partition.term == loading.driver.term):
            self._loading.pop(index).task.cancel()
        if partition.serves and index not in self._drivers and index not in self._loading:
            self._load(partition)

    def _load(self, partition: Partition) -> None:
        core = Coordinator(self._topics, self._settings, self._limits, self._surroundings, self._events)
        driver = CoordinatorDriver(core, partition, self._clock)
        is_small = partition.log.size_bytes <= LOAD_AT_ONCE_BYTES
        if is_small:
            try:
                driver.load()
            except (PenstockError, ValueError) as trouble:
                log.error("the coordinator on %s stays offline: %s", partition.name, trouble)
                return
        if is_small and self._knows_enough(driver):
            self._begin(driver, partition)
        else:
            work = self._load_gently(driver, partition, is_read=is_small)
            task = asyncio.get_running_loop().create_task(work)
            self._loading[partition.name.partition] = _Loading(driver, task)

    async def _load_gently(self, driver: CoordinatorDriver, partition: Partition, *, is_read: bool) -> None:
        index = partition.name.partition
        try:
            if not is_read:
                await driver.load_gently()
            while not self._knows_enough(driver):
                log.info("the coordinator on %s waits for metadata that this node lacks", partition.name)
                await self._metadata.next_change()
        except (PenstockError, ValueError) as trouble:
            log.error("the coordinator on %s stays offline: %s", partition.name, trouble)
            del self._loading[index]
        else:
            deleted = self._loading.pop(index).deleted_topics
            self._begin(driver, partition)
            driver.carry_out(driver.core.topics_deleted(driver.now_ms, frozenset(deleted)))

    def _knows_enough(self, driver: CoordinatorDriver) -> bool:
        return self._topics.version >= driver.core.topics_version

    def _begin(self, driver: CoordinatorDriver, partition: Partition) -> None:
        self._drivers[partition.name.partition] = driver
        driver.begin()

    async def ensure_topic(self) -> None:
        """Creates the offsets topic when the first group shows up."""
        if OFFSETS_TOPIC not in self._state.topics:
            try:
                await self._controller.create_internal_topic(
                    OFFSETS_TOPIC, self._settings.offsets_topic_partitions
                )
            except (
                KafkaError
            ) as refused:  # no controller, or not nodes enough: what a group's client can wait for
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, refused.message) from refused

    def stop(self) -> None:
        for driver in self._drivers.values():
            driver.stop()
        for loading in self._loading.values():
            loading.task.cancel()

    # --- members

    async def join(self, request: JoinRequest) -> JoinResult:
        try:
            driver = await self.home(request.group_id)
            if request.group_id in self.reserved:
                message = f"{request.group_id!r} is a subscription, and in use"
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)
            return await driver.ask(JoinResult, lambda now, token: driver.core.join(now, token, request))
        except KafkaError as refusal:
            return JoinResult(error=refusal.code, member_id=request.member_id)

    async def sync(self, request: SyncRequest) -> SyncResult:
        try:
            driver = await self.home(request.group_id)
            return await driver.ask(SyncResult, lambda now, token: driver.core.sync(now, token, request))
        except KafkaError as refusal:
            return SyncResult(error=refusal.code)

    async def heartbeat(
        self, group_id: str, generation: int, member_id: str, instance_id: str | None
    ) -> ErrorCode:
        try:
            driver = await self.home(group_id)
        except KafkaError as refusal:
            return refusal.code
        return driver.core.heartbeat(driver.now_ms, group_id, member_id, generation, instance_id)

    async def leave(self, group_id: str, members: Sequence[LeavingMember]) -> LeaveResult:
        try:
            driver = await self.home(group_id)
            return await driver.ask(
                LeaveResult, lambda now, token: driver.core.leave(now, token, group_id, members)
            )
        except KafkaError as refusal:
            return LeaveResult(error=refusal.code)

    # --- offsets

    async def commit(self, request: CommitRequest) -> CommitResult:
        # Before anything is waited for: these are the topics that the request was found to mean.
        request = self._with_topic_ids(request)
        try:
            driver = await self.home(request.group_id)
            return await driver.ask(
                CommitResult, lambda now, token: driver.core.commit_offsets(now, token, request)
            )
        except KafkaError as refusal:
            partitions = (TopicPartition(offset.topic, offset.partition) for offset in request.offsets)
            return CommitResult(errors=dict.fromkeys(partitions, refusal.code))

    def committed(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """A group's committed offsets, of these partitions or all; none for a group that is not known.

        KafkaError if they cannot be known: taken for "none", consumers would start over.
        """
        driver = self.known_home(group_id)
        return driver.core.fetch_offsets(group_id, partitions) if driver is not None else {}

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> DeleteOffsetsResult:
        try:
            driver = await self.home(group_id)
            return await driver.ask(
                DeleteOffsetsResult,
                lambda now, token: driver.core.delete_offsets(now, token, group_id, partitions),
            )
        except KafkaError as refusal:
            return DeleteOffsetsResult(error=refusal.code)

    def _with_topic_ids(self, request: CommitRequest) -> CommitRequest:
        """Whoever has named an id has read from that topic, whichever has its name by now."""
        offsets = (
            each if each.topic_id is not None else replace(each, topic_id=self._topics.id_of(each.topic))
            for each in request.offsets
        )
        return replace(request, offsets=tuple(offsets))

    def topics_changed(self, names: Collection[str]) -> None:
        """Offsets of a topic that is gone would be taken for those of the next one of that name. Coordinators that are
        not here now find out by the topics' ids."""
        for driver in self._drivers.values():
            driver.core.topics_changed(names)
        gone = [name for name in names if self._stands_for_another(name)]
        if not gone:
            return
        for driver in self._drivers.values():
            driver.carry_out(driver.core.topics_deleted(driver.now_ms, gone))
        for loading in self._loading.values():
            loading.deleted_topics.update(dict.fromkeys(gone))

    def _stands_for_another(self, name: str) -> bool:
        """Whether the topic that had this name is gone, be there a new one or not."""
        before, now = self._topic_ids.pop(name, None), self._topics.id_of(name)
        if now is not None:
            self._topic_ids[name] = now
        return before is not None and before != now

    # --- administration

    def list(self, states: Collection[str], types: Collection[str]) -> Iterator[GroupListing]:
        for driver in self._drivers.values():
            yield from driver.core.list_groups(states, types)

    def coordinators(self) -> Mapping[int, CoordinatorDriver]:
        """Those at work on this node, by their partition of the offsets topic."""
        return self._drivers

    def summaries(self) -> Iterator["GroupSummary"]:
        """Every group with its offsets, for metrics."""
        for driver in self._drivers.values():
            for row in driver.core.list_groups():
                described = driver.core.describe(row.group_id) or driver.core.describe_share_group(
                    row.group_id
                )
                offsets = driver.core.fetch_offsets(row.group_id)
                yield GroupSummary(
                    group_id=row.group_id,
                    state=row.state.value,
                    member_count=len(described.members) if described is not None else 0,
                    offsets={partition: committed.offset for partition, committed in offsets.items()},
                )

    @property
    def all_online(self) -> bool:
        """Whether every coordinator that should be on this node is at work."""
        topic = self._state.topics.get(OFFSETS_TOPIC)
        missing = range(topic.partitions) if topic is not None else ()
        return not any(self._is_missing(index) for index in missing)

    def _is_missing(self, index: int) -> bool:
        if index in self._drivers:
            return False
        # Alone, this node is the home of all; one that nobody leads cannot be opened.
        return not self._state.nodes or self._home_of(index) == self._state.node_id

    def describe(self, group_id: str) -> GroupDescription | None:
        """None: there is no such group. KafkaError if that cannot be known."""
        driver = self.known_home(group_id)
        return driver.core.describe(group_id) if driver is not None else None

    async def delete(self, group_ids: Sequence[str]) -> dict[str, ErrorCode]:
        codes: dict[str, ErrorCode] = {}
        for group_id in dict.fromkeys(group_ids):
            codes.update((await self._delete_one(group_id)).errors)
        return codes

    async def _delete_one(self, group_id: str) -> DeleteGroupsResult:
        try:
            driver = await self.home(group_id)
            return await driver.ask(
                DeleteGroupsResult, lambda now, token: driver.core.delete_groups(now, token, [group_id])
            )
        except KafkaError as refusal:
            return DeleteGroupsResult(errors={group_id: refusal.code})

    # --- inside

    def _index(self, group_id: str) -> int:
        topic = self._state.topics.get(OFFSETS_TOPIC)
        return offsets_partition(group_id, topic.partitions) if topic is not None else -1

    def _home_of(self, index: int) -> int:
        return self._view.partition(self._state.topics[OFFSETS_TOPIC], index).leader

    def known_home(self, group_id: str) -> CoordinatorDriver | None:
        """The group's coordinator; None while there are no groups at all."""
        index = self._index(group_id)
        if index < 0:
            return None
        driver = self._drivers.get(index)
        if driver is not None:
            if not driver.has_lease:
                raise KafkaError(
                    ErrorCode.NOT_COORDINATOR, f"another node may coordinate {group_id!r} by now"
                )
            return driver
        if index in self._loading:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"the coordinator of {group_id!r} is reading its log"
            )
        home = self._view.coordinator(group_id).node_id
        if home != self._state.node_id:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"{group_id!r} is coordinated by node {home}")
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the coordinator of {group_id!r} is offline")

    async def home(self, group_id: str) -> CoordinatorDriver:
        """The group's coordinator; KafkaError tells the client to look for it again later."""
        try:
            await self.ensure_topic()
        except StorageError as refused:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(refused)) from refused
        driver = self.known_home(group_id)
        if driver is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the offsets topic is being made")
        return driver


class AppliedTopics:
    """The topics, as far as this node has applied the metadata."""

    def __init__(self, metadata: MetadataLog) -> None:
        self._metadata = metadata

    @property
    def version(self) -> int:
        """An offset in the metadata log, which is the same on all nodes."""
        return self._metadata.applied

    def id_of(self, name: str) -> UUID | None:
        topic = self._metadata.state.topics.get(name)
        return topic.topic_id if topic is not None else None


class _Loading:
    """A coordinator that is reading its log, and the topics that were deleted meanwhile."""

    def __init__(self, driver: CoordinatorDriver, task: asyncio.Task[None]) -> None:
        self.driver = driver
        self.task = task
        self.deleted_topics: dict[str, None] = {}


class GroupSummary(NamedTuple):
    """A group in numbers."""

    group_id: str
    state: str
    member_count: int
    offsets: Mapping[TopicPartition, int]
