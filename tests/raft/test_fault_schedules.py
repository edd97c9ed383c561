"""Random faults against the cores: fault_schedule.py lists the checks. A seed that fails here fails again."""

import pytest

from tests.raft.fault_schedule import FaultSchedule


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_no_fault_schedule_breaks_an_invariant(first: int) -> None:
    for seed in range(first, first + 10):
        schedule = FaultSchedule(seed)
        try:
            schedule.run()
        except Exception as problem:
            raise AssertionError(f"seed {seed}: {problem!r}") from problem


def test_fault_schedules_cause_elections_commits_and_truncations() -> None:
    """Schedules in which nothing happens would pass as well."""
    schedules = [FaultSchedule(seed) for seed in range(20)]
    for schedule in schedules:
        schedule.run()
    assert sum(len(schedule.leaders) for schedule in schedules) > 40
    assert sum(len(schedule.truth) for schedule in schedules) > 400
    assert sum(schedule.truncations for schedule in schedules) > 5


def test_the_same_seed_gives_the_same_schedule() -> None:
    first, second = FaultSchedule(7), FaultSchedule(7)
    first.run()
    second.run()
    assert first.truth == second.truth
    assert first.now == second.now
    assert first.random.getstate() == second.random.getstate()
