"""Raft for one partition, without I/O: the invariants, and the object that keeps them.

The caller feeds a replica with inputs (a message, a deadline that has come, a flush that has returned). The replica
answers each input with effects, which the caller carries out at once, in order and before the next input. The core
stores no entries. It reads the log, which shows a write as soon as it is made and tells separately what is flushed.

Terms used here
  index     a boundary between entries; always an exclusive end. "Committed up to 7": the units 0 to 6 are committed.
  boundary  an index that no entry spans. An entry is a batch, as wide as its offsets, or a control entry, one wide.
  matched   a follower has found its log equal to its leader's up to this index, in this term.
  flushed   on the disk. Only flushed entries count towards a majority.
  lease     the time during which a leader can be sure that no other replica leads.

Invariants. Code and tests cite the numbers.

Terms and votes
   1  Term and vote are durable before any other replica learns of them: vote requests, votes and replies to appends
      wait for the disk, and a candidate counts its own vote when it is durable.
   2  A term never goes back, and a replica votes at most once in it. So no term has two leaders.
   3  A replica votes only for a log that is at least as far as its own: a later last term, or the same last term and no
      shorter. So a leader has everything that was ever committed.
   4  A replica raises the term only after a majority has promised to vote for it (pre-vote). So a replica that was cut
      off or removed does not disturb the others when it returns.
   5  A heartbeat carries the leader's lease time, which is at most an election timeout. A replica that has heard its
      leader within that time votes and pre-votes for no other replica, nor for itself; neither does a leader. So the
      answer to a heartbeat is a lease, from the moment at which the heartbeat was *sent*, for the lease time less the
      clocks' drift. A replica that has just started, or has heard a new leader's entries and no heartbeat yet, does not
      know the lease time and takes its own election timeout instead: that must not be less than a leader's lease time,
      less the drift. The one exception is a successor that the leader itself tells to stand; its lease ends with that.
   6  A leader that has not heard from a majority for an election timeout steps down.
Replication
   7  A follower takes entries only behind an (index, term) that its log has too. So logs that agree there agree below.
   8  A follower skips entries that it has, and truncates its log only at the first entry that contradicts the leader's,
      never below the commit: that would be a bug, or a disk that lost flushed bytes, and halts the group
      (BrokenPromise). Lost messages are made up for: a leader asks a peer that is behind and makes no progress.
   9  A reply says min(flushed, matched with this leader in this term), and is sent only when the term is durable. It is
      true whenever it arrives: in its term, a follower never truncates what it has matched.
  10  Entries that a call tells the caller to write are not in the log before the next call. The same call neither
      acknowledges nor commits them; the flushed index may still count bytes that this very call truncates.
Commit
  11  An entry is committed when a majority of each half of the configuration has flushed it and it is of the leader's
      own term. Everything before it is committed with it. A leader writes its term's first entry at once, for this
      purpose. A replica that is a majority by itself commits all that it has flushed: no other replica can be elected
      without its vote.
  12  A follower commits min(leader's commit, matched, end of its log).
Members
  13  One change of members at a time, and none before the leader has committed an entry of its own term.
  14  A configuration holds as soon as it is in the log, and no longer once it is truncated.
  15  A replica without a configuration does not campaign, and votes only if it has entries of the group: a founder that
      was away when its group first changed may no longer know the founding configuration, but its log still counts. A
      replica that is no voter never campaigns; but as long as a configuration may not be committed, the voters of the
      one before it do, because its entry may be in no other log. A leader that is no voter by a committed configuration
      steps down. A replica is a node *and* its incarnation: promises that a node made before it lost its data bind
      no replica.
  19  A leader writes a joint configuration only when every newcomer, and a majority of all voters to come, have
      answered a heartbeat of its term that it sent after the newcomers had caught up, and within the last election
      timeout. A joint configuration cannot be taken back, even if it is in one log only. So a change that begins when a
      disk has just died does not bind the group to a majority that is gone. A half of three survives a later loss.
Prefix
  16  Deleted entries were committed. A follower that needs them installs the leader's prefix instead and starts its log
      behind it, unless its log holds that boundary already.
Serving
  17  A leader answers readers only while it knows everything that any replica has committed (`may_serve`): an entry of
      its own term is committed, so all that was committed before its term is too; it has not sent a successor ahead;
      and no other replica can lead, because a majority has heard from it less than its lease time ago, less the
      clocks' drift (5). Two moments count as heard, whichever is later: the sending of the newest heartbeat that a
      majority has answered, and the beginning of the term, since a majority has taken the term's first entry after it.
  18  A group may require more flushed copies than a majority (`require_replicas`) before a write is acknowledged. So a
      leader tells two indexes: what is committed, which readers may see because no failure of a minority can undo it,
      and `enough_index` at or below it, which so many voters have flushed.
  20  When a person declares the others lost, one replica continues alone (recovery.py). This breaks 3 and 11.

A sole voter without learners needs no heartbeats, no deadlines, and no entry of its own until it has one to write.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import cast

from penstock.errors import ProtocolViolation
from penstock.raft import election, follower, leader, recovery
from penstock.raft.config import ConfigHistory, GroupConfig
from penstock.raft.effects import (
    Committed,
    ConfigChanged,
    Effect,
    HardState,
    PersistHardState,
    RaftRefusal,
    RaftRoleChanged,
    Role,
    Send,
)
from penstock.raft.election import Candidate
from penstock.raft.errors import BrokenPromise, RaftRefused
from penstock.raft.follower import Follower
from penstock.raft.leader import Leader
from penstock.raft.messages import (
    Append,
    AppendReply,
    Heartbeat,
    InstallPrefix,
    Message,
    RequestVote,
    TimeoutNow,
    VoteReply,
)
from penstock.raft.progress import ReplicaProgress
from penstock.raft.raft_log import RaftLog
from penstock.raft.settings import MAX_TERM, RaftSettings
from penstock.types import NO_TERM, Replica

NEVER = float("inf")
LOST_HEARTBEATS = 3
"""Followers of a lost leader campaign within so many heartbeat intervals, each at a random moment: otherwise votes
split."""


class Raft:
    """One replica of one group. The methods after "inputs" and "heartbeats" are for the other modules of this
    package."""

    def __init__(
        self,
        *,
        me: Replica,
        log: RaftLog,
        hard: HardState,
        config: GroupConfig | None,
        settings: RaftSettings,
        jitter: Callable[[], float],
        now: float,
        commit_index: int = 0,
        history: Sequence[tuple[int, GroupConfig]] = (),
    ) -> None:
        """`config` is the founding configuration, or that of an installed prefix; `history` are those in the log, each
        with the end index of its entry. `jitter` draws from [0, 1)."""
        self.me = me
        self.log = log
        self.settings = settings
        self.jitter = jitter
        self.term = max(hard.term, log.last_term)
        """The log may be ahead, because entries and votes are flushed separately. Their leader had that term."""
        self.voted_for = hard.voted_for if hard.term == self.term else None
        self.saved = hard
        self.asked = hard
        self.role = Role.FOLLOWER
        self.leader: Replica | None = None
        self.commit_index = min(max(commit_index, log.first_index), log.end_index)
        self.required_replicas = 1
        self.enough_index = self.commit_index
        self.configs = ConfigHistory(config, history)
        self.part: Follower | Candidate | Leader = Follower(self)
        self.out: list[Effect] = []
        self.heard_at = now if self.term != NO_TERM else -NEVER
        self.lease_s = settings.election_timeout_s
        """How long after `heard_at` the leader may count on this replica (5)."""
        self.next_deadline = NEVER
        self._timeout = 0.0
        self._heartbeat = Heartbeat(NO_TERM, 0, 0)
        self.arm(now)
        self._hurry(now)

    def _hurry(self, now: float) -> None:
        """A new group need not wait for a timeout: no leader can have a lease."""
        config = self.config if self.may_campaign and self.configs.newest_index == 0 else None
        if config is None:
            return
        if config.is_quorum([self.me]) or (self.term == NO_TERM and config.voters[0] == self.me):
            self.next_deadline = now

    # ---- facts

    @property
    def config(self) -> GroupConfig | None:
        return self.configs.newest

    def config_at(self, index: int) -> GroupConfig | None:
        """The configuration that held at this index. A caller that deletes the log below it must first store this
        configuration durably, to pass it as `config` at the next start: its entry is deleted with the rest."""
        return self.configs.at(index)

    @property
    def term_confirmed(self) -> bool:
        """Leader: commit_index is the group's, not only what this replica had been told as a follower."""
        return isinstance(self.part, Leader) and self.part.term_confirmed

    @property
    def changing(self) -> bool:
        """Leader: a change of members is under way."""
        return isinstance(self.part, Leader) and self.part.is_changing

    @property
    def catching_up_for(self) -> GroupConfig | None:
        """Leader: the target of the change under way, as long as the change may be abandoned."""
        return self.part.catching_up_for if isinstance(self.part, Leader) else None

    @property
    def hard(self) -> HardState:
        return HardState(self.term, self.voted_for)

    def may_serve(self, now: float) -> bool:
        """Leader: it knows all that was ever committed, and no other replica can commit more at this moment (17)."""
        return isinstance(self.part, Leader) and self.part.may_serve(now)

    def has_heard_voters_since(self, moment: float) -> bool:
        """Leader: every voter was heard then or later."""
        return isinstance(self.part, Leader) and self.part.has_heard_voters_since(moment)

    def progress(self) -> list[ReplicaProgress]:
        return self.part.progress() if isinstance(self.part, Leader) else []

    def may_propose(self) -> RaftRefusal | None:
        return self.part.may_propose() if isinstance(self.part, Leader) else RaftRefusal.NOT_LEADER

    # ---- inputs

    def tick(self, now: float) -> list[Effect]:
        """The clock has reached `next_deadline`. An earlier call does nothing."""
        if now < self.next_deadline:
            return []
        self.part.tick(now)
        return self._effects()

    def step(self, now: float, sender: Replica, message: Message) -> list[Effect]:
        """A message to this incarnation of the replica. Raises ProtocolViolation if no correct replica sends it."""
        _STEPS[type(message)](self, now, sender, message)
        return self._effects()

    def appended(self, now: float, size_bytes: int = 0) -> list[Effect]:
        """Leader: the caller has written entries of this term, on its own account or because an effect asked for it."""
        if isinstance(self.part, Leader):
            self.part.appended(now, size_bytes)
        return self._effects()

    def durable(self, now: float) -> list[Effect]:
        """log.flushed_index has grown."""
        self.part.durable(now)
        return self._effects()

    def hard_state_saved(self, now: float, hard: HardState) -> list[Effect]:
        if (hard.term, hard.voted_for is not None) > (self.saved.term, self.saved.voted_for is not None):
            self.saved = hard
        if isinstance(self.part, Follower | Candidate):
            self.part.saved(now)
        return self._effects()

    def prefix_deleted(self, now: float) -> list[Effect]:
        """log.first_index has moved up."""
        self.configs.delete_prefix(self.log.first_index)
        if isinstance(self.part, Leader):
            self.part.replication.prefix_deleted(now)
        return self._effects()

    def campaign(self, now: float) -> list[Effect]:
        """Campaigns without waiting for the deadline, unless a lease forbids it (5)."""
        if not self.honours_lease(now):
            self.campaign_now(now)
        return self._effects()

    def leader_lost(self, now: float) -> None:
        """The connection with the leader's node broke. Perhaps only the connection broke, so the lease holds (5). After
        the lease a follower waits only as long as keeps two of them from campaigning at once."""
        if self.role is not Role.FOLLOWER or self.leader is None or self.next_deadline == NEVER:
            return
        lease_ends = self.heard_at + self.lease_s
        soon = max(now, lease_ends) + self.jitter() * LOST_HEARTBEATS * self.settings.heartbeat_interval_s
        self.next_deadline = min(self.next_deadline, soon)

    def transfer(self, now: float, to: Replica) -> list[Effect]:
        """Leader: transfers the lead to another voter. Raises RaftRefused. Given up after an election timeout."""
        self._leading().hand_over_to(now, to)
        return self._effects()

    def change_config(
        self, now: float, voters: tuple[Replica, ...], learners: tuple[Replica, ...] = ()
    ) -> list[Effect]:
        """Leader: makes exactly these replicas the group. Raises RaftRefused, or ProtocolViolation for a configuration
        that cannot be. The change is done when `config` says so; it is given up when the new replicas make no progress
        (`changing` is false again)."""
        self._leading().change_members(now, GroupConfig(voters, (), learners))
        return self._effects()

    def abandon_change(self, now: float) -> list[Effect]:
        """Leader: stops waiting for new replicas that are not wanted any more. Raises RaftRefused once the change is in
        the log as a joint configuration, which must be completed. Another change may follow when `changing` is
        false."""
        self._leading().abandon_change()
        return self._effects()

    def continue_alone(self, now: float) -> list[Effect]:
        """Continues as the only member, because the others are lost for good (20). Raises RaftRefused."""
        recovery.continue_alone(self, now)
        return self._effects()

    def write_failed(self, now: float) -> list[Effect]:
        """An append could not be carried out, and the log is as before. A leader steps down. A configuration that did
        not get into the log does not hold (14)."""
        if self.role is not Role.FOLLOWER:
            self.follow(now, self.term, None)
        self.configs_truncated(self.log.end_index)
        return self._effects()

    def require_replicas(self, count: int) -> list[Effect]:
        """How many voters must have flushed a write before it is acknowledged, where that is more than a majority."""
        self.required_replicas = count
        if isinstance(self.part, Leader):
            self.part.count_enough()
        return self._effects()

    def entries_refused(self, now: float) -> list[Effect]:
        """Follower: the entries that the leader sent in this term cannot be stored. A reply tells the leader (8)."""
        self.configs_truncated(self.log.end_index)
        if isinstance(self.part, Follower) and self.leader is not None:
            self.part.refuse()
        return self._effects()

    def let_go(self) -> None:
        """No input will follow. This object is freed with the last reference to it."""
        weak = cast(Raft, weakref.proxy(self))
        self.part.core = weak
        if isinstance(self.part, Leader):
            self.part.replication.core = weak

    # ---- heartbeats

    def heartbeat(self) -> Heartbeat:
        """The facts that followers should know now. The same object as before if nothing has changed."""
        heartbeat = self._heartbeat
        term, commit_index, start_offset = self.term, self.commit_index, self.log.start_offset
        if (
            heartbeat.commit_index != commit_index
            or heartbeat.term != term
            or heartbeat.start_offset != start_offset
        ):
            heartbeat = self._heartbeat = Heartbeat(term, commit_index, start_offset)
        return heartbeat

    def step_heartbeat(self, now: float, sender: Replica, heartbeat: Heartbeat) -> list[Effect]:
        """A heartbeat with new facts. `heard` decides whether it counts for the lease."""
        if heartbeat.term >= self.term:
            self.accept_leader(now, sender, heartbeat.term)
            assert isinstance(self.part, Follower)
            self.part.hear_heartbeat(heartbeat.commit_index, heartbeat.start_offset)
        return self._effects()

    def heard(self, now: float, sender: Replica, term: int, lease_s: float) -> bool:
        """A heartbeat, with new facts or without. True: it came from this replica's leader, and the answer is a lease
        (5). False: it came from another replica, or the term is not durable yet; the caller compares the terms to
        know."""
        if (
            term != self.term
            or sender != self.leader
            or self.role is not Role.FOLLOWER
            or self.saved.term != term
        ):
            return False
        self.heard_at = now
        self.lease_s = lease_s
        if self.next_deadline != NEVER:
            # The lease binds this replica's own vote, too. (A call would cost as much as all of this, a thousand times
            # per heartbeat.)
            self.next_deadline = now + (self._timeout if self._timeout > lease_s else lease_s)
        return True

    def plead(self) -> list[Effect]:
        """Follower, with each heartbeat: asks again for entries that the leader does not know to be missing here."""
        if self.part.lost and isinstance(self.part, Follower):
            self.part.answer()
        return self._effects()

    def answered(self, sent_at: float, sender: Replica, term: int) -> None:
        """Leader: `sender` heard the heartbeat of this term that was sent at `sent_at`."""
        if term == self.term and isinstance(self.part, Leader):
            self.part.heartbeat_answered(sent_at, sender)

    def refused(self, now: float, sender: Replica, term: int) -> list[Effect]:
        """Leader: `sender`, which is in this term, did not take a heartbeat."""
        if term > self.term and self.configs.is_member(sender):
            self.follow(now, term, None)
        return self._effects()

    def install_prefix(self, prefix: bytes) -> InstallPrefix:
        """Leader: the message that SendPrefix asks for, with the log's description of its prefix."""
        return self._leading().replication.install_prefix(prefix)

    # ---- roles

    def accept_leader(self, now: float, sender: Replica, term: int) -> None:
        if term > MAX_TERM:
            raise ProtocolViolation(f"term {term}: expected at most {MAX_TERM}")
        if term == self.term and self.role is Role.LEADER:
            raise BrokenPromise(f"{self.me} and {sender} both lead in term {term}")
        if term == self.term and self.leader is not None and self.leader != sender:
            raise BrokenPromise(f"{self.leader} and {sender} both lead in term {term}")
        if term > self.term or self.leader is None:
            self.follow(now, term, sender)
            self.lease_s = self.settings.election_timeout_s
            # A term that came from the log alone was never saved, and no reply is sent before it is.
            self.persist_if_unasked()
        self.heard_at = now
        if self.next_deadline != NEVER:
            self.next_deadline = now + max(self._timeout, self.lease_s)

    def follow(self, now: float, term: int, leader: Replica | None, *, vote: Replica | None = None) -> None:
        """Becomes or stays a follower of this leader (None: not known yet) in this term. A follower's deadline stays: a
        higher term alone, which a candidate with a short log may bring at any moment, must not delay the election of a
        better one."""
        was_follower = self.role is Role.FOLLOWER
        if term > self.term:
            self.term = term
            self.voted_for = vote
            self.persist()
        self.role = Role.FOLLOWER
        self.leader = leader
        self.part = Follower(self)
        if not was_follower:
            self.arm(now)
        self.out.append(RaftRoleChanged(Role.FOLLOWER, self.term, leader))

    def take_role(self, now: float, role: Role, part: Candidate) -> None:
        self.role = role
        self.leader = None
        self.part = part
        self.arm(now)
        self.out.append(RaftRoleChanged(role, self.term, None))

    def lead(self, now: float) -> Leader:
        self.role = Role.LEADER
        self.leader = self.me
        self.part = leader = Leader(self, now)
        self.out.append(RaftRoleChanged(Role.LEADER, self.term, self.me))
        leader.take_up(now)
        return leader

    def campaign_now(self, now: float) -> None:
        if self.may_campaign:
            Candidate(self).ask(now)
        else:
            self.next_deadline = NEVER

    def stand_at_once(self, now: float) -> None:
        """Campaigns without pre-votes and regardless of leases, because the leader asked for it (5)."""
        if self.may_campaign:
            candidate = Candidate(self)
            candidate.transfer = True
            candidate.stand(now)

    def honours_lease(self, now: float) -> bool:
        """Whether it must not help another one to be elected: the leader that it heard may count on that (5)."""
        return self.role is Role.LEADER or now < self.heard_at + self.lease_s

    def arm(self, now: float) -> None:
        """Draws a new timeout and waits for it. Timeouts differ, so that one candidate comes first."""
        self._timeout = self.settings.election_timeout_s * (1 + self.jitter())
        self.next_deadline = now + self._timeout if self.may_campaign else NEVER

    def wake_at(self, deadline: float) -> None:
        if deadline < self.next_deadline:
            self.next_deadline = deadline

    # ---- for the other modules

    @property
    def may_campaign(self) -> bool:
        """Invariant 15."""
        return self.term != MAX_TERM and self.configs.may_campaign(self.me, self.commit_index)

    def _leading(self) -> Leader:
        if not isinstance(self.part, Leader):
            raise RaftRefused(RaftRefusal.NOT_LEADER)
        return self.part

    def persist(self, then: Sequence[Send] = ()) -> None:
        self.asked = self.hard
        self.out.append(PersistHardState(self.asked, list(then)))

    def persist_if_unasked(self) -> None:
        if self.asked != self.hard:
            self.persist()

    def send_when_saved(self, to: Replica, message: Message) -> None:
        """Invariant 1."""
        send = Send(to, message)
        if self.saved == self.hard:
            self.out.append(send)
            return
        for effect in self.out:
            if type(effect) is PersistHardState:
                effect.then.append(send)
                return
        self.persist([send])

    def commit(self, index: int, enough_index: int) -> None:
        self.commit_index = index
        self.enough_index = enough_index
        self.out.append(Committed(index, enough_index))

    def config_appended(self, index: int, config: GroupConfig) -> None:
        self.configs.add(index, config)
        self._config_changed()

    def configs_truncated(self, end_index: int) -> None:
        if self.configs.truncate(end_index):
            self._config_changed()

    def prefix_installed(self, first_index: int, config: GroupConfig) -> None:
        self.configs.reset(first_index, config)
        self._config_changed()

    def _config_changed(self) -> None:
        """A follower may have become a voter, and then waits from when it last heard its leader; or it is no voter any
        more, and waits for nothing."""
        self.out.append(ConfigChanged(self.configs.newest))
        if self.role is Role.FOLLOWER:
            waits_s = max(self._timeout, self.lease_s)
            self.next_deadline = self.heard_at + waits_s if self.may_campaign else NEVER

    def _effects(self) -> list[Effect]:
        out, self.out = self.out, []
        return out


_STEPS: dict[type, Callable[..., None]] = {
    RequestVote: election.on_request_vote,
    VoteReply: election.on_vote_reply,
    Append: follower.on_append,
    AppendReply: leader.on_append_reply,
    InstallPrefix: follower.on_install_prefix,
    TimeoutNow: follower.on_timeout_now,
}
