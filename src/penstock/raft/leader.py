"""A leader counts what its peers have flushed, commits, serves, hands over and steps down.

Invariants 5, 6, 11, 13, 15, 17 and 19."""

from collections import deque
from typing import TYPE_CHECKING

from penstock.errors import ProtocolViolation
from penstock.raft import membership
from penstock.raft.config import GroupConfig, majority_value
from penstock.raft.effects import AppendControl, ControlKind, RaftRefusal, Send
from penstock.raft.errors import RaftRefused
from penstock.raft.messages import AppendReply, TimeoutNow
from penstock.raft.progress import Peer, PeerState, ReplicaProgress
from penstock.raft.replication import Replication
from penstock.types import Replica

if TYPE_CHECKING:
    from penstock.raft.core import Raft

FOREVER = float("inf")


def on_append_reply(core: "Raft", now: float, sender: Replica, reply: AppendReply) -> None:
    """A reply of an earlier term is dropped: it speaks of a log that may have been truncated since (9)."""
    if reply.term > core.term:
        if core.configs.is_member(sender):
            core.follow(now, reply.term, None)
    elif reply.term == core.term and isinstance(core.part, Leader):
        core.part.hear_reply(now, sender, reply)


class Transfer:
    """The leader is handing the lead over to `to`."""

    def __init__(self, to: Replica, deadline: float) -> None:
        self.to = to
        self.deadline = deadline
        self.sent = False


