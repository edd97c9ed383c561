"""A change of the group's members: one operation of several entries (invariants 13 to 15 and 19).

    1. newcomers become learners and receive entries until they have caught up, so that no majority waits for a copy;
       then the voters to come must show that they are there
    2. the joint configuration: every decision needs a majority of the old and of the new voters
    3. the new configuration

Each step is an entry, written when the one before it is committed. The target of step 1 is only in the leader's memory:
another leader leaves the newcomers as learners, and the caller asks for the change again. For the same reason step 1
may be abandoned: the voters are still the old ones, so the leader only forgets the target, and the next change removes
the learners or goes on with them. From step 2 on every leader completes the change from the log alone: a leader that
forgot a joint configuration would leave a group that needs two majorities for ever.
"""

from typing import TYPE_CHECKING

from penstock.raft.config import GroupConfig, encode
from penstock.raft.effects import AppendControl, ControlKind
from penstock.types import Replica

if TYPE_CHECKING:
    from penstock.raft.leader import Leader


NOT_READY = float("inf")


class Change:
    """The target of a change, and how far the newcomers are."""

    def __init__(self, target: GroupConfig, now: float) -> None:
        self.target = target
        self.progress_at = now
        """When a newcomer that the change waits for last made progress. The old voters do not count: they flush with
        every write."""
        self.rounds: dict[Replica, tuple[int, float]] = {}
        """Newcomer -> (end of the log when its round began, when that was). A round that lasts no longer than an
        election timeout leaves so little that the group cannot stall on the rest (Ongaro's thesis, 4.2.1)."""
        self.caught_up: list[Replica] = []
        self.ready_at = NOT_READY
        """When the last newcomer had caught up. The voters to come must answer a heartbeat that was sent later (19)."""

    def newcomers(self, config: GroupConfig) -> tuple[Replica, ...]:
        return tuple(voter for voter in self.target.voters if not config.votes(voter))

    def waits_for(self, config: GroupConfig, replica: Replica) -> bool:
        return replica in self.newcomers(config) and replica not in self.caught_up

    def may_be_abandoned(self, config: GroupConfig) -> bool:
        """Step 1: the voters are still those of before, and no joint configuration is in the log."""
        return not config.joint and sorted(config.voters) != sorted(self.target.voters)


def first_step(config: GroupConfig, target: GroupConfig) -> GroupConfig:
    """The configuration in which the new voters learn. It drops learners that are earlier incarnations of their
    nodes."""
    missing = tuple(
        voter for voter in target.voters if not config.votes(voter) and voter not in config.learners
    )
    nodes = [replica.node for replica in missing]
    stay = tuple(learner for learner in config.learners if learner.node not in nodes)
    return GroupConfig(config.voters, (), stay + missing)


def check_steps(config: GroupConfig, target: GroupConfig) -> None:
    """Raises ProtocolViolation if a configuration on the way would be too large or name a node twice."""
    target.validate()
    first_step(config, target).validate()


def drive(leader: "Leader", now: float) -> None:
    """Takes the next step, if the last one is committed."""
    core = leader.core
    config = core.config
    assert config is not None
    if core.configs.newest_index > core.commit_index or not leader.has_committed_own_entry():
        return
    if config.joint:
        propose(leader, now, GroupConfig(config.voters, (), config.learners))
    elif core.me not in config.voters:
        leader.leave(now)
    elif leader.change is not None:
        _next_step(leader, leader.change, config, now)


def _next_step(leader: "Leader", change: Change, config: GroupConfig, now: float) -> None:
    target = change.target
    if config == target:
        leader.change = None
        return
    learning = first_step(config, target)
    newcomers = change.newcomers(config)
    if learning != config and newcomers:
        propose(leader, now, learning)
    elif not all(_has_caught_up(leader, change, newcomer, now) for newcomer in newcomers):
        return
    elif sorted(config.voters) == sorted(target.voters):
        propose(leader, now, target)
    elif _have_answered(leader, change, newcomers, now):
        propose(leader, now, GroupConfig(target.voters, config.voters, target.learners))


def _have_answered(leader: "Leader", change: Change, newcomers: tuple[Replica, ...], now: float) -> bool:
    """Invariant 19. A disk may have died a moment ago, and only an answer to a heartbeat that was sent since then
    tells: a joint configuration whose new half has lost its majority would leave the group without a leader for
    ever."""
    change.ready_at = min(change.ready_at, now)
    since = max(change.ready_at, now - leader.core.settings.election_timeout_s)
    present = [voter for voter in change.target.voters if leader.lease_at(voter) > since]
    return change.target.is_quorum(present) and all(newcomer in present for newcomer in newcomers)


def _has_caught_up(leader: "Leader", change: Change, newcomer: Replica, now: float) -> bool:
    if newcomer in change.caught_up:
        return True
    end_index = leader.core.log.end_index
    goal, began_at = change.rounds.setdefault(newcomer, (end_index, now))
    match_index = leader.replication.peers[newcomer].match_index
    if match_index < goal:
        return False
    # A newcomer that has everything has caught up, however long it took: an idle group has nothing for another round.
    if match_index < end_index and now - began_at > leader.core.settings.election_timeout_s:
        change.rounds[newcomer] = (end_index, now)
        return False
    change.caught_up.append(newcomer)
    return True


def propose(leader: "Leader", now: float, config: GroupConfig) -> None:
    """Writes the configuration, which holds from now on, before any other replica has it (14)."""
    core = leader.core
    core.out.append(AppendControl(ControlKind.CONFIG, encode(config)))
    core.config_appended(core.log.end_index + 1, config)
    leader.take_members(now)
