"""Drives one group's Raft core: passes inputs to it and carries out its effects.

The driver carries out effects at once and in order, so that the log always matches the core's decisions. Slow work (a
flush, a saved vote) is started here and reported to the core when it is done.
"""

import logging
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec
from msgspec.structs import replace

from penstock.errors import (
    BatchError,
    CorruptLog,
    KafkaError,
    OutOfResources,
    PenstockError,
    ProtocolViolation,
    StorageError,
)
from penstock.log import Log, Prefix
from penstock.raft import (
    Append,
    AppendControl,
    AppendEntries,
    BrokenPromise,
    Committed,
    ConfigChanged,
    ControlKind,
    Effect,
    GroupConfig,
    Install,
    Message,
    PersistHardState,
    Raft,
    RaftRoleChanged,
    Role,
    Send,
    SendPrefix,
    StartAt,
    SuspectEntries,
    Truncate,
)
from penstock.raft.config import decode as decode_config
from penstock.raft.config import encode as encode_config
from penstock.types import GroupId, NodeId, Offset, Replica, Term

if TYPE_CHECKING:
    from penstock.node.replication.multi_raft import MultiRaft

log = logging.getLogger("penstock.node")

NOWHERE, EVERYWHERE = Offset(0), Offset(2**63 - 1)
"""Below this offset, entries from a leader may leave offsets out: only compacted topics have such gaps."""

Halt = StorageError | CorruptLog | BrokenPromise
"""Why a replica no longer takes part in its group."""


class GroupHost(Protocol):
    """The owner of the group's log. The driver reports the group's decisions to it."""

    @property
    def label(self) -> str:
        """The name of the group in log lines."""
        ...

    def dirty(self) -> None:
        """The log has bytes that are not flushed."""
        ...

    def committed(self, index: int, enough_index: int) -> None: ...

    def role_changed(self, role: Role, term: Term, leader: Replica | None) -> None: ...

    def config_changed(self, config: GroupConfig | None) -> None: ...

    def damaged(self, rot: CorruptLog) -> None:
        """Stored bytes are damaged. The replica goes on; its owner has it rebuilt."""
        ...

    def settled(self) -> None:
        """All effects of one input have been carried out."""
        ...

    def halted(self, error: Halt) -> None:
        """This replica takes no part in its group until it is opened again."""
        ...


