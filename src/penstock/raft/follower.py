"""A follower: what it takes from its leader, and what it may tell it (invariants 7 to 10 and 12)."""

from typing import TYPE_CHECKING, NoReturn

from penstock.raft.effects import AppendEntries, Install, Send, StartAt, Truncate
from penstock.raft.entries import Entries
from penstock.raft.errors import BrokenPromise
from penstock.raft.messages import Append, AppendReply, InstallPrefix

if TYPE_CHECKING:
    from penstock.raft.core import Raft


class Follower:
    """What a follower knows of its leader's log. Made anew for each term and each leader (9)."""

    def __init__(self, core: "Raft") -> None:
        self.core = core
        self.matched_index = 0
        """The log equals this leader's below it, as far as it reaches: an append that the caller could not carry out
        leaves it too high, which is why nothing follows from it without a look at the log (10)."""
        self.leader_commit = 0
        self.acked_index = 0
        self.owes_reply = False
        self.lost = False
        """The leader has committed more than is known here, and nothing of it is known to match: so it is after a
        restart, when the leader has no reason to send anything. It is asked to (8)."""

    def tick(self, now: float) -> None:
        self.core.campaign_now(now)

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
            # The answer comes with the flush of what is written now (9, 10).
            self.owes_reply = True
        else:
            self.advance(log.end_index)
            self.answer()

    def _conflicts_before(self, message: Append) -> bool:
        """Whether the log differs from the leader's at prev_index. What is committed does not (invariant 11)."""
        if message.prev_index <= self.core.commit_index:
            return False
        return self.core.log.term_before(message.prev_index) != message.prev_term

    def _skip_known(self, message: Append, entries: Entries) -> tuple[int, int]:
        """How many of these entries are here already, and where the last one of them ends (8)."""
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
        """Cuts what contradicts these entries, if anything does, and writes them."""
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
        """Names the greatest place at which the logs may agree: the leader's own terms narrow it further."""
        core = self.core
        log = core.log
        hint = min(message.prev_index, log.end_index, log.end_of_term_index(message.prev_term))
        hint = max(log.floor(hint), core.commit_index)
        hint_term = log.term_before(hint)
        if hint_term is None:
            raise BrokenPromise(f"{core.me}: the log does not know the term at its own boundary {hint}")
        core.send_when_saved(
            core.known_leader, AppendReply(core.term, 0, 0, message.prev_index, hint, hint_term)
        )

    def refuse(self) -> None:
        """The entries that came cannot be stored: none of them is here, and only their sender can tell why."""
        core = self.core
        received = min(core.log.end_index, self.matched_index)
        match = min(core.log.flushed_index, received)
        self.owes_reply = False
        reply = AppendReply(core.term, match, received, refused_index=core.log.end_index)
        core.send_when_saved(core.known_leader, reply)

    # ---- what else a leader sends

    def hear_beat(self, commit_index: int, start_offset: int) -> None:
        self._follow_start(start_offset)
        self.leader_commit = max(self.leader_commit, commit_index)
        self.advance(self.core.log.end_index)
        self.lost = self.matched_index == 0 and self.leader_commit > self.core.commit_index
        if self.lost:
            self.answer()

    def install(self, message: InstallPrefix) -> None:
        """Begins the log anew, unless it holds what the prefix stands for (16)."""
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
        core.send_when_saved(core.known_leader, AppendReply(core.term, first, first))

    def _follow_start(self, offset: int) -> None:
        if offset > self.core.log.start_offset:
            self.core.out.append(StartAt(offset))

    # ---- commit and answers

    def advance(self, settled: int) -> None:
        """Invariant 12. `settled`: up to where the log shows what this leader sent (10)."""
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
        """Tells the leader what is flushed of its log, if the term may be told already (9). Only in a call that did
        not write (10)."""
        core = self.core
        if core.saved.term != core.term:
            self.owes_reply = True
            return
        received = min(core.log.end_index, self.matched_index)
        match = min(core.log.flushed_index, received)
        core.out.append(Send(core.known_leader, AppendReply(core.term, match, received)))
        self.owes_reply = False
        self.acked_index = match
