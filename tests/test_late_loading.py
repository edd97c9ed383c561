"""Modules that are loaded late, by one thread at a time."""

import threading

from penstock.late_loading import LOADING, late

PATIENCE_SECONDS = 20.0


class Pair:
    """Two attributes, one of which needs the other."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.began, self.may_go_on = threading.Event(), threading.Event()

    @late
    def inner(self) -> str:
        self.made.append("inner")
        return "inner"

    @late
    def outer(self) -> str:
        self.began.set()
        self.may_go_on.wait(PATIENCE_SECONDS)
        self.made.append(f"outer of {self.inner}")
        return "outer"


def test_an_attribute_is_made_when_it_is_first_used_and_once() -> None:
    pair = Pair()
    pair.may_go_on.set()
    assert pair.made == []
    assert (pair.outer, pair.inner, pair.outer) == ("outer", "inner", "outer")
    assert pair.made == ["inner", "outer of inner"]


def test_threads_load_one_after_the_other_and_never_wait_for_each_other() -> None:
    first, second = Pair(), Pair()
    one = threading.Thread(target=getattr, args=(first, "outer"), daemon=True)
    other = threading.Thread(target=getattr, args=(second, "inner"), daemon=True)
    one.start()
    assert first.began.wait(PATIENCE_SECONDS)
    other.start()
    assert not LOADING.acquire(blocking=False)
    assert second.made == []
    first.may_go_on.set()
    for thread in (one, other):
        thread.join(PATIENCE_SECONDS)
    assert (first.made, second.made) == (["inner", "outer of inner"], ["inner"])
