"""The core level: bare Raft cores with real logs keep their promises in any weather, and bugs are found."""

import os
import subprocess
import sys

import pytest

from penstock.sim.mutants import MUTANTS, Mutant, seeds_to_detection
from penstock.sim.seeds import run_seed

SEEDS, SHARE = 300, 75
QUICK = 40
"""Seeds that a mutant may need to be hunted here; `make mutants` hunts them all."""


@pytest.mark.parametrize("first", range(0, SEEDS, SHARE))
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
    "mutant", [m for m in MUTANTS if m.level == "core" and m.seeds <= QUICK], ids=lambda mutant: mutant.name
)
def test_a_seeded_bug_is_found(mutant: Mutant) -> None:
    assert seeds_to_detection(mutant) is not None


def test_a_lone_voter_may_commit_and_give_up_within_one_event() -> None:
    """Its disk is full: it is elected by itself, commits what it has, and cannot begin its term."""
    assert run_seed(700_096).failure is None
