"""Recovery of a group that has lost its majority for good: one replica continues as the only member (invariant 20).

This is unsafe by nature, so only a person may ask for it:

- Entries that were committed by the lost replicas and never reached this one are lost.
- Entries that this replica has and no majority ever had are committed now.
- A lost replica that returns with its old log and votes may form a majority with another one and lead beside this one.
  It must return with an empty folder.

The configuration that makes this replica the only member is written at the start of a new term. From then on the group
is like any other: the next configurations follow by changes of members, and this log outranks the lost ones.

The new term is far above the last one: the lost replicas may have had terms that this one never heard of. Kafka's
clients ignore a leader whose epoch is lower than one that they have seen.
"""

from typing import TYPE_CHECKING

from penstock.raft.config import GroupConfig, encode
from penstock.raft.effects import AppendControl, ControlKind, RaftRefusal, Role
from penstock.raft.election import Candidate
from penstock.raft.errors import RaftRefused
from penstock.raft.messages import VoteReply
from penstock.raft.settings import MAX_TERM
from penstock.types import NO_TERM, Replica

if TYPE_CHECKING:
    from penstock.raft.core import Raft

TERMS_SKIPPED = 1000
"""More elections than a group without this replica is likely to have held."""


def continue_alone(core: "Raft", now: float) -> None:
    """Raises RaftRefused for a leader, for a replica that has heard its leader within an election timeout, and for one
    that knows nothing of the group."""
    has_leader = core.leader is not None and now < core.heard_at + core.settings.election_timeout_s
    if core.role is Role.LEADER or has_leader:
        raise RaftRefused(RaftRefusal.HAS_LEADER)
    if core.config is None or core.log.last_term == NO_TERM:
        raise RaftRefused(RaftRefusal.KNOWS_NOTHING)
    SoleCandidate(core).stand(now)


class SoleCandidate(Candidate):
    """A campaign in which no other replica has a vote. The term must still be durable before its first entry (1)."""

    def stand(self, now: float) -> None:
        core = self.core
        core.term = min(core.term + TERMS_SKIPPED, MAX_TERM - 1)
        core.voted_for = core.me
        core.take_role(now, Role.CANDIDATE, self)
        core.persist()

    def hear_reply(self, now: float, sender: Replica, reply: VoteReply) -> None:
        pass

    def saved(self, now: float) -> None:
        if not self._own_vote_is_durable():
            return
        core = self.core
        alone = GroupConfig((core.me,))
        core.config_appended(core.log.end_index + 2, alone)
        core.lead(now).begin_term()
        core.out.append(AppendControl(ControlKind.CONFIG, encode(alone)))
