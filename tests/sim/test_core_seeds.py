"""The core level: bare Raft cores with real logs keep their promises under any mix of faults, and bugs are found."""

import os
import subprocess
import sys

import pytest

from penstock.sim.seeds import run_seed
from tests.sim.mutants import MUTANTS, Mutant, seeds_to_detection

SEEDS, QUICK_SEEDS, SHARE = 300, 75, 75
"""How many seeds `make test-long` runs, how many of them `make test` runs, and how many of them form one test."""
MUTANT_SEEDS, QUICK_MUTANT_SEEDS = 40, 15
"""Mutants that the simulator finds within so many seeds are tested here, by `make test-long` and by `make test`;
`make mutants` hunts them all."""


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=pytest.mark.long if first >= QUICK_SEEDS else ())
        for first in range(0, SEEDS, SHARE)
    ],
)
def test_no_seed_breaks_a_promise(first: int) -> None:
    for seed in range(first, first + SHARE):
        failure = run_seed(seed).failure
        assert failure is None, f"seed {seed}: {failure.promise}: {failure.detail}"


def test_a_seed_is_a_function_of_its_number() -> None:
    first, again, other = run_seed(3), run_seed(3), run_seed(4)
    assert first == again
    assert first.digest != other.digest


def test_a_seed_does_not_depend_on_how_strings_hash() -> None:
    code = "from penstock.sim.seeds import run_seed; print([run_seed(seed).digest for seed in range(6)])"
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(
            mutant, marks=pytest.mark.long if mutant.seeds > QUICK_MUTANT_SEEDS else (), id=mutant.name
        )
        for mutant in MUTANTS
        if mutant.level == "core" and mutant.seeds <= MUTANT_SEEDS
    ],
)
def test_a_seeded_bug_is_found(mutant: Mutant) -> None:
    assert seeds_to_detection(mutant) is not None


def test_a_replica_may_acknowledge_the_prefix_that_it_has_installed() -> None:
    """The prefix ends with a control entry, and the replica's log begins at the same offset without it."""
    assert run_seed(73_000_073).failure is None


def test_a_lone_voter_may_commit_and_give_up_within_one_event() -> None:
    """Its disk is full: it is elected by itself, commits what it has, and cannot begin its term."""
    assert run_seed(700_096).failure is None


@pytest.mark.parametrize("seed", [7_700_937, 9_102_658, 20_001_424, 20_005_812, 40_006_772, 70_003_203])
def test_a_seed_that_once_broke_a_promise_keeps_it(seed: int) -> None:
    """A change to a voter that had just lost its disk (twice), a vote that was still being saved, a write that only the
    one voter of an earlier configuration had, and a lease from a reply to a beat after the reply before it was lost,
    and a configuration that a full disk had refused."""
    assert run_seed(seed).failure is None
