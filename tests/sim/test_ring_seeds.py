"""The ring level: cliques keep their promises under any mix of faults, and bugs are found."""

import os
import subprocess
import sys

import pytest

from penstock.sim.seeds import run_seed
from tests.sim.mutants import MUTANTS, Mutant, seeds_to_detection

SEEDS, QUICK_SEEDS, SHARE = 60, 6, 6
"""How many seeds `make test-long` runs, how many of them `make test` runs, and how many of them form one test."""
MUTANT_SEEDS, QUICK_MUTANT_SEEDS = 100, 10
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
        failure = run_seed(seed, level="ring").failure
        assert failure is None, f"seed {seed}: {failure.promise}: {failure.detail}"


def test_a_seed_is_a_function_of_its_number_however_strings_hash() -> None:
    code = "from penstock.sim.seeds import run_seed; print([run_seed(s, level='ring').digest for s in (3, 5, 3)])"
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    first, _, again = outputs[0].strip("[]\n").split(", ")
    assert first == again


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(
            mutant, marks=pytest.mark.long if mutant.seeds > QUICK_MUTANT_SEEDS else (), id=mutant.name
        )
        for mutant in MUTANTS
        if mutant.level == "ring" and mutant.seeds <= MUTANT_SEEDS
    ],
)
def test_a_seeded_bug_is_found(mutant: Mutant) -> None:
    assert seeds_to_detection(mutant) is not None
