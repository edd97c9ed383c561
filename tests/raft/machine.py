"""One replica as its node runs it: a core, a toy log and a hard state; and a one-line description of each effect."""

from collections.abc import Callable

from penstock.raft import (
    Append,
    AppendControl,
    AppendEntries,
    AppendReply,
    Committed,
    ConfigChanged,
    ControlKind,
    Effect,
    GroupConfig,
    HardState,
    Install,
    InstallPrefix,
    Message,
    PersistHardState,
    Raft,
    RaftRoleChanged,
    RaftSettings,
    RequestVote,
    Send,
    SendPrefix,
    StartAt,
    SuspectEntries,
    TimeoutNow,
    Truncate,
    VoteReply,
)
from penstock.raft.messages import decode, encode
from penstock.types import NodeId, Replica
from tests.raft.toy_log import ToyLog

SETTINGS = RaftSettings(election_timeout_s=1.0, heartbeat_interval_s=0.1, resend_timeout_s=0.3)


def replica(node: int, life: int = 1) -> Replica:
    return Replica(NodeId(node), life)


class Machine:
    """Carries out effects in order, and flushes and saves only on request."""

    def __init__(
        self,
        me: Replica,
        founding: GroupConfig | None,
        send: Callable[[Replica, Replica, Message], None],
        *,
        settings: RaftSettings = SETTINGS,
        jitter: Callable[[], float] = lambda: 0.5,
        note: Callable[[str], None] = lambda line: None,
        watch: Callable[["Machine", Effect], None] = lambda machine, effect: None,
    ) -> None:
        self.me = me
        self.founding = founding
        self.send = send
        self.settings = settings
        self.jitter = jitter
        self.note = note
        self.watch = watch
        self.log = ToyLog()
        self.hard = HardState()
        self.unsaved: list[PersistHardState] = []
        self.refuses = False
        """Every entry that it receives has a wrong checksum."""
        self.full = False
        """Its disk takes no entry."""
        self.core: Raft | None = None

    @property
    def raft(self) -> Raft:
        assert self.core is not None, f"{self.me} is down"
        return self.core

    def start(self, now: float) -> None:
        self.unsaved = []
        self.core = Raft(
            me=self.me,
            log=self.log,
            hard=self.hard,
            config=self.founding,
            settings=self.settings,
            jitter=self.jitter,
            now=now,
            history=self.log.configs(),
        )

    def crash(self, keep_index: int = 0) -> None:
        self.core = None
        self.unsaved = []
        self.log.crash(keep_index)

    def do(self, now: float, effects: list[Effect]) -> None:
        wrote_control = 0
        for effect in effects:
            self.watch(self, effect)
            if self.refuses and isinstance(effect, AppendEntries):
                self.note(f"{self.me} refuses {len(effect.data)} bytes")
                self.do(now, self.raft.entries_refused(now))
                return
            if self.full and isinstance(effect, AppendEntries | AppendControl):
                self.note(f"{self.me} has no space")
                self.do(now, self.raft.write_failed(now))
                return
            self.note(f"{self.me} {describe(effect)}")
            wrote_control += self._carry_out(effect)
        if wrote_control:
            self.do(now, self.raft.appended(now, wrote_control))

    def _carry_out(self, effect: Effect) -> int:
        """The bytes of a control entry that was written."""
        match effect:
            case Send(to, message):
                self.send(self.me, to, decode(encode(message)))
            case PersistHardState():
                self.unsaved.append(effect)
            case Truncate(end_index):
                self.log.truncate(end_index)
            case AppendEntries(data):
                self.log.append_entries(data)
            case AppendControl(ControlKind.TERM_START):
                self.log.begin_term(self.raft.term)
                return 74
            case AppendControl(ControlKind.CONFIG, payload):
                self.log.append_config(payload, self.raft.term)
                return 74 + len(payload)
            case SendPrefix(to):
                self.send(self.me, to, self.raft.install_prefix(self.log.prefix()))
            case Install(message):
                self.log.reset(message.first_index, message.prefix)
                self.founding = message.config
            case StartAt(offset):
                self.log.start_offset = max(self.log.start_offset, min(offset, self.log.end_offset))
        return 0

    def save(self, now: float) -> None:
        """The oldest hard state that was asked for has reached the disk."""
        persist = self.unsaved.pop(0)
        self.hard = persist.hard
        for send in persist.then:
            self.note(f"{self.me} {describe(send)}")
            self.send(self.me, send.to, decode(encode(send.message)))
        self.do(now, self.raft.hard_state_saved(now, persist.hard))

    def flush(self, now: float) -> None:
        self.log.flush()
        self.do(now, self.raft.durable(now))

    def propose(self, now: float, width: int = 1, content: bytes = b"") -> None:
        assert self.raft.may_propose() is None
        self.log.append(width, self.raft.term, content)
        self.do(now, self.raft.appended(now, 61 + len(content)))

    def delete_prefix(self, now: float, index: int) -> None:
        index = self.log.floor(min(index, self.raft.commit_index, self.log.flushed_index))
        self.founding = self.raft.config_at(index) or self.founding
        self.log.delete_prefix(index)
        self.do(now, self.raft.prefix_deleted(now))


