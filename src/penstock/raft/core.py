"""Raft for one partition, without I/O: what must hold, and the object that holds it.

A replica is fed with inputs (a message, a clock that reached its deadline, a flush that returned) and answers each
with effects, which its caller carries out at once, in order and before the next input. The core keeps no entries. It
looks at the log, which shows a write as soon as it is made and tells separately what has been flushed.

Words
  index     a place between entries; always an exclusive end. "Committed up to 7": the units 0 to 6 are.
  boundary  an index that no entry spans. An entry is a batch, as wide as its offsets, or a control entry, one wide.
  matched   a follower has found its log equal to its leader's up to there, in this term.
  flushed   on the disk. Only what is flushed counts for anything.
  lease     time in which a leader can be sure that nobody else leads.

Invariants. Code and tests cite the numbers.

Terms and votes
   1  Term and vote are durable before anybody hears of them: requests for votes, votes and answers to appends wait for
      the disk, and a candidate counts its own vote when it is durable.
   2  A term never goes back, and a replica votes at most once in it. So no term has two leaders.
   3  A vote goes only to a log that is at least as far: a later last term, or the same and no shorter. So a leader has
      all that was ever committed.
   4  A term is only raised by who was promised a majority in it beforehand (pre-vote). So a replica that was cut off
      or removed does not disturb the others when it comes back.
   5  Who has heard its leader within an election timeout helps nobody to another one, by pre-vote or vote; neither
      does a leader, nor who has just started, because it may have heard one before. So an answer to a beat is a lease,
      from when that beat was *sent*, for the election timeout less the clocks' drift. The exception is the successor
      that a leader sends ahead itself; with that its lease ends.
   6  A leader that has not heard from a majority for an election timeout is none.
Replication
   7  Entries are taken only behind an (index, term) that the log has too. So logs that agree there agree below.
   8  What is here is skipped, and the log is cut only at the first entry that contradicts it, never below the commit:
      that would be a bug, or a disk that lost what it flushed, and halts the group (BrokenPromise). Whatever is lost
      on the way is asked for again: a peer that is behind and does not get on is asked what it has.
   9  An answer says min(flushed, matched with this leader in this term), and is only sent when the term is durable. It
      stays true whenever it arrives: in its term, a follower never cuts what it matched.
  10  What a call asks of the log is not there until the next call. Nothing is answered or committed on the strength of
      it; the flushed index may still speak of bytes that this very call cuts.
Commit
  11  Committed is what a majority of each half of the configuration has flushed, if it ends in the leader's own term.
      What came before is committed with it. The term's first entry is written at once, for this purpose. Where one
      replica alone is the majority, all that it has flushed is committed: nobody can be elected without it.
  12  A follower commits min(leader's commit, matched, what the log shows).
Members
  13  One change at a time, and none before the leader has committed an entry of its own term.
  14  A configuration holds from when it is in the log, and no longer if it is truncated.
  15  Who does not know its group does not campaign, nor vote unless it has entries of it: a founder that was away when
      its group first changed knows the founding configuration no more, but its log still counts. Who is no voter of its
      group never campaigns; but as long as a configuration may not be committed, the voters of the one before it do:
      its entry may be on no other log. A leader that is no voter by a committed configuration leads no more. A replica
      is a node *and* its incarnation: what a node said before it lost its data speaks for nobody.
Prefix
  16  What is deleted was committed. Who needs it begins anew behind it, if its log does not hold that place already.
Serving
  17  A leader answers readers only while it knows everything that any replica has committed (`may_serve`): an entry of
      its own term is committed, so all that was committed before its term is too; it has not sent a successor ahead;
      and no other replica can lead, because a majority has heard from it less than an election timeout ago, less the
      clocks' drift (5). Two moments count as heard, whichever is later: the sending of the newest beat that a majority
      has answered, and the beginning of the term, since a majority has taken the term's first entry after it.
  18  A group may require more flushed copies than a majority (`require_replicas`) before a write is acknowledged. So a
      leader tells two indexes: what is committed, which readers may see because no failure of a minority can undo it,
      and `enough_index` at or below it, which so many voters have flushed.

A leader alone (one voter, nobody learning) needs no beats, no deadlines and no entry of its own until it has one to
write.
"""

from collections.abc import Callable, Sequence

