"""Drives the group coordinators: one per partition of the offsets topic, each deciding for the groups that hash to it.

A coordinator takes facts and gives effects back. Here the effects are carried out: replies end the waiting requests,
records are appended to the coordinator's partition and reported back once they are committed, and one timer per
coordinator wakes it at its next deadline.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar, cast

from penstock.batch import Record, build_batch, check_batch
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
    Effect,
    GroupDescription,
    GroupListing,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    Persist,
    Reply,
    SyncRequest,
    SyncResult,
    offsets_partition,
)
from penstock.node.clock import Clock
from penstock.node.metadata import MetadataLog
from penstock.node.partition import Partition
from penstock.node.partitions import PartitionTable
from penstock.node.replay import stored_records
from penstock.types import TopicPartition

log = logging.getLogger("penstock.groups")

T = TypeVar("T")
Question = Callable[[int, object], Iterable[Effect]]
"""Takes the time and a token for the reply."""


class GroupManager:
    """Finds a group's coordinator and speaks with it. Every method is called on the event loop."""

    def __init__(
        self,
        *,
        metadata: MetadataLog,
        partitions: PartitionTable,
        clock: Clock,
        settings: GroupSettings,
        limits: Limits,
    ) -> None:
        self._metadata = metadata
        self._partitions = partitions
        self._clock = clock
        self._settings = settings
        self._limits = limits
        self._drivers: dict[int, _Driver] = {}

    def load(self) -> None:
        """Reads what is stored. Called before clients are served, and when the offsets topic was made."""
        topic = self._metadata.state.topics.get(OFFSETS_TOPIC)
        for index in range(topic.partitions if topic is not None else 0):
            if index not in self._drivers and self._partitions.is_online(OFFSETS_TOPIC, index):
                partition = self._partitions.get(OFFSETS_TOPIC, index)
                driver = _Driver(Coordinator(self._settings, self._limits), partition, self._clock)
                try:
                    driver.load()
                except (PenstockError, ValueError) as trouble:
                    log.error("the coordinator on %s stays offline: %s", partition.name, trouble)
                else:
                    self._drivers[index] = driver

    async def ensure_topic(self) -> None:
        """Creates the offsets topic when the first group shows up. The node calls `load` once it is there."""
        if OFFSETS_TOPIC not in self._metadata.state.topics:
            await self._metadata.create_internal_topic(OFFSETS_TOPIC, self._settings.offsets_topic_partitions)

    def stop(self) -> None:
        for driver in self._drivers.values():
            driver.stop()

    # --- members

    async def join(self, request: JoinRequest) -> JoinResult:
        try:
            driver = await self._home(request.group_id)
        except KafkaError as refusal:
            return JoinResult(error=refusal.code, member_id=request.member_id)
        return await driver.ask(JoinResult, lambda now, token: driver.core.join(now, token, request))

    async def sync(self, request: SyncRequest) -> SyncResult:
        try:
            driver = await self._home(request.group_id)
        except KafkaError as refusal:
            return SyncResult(error=refusal.code)
        return await driver.ask(SyncResult, lambda now, token: driver.core.sync(now, token, request))

    async def heartbeat(
        self, group_id: str, generation: int, member_id: str, instance_id: str | None
    ) -> ErrorCode:
        try:
            driver = await self._home(group_id)
        except KafkaError as refusal:
            return refusal.code
        return driver.core.heartbeat(driver.now_ms, group_id, member_id, generation, instance_id)

    async def leave(self, group_id: str, members: Sequence[LeavingMember]) -> LeaveResult:
        try:
            driver = await self._home(group_id)
        except KafkaError as refusal:
            return LeaveResult(error=refusal.code)
        return await driver.ask(
            LeaveResult, lambda now, token: driver.core.leave(now, token, group_id, members)
        )

    # --- offsets

    async def commit(self, request: CommitRequest) -> CommitResult:
        try:
            driver = await self._home(request.group_id)
        except KafkaError as refusal:
            partitions = (TopicPartition(offset.topic, offset.partition) for offset in request.offsets)
            return CommitResult(errors=dict.fromkeys(partitions, refusal.code))
        return await driver.ask(
            CommitResult, lambda now, token: driver.core.commit_offsets(now, token, request)
        )

    def committed(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """A group's committed offsets, of these partitions or all; none for a group that is not known.

        KafkaError if they cannot be known: taken for "none", consumers would start over.
        """
        driver = self._known_home(group_id)
        return driver.core.fetch_offsets(group_id, partitions) if driver is not None else {}

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> DeleteOffsetsResult:
        try:
            driver = await self._home(group_id)
        except KafkaError as refusal:
            return DeleteOffsetsResult(error=refusal.code)
        return await driver.ask(
            DeleteOffsetsResult,
            lambda now, token: driver.core.delete_offsets(now, token, group_id, partitions),
        )

    def topic_deleted(self, topic: str) -> None:
        """Offsets of a topic that is gone would be taken for those of the next one of that name."""
        for driver in self._drivers.values():
            driver.carry_out(driver.core.topics_deleted(driver.now_ms, frozenset({topic})))

    # --- administration

    def list(self, states: Collection[str], types: Collection[str]) -> Iterator[GroupListing]:
        for driver in self._drivers.values():
            yield from driver.core.list_groups(states, types)

    def summaries(self) -> Iterator["GroupSummary"]:
        """Every group with its offsets, for metrics."""
        for driver in self._drivers.values():
            for row in driver.core.list_groups():
                described = driver.core.describe(row.group_id)
                offsets = driver.core.fetch_offsets(row.group_id)
                yield GroupSummary(
                    group_id=row.group_id,
                    state=row.state.value,
                    member_count=len(described.members) if described is not None else 0,
                    offsets={partition: committed.offset for partition, committed in offsets.items()},
                )

    @property
    def all_online(self) -> bool:
        """Whether every coordinator there should be is at work."""
        topic = self._metadata.state.topics.get(OFFSETS_TOPIC)
        return len(self._drivers) == (topic.partitions if topic is not None else 0)

    def describe(self, group_id: str) -> GroupDescription | None:
        """None: there is no such group. KafkaError if that cannot be known."""
        driver = self._known_home(group_id)
        return driver.core.describe(group_id) if driver is not None else None

    async def delete(self, group_ids: Sequence[str]) -> dict[str, ErrorCode]:
        codes: dict[str, ErrorCode] = {}
        for group_id in dict.fromkeys(group_ids):
            codes.update((await self._delete_one(group_id)).errors)
        return codes

    async def _delete_one(self, group_id: str) -> DeleteGroupsResult:
        try:
            driver = await self._home(group_id)
        except KafkaError as refusal:
            return DeleteGroupsResult(errors={group_id: refusal.code})
        return await driver.ask(
            DeleteGroupsResult, lambda now, token: driver.core.delete_groups(now, token, [group_id])
        )

    # --- inside

    def _index(self, group_id: str) -> int:
        topic = self._metadata.state.topics.get(OFFSETS_TOPIC)
        return offsets_partition(group_id, topic.partitions) if topic is not None else -1

    def _known_home(self, group_id: str) -> "_Driver | None":
        """The group's coordinator; None while there are no groups at all."""
        index = self._index(group_id)
        if index >= 0 and index not in self._drivers:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the coordinator of {group_id!r} is offline"
            )
        return self._drivers.get(index)

    async def _home(self, group_id: str) -> "_Driver":
        """The group's coordinator; KafkaError tells the client to look for it again later."""
        try:
            await self.ensure_topic()
        except StorageError as refused:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(refused)) from refused
        driver = self._known_home(group_id)
        assert driver is not None  # there is a topic now
        return driver


