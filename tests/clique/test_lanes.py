"""Lanes: one message of a key at a time, in order."""

from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.clique.chains import Chain
from penstock.clique.lanes import Lanes


class Item(NamedTuple):
    lane_key: bytes
    slot: int
    number: int
    size: int = 3


def item(key: bytes, number: int) -> Item:
    return Item(key, key[0] % 3, number)


def test_only_a_request_of_the_running_chain_is_nested() -> None:
    lanes: Lanes[Item] = Lanes()
    lanes.add(item(b"a", 1))
    work = lanes.take()
    assert work is not None
    assert not lanes.is_nested(b"a", Chain("c", 1))
    lanes.begin(work, Chain("c", 0))
    assert lanes.is_nested(b"a", Chain("c", 1))
    assert not lanes.is_nested(b"a", Chain("other", 1))
    assert not lanes.is_nested(b"b", Chain("c", 1))
    assert not lanes.is_nested(b"a", None)
    lanes.finish(work)
    assert not lanes.is_nested(b"a", Chain("c", 1))


def test_an_urgent_lane_is_first() -> None:
    lanes: Lanes[Item] = Lanes()
    lanes.add(item(b"a", 1))
    lanes.add(item(b"b", 2), is_urgent=True)
    assert lanes.take() == item(b"b", 2)


class LaneMachine(RuleBasedStateMachine):
    """Against a model: a list of the messages of each key, and what runs."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes: Lanes[Item] = Lanes()
        self.model: dict[bytes, list[Item]] = {}
        self.running: list[Item] = []
        self.parked: set[bytes] = set()
        self.numbers = 0

    @rule(key=st.sampled_from([b"a", b"b", b"c", b"d"]), urgent=st.booleans())
    def add(self, key: bytes, urgent: bool) -> None:
        self.numbers += 1
        made = item(key, self.numbers)
        self.lanes.add(made, is_urgent=urgent)
        self.model.setdefault(key, []).append(made)

    @rule()
    def take(self) -> None:
        busy = {work.lane_key for work in self.running} | self.parked
        work = self.lanes.take()
        if work is None:
            assert not self.model.keys() - busy
            return
        assert work.lane_key not in busy
        assert work == self.model[work.lane_key][0]
        self.running.append(work)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        work = data.draw(st.sampled_from(self.running))
        self.running.remove(work)
        self.lanes.finish(work)
        self.remove(work)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        work = data.draw(st.sampled_from(self.running))
        self.running.remove(work)
        self.lanes.park(work)
        self.parked.add(work.lane_key)

    @rule(key=st.sampled_from([b"a", b"b", b"c", b"d"]))
    def unpark(self, key: bytes) -> None:
        self.lanes.unpark(key)
        self.parked.discard(key)

    @rule(key=st.sampled_from([b"a", b"b"]))
    def unpark_some(self, key: bytes) -> None:
        self.lanes.unpark_all(lambda work: work.lane_key == key)
        self.parked.discard(key)

    @rule(slot=st.integers(0, 2))
    def take_back(self, slot: int) -> None:
        running = set(self.running)
        expected = [
            work
            for works in self.model.values()
            for work in works
            if work.slot == slot and work not in running
        ]
        removed = self.lanes.take_back([slot], lambda work: False)
        assert sorted(removed) == sorted(expected)
        for work in removed:
            self.remove(work)
        self.parked &= self.model.keys()

    def remove(self, work: Item) -> None:
        works = self.model[work.lane_key]
        works.remove(work)
        if not works:
            del self.model[work.lane_key]

    @invariant()
    def counts_agree(self) -> None:
        assert self.lanes.count == sum(map(len, self.model.values()))
        assert self.lanes.bytes == 3 * self.lanes.count
        busy = {work.lane_key for work in self.running} | self.parked
        assert self.lanes.ready == len(self.model.keys() - busy)


TestLaneMachine = LaneMachine.TestCase
