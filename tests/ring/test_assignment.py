"""Which worker should own which slot: even shares, and little moves."""

from collections import Counter
from math import ceil
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.ring.assignment import UNASSIGNED, rebalanced
from penstock.ring.slots import SLOTS, bitmap_of

NAMES = st.text(min_size=1, max_size=20)
MEMBERS_MAX = 512


def _moved(before, after) -> int:
    return sum(old != new for old, new in zip(before, after, strict=True))


def _slots(targets, worker: str) -> bytes:
    return bitmap_of(slot for slot in range(SLOTS) if targets[slot] == worker)


def _check_even(targets, workers) -> None:
    loads = Counter(targets)
    assert loads.keys() == set(workers)
    assert max(loads.values()) - min(loads.values()) <= 1
    assert max(loads.values()) <= 1.25 * SLOTS / len(workers)


@given(st.sets(NAMES, min_size=1, max_size=40))
def test_from_nothing_shares_are_even_and_everybody_computes_the_same(workers) -> None:
    targets = rebalanced(UNASSIGNED, workers)
    _check_even(targets, workers)
    assert rebalanced(UNASSIGNED, sorted(workers, reverse=True)) == targets


@pytest.mark.parametrize("count", [1, 2, 3, 100, 500, 511, 512])
def test_from_nothing_shares_are_even_with_any_number_of_workers(count) -> None:
    workers = [f"worker-{number}" for number in range(count)]
    _check_even(rebalanced(UNASSIGNED, workers), workers)


def test_without_workers_no_slot_has_one() -> None:
    assert rebalanced(rebalanced(UNASSIGNED, ["a"]), []) == list(UNASSIGNED)


@pytest.mark.parametrize("least", [pytest.param(1, marks=pytest.mark.long), 490])
def test_one_by_one_512_workers_join_and_leave_and_each_moves_only_its_own_share(least) -> None:
    random = Random(1)
    workers = [f"worker-{number}" for number in range(least)]
    targets = rebalanced(UNASSIGNED, workers)
    while len(workers) < MEMBERS_MAX:
        workers.append(f"worker-{len(workers)}")
        after = rebalanced(targets, workers)
        assert _moved(targets, after) <= ceil(SLOTS / len(workers)) <= 1.2 * SLOTS / len(workers)
        _check_even(after, workers)
        targets = after
    while len(workers) > least:
        leaver = workers.pop(random.randrange(len(workers)))
        after = rebalanced(targets, workers)
        assert _moved(targets, after) == targets.count(leaver) <= ceil(SLOTS / (len(workers) + 1))
        _check_even(after, workers)
        targets = after


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from("abcdefghijklm"), min_size=1, max_size=30))
def test_a_join_or_leave_moves_at_most_one_share_and_a_return_restores_the_table(names) -> None:
    """Each name of the list joins, or leaves if it is there. All who leave are remembered, as in a clique."""
    workers: set[str] = set()
    homes: dict[str, bytes] = {}
    targets: list[str | None] = list(UNASSIGNED)
    for name in names:
        before = targets
        if name in workers:
            homes[name] = _slots(targets, name)
            left = rebalanced(targets, workers - {name}, homes)
            assert not workers - {name} or rebalanced(left, workers, {name: homes[name]}) == targets
            workers.remove(name)
            targets, share = left, len(workers) + 1
        else:
            workers.add(name)
            targets = rebalanced(targets, workers, homes)
            homes.pop(name, None)
            share = len(workers)
        assert _moved(before, targets) <= ceil(SLOTS / share) <= 1.2 * SLOTS / share
        if workers:
            _check_even(targets, workers)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.sets(st.sampled_from("abcdefghij"), min_size=1))
def test_any_table_can_be_evened_out(seed, workers) -> None:
    """Also one that no sequence of joins and leaves makes."""
    random = Random(seed)
    owners = random.sample([None, *"abcdefgh"], random.randint(1, 9))
    targets = random.choices(owners, weights=[random.random() for _ in owners], k=SLOTS)
    after = rebalanced(targets, workers)
    _check_even(after, workers)
    loads, shares = Counter(targets), Counter(after)
    kept = sum(old == new for old, new in zip(targets, after, strict=True))
    assert kept == sum(min(loads[worker], shares[worker]) for worker in workers), (
        "no slot moves away from a worker that takes another one"
    )


def test_workers_that_left_one_after_the_other_get_their_slots_back_in_reverse_order() -> None:
    workers = {"a", "b", "c", "d", "e"}
    before = rebalanced(UNASSIGNED, workers)
    homes = {name: _slots(before, name) for name in "ab"}
    without_a = rebalanced(before, workers - {"a"})
    homes["b"] = _slots(without_a, "b")
    without_both = rebalanced(without_a, workers - {"a", "b"})
    with_b = rebalanced(without_both, workers - {"a"}, homes)
    assert with_b == without_a
    assert rebalanced(with_b, workers, homes) == before
