"""The node level: whole production nodes keep their promises in any weather."""

import os
import subprocess
import sys

import pytest

from penstock.sim.mutants import MUTANTS, Mutant, seeds_to_detection
from penstock.sim.seeds import run_seed

SEEDS, SHARE = 20, 10
QUICK = 30
"""Seeds that a mutant may need to be hunted here; `make mutants` hunts them all."""


@pytest.mark.parametrize("first", range(0, SEEDS, SHARE))
def test_no_seed_breaks_a_promise(first: int) -> None:
    for seed in range(first, first + SHARE):
        failure = run_seed(seed, level="node").failure
        assert failure is None, f"seed {seed}: {failure.promise}: {failure.detail}"


def test_a_seed_is_a_function_of_its_number_however_strings_hash() -> None:
    code = "from penstock.sim.seeds import run_seed; print([run_seed(s, level='node').digest for s in (1, 6, 1)])"
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
    first, _, again = outputs[0].strip("[]\n").split(", ")
    assert first == again


@pytest.mark.parametrize(
    "mutant", [m for m in MUTANTS if m.level == "node" and m.seeds <= QUICK], ids=lambda mutant: mutant.name
)
def test_a_seeded_bug_is_found(mutant: Mutant) -> None:
    assert seeds_to_detection(mutant) is not None
