"""One partition as handlers and coordinators see it: append, wait until committed, read up to a bound.

`append` writes a batch to the leader's log under its term. `committed_at` gives a future for the moment at which the
batch cannot be lost any more (flushed by a majority of the replicas; a lone replica is its own majority). `read` gives
stored bytes below a bound. On a node that follows, all three refuse, and clients look for the leader. The Raft group
behind a partition calls its `replica` (replica.py), which sets the fields below.

Invariants:
 1. high_watermark only grows, and never passes what a majority has flushed.
 2. An append is acknowledged only if its (term, last offset) is committed, not when the watermark passes its offset:
    when the term ends its future fails, since only the next leader can tell whether the append survived.
 3. Readers see no byte at or above the high watermark (readers of committed records: the last stable offset), and
    nothing at all from a leader that another one may have replaced without its knowledge, or that does not know yet
    what was committed before its term (`may_serve`).
 4. Where a topic's min.insync.replicas is more than a majority, acks=all waits until that many replicas have flushed.
    Readers do not wait: a record that a majority has flushed cannot be lost.
"""

import asyncio
import logging
from collections.abc import Callable

from penstock.batch import BatchHeader, EndMarker, build_marker, iter_headers, read_header
from penstock.config import TopicConfig
from penstock.errors import CorruptLog, ErrorCode, KafkaError, OutOfResources, StorageError
from penstock.log import Appended, ColdRange, Log
from penstock.log.aborted import AbortedTransaction
from penstock.log.segment import UNLIMITED
from penstock.node.replication.fetch_waiter import CommitWatcher
from penstock.node.replication.multi_raft import MultiRaft
from penstock.node.replication.pending import PendingRequests
from penstock.node.replication.raft_driver import Halt
from penstock.node.replication.replica import PartitionReplica
from penstock.node.scheduling.clock import Clock
from penstock.raft import GroupConfig, RaftRefusal
from penstock.types import NO_TERM, GroupId, Isolation, Offset, Replica, Term, TopicPartition

log = logging.getLogger("penstock.node")

NO_LEADER = -1

_PRODUCER_ERRORS = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    }
)
"""Errors that depend on the log's state of producers and transactions, and that clients take as final."""

TOUCH_TIMEOUTS = 2
"""After this many election timeouts without a leader a replica counts as cut off, not as between two leaders."""