def describe(effect: Effect) -> str:
    """One line for people."""
    match effect:
        case Send(to, message):
            return f"-> {to} {describe_message(message)}"
        case PersistHardState(hard):
            vote = f", votes for {hard.voted_for}" if hard.voted_for else ""
            return f"saves term {hard.term}{vote}"
        case Truncate(end_index):
            return f"cuts its log at {end_index}"
        case AppendEntries(data):
            return f"writes {len(data)} bytes"
        case AppendControl(kind):
            return "begins its term" if kind is ControlKind.TERM_START else "writes a configuration"
        case Committed(index, enough_index):
            return f"commits {index}" + (f", enough have {enough_index}" if enough_index != index else "")
        case RaftRoleChanged(role, term, leader):
            of = f" of {leader}" if leader and role.value == "follower" else ""
            return f"is {role.value}{of} in term {term}"
        case SendPrefix(to):
            return f"sends its prefix to {to}"
        case Install(message):
            return f"restarts its log at {message.first_index}"
        case StartAt(offset):
            return f"starts at offset {offset}"
        case SuspectEntries(index, peer):
            return f"suspects what it sent {peer} from {index} on"
        case ConfigChanged(config):
            return f"has {describe_config(config)}"


def describe_message(message: Message) -> str:
    match message:
        case RequestVote(term, end_index, last_term, pre, transfer):
            kind = "pre-vote" if pre else "vote"
            return f"asks for a {kind} in {term}, log {end_index}@{last_term}{' (sent ahead)' if transfer else ''}"
        case VoteReply(term, granted, pre):
            return f"{'grants' if granted else 'denies'} the {'pre-vote' if pre else 'vote'} in {term}"
        case Append(term, prev_index, prev_term, end_index, commit_index):
            to = f"..{end_index}" if end_index > prev_index else ""
            return f"append {prev_index}@{prev_term}{to} in {term}, commit {commit_index}"
        case AppendReply(term, _, _, -1, _, _, refused_index) if refused_index >= 0:
            return f"cannot store what follows {refused_index} in {term}"
        case AppendReply(term, match_index, received_index, -1):
            return f"has flushed {match_index} of {received_index} in {term}"
        case AppendReply(term, _, _, rejected_index, hint_index, hint_term):
            return f"rejects {rejected_index}, maybe {hint_index}@{hint_term} in {term}"
        case InstallPrefix(term, first_index, prefix_term):
            return f"prefix up to {first_index}@{prefix_term} in {term}"
        case TimeoutNow(term):
            return f"take over from {term}"


def describe_config(config: GroupConfig | None) -> str:
    if config is None:
        return "no configuration"

    def names(replicas: tuple[Replica, ...]) -> str:
        return " ".join(str(one) for one in replicas)

    parts = [f"voters {names(config.voters)}"]
    if config.outgoing:
        parts.append(f"outgoing {names(config.outgoing)}")
    if config.learners:
        parts.append(f"learners {names(config.learners)}")
    return ", ".join(parts)
