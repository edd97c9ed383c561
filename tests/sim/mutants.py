"""Seeded bugs: the simulator must find each of them. They show what the simulator can find.

Each is a small change of production code, made in memory while `applied` lasts: a piece of a function's source is
replaced by another, and the function is compiled again in its place. Production code has no switch for it. A piece that
is missing is an error: the code has changed, and the mutant must be adapted.
"""

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

from penstock.cluster import state as cluster_state
from penstock.log import data_folder, flush_state, log, votes, writer
from penstock.node.metadata import local_replicas, metadata_log
from penstock.node.replication import flusher, hard_states, partition, pending, raft_driver
from penstock.raft import config, core, election, follower, leader, membership
from penstock.sim.outcome import Failure
from penstock.sim.seeds import NODE, run_seed
from tests.sim.mutant import Change, Mutant
from tests.sim.mutants_of_cliques import CLIQUE_MUTANTS
from tests.sim.mutants_of_consumer_groups import CONSUMER_GROUP_MUTANTS
from tests.sim.mutants_of_groups import GROUP_MUTANTS
from tests.sim.mutants_of_machines import MACHINE_MUTANTS
from tests.sim.mutants_of_transactions import TRANSACTION_MUTANTS
from tests.sim.mutants_of_upkeep import UPKEEP_MUTANTS


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """While the context lasts, the code has the bug."""
    originals: dict[tuple[Any, str], Any] = {}
    for change in mutant.changes:
        place = change.owner, change.function
        originals.setdefault(place, inspect.getattr_static(*place))
    undo: list[Callable[[], None]] = []
    try:
        for place, original in originals.items():
            changes = [change for change in mutant.changes if (change.owner, change.function) == place]
            _replace(place, original, _mutated(original, changes), undo)
        yield
    finally:
        for step in undo:
            step()


def _replace(place: tuple[Any, str], original: Any, mutated: object, undo: list[Callable[[], None]]) -> None:
    """Replaces a function where it is defined, and in the module-level tables of its package that name it."""
    setattr(*place, mutated)
    undo.append(partial(setattr, *place, original))
    package = _function(original).__module__.rpartition(".")[0]
    modules = [module for name, module in sys.modules.items() if name.startswith(f"{package}.")]
    tables = [table for module in modules for table in vars(module).values() if isinstance(table, dict)]
    for table in tables:
        for key in [key for key, value in table.items() if value is original]:
            table[key] = mutated
            undo.append(partial(table.__setitem__, key, original))


def _function(original: Any) -> Any:
    return original.fget if isinstance(original, property) else original


def _mutated(original: Any, changes: list[Change]) -> object:
    function = _function(original)
    source = textwrap.dedent(inspect.getsource(function))
    for change in changes:
        if source.count(change.old) != 1:
            found = source.count(change.old)
            raise LookupError(f"{change.function} has {change.old!r} {found} times: expected once")
        source = source.replace(change.old, change.new)
    return _compile(function, source)


def _compile(function: FunctionType, source: str) -> object:
    """Compiles the source in the module of the original, with the module's names. Decorators are part of the source."""
    module = inspect.getmodule(function)
    assert isinstance(module, ModuleType)
    names: dict[str, object] = {}
    exec(compile(source, f"<mutant of {function.__qualname__}>", "exec"), module.__dict__, names)
    return names[function.__name__]


__all__ = ["MUTANTS", "Change", "Mutant", "applied", "seeds_to_detection"]

