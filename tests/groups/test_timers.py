"""Deadlines: kept in order, moved cheaply, and never piling up."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.groups.timers import STALE_FACTOR, STALE_MIN, Timers

KEYS = st.sampled_from([("a",), ("b",), ("c", "d")])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, st.integers(0, 50)),
        st.tuples(st.just("cancel"), KEYS, st.just(0)),
        st.tuples(st.just("pass"), st.just(("a",)), st.integers(0, 20)),
    ),
    max_size=40,
)


@given(STEPS)
def test_timers_do_what_a_plain_table_of_deadlines_would(
    steps: list[tuple[str, tuple[str, ...], int]],
) -> None:
    timers, table, now_ms = Timers(), dict[tuple[str, ...], int](), 0
    for step, key, number in steps:
        if step == "set":
            timers.set(key, now_ms + number)
            table[key] = now_ms + number
        elif step == "cancel":
            timers.cancel(key)
            table.pop(key, None)
        else:
            now_ms += number
            due = list(timers.due(now_ms))
            assert set(due) == {key for key, deadline_ms in table.items() if deadline_ms <= now_ms}
            table = {key: deadline_ms for key, deadline_ms in table.items() if deadline_ms > now_ms}
        next_ms = timers.next_ms
        assert (next_ms is None) == (not table)
        assert next_ms is None or next_ms <= min(table.values())
        assert len(timers) == len(table)
        assert all(key in timers for key in table)


def test_a_deadline_that_moves_costs_no_place_in_the_heap() -> None:
    timers = Timers()
    for now_ms in range(10_000):
        timers.set(("member",), now_ms + 100)
    assert len(timers._heap) == 1


def test_keys_that_come_and_go_do_not_pile_up() -> None:
    timers = Timers()
    for number in range(10_000):
        timers.set((str(number),), 1_000_000)
        timers.cancel((str(number),))
    assert len(timers._heap) <= STALE_MIN + STALE_FACTOR


def test_looking_at_the_next_deadline_brings_it_closer_to_the_truth() -> None:
    timers = Timers()
    timers.set(("a",), 10)
    timers.set(("a",), 50)
    assert timers.next_ms == 10
    assert list(timers.due(10)) == []
    assert timers.next_ms == 50
