"""Sessions under any order of events: each settlement is answered once, and only leased jobs are handed out."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.client.queue_session import Credit, QueueSession
from penstock.client.received_record import ReceivedRecord
from penstock.client.session import Connect, ConnectionLoss, Disconnect, FindNodes, Resolve, Send
from tests.client.frames import A, B, Promise, chance, frame, jobs, said


class Broker(RuleBasedStateMachine):
    """Two nodes that deliver jobs, end leases, drop connections and answer at random times."""

    def __init__(self) -> None:
        super().__init__()
        self.session = QueueSession[ReceivedRecord](
            "workers", ["orders"], make=ReceivedRecord, random=chance(), credit=Credit(10, 2)
        )
        self.now = 0.0
        self.dialling: list[int] = []
        self.open: list[int] = []
        self.no_answer_text: list[tuple[int, dict[str, object]]] = []
        self.leased: dict[int, set[int]] = {}
        """By connection: the jobs that this broker has leased to the client."""
        self.next_offset = 0
        self.in_hand: list[ReceivedRecord] = []
        self.tokens: list[Promise] = []

    def act(self) -> None:
        """Carries out the session's effects."""
        for effect in self.session.take_effects(self.now):
            match effect:
                case FindNodes():
                    self.session.found([A, B], self.now)
                case Connect(connection_id=connection_id):
                    self.dialling.append(connection_id)
                case Send(connection_id=connection_id):
                    assert connection_id in self.open, "sent over a closed connection"
                    self.no_answer_text += [(connection_id, one) for one in said([effect], "settle")]
                case Disconnect(connection_id=connection_id):
                    self.open = [one for one in self.open if one != connection_id]
                case Resolve(promises=promises, error=error):
                    for promise in promises:
                        promise.resolve(error)

    @rule(seconds=st.floats(0, 20))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.act()

    @precondition(lambda self: self.dialling)
    @rule(works=st.booleans())
    def a_link_is_made_or_not(self, works: bool) -> None:
        connection_id = self.dialling.pop(0)
        if works:
            self.open.append(connection_id)
            self.leased[connection_id] = set()
            self.session.connected(connection_id, self.now)
            elsewhere = [{"topic": "orders", "partition": 1, "url": B}]
            working = frame("working", lease_ms=30_000, elsewhere=elsewhere, exclusive=False)
            self.session.received(connection_id, working, self.now)
        else:
            self.session.disconnected(connection_id, ConnectionLoss("refused"), self.now)
        self.act()

    @precondition(lambda self: self.open)
    @rule(data=st.data(), count=st.integers(1, 5))
    def jobs_come(self, data: st.DataObject, count: int) -> None:
        connection_id = data.draw(st.sampled_from(self.open))
        offsets = list(range(self.next_offset, self.next_offset + count))
        self.next_offset += count + 1
        self.leased[connection_id].update(offsets)
        self.session.received(connection_id, jobs(*offsets), self.now)

    @rule()
    def a_job_is_taken(self) -> None:
        item = self.session.take()
        if item is not None:
            assert item.connection_id in self.open, "the broker has it back"
            self.in_hand.append(item)

    @precondition(lambda self: self.in_hand)
    @rule(data=st.data(), action=st.sampled_from(["accept", "retry", "reject", "renew"]))
    def a_job_is_settled(self, data: st.DataObject, action: str) -> None:
        item = data.draw(st.sampled_from(self.in_hand))
        promise = Promise()
        self.tokens.append(promise)
        self.session.settle(item, action, None, promise, self.now)  # type: ignore[arg-type]

    @precondition(lambda self: self.no_answer_text)
    @rule(late=st.sets(st.integers(0, 30), max_size=3))
    def an_answer_comes(self, late: set[int]) -> None:
        connection_id, settle = self.no_answer_text.pop(0)
        if connection_id not in self.open:
            return
        refused = []
        words = [
            (action, run)
            for action in ("accept", "retry", "reject", "renew", "return")
            for run in settle.get(action, [])  # type: ignore[attr-defined]
        ]
        for action, (first, last) in words:  # type: ignore[misc, attr-defined]
            run = set(range(first, last + 1))
            self.leased[connection_id] -= late
            if not run <= self.leased[connection_id]:
                refused.append([first, last])
            elif action != "renew":
                self.leased[connection_id] -= run
        error = {"code": "lease_over", "message": "", "refused": refused} if refused else None
        self.session.received(connection_id, frame("settled", number=settle["number"], error=error), self.now)
        self.act()

    @rule()
    def it_is_drained(self) -> None:
        self.session.drain()
        assert not self.session.ready
        self.act()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def a_link_is_lost(self, data: st.DataObject) -> None:
        connection_id = data.draw(st.sampled_from(self.open))
        self.open.remove(connection_id)
        self.session.disconnected(connection_id, ConnectionLoss("cut"), self.now)
        self.act()

    @invariant()
    def one_link_to_each_node_at_most(self) -> None:
        bases = Counter(connection.node_url for connection in self.session._connections.values())
        assert all(count == 1 for count in bases.values()), bases

    @invariant()
    def nothing_that_was_lost_waits_to_be_taken(self) -> None:
        assert all(item.connection_id in self.open for item in self.session.ready)

    def teardown(self) -> None:
        self.act()
        self.session.end()
        self.act()
        assert all(promise.is_done for promise in self.tokens), "a caller would wait for ever"
        assert self.session.is_settled


TestSessions = Broker.TestCase
TestSessions.settings = settings(max_examples=60, stateful_step_count=40)
