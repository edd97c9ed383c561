"""The checks of one Raft group. They hold at every moment, whatever happens to its replicas.

A witness looks at a replica after each event that may have changed it. It compares the replica with what it saw before
and with the *truth*: the entries that were ever committed, in order. Where it can, it relies on its own view instead of
the code under test: an entry is flushed if it is in the durable image of the simulated disk, and the witness counts
majorities by itself.

 1  A term has one leader, and a replica votes once in it. A vote that leaves a replica is on its disk.
 2  A leader has everything that was ever committed.
 3  A committed entry is the same on all replicas and for ever: index, term and bytes.
 4  An entry that is committed for the first time is on the disks of a majority of each half of the configuration.
 5  A commit never goes back while a replica runs, and nothing below it is truncated.
 6  start <= watermark <= end, and the log begins at or below the commit.
 7  Logs that have an entry of the same index and term are equal up to there.
 8  While a leader may serve readers, by its own clock, no replica leads in a later term, and the leader has committed
    all that any replica has committed: a reader that it answers sees every write that was acknowledged before.
 9  A commit ends in its leader's own term, unless one replica alone is the majority: entries of an earlier term that a
    majority has may still be overwritten (Raft's figure 8).
10  A leader changes the members only once an entry of its own term is committed.
11  A leader knows how far a peer has flushed only from replies of its own term, and those entries are on the peer's
    disk.
12  The leader decides where a log starts: no replica starts later than a leader did before. While a replica runs, its
    start never goes back, and nothing from the start on is missing.
13  Entries below a leader's `enough_index` are committed, and on the disks of as many voters as the group requires.

Of a compacted log, 3 and 7 hold for the entries that compaction has left: see `compaction_checks`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from penstock.log import Log
from penstock.raft import GroupConfig, Raft, Role
from penstock.raft.leader import Leader
from penstock.sim.compaction_checks import CommittedKeys
from penstock.sim.durable_state import DiskFinder, DurableState
from penstock.sim.entries import Entry, entries_of
from penstock.sim.outcome import Violation
from penstock.types import GroupId, Replica


class Watched(Protocol):
    """A running replica."""

    name: str

    @property
    def me(self) -> Replica: ...

    @property
    def core(self) -> Raft: ...

    @property
    def log(self) -> Log: ...

    def now(self) -> float:
        """The time of its own clock."""
        ...


class ReplicaView(NamedTuple):
    """The state of a replica when the witness looked last."""

    term: int
    role: Role
    commit_index: int
    first_index: int
    end_index: int
    last_term: int
    start_offset: int
    cleaned_offset: int
    """Up to where the replica itself has compacted its log."""
    matches: tuple[int, ...]
    """How far a leader's peers have flushed, as far as it knows; empty for other roles."""
    config_index: int
    """Where the entry of the newest configuration ends."""


def is_majority(config: GroupConfig, replicas: Sequence[Replica]) -> bool:
    """Counted apart from the code under test."""
    halves = [config.voters, config.outgoing] if config.outgoing else [config.voters]
    return all(2 * sum(voter in replicas for voter in half) > len(half) for half in halves)


