"""What members of a consumer group may be told."""

import pytest

from penstock.sim.ledger import Ledger
from penstock.sim.outcome import Violation


def test_a_partition_has_one_owner_in_a_generation_and_may_have_another_in_the_next() -> None:
    ledger = Ledger("g")
    ledger.assigned("m1", 1, [0, 1])
    ledger.assigned("m1", 1, [0, 1])
    ledger.assigned("m2", 2, [0, 1])
    with pytest.raises(Violation, match="partition 1 in generation 1 of g: m1 and m2"):
        ledger.assigned("m2", 1, [1])


def test_what_was_acknowledged_is_shown_to_whoever_asks_later() -> None:
    ledger = Ledger("g")
    ledger.acknowledged({0: 7})
    ledger.shown("m1", 0, 7, reached=ledger.reached(0))
    with pytest.raises(Violation, match="told 6 for partition 0 of g, and 7 was committed"):
        ledger.shown("m1", 0, 6, reached=ledger.reached(0))


def test_who_asked_before_an_acknowledgement_need_not_see_it() -> None:
    ledger = Ledger("g")
    before = ledger.reached(0)
    ledger.acknowledged({0: 7})
    ledger.shown("m1", 0, 3, reached=before)


def test_what_was_shown_to_one_is_shown_to_all() -> None:
    ledger = Ledger("g")
    ledger.shown("m1", 0, 9, reached=ledger.reached(0))
    with pytest.raises(Violation, match="never goes back"):
        ledger.shown("m2", 0, 8, reached=ledger.reached(0))