class Leader:
    """The state that a replica has only while it leads."""

    lost = False

    def __init__(self, core: "Raft", now: float) -> None:
        self.core = core
        self.mine = Peer(core.me, core.log.end_index, now)
        self.mine.state = PeerState.REPLICATE
        self.mine.contact_at = self.mine.lease_at = FOREVER
        self.replication = Replication(core)
        self.halves: list[list[Peer]] = []
        self.voting: list[Peer] = []
        """The peers of all halves, each once."""
        self.led_since = now
        self.term_start = core.log.end_index
        """Entries above it are of this term (11)."""
        self.begun = False
        """The caller was asked to write the term's first entry, or has written one."""
        self.uncommitted: deque[tuple[int, int]] = deque()
        self.uncommitted_bytes = 0
        self.transfer: Transfer | None = None
        self.change: membership.Change | None = None
        self.must_go_on = False
        """The newest configuration is not final: when it is committed the next step follows, also under a leader that
        did not begin the change."""
        self.lease_is_void = False
        """A successor was asked to campaign: the followers' leases no longer protect this term (5)."""
        self.take_members(now)

    def take_up(self, now: float) -> None:
        """Begins the term. A replica without peers writes nothing until there is something to write (11)."""
        if self.replication.peers:
            self.begin_term()
        self.count_enough()
        self._maybe_commit(now)
        self._set_deadline(now)

    def begin_term(self) -> None:
        self.begun = True
        self.core.out.append(AppendControl(ControlKind.TERM_START))

    def take_members(self, now: float) -> None:
        """Adds and removes peers as the newest configuration says."""
        config = self._config
        self.replication.take_members(now, [replica for replica in config.members if replica != self.core.me])
        members = self._members()
        self.halves = [[members[voter] for voter in half] for half in config.halves]
        self.voting = [peer for replica, peer in members.items() if config.votes(replica)]
        self.must_go_on = config.joint or self.core.me not in config.voters

    # ---- facts

    @property
    def _config(self) -> GroupConfig:
        config = self.core.config
        assert config is not None, "a leader was elected by a configuration"
        return config

    def _members(self) -> dict[Replica, Peer]:
        return self.replication.peers | {self.core.me: self.mine}

    def lease_at(self, voter: Replica) -> float:
        """When the newest heartbeat of this term that it answered was sent."""
        return self.mine.lease_at if voter == self.core.me else self.replication.peers[voter].lease_at

    @property
    def decides_alone(self) -> bool:
        return len(self.halves) == 1 and self.halves[0] == [self.mine]

    @property
    def term_confirmed(self) -> bool:
        return self.core.commit_index > self.term_start or self.decides_alone

    def has_committed_own_entry(self) -> bool:
        """Invariant 13. A leader that is a majority by itself may have no entry of its term yet: it writes one now."""
        if self.core.commit_index > self.term_start:
            return True
        if not self.begun:
            self.begin_term()
        return False

    def may_serve(self, now: float) -> bool:
        """Invariant 17. A leader that answered without the first condition would show an old high watermark; without
        the second, it could miss what a successor that it does not know of has committed."""
        if not self.term_confirmed or self.lease_is_void:
            return False
        settings = self.core.settings
        heartbeat_at = min([majority_value([peer.lease_at for peer in half]) for half in self.halves])
        lease_s = settings.lease_s * (1 - settings.clock_drift)
        return now < max(heartbeat_at, self.led_since) + lease_s

    def has_heard_voters_since(self, moment: float) -> bool:
        return min([peer.contact_at for peer in self.voting]) >= moment

    def progress(self) -> list[ReplicaProgress]:
        config = self._config
        self.mine.match_index = self.core.log.flushed_index
        self.mine.next_index = self.core.log.end_index
        members = self._members()
        return [
            ReplicaProgress(
                replica=replica,
                match_index=members[replica].match_index,
                next_index=members[replica].next_index,
                state=members[replica].state,
                last_contact=members[replica].contact_at,
                heartbeat_sent_at=members[replica].lease_at,
                learner=not config.votes(replica),
            )
            for replica in config.members
        ]

    @property
    def is_changing(self) -> bool:
        configs = self.core.configs
        return self.change is not None or configs.newest_index > self.core.commit_index or configs.is_joint

    @property
    def catching_up_for(self) -> GroupConfig | None:
        change = self.change
        return change.target if change is not None and change.may_be_abandoned(self._config) else None

    def may_propose(self) -> RaftRefusal | None:
        if self.transfer is not None:
            return RaftRefusal.TRANSFERRING
        if self.uncommitted_bytes > self.core.settings.max_uncommitted_bytes:
            return RaftRefusal.TOO_MUCH_UNCOMMITTED
        return None

    # ---- appends and replies

    def appended(self, now: float, size_bytes: int) -> None:
        self.begun = True
        self.uncommitted.append((self.core.log.end_index, size_bytes))
        self.uncommitted_bytes += size_bytes
        self.replication.feed_all(now)

    def durable(self, now: float) -> None:
        self._maybe_commit(now)

    def hear_reply(self, now: float, sender: Replica, reply: AppendReply) -> None:
        """A reply in the current term."""
        core = self.core
        peer = self.replication.peers.get(sender)
        if peer is None:
            return
        if not reply.match_index <= reply.received_index <= core.log.end_index:
            raise ProtocolViolation(
                f"{sender} has {reply.match_index} of {reply.received_index} of a log of {core.log.end_index}"
            )
        peer.contact_at = max(peer.contact_at, now)
        peer.paused = False
        if reply.refused_index >= 0:
            self.replication.refused(now, peer, reply.refused_index)
            return
        if reply.rejected_index >= 0:
            self.replication.rejected(now, peer, reply)
            return
        if self.replication.accepted(now, peer, reply):
            self._has_flushed_more(now, peer)
        if core.part is self:
            # A commit may have ended this term.
            self.replication.feed(now, peer)

    def _has_flushed_more(self, now: float, peer: Peer) -> None:
        if peer.match_index > self.core.commit_index:
            self._maybe_commit(now)
        elif peer.match_index > self.core.enough_index:
            self.count_enough()
        if self.change is not None and self.core.part is self:
            if self.change.waits_for(self._config, peer.replica):
                self.change.progress_at = now
            membership.drive(self, now)
        if self.transfer is not None:
            self._hand_over(peer)

    def heartbeat_answered(self, sent_at: float, sender: Replica) -> None:
        peer = self.replication.peers.get(sender)
        if peer is None:
            return
        if sent_at > peer.lease_at:
            peer.lease_at = sent_at
        if sent_at > peer.contact_at:
            peer.contact_at = sent_at
        if peer.paused or (self.change is not None and self.change.ready_at < sent_at):
            self.core.wake_at(sent_at)

    def _maybe_commit(self, now: float) -> None:
        """Invariant 11."""
        core = self.core
        self.mine.match_index = core.log.flushed_index
        index = min([majority_value([peer.match_index for peer in half]) for half in self.halves])
        if index <= core.commit_index or (index <= self.term_start and not self.decides_alone):
            if core.enough_index != core.commit_index:
                self.count_enough()
            return
        core.commit(index, self._enough_of(index))
        uncommitted = self.uncommitted
        while uncommitted and uncommitted[0][0] <= index:
            self.uncommitted_bytes -= uncommitted.popleft()[1]
        if core.settings.eager_commit:
            self.replication.tell_commit()
        if self.change is not None or self.must_go_on:
            membership.drive(self, now)

    def count_enough(self) -> None:
        """Reports the index up to which enough voters have flushed, if it has changed."""
        core = self.core
        enough = self._enough_of(core.commit_index)
        if enough != core.enough_index:
            core.commit(core.commit_index, enough)

    def _enough_of(self, commit_index: int) -> int:
        """Invariant 18. Without peers, this replica alone counts. A majority suffices where it is enough, but entries
        that an earlier and smaller configuration committed may have fewer copies, until this one is committed too."""
        required = self.core.required_replicas
        if required <= 1 or not self.replication.peers:
            return commit_index
        if required <= len(self.halves[0]) // 2 + 1 and self.core.configs.newest_index <= commit_index:
            return commit_index
        if required > len(self.voting):
            return 0
        self.mine.match_index = self.core.log.flushed_index
        return min(commit_index, sorted([peer.match_index for peer in self.voting])[-required])

    # ---- time

    def tick(self, now: float) -> None:
        core = self.core
        if self._quorum_contact() + core.settings.election_timeout_s <= now:
            core.follow(now, core.term, None)
            return
        if self.transfer is not None and now >= self.transfer.deadline and self._give_up_transfer(now):
            return
        if self.change is not None:
            self._mind_change(now, self.change)
        self.replication.retry_stuck(now)
        self._set_deadline(now)

    def _quorum_contact(self) -> float:
        return min(majority_value([peer.contact_at for peer in half]) for half in self.halves)

    def _mind_change(self, now: float, change: membership.Change) -> None:
        """Takes the next step if answers to heartbeats allow it (19), and gives up a change whose new members make no
        progress. A step that is in the log is waited for."""
        configs, commit_index = self.core.configs, self.core.commit_index
        if change.ready_at <= now and configs.newest_index <= commit_index:
            membership.drive(self, now)
        if now < change.progress_at + self.core.settings.catch_up_timeout_s:
            return
        if configs.newest_index <= commit_index:
            self.change = None
        else:
            change.progress_at = now

    def _set_deadline(self, now: float) -> None:
        settings = self.core.settings
        deadline = min(self._quorum_contact() + settings.election_timeout_s, self.replication.deadline())
        if self.transfer is not None:
            deadline = min(deadline, self.transfer.deadline)
        if self.change is not None:
            deadline = min(deadline, max(now, self.change.progress_at + settings.catch_up_timeout_s))
        self.core.next_deadline = deadline

    # ---- handing over

    def hand_over_to(self, now: float, to: Replica) -> None:
        core = self.core
        if to not in self._config.voters:
            raise RaftRefused(RaftRefusal.NOT_A_VOTER)
        if self.transfer is not None:
            raise RaftRefused(RaftRefusal.TRANSFERRING)
        if to == core.me:
            return
        self.transfer = Transfer(to, now + core.settings.election_timeout_s)
        core.wake_at(self.transfer.deadline)
        self._hand_over(self.replication.peers[to])

    def _hand_over(self, peer: Peer) -> None:
        transfer = self.transfer
        if transfer is None or peer.replica != transfer.to or transfer.sent:
            return
        if peer.match_index == self.core.log.end_index:
            transfer.sent = self.lease_is_void = True
            self.core.out.append(Send(peer.replica, TimeoutNow(self.core.term)))

    def _give_up_transfer(self, now: float) -> bool:
        """A successor that was asked to campaign does so whenever the message reaches it, and leases would not stop it.
        So this term cannot have a lease any more, and the leader campaigns for another term."""
        assert self.transfer is not None
        sent = self.transfer.sent
        self.transfer = None
        if sent and self.core.may_campaign:
            self.core.stand_at_once(now)
            return True
        return False

    def leave(self, now: float) -> None:
        """This leader is no voter any more, by a committed configuration: it asks the best voter to lead (15)."""
        core = self.core
        voters = [self.replication.peers[voter] for voter in core.configs.voters()]
        for peer in voters:
            self.replication.tell(peer, peer.match_index)
        best = max(voters, key=lambda peer: peer.match_index)
        core.out.append(Send(best.replica, TimeoutNow(core.term)))
        core.follow(now, core.term, None)

    # ---- members

    def change_members(self, now: float, target: GroupConfig) -> None:
        core = self.core
        config = self._config
        if self.transfer is not None:
            raise RaftRefused(RaftRefusal.TRANSFERRING)
        if not self.term_confirmed:
            raise RaftRefused(RaftRefusal.TERM_NOT_CONFIRMED)
        if self.change is not None or config.joint or core.configs.newest_index > core.commit_index:
            raise RaftRefused(RaftRefusal.CHANGE_UNDER_WAY)
        membership.check_steps(config, target)
        if target == config:
            return
        self.change = membership.Change(target, now)
        core.wake_at(now + core.settings.catch_up_timeout_s)
        membership.drive(self, now)

    def abandon_change(self) -> None:
        """Learners that are in the log stay there, without a vote, until the next change removes or promotes them."""
        if not self.is_changing:
            return
        if self.change is None or not self.change.may_be_abandoned(self._config):
            raise RaftRefused(RaftRefusal.CHANGE_UNDER_WAY)
        self.change = None
