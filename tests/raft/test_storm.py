"""Chance against the cores: see storm.py for what is checked. A seed that fails here fails again."""

import pytest

from tests.raft.storm import Storm


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_no_weather_breaks_what_must_hold(first: int) -> None:
    for seed in range(first, first + 10):
        storm = Storm(seed)
        try:
            storm.run()
        except Exception as problem:
            raise AssertionError(f"seed {seed}: {problem!r}") from problem


def test_a_storm_is_one_to_speak_of() -> None:
    """Storms in which nothing happens would hold as well."""
    storms = [Storm(seed) for seed in range(20)]
    for storm in storms:
        storm.run()
    assert sum(len(storm.leaders) for storm in storms) > 40
    assert sum(len(storm.truth) for storm in storms) > 400
    assert sum(storm.truncations for storm in storms) > 5


def test_the_same_seed_is_the_same_storm() -> None:
    first, second = Storm(7), Storm(7)
    first.run()
    second.run()
    assert first.truth == second.truth
    assert first.now == second.now
    assert first.random.getstate() == second.random.getstate()