class Witness:
    """Watches one group."""

    def __init__(self, group: GroupId, disks: DiskFinder, folder: str) -> None:
        self.group = group
        self._disks = disks
        self._durable = DurableState(group, disks, folder)
        self.truth: list[Entry] = []
        self.batches: dict[int, Entry] = {}
        """The batches of the truth, which clients may see, by their first offset."""
        self._ends: list[int] = []
        self._terms: list[int] = []
        """The term in which each entry of the truth was committed."""
        self.leaders: dict[int, Replica] = {}
        self._votes: dict[tuple[Replica, int], Replica] = {}
        self._seen: dict[Replica, ReplicaView] = {}
        self._configs: dict[Replica, GroupConfig | None] = {}
        self._leading: dict[Replica, Watched] = {}
        self._beliefs: dict[tuple[Replica, Replica], tuple[int, int]] = {}
        """Leader and peer -> term and match index."""
        self._told: dict[tuple[Replica, int], int] = {}
        """Replica and term -> the greatest index that it has acknowledged in it."""
        self.rotten: Replica | None = None
        """Its disk is damaged, whether it has noticed or not."""
        self.on_elected: Callable[[Watched], None] = lambda one: None
        """Called for every leader, once per term."""
        self.on_start_moved: Callable[[Watched, int, int], None] = lambda one, old, new: None
        """Called when a leader moves its start."""
        self.leaders_choose_start = False
        """Whether 12 is checked as a whole: not where the simulator deletes prefixes of followers too."""
        self._chosen_start = 0
        """The greatest start that a leader has had."""
        self.committed_keys: CommittedKeys | None = None
        """The committed records by key, for compacted topics: each replica compacts by itself, so that bytes differ."""

    @property
    def end_index(self) -> int:
        return self._ends[-1] if self._ends else 0

    def forget(self, replica: Replica) -> None:
        """The replica has crashed: when it starts again, it begins from its disk."""
        self._seen.pop(replica, None)
        self._leading.pop(replica, None)
        self._configs.pop(replica, None)

    # --- looking

    def interrupted(self, one: Watched) -> None:
        """The replica loses power in the middle of an event, so nothing will look at what that event has done so far. A
        leader may have moved its start, and its disk may say so when it runs again as a follower (12)."""
        before, start = self._seen.get(one.me), one.log.start_offset
        if before is not None and one.core.role is Role.LEADER and start > before.start_offset:
            self._chosen_start = max(self._chosen_start, start)
            if one.me != self.rotten:
                self.on_start_moved(one, before.start_offset, start)

    def look(self, one: Watched) -> None:
        core, log = one.core, one.log
        view = ReplicaView(
            core.term,
            core.role,
            core.commit_index,
            log.entries.first_index,
            log.entries.end_index,
            log.entries.last_term,
            log.start_offset,
            log.files.state.cleaned_offset,
            _matches(core),
            core.configs.newest_index,
        )
        before = self._seen.get(one.me)
        if before == view:
            return
        self._seen[one.me] = view
        self._check_bounds(one, view)
        self._check_history(one, before, view)
        if view.role is Role.LEADER:
            self._check_leader(one, before, view)
            self._check_beliefs(one)
        else:
            self._leading.pop(one.me, None)
        if before is None or view.commit_index != before.commit_index:
            known = before.commit_index if before is not None else 0
            self._check_commit(one, max(known, view.first_index), view)
        self._check_term_at_commit(one, view)
        self._check_start(one, before, view)
        if before is not None and view.cleaned_offset > before.cleaned_offset:
            self._check_compaction(one, view)
        self._configs[one.me] = core.config

    def _check_bounds(self, one: Watched, view: ReplicaView) -> None:
        if not view.first_index <= view.commit_index <= view.end_index:
            self._broken(
                "start <= watermark <= end",
                f"{one.name} has committed {view.commit_index} of {view.first_index} to {view.end_index}",
            )
        if view.config_index > view.end_index:
            self._broken(
                "a configuration holds while it is in the log",
                f"{one.name} has one from index {view.config_index}, and its log ends at {view.end_index}",
            )
        watermark = one.log.entries.offset_at(view.commit_index)
        # After a start a replica knows only that its deleted prefix was committed, until its leader tells it more.
        lowest = view.start_offset if one.core.term_confirmed else 0
        if not lowest <= watermark <= one.log.end_offset or view.start_offset > one.log.end_offset:
            self._broken(
                "start <= watermark <= end",
                f"{one.name} starts at {view.start_offset}, ends at {one.log.end_offset}, and shows {watermark}",
            )

    def _check_start(self, one: Watched, before: ReplicaView | None, view: ReplicaView) -> None:
        if one.me == self.rotten:
            # A damaged replica may lead, and the others follow its start.
            if view.role is Role.LEADER:
                self._chosen_start = max(self._chosen_start, view.start_offset)
            return
        if before is not None and view.start_offset < before.start_offset:
            self._broken(
                "the start of a log never goes back",
                f"{one.name} started at {before.start_offset}, now at {view.start_offset}",
            )
        if view.start_offset > self._chosen_start:
            if view.role is not Role.LEADER and self.leaders_choose_start:
                self._broken(
                    "where a log starts its leader decides",
                    f"{one.name} starts at {view.start_offset}, and no leader later than {self._chosen_start}",
                )
            self._chosen_start = view.start_offset
        if view.role is Role.LEADER and before is not None and view.start_offset > before.start_offset:
            self.on_start_moved(one, before.start_offset, view.start_offset)
        if one.log.entries.offset_at(view.first_index) > view.start_offset:
            self._broken(
                "nothing is gone from the start on",
                f"{one.name} starts at {view.start_offset} and has nothing before index {view.first_index}",
            )

    def _check_compaction(self, one: Watched, view: ReplicaView) -> None:
        """A pass has ended."""
        committed = one.log.entries.offset_at(view.commit_index)
        if view.cleaned_offset > committed:
            self._broken(
                "only what is committed is compacted",
                f"{one.name} has compacted up to {view.cleaned_offset}, and {committed} is committed",
            )
        self._compare(one, view.first_index, min(view.commit_index, self.end_index), "", whole=True)

    def _check_history(self, one: Watched, before: ReplicaView | None, view: ReplicaView) -> None:
        if before is None:
            return
        if view.term < before.term:
            self._broken("terms never go back", f"{one.name} went from {before.term} to {view.term}")
        if view.commit_index < before.commit_index:
            self._broken(
                "a commit never goes back",
                f"{one.name} had committed {before.commit_index} and now {view.commit_index}",
            )
        if view.end_index < before.commit_index:
            self._broken(
                "nothing is truncated below the commit",
                f"{one.name} ends at {view.end_index}, and {before.commit_index} was committed",
            )

    def _check_leader(self, one: Watched, before: ReplicaView | None, view: ReplicaView) -> None:
        if self.leaders.setdefault(view.term, one.me) != one.me:
            self._broken(
                "a term has one leader", f"{self.leaders[view.term]} and {one.me} lead in term {view.term}"
            )
        self._leading[one.me] = one
        if before is None or before.role is not Role.LEADER or before.term != view.term:
            # Votes may arrive so late that others lead in later terms by then: only earlier commits count.
            number = bisect_left(self._terms, view.term)
            end_index = self._ends[number - 1] if number else 0
            if view.end_index < end_index:
                self._broken(
                    "a leader has all that was committed",
                    f"{one.name} leads in {view.term} with {view.end_index} of {end_index}",
                )
            self._compare(one, view.first_index, end_index, "a leader has all that was committed")
            self.check_leases()
            self.on_elected(one)
        elif one.core.configs.newest_index > before.end_index:
            self._check_change(one, view)

    def _check_change(self, one: Watched, view: ReplicaView) -> None:
        if one.log.entries.term_before(view.commit_index) != view.term:
            self._broken(
                "no change of members before the term is confirmed",
                f"{one.name} changes them in {view.term}, and its commit ends in "
                f"{one.log.entries.term_before(view.commit_index)}",
            )

    def _check_beliefs(self, one: Watched) -> None:
        """Entries that a leader counts as flushed by a peer are on that peer's disk, as long as the peer is in the same
        term, and so has truncated nothing."""
        assert isinstance(one.core.part, Leader)
        for replica, peer in one.core.part.replication.peers.items():
            known = self._beliefs.get((one.me, replica), (-1, 0))
            now = (one.core.term, peer.match_index)
            if now == known:
                continue
            self._beliefs[one.me, replica] = now
            if peer.match_index > self._told.get((replica, one.core.term), 0):
                self._broken(
                    "a leader believes what it was told in its term",
                    f"{one.name} believes in {one.core.term} that {replica} has {peer.match_index}, "
                    f"which told {self._told.get((replica, one.core.term))}",
                )
            other = self._disks.running(replica)
            if other is None or other.core.term != one.core.term or self.rotten in (replica, one.me):
                continue
            # Prefixes were committed. Committed entries may have been compacted, on either side.
            checked = max(
                one.log.entries.first_index,
                min(other.log.entries.first_index, self.end_index),
                self.end_index if self.committed_keys is not None else 0,
            )
            if peer.match_index <= max(known[1] if known[0] == now[0] else 0, checked):
                continue
            start = one.log.entries.floor(peer.match_index - 1)
            entry = next(entries_of(one.log, start, peer.match_index))
            if not self._durable.holds(replica, entry):
                self._broken(
                    "what a peer acknowledges is on its disk",
                    f"{one.name} believes that {other.name} has {peer.match_index} of term {entry.term}",
                )

    def check_leases(self) -> None:
        """May be called at any time: a lease ends by the clock, without an event."""
        for one in self._leading.values():
            if one.core.may_serve(one.now()):
                self.serves(one)

    def serves(self, one: Watched) -> None:
        """This replica answers a reader now, or would do so."""
        newest = max([leader.core.term for leader in self._leading.values()], default=0)
        if one.core.term < newest:
            self._broken(
                "while a leader may serve, no replica leads in a later term",
                f"{one.name} may serve in term {one.core.term}, and term {newest} has a leader",
            )
        if one.core.commit_index < self.end_index:
            self._broken(
                "a leader that may serve has committed all that any replica has",
                f"{one.name} may serve {one.core.commit_index} in term {one.core.term} of {self.end_index}",
            )

    # --- commits

    def _check_commit(self, one: Watched, known: int, view: ReplicaView) -> None:
        end = min(view.commit_index, self.end_index)
        if self.committed_keys is not None and known < end and one.me != self.rotten:
            mine, theirs = entries_of(one.log, known, end), self.entries_between(known, end)
            self.committed_keys.received(one.name, mine, theirs, cleaned=one.log.files.state.cleaned_offset)
        self._compare(one, known, end, "what is committed never changes")
        if view.commit_index <= self.end_index:
            return
        # A replica that is a majority by itself may be elected, commit and resign for lack of space in one event.
        if self.leaders.get(view.term) != one.me and not self._decides_alone(one):
            self._broken(
                "only a leader commits first",
                f"{one.name} has committed {view.commit_index}, and the group {self.end_index}",
            )
        start = max(self.end_index, view.first_index)
        if start != self.end_index:
            self._broken("a commit is whole", f"{one.name} lacks {self.end_index} to {start}")
        if one.log.entries.term_before(view.commit_index) != view.term and not self._decides_alone(one):
            self._broken(
                "a commit ends in its leader's own term",
                f"{one.name} commits {view.commit_index} of term {one.log.entries.term_before(view.commit_index)} "
                f"in {view.term}",
            )
        for entry in entries_of(one.log, start, view.commit_index):
            self._check_majority(one, entry)
            self.truth.append(entry)
            self._ends.append(entry.end)
            self._terms.append(view.term)
            if not entry.control:
                self.batches[entry.offset] = entry
            if self.committed_keys is not None:
                self.committed_keys.add(entry)
        self.check_leases()

    def _decides_alone(self, one: Watched) -> bool:
        config = self._configs.get(one.me) or one.core.config
        return config is not None and is_majority(config, [one.me])

    def _check_majority(self, one: Watched, entry: Entry) -> None:
        """Checks for a majority, by the configuration before this event or by the one after it."""
        candidates = [self._configs.get(one.me), one.core.config]
        configs = [config for config in candidates if config is not None]
        voters = dict.fromkeys(voter for config in configs for voter in config.voters + config.outgoing)
        holders = [voter for voter in voters if self._durable.holds(voter, entry)]
        if not any(is_majority(config, holders) for config in configs):
            self._broken(
                "what is committed is flushed by a majority",
                f"{one.name} commits {entry.start} to {entry.end} of term {entry.term}, "
                f"which only {[str(one) for one in holders]} of {[str(one) for one in voters]} have on disk",
            )

    def _check_term_at_commit(self, one: Watched, view: ReplicaView) -> None:
        number = bisect_left(self._ends, view.commit_index)
        if number < len(self._ends) and self._ends[number] == view.commit_index:
            term = one.log.entries.term_before(view.commit_index)
            if term != self.truth[number].term:
                self._broken(
                    "what is committed never changes",
                    f"{one.name} has term {term} at {view.commit_index}, committed was {self.truth[number].term}",
                )

    def entries_between(self, start: int, end: int) -> list[Entry]:
        """The committed entries from index `start` to `end`."""
        return self.truth[bisect_right(self._ends, start) : bisect_right(self._ends, end)]

    def _compare(self, one: Watched, start: int, end: int, promise: str, *, whole: bool = False) -> None:
        """The replica's log equals the truth between these boundaries. `whole`: they begin with the log."""
        if start >= end or one.me == self.rotten:
            return
        mine = list(entries_of(one.log, start, end))
        theirs = self.entries_between(start, end)
        if self.committed_keys is not None:
            self.committed_keys.check(
                one.name, mine, theirs, whole=whole, received_below=one.log.files.state.gaps_below
            )
        elif mine != theirs:
            odd = next((a, b) for a, b in zip([*mine, None], [*theirs, None], strict=False) if a != b)
            self._broken(promise, f"{one.name} has {_brief(odd[0])} where {_brief(odd[1])} was committed")

    def wrong_with(self, offset: int, data: bytes) -> str:
        """Why no reader may get this batch; "" if a reader may."""
        if self.committed_keys is not None:
            return self.committed_keys.wrong_with(offset, data)
        entry = self.batches.get(offset)
        if entry is None:
            return "was never committed"
        return "" if entry.data == data else "is not what was committed"

    # --- messages to other replicas

    def told_vote(self, voter: Replica, term: int, candidate: Replica) -> None:
        """A vote leaves the replica that gave it."""
        if self._votes.setdefault((voter, term), candidate) != candidate:
            self._broken(
                "a replica votes once in a term",
                f"{voter} voted for {self._votes[voter, term]} and {candidate} in {term}",
            )
        disk = self._disks.disk_of(voter)
        if disk is not None and not self._durable.holds_vote(disk, term, candidate):
            self._broken(
                "a vote is durable before it is told", f"{voter} tells {candidate} of its vote in {term}"
            )

    def told_match(self, replica: Replica, term: int, match_index: int) -> None:
        """An acknowledgement leaves a replica."""
        key = replica, term
        self._told[key] = max(self._told.get(key, 0), match_index)

    def told_enough(self, one: Watched, enough_index: int) -> None:
        """A leader, in the midst of an event, says how far enough voters have flushed."""
        core = one.core
        configs = [config for config in (self._configs.get(one.me), core.config) if config is not None]
        if (
            core.role is not Role.LEADER
            or enough_index <= one.log.entries.first_index
            or self.rotten is not None
        ):
            return
        if enough_index > core.commit_index:
            self._broken(
                "what is acknowledged is committed",
                f"{one.name} acknowledges {enough_index} and has committed {core.commit_index}",
            )
        entry = next(entries_of(one.log, one.log.entries.floor(enough_index - 1), enough_index))
        voters = dict.fromkeys(voter for config in configs for voter in config.voters + config.outgoing)
        holders = sum(self._durable.holds(voter, entry) for voter in voters)
        if holders < core.required_replicas and not any(config.members == (one.me,) for config in configs):
            self._broken(
                "what is acknowledged is flushed by enough replicas",
                f"{one.name} acknowledges {enough_index}, which {holders} of {core.required_replicas} voters have",
            )

    # --- all together

    def check_matching(self, running: Sequence[Watched]) -> None:
        sound = [one for one in running if one.me != self.rotten]
        logs = [
            (one, list(entries_of(one.log, self._whole_from(one.log), one.log.entries.end_index)))
            for one in sound
        ]
        for number, (one, entries) in enumerate(logs):
            for other, theirs in logs[number + 1 :]:
                _check_pair(
                    one, entries, other, theirs, max(self._whole_from(log) for log in (one.log, other.log))
                )

    def _whole_from(self, log: Log) -> int:
        """The index from which on nothing can be missing in a log."""
        if self.committed_keys is None:
            return log.entries.first_index
        return log.entries.floor(max(self.end_index, log.entries.first_index))

    def check_equal(self, running: Sequence[Watched]) -> None:
        """After the faults have ended: every replica has the whole truth and nothing else."""
        for one in running:
            if one.log.entries.end_index != self.end_index or one.core.commit_index != self.end_index:
                self._broken(
                    "all come to the same",
                    f"{one.name} has {one.core.commit_index} of {one.log.entries.end_index}, not {self.end_index}",
                )
            self._compare(
                one, one.log.entries.first_index, self.end_index, "all come to the same", whole=True
            )

    def _broken(self, promise: str, detail: str) -> None:
        raise Violation(promise, detail)


def _matches(core: Raft) -> tuple[int, ...]:
    if not isinstance(core.part, Leader):
        return ()
    return tuple([peer.match_index for peer in core.part.replication.peers.values()])


def _check_pair(one: Watched, entries: list[Entry], other: Watched, theirs: list[Entry], low: int) -> None:
    terms = {entry.end: entry.term for entry in theirs}
    same = [entry.end for entry in entries if terms.get(entry.end) == entry.term]
    if not same:
        return
    mine = [entry for entry in entries if low <= entry.start and entry.end <= same[-1]]
    if mine != [entry for entry in theirs if low <= entry.start and entry.end <= same[-1]]:
        raise Violation(
            "logs that agree at one place agree below",
            f"{one.name} and {other.name} have the same term at {same[-1]} and differ below",
        )


def _brief(entry: Entry | None) -> str:
    if entry is None:
        return "nothing"
    return f"{entry.start} to {entry.end} of term {entry.term} ({len(entry.data)} bytes)"