MUTANTS = (
    Mutant(
        "ack before flush",
        "a follower acknowledges what it has only written",
        (Change(follower.Follower, "answer", "min(core.log.flushed_index, received)", "received"),),
        seeds=30,
    ),
    Mutant(
        "vote not flushed",
        "a vote is told before it is on the disk",
        (Change(votes.VoteStore, "_save", "file.flush()", "pass"),),
        seeds=30,
    ),
    Mutant(
        "two votes in a term",
        "a replica that has voted votes again",
        (Change(election, "on_request_vote", "core.voted_for in (None, sender)", "True"),),
        seeds=40,
    ),
    Mutant(
        "old-term commit",
        "a leader counts replicas of an earlier term's entries (Raft's figure 8)",
        (
            Change(
                leader.Leader,
                "_maybe_commit",
                "(index <= self.term_start and not self.decides_alone)",
                "False",
            ),
        ),
        seeds=40,
    ),
    Mutant(
        "watermark from unflushed",
        "a leader counts itself by what it has written",
        (Change(leader.Leader, "_maybe_commit", "core.log.flushed_index", "core.log.end_index"),),
        seeds=40,
    ),
    Mutant(
        "conflict ignored",
        "a follower takes entries behind a place where its log differs",
        (
            Change(
                follower.Follower,
                "_conflicts_before",
                "return self.core.log.term_before(message.prev_index) != message.prev_term",
                "return False",
            ),
        ),
        seeds=200,
    ),
    Mutant(
        "truncation below commit",
        "a follower believes a late message of a leader more than its own commit",
        (
            Change(
                follower.Follower, "take", "self._skip_known(message, entries)", "(0, message.prev_index)"
            ),
            Change(follower.Follower, "_write", " or settled < core.commit_index", ""),
        ),
        seeds=30,
    ),
    Mutant(
        "short log elected",
        "a vote goes to a log that is behind",
        (
            Change(
                election,
                "_is_up_to_date",
                "return (request.last_term, request.end_index) >= (core.log.last_term, core.log.end_index)",
                "return True",
            ),
        ),
        seeds=40,
    ),
    Mutant(
        "commit over an unmatched suffix",
        "a follower commits what it has not compared with its leader's log",
        (Change(follower.Follower, "advance", "self.matched_index, settled", "settled"),),
        seeds=300,
    ),
    Mutant(
        "reply of an earlier term",
        "a leader counts an answer to one of its earlier reigns",
        (
            Change(
                leader,
                "on_append_reply",
                "elif reply.term == core.term and isinstance",
                "elif isinstance",
            ),
        ),
        seeds=300,
    ),
    Mutant(
        "lease ignored",
        "a leader answers readers without knowing whether it still leads",
        (Change(leader.Leader, "may_serve", "return now <", "return True or now <"),),
        seeds=200,
    ),
    Mutant(
        "serves before its term is confirmed",
        "a new leader answers readers before it knows what was committed before its term",
        (Change(leader.Leader, "may_serve", "not self.term_confirmed or ", ""),),
        seeds=40,
    ),
    Mutant(
        "lease without a margin for clocks",
        "a leader with a slow clock trusts its lease for longer than followers with fast clocks honour it",
        (Change(leader.Leader, "may_serve", " * (1 - settings.clock_drift)", ""),),
        seeds=2000,
    ),
    Mutant(
        "lease beside a successor",
        "a leader that has told another replica to stand goes on to answer readers",
        (Change(leader.Leader, "may_serve", " or self.lease_is_void", ""),),
        seeds=200,
    ),
    Mutant(
        "lease not honoured",
        "a replica that hears its leader helps another one to be elected",
        (
            Change(
                core.Raft,
                "honours_lease",
                "self.role is Role.LEADER or now < self.heard_at + self.lease_s",
                "self.role is Role.LEADER",
            ),
        ),
        seeds=500,
    ),
    Mutant(
        "campaign within the lease",
        "a follower whose connection breaks votes for itself while its leader still counts on it",
        (Change(core.Raft, "leader_lost", "max(now, lease_ends)", "now"),),
        seeds=500,
    ),
    Mutant(
        "lease shorter than the leader's",
        "a follower honours the lease for half of the time that its leader's heartbeats name",
        (Change(core.Raft, "heard", "self.lease_s = lease_s", "self.lease_s = lease_s / 2"),),
        seeds=500,
    ),
    Mutant(
        "change before own commit",
        "a new leader changes the members before it knows what is committed",
        (
            Change(leader.Leader, "change_members", "if not self.term_confirmed:", "if False:"),
            Change(membership, "drive", "or not leader.has_committed_own_entry()", ""),
        ),
        seeds=40,
    ),
    Mutant(
        "joint step without an answer",
        "a change to a replica whose disk has just died leaves the group without a leader for ever",
        (Change(membership, "_next_step", "_have_answered(leader, change, newcomers, now)", "True"),),
        seeds=300,
    ),
    Mutant(
        "an earlier answer allows the joint step",
        "the answer to a heartbeat from before the change speaks for a replica whose disk has died since",
        (
            Change(
                membership,
                "_have_answered",
                "max(change.ready_at, now - leader.core.settings.election_timeout_s)",
                "now - leader.core.settings.election_timeout_s",
            ),
        ),
        seeds=1000,
    ),
    Mutant(
        "a configuration that was not written holds",
        "a replica on a full disk decides by a configuration that is not in its log",
        (Change(core.Raft, "write_failed", "self.configs_truncated(self.log.end_index)", "pass"),),
        seeds=800,
    ),
    Mutant(
        "one half decides",
        "during a change the old members are not asked",
        (
            Change(
                config.GroupConfig,
                "halves",
                "(self.voters, self.outgoing) if self.outgoing else (self.voters,)",
                "(self.voters,)",
            ),
        ),
        seeds=150,
    ),
    Mutant(
        "incarnation ignored",
        "a node that lost its disk counts as the voter that it was",
        (
            Change(
                data_folder.DataFolder,
                "incarnation",
                "return self._identity.incarnation",
                "return self._identity.node_id",
            ),
        ),
        seeds=100,
    ),
    Mutant(
        "dedup lost at failover",
        "followers do not keep what producers sent",
        (Change(writer.LogWriter, "_enter", "elif header.producer_id >= 0:", "elif False:"),),
        seeds=30,
    ),
    Mutant(
        "prefix without producers",
        "a replica that installs a prefix knows nothing of producers",
        (Change(log.Log, "prefix", "producers=producers.rows()", "producers=[]"),),
        seeds=40,
    ),
    Mutant(
        "flush of a truncated tail counts",
        "a flush that began before a truncation speaks for what was written after it",
        (Change(flush_state.FlushState, "truncate", "if self.ticket is not None:", "if False:"),),
        seeds=500,
    ),
    Mutant(
        "start not followed",
        "followers do not hear where their leader's log starts",
        (Change(follower.Follower, "_follow_start", "offset > self.core.log.start_offset", "False"),),
        seeds=30,
    ),
    Mutant(
        "majority is enough",
        "a leader says that enough replicas have flushed what only a majority has",
        (
            Change(
                leader.Leader,
                "_enough_of",
                "if required > len(self.voting):",
                "if True:\n        return commit_index\n    if False:",
            ),
        ),
        seeds=30,
    ),
    Mutant(
        "a late flush is not counted",
        "a leader does not say that enough replicas have flushed when the last one flushes what is committed already",
        (
            Change(
                leader.Leader,
                "_has_flushed_more",
                "elif peer.match_index > self.core.enough_index:",
                "elif False:",
            ),
        ),
        seeds=30,
    ),
    Mutant(
        "acknowledged at once",
        "a node answers acks=all before the batch is committed",
        (
            Change(
                partition.Partition,
                "committed_at",
                "if appended.last_offset < self.acknowledged_below:",
                "if True:",
            ),
        ),
        level=NODE,
        seeds=20,
    ),
    Mutant(
        "flush that flushes nothing",
        "a node tells its groups of flushes that did not happen",
        (
            Change(flusher.Flusher, "_flush", "attempt(self._disk.sync_all)", "None"),
            Change(flusher.Flusher, "_flush", "attempt(ticket.run)", "None"),
        ),
        level=NODE,
        seeds=10,
    ),
    Mutant(
        "vote told before it is saved",
        "a node sends the messages that wait for a vote before the vote is on the disk",
        (
            Change(
                raft_driver.RaftDriver,
                "_persist",
                "has_log = ",
                "for send in effect.then:\n        self._send(send)\n    has_log = ",
            ),
        ),
        level=NODE,
        seeds=10,
    ),
    Mutant(
        "votes forgotten at restart",
        "a node starts without reading its stored votes",
        (
            Change(
                hard_states.HardStates,
                "get",
                "return HardState(kept.term, kept.voted_for)",
                "return HardState()",
            ),
        ),
        level=NODE,
        seeds=100,
    ),
    Mutant(
        "ex-leader acknowledges",
        "producers that wait for a commit get an acknowledgement when the leader steps down",
        (Change(pending.PendingRequests, "fail", "future.set_exception(error)", "future.set_result(None)"),),
        level=NODE,
        seeds=100,
    ),
    Mutant(
        "metadata applied before commit",
        "a node acts on metadata that its group may still take back",
        (
            Change(
                metadata_log.MetadataLog,
                "_slices",
                "partition.end_for(Isolation.READ_UNCOMMITTED)",
                "partition.log.end_offset",
            ),
        ),
        level=NODE,
        seeds=10,
    ),
    Mutant(
        "reads without a lease",
        "a node answers readers as leader without knowing whether it still is",
        (
            Change(
                partition.Partition,
                "check_readable",
                "if self.may_serve:",
                "if self.leads and self.is_confirmed:",
            ),
        ),
        level=NODE,
        seeds=300,
    ),
    Mutant(
        "data discarded early",
        "a node deletes a replica's files as soon as it is to leave, before its group has gone on without it",
        (
            Change(
                cluster_state.ClusterState,
                "may_discard",
                "assignment is None or assignment.target is not None or assignment.config_index == NO_INDEX",
                "assignment is None",
            ),
            Change(
                cluster_state.ClusterState,
                "may_discard",
                "replica not in assignment.members",
                "replica not in (assignment.target_members or assignment.members)",
            ),
            # Without this, the bug needs a move that is replaced by another one: a node that the assignment shows
            # keeps its files whatever `may_discard` says, and a node that is to leave is shown until it has left.
            Change(
                local_replicas.LocalReplicas,
                "_is_superfluous",
                "topic.assignments[index].shown",
                "topic.assignments[index].future",
            ),
        ),
        level=NODE,
        seeds=200,
    ),
    *UPKEEP_MUTANTS,
    *GROUP_MUTANTS,
    *TRANSACTION_MUTANTS,
    *MACHINE_MUTANTS,
    *CONSUMER_GROUP_MUTANTS,
    *CLIQUE_MUTANTS,
)


def seeds_to_detection(mutant: Mutant) -> tuple[int, Failure] | None:
    """How many seeds it took, and what the last one found; None if the mutant's bound was not enough."""
    with applied(mutant):
        for seed in range(mutant.seeds):
            failure = run_seed(seed, level=mutant.level).failure
            if failure is not None:
                return seed + 1, failure
    return None
