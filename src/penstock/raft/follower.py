"""A follower: which entries it takes from its leader, and how it answers (invariants 7 to 10 and 12)."""

from typing import TYPE_CHECKING, NoReturn

from penstock.raft.effects import AppendEntries, Install, Role, Send, StartAt, Truncate
from penstock.raft.entries import Entries
from penstock.raft.errors import BrokenPromise
from penstock.raft.messages import Append, AppendReply, InstallPrefix, TimeoutNow
from penstock.types import Replica

if TYPE_CHECKING:
    from penstock.raft.core import Raft


def on_append(core: "Raft", now: float, sender: Replica, message: Append) -> None:
    if message.term < core.term:
        _tell_term(core, sender)
        return
    entries = Entries(message)
    core.accept_leader(now, sender, message.term)
    assert isinstance(core.part, Follower)
    core.part.take(now, message, entries)


def on_install_prefix(core: "Raft", now: float, sender: Replica, message: InstallPrefix) -> None:
    if message.term < core.term:
        _tell_term(core, sender)
        return
    core.accept_leader(now, sender, message.term)
    assert isinstance(core.part, Follower)
    core.part.install(message)


def on_timeout_now(core: "Raft", now: float, sender: Replica, message: TimeoutNow) -> None:
    if message.term == core.term and sender == core.leader and core.role is Role.FOLLOWER:
        core.stand_at_once(now)


def _tell_term(core: "Raft", sender: Replica) -> None:
    """Answers a leader of an earlier term, which then steps down."""
    core.send_when_saved(sender, AppendReply(core.term, 0, 0))


