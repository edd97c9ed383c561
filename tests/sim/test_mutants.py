"""Seeded bugs are present while their context lasts, and gone afterwards."""

import pytest

from penstock.raft import core, leader
from penstock.raft.core import Raft
from penstock.raft.messages import AppendReply
from tests.sim.mutants import MUTANTS, Change, Mutant, applied


def test_there_are_enough_mutants_and_each_has_a_unique_name() -> None:
    assert len(MUTANTS) >= 12
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_still_fits_its_code_and_is_fully_undone(mutant: Mutant) -> None:
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


def test_a_mutant_that_no_longer_fits_the_code_is_reported() -> None:
    lost = Mutant("lost", "nothing", (Change(Raft, "may_serve", "a piece that is not there", "pass"),))
    with pytest.raises(LookupError, match="expected once"), applied(lost):
        pass
