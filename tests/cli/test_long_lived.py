"""Long-lived objects are excluded from the search for garbage, unless too much of them may be garbage."""

import gc
import sys

import pytest

from penstock.cli import long_lived
from penstock.cli.long_lived import BLOCKS_PER_REPLICA, OTHER_BLOCKS, LongLivedObjects

AT_START = 500_000


class Process:
    """Stands for Python's `gc` and `sys`, and counts blocks of memory only."""

    def __init__(self) -> None:
        self.new, self.excluded, self.garbage = AT_START, 0, 0
        self.peak = 0
        self.searches = 0

    def getallocatedblocks(self) -> int:
        self.peak = max(self.peak, self.new + self.excluded)
        return self.new + self.excluded

    def set_threshold(self, *thresholds: int) -> None: ...

    def freeze(self) -> None:
        self.new, self.excluded = 0, self.excluded + self.new

    def unfreeze(self) -> None:
        self.new, self.excluded = self.new + self.excluded, 0

    def collect(self) -> None:
        self.searches += 1
        self.new, self.garbage = self.new - self.garbage, 0


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    found = Process()
    for module, names in (
        (gc, ("set_threshold", "freeze", "unfreeze", "collect")),
        (sys, ("getallocatedblocks",)),
    ):
        assert all(callable(getattr(module, name)) for name in names)
    monkeypatch.setattr(long_lived, "gc", found)
    monkeypatch.setattr(long_lived, "sys", found)
    return found


def test_new_replicas_are_excluded_without_a_search(process: Process) -> None:
    objects = LongLivedObjects()
    for replicas in range(1_000, 101_000, 1_000):
        process.new += 1_000 * BLOCKS_PER_REPLICA
        objects.exclude(replicas)
    assert process.searches == 0
    assert process.new == 0


def test_garbage_that_was_excluded_is_found_before_it_takes_too_much_memory(process: Process) -> None:
    """A client may open and close connections between two topics, again and again."""
    objects = LongLivedObjects()
    for _ in range(100):
        process.new += 100_000
        process.garbage += 100_000
        objects.exclude(replicas=1_000)
    assert process.peak <= 2 * AT_START + OTHER_BLOCKS + 1_000 * BLOCKS_PER_REPLICA + 100_000


def test_objects_that_are_no_garbage_are_searched_once_and_not_each_time(process: Process) -> None:
    objects = LongLivedObjects()
    process.new = 50_000_000
    for _ in range(10):
        objects.exclude(replicas=1_000)
    assert process.searches == 1
