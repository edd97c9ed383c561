"""The node level: whole production nodes keep their promises under any mix of faults."""

import pytest

from penstock.sim.seeds import run_seed
from tests.sim.levels import Level
from tests.sim.mutants import Mutant, seeds_to_detection

LEVEL = Level("node", seeds=21, share=3, mutant_seeds=30, quick_mutant_seeds=10)


@LEVEL.shares()
def test_no_seed_breaks_a_promise(first: int) -> None:
    LEVEL.run(first)


@pytest.mark.long
def test_a_seed_is_a_function_of_its_number_however_strings_hash() -> None:
    first, other, again = LEVEL.digests(1, 6, 1)
    assert first == again != other


@LEVEL.mutants()
def test_a_seeded_bug_is_found(mutant: Mutant) -> None:
    assert seeds_to_detection(mutant) is not None


def test_a_replica_that_returns_after_its_files_were_deleted_is_copied_again() -> None:
    """A cancelled move left it as a learner of its group while its node deleted the files."""
    assert run_seed(20_000_024, level="node").failure is None


def test_a_leader_that_loses_power_in_the_event_in_which_it_moved_its_start_has_chosen_that_start() -> None:
    """The simulator had not looked at it between the move and the power cut, and raised a false alarm later."""
    assert run_seed(230_000_359, level="node").failure is None
