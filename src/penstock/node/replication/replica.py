"""This node's replica of a partition: the host of its Raft group.

The group's driver calls this object when the group decides something (a commit, a role, other members). The replica
writes the result into the `Partition` that handlers see and completes the requests that wait for it. It also answers
what the rest of `node` asks about the group: which replicas keep up, how far each is, which one could lead next.
"""

import logging
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, cast

from penstock.config import TopicConfig
from penstock.errors import CorruptLog, ErrorCode, KafkaError, StorageError
from penstock.node.replication.multi_raft import MultiRaft
from penstock.node.replication.pending import PendingRequests
from penstock.node.replication.raft_driver import Halt, RaftDriver
from penstock.raft import GroupConfig, RaftRefused, Role
from penstock.types import NO_TERM, Index, Offset, Replica, Term

if TYPE_CHECKING:
    from penstock.node.replication.partition import Partition

log = logging.getLogger("penstock.node")


class ReplicaFacts(NamedTuple):
    """One replica of a partition, as its leader sees it."""

    node_id: int
    end_offset: int
    """The replica has flushed everything below it."""
    lag: int
    """How far it is behind the leader's log, in Raft's index."""
    silent_ms: int
    """The time since its last message."""
    learner: bool


class InSyncFacts(NamedTuple):
    """The facts under which all voters were last found in sync, and enough of them."""

    term: int
    commit_index: int
    group_config: GroupConfig
    topic_config: TopicConfig