class GroupSummary(NamedTuple):
    """A group in numbers."""

    group_id: str
    state: str
    member_count: int
    offsets: Mapping[TopicPartition, int]


class _Driver:
    """One coordinator and the partition that keeps its state."""

    def __init__(self, core: Coordinator, partition: Partition, clock: Clock) -> None:
        self.core = core
        self._partition = partition
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._epoch_ms = clock.wall_ms() - int(self._loop.time() * 1000)
        self._writes: deque[_Write] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms: int | None = None

    @property
    def now_ms(self) -> int:
        """Wall time that never jumps: sessions must not end because somebody set the clock."""
        return self._epoch_ms + int(self._loop.time() * 1000)

    def load(self) -> None:
        """Replays the partition into the coordinator."""
        for record in stored_records(self._partition):
            self.core.replay(record.key or b"", record.value)
        self.core.loaded(self.now_ms)
        self._set_timer()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def ask(self, kind: type[T], question: Question) -> T:
        """Puts a question and waits for its reply, which may come much later."""
        future: asyncio.Future[object] = self._loop.create_future()
        self.carry_out(question(self.now_ms, future))
        return cast(T, await future)

    def carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Reply(token=token, result=result):
                    future = cast("asyncio.Future[object]", token)
                    if not future.done():  # its client may have gone
                        future.set_result(result)
                case Persist():
                    self._persist(effect)
        self._set_timer()

    def _persist(self, effect: Persist) -> None:
        """Appends the records. Outcomes are reported in the order of the writes, whenever they become known."""
        write = _Write(effect.id)
        self._writes.append(write)
        stamp_ms = self._clock.wall_ms()
        rows = [Record(i, stamp_ms, key, value, ()) for i, (key, value) in enumerate(effect.records)]
        batch = memoryview(bytearray(build_batch(rows)))
        try:
            committed = self._partition.committed(self._partition.append(batch, check_batch(batch)))
        except PenstockError as refused:
            log.error("%s: %s", self._partition.name, refused)
            self._loop.call_soon(self._settle, write, False)
            return
        if committed is None:
            self._loop.call_soon(self._settle, write, True)
        else:
            committed.add_done_callback(lambda done: self._settle(write, done.exception() is None))

    def _settle(self, write: "_Write", ok: bool) -> None:
        write.ok = ok
        while self._writes and self._writes[0].ok is not None:
            settled = self._writes.popleft()
            self.carry_out(self.core.persisted(self.now_ms, settled.id, bool(settled.ok)))

    def _set_timer(self) -> None:
        due_ms = self.core.next_deadline_ms
        if due_ms == self._timer_due_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due_ms = due_ms
        if due_ms is not None:
            delay = max(0.0, (due_ms - self.now_ms) / 1000)
            self._timer = self._loop.call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer_due_ms = None
        self.carry_out(self.core.tick(self.now_ms))


class _Write:
    """A write that is under way: `ok` once its outcome is known."""

    __slots__ = ("id", "ok")

    def __init__(self, persist_id: int) -> None:
        self.id = persist_id
        self.ok: bool | None = None
