"""Replicas driven at random as Raft would: after any order of steps they match the model."""

from collections.abc import Callable
from random import Random

import pytest

from penstock.errors import CorruptLog, KafkaError
from penstock.log.controls import Controls
from penstock.log.entry_view import EntryView
from penstock.log.segment import Segment
from penstock.sim import SimDisk
from tests.log.replicas import Replica, check, settled, sizes


class Group:
    """A leader and two followers that change roles, lag, diverge, crash and delete their prefixes. Entries that two
    of them have flushed are committed, so the third may be left behind."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.replicas = [Replica(seed * 3 + number) for number in range(3)]
        self.leader = self.replicas[0]
        self.term = 0
        self.committed = 0
        self.resets = 0

        weights = self.random.choice
        self.steps = [self.append] * 10 + [self.fetch] * 14 + [self.tidy] * weights((2, 6))
        self.steps += [self.flush] * weights((2, 5, 10)) + [self.begin_flush, self.finish_flush]
        self.steps += [self.commit, self.delete_prefix] * weights((1, 4, 6))
        self.steps += [self.append_control, self.begin_term] * weights((1, 1, 4))
        self.steps += [self.change_roles, self.truncate, self.reopen, self.crash]
        """Each seed has a mix of its own: one mix for all seeds would find less."""

    def step(self) -> None:
        self.random.choice(self.steps)()

    def a_follower(self) -> Replica:
        """One of them lags."""
        followers = [replica for replica in self.replicas if replica is not self.leader]
        return followers[0 if self.random.random() < 0.92 else 1]

    def any(self) -> Replica:
        return self.random.choice(self.replicas)

    def append(self) -> None:
        producer = self.random.choice((None, 7, 8))
        self.leader.append(*sizes(self.random), producer=producer)
        self.term = max(self.term, self.leader.log.entries.last_term)

    def begin_term(self) -> None:
        self.term += 1
        self.leader.begin_term(self.term)

    def append_control(self) -> None:
        if self.leader.history.entries:
            for _ in range(self.random.choice((1, 1, 3))):
                self.leader.append_control(b"members %d" % self.random.randrange(100))

    def fetch(self) -> None:
        self.fetch_to(self.a_follower())

    def fetch_to(self, follower: Replica) -> None:
        self.resets += follower.history.common(self.leader.history) < self.leader.log.entries.first_index
        follower.fetch(self.leader, self.random.choice((1, 200, 1000)))
        follower.commit(min(self.committed, follower.history.end))

    def change_roles(self) -> None:
        """Only a replica with all committed entries may lead: else these would be truncated."""
        candidate = self.any()
        if candidate.history.common(self.leader.history) >= self.committed:
            self.leader = candidate
        self.begin_term()

    def truncate(self) -> None:
        """Truncates entries that a follower has and the leader has not."""
        replica = self.any()
        common = replica.history.common(self.leader.history)
        if common < replica.log.entries.first_index:
            return
        least = max(self.committed if replica is self.leader else common, replica.log.entries.first_index)
        ends = [boundary for boundary in replica.history.boundaries() if boundary >= least]
        replica.truncate(self.random.choice(ends))

    def commit(self) -> None:
        for replica in self.replicas:
            if replica is not self.leader:
                self.committed = max(self.committed, settled([self.leader, replica]))
        self.leader.commit(self.committed)

    def delete_prefix(self) -> None:
        self.any().delete_prefix(self.random)

    def flush(self) -> None:
        self.any().flush()

    def begin_flush(self) -> None:
        self.any().begin_flush()

    def finish_flush(self) -> None:
        self.any().finish_flush()

    def tidy(self) -> None:
        self.any().tidy()

    def reopen(self) -> None:
        self.any().reopen()

    def crash(self) -> None:
        self.any().crash(self.random.getrandbits(32))


@pytest.mark.usefixtures("small_intervals")
@pytest.mark.parametrize("seed", range(40))
def test_all_replicas_match_the_model(seed: int) -> None:
    group = Group(seed)
    for _ in range(150):
        group.step()
        for replica in group.replicas:
            check(replica.log, replica.history)
    for replica in group.replicas:
        while replica.history.entries != group.leader.history.entries:
            group.fetch_to(replica)
        check(replica.log, group.leader.history)


@pytest.mark.usefixtures("small_intervals")
@pytest.mark.parametrize("seed", range(16))
def test_a_power_cut_at_any_operation_leaves_whole_entries_and_all_flushed_ones(seed: int) -> None:
    group = Group(1000 + seed)
    chance = Random(seed)
    looked = 0

    def watch(replica: Replica) -> None:
        disk = replica.disk

        def look(number: int, kind: str, path: str) -> None:
            nonlocal looked
            if replica.disk is disk and chance.random() < 0.4:
                looked += 1
                after: SimDisk = disk.after_power_cut(number)
                try:
                    replica.check_survivor(after)
                except BaseException as problem:
                    problem.add_note(f"power cut before operation {number}: {kind} {path}")
                    raise

        disk.on_operation = look

    for _ in range(100):
        for replica in group.replicas:
            if replica.disk.on_operation is None:
                watch(replica)
        group.step()
    assert looked > 50


def test_the_random_groups_include_a_follower_that_has_to_be_reset() -> None:
    """Else the tests above would pass because resets never happen in them."""
    groups = [Group(seed) for seed in range(40)]
    for group in groups:
        for _ in range(150):
            group.step()
    assert sum(group.resets for group in groups) > 5


# --- mutants: seeded bugs that these tests must find


def let_a_segment_end_with_a_control_entry(patch: pytest.MonkeyPatch) -> None:
    has_room = Segment.has_room

    def without_the_rule(self: Segment, size: int, next_offset: int, timestamp: int) -> bool:
        forced, self._force_entry = self._force_entry, False
        try:
            return has_room(self, size, next_offset, timestamp)
        finally:
            self._force_entry = forced

    patch.setattr(Segment, "has_room", without_the_rule)


def compute_the_flushed_index_from_the_offset(patch: pytest.MonkeyPatch) -> None:
    def by_offset(self: EntryView) -> int:
        flushed = self._files.flushed.point.offset
        return self.end_index if flushed == self._files.state.end_offset else self.index_at(flushed)

    patch.setattr(EntryView, "flushed_index", property(by_offset))


def forget_the_count_of_deleted_control_entries(patch: pytest.MonkeyPatch) -> None:
    drop_first = Controls.drop_first

    def without_counting(self: Controls, count: int) -> None:
        gone = self.gone
        drop_first(self, count)
        self.gone = gone

    patch.setattr(Controls, "drop_first", without_counting)


def forget_the_state_at_the_beginning_of_segments(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("penstock.log.maintenance_task.MaintenanceTask._save_base_snapshots", lambda self: None)
    patch.setattr("penstock.log.replay._newest", lambda *_: None)


@pytest.mark.usefixtures("small_intervals")
def try_seeds(count: int) -> None:
    for seed in range(count):
        test_all_replicas_match_the_model(seed)
        test_a_power_cut_at_any_operation_leaves_whole_entries_and_all_flushed_ones(seed)


@pytest.mark.parametrize(
    "mutant",
    [
        let_a_segment_end_with_a_control_entry,
        compute_the_flushed_index_from_the_offset,
        forget_the_count_of_deleted_control_entries,
        forget_the_state_at_the_beginning_of_segments,
    ],
)
def test_the_random_groups_find(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, CorruptLog, KafkaError, ValueError)):
        try_seeds(40)
