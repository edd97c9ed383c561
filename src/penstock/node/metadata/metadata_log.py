"""The metadata log: topics, nodes, configs and producer ids as records, applied in order to one state.

It is one Raft group like any other, of which every node holds a replica. Its leader is the *controller*: it decides
changes on the state as it is, appends them, and answers when they are committed. Every node, the controller included,
applies what is committed and acts on it; nothing else ever changes the state, so all nodes go through the same states
in the same order. Changes run one after the other. When the log has grown far beyond what the state needs, the state is
written as one snapshot record and everything before it is deleted: a node that is far behind gets that record first.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from penstock.cluster import ClusterState, MetadataRecord, Snapshot, decode_record, encode_record
from penstock.errors import ErrorCode, KafkaError, NotExecuted
from penstock.node.coordination.internal_topic import append_records, records_between
from penstock.node.parts import Part, TopicChanges
from penstock.node.replication.partition import Partition
from penstock.node.status.metadata_events import tell_changes
from penstock.types import NO_EVENTS, EventSink, Offset

SNAPSHOT_AFTER_RECORDS = 1000
"""A snapshot is written when replaying costs more than reading the state: after at least this many records."""
SNAPSHOT_FACTOR = 4
"""A snapshot also needs this many records for each topic that exists."""

Decision = Callable[[ClusterState], Sequence[MetadataRecord]]


class MetadataLog(Part):
    """Drives the cluster state through its log."""

    def __init__(
        self,
        state: ClusterState,
        *,
        changed: Callable[[TopicChanges], None],
        settled: Callable[[], Awaitable[None]],
        events: EventSink = NO_EVENTS,
    ) -> None:
        """`changed` carries out on this node what the metadata says. `settled` waits until that has happened, if it
        takes no other node."""
        self.state = state
        self._events = events
        self.partition: Partition
        self._on_change = changed
        self._settled = settled
        self._turn = asyncio.Lock()
        self._changes: set[asyncio.Task[Sequence[MetadataRecord]]] = set()
        self._applied = Offset(0)
        self._changed: asyncio.Future[None] | None = None
        self._records_since_snapshot = 0

    # --- applying

    def apply_committed(self, partition: Partition) -> None:
        """The high watermark moved: applies every record below it, once."""
        changed: set[str] = set()
        vanished: set[str] = set()
        start, end = max(self._applied, partition.start_offset), partition.high_watermark
        for record in records_between(partition, start, end):
            change = decode_record(record.value or b"")
            names = self.state.apply(change)
            changed |= names
            if isinstance(change, Snapshot):
                vanished |= names - self.state.topics.keys()
            self._records_since_snapshot += 1
        self._applied = end
        self._on_change(TopicChanges(tuple(sorted(changed - vanished)), tuple(sorted(vanished))))
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def next_change(self) -> None:
        """Returns when more has been applied."""
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    @property
    def applied(self) -> Offset:
        """All records below this offset are in the state."""
        return self._applied

    # --- deciding

    @property
    def is_controller(self) -> bool:
        """Whether this node decides: it leads the group and has applied all earlier decisions."""
        return self.partition.leads and self.partition.is_confirmed

    def check_controller(self) -> None:
        if not self.is_controller:
            leader = self.partition.leader
            raise NotExecuted(ErrorCode.NOT_CONTROLLER, f"the controller is {leader or 'not known yet'}")

    async def change(self, decide: Decision) -> Sequence[MetadataRecord]:
        """Decides, commits and applies a change; returns its records. Raises what `decide` raises, and NOT_CONTROLLER.
        The change runs to its end even if the caller is cancelled: the next change must see its outcome."""
        task = asyncio.get_running_loop().create_task(self._change(decide))
        self._changes.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Sequence[MetadataRecord]]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            task.exception()  # if its caller was cancelled, no other code retrieves it

    async def stop(self) -> None:
        """Returns when no change is under way."""
        if self._changes:
            await asyncio.wait(self._changes)

    async def _change(self, decide: Decision) -> Sequence[MetadataRecord]:
        async with self._turn:
            self.check_controller()
            records = decide(self.state)
            if records:
                await self._commit(records)
                tell_changes(self._events, self.state, records)
                await self._settled()
                if self._records_since_snapshot > max(
                    SNAPSHOT_AFTER_RECORDS, SNAPSHOT_FACTOR * len(self.state.topics)
                ):
                    await self._snapshot()
            return records

    async def _commit(self, records: Sequence[MetadataRecord]) -> Offset:
        """When this returns the records are applied here as well."""
        rows = [(None, encode_record(record)) for record in records]
        try:
            appended = append_records(self.partition, rows, stamp_ms=0)
            committed = self.partition.committed_at(appended)
            if committed is not None:
                await committed
        except KafkaError as refused:
            if refused.code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                raise
            # The next controller knows whether the change stands, so clients should ask it.
            raise KafkaError(ErrorCode.NOT_CONTROLLER, refused.message) from refused
        return appended.base_offset

    async def _snapshot(self) -> None:
        offset = await self._commit([self.state.snapshot()])
        self._records_since_snapshot = 0
        self.partition.delete_records(offset)
