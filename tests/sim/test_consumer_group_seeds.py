"""The level of groups: no partition of a consumer group is in two hands under any mix of faults, and bugs are found."""

from tests.sim.levels import Level
from tests.sim.mutants import Mutant, seeds_to_detection

LEVEL = Level("groups", seeds=40, share=2, mutant_seeds=40, quick_mutant_seeds=3)


@LEVEL.shares()
def test_no_seed_breaks_a_promise(first: int) -> None:
    for outcome in LEVEL.run(first):
        assert outcome.counts["partitions that changed hands"] >= 4


@LEVEL.mutants()
def test_a_seeded_bug_is_found(mutant: Mutant) -> None:
    assert seeds_to_detection(mutant) is not None
