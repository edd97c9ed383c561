"""Terms and votes: flushed ones survive power cuts, full disks and damage, or the damage is reported."""

import os
import threading
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from penstock.errors import CorruptLog, DiskFull, StorageError
from penstock.log import Disk, SavedVote, VoteStore
from penstock.log.os_disk import OsDisk
from penstock.sim import SimDisk
from penstock.types import GroupId, NodeId, Replica, Term
from tests.log.tools import pread_with_a_bad_sector

PATH = "topics/votes"


def group(number: int) -> GroupId:
    return GroupId(UUID(int=number * 7**40 % 2**128), number % 5)


def vote(term: int, node: int | None = None, *, has_log: bool = True) -> SavedVote:
    voted_for = None if node is None else Replica(NodeId(node), 2**63 - 1 - node)
    return SavedVote(Term(term), voted_for, has_log)


def put(store: VoteStore, number: int, saved: SavedVote) -> None:
    store.put(group(number), saved, saved.has_log)


def contents(store: VoteStore) -> dict[GroupId, SavedVote]:
    return {each: store.get(each) for each in store.groups()}


def test_a_vote_is_visible_at_once_and_after_a_flush_also_to_the_next_process(disk: Disk) -> None:
    store = VoteStore(disk, PATH)
    assert store.get(group(1)) == (-1, None, False, 0)
    put(store, 1, vote(5, 3))
    put(store, 2, vote(7, has_log=False))
    put(store, 1, vote(6))
    assert store.get(group(1)) == vote(6)
    assert store.dirty
    store.flush()
    assert not store.dirty
    again = VoteStore(disk, PATH)
    assert contents(again) == {group(1): vote(6), group(2): vote(7, has_log=False)}


def test_a_removed_group_stays_removed(disk: Disk) -> None:
    store = VoteStore(disk, PATH)
    for number in (1, 2):
        put(store, number, vote(5, number))
    store.flush()
    store.forget(group(1))
    store.forget(group(9))
    store.flush()
    store = VoteStore(disk, PATH)
    assert store.groups() == [group(2)]
    put(store, 1, vote(0))
    store.flush()
    assert VoteStore(disk, PATH).get(group(1)) == vote(0)


def test_all_groups_cost_one_flush_of_one_file(sim: SimDisk) -> None:
    store = VoteStore(sim, PATH)
    operations: list[str] = []
    sim.on_operation = lambda _, kind, path: operations.append(kind)
    for number in range(500):
        put(store, number, vote(3, 1))
    store.flush()
    store.flush()
    assert operations == ["write", "flush"]


def test_the_files_do_not_grow_with_the_number_of_elections(disk: Disk) -> None:
    store = VoteStore(disk, PATH)
    for term in range(400):
        for number in range(10):
            put(store, number, vote(term, number))
        store.flush()
    assert sum(disk.size(f"{PATH}.{number}") for number in (0, 1)) == 2 * 64 * 1024
    assert contents(VoteStore(disk, PATH)) == {group(n): vote(399, n) for n in range(10)}


def test_the_files_grow_with_the_number_of_groups(disk: Disk) -> None:
    store = VoteStore(disk, PATH)
    for number in range(5000):
        put(store, number, vote(1, number))
        if number % 900 == 0:
            store.flush()
    store.flush()
    assert len(contents(VoteStore(disk, PATH))) == 5000


