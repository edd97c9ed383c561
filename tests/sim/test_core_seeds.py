"""The core level: bare Raft cores with real logs keep their promises under any mix of faults, and bugs are found."""

import pytest

from penstock.sim.seeds import run_seed
from tests.sim.levels import Level
from tests.sim.mutants import Mutant, seeds_to_detection

LEVEL = Level("core", seeds=300, share=50, mutant_seeds=40, quick_mutant_seeds=15)


@LEVEL.shares()
def test_no_seed_breaks_a_promise(first: int) -> None:
    LEVEL.run(first)


def test_a_seed_is_a_function_of_its_number() -> None:
    first, again, other = run_seed(3), run_seed(3), run_seed(4)
    assert first == again
    assert first.digest != other.digest


def test_a_seed_does_not_depend_on_how_strings_hash() -> None:
    LEVEL.digests(*range(6))  # checks it


@LEVEL.mutants()
def test_a_seeded_bug_is_found(mutant: Mutant) -> None:
    assert seeds_to_detection(mutant) is not None


def test_a_replica_may_acknowledge_the_prefix_that_it_has_installed() -> None:
    """The prefix ends with a control entry, and the replica's log begins at the same offset without it."""
    assert run_seed(73_000_073).failure is None


def test_a_lone_voter_may_commit_and_give_up_within_one_event() -> None:
    """Its disk is full: it is elected by itself, commits what it has, and cannot begin its term."""
    assert run_seed(700_096).failure is None


@pytest.mark.parametrize(
    "seed", [7_700_937, 9_102_658, 20_001_424, 20_005_812, 40_006_772, 70_003_203, 240_002_919]
)
def test_a_seed_that_once_broke_a_promise_keeps_it(seed: int) -> None:
    """A change to a voter that had just lost its disk (twice), a vote that was still being saved, a write that only the
    one voter of an earlier configuration had, a lease from a reply to a heartbeat after the reply before it was lost,
    a configuration that a full disk had refused, and a flush for a snapshot after the flush before it had failed in its
    thread."""
    assert run_seed(seed).failure is None
