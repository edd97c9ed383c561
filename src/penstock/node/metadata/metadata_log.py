"""The metadata log: topics, nodes, configs and producer ids as records, applied in order to one state.

It is one Raft group like any other, of which every node holds a replica. Its leader is the *controller*: it decides
changes on the state as it is, appends them, and answers when they are committed. Every node, the controller included,
applies what is committed and acts on it; nothing else ever changes the state, so all nodes go through the same states
in the same order. Changes run one after the other. When the log has grown far beyond what the state needs, the state is
written as one snapshot record and everything before it is deleted: a node that is far behind gets that record first.

One request may change thousands of topics. Its records are applied in slices, and a large batch of them is encoded in a
thread. Each record is applied as a whole, so a topic appears with all of its partitions. A controller decides nothing
while committed records are left to apply.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

from penstock.batch import Record
from penstock.cluster import ClusterState, MetadataRecord, MetadataSnapshot, decode_record, encode_record
from penstock.errors import CorruptLog, ErrorCode, KafkaError, NotExecuted, StorageError
from penstock.node.coordination.internal_topic import append_batch, build_records, read_chunk, records_of
from penstock.node.parts import Part, TopicChanges
from penstock.node.replication.partition import Partition
from penstock.node.scheduling.slices import SlicedWork
from penstock.node.status.metadata_events import tell_changes
from penstock.types import NO_EVENTS, EventSink, Isolation, Offset

log = logging.getLogger("penstock.node")

SLICE_BYTES = 8 * 1024
"""Records of this size together are applied without a pause: some fifty small topics, or the partitions of a large
one. A byte takes about half a microsecond."""
ENCODED_IN_LOOP = 100
"""More records than this are encoded in a thread."""
SNAPSHOT_AFTER_RECORDS = 1000
"""A snapshot is written when replaying costs more than reading the state: after at least this many records."""
SNAPSHOT_FACTOR = 4
"""A snapshot also needs this many records for each topic that exists."""
STOP_SECONDS = 5.0
"""How long a stop waits for changes. One that is not committed by then waits for nodes that are away."""

Decided = Sequence[MetadataRecord]
Decision = Callable[[ClusterState], Decided | Awaitable[Decided]]
"""A decision that takes long is a coroutine, which must leave the state as it is. Other changes wait for it."""


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
        self._applying = SlicedWork(self._apply_all, steps_per_slice=1)
        self._applied = Offset(0)
        self._is_whole = True
        """Whether the state comes from all records, or from a snapshot and all records after it. The start of a log
        need not be a snapshot: a follower deletes what its leader has deleted, as far as it is committed here."""
        self._changed: asyncio.Future[None] | None = None
        self._records_since_snapshot = 0

    # --- applying

    def apply_committed(self, partition: Partition) -> None:
        """The high watermark moved: applies every record below it, once."""
        self._applying.start()

    async def caught_up(self) -> None:
        """Returns when all committed records are applied."""
        await self._applying.finished()

    def _apply_all(self) -> Iterator[None]:
        """One slice a step. The caller of `apply_committed` handles errors of the first one."""
        has_paused = False
        try:
            for number, records in enumerate(self._slices()):
                if number > 0:
                    has_paused = True
                    yield
                self._apply(records)
        except Exception as trouble:
            if not has_paused:
                raise
            self._fail(trouble)

    def _slices(self) -> Iterator[list[Record]]:
        """The committed records that are not applied yet, also those that are committed meanwhile."""
        partition = self.partition
        while self._applied < (end := partition.end_for(Isolation.READ_UNCOMMITTED)):
            start = max(self._applied, partition.start_offset)
            self._is_whole = self._is_whole and start == self._applied
            chunk = read_chunk(partition, start, end)
            if not chunk:
                self._applied = end
            some: list[Record] = []
            size_bytes = 0
            for record in records_of(partition, chunk):
                if size_bytes >= SLICE_BYTES:
                    yield some
                    some, size_bytes = [], 0
                some.append(record)
                size_bytes += len(record.value or b"")
            if some:
                yield some

    def _apply(self, records: Sequence[Record]) -> None:
        changed: set[str] = set()
        vanished: set[str] = set()
        for record in records:
            change = decode_record(record.value or b"")
            self._records_since_snapshot += 1
            if self._is_known(change):
                continue
            names = self.state.apply(change)
            changed |= names
            if isinstance(change, MetadataSnapshot):
                self._is_whole = True
                vanished |= names - self.state.topics.keys()
        self._applied = Offset(records[-1].offset + 1)
        self._on_change(TopicChanges(tuple(sorted(changed - vanished)), tuple(sorted(vanished))))
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def _is_known(self, change: MetadataRecord) -> bool:
        """Whether this is the snapshot of a state that this node has already: a large one takes long to apply."""
        return isinstance(change, MetadataSnapshot) and self._is_whole and self.state.has_topics_of(change)

    def _fail(self, trouble: Exception) -> None:
        """This replica takes no part any more: its state would be wrong from here on."""
        if not isinstance(trouble, StorageError | CorruptLog):
            log.error("metadata cannot be applied: a bug", exc_info=trouble)
            trouble = StorageError(f"metadata cannot be applied: {trouble!r}")
        self.partition.replica.fail(trouble)

    async def next_change(self) -> None:
        """Returns when more has been applied."""
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    async def until(self, is_applied: Callable[[], bool], seconds: float) -> bool:
        """Waits until this is the case by what this node has applied; False if it is not after this time."""
        try:
            async with asyncio.timeout(seconds):
                while not is_applied():
                    await self.next_change()
        except TimeoutError:
            return False
        return True

    @property
    def applied(self) -> Offset:
        """All records below this offset are in the state."""
        return self._applied

    # --- deciding

    @property
    def is_controller(self) -> bool:
        """Whether this node decides: it leads the group and knows all earlier decisions."""
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
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            message = "this node stops; the next controller knows whether the change stands"
            raise KafkaError(ErrorCode.NOT_CONTROLLER, message) from None

    def _ended(self, task: asyncio.Task[Sequence[MetadataRecord]]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            task.exception()  # if its caller was cancelled, no other code retrieves it

    async def stop(self) -> None:
        """Returns when no change is under way. One that waits for nodes that are away is given up."""
        if self._changes:
            _, stuck = await asyncio.wait(self._changes, timeout=STOP_SECONDS)
            for change in stuck:
                change.cancel()
            await asyncio.gather(*stuck, return_exceptions=True)

    async def _change(self, decide: Decision) -> Sequence[MetadataRecord]:
        async with self._turn:
            await self.caught_up()
            self.check_controller()
            known = self._applied
            try:
                decided = decide(self.state)
                records = await decided if isinstance(decided, Awaitable) else decided
            except KafkaError:
                self._check_current()
                raise
            if not records:
                self._check_current()
            else:
                await self._commit(lambda: records, known, is_large=len(records) > ENCODED_IN_LOOP)
                tell_changes(self._events, self.state, records)
                await self._settled()
                if self._records_since_snapshot > max(
                    SNAPSHOT_AFTER_RECORDS, SNAPSHOT_FACTOR * len(self.state.topics)
                ):
                    await self._snapshot()
            return records

    async def _commit(
        self, make_records: Callable[[], Sequence[MetadataRecord]], known: Offset, *, is_large: bool
    ) -> Offset:
        """Commits records that were decided on the state of the offset `known`. When this returns they are applied here
        as well."""
        make_batch = partial(_as_batch, make_records)
        try:
            batch = (
                await asyncio.get_running_loop().run_in_executor(None, make_batch)
                if is_large
                else make_batch()
            )
            self._check_unchanged(known)
            appended = append_batch(self.partition, batch)
            committed = self.partition.committed_at(appended)
            if committed is not None:
                await committed
            await self.caught_up()
            if self._applied <= appended.last_offset:
                raise StorageError(
                    "the change is committed, and is not applied here: this node's log says why"
                )
        except KafkaError as refused:
            if refused.code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                raise
            # The next controller knows whether the change stands, so clients should ask it.
            raise KafkaError(ErrorCode.NOT_CONTROLLER, refused.message) from refused
        return appended.base_offset

    def _check_current(self) -> None:
        """An answer without a commit comes from the state alone. Another controller may have changed that already,
        while this one has not noticed yet that it was deposed."""
        try:
            self.partition.check_readable()
        except KafkaError as deposed:
            raise NotExecuted(ErrorCode.NOT_CONTROLLER, deposed.message) from deposed

    def _check_unchanged(self, known: Offset) -> None:
        """A decision that took long may be based on the state before another controller's changes."""
        self.check_controller()
        if self._applied != known:
            message = "another controller has changed the metadata meanwhile: ask again"
            raise NotExecuted(ErrorCode.NOT_CONTROLLER, message)

    async def _snapshot(self) -> None:
        """In a thread, which reads a copy of the state: a large cluster's takes some hundred milliseconds."""
        state, known = self.state.copy(), self._applied
        offset = await self._commit(lambda: [state.snapshot()], known, is_large=True)
        self._records_since_snapshot = 0
        self.partition.delete_records(offset)


def _as_batch(make_records: Callable[[], Sequence[MetadataRecord]]) -> bytearray:
    return build_records(((None, encode_record(record)) for record in make_records()), stamp_ms=0)
