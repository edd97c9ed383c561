"""One replica of one group without a node: the production core, log, store of votes and heartbeats on a simulated disk,
and the least code that carries out the core's effects.

It promises the core what a node promises, and no more: effects are carried out in order and at once, a write is flushed
some time later, term and vote are on the disk before the messages that wait for them are sent, and the completion of a
flush is an event of its own. Any other event may come in between.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.batch import check_batch
from penstock.errors import BatchError, DiskFull, ErrorCode, KafkaError, ProtocolViolation, StorageError
from penstock.log import Appended, DataFolder, FlushTicket, Log, Prefix, VoteStore
from penstock.log.data_folder import VOTES_PATH
from penstock.raft import (
    AppendControl,
    AppendEntries,
    AppendReply,
    Committed,
    ControlKind,
    Effect,
    GroupConfig,
    HardState,
    Heartbeat,
    HeartbeatReceiver,
    HeartbeatReply,
    HeartbeatSender,
    Install,
    Message,
    PersistHardState,
    Raft,
    RaftRoleChanged,
    RequestVote,
    Role,
    Send,
    SendPrefix,
    StartAt,
    Truncate,
    VoteReply,
    heartbeats,
)
from penstock.raft import config as group_config
from penstock.raft import messages as raft_messages
from penstock.sim.clients import Answer
from penstock.sim.clock import EPOCH_MS
from penstock.sim.lossy_network import MessageReceived
from penstock.sim.machine import SimMachine
from penstock.sim.outcome import Violation
from penstock.sim.scheduler import Event, Process
from penstock.types import GroupId, Index, NodeId, Offset, Replica, Term

if TYPE_CHECKING:
    from penstock.sim.group import GroupWorld

HOUSEKEEPING_S = 1.5
CALM_FLUSH_S = 0.005
STUCK_S = 2.0


class PendingAck(NamedTuple):
    """An append that waits for its commit, in this term: a later term may have overwritten it."""

    term: int
    end_index: int
    offset: int
    answer: Answer


class Machine(SimMachine):
    """A computer with one disk, which runs a replica whenever it is up."""

    def __init__(self, world: "GroupWorld", node: NodeId, random: Random, rate: float) -> None:
        super().__init__(f"n{node}", random)
        self.world = world
        self.node = node
        self.rate = rate
        self.me = Replica(node, 0)
        self.core: Raft
        self.log: Log

    # --- starting

    def now(self) -> float:
        return self.world.scheduler.time * self.rate

    def start(self) -> None:
        """Raises CorruptLog for a damaged disk."""
        folder = DataFolder.open(self.disk, node_id=self.node, cluster_id="sim", draw=self.random.getrandbits)
        self.me = Replica(self.node, folder.incarnation)
        group = self.world.group
        self.disk.make_dir(folder.topics_dir)
        self.votes = VoteStore(self.disk, VOTES_PATH)
        self.log = Log.open(self.disk, self.world.folder, self.world.topic)
        vote = self.votes.get(group)
        self.core = Raft(
            me=self.me,
            log=self.log.entries,
            hard=HardState(vote.term, vote.voted_for),
            config=self._first_config(),
            settings=self.world.settings,
            jitter=lambda: self.random.random() * (1.0 if self.world.calm else self.world.mix.jitter_spread),
            now=self.now(),
            # Deleted entries were committed: that is all that a replica knows of its commit after a restart.
            commit_index=self.log.entries.floor(self.log.entries.index_at(self.log.start_offset)),
            history=[
                (index + 1, group_config.decode(data)) for index, data in self.log.entries.control_payloads()
            ],
        )
        self.core.require_replicas(self.world.required_replicas)
        self.log.entries.commit_index = Index(self.core.commit_index)
        self._reset()
        self.running = True
        self._plan_tick()
        self.world.scheduler.after(self.random.random() * 0.1, self, self._heartbeat)
        self.world.scheduler.after(HOUSEKEEPING_S, self, self._tidy)

    def _reset(self) -> None:
        self._flushing = False
        self._saving = False
        self._persists: list[PersistHardState] = []
        self._acks: list[PendingAck] = []
        self._tick: Event | None = None
        self._senders: dict[Replica, HeartbeatSender] = {}
        self._receivers: dict[Replica, HeartbeatReceiver] = {}

    def _first_config(self) -> GroupConfig | None:
        """The configuration that holds where the log begins."""
        if self.log.entries.prefix_config:
            return group_config.decode(self.log.entries.prefix_config)
        founding = self.world.founding
        return founding if founding is not None and self.me in founding.voters else None

    def stop(self) -> None:
        self.running = False
        self.world.scheduler.crash(self)

    # --- time

    def _plan_tick(self) -> None:
        deadline = self.core.next_deadline / self.rate
        if deadline == float("inf"):
            return
        tick = self._tick
        if tick is not None and tick.when <= deadline and tick.when >= self.world.scheduler.time:
            return
        if tick is not None:
            tick.cancel()
        self._tick = self.world.scheduler.at(deadline, self, self._on_tick)

    def lose_leader(self) -> None:
        """Its connection with the leader breaks, as far as it knows of one."""
        self.core.leader_lost(self.now())
        self._plan_tick()

    def _on_tick(self) -> None:
        self._tick = None
        # A deadline that is a rounding error ahead must not be planned again and again.
        now = max(self.now(), min(self.core.next_deadline, self.now() + 1e-9))
        self.do(self.core.tick(now))

    # --- carrying out effects

    def do(self, effects: list[Effect]) -> None:
        wrote_control = False
        try:
            for effect in effects:
                wrote_control = self._carry_out(effect) or wrote_control
        except BatchError as problem:
            # Only a machine with a damaged disk sends such entries. It sends them again later.
            if self.world.rotten is None:
                raise Violation("entries arrive as they were written", f"{self.name}: {problem}") from problem
            self.world.tally.add("rotten entries refused")
            self.do(self.core.write_failed(self.now()))
        except DiskFull:
            # The effects behind it are dropped; a leader that cannot write steps down.
            self.world.tally.add("writes refused by a full disk")
            self.do(self.core.write_failed(self.now()))
        except StorageError as problem:
            self._halt(problem)
            return
        if wrote_control:
            self.do(self.core.appended(self.now()))
        self._mark()
        self._plan_tick()

    def _carry_out(self, effect: Effect) -> bool:
        """True if it was a control entry that is now in the log."""
        match effect:
            case Send(to, message):
                self._send(to, message)
            case PersistHardState():
                self.votes.put(self.world.group, effect.hard, has_log=True)
                self._persists.append(effect)
                self._save()
            case Truncate(end_index):
                self.world.tally.add("truncations")
                self.log.truncation.to_index(end_index)
            case AppendEntries(data, headers):
                self.log.writer.append_entries(data, headers, EPOCH_MS)
            case AppendControl(ControlKind.TERM_START):
                self.log.writer.begin_term(Term(self.core.term))
                return True
            case AppendControl(ControlKind.CONFIG, payload):
                self.log.writer.append_control(payload, Term(self.core.term))
                return True
            case Committed(index, enough_index):
                self.log.entries.commit_index = Index(index)
                self.world.witness.told_enough(self, enough_index)
                self._answer_committed(index)
            case RaftRoleChanged(role, term):
                self._role_changed(role, term)
            case SendPrefix(to):
                self._send(to, self.core.install_prefix(self._prefix()))
            case Install(message):
                self._install(message.prefix)
            case StartAt(offset):
                self.delete_prefix(offset)
        return False

    def _role_changed(self, role: Role, term: int) -> None:
        self.world.scheduler.note(self.name, f"is {role.value} in term {term}")
        if role is Role.LEADER:
            self.world.tally.add("elections won")
            self.world.aim(self, self.world.mix.crash_new_leader)
            self.world.faults.isolate_new_leader(self)
        acks, self._acks = self._acks, []
        for ack in acks:
            ack.answer("unknown", -1)

    def _prefix(self) -> bytes:
        """The prefix with the configuration that holds there, which may be the founding one and in no log."""
        prefix = self.log.prefix()
        config = self.core.config_at(prefix.index) or self.core.configs.oldest
        assert config is not None
        return msgspec.msgpack.encode(msgspec.structs.replace(prefix, config=group_config.encode(config)))

    def _install(self, data: bytes) -> None:
        """The core relies on it: a log that could not be replaced must not be used as the old one."""
        try:
            self.log.reset(msgspec.msgpack.decode(data, type=Prefix))
        except DiskFull as problem:
            raise StorageError(f"no space to install the prefix: {problem}") from problem
        self.world.tally.add("prefixes installed")

    def _halt(self, problem: StorageError) -> None:
        """Its disk failed."""
        self.world.scheduler.note(self.name, f"halts: {problem}")
        self.world.tally.add("halts for a failed disk")
        self.world.restart_halted(self)

    # --- messages

    def _send(self, to: Replica, message: Message) -> None:
        data = raft_messages.encode(message)
        if isinstance(message, VoteReply) and message.granted and not message.pre:
            self.world.witness.told_vote(self.me, message.term, to)
            self.world.aim(self, self.world.mix.crash_after_vote)
        elif isinstance(message, RequestVote) and not message.pre:
            self.world.witness.told_vote(self.me, message.term, self.me)
        elif isinstance(message, AppendReply) and message.match_index:
            self.world.witness.told_match(self.me, message.term, message.match_index)
            self.world.aim(self, self.world.mix.crash_after_ack)
        self.world.carry(self, to, self.receive, data, answer=isinstance(message, AppendReply))

    def receive(self, sender: Replica, to: Replica, data: bytes) -> None:
        """Drops messages for an earlier incarnation of this replica."""
        if not self.running or to != self.me:
            return
        message = raft_messages.decode(data)
        self.world.scheduler.note(self.name, MessageReceived(sender, message), data)
        try:
            effects = self.core.step(self.now(), sender, message)
        except ProtocolViolation:
            if self.world.rotten is None or sender != self.world.rotten.me:
                raise
            self.world.tally.add("rotten entries refused")
            return
        self.do(effects)

    def _heartbeat(self) -> None:
        """Sends one frame to each peer, every interval."""
        if self.core.role is Role.LEADER:
            config = self.core.config
            assert config is not None
            pair = [(self.world.group, self.core.heartbeat())]
            for peer in config.members:
                if peer != self.me:
                    self._heartbeat_to(peer, pair)
        interval = self.world.settings.heartbeat_interval_s / self.rate
        self.world.scheduler.after(interval, self, self._heartbeat)

    def _heartbeat_to(self, peer: Replica, pair: list[tuple[GroupId, Heartbeat]]) -> None:
        sender = self._senders.get(peer)
        if sender is None:
            sender = HeartbeatSender(peer, self.random.getrandbits(62), self.world.settings.lease_s)
            self._senders[peer] = sender
        frame = sender.frame(self.now(), pair)
        if frame is not None:
            self.world.carry(self, peer, self.receive_heartbeat, heartbeats.encode(frame))

    def receive_heartbeat(self, sender: Replica, to: Replica, data: bytes) -> None:
        if not self.running or to != self.me:
            return
        frame = heartbeats.decode(data)
        if isinstance(frame, HeartbeatReply):
            one = self._senders.get(sender)
            effects = one.receive(self.now(), frame, self._find) if one is not None else []
        else:
            receiver = self._receivers.setdefault(sender, HeartbeatReceiver(sender))
            reply, effects = receiver.receive(self.now(), frame, self._find)
            if reply is not None:
                self.world.carry(self, sender, self.receive_heartbeat, heartbeats.encode(reply))
        for _, some in effects:
            self.do(some)
        if not effects:
            self._plan_tick()

    def _find(self, group: GroupId) -> Raft | None:
        return self.core if group == self.world.group else None

    # --- flushing

    def _disk_time(self) -> float:
        world = self.world
        if world.calm:
            return CALM_FLUSH_S
        slow = world.scheduler.time < self.slow_until or self.random.random() < world.mix.stuck_flush
        base = world.mix.flush_s * (0.5 + self.random.random())
        return base + self.random.random() * STUCK_S if slow else base

    def _mark(self) -> None:
        if not self._flushing and self.log.flushes.is_needed:
            self._flushing = True
            self.world.scheduler.after(0, self, self._begin_flush)

    def _begin_flush(self) -> None:
        self._flushing = False
        try:
            ticket = self.log.flushes.begin()
        except StorageError as problem:
            self._halt(problem)
            return
        if ticket is None:
            if self.log.failed is not None:
                self._halt(self.log.failed)
            return
        self._flushing = True
        self.world.aim(self, self.world.mix.crash_at_flush)
        seconds = self._disk_time()
        done = seconds * self.random.random()
        self.world.scheduler.after(done, self, self._run_flush, ticket, seconds - done)

    def _run_flush(self, ticket: FlushTicket, rest_s: float) -> None:
        """The disk is done. The replica learns of it a little later, and other events may come in between."""
        error = None
        try:
            ticket.run()
        except StorageError as problem:
            error = problem
        self.world.scheduler.after(rest_s, self, self._finish_flush, ticket, error)

    def _finish_flush(self, ticket: FlushTicket, error: StorageError | None) -> None:
        self._flushing = False
        self.log.flushes.finish(ticket, error)
        if self.log.failed is not None:
            self._halt(self.log.failed)
            return
        self.do(self.core.durable(self.now()))

    @property
    def is_saving(self) -> bool:
        """Whether a term or vote is not durable yet. A replica does not reply to its leader before it is."""
        return self._saving

    def _save(self) -> None:
        if not self._saving and self._persists:
            self._saving = True
            self.world.scheduler.after(self._disk_time(), self, self._run_save, len(self._persists))

    def _run_save(self, count: int) -> None:
        try:
            self.votes.flush()
        except DiskFull:
            self.world.scheduler.after(self._disk_time(), self, self._run_save, count)
            return
        except StorageError as problem:
            self._halt(problem)
            return
        self.world.scheduler.after(self._disk_time() / 4, self, self._finish_save, count)

    def _finish_save(self, count: int) -> None:
        self._saving = False
        saved, self._persists = self._persists[:count], self._persists[count:]
        for persist in saved:
            for send in persist.then:
                self._send(send.to, send.message)
            if self.running:
                self.do(self.core.hard_state_saved(self.now(), persist.hard))
        if self.running:
            self._save()

    def _tidy(self) -> None:
        try:
            chores = self.log.maintenance.next_task()
            if chores is not None:
                chores()
        except DiskFull:
            pass
        except StorageError as problem:
            self._halt(problem)
            return
        self._mark()
        self.world.scheduler.after(HOUSEKEEPING_S, self, self._tidy)

    # --- requests of clients and operators

    @property
    def process(self) -> Process:
        return self

    def produce(self, batch: bytes, answer: Answer) -> bool:
        core = self.core
        if not self.running:
            return False
        if core.may_propose() is not None:
            answer("refused", core.leader.node if core.leader is not None else -1)
            return False
        appended = self._append(bytearray(batch))
        if appended is None:
            answer("refused", -1)
            return False
        end_index = self.log.entries.index_at(appended.last_offset + 1)
        if end_index <= core.commit_index and core.term_confirmed:
            answer("ok", appended.base_offset)
            return True
        self._acks.append(PendingAck(core.term, end_index, appended.base_offset, answer))
        if not appended.duplicate:
            self.world.faults.isolate_writer(self)
            self.do(core.appended(self.now(), len(batch)))
        return True

    def _append(self, data: bytearray) -> Appended | None:
        """None if nothing was stored."""
        try:
            appended = self.log.writer.append(data, check_batch(data), Term(self.core.term), EPOCH_MS)
        except KafkaError as problem:
            if problem.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                raise
            # A leader that may have been replaced does not know all that producers sent: it must not judge them.
            if self.core.may_serve(self.now()):
                raise Violation("a producer's sequence goes on", f"{self.name}: {problem}") from problem
            return None
        except DiskFull:
            return None
        except StorageError as problem:
            self._halt(problem)
            return None
        if appended.duplicate:
            self.world.tally.add("repetitions recognised")
        return appended

    def _answer_committed(self, index: int) -> None:
        if self.core.role is not Role.LEADER:
            return
        ready = [ack for ack in self._acks if ack.end_index <= index and ack.term == self.core.term]
        self._acks = [ack for ack in self._acks if ack not in ready]
        for ack in ready:
            ack.answer("ok", ack.offset)

    def read(self, offset: int, answer: Callable[[int, int, bytes], None]) -> None:
        """Answers only if this replica may serve readers."""
        if not self.running or not self.core.may_serve(self.now()):
            return
        watermark = self.log.entries.offset_at(self.core.commit_index)
        start = self.log.start_offset
        wanted = min(max(offset, start), watermark)
        data = self.log.read(Offset(wanted), 4096, limit=watermark) if start <= wanted else b""
        answer(start, watermark, data)

    def delete_prefix(self, offset: int) -> None:
        """Deletes a prefix, as retention does, or because the leader's log starts later."""
        log = self.log
        before = log.entries.first_index
        try:
            log.retention.delete_prefix(Offset(min(offset, log.retention.limit)))
        except DiskFull:
            return
        if log.entries.first_index != before:
            self.world.tally.add("prefixes deleted")
            self.do(self.core.prefix_deleted(self.now()))
