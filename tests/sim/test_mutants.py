"""Seeded bugs are there as long as they are wanted, and no longer."""

import pytest

from penstock.raft import core, leader
from penstock.raft.core import Raft
from penstock.raft.messages import AppendReply
from tests.sim.mutants import MUTANTS, Change, Mutant, applied


def test_there_are_enough_of_them_and_each_has_a_name() -> None:
    assert len(MUTANTS) >= 12
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_still_fits_the_code_it_changes_and_goes_without_a_trace(mutant: Mutant) -> None:
    before = [getattr(change.owner, change.function) for change in mutant.changes]
    with applied(mutant):
        assert [getattr(change.owner, change.function) for change in mutant.changes] != before
    assert [getattr(change.owner, change.function) for change in mutant.changes] == before


def test_a_function_that_a_table_names_is_changed_there_too() -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "reply of an earlier term")
    original = leader.on_append_reply
    with applied(mutant):
        assert core._STEPS[AppendReply] is leader.on_append_reply
        assert core._STEPS[AppendReply] is not original
    assert core._STEPS[AppendReply] is original


def test_code_that_has_changed_is_noticed() -> None:
    lost = Mutant("lost", "nothing", (Change(Raft, "may_serve", "a piece that is not there", "pass"),))
    with pytest.raises(LookupError, match="expected once"), applied(lost):
        pass