from penstock.errors import ProtocolViolation
from penstock.raft.config import ConfigHistory, GroupConfig
from penstock.raft.effects import (
    Committed,
    ConfigChanged,
    Effect,
    HardState,
    Persist,
    Refusal,
    Role,
    RoleChanged,
    Send,
)
from penstock.raft.election import Candidate, consider
from penstock.raft.entries import Entries
from penstock.raft.errors import BrokenPromise, Refused
from penstock.raft.follower import Follower
from penstock.raft.leader import Leader
from penstock.raft.messages import (
    Append,
    AppendReply,
    Beat,
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
LOST_BEATS = 3
"""Beat intervals within which followers of a lost leader stand, each at its own moment: a vote takes a flush or two."""


class Raft:
    """One replica of one group. What follows without an underscore below the inputs is for the rest of this room."""

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
        """`config` is the founding one, or that of an installed prefix; `history` those in the log, each with the end
        index of its entry. `jitter` draws from [0, 1)."""
        self.me = me
        self.log = log
        self.settings = settings
        self.jitter = jitter
        self.term = max(hard.term, log.last_term)
        """The log may be ahead: entries are flushed apart from votes. Whoever wrote them had that term."""
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
        self.next_deadline = NEVER
        self._timeout = 0.0
        self._beat = Beat(NO_TERM, 0, 0)
        self.arm(now)
        self._hurry(now)

    def _hurry(self, now: float) -> None:
        """A founding need not wait: there was no leader whose lease might last."""
        config = self.config
        if not self.may_campaign or config is None or self.configs.newest_index > 0:
            return
        if config.is_quorum([self.me]) or (self.term == NO_TERM and config.voters[0] == self.me):
            self.next_deadline = now

    # ---- facts

    @property
    def config(self) -> GroupConfig | None:
        return self.configs.newest

    def config_at(self, index: int) -> GroupConfig | None:
        """What held at this place of the log. Whoever deletes the log below it must keep this, durably and first, to
        give it back as `config`: the entry that brought it goes with the rest."""
        return self.configs.at(index)

    @property
    def term_confirmed(self) -> bool:
        """Leader: commit_index is the group's, not merely what this replica had heard of."""
        return isinstance(self.part, Leader) and self.part.term_confirmed

    @property
    def changing(self) -> bool:
        """Leader: a change of members is under way."""
        if not isinstance(self.part, Leader):
            return False
        return self.part.change is not None or self.configs.newest_index > self.commit_index or self.is_joint

    @property
    def catching_up_for(self) -> GroupConfig | None:
        """Leader: where the change under way leads, as long as it may be abandoned."""
        change = self.part.change if isinstance(self.part, Leader) else None
        config = self.config
        if change is None or config is None or not change.may_be_abandoned(config):
            return None
        return change.target

    @property
    def hard(self) -> HardState:
        return HardState(self.term, self.voted_for)

    def may_serve(self, now: float) -> bool:
        """Leader: it knows all that was ever committed, and no other replica can commit more at this moment (17)."""
        return isinstance(self.part, Leader) and self.part.may_serve(now)

    def progress(self) -> list[ReplicaProgress]:
        return self.part.progress() if isinstance(self.part, Leader) else []

    def may_propose(self) -> Refusal | None:
        return self.part.may_propose() if isinstance(self.part, Leader) else Refusal.NOT_LEADER

    # ---- inputs

    def tick(self, now: float) -> list[Effect]:
        """The clock has reached `next_deadline`. Earlier calls do nothing."""
        if now < self.next_deadline:
            return []
        self.part.tick(now)
        return self._effects()

    def step(self, now: float, sender: Replica, message: Message) -> list[Effect]:
        """A message that `sender`, in this very incarnation, sent to this one. Raises ProtocolViolation, with nothing
        changed, for one that cannot be."""
        _STEPS[type(message)](self, now, sender, message)
        return self._effects()

    def appended(self, now: float, size_bytes: int = 0) -> list[Effect]:
        """Leader: the caller has written entries of this term, because it wanted to or because an effect said so."""
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
        """Stand for election without waiting for the deadline, unless a lease forbids it (5)."""
        if self.role is not Role.LEADER and now >= self.heard_at + self.settings.election_timeout_s:
            self.campaign_now(now)
        return self._effects()

    def leader_lost(self, now: float) -> None:
        """The connection with the leader's node broke. It may be the connection only, so the lease holds (5); but what
        comes after it need not be waited for: only as long as keeps two followers from standing at once."""
        if self.role is not Role.FOLLOWER or self.leader is None or self.next_deadline == NEVER:
            return
        lease_ends = self.heard_at + self.settings.election_timeout_s
        soon = max(now, lease_ends) + self.jitter() * LOST_BEATS * self.settings.beat_interval_s
        self.next_deadline = min(self.next_deadline, soon)

    def transfer(self, now: float, to: Replica) -> list[Effect]:
        """Leader: hand the lead to another voter. Raises Refused. Given up after an election timeout."""
        self._leading().hand_over_to(now, to)
        return self._effects()

    def change_config(
        self, now: float, voters: tuple[Replica, ...], learners: tuple[Replica, ...] = ()
    ) -> list[Effect]:
        """Leader: make these, and nobody else, the group. Raises Refused, or ProtocolViolation for an impossible one.
        Done when `config` says so; given up when the newcomers do not get on (`changing` is false again)."""
        self._leading().change_members(now, GroupConfig(voters, (), learners))
        return self._effects()

    def abandon_change(self, now: float) -> list[Effect]:
        """Leader: wait no longer for newcomers that nobody wants any more. Raises Refused once the change is in the log
        as a joint configuration, which must be left by its end. Another change may follow when `changing` is false."""
        self._leading().abandon_change()
        return self._effects()

    def resign(self, now: float) -> list[Effect]:
        """Lead no more, for instance because the log refuses to be written."""
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
        """Follower: what the leader sent, in this term, is nothing that a log may hold. It is told so (8)."""
        if isinstance(self.part, Follower) and self.leader is not None:
            self.part.refuse()
        return self._effects()

    # ---- beats

    def beat(self) -> Beat:
        """What the followers should know at this moment."""
        beat = self._beat
        term, commit_index, start_offset = self.term, self.commit_index, self.log.start_offset
        if beat.commit_index != commit_index or beat.term != term or beat.start_offset != start_offset:
            beat = self._beat = Beat(term, commit_index, start_offset)
        return beat

    def step_beat(self, now: float, sender: Replica, beat: Beat) -> list[Effect]:
        """A beat that says something new. Whether it counts as heard is for `heard` to say."""
        if beat.term >= self.term:
            self._accept_leader(now, sender, beat.term)
            assert isinstance(self.part, Follower)
            self.part.hear_beat(beat.commit_index, beat.start_offset)
        return self._effects()

    def heard(self, now: float, sender: Replica, term: int) -> bool:
        """A beat, new or not. True: it is this replica's leader's, and the answer is a lease (5). False: it is not, or
        the term is not durable yet; `term` tells which."""
        if (
            term != self.term
            or sender != self.leader
            or self.role is not Role.FOLLOWER
            or self.saved.term != term
        ):
            return False
        self.heard_at = now
        if self.next_deadline != NEVER:
            self.next_deadline = now + self._timeout
        return True

    def plead(self) -> list[Effect]:
        """Follower, with each beat: ask again for what the leader does not know to be missing."""
        if self.part.lost and isinstance(self.part, Follower):
            self.part.answer()
        return self._effects()

    def answered(self, sent_at: float, sender: Replica, term: int) -> None:
        """Leader: a beat of this term, sent then, was heard."""
        if term == self.term and isinstance(self.part, Leader):
            self.part.beat_answered(sent_at, sender)

    def refused(self, now: float, sender: Replica, term: int) -> list[Effect]:
        """Leader: a beat was not heard by a replica whose term is this."""
        if term > self.term and self._is_member(sender):
            self._adopt(now, term)
        return self._effects()

    def install_prefix(self, prefix: bytes) -> InstallPrefix:
        """Leader: the message that SendPrefix asks for, around what the log says of its prefix."""
        return self._leading().replication.install_prefix(prefix)

    # ---- messages

    def _on_request_vote(self, now: float, sender: Replica, message: RequestVote) -> None:
        consider(self, now, sender, message)

    def _on_vote_reply(self, now: float, sender: Replica, message: VoteReply) -> None:
        if not self._is_member(sender):
            return
        if message.term > self.term and not (message.granted and message.pre):
            self._adopt(now, message.term)
        elif isinstance(self.part, Candidate):
            self.part.hear_reply(now, sender, message)

    def _on_append(self, now: float, sender: Replica, message: Append) -> None:
        if message.term < self.term:
            self._tell_term(sender)
            return
        entries = Entries(message)
        self._accept_leader(now, sender, message.term)
        assert isinstance(self.part, Follower)
        self.part.take(now, message, entries)

    def _on_append_reply(self, now: float, sender: Replica, message: AppendReply) -> None:
        if message.term > self.term:
            if self._is_member(sender):
                self._adopt(now, message.term)
        elif message.term == self.term and isinstance(self.part, Leader):
            self.part.hear_reply(now, sender, message)

    def _on_install_prefix(self, now: float, sender: Replica, message: InstallPrefix) -> None:
        if message.term < self.term:
            self._tell_term(sender)
            return
        self._accept_leader(now, sender, message.term)
        assert isinstance(self.part, Follower)
        self.part.install(message)

    def _on_timeout_now(self, now: float, sender: Replica, message: TimeoutNow) -> None:
        if message.term == self.term and sender == self.leader and self.role is Role.FOLLOWER:
            self.stand_at_once(now)

    def _tell_term(self, sender: Replica) -> None:
        """To a leader of an earlier term, which will step down at this."""
        self.send_when_saved(sender, AppendReply(self.term, 0, 0))

    # ---- roles

    def _accept_leader(self, now: float, sender: Replica, term: int) -> None:
        if term > MAX_TERM:
            raise ProtocolViolation(f"term {term}: expected at most {MAX_TERM}")
        if term == self.term and self.role is Role.LEADER:
            raise BrokenPromise(f"{self.me} and {sender} both lead in term {term}")
        if term == self.term and self.leader is not None and self.leader != sender:
            raise BrokenPromise(f"{self.leader} and {sender} both lead in term {term}")
        if term > self.term or self.leader is None:
            self.follow(now, term, sender)
            # A term that came from the log alone was never asked to be saved, and without that nothing is answered.
            self.persist_if_unasked()
        self.heard_at = now
        if self.next_deadline != NEVER:
            self.next_deadline = now + self._timeout

    def _adopt(self, now: float, term: int) -> None:
        """Somebody is in a later term; who leads in it is not known."""
        self.follow(now, term, None)

    def follow(self, now: float, term: int, leader: Replica | None, *, vote: Replica | None = None) -> None:
        """Becomes or stays a follower, of this leader in this term. A follower's deadline stays: a higher term alone,
        which a hopeless candidate may bring every moment, must not put off the election of a better one."""
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
        self.out.append(RoleChanged(Role.FOLLOWER, self.term, leader))

    def take_role(self, now: float, role: Role, part: Candidate) -> None:
        self.role = role
        self.leader = None
        self.part = part
        self.arm(now)
        self.out.append(RoleChanged(role, self.term, None))

    def lead(self, now: float) -> None:
        self.role = Role.LEADER
        self.leader = self.me
        self.part = leader = Leader(self, now)
        self.out.append(RoleChanged(Role.LEADER, self.term, self.me))
        leader.take_up(now)

    def campaign_now(self, now: float) -> None:
        if self.may_campaign:
            Candidate(self).ask(now)
        else:
            self.next_deadline = NEVER

    def stand_at_once(self, now: float) -> None:
        """Without asking beforehand, and past all leases: the leader wants it so (5)."""
        if self.may_campaign:
            candidate = Candidate(self)
            candidate.transfer = True
            candidate.stand(now)

    def honours_lease(self, now: float) -> bool:
        """Invariant 5."""
        return self.role is Role.LEADER or now < self.heard_at + self.settings.election_timeout_s

    def arm(self, now: float) -> None:
        """Draws a new timeout and waits for it. Timeouts differ so that one candidate comes first."""
        self._timeout = self.settings.election_timeout_s * (1 + self.jitter())
        self.next_deadline = now + self._timeout if self.may_campaign else NEVER

    def wake_at(self, deadline: float) -> None:
        if deadline < self.next_deadline:
            self.next_deadline = deadline

    # ---- for the rest of the room

    @property
    def known_leader(self) -> Replica:
        assert self.leader is not None
        return self.leader

    @property
    def may_campaign(self) -> bool:
        """Invariant 15."""
        config = self.configs.newest
        if config is None or self.term == MAX_TERM:
            return False
        if config.votes(self.me):
            return True
        previous = self.configs.previous
        return (
            self.configs.newest_index > self.commit_index and previous is not None and previous.votes(self.me)
        )

    @property
    def is_joint(self) -> bool:
        config = self.configs.newest
        return config is not None and config.joint

    def voters(self) -> list[Replica]:
        """Of both halves, each once."""
        config = self.configs.newest
        return [] if config is None else list(dict.fromkeys(config.voters + config.outgoing))

    def is_quorum(self, replicas: list[Replica]) -> bool:
        config = self.configs.newest
        return config is not None and config.is_quorum(replicas)

    def _is_member(self, replica: Replica) -> bool:
        config = self.configs.newest
        return config is not None and replica in config.members

    def _leading(self) -> Leader:
        if not isinstance(self.part, Leader):
            raise Refused(Refusal.NOT_LEADER)
        return self.part

    def persist(self, then: Sequence[Send] = ()) -> None:
        self.asked = self.hard
        self.out.append(Persist(self.asked, list(then)))

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
            if type(effect) is Persist:
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
        """A follower may have become a voter, whose deadline runs from when it last heard its leader, or ceased to
        be."""
        self.out.append(ConfigChanged(self.configs.newest))
        if self.role is Role.FOLLOWER:
            self.next_deadline = self.heard_at + self._timeout if self.may_campaign else NEVER

    def _effects(self) -> list[Effect]:
        out = self.out
        if out:
            self.out = []
            return out
        return []


_STEPS: dict[type, Callable[..., None]] = {
    RequestVote: Raft._on_request_vote,
    VoteReply: Raft._on_vote_reply,
    Append: Raft._on_append,
    AppendReply: Raft._on_append_reply,
    InstallPrefix: Raft._on_install_prefix,
    TimeoutNow: Raft._on_timeout_now,
}
