"""The ring level: cliques keep their promises under any mix of faults, and bugs are found."""

from tests.sim.levels import Level
from tests.sim.mutants import Mutant, seeds_to_detection

LEVEL = Level("ring", seeds=60, share=4, mutant_seeds=100, quick_mutant_seeds=10)


@LEVEL.shares()
def test_no_seed_breaks_a_promise(first: int) -> None:
    LEVEL.run(first)


def test_a_seed_is_a_function_of_its_number_however_strings_hash() -> None:
    first, other, again = LEVEL.digests(3, 5, 3)
    assert first == again != other


@LEVEL.mutants()
def test_a_seeded_bug_is_found(mutant: Mutant) -> None:
    assert seeds_to_detection(mutant) is not None
