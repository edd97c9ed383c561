"""One partition as the rest of the broker sees it: append, wait until committed, read, watermark.

Handlers and coordinators reach a log only through this interface and never see Raft behind it: `append` puts a batch
into the leader's log under its term, `committed` waits until it can never be lost (flushed by a majority of the
replicas; a lone replica is its own majority), `read` gives stored bytes below the high watermark. On a node that
follows, all three refuse, and clients look for the leader.

Invariants:
 1. high_watermark only grows, and never passes what a majority has flushed.
 2. An append is answered as committed only if its (term, last offset) is committed, not when some offset passed:
    whoever waits is told so when the term ends, and whether the append survived is the next leader's to say.
 3. Readers see no byte at or above the high watermark, and nothing at all from a leader that may have been replaced
    without knowing (it lost its lease) or does not know yet what was committed before it (it confirms its term first).
 4. Where a topic's min.insync.replicas is more than a majority, acks=all waits for that many replicas to have flushed.
    The watermark does not: what a majority has is there for good, and readers may see it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from penstock.batch import BatchHeader
from penstock.config import TopicConfig
from penstock.errors import CorruptLog, DiskFull, ErrorCode, KafkaError, StorageError
from penstock.log import Appended, Log
from penstock.node.clock import Clock
from penstock.node.replication.fetch_waiter import FetchWaiter
from penstock.node.replication.multi_raft import MultiRaft
from penstock.node.replication.pending import PendingAcks
from penstock.node.replication.raft_driver import Halt, RaftDriver
from penstock.raft import GroupConfig, Refusal, Refused, Role
from penstock.types import NO_TERM, GroupId, Index, Isolation, Offset, Replica, Term, TopicPartition

log = logging.getLogger("penstock.node")

NO_LEADER = -1


_ON_PRODUCERS = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH})
"""Errors that rest on what the log knows of idempotent producers, and that clients take as final."""


TOUCH_TIMEOUTS = 2
"""Election timeouts without a leader after which a replica is taken to be cut off, and not merely between two
leaders."""


class ReplicaFacts(NamedTuple):
    """One replica of a partition: the offset up to which it has flushed, how far it is behind (Raft's count), for how
    long it has been silent."""

    node_id: int
    end_offset: int
    lag: int
    silent_ms: int
    learner: bool


class Partition:
    """A partition of which this node holds a replica."""

    __slots__ = (
        "__weakref__",
        "_announced",
        "_assembly",
        "_clock",
        "_halted",
        "_loop",
        "_mark_dirty",
        "_on_commit",
        "_on_role",
        "_pending",
        "_pending_sizes",
        "_refusing",
        "_sampled_commit",
        "_strict",
        "_waiters",
        "closed",
        "config",
        "consensus",
        "damage",
        "group",
        "high_watermark",
        "is_replicated",
        "leader",
        "leads",
        "log",
        "name",
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
        assembly: MultiRaft,
        clock: Clock,
        mark_dirty: Callable[["Partition"], None],
        on_role: Callable[["Partition"], None] | None = None,
        on_commit: Callable[["Partition"], None] | None = None,
        is_lasting: bool = True,
    ) -> None:
        self.name = name
        self.group = group
        self.log = log
        self.config = config
        self.closed = False
        self.leads = False
        """Whether this node leads it and may append."""
        self.leader: Replica | None = None
        self.term = NO_TERM
        """Of the leader that is known here."""
        self.is_replicated = False
        self.damage: CorruptLog | None = None
        """What is wrong with the stored bytes, as far as is known. The replica takes part all the same (see
        `penstock.cluster.damage`), until it is made anew."""
        self.high_watermark: Offset = log.start_offset
        """Exclusive: the first offset that readers may not see yet. What is committed is learned from the group."""
        self._announced = (False, NO_TERM)
        """What `on_role` was told last: whether this node serves, and the term."""
        self._halted: Halt | None = None
        self._refusing = False
        self._sampled_commit = 0
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._assembly = assembly
        self._mark_dirty = mark_dirty
        self._on_role = on_role
        self._on_commit = on_commit
        self._pending = PendingAcks()
        self._pending_sizes: deque[tuple[Offset, int]] = deque()
        """Last offset and bytes of each batch that is not committed: what waiting fetches are told when it is."""
        self._strict = PendingAcks()
        """As `_pending`, of a topic that wants more than a majority (4)."""
        self._waiters: dict[FetchWaiter, None] = {}
        self.consensus = RaftDriver(
            group=group,
            stored=log,
            assembly=assembly,
            seat=self,
            founding=founding,
            eager=on_commit is not None,
            is_lasting=is_lasting,
        )
        self.config_changed(self.consensus.core.config)

    def start(self) -> None:
        """Takes its seat in the group."""
        self.consensus.start()

    @property
    def me(self) -> Replica:
        """What this node is in the group."""
        return self.consensus.core.me

    @property
    def label(self) -> str:
        return str(self.name)

    # --- writing

    def append(self, batch: bytearray | memoryview, header: BatchHeader) -> Appended:
        """Writes a checked batch to the leader's log; it is not committed yet. `batch` is stamped in place."""
        if not self.leads or self._halted is not None:
            raise self._refusal()
        if self.is_replicated and (refused := self.consensus.core.may_propose()) is not None:
            # Too much that is not committed: its replicas are too slow, and another leader would not help.
            slow = refused is Refusal.TOO_MUCH_UNCOMMITTED
            code = ErrorCode.NOT_ENOUGH_REPLICAS if slow else ErrorCode.NOT_LEADER_OR_FOLLOWER
            raise KafkaError(code, f"{self.name}: {refused.value}")
        try:
            appended = self.log.writer.append(batch, header, self.term, self._clock.wall_ms())
        except StorageError as refused_write:
            self._note_refusal(refused_write)
            raise
        except KafkaError as mistake:
            raise self._judged(mistake) from mistake
        if self._refusing:
            self._refusing = False
            log.warning("%s takes writes again", self.name)
        if not appended.duplicate:
            self._pending_sizes.append((appended.last_offset, header.size))
            self._mark_dirty(self)
            if self.is_replicated:
                self.consensus.appended(header.size)
        return appended

    def _judged(self, mistake: KafkaError) -> KafkaError:
        """What a producer is told of its mistake. One that may have been deposed does not know what its successor has
        taken: a sequence that seems wrong may be right there, and a client that believes otherwise would start over and
        send twice."""
        if mistake.code in _ON_PRODUCERS and not self.may_serve:
            return KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.name}: out of touch with its replicas"
            )
        return mistake

    def _refusal(self) -> KafkaError:
        """Why this node serves nobody here now."""
        if self.closed:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self.name} was deleted")
        if self._halted is not None:
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name} is offline: {self._halted}")
        return KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.name} is led by {self.leader or 'nobody yet'}"
        )

    def _note_refusal(self, refused: StorageError) -> None:
        """One line when it begins, not one per batch: the log of a full disk may lie on that disk. Another replica may
        have space, so it gets the lead; once only, should all disks be full."""
        if not self._refusing:
            self._refusing = True
            log.error("%s refuses writes: %s", self.name, refused)
            if self.is_replicated and isinstance(refused, DiskFull):
                self._loop.call_soon(self.hand_over)

    def progress(self) -> list["ReplicaFacts"]:
        """How far each replica is, as its leader sees it."""
        now, core = self._assembly.now(), self.consensus.core
        if not self.is_replicated:
            return [ReplicaFacts(self._assembly.me.node, self.log.end_offset, 0, 0, False)]
        return [
            ReplicaFacts(
                one.replica.node,
                self.log.entries.offset_at(min(one.match_index, self.log.entries.end_index)),
                self.log.entries.end_index - one.match_index,
                0 if one.replica == self.me else int((now - one.last_contact) * 1000),
                one.learner,
            )
            for one in core.progress()
        ]

    def hand_over(self) -> bool:
        """Lets the replica that has kept up best lead; whether there is one, or the lead is being handed over."""
        core, me = self.consensus.core, self.me
        lately = self._assembly.now() - core.settings.election_timeout_s
        others = [
            one
            for one in core.progress()
            if one.replica != me and not one.learner and one.last_contact >= lately
        ]
        if not others:
            return False
        # A refusal means that it is under way already, or cannot be helped now.
        with suppress(Refused):
            self.consensus.transfer(max(others, key=lambda one: one.match_index).replica)
        return True

    def in_sync_nodes(self) -> tuple[int, ...]:
        """The leader's view of who keeps up, itself included: whoever has flushed all that was committed when this was
        looked at before, and has been heard of lately."""
        core = self.consensus.core
        config = core.config
        if config is None or not self.is_replicated:
            return (self._assembly.me.node,)
        lately = self._assembly.now() - core.settings.election_timeout_s
        return tuple(
            one.replica.node
            for one in core.progress()
            if not one.learner
            and one.match_index >= self._sampled_commit
            and (one.last_contact >= lately or one.replica == self.me)
        )

    def sample_in_sync(self) -> tuple[int, ...]:
        """The same, and from now on what is committed by now counts."""
        found = self.in_sync_nodes()
        self._sampled_commit = self.consensus.core.commit_index
        if self._strict and len(found) < self.config.min_insync_replicas:
            self._give_up_strict(len(found))
        return found

    def check_in_sync(self) -> None:
        """Refuses acks=all where the topic wants more replicas than there are: the promise could not be kept."""
        wanted = self.config.min_insync_replicas
        if wanted > 1 and wanted > (found := len(self.in_sync_nodes())):
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS, f"{self.name}: min.insync.replicas={wanted}, in sync: {found}"
            )

    def committed_at(self, appended: Appended) -> asyncio.Future[None] | None:
        """A future for the moment this append can no longer be lost, or None when that has come already."""
        strict = self._is_strict
        if appended.last_offset < (self._flushed_by_enough() if strict else self.high_watermark):
            return None
        future = self._loop.create_future()
        if self.log.failed is not None:
            future.set_exception(self.log.failed)
        elif not self.leads:
            future.set_exception(self._refusal())
        else:
            (self._strict if strict else self._pending).add(appended.last_offset, future)
        return future

    # --- more than a majority (invariant 4)

    @property
    def _is_strict(self) -> bool:
        wanted = self.config.min_insync_replicas
        if wanted <= 1 or not self.is_replicated:
            return False
        config = self.consensus.core.config
        return config is not None and wanted > len(config.voters) // 2 + 1

    def _flushed_by_enough(self) -> Offset:
        """Below it everything is committed, and on the disks of as many replicas as the topic wants."""
        matches = sorted(one.match_index for one in self.consensus.core.progress() if not one.learner)
        wanted = self.config.min_insync_replicas
        if len(matches) < wanted:
            return Offset(0)
        index = min(matches[-wanted], self.consensus.core.commit_index)
        return min(self.high_watermark, self.log.entries.offset_at(Index(index)))

    def heard_reply(self) -> None:
        """A replica may have flushed more."""
        self._answer_strict()

    def _answer_strict(self) -> None:
        """To be called after everything that `_flushed_by_enough` depends on: an answer of a replica, a flush of this
        one, a commit, other members, another config. None of these needs to be followed by any of the others: where all
        followers have flushed and answered before this leader has, its flush is the last that happens."""
        if self._strict:
            self._strict.answer(self._flushed_by_enough())

    def _give_up_strict(self, found: int) -> None:
        """What a majority has stays; its producers are told that it is not on as many replicas as they wanted."""
        wanted = self.config.min_insync_replicas
        error = KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            f"{self.name}: min.insync.replicas={wanted}, in sync: {found}",
        )
        self._strict.fail(error, below=self.high_watermark)

    # --- what the group decides

    def dirty(self) -> None:
        self._mark_dirty(self)

    def flushed(self) -> None:
        """The log flushed further."""
        self.consensus.flushed()
        self._answer_strict()

    def committed(self, index: int) -> None:
        """Moves the watermark, answers what is committed, wakes waiting fetches."""
        watermark = self.log.entries.offset_at(Index(index))
        if self.is_replicated:
            self.log.entries.commit_index = Index(index)
        if watermark <= self.high_watermark:
            return
        self.high_watermark = watermark
        if self._on_commit is not None:
            self._on_commit(self)
        self._pending.answer(watermark)
        self._answer_strict()
        size_bytes = 0
        sizes = self._pending_sizes
        while sizes and sizes[0][0] < watermark:
            size_bytes += sizes.popleft()[1]
        for waiter in self._waiters:
            waiter.committed(size_bytes)

    def role_changed(self, role: Role, term: Term, leader: Replica | None) -> None:
        self.leads = role is Role.LEADER
        self.term = term
        self.leader = leader
        self._end_pending(self._refusal())
        self._pending_sizes.clear()
        for waiter in self._waiters:
            waiter.wake()

    @property
    def serves(self) -> bool:
        """Whether clients may be led here: this node leads and knows what is committed."""
        return self.leads and self.is_confirmed

    def settled(self) -> None:
        """The group has decided all there was to decide now: tells whom it concerns if that changed anything."""
        now = (self.serves, self.term)
        if now != self._announced:
            self._announced = now
            if self._on_role is not None:
                self._on_role(self)

    def config_changed(self, config: GroupConfig | None) -> None:
        self.is_replicated = config is None or config.members != (self.me,)
        self.log.entries.commit_index = (
            Index(self.consensus.core.commit_index) if self.is_replicated else None
        )
        self._answer_strict()

    def halted(self, error: Halt) -> None:
        """A lone replica goes on to be read: nobody has more than it has. Its log takes no more appends."""
        self._halted = error
        self.leads = self.leads and not self.is_replicated
        log.error("%s takes no more part until the next start: %s", self.name, error)
        if isinstance(error, CorruptLog):
            self.damaged(error)
        self._end_pending(error)
        for waiter in self._waiters:
            waiter.wake()
        self.settled()

    @property
    def offline_reason(self) -> Halt | None:
        """Why this replica takes no more part; None while it does."""
        return self._halted

    def damaged(self, rot: CorruptLog) -> None:
        """Once is enough: it is not mended by being found again."""
        if self.damage is None and not self.closed:
            self.damage = rot
            what = "others may have it whole" if self.is_replicated else "restore it from a backup"
            log.error("%s is damaged: %s; %s", self.name, rot, what)

    def fail(self, error: StorageError | CorruptLog) -> None:
        """A flush failed: nothing pending will ever be committed here."""
        self.consensus.halt(error)

    # --- reading

    @property
    def start_offset(self) -> Offset:
        return self.log.start_offset

    @property
    def is_confirmed(self) -> bool:
        """A leader knows what is committed once an entry of its own term is."""
        return not self.is_replicated or self.consensus.core.term_confirmed

    @property
    def may_serve(self) -> bool:
        """Whether this node leads, knows what is committed, and no other node can lead now (Raft's invariant 17)."""
        if not self.leads or not self.is_replicated:
            return self.leads
        return self.consensus.core.may_serve(self._assembly.now())

    @property
    def is_in_touch(self) -> bool:
        """Whether this replica leads, or has heard its leader lately. A leader that loses its majority resigns."""
        core = self.consensus.core
        return self.leads or (
            self._assembly.now() < core.heard_at + TOUCH_TIMEOUTS * core.settings.election_timeout_s
        )

    def check_leads(self) -> None:
        if not self.leads:
            raise self._refusal()

    def check_readable(self) -> None:
        """Refuses unless this node is sure to lead and to know the watermark."""
        if self.may_serve:
            return
        self.check_leads()
        if not self.is_confirmed:
            raise KafkaError(
                ErrorCode.OFFSET_NOT_AVAILABLE, f"{self.name}: its new leader is not confirmed yet"
            )
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.name}: out of touch with its replicas")

    def end_for(self, isolation: Isolation) -> Offset:
        """The first offset that a reader with this isolation may not see. READ_COMMITTED ends at the last stable
        offset: without transactions, that is the high watermark too."""
        return self.high_watermark

    def read(self, offset: Offset, max_bytes: int, *, end: Offset, at_least_one: bool) -> bytes:
        """Stored batches from the one that holds `offset`, below `end`, which is what `end_for` said."""
        if end <= offset <= self.log.end_offset:
            return b""
        if offset > self.log.end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.name} holds offsets {self.log.start_offset} to {end}, not {offset}",
            )
        return self.log.read(offset, max_bytes, limit=end, at_least_one=at_least_one)

    def end_of_term(self, term: Term) -> tuple[Term, Offset]:
        """Where the reign `term` ended, or the nearest before it. This leader's own has not ended: the log's end."""
        if term == self.term:
            return self.term, self.log.end_offset
        return self.log.end_of_term(term)

    def add_waiter(self, waiter: FetchWaiter) -> None:
        self._waiters[waiter] = None

    def remove_waiter(self, waiter: FetchWaiter) -> None:
        self._waiters.pop(waiter, None)

    # --- changing

    def check_epoch(self, client_epoch: int) -> None:
        """A client that knows a newer leader, or an older one, must refresh its metadata first. The term of a mere
        candidate is nobody's epoch."""
        if client_epoch < 0 or client_epoch == self.term or self.leader is None:
            return
        if client_epoch < self.term:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, f"{self.name} is at epoch {self.term}")
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"{self.name} is at epoch {self.term}")

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
        self.consensus.prefix_deleted()
        return self.log.start_offset

    async def start_is_known(self) -> None:
        """Returns when all replicas that keep up have been told where the log starts: whichever of them leads next, it
        does not start earlier. KafkaError when this node leads no more."""
        since = self._assembly.now()
        while self.is_replicated:
            self.check_leads()
            in_sync = self.in_sync_nodes()
            behind = [
                one
                for one in self.consensus.core.progress()
                if one.replica.node in in_sync and one.replica != self.me and one.beat_sent_at <= since
            ]
            if not behind:
                return
            await asyncio.sleep(self.consensus.core.settings.beat_interval_s / 4)

    def reconfigure(self, config: TopicConfig) -> None:
        self.config = config
        self.log.reconfigure(config)
        self._answer_strict()

    def close(self) -> None:
        """No more appends; whoever waits is told so."""
        self.closed = True
        self.leads = False
        self.consensus.stop()
        self._end_pending(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self.name} was closed"))
        for waiter in self._waiters:
            waiter.wake()
        self._waiters.clear()

    def _end_pending(self, error: Exception) -> None:
        self._pending.fail(error)
        self._strict.fail(error)
