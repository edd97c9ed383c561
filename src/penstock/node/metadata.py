"""The metadata log: topics, configs and producer ids as records, applied in order to one state.

A change is decided on the state as it is, appended, flushed, and only then applied and acted on: what a client was told
is never forgotten by a crash. Changes run one after the other. When the log has grown far beyond what the state needs,
the state is written as one snapshot record and everything before it is deleted.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Protocol
from uuid import uuid4

from penstock.batch import Record, build_batch, check_batch
from penstock.cluster import (
    ClusterState,
    MetadataRecord,
    PlacementRules,
    ProducerIdsReserved,
    TopicWish,
    decisions,
    decode_record,
    encode_record,
)
from penstock.errors import ErrorCode, KafkaError
from penstock.node.partition import Partition
from penstock.node.replay import stored_records
from penstock.types import Offset

SNAPSHOT_AFTER_RECORDS = 1000
"""A snapshot is worth it when replaying costs more than reading the state: at least this many records, and ..."""
SNAPSHOT_FACTOR = 4
"""... this many per topic that exists."""

Decision = Callable[[ClusterState], Sequence[MetadataRecord]]


class Follower(Protocol):
    """Whoever acts on changes: the node opens and closes partitions."""

    def topics_changed(self, names: Collection[str]) -> None: ...


class MetadataLog:
    """Drives the cluster state through its log."""

    def __init__(
        self, partition: Partition, state: ClusterState, rules: PlacementRules, follower: Follower
    ) -> None:
        self.state = state
        self.rules = rules
        self.partition = partition
        self._follower = follower
        self._turn = asyncio.Lock()
        self._changes: set[asyncio.Task[None]] = set()
        self._records_since_snapshot = 0
        self._producer_ids = range(0)
        self._replayed = False

    def replay(self) -> None:
        """Applies all that is stored, without telling the follower: it reads the resulting state."""
        for record in stored_records(self.partition):
            self._apply(decode_record(record.value or b""))
        self._replayed = True

    async def change(self, decide: Decision) -> None:
        """Decides, commits and applies. Raises what `decide` raises. Runs to its end even if the caller goes away:
        a change that is half done would be known to the log and not to the state."""
        task = asyncio.get_running_loop().create_task(self._change(decide))
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        await asyncio.shield(task)

    async def auto_create_topic(self, name: str) -> None:
        """Creates a topic because somebody used it; that two did so at once is no error."""
        wish = TopicWish(name=name, topic_id=uuid4())
        try:
            await self.change(lambda state: decisions.create_topic(state, wish, self.rules))
        except KafkaError as refused:
            if refused.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise

    async def create_internal_topic(self, name: str, partitions: int) -> None:
        """Creates one of the broker's own topics unless it is there."""
        if name not in self.state.topics:
            topic_id = uuid4()
            await self.change(
                lambda state: decisions.create_internal_topic(state, name, topic_id, partitions, self.rules)
            )

    async def next_producer_id(self) -> int:
        """An id that no producer has had; blocks of them are reserved in the log, so most calls write nothing."""
        while not self._producer_ids:
            await self.change(self._reserve_producer_ids)
        producer_id = self._producer_ids[0]
        self._producer_ids = self._producer_ids[1:]
        return producer_id

    def _reserve_producer_ids(self, state: ClusterState) -> Sequence[MetadataRecord]:
        return [] if self._producer_ids else decisions.reserve_producer_ids(state, state.node_id)

    async def drain(self) -> None:
        """Returns when no change is under way."""
        if self._changes:
            await asyncio.wait(self._changes)

    async def _change(self, decide: Decision) -> None:
        async with self._turn:
            records = decide(self.state)
            if not records:
                return
            await self._commit(records)
            changed = [self._apply(record) for record in records]
            for names in changed:
                self._follower.topics_changed(names)
            if self._records_since_snapshot > max(
                SNAPSHOT_AFTER_RECORDS, SNAPSHOT_FACTOR * len(self.state.topics)
            ):
                await self._snapshot()

    async def _commit(self, records: Sequence[MetadataRecord]) -> Offset:
        rows = [Record(i, 0, None, encode_record(record), ()) for i, record in enumerate(records)]
        batch = memoryview(bytearray(build_batch(rows)))
        appended = self.partition.append(batch, check_batch(batch))
        committed = self.partition.committed(appended)
        if committed is not None:
            await committed
        return appended.base_offset

    async def _snapshot(self) -> None:
        offset = await self._commit([self.state.snapshot()])
        self.partition.delete_records(offset)
        self._records_since_snapshot = 0

    def _apply(self, record: MetadataRecord) -> Collection[str]:
        self._records_since_snapshot += 1
        changed = self.state.apply(record)
        if isinstance(record, ProducerIdsReserved) and self._replayed:
            self._producer_ids = range(record.first, record.end)
        return changed
