"""Members of a clique without a coordinator: they find each other, suspect the silent, and forget the dead."""

from collections.abc import Callable

from penstock.ring.gossip import Claim, Gossip, GossipKind, PeerState
from penstock.ring.slots import SLOTS
from penstock.ring.view import View, ViewSettings

SETTINGS = ViewSettings()
LONG_MS = 60_000


class Carrier:
    """Delivers all gossip at once, except to and from those that are cut off."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.views: dict[str, View] = {}
        self.cut: set[str] = set()
        self.keeps: Callable[[str, str | None, Gossip], bool] = lambda sender, to, gossip: True

    def add(self, worker: str, member_id: str = "1") -> View:
        view = View(
            worker=worker, member_id=f"{worker}-{member_id}", incarnation=int(self.now_ms), now_ms=self.now_ms
        )
        self.views[worker] = view
        return view

    def run(self, ms: float) -> None:
        """Ticks everybody at their deadlines for so long."""
        end_ms = self.now_ms + ms
        while True:
            awake = [view for name, view in self.views.items() if name not in self.cut]
            due_ms = min((view.next_deadline_ms for view in awake), default=end_ms)
            if due_ms > end_ms:
                break
            self.now_ms = max(self.now_ms, due_ms)
            for view in awake:
                if view.next_deadline_ms <= self.now_ms:
                    view.tick(self.now_ms)
            self.deliver()
        self.now_ms = end_ms

    def deliver(self) -> None:
        while batch := [
            (name, to, gossip) for name, view in self.views.items() for to, gossip in view.take()
        ]:
            for sender, to, gossip in batch:
                for name, view in self.views.items():
                    heard = to in (None, name) and name != sender and not {name, sender} & self.cut
                    if heard and self.keeps(sender, to, gossip):
                        view.received(gossip, self.now_ms)


def _clique(*workers: str) -> Carrier:
    carrier = Carrier()
    for worker in workers:
        carrier.add(worker)
    carrier.run(LONG_MS)
    return carrier


def test_members_that_see_the_same_clique_agree_on_every_owner() -> None:
    views = list(_clique("a", "b", "c").views.values())
    assert all(view.members == {"a", "b", "c"} for view in views)
    assert len({view.table.owners for view in views}) == 1
    assert sorted(len(view.table.granted_to(view.member_id)) for view in views) == [1365, 1365, 1366]


def test_a_newcomer_takes_nothing_before_it_knows_the_others() -> None:
    carrier = _clique("a", "b")
    newcomer = carrier.add("c")
    assert newcomer.table is None
    assert all("c" not in carrier.views[name].members for name in "ab")
    carrier.run(SETTINGS.probe_ms)
    assert newcomer.members == {"a", "b", "c"}
    assert all(carrier.views[name].members == {"a", "b", "c"} for name in "ab")


def test_a_newcomer_that_nobody_answers_waits_for_a_whole_suspicion_time() -> None:
    carrier = Carrier()
    alone = carrier.add("a")
    carrier.run(SETTINGS.suspicion_ms - 1)
    assert not alone.is_settled
    carrier.run(1)
    assert len(alone.table.granted_to("a-1")) == SLOTS


def test_a_silent_member_is_suspected_first_and_then_removed() -> None:
    carrier = _clique("a", "b", "c")
    carrier.cut.add("c")
    a = carrier.views["a"]
    carrier.run(4 * SETTINGS.probe_ms)
    assert a.peers["c"].state is PeerState.SUSPECT
    assert "c" in a.members, "it may only be slow"
    carrier.run(SETTINGS.suspicion_ms)
    assert a.members == {"a", "b"}


def test_a_suspect_that_is_alive_refutes() -> None:
    carrier = _clique("a", "b", "c")
    claim = Claim("c", carrier.views["c"].incarnation, PeerState.SUSPECT)
    rumour = Gossip(
        kind=GossipKind.ANNOUNCE, worker="b", member_id="b-1", incarnation=0, settled=True, claims=(claim,)
    )
    a = carrier.views["a"]
    a.received(rumour, carrier.now_ms)
    assert a.peers["c"].state is PeerState.SUSPECT
    carrier.deliver()
    assert a.peers["c"].state is PeerState.ALIVE
    carrier.run(LONG_MS)
    assert a.members == {"a", "b", "c"}


def test_a_claim_that_a_member_is_dead_only_makes_it_a_suspect() -> None:
    carrier = _clique("a", "b", "c")
    a = carrier.views["a"]
    rumour = Gossip(
        kind=GossipKind.ANNOUNCE,
        worker="b",
        member_id="b-1",
        incarnation=0,
        settled=True,
        claims=(Claim("c", 0, PeerState.DEAD),),
    )
    a.received(rumour, carrier.now_ms)
    assert "c" in a.members
    carrier.run(LONG_MS)
    assert a.members == {"a", "b", "c"}


def test_the_news_of_a_member_that_was_away_do_not_bring_back_the_dead() -> None:
    carrier = _clique("a", "b", "c")
    carrier.cut |= {"b", "c"}
    carrier.run(LONG_MS)
    a, b = carrier.views["a"], carrier.views["b"]
    assert a.members == {"a"}
    assert b.peers["c"].state is PeerState.ALIVE, "it was frozen as well"
    carrier.cut.remove("b")
    carrier.run(SETTINGS.probe_ms)
    assert a.members == {"a", "b"}
    carrier.run(LONG_MS)
    assert a.members == b.members == {"a", "b"}


def test_a_late_message_of_a_dead_member_is_no_sign_of_life() -> None:
    carrier = _clique("a", "b")
    late = Gossip(kind=GossipKind.ANNOUNCE, worker="b", member_id="b-1", incarnation=0, settled=True)
    carrier.cut.add("b")
    carrier.run(LONG_MS)
    a = carrier.views["a"]
    a.received(late, carrier.now_ms)
    assert a.members == {"a"}


def test_a_member_that_was_declared_dead_comes_back_as_a_newcomer() -> None:
    carrier = _clique("a", "b")
    carrier.cut.add("b")
    carrier.run(LONG_MS)
    carrier.cut.remove("b")
    b = carrier.views["b"]
    b.tick(carrier.now_ms)
    assert b.table is None, "it has slept, and does not know what it missed"
    carrier.run(LONG_MS)
    assert carrier.views["a"].members == b.members == {"a", "b"}


def test_two_members_that_have_declared_each_other_dead_find_together_again() -> None:
    carrier = _clique("a", "b")
    carrier.keeps = lambda sender, to, gossip: False
    carrier.run(LONG_MS)
    assert carrier.views["a"].members == {"a"}
    assert carrier.views["b"].members == {"b"}
    carrier.keeps = lambda sender, to, gossip: True
    carrier.run(2 * SETTINGS.suspicion_ms)
    assert carrier.views["a"].members == carrier.views["b"].members == {"a", "b"}


def test_a_member_that_leaves_is_gone_at_once() -> None:
    carrier = _clique("a", "b", "c")
    carrier.views["b"].leave()
    carrier.deliver()
    assert carrier.views["a"].members == carrier.views["c"].members == {"a", "c"}


def test_a_late_farewell_does_not_remove_the_next_process_of_the_same_name() -> None:
    carrier = _clique("a", "b")
    carrier.views["b"].leave()
    ((_, farewell),) = carrier.views["b"].take()
    again = carrier.add("b", "2")
    carrier.run(LONG_MS)
    a = carrier.views["a"]
    a.received(farewell, carrier.now_ms)
    assert a.members == again.members == {"a", "b"}


def test_of_two_processes_with_one_name_the_later_one_stays() -> None:
    carrier = _clique("a", "b")
    old = carrier.views["b"]
    del carrier.views["b"]
    carrier.views["old b"] = old
    new = carrier.add("b", "2")
    carrier.run(LONG_MS)
    assert old.is_replaced
    assert not new.is_replaced
    assert carrier.views["a"].members == {"a", "b"}


def test_there_are_never_more_members_than_allowed() -> None:
    view = View(worker="me", member_id="1", incarnation=0, now_ms=0, settings=ViewSettings(members_max=3))
    for number in range(10):
        hello = Gossip(
            kind=GossipKind.ANNOUNCE, worker=f"w{number}", member_id="x", incarnation=0, settled=True
        )
        view.received(hello, 0)
    assert len(view.peers) == 2
