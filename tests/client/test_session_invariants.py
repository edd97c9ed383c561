"""Sessions under any order of events: each word about a job is answered once, and only what is ours is handed out."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.client.received import Received
from penstock.client.session import Dial, Find, HangUp, Loss, Resolve, Send
from penstock.client.work_session import Credit, WorkSession
from tests.client.frames import A, B, Token, chance, frame, jobs, said


class Broker(RuleBasedStateMachine):
    """Two nodes that hand out jobs, lose leases and connections, and answer when they like."""

    def __init__(self) -> None:
        super().__init__()
        self.session = WorkSession[Received](
            "workers", ["orders"], make=Received, random=chance(), credit=Credit(10, 2)
        )
        self.now = 0.0
        self.dialling: list[int] = []
        self.open: list[int] = []
        self.unanswered: list[tuple[int, dict[str, object]]] = []
        self.leased: dict[int, set[int]] = {}
        """By link: what this broker thinks that the client has."""
        self.next_offset = 0
        self.in_hand: list[Received] = []
        self.tokens: list[Token] = []

    def act(self) -> None:
        """Does what the session asks for."""
        for effect in self.session.take_effects(self.now):
            match effect:
                case Find():
                    self.session.found([A, B], self.now)
                case Dial(link=link):
                    self.dialling.append(link)
                case Send(link=link):
                    assert link in self.open, "said to nobody"
                    self.unanswered += [(link, one) for one in said([effect], "settle")]
                case HangUp(link=link):
                    self.open = [one for one in self.open if one != link]
                case Resolve(token=token, error=error):
                    token.resolve(error)

    @rule(seconds=st.floats(0, 20))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.act()

    @precondition(lambda self: self.dialling)
    @rule(works=st.booleans())
    def a_link_is_made_or_not(self, works: bool) -> None:
        link = self.dialling.pop(0)
        if works:
            self.open.append(link)
            self.leased[link] = set()
            self.session.connected(link, self.now)
            elsewhere = [{"topic": "orders", "partition": 1, "url": B}]
            working = frame("working", lease_ms=30_000, elsewhere=elsewhere, exclusive=False)
            self.session.received(link, working, self.now)
        else:
            self.session.lost(link, Loss("refused"), self.now)
        self.act()

    @precondition(lambda self: self.open)
    @rule(data=st.data(), count=st.integers(1, 5))
    def jobs_come(self, data: st.DataObject, count: int) -> None:
        link = data.draw(st.sampled_from(self.open))
        offsets = list(range(self.next_offset, self.next_offset + count))
        self.next_offset += count + 1
        self.leased[link].update(offsets)
        self.session.received(link, jobs(*offsets), self.now)

    @rule()
    def a_job_is_taken(self) -> None:
        item = self.session.take()
        if item is not None:
            assert item.link in self.open, "the broker has it back"
            self.in_hand.append(item)

    @precondition(lambda self: self.in_hand)
    @rule(data=st.data(), verdict=st.sampled_from(["accept", "retry", "reject", "renew"]))
    def a_job_is_settled(self, data: st.DataObject, verdict: str) -> None:
        item = data.draw(st.sampled_from(self.in_hand))
        token = Token()
        self.tokens.append(token)
        self.session.settle(item, verdict, None, token, self.now)  # type: ignore[arg-type]

    @precondition(lambda self: self.unanswered)
    @rule(late=st.sets(st.integers(0, 30), max_size=3))
    def an_answer_comes(self, late: set[int]) -> None:
        link, settle = self.unanswered.pop(0)
        if link not in self.open:
            return
        refused = []
        words = [
            (verdict, run)
            for verdict in ("accept", "retry", "reject", "renew", "return")
            for run in settle.get(verdict, [])
        ]
        for verdict, (first, last) in words:  # type: ignore[misc]
            run = set(range(first, last + 1))
            self.leased[link] -= late
            if not run <= self.leased[link]:
                refused.append([first, last])
            elif verdict != "renew":
                self.leased[link] -= run
        error = {"code": "lease_over", "message": "", "refused": refused} if refused else None
        self.session.received(link, frame("settled", number=settle["number"], error=error), self.now)
        self.act()

    @rule()
    def it_is_drained(self) -> None:
        self.session.drain()
        assert not self.session.ready
        self.act()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def a_link_is_lost(self, data: st.DataObject) -> None:
        link = data.draw(st.sampled_from(self.open))
        self.open.remove(link)
        self.session.lost(link, Loss("cut"), self.now)
        self.act()

    @invariant()
    def one_link_to_each_node_at_most(self) -> None:
        bases = Counter(link.base for link in self.session._links.values())
        assert all(count == 1 for count in bases.values()), bases

    @invariant()
    def nothing_that_was_lost_waits_to_be_taken(self) -> None:
        assert all(item.link in self.open for item in self.session.ready)

    def teardown(self) -> None:
        self.act()
        self.session.end()
        self.act()
        assert all(token.is_done for token in self.tokens), "somebody would wait for ever"
        assert self.session.is_settled


TestSessions = Broker.TestCase
TestSessions.settings = settings(max_examples=60, stateful_step_count=40)