class RaftDriver:
    """A member of one group."""

    def __init__(
        self,
        *,
        group: GroupId,
        stored: Log,
        multi_raft: "MultiRaft",
        host: GroupHost,
        founding: GroupConfig | None,
        eager: bool = False,
        is_lasting: bool = True,
    ) -> None:
        """`eager`: followers act on committed entries and should learn of each commit at once. `is_lasting`: the log
        must survive a restart."""
        self.group = group
        self.log = stored
        self._multi_raft = multi_raft
        self._host = host
        self._stopped = False
        self._full = False
        self._leader_start = 0
        """The start of the leader's log, as far as this replica knows."""
        self._refused = ""
        """Why the last entries could not be stored; empty after entries that could."""
        self._wrote_control = False
        self._log_noted = not is_lasting or multi_raft.hard_states.had_log(group)
        """The store of votes has durably recorded that this group has a log here. Nothing is acknowledged before."""
        self._noting = False
        self.addressees: tuple[GroupConfig, Mapping[NodeId, Replica], dict[Replica, int]] | None = None
        """For MultiRaft: the result of its function `addressees`, behind the arguments of that time."""
        installed = stored.entries.prefix_config
        self.core = Raft(
            me=multi_raft.replica(group),
            log=stored.entries,
            hard=multi_raft.hard_states.get(group),
            config=decode_config(installed) if installed else founding,
            # Raft needs the index at which such an entry ends; it is one wide.
            history=[
                (index + 1, decode_config(payload)) for index, payload in stored.entries.control_payloads()
            ],
            settings=replace(multi_raft.settings, eager_commit=eager),
            jitter=multi_raft.jitter,
            now=multi_raft.now(),
        )

    # --- what happens to it

    def start(self) -> None:
        self._multi_raft.add(self)
        self.tick()

    def stop(self) -> None:
        self._stopped = True
        self._multi_raft.remove(self)

    def let_go(self) -> None:
        """After `stop`: no reference leads back to this object (see `PartitionReplica.let_go`)."""
        self._host = cast(GroupHost, weakref.proxy(self._host))
        self.core.let_go()

    def step(self, sender: Replica, message: Message) -> None:
        try:
            self._feed(lambda now: self.core.step(now, sender, message))
        except ProtocolViolation as wrong:
            if type(message) is not Append or not message.entries or sender != self.core.leader:
                raise
            self._refuse_entries(str(wrong))

    def tick(self) -> None:
        self._feed(self.core.tick)

    def appended(self, size_bytes: int) -> None:
        """The leader's own append."""
        self._feed(lambda now: self.core.appended(now, size_bytes))

    def flushed(self) -> None:
        if self._log_noted:
            self._feed(self.core.durable)
            try:
                self._follow_start()
            except (StorageError, CorruptLog) as trouble:
                self.halt(trouble)
        elif not self._noting and self.log.entries.flushed_index > 0:
            self._noting = True
            self._multi_raft.hard_states.note_log(self.group, has_log=True, saved=self._noted)

    def _noted(self, error: StorageError | None) -> None:
        self._noting = False
        if error is None:
            self._log_noted = True
            self.flushed()

    def campaign(self) -> None:
        self._feed(self.core.campaign)

    def transfer(self, to: Replica) -> None:
        self._feed(lambda now: self.core.transfer(now, to))

    def change_config(self, voters: tuple[Replica, ...], learners: tuple[Replica, ...] = ()) -> None:
        self._feed(lambda now: self.core.change_config(now, voters, learners))

    def abandon_change(self) -> None:
        self._feed(self.core.abandon_change)

    def continue_alone(self) -> None:
        self._feed(self.core.continue_alone)

    def require_replicas(self, count: int) -> None:
        self._feed(lambda now: self.core.require_replicas(count))

    def prefix_deleted(self) -> None:
        self._feed(self.core.prefix_deleted)

    def _feed(self, question: Callable[[float], list[Effect]]) -> None:
        """Asks the core for a decision and carries it out. Raises what the core raises on purpose: ProtocolViolation,
        RaftRefused, and StorageError if entries cannot be read now."""
        if self._stopped:
            return
        try:
            effects = question(self._multi_raft.now())
        except Exception as problem:  # noqa: BLE001 - sorted out in there
            self.broke_off(problem)
        else:
            self.carry_out(effects)

    def broke_off(self, problem: Exception) -> None:
        """The core raised this instead of a decision. Raises it again if that was on purpose."""
        match problem:
            case BrokenPromise():
                self.halt(problem)
            case CorruptLog():
                self._host.damaged(problem)
            case PenstockError():
                raise problem
            case _:
                self._halt_by_bug("the group's decision broke off", problem)

    def _halt_by_bug(self, what: str, bug: Exception) -> None:
        """The core and the log may not match any more, so claims of this replica cannot be trusted."""
        log.error("%s: a bug", self._host.label, exc_info=bug)
        self.halt(StorageError(f"{what}: {bug!r}"))

    def halt(self, error: Halt) -> None:
        """The disk failed: claims of this replica about its log cannot be trusted any more, so it makes none."""
        if not self._stopped:
            self.stop()
            self._host.halted(error)

    # --- effects

    def carry_out(self, effects: list[Effect]) -> None:
        if not effects:
            return
        try:
            for effect in effects:
                if self._stopped:
                    return
                _CARRY_OUT[type(effect)](self, effect)
            if self._wrote_control:
                self._wrote_control = False
                self.carry_out(self.core.appended(self._multi_raft.now(), 0))
        except OutOfResources as refused:
            self._cannot_write_now(refused)
        except (StorageError, CorruptLog, BrokenPromise) as trouble:
            self.halt(trouble)
        except (BatchError, KafkaError) as wrong:
            self._refuse_entries(str(wrong))
        except Exception as bug:  # noqa: BLE001 - logged there
            self._halt_by_bug("an effect could not be carried out", bug)
        if not self._stopped:
            self._host.settled()

    def _refuse_entries(self, wrong: str) -> None:
        """The entries are damaged on the leader's disk or were changed on the way. The reply makes the leader check."""
        if wrong != self._refused:
            self._refused = wrong
            log.error("%s: entries from %s cannot be stored: %s", self._host.label, self.core.leader, wrong)
        self._feed(self.core.entries_refused)

    def _suspect(self, effect: SuspectEntries) -> None:
        """Checks the entries that a follower could not store. This reads on the event loop, rarely, and at most the
        size of one message."""
        rot = self.log.scrubber.check_entries(effect.index, self._multi_raft.settings.max_append_bytes)
        if rot is not None:
            self._host.damaged(rot)
            return
        log.warning(
            "%s: node %s could not store the entries after index %d; they are intact here, so they were damaged on "
            "the way or there: they are sent again",
            self._host.label,
            effect.peer,
            effect.index,
        )

    def _cannot_write_now(self, refused: OutOfResources) -> None:
        """Nothing was acknowledged. A follower gets the entries again, when there may be space; a leader that cannot
        write its own entries steps down."""
        if not self._full:
            self._full = True
            log.error("%s: %s", self._host.label, refused)
        self._feed(self.core.write_failed)

    def _send(self, effect: Send) -> None:
        self._multi_raft.post(effect.to, self.group, effect.message)

    def _persist(self, effect: PersistHardState) -> None:
        def saved(error: StorageError | None) -> None:
            if self._stopped or error is not None:
                return
            for send in effect.then:
                self._send(send)
            self._feed(lambda now: self.core.hard_state_saved(now, effect.hard))

        has_log = self._noting or self._multi_raft.hard_states.had_log(self.group)
        self._multi_raft.hard_states.save(self.group, effect.hard, has_log=has_log, saved=saved)

    def _truncate(self, effect: Truncate) -> None:
        log.info(
            "%s: truncates entries that its leader does not have, from index %d on",
            self._host.label,
            effect.end_index,
        )
        self.log.truncation.to_index(effect.end_index)
        if self.log.entries.end_index == 0 and self._log_noted:
            self._log_noted = False
            self._multi_raft.hard_states.note_log(self.group, has_log=False, saved=lambda _: None)

    def _append_entries(self, effect: AppendEntries) -> None:
        gaps_below = EVERYWHERE if self.log.config.cleanup_compact else NOWHERE
        self.log.writer.append_entries(
            effect.data, effect.headers, self._multi_raft.wall_ms(), gaps_below=gaps_below
        )
        self._full = False
        self._refused = ""
        self._host.dirty()

    def _append_control(self, effect: AppendControl) -> None:
        if effect.kind is ControlKind.TERM_START:
            self.log.writer.begin_term(Term(self.core.term))
        else:
            self.log.writer.append_control(effect.payload, Term(self.core.term))
        self._host.dirty()
        self._wrote_control = True

    def _committed(self, effect: Committed) -> None:
        self._host.committed(effect.index, effect.enough_index)
        self._follow_start()

    def _role_changed(self, effect: RaftRoleChanged) -> None:
        self._host.role_changed(effect.role, Term(effect.term), effect.leader)

    def _config_changed(self, effect: ConfigChanged) -> None:
        self._host.config_changed(effect.config)

    def _send_prefix(self, effect: SendPrefix) -> None:
        prefix = msgspec.msgpack.encode(self.log.prefix())
        self._multi_raft.post(effect.to, self.group, self.core.install_prefix(prefix))

    def _install(self, effect: Install) -> None:
        message = effect.message
        try:
            prefix = msgspec.msgpack.decode(message.prefix, type=Prefix)
            self.log.reset(replace(prefix, config=encode_config(message.config)))
        except OutOfResources as refused:
            # The core already counts on the new start, so this replica cannot go back to its old log.
            raise StorageError(f"the log cannot start again: {refused}") from refused
        except (msgspec.DecodeError, ValueError) as wrong:
            raise StorageError(f"the leader sent an invalid prefix: {wrong}") from wrong
        log.info("%s: starts again at offset %d, from its leader", self._host.label, self.log.start_offset)
        if not self._log_noted:
            # The next effect sends the reply, so this must be durable before.
            self._multi_raft.hard_states.note_log_now(self.group)
            self._log_noted = True
        self.carry_out(self.core.durable(self._multi_raft.now()))

    def _start_at(self, effect: StartAt) -> None:
        self._leader_start = max(self._leader_start, effect.offset)
        self._follow_start()

    def _follow_start(self) -> None:
        """Deletes the prefix that the leader has deleted, as far as it is committed and flushed here. The rest follows
        after the next commit or flush, because the leader sends its start only once."""
        if self._stopped or self._leader_start <= self.log.start_offset:
            return
        retention, first_index = self.log.retention, self.log.entries.first_index
        retention.delete_prefix(Offset(min(self._leader_start, retention.limit)))
        if self.log.entries.first_index != first_index:
            self._feed(self.core.prefix_deleted)


_CARRY_OUT: dict[type, Callable[[RaftDriver, Any], None]] = {
    Send: RaftDriver._send,
    PersistHardState: RaftDriver._persist,
    Truncate: RaftDriver._truncate,
    AppendEntries: RaftDriver._append_entries,
    AppendControl: RaftDriver._append_control,
    Committed: RaftDriver._committed,
    RaftRoleChanged: RaftDriver._role_changed,
    ConfigChanged: RaftDriver._config_changed,
    SendPrefix: RaftDriver._send_prefix,
    Install: RaftDriver._install,
    StartAt: RaftDriver._start_at,
    SuspectEntries: RaftDriver._suspect,
}
