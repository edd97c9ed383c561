"""The level of machines: two replicas, or two votes, never share a machine, and bugs are found."""

import pytest

from penstock.sim.seeds import MACHINES, run_seed
from tests.sim.levels import Level
from tests.sim.mutants import Mutant, seeds_to_detection

LEVEL = Level(MACHINES, seeds=20, share=2, mutant_seeds=60, quick_mutant_seeds=10)


@LEVEL.shares()
def test_no_seed_breaks_a_promise(first: int) -> None:
    for outcome in LEVEL.run(first):
        assert outcome.counts["machines lost"] == 2


@LEVEL.mutants()
def test_a_seeded_bug_is_found(mutant: Mutant) -> None:
    assert seeds_to_detection(mutant) is not None


@pytest.mark.parametrize("nodes", [24, pytest.param(100, marks=pytest.mark.long)])
def test_more_nodes_than_production_allows_form_a_cluster_and_survive_lost_machines(nodes: int) -> None:
    outcome = run_seed(1, level=MACHINES, nodes=nodes)
    assert outcome.failure is None, f"{outcome.failure.promise}: {outcome.failure.detail}"
    assert outcome.counts["nodes"] == nodes
    assert outcome.counts["connections"] == nodes * (nodes - 1) / 2