class Elections:
    """A store under random use, and its possible contents after a power cut."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = SimDisk(seed)
        self.disk.make_dir("topics")
        self.disk.sync_dir("")
        self.store = VoteStore(self.disk, PATH)
        self.flushed: dict[GroupId, SavedVote] = {}
        self.put: dict[GroupId, list[SavedVote]] = {}
        """Everything that was put since the last flush, in order."""

    def round(self) -> None:
        for _ in range(self.random.choice((1, 3, 40))):
            number = self.random.randrange(60)
            saved = vote(self.store.get(group(number)).term + 1, self.random.choice((None, 1, 2)))
            put(self.store, number, saved)
            self.put.setdefault(group(number), []).append(saved)
        self.store.flush()
        self.flushed.update({each: saves[-1] for each, saves in self.put.items()})
        self.put.clear()

    def check(self, after: SimDisk) -> None:
        found = contents(VoteStore(after, PATH))
        for each in {**self.flushed, **self.put}:
            allowed = [self.flushed.get(each, (-1, None, False)), *self.put.get(each, [])]
            assert found.get(each, (-1, None, False)) in allowed
        assert set(found) <= {**self.flushed, **self.put}.keys()


@pytest.mark.parametrize("seed", range(6))
def test_no_flushed_vote_is_lost_in_a_power_cut_at_any_operation(seed: int) -> None:
    world = Elections(seed)
    looks = 0

    def look(number: int, kind: str, path: str) -> None:
        nonlocal looks
        looks += 1
        for choice in range(2):
            world.check(world.disk.after_power_cut(number * 10 + choice))

    world.disk.on_operation = look
    for _ in range(120):
        world.round()
    assert looks > 240


@pytest.mark.parametrize("seed", range(6))
def test_votes_are_kept_over_many_power_cuts(seed: int) -> None:
    world = Elections(seed)
    for _ in range(40):
        for _ in range(world.random.randrange(8)):
            world.round()
        number = world.random.randrange(60)
        world.store.put(group(number), vote(10**6), True)
        world.put[group(number)] = [vote(10**6)]
        world.disk.on_operation = None
        after = world.disk.after_power_cut(world.random.getrandbits(32))
        world.check(after)
        world.disk, world.store = after, VoteStore(after, PATH)
        world.flushed, world.put = contents(world.store), {}


def test_a_store_interrupted_during_its_creation_is_created_again() -> None:
    disk = SimDisk(1)
    disk.make_dir("topics")
    disk.sync_dir("")
    survivors: list[SimDisk] = []
    disk.on_operation = lambda number, *_: survivors.extend(disk.after_power_cut(s) for s in range(4))
    VoteStore(disk, PATH)
    assert len(survivors) > 20
    for after in survivors:
        store = VoteStore(after, PATH)
        put(store, 1, vote(1, 1))
        store.flush()
        assert contents(VoteStore(after, PATH)) == {group(1): vote(1, 1)}


def test_damage_in_flushed_votes_is_reported_and_not_skipped(sim: SimDisk) -> None:
    store = VoteStore(sim, PATH)
    for term in range(4):
        for number in range(3):
            put(store, number, vote(term, number))
        store.flush()
    for position in range(512, 512 + 9 * 64, 13):
        sim.flip_bit(f"{PATH}.1", position)
        with pytest.raises(CorruptLog, match=r"votes\.1 at byte"):
            VoteStore(sim, PATH)
        sim.flip_bit(f"{PATH}.1", position)
    assert len(contents(VoteStore(sim, PATH))) == 3


@pytest.mark.parametrize("position", [0, 9, 17, 21])
@pytest.mark.parametrize("number", [0, 1])
def test_damage_in_a_head_is_reported(sim: SimDisk, number: int, position: int) -> None:
    store = VoteStore(sim, PATH)
    put(store, 1, vote(1, 1))
    store.flush()
    sim.flip_bit(f"{PATH}.{number}", position)
    with pytest.raises(CorruptLog, match="head"):
        VoteStore(sim, PATH)


def test_a_missing_file_is_reported(sim: SimDisk) -> None:
    store = VoteStore(sim, PATH)
    for term in range(1200):
        put(store, 1, vote(term, 1))
        store.flush()
    for number in (0, 1):
        data = sim.read_file(f"{PATH}.{number}")
        sim.remove(f"{PATH}.{number}")
        with pytest.raises(CorruptLog, match="gone"):
            VoteStore(sim, PATH)
        sim.write_file_atomic(f"{PATH}.{number}", data)
    assert VoteStore(sim, PATH).get(group(1)) == vote(1199, 1)


def test_a_full_disk_does_not_stop_elections(sim: SimDisk) -> None:
    store = VoteStore(sim, PATH)
    sim.capacity = 0
    for term in range(300):
        for number in range(20):
            put(store, number, vote(term, number))
        store.flush()
    assert contents(VoteStore(sim, PATH)) == {group(n): vote(299, n) for n in range(20)}


def test_votes_that_do_not_fit_on_a_full_disk_wait_for_space(sim: SimDisk) -> None:
    store = VoteStore(sim, PATH)
    sim.capacity = 0
    for number in range(2000):
        put(store, number, vote(1, number))
    for _ in range(2):
        with pytest.raises(DiskFull):
            store.flush()
    assert store.dirty
    sim.capacity = None
    store.flush()
    assert len(contents(VoteStore(sim, PATH))) == 2000


def test_after_a_failed_flush_every_later_flush_fails(sim: SimDisk) -> None:
    store = VoteStore(sim, PATH)
    put(store, 1, vote(1, 1))
    sim.fail_flush("votes")
    for _ in range(2):
        with pytest.raises(StorageError):
            store.flush()
    assert store.failed is not None


def test_a_vote_whose_flush_failed_is_not_known_to_the_next_process(sim: SimDisk) -> None:
    """It was not saved, and the next process must not believe that it was: a power cut would take it away, and the
    replica could vote again in the same term."""
    store = VoteStore(sim, PATH)
    put(store, 1, vote(1, 1))
    store.flush()
    put(store, 1, vote(2, 2))
    sim.fail_flush("votes")
    with pytest.raises(StorageError):
        store.flush()
    sim.process_died()
    again = VoteStore(sim, PATH)
    assert again.get(group(1)) == vote(1, 1)
    put(again, 1, vote(2, 3))
    again.flush()
    for seed in range(10):
        assert VoteStore(sim.after_power_cut(seed), PATH).get(group(1)) == vote(2, 3)


def test_votes_behind_a_bad_sector_are_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store would be rewritten without them, and the replica could vote again in the same term."""
    disk = OsDisk(tmp_path)
    disk.make_dir("topics")
    store = VoteStore(disk, PATH)
    for number in range(200):
        put(store, number, vote(1, 1))
        store.flush()
    size = max(disk.size(f"topics/{name}") for name in disk.list_dir("topics"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", pread_with_a_bad_sector(size // 2))
        with pytest.raises(CorruptLog, match="cannot be read: Input/output error"):
            VoteStore(disk, PATH)
    assert VoteStore(disk, PATH).get(group(199)) == vote(1, 1)


def test_votes_may_be_put_while_another_thread_flushes(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    disk.make_dir("topics")
    store = VoteStore(disk, PATH)
    done = threading.Event()

    def flush_on() -> None:
        while not done.is_set():
            store.flush()

    threads = [threading.Thread(target=flush_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    for term in range(300):
        put(store, term % 7, vote(term, 1))
    done.set()
    for thread in threads:
        thread.join()
    store.flush()
    assert contents(VoteStore(disk, PATH)) == contents(store)


def test_a_recreated_replica_keeps_its_vote_and_has_no_log(disk: Disk) -> None:
    store = VoteStore(disk, PATH)
    put(store, 1, vote(5, 2))
    store.renew(group(1), 1)
    store.flush()
    again = VoteStore(disk, PATH)
    assert again.get(group(1)) == SavedVote(Term(5), Replica(NodeId(2), 2**63 - 3), False, 1)
    put(again, 1, vote(6, 3))
    assert again.get(group(1)).life == 1
    with pytest.raises(StorageError, match="no life 1 after 1"):
        again.renew(group(1), 1)
    again.forget(group(1))
    assert again.get(group(1)).life == 0
