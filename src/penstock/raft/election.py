"""Elections: which candidate gets a vote, and the campaign of a candidate (invariants 1 to 5).

    follower --a timeout--> pre-candidate --a majority would vote--> candidate --a majority voted--> leader
                                 ^                                       |
                                 +------------another timeout------------+

A higher term, or a leader's message in this one, makes any of them a follower.
"""

from typing import TYPE_CHECKING

from penstock.raft.effects import HardState, Role, Send
from penstock.raft.messages import RequestVote, VoteReply
from penstock.types import NO_TERM, Replica

if TYPE_CHECKING:
    from penstock.raft.core import Raft


def on_request_vote(core: "Raft", now: float, sender: Replica, request: RequestVote) -> None:
    """Answers a candidate. Sends no answer where a lease forbids it: the leader counts on that. Nor does a replica that
    knows nothing of the group: it could elect a log that lacks committed entries (5, 15)."""
    is_blank = core.config is None and core.log.last_term == NO_TERM
    if is_blank or (not request.transfer and core.honours_lease(now)):
        return
    if request.pre:
        _consider_pre_vote(core, sender, request)
        return
    fits = _is_up_to_date(core, request)
    if request.term > core.term:
        core.follow(now, request.term, None, vote=sender if fits else None)
        granted = fits
    else:
        granted = request.term == core.term and fits and core.voted_for in (None, sender)
        if granted and core.voted_for is None:
            core.voted_for = sender
            core.persist()
    reply = VoteReply(core.term, granted, False)
    if granted:
        core.send_when_saved(sender, reply)
        core.arm(now)
    else:
        core.out.append(Send(sender, reply))


def on_vote_reply(core: "Raft", now: float, sender: Replica, reply: VoteReply) -> None:
    if not core.configs.is_member(sender):
        return
    if reply.term > core.term and not (reply.granted and reply.pre):
        core.follow(now, reply.term, None)
    elif isinstance(core.part, Candidate):
        core.part.hear_reply(now, sender, reply)


def _consider_pre_vote(core: "Raft", sender: Replica, request: RequestVote) -> None:
    """A pre-vote is not a promise: nothing is written, and any number of candidates may get one (4)."""
    granted = request.term > core.term and _is_up_to_date(core, request)
    core.out.append(Send(sender, VoteReply(request.term if granted else core.term, granted, True)))


def _is_up_to_date(core: "Raft", request: RequestVote) -> bool:
    """Invariant 3."""
    return (request.last_term, request.end_index) >= (core.log.last_term, core.log.end_index)


class Candidate:
    """A campaign: first for pre-votes, then for votes."""

    lost = False

    def __init__(self, core: "Raft") -> None:
        self.core = core
        self.granted: list[Replica] = []
        self.transfer = False

    def ask(self, now: float) -> None:
        """Asks for pre-votes. The term stays as it is until a majority has granted them (4)."""
        core = self.core
        self.granted = [core.me]
        core.take_role(now, Role.PRE_CANDIDATE, self)
        if core.term == NO_TERM:
            # A new group: the others may not have opened it yet, and clients wait. There is no leader to disturb.
            core.next_deadline = now + core.settings.heartbeat_interval_s * (1 + core.jitter())
        if core.configs.is_quorum(self.granted):
            self.stand(now)
        else:
            core.out.extend(self._requests(core.term + 1, pre=True))

    def stand(self, now: float) -> None:
        """Begins a new term with a vote for this replica, which counts when it is durable, as the others' do (1)."""
        core = self.core
        core.term += 1
        core.voted_for = core.me
        self.granted = []
        core.take_role(now, Role.CANDIDATE, self)
        core.persist(self._requests(core.term, pre=False))

    def _requests(self, term: int, *, pre: bool) -> list[Send]:
        core = self.core
        request = RequestVote(term, core.log.end_index, core.log.last_term, pre, self.transfer)
        return [Send(voter, request) for voter in core.configs.voters() if voter != core.me]

    def hear_reply(self, now: float, sender: Replica, reply: VoteReply) -> None:
        core = self.core
        pre = core.role is Role.PRE_CANDIDATE
        if (
            not reply.granted
            or reply.pre is not pre
            or reply.term != core.term + pre
            or sender in self.granted
        ):
            return
        self._count(now, sender)

    def saved(self, now: float) -> None:
        core = self.core
        if core.role is Role.CANDIDATE and core.me not in self.granted and self._own_vote_is_durable():
            self._count(now, core.me)

    def _count(self, now: float, voter: Replica) -> None:
        core = self.core
        self.granted.append(voter)
        if not core.configs.is_quorum(self.granted):
            return
        if core.role is Role.PRE_CANDIDATE:
            self.stand(now)
        elif core.me in self.granted:
            # In Raft a majority of others suffices. Here entries of a term must not be on the disk before the term.
            core.lead(now)

    def _own_vote_is_durable(self) -> bool:
        return self.core.saved == HardState(self.core.term, self.core.me)

    def tick(self, now: float) -> None:
        core = self.core
        if core.role is Role.CANDIDATE and not self._own_vote_is_durable():
            # With a disk slower than the election timeout, each campaign would begin a new term and none would be won.
            core.arm(now)
        else:
            self.transfer = False
            self.ask(now)

    def durable(self, now: float) -> None:
        pass
