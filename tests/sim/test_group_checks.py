"""Which assignments and offsets a coordinator may show to members of a consumer group."""

import pytest

from penstock.sim.group_checks import GroupChecks
from penstock.sim.outcome import Violation


def test_a_partition_has_one_owner_in_a_generation_and_may_have_another_in_the_next() -> None:
    checks = GroupChecks("g")
    checks.assigned("m1", 1, [0, 1])
    checks.assigned("m1", 1, [0, 1])
    checks.assigned("m2", 2, [0, 1])
    with pytest.raises(Violation, match="partition 1 in generation 1 of g: m1 and m2"):
        checks.assigned("m2", 1, [1])


def test_an_acknowledged_commit_is_visible_to_every_later_request() -> None:
    checks = GroupChecks("g")
    checks.acknowledged({0: 7})
    checks.shown("m1", 0, 7, reached=checks.reached(0))
    with pytest.raises(Violation, match="told 6 for partition 0 of g, and 7 was committed"):
        checks.shown("m1", 0, 6, reached=checks.reached(0))


def test_a_request_from_before_an_acknowledgement_need_not_see_the_commit() -> None:
    checks = GroupChecks("g")
    before = checks.reached(0)
    checks.acknowledged({0: 7})
    checks.shown("m1", 0, 3, reached=before)


def test_an_offset_that_one_reader_saw_is_visible_to_all_later_readers() -> None:
    checks = GroupChecks("g")
    checks.shown("m1", 0, 9, reached=checks.reached(0))
    with pytest.raises(Violation, match="never goes back"):
        checks.shown("m2", 0, 8, reached=checks.reached(0))