class PartitionReplica:
    """Implements `raft_driver.GroupHost` for one partition."""

    __slots__ = (
        "__weakref__",
        "_announced",
        "_mark_dirty",
        "_multi_raft",
        "_on_commit",
        "_on_role",
        "_partition",
        "_pending",
        "_sample",
        "_sampled_commit",
        "consensus",
        "log",
    )

    def __init__(
        self,
        partition: "Partition",
        pending: PendingRequests,
        *,
        founding: GroupConfig | None,
        multi_raft: MultiRaft,
        mark_dirty: Callable[["PartitionReplica"], None],
        on_role: Callable[["Partition"], None] | None,
        on_commit: Callable[["Partition"], None] | None,
        is_lasting: bool,
    ) -> None:
        self._partition = partition
        self._pending = pending
        self._multi_raft = multi_raft
        self._mark_dirty = mark_dirty
        self._on_role = on_role
        self._on_commit = on_commit
        self._announced = (False, NO_TERM)
        """The last argument of `on_role`: whether this node serves, and the term."""
        self._sampled_commit = 0
        self._sample: InSyncFacts | None = None
        self.log = partition.log
        self.consensus = RaftDriver(
            group=partition.group,
            stored=partition.log,
            multi_raft=multi_raft,
            host=self,
            founding=founding,
            eager=on_commit is not None,
            is_lasting=is_lasting,
        )
        self.consensus.require_replicas(partition.config.min_insync_replicas)
        self.config_changed(self.consensus.core.config)

    @property
    def me(self) -> Replica:
        return self.consensus.core.me

    @property
    def group_config(self) -> GroupConfig | None:
        """The members of the group, as far as this replica knows."""
        return self.consensus.core.config

    @property
    def label(self) -> str:
        return str(self._partition.name)

    # --- the log

    def dirty(self) -> None:
        self._mark_dirty(self)

    def flushed(self) -> None:
        """The log was flushed further."""
        self.consensus.flushed()
        self._pending.flushed()

    def fail(self, error: StorageError | CorruptLog) -> None:
        """A flush failed: no pending append can be committed by this replica any more."""
        self.consensus.halt(error)

    def damaged(self, rot: CorruptLog) -> None:
        self._partition.damaged(rot)

    # --- decisions of the group

    def committed(self, index: int, enough_index: int) -> None:
        """Moves the watermark and the last stable offset, acknowledges appends, wakes waiting fetches. The last stable
        offset moves here only: a transaction begins behind the watermark, and its marker counts once that has passed
        it."""
        partition, stored = self._partition, self.log
        watermark = stored.entries.offset_at(index)
        if partition.is_replicated:
            stored.entries.commit_index = Index(index)
        before = partition.high_watermark
        has_moved = watermark > before
        was_stable = partition.last_stable_offset
        if has_moved:
            partition.high_watermark = watermark
            transactions = stored.files.state.transactions
            if transactions.open or transactions.ended:
                transactions.committed(watermark)
                partition.last_stable_offset = Offset(transactions.last_stable(watermark))
            else:
                partition.last_stable_offset = watermark
            if self._on_commit is not None:
                self._on_commit(partition)
        below = watermark if enough_index == index else min(watermark, stored.entries.offset_at(enough_index))
        partition.acknowledged_below = below
        self._pending.acknowledge(below)
        if has_moved:
            is_stable = was_stable == before and partition.last_stable_offset == watermark
            self._pending.committed(watermark, is_stable)
            if not is_stable and partition.last_stable_offset > was_stable:
                self._pending.wake_stable()

    def role_changed(self, role: Role, term: Term, leader: Replica | None) -> None:
        partition = self._partition
        partition.leads = role is Role.LEADER
        partition.term = term
        partition.leader = leader
        self._pending.end_term(partition.refusal())

    def settled(self) -> None:
        """Reports a new role or term once, after all effects of one input have been carried out."""
        partition = self._partition
        now = (partition.serves, partition.term)
        if now != self._announced:
            self._announced = now
            if self._on_role is not None:
                self._on_role(partition)

    def config_changed(self, config: GroupConfig | None) -> None:
        partition = self._partition
        partition.is_replicated = config is None or config.members != (self.me,)
        self.log.entries.commit_index = (
            Index(self.consensus.core.commit_index) if partition.is_replicated else None
        )

    def halted(self, error: Halt) -> None:
        """A lone replica can still be read, since no other one has more. Its log takes no more appends."""
        partition = self._partition
        partition.offline_reason = error
        partition.leads = partition.leads and not partition.is_replicated
        log.error("%s takes no part until the next start: %s", partition.name, error)
        if isinstance(error, CorruptLog):
            partition.damaged(error)
        self._pending.fail(error)
        self._pending.wake()
        self.settled()

    def let_go(self) -> None:
        """The partition is closed for good. From now on its objects refer back to each other weakly, so they are freed
        with the last reference to the partition. A search for cycles among all objects of the process would hold up
        everybody when a topic with thousands of partitions is deleted."""
        self._partition = cast("Partition", weakref.proxy(self._partition))
        self.consensus.let_go()

    # --- the other replicas

    def progress(self) -> list[ReplicaFacts]:
        """How far each replica is, as its leader sees it."""
        now, stored = self._multi_raft.now(), self.log
        if not self._partition.is_replicated:
            return [ReplicaFacts(self._multi_raft.me.node, stored.end_offset, 0, 0, False)]
        return [
            ReplicaFacts(
                row.replica.node,
                stored.entries.offset_at(min(row.match_index, stored.entries.end_index)),
                stored.entries.end_index - row.match_index,
                0 if row.replica == self.me else int((now - row.last_contact) * 1000),
                row.learner,
            )
            for row in self.consensus.core.progress()
        ]

    def hand_over(self) -> bool:
        """Transfers leadership to the voter that has kept up best. False if no other voter was heard lately."""
        core, me = self.consensus.core, self.me
        lately = self._multi_raft.now() - core.settings.election_timeout_s
        others = [
            row
            for row in core.progress()
            if row.replica != me and not row.learner and row.last_contact >= lately
        ]
        if not others:
            return False
        # A refusal means that a transfer is under way already, or is not possible now.
        with suppress(RaftRefused):
            self.consensus.transfer(max(others, key=lambda row: row.match_index).replica)
        return True

    def in_sync_nodes(self) -> tuple[int, ...]:
        """The nodes of the voters that keep up, this leader included: they were heard lately, and have flushed all that
        was committed at the time of the last `sample_in_sync`."""
        core = self.consensus.core
        if core.config is None or not self._partition.is_replicated:
            return (self._multi_raft.me.node,)
        lately = self._multi_raft.now() - core.settings.election_timeout_s
        return tuple(
            row.replica.node
            for row in core.progress()
            if not row.learner
            and row.match_index >= self._sampled_commit
            and (row.last_contact >= lately or row.replica == self.me)
        )

    def sample_in_sync(self) -> tuple[int, ...]:
        """The same as `in_sync_nodes`; the next calls compare with what is committed now. Appends that a majority has,
        but fewer replicas than the topic requires, fail: their records stay, and the producers get an error."""
        found = self.in_sync_nodes()
        core, partition = self.consensus.core, self._partition
        before, self._sampled_commit = self._sampled_commit, core.commit_index
        required = partition.config.min_insync_replicas
        if len(found) < required:
            message = f"{partition.name}: min.insync.replicas={required}, and only {len(found)} are in sync"
            error = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, message)
            self._pending.fail(error, below=partition.high_watermark)
        config, self._sample = core.config, None
        # Replicas that have what was committed before may lack what is committed now.
        if (
            config is not None
            and before == core.commit_index
            and required <= len(found) == len(config.voters)
        ):
            self._sample = InSyncFacts(core.term, core.commit_index, config, partition.config)
        return found

    def is_still_in_sync(self) -> bool:
        """Whether `sample_in_sync` found all voters in sync, and would do so again. False where that is not sure."""
        sample, core = self._sample, self.consensus.core
        return (
            sample is not None
            and sample.commit_index == core.commit_index
            and sample.term == core.term
            and sample.group_config is core.config
            and sample.topic_config is self._partition.config
            and core.has_heard_voters_since(self._multi_raft.now() - core.settings.election_timeout_s)
        )

    def knows_start(self, since: float) -> bool:
        """Whether every replica in sync has answered a heartbeat that was sent after this moment: such a heartbeat
        carries the offset at which the leader's log starts."""
        in_sync = self.in_sync_nodes()
        return all(
            row.heartbeat_sent_at > since
            for row in self.consensus.core.progress()
            if row.replica.node in in_sync and row.replica != self.me
        )
