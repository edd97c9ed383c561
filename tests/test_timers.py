"""Deadlines: ordered, cheap to move, and bounded in memory."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.timers import STALE_FACTOR, STALE_MIN, Timers

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
def test_timers_match_a_plain_table_of_deadlines(
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


def test_moving_a_deadline_adds_no_heap_entry() -> None:
    timers = Timers()
    for now_ms in range(10_000):
        timers.set(("member",), now_ms + 100)
    assert len(timers._heap) == 1


def test_removed_keys_do_not_accumulate() -> None:
    timers = Timers()
    for number in range(10_000):
        timers.set((str(number),), 1_000_000)
        timers.cancel((str(number),))
    assert len(timers._heap) <= STALE_MIN + STALE_FACTOR


def test_checking_due_timers_updates_the_next_deadline() -> None:
    timers = Timers()
    timers.set(("a",), 10)
    timers.set(("a",), 50)
    assert timers.next_ms == 10
    assert list(timers.due(10)) == []
    assert timers.next_ms == 50