class Partition:
    """A partition of which this node holds a replica."""

    __slots__ = (
        "__weakref__",
        "_clock",
        "_consensus",
        "_loop",
        "_mark_dirty",
        "_multi_raft",
        "_pending",
        "_refuses_writes",
        "_uncommitted",
        "acknowledged_below",
        "closed",
        "config",
        "damage",
        "group",
        "high_watermark",
        "is_replicated",
        "last_stable_offset",
        "leader",
        "leads",
        "log",
        "name",
        "offline_reason",
        "replica",
        "term",
    )

    def __init__(
        self,
        *,
        name: TopicPartition,
        group: GroupId,
        log: Log,
        config: TopicConfig,
        founding: GroupConfig | None,
        multi_raft: MultiRaft,
        clock: Clock,
        mark_dirty: Callable[[PartitionReplica], None],
        on_role: Callable[["Partition"], None] | None = None,
        on_commit: Callable[["Partition"], None] | None = None,
        is_lasting: bool = True,
    ) -> None:
        self.name = name
        self.group = group
        self.log = log
        self.config = config
        self.closed = False
        self.damage: CorruptLog | None = None
        """The first damage that was found in the stored bytes. The replica takes part all the same (see
        `penstock.cluster.damage`), until it is rebuilt."""
        # The replica sets these.
        self.leads = False
        """Whether this node leads the partition and may append."""
        self.leader: Replica | None = None
        self.term = NO_TERM
        """The term of the leader that is known here."""
        self.is_replicated = False
        self.offline_reason: Halt | None = None
        """Why this replica no longer takes part; None while it does."""
        self.high_watermark: Offset = log.start_offset
        """Exclusive end of the committed records: no reader may see this offset yet. The group tells what is
        committed."""
        self.last_stable_offset: Offset = log.start_offset
        """Exclusive end of the records whose transactions have ended, with a committed marker; not above the high
        watermark. `penstock.log.transactions` has the rule."""
        self.acknowledged_below: Offset = log.start_offset
        """acks=all is answered for appends that end below it: the high watermark, or less (4)."""
        self._refuses_writes = False
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._multi_raft = multi_raft
        self._mark_dirty = mark_dirty
        self._pending = PendingRequests()
        self._uncommitted = self._pending.uncommitted
        self.replica = PartitionReplica(
            self,
            self._pending,
            founding=founding,
            multi_raft=multi_raft,
            mark_dirty=mark_dirty,
            on_role=on_role,
            on_commit=on_commit,
            is_lasting=is_lasting,
        )
        self._consensus = self.replica.consensus

    # --- lifetime

    def start(self) -> None:
        """Joins the group."""
        self._consensus.start()

    def reconfigure(self, config: TopicConfig) -> None:
        self.config = config
        self.log.reconfigure(config)
        self._consensus.require_replicas(config.min_insync_replicas)

    def close(self) -> None:
        """Refuses further appends, and fails the requests that wait."""
        if self.closed:
            return
        self.closed = True
        self.leads = False
        self._consensus.stop()
        closed = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self.name} was closed")
        self._pending.end_term(closed)
        self._pending.clear_fetches()
        self.replica.let_go()

    def damaged(self, rot: CorruptLog) -> None:
        """Notes damage of the stored bytes. Only the first report counts."""
        if self.damage is None and not self.closed:
            self.damage = rot
            advice = "others may have it whole" if self.is_replicated else "restore it from a backup"
            log.error("%s is damaged: %s; %s", self.name, rot, advice)

    # --- who may serve

    @property
    def is_confirmed(self) -> bool:
        """A leader knows what is committed once an entry of its own term is."""
        return not self.is_replicated or self._consensus.core.term_confirmed

    @property
    def serves(self) -> bool:
        """Whether clients may be sent here: this node leads and knows what is committed."""
        return self.leads and self.is_confirmed

    @property
    def may_serve(self) -> bool:
        """Whether this node leads, knows what is committed, and no other node can lead now (Raft's invariant 17)."""
        if not self.leads or not self.is_replicated:
            return self.leads
        return self._consensus.core.may_serve(self._multi_raft.now())

    @property
    def is_in_touch(self) -> bool:
        """Whether this replica leads, or has heard its leader lately. A leader that loses its majority resigns."""
        core = self._consensus.core
        return self.leads or (
            self._multi_raft.now() < core.heard_at + TOUCH_TIMEOUTS * core.settings.election_timeout_s
        )

    def check_leads(self) -> None:
        if not self.leads:
            raise self.refusal()

    def check_readable(self) -> None:
        """Refuses unless this node is sure to lead and to know the watermark."""
        if self.may_serve:
            return
        self.check_leads()
        if not self.is_confirmed:
            raise KafkaError(
                ErrorCode.OFFSET_NOT_AVAILABLE, f"{self.name}: its new leader is not confirmed yet"
            )
        raise self._out_of_touch()

    def check_in_sync(self) -> None:
        """Refuses acks=all where the topic requires more replicas than are in sync."""
        required = self.config.min_insync_replicas
        if required > 1 and required > (found := len(self.replica.in_sync_nodes())):
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.name}: min.insync.replicas={required}, and only {found} are in sync",
            )

    def check_epoch(self, client_epoch: int) -> None:
        """A client that knows a newer leader, or an older one, must refresh its metadata first. The term of a
        candidate is no epoch: it has no leader."""
        if client_epoch < 0 or client_epoch == self.term or self.leader is None:
            return
        if client_epoch < self.term:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, f"{self.name} is at epoch {self.term}")
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"{self.name} is at epoch {self.term}")

    def refusal(self) -> KafkaError:
        """Why this node does not lead the partition now."""
        if self.closed:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self.name} was deleted")
        if self.offline_reason is not None:
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name} is offline: {self.offline_reason}")
        return KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"{self.name} is led by node {self.leader}" if self.leader else f"{self.name} has no leader now",
        )

    def _out_of_touch(self) -> KafkaError:
        return KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.name}: this leader has lost contact with its replicas"
        )

    # --- writing

    def append(self, batch: bytearray | memoryview, header: BatchHeader) -> Appended:
        """Writes a checked batch to the leader's log; it is not committed yet. `batch` is stamped in place."""
        if not self.leads or self.offline_reason is not None:
            raise self.refusal()
        if self.is_replicated and (refused := self._consensus.core.may_propose()) is not None:
            # Too much that is not committed: its replicas are too slow, and another leader would not help.
            slow = refused is RaftRefusal.TOO_MUCH_UNCOMMITTED
            code = ErrorCode.NOT_ENOUGH_REPLICAS if slow else ErrorCode.NOT_LEADER_OR_FOLLOWER
            raise KafkaError(code, f"{self.name}: {refused.value}")
        try:
            appended = self.log.writer.append(batch, header, self.term, self._clock.wall_ms())
        except StorageError as refused_write:
            self._write_refused(refused_write)
            raise
        except KafkaError as mistake:
            raise self._judged(mistake) from mistake
        if self._refuses_writes:
            self._refuses_writes = False
            log.warning("%s takes writes again", self.name)
        if not appended.duplicate:
            self._uncommitted.append((appended.last_offset, header.size))
            self._mark_dirty(self.replica)
            if self.is_replicated:
                self._consensus.appended(header.size)
        return appended

    def append_marker(self, marker: EndMarker, *, producer_id: int, producer_epoch: int) -> Appended:
        """Ends the producer's transaction, as its coordinator decided; like `append`, it is not committed yet. Raises
        KafkaError for a producer or a coordinator that another one has replaced. Without an open transaction the marker
        is stored all the same, and may raise the producer's epoch."""
        now_ms = self._clock.wall_ms()
        batch = build_marker(
            marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp_ms=now_ms
        )
        return self.append(batch, read_header(batch))

    def _judged(self, mistake: KafkaError) -> KafkaError:
        """A leader that another one may have replaced does not know what its successor has stored: a sequence that
        seems wrong here may be right there, and a client that believed the error would start over and send twice."""
        return self._out_of_touch() if mistake.code in _PRODUCER_ERRORS and not self.may_serve else mistake

    def _write_refused(self, refused: StorageError) -> None:
        """Logs one line when it begins, not one per batch: the log file may lie on the full disk. Another replica may
        have space, so it gets the lead; once only, in case all disks are full."""
        if not self._refuses_writes:
            self._refuses_writes = True
            log.error("%s refuses writes: %s", self.name, refused)
            if self.is_replicated and isinstance(refused, OutOfResources):
                self._loop.call_soon(self.replica.hand_over)

    def committed_at(self, appended: Appended) -> asyncio.Future[None] | None:
        """A future for the moment at which acks=all may be answered for this append, or None if that has passed."""
        if appended.last_offset < self.acknowledged_below:
            return None
        future = self._loop.create_future()
        if self.log.failed is not None:
            future.set_exception(self.log.failed)
        elif not self.leads:
            future.set_exception(self.refusal())
        else:
            self._pending.add(appended.last_offset, future)
        return future

    def delete_records(self, before: Offset) -> Offset:
        """Makes `before` the first offset that can be read; -1 means all that is committed."""
        target = self.high_watermark if before == -1 else before
        if not self.log.start_offset <= target <= self.high_watermark:
            if target < self.log.start_offset and target >= 0:
                return self.log.start_offset
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.name} holds offsets {self.log.start_offset} to {self.high_watermark}, not {target}",
            )
        self.log.retention.delete_prefix(target)
        self._consensus.prefix_deleted()
        return self.log.start_offset

    def apply_retention(self, now_ms: int, below: int | None = None) -> bool:
        """Deletes what has expired, but no record from offset `below` on. Whether there was any."""
        has_deleted = self.log.retention.apply(now_ms, below) > 0
        if has_deleted:
            self._consensus.prefix_deleted()
        return has_deleted

    async def flushed_to(self, end: Offset) -> None:
        """Returns when this leader has flushed its own log up to `end`, and readers see what is below `end` if this is
        the only replica. The caller bounds the wait.

        A lone replica answers acks=1 before the flush, and readers see its records after the flush: a client that asks
        for the end of the log right after such an answer would not find its records. A leader with followers may be the
        last to flush records that are committed. Returns at once if a flush cannot get there: `end` is not in the log,
        this node does not lead, or its disk has failed."""
        while self._awaits_flush_of(end) and self.leads and self.offline_reason is None:
            await self._pending.next_flush()

    def _awaits_flush_of(self, end: Offset) -> bool:
        if self.is_replicated:
            return self.log.flushed_offset < end <= self.high_watermark
        return self.high_watermark < end <= self.log.end_offset

    async def start_is_known(self) -> None:
        """Returns when all replicas in sync have been told where the log starts: the next leader, whichever it is, does
        not start earlier. Raises KafkaError when this node stops leading."""
        since = self._multi_raft.now()
        while self.is_replicated:
            self.check_leads()
            if self.replica.knows_start(since):
                return
            await asyncio.sleep(self._consensus.core.settings.heartbeat_interval_s / 4)

    # --- reading

    @property
    def start_offset(self) -> Offset:
        return self.log.start_offset

    def end_for(self, isolation: Isolation) -> Offset:
        """The first offset that a reader with this isolation may not see. READ_COMMITTED ends at the last stable
        offset: without transactions, that is the high watermark too. If the prefix was deleted while a transaction that
        began in it is open, it ends at the log's start."""
        if isolation is Isolation.READ_UNCOMMITTED:
            return self.high_watermark
        stable, start = self.last_stable_offset, self.log.files.state.start_offset
        return stable if stable > start else start

    def aborted_in(self, offset: Offset, data: bytes) -> list[AbortedTransaction]:
        """Aborted transactions that overlap these stored batches, which were read from `offset` on. A reader of
        committed records leaves out their records."""
        aborted = self.log.transactions.aborted
        if not data or not aborted or aborted.last_offsets[-1] < offset:
            return []
        return aborted.between(offset, max(header.next_offset for _, header in iter_headers(data)))

    def read(
        self,
        offset: Offset,
        max_bytes: int,
        *,
        end: Offset,
        at_least_one: bool,
        first_max: int = UNLIMITED,
        is_checked: bool = False,
    ) -> bytes:
        """Stored batches from the one that holds `offset`, below `end`, which is what `end_for` said. With
        `at_least_one` the first one may be larger than `max_bytes`, but not larger than `first_max`. `is_checked`: for
        readers that do not compare checksums themselves."""
        if end <= offset <= self.log.end_offset:
            return b""
        if offset > self.log.end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.name} holds offsets {self.log.start_offset} to {end}, not {offset}",
            )
        return self.log.read(
            offset,
            max_bytes,
            limit=end,
            at_least_one=at_least_one,
            first_max=first_max,
            is_checked=is_checked,
        )

    def cold_range(self, offset: Offset, max_bytes: int) -> ColdRange | None:
        """The bytes for which a read would wait for the disk, and keep everybody waiting; None if it would not wait."""
        return self.log.cold_range(offset, max_bytes)

    def end_of_term(self, term: Term) -> tuple[Term, Offset]:
        """Where `term` ended, or the nearest term before it. This leader's own term has not ended: the log's end."""
        if term == self.term:
            return self.term, self.log.end_offset
        return self.log.end_of_term(term)

    def add_waiter(self, waiter: CommitWatcher) -> None:
        self._pending.add_fetch(waiter)

    def remove_waiter(self, waiter: CommitWatcher) -> None:
        self._pending.remove_fetch(waiter)