class Follower:
    """A follower's knowledge of its leader's log. There is a new object for each term and each leader (9)."""

    def __init__(self, core: "Raft") -> None:
        self.core = core
        self.matched_index = 0
        """Below it, the log equals this leader's as far as the log reaches. An append that the caller could not carry
        out leaves this index too high, so it is always compared with the end of the log (10)."""
        self.leader_commit = 0
        self.acked_index = 0
        self.owes_reply = False
        self.lost = False
        """The leader has committed more than this replica knows, and nothing has been matched in this term. That is the
        state after a restart, when the leader has no reason to send entries: this replica asks for them (8)."""

    def tick(self, now: float) -> None:
        self.core.campaign_now(now)

    @property
    def leader(self) -> Replica:
        assert self.core.leader is not None, "replies go to a leader that was heard"
        return self.core.leader

    # ---- appends

    def take(self, now: float, message: Append, entries: Entries) -> None:
        """An append of the leader in the current term."""
        core = self.core
        log = core.log
        self._follow_start(message.start_offset)
        self.leader_commit = max(self.leader_commit, message.commit_index)
        if message.prev_index > log.end_index or self._conflicts_before(message):
            self._reject(message)
            return
        if message.prev_index == log.end_index:
            new, settled = 0, message.prev_index
        else:
            new, settled = self._skip_known(message, entries)
        self.matched_index = max(self.matched_index, message.end_index)
        self.lost = False
        if new < len(entries.ends):
            self._write(entries, new, settled)
            self.advance(settled)
            # The reply is sent when the entries written now are flushed (9, 10).
            self.owes_reply = True
        else:
            self.advance(log.end_index)
            self.answer()

    def _conflicts_before(self, message: Append) -> bool:
        """Whether the log differs from the leader's at prev_index. Committed entries do not differ (11)."""
        if message.prev_index <= self.core.commit_index:
            return False
        return self.core.log.term_before(message.prev_index) != message.prev_term

    def _skip_known(self, message: Append, entries: Entries) -> tuple[int, int]:
        """How many of these entries the log has already, and where the last one of them ends (8)."""
        core = self.core
        log = core.log
        commit_index, end_index = core.commit_index, log.end_index
        settled = max(message.prev_index, min(commit_index, message.end_index))
        known = 0
        for end, term in zip(entries.ends, entries.terms, strict=True):
            if end > end_index or log.term_before(end) != term:
                if end > commit_index:
                    break
                if end > log.first_index:
                    self._contradicts(end)
            known += 1
            settled = max(settled, end)
        return known, settled

    def _write(self, entries: Entries, new: int, settled: int) -> None:
        """Truncates the log where it contradicts these entries, and writes them."""
        core = self.core
        if entries.starts[new] < settled or settled < core.commit_index:
            self._contradicts(entries.starts[new])
        if settled < core.log.end_index:
            core.out.append(Truncate(settled))
            core.configs_truncated(settled)
        position = entries.positions[new]
        if position:
            core.out.append(AppendEntries(entries.data[position:], entries.headers[new:]))
        else:
            core.out.append(AppendEntries(entries.data, entries.headers))
        for end, config in entries.configs:
            if end > settled:
                core.config_appended(end, config)

    def _contradicts(self, index: int) -> NoReturn:
        core = self.core
        raise BrokenPromise(
            f"{core.me}: {core.leader} in term {core.term} has another entry at {index}, "
            f"but this log is committed up to {core.commit_index}"
        )

    def _reject(self, message: Append) -> None:
        """Tells the leader the greatest index at which the logs may agree: the leader's own terms narrow it further."""
        core = self.core
        log = core.log
        hint = min(message.prev_index, log.end_index, log.end_of_term_index(message.prev_term))
        hint = max(log.floor(hint), core.commit_index)
        hint_term = log.term_before(hint)
        if hint_term is None:
            raise BrokenPromise(f"{core.me}: the log does not know the term at its own boundary {hint}")
        core.send_when_saved(self.leader, AppendReply(core.term, 0, 0, message.prev_index, hint, hint_term))

    def refuse(self) -> None:
        """Tells the leader that its entries cannot be stored. None of them was written; the leader checks its disk."""
        core = self.core
        received = min(core.log.end_index, self.matched_index)
        match = min(core.log.flushed_index, received)
        self.owes_reply = False
        reply = AppendReply(core.term, match, received, refused_index=core.log.end_index)
        core.send_when_saved(self.leader, reply)

    # ---- heartbeats and prefixes

    def hear_heartbeat(self, commit_index: int, start_offset: int) -> None:
        self._follow_start(start_offset)
        self.leader_commit = max(self.leader_commit, commit_index)
        self.advance(self.core.log.end_index)
        self.lost = self.matched_index == 0 and self.leader_commit > self.core.commit_index
        if self.lost:
            self.answer()

    def install(self, message: InstallPrefix) -> None:
        """Replaces the log by the prefix, unless the log holds the prefix's boundary already (16)."""
        core = self.core
        first = message.first_index
        self.lost = False
        if first <= core.commit_index or core.log.term_before(first) == message.prefix_term:
            self.matched_index = max(self.matched_index, first)
            self.answer()
            return
        core.out.append(Install(message))
        core.prefix_installed(first, message.config)
        self.matched_index = self.leader_commit = first
        core.commit(first, first)
        core.send_when_saved(self.leader, AppendReply(core.term, first, first))

    def _follow_start(self, offset: int) -> None:
        if offset > self.core.log.start_offset:
            self.core.out.append(StartAt(offset))

    # ---- commit and replies

    def advance(self, settled: int) -> None:
        """Invariant 12. `settled`: up to where the log holds what this leader sent (10)."""
        index = min(self.leader_commit, self.matched_index, settled)
        if index > self.core.commit_index:
            self.core.commit(index, index)

    def durable(self, now: float) -> None:
        self.advance(self.core.log.end_index)
        if self.owes_reply or min(self.core.log.flushed_index, self.matched_index) > self.acked_index:
            self.answer()

    def saved(self, now: float) -> None:
        if self.owes_reply:
            self.answer()

    def answer(self) -> None:
        """Tells the leader how far its log is flushed here, once the term is durable (9). Only in a call that did not
        write (10)."""
        core = self.core
        if core.saved.term != core.term:
            self.owes_reply = True
            return
        received = min(core.log.end_index, self.matched_index)
        match = min(core.log.flushed_index, received)
        core.out.append(Send(self.leader, AppendReply(core.term, match, received)))
        self.owes_reply = False
        self.acked_index = match
