"""The level of transactions: programs do each step exactly once under any mix of faults, and bugs are found."""

import pytest

from tests.sim.levels import Level
from tests.sim.mutants import Mutant, seeds_to_detection

LEVEL = Level("transactions", seeds=60, share=2, mutant_seeds=40, quick_mutant_seeds=10)


@LEVEL.shares()
def test_no_seed_breaks_a_promise(first: int) -> None:
    outcomes = LEVEL.run(first)
    assert sum(outcome.counts["transactions committed"] for outcome in outcomes) >= 6
    assert sum(outcome.counts["polls of committed records"] for outcome in outcomes) >= 200


@pytest.mark.long
def test_a_seed_is_a_function_of_its_number_however_strings_hash() -> None:
    first, again = LEVEL.digests(1, 1)
    assert first == again


@LEVEL.mutants()
def test_a_seeded_bug_is_found(mutant: Mutant) -> None:
    assert seeds_to_detection(mutant) is not None
