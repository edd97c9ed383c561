"""The messages of a publisher run in the order in which it published them, whichever way they came."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.clique import ordering
from penstock.clique.ordering import OrderMark, Resequencer, SequenceState

SLOT, STREAM, GAP_S = 7, "orders", 1.0


def arrive(owner: Resequencer[int], number: int, now: float = 0.0, publisher: str = "p") -> list[int]:
    return owner.arrive(SLOT, STREAM, OrderMark(publisher, number), number, now).admitted


def is_duplicate(owner: Resequencer[int], number: int) -> bool:
    return owner.arrive(SLOT, STREAM, OrderMark("p", number), number, 0.0).is_duplicate


def handle(owner: Resequencer[int], *numbers: int) -> None:
    for number in numbers:
        owner.handled(SLOT, STREAM, OrderMark("p", number))


@given(st.permutations(range(1, 12)))
def test_any_arrival_runs_in_order(arrivals: list[int]) -> None:
    owner: Resequencer[int] = Resequencer(GAP_S)
    ran = [one for number in arrivals for one in arrive(owner, number)]
    ran += owner.overdue(GAP_S)
    assert ran == sorted(arrivals)


def test_publishers_do_not_wait_for_each_other() -> None:
    owner: Resequencer[int] = Resequencer(GAP_S)
    assert arrive(owner, 2, publisher="slow") == []
    assert arrive(owner, 1, publisher="quick") == [1]


def test_a_message_that_never_comes_is_passed_over_and_runs_if_it_comes_late() -> None:
    owner: Resequencer[int] = Resequencer(GAP_S)
    assert arrive(owner, 1) == [1]
    assert arrive(owner, 3, now=5.0) == []
    assert arrive(owner, 5, now=5.5) == []
    assert owner.overdue(5.9) == []
    assert owner.overdue(6.0) == [3]
    assert owner.overdue(7.0) == [5]
    assert arrive(owner, 4, now=8.0) == [4]
    assert arrive(owner, 2, now=8.0) == [2]
    assert arrive(owner, 6, now=8.0) == [6]


def test_a_message_that_was_handled_is_a_duplicate() -> None:
    owner: Resequencer[int] = Resequencer(GAP_S)
    arrive(owner, 1)
    handle(owner, 1)
    assert is_duplicate(owner, 1)


def test_a_message_that_came_back_without_being_handled_is_no_duplicate() -> None:
    owner: Resequencer[int] = Resequencer(GAP_S)
    arrive(owner, 1)
    assert arrive(owner, 1) == [1]


def test_an_owner_that_knows_nothing_begins_with_the_lowest_after_a_while() -> None:
    owner: Resequencer[int] = Resequencer(GAP_S)
    assert arrive(owner, 9) == []
    assert arrive(owner, 8) == []
    assert owner.overdue(GAP_S) == [8, 9]
    assert arrive(owner, 3) == [3], "it came before this owner knew the sequence: nobody else has it"


def test_an_owner_that_was_told_goes_on_at_once() -> None:
    before: Resequencer[int] = Resequencer(GAP_S)
    arrive(before, 1), arrive(before, 2), arrive(before, 4)
    handle(before, 1, 2)
    states, held = before.give_up([SLOT])
    assert held == [4]
    after: Resequencer[int] = Resequencer(GAP_S)
    assert after.go_on(states, 0.0) == ([], [])
    assert is_duplicate(after, 2)
    assert arrive(after, 4) == []
    assert arrive(after, 3) == [3, 4]


def test_what_was_not_handled_is_not_past_for_the_next_owner() -> None:
    """Message 2 was admitted, and came back when the slot was revoked, while 3, of another key, was handled."""
    before: Resequencer[int] = Resequencer(GAP_S)
    for number in (1, 2, 3):
        arrive(before, number)
    handle(before, 1, 3)
    states, _ = before.give_up([SLOT])
    after: Resequencer[int] = Resequencer(GAP_S)
    after.go_on(states, 0.0)
    assert arrive(after, 4) == [], "2 may have the same key"
    assert is_duplicate(after, 3)
    assert arrive(after, 2) == [2, 4]


def test_messages_that_waited_for_news_go_on_when_it_comes() -> None:
    after: Resequencer[int] = Resequencer(GAP_S)
    arrive(after, 2), arrive(after, 4), arrive(after, 5)
    state = SequenceState(SLOT, STREAM, "p", next=4, floor=1, passed_over=(1,))
    assert after.go_on([state], 0.0) == ([4, 5], [2])
    assert arrive(after, 1) == [1]


def test_news_that_comes_too_late_changes_nothing() -> None:
    after: Resequencer[int] = Resequencer(GAP_S)
    arrive(after, 5)
    assert after.overdue(GAP_S) == [5]
    assert after.go_on([SequenceState(SLOT, STREAM, "p", next=3, floor=1)], GAP_S) == ([], [])
    assert arrive(after, 6) == [6]


def test_slots_are_given_up_one_by_one() -> None:
    owner: Resequencer[int] = Resequencer(GAP_S)
    for slot in (1, 2):
        owner.arrive(slot, STREAM, OrderMark("p", 1), slot, 0.0)
    states, _ = owner.give_up([1])
    assert [state.slot for state in states] == [1]
    assert owner.arrive(2, STREAM, OrderMark("p", 2), 2, 0.0).admitted == [2]


@given(st.data())
def test_every_message_runs_once_and_in_order_over_any_handovers(data: st.DataObject) -> None:
    """Owners follow each other; each message comes in any order and any number of times, is handled or comes back."""
    todo = set(range(1, data.draw(st.integers(1, 12)) + 1))
    ran: list[int] = []
    owner: Resequencer[int] = Resequencer(GAP_S)
    while todo:
        admitted = set()
        for _ in range(data.draw(st.integers(0, 8))):
            number = data.draw(st.sampled_from(sorted(todo | set(ran))))
            if number in admitted:
                continue  # in hand: the inbox recognises the copy
            arrival = owner.arrive(SLOT, STREAM, OrderMark("p", number), number, 0.0)
            assert not arrival.is_duplicate or number in ran or number not in arrival.admitted
            admitted.update(arrival.admitted)
        for number in sorted(admitted)[: data.draw(st.integers(0, 8))]:
            assert number not in ran
            handle(owner, number)
            ran.append(number)
            todo.discard(number)
        states, _held = owner.give_up([SLOT])
        owner = Resequencer(GAP_S)
        owner.go_on(states, 0.0)
        if not data.draw(st.booleans()) and not admitted:
            for number in sorted(todo):  # finally all of them arrive
                for one in arrive(owner, number):
                    handle(owner, one)
                    ran.append(one)
                    todo.discard(one)
    assert ran == sorted(ran)
    assert len(ran) == len(set(ran))


def test_the_publishers_that_are_remembered_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr(ordering, "PUBLISHERS_MAX", 20)
    owner: Resequencer[int] = Resequencer(GAP_S)
    for publisher in range(100):
        arrive(owner, 1, publisher=str(publisher))
        owner.handled(SLOT, STREAM, OrderMark(str(publisher), 1))
    assert len(owner.give_up([SLOT])[0]) <= 21


def test_the_marks_that_are_passed_over_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr(ordering, "PASSED_OVER_MAX", 10)
    owner: Resequencer[int] = Resequencer(GAP_S)
    arrive(owner, 1)
    handle(owner, 1)
    arrive(owner, 10**12)
    assert owner.overdue(GAP_S) == [10**12]
    assert is_duplicate(owner, 2)
    assert arrive(owner, 10**12 - 1) == [10**12 - 1]


def test_marks_of_other_programs_are_ignored() -> None:
    assert OrderMark.parse(str(OrderMark("a/b", 3))) == OrderMark("a/b", 3)
    for text in (None, "", "a", "a/", "/3", "a/-1", "a/0", "a/x", "a/٣"):
        assert OrderMark.parse(text) is None
