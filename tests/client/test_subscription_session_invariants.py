"""A subscriber under any order of events: acked messages are not handed out again, none is skipped, and a flush waits
until they are durable."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.client.received_record import ReceivedRecord
from penstock.client.session import Connect, ConnectionLoss, Disconnect, FindNodes, Resolve, Send
from penstock.client.subscription_session import SubscriptionSession
from tests.client.frames import A, Promise, chance, frame, messages, said


class Pusher(RuleBasedStateMachine):
    """A broker that pushes from the durable position, drops connections, and makes acks durable at random times."""

    def __init__(self) -> None:
        super().__init__()
        self.session = SubscriptionSession[ReceivedRecord](
            "billing",
            ["orders"],
            make=ReceivedRecord,
            random=chance(),
            credit=10,
            read_old=True,
            take_over=False,
            ack_timeout_ms=1_000,
            ttl_ms=60_000,
        )
        self.now = 0.0
        self.dialling: list[int] = []
        self.open: int | None = None
        self.durable = 0
        self.next_offset = 0
        """The next offset for the open connection."""
        self.heard = 0
        """One after the highest ack over the open connection."""
        self.in_hand: list[ReceivedRecord] = []
        self.taken: dict[int, list[int]] = {}
        """By connection, in order."""
        self.done: set[int] = set()
        self.tokens: list[Promise] = []

    def act(self) -> None:
        for effect in self.session.take_effects(self.now):
            match effect:
                case FindNodes():
                    self.session.found([A], self.now)
                case Connect(connection_id=connection_id):
                    self.dialling.append(connection_id)
                case Send(connection_id=connection_id):
                    assert connection_id == self.open, "sent over a closed connection"
                    for one in said([effect], "ack"):
                        assert set(range(self.durable, one["offset"] + 1)) <= self.done, (
                            "acked without a session"
                        )
                        self.heard = max(self.heard, one["offset"] + 1)
                case Disconnect():
                    self.open = None
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
            self.open, self.next_offset, self.heard = connection_id, self.durable, self.durable
            self.session.connected(connection_id, self.now)
            position = {"topic": "orders", "partition": 0, "offset": self.durable}
            told = frame("subscribed", positions=[position], resumed=connection_id > 1)
            self.session.received(connection_id, told, self.now)
        else:
            self.session.disconnected(connection_id, ConnectionLoss("refused"), self.now)
        self.act()

    @precondition(lambda self: self.open is not None)
    @rule(count=st.integers(1, 4))
    def messages_come(self, count: int) -> None:
        assert self.open is not None
        pushed = range(self.next_offset, self.next_offset + count)
        self.next_offset += count
        self.session.received(self.open, messages(*pushed), self.now)

    @rule()
    def a_message_is_taken(self) -> None:
        item = self.session.take()
        if item is not None:
            assert item.connection_id == self.open
            assert item.offset not in self.done, "handed out although it was acked"
            assert set(range(item.offset)) <= self.done | set(self.taken.get(item.connection_id, [])), (
                "one was left out"
            )
            self.taken.setdefault(item.connection_id, []).append(item.offset)
            self.in_hand.append(item)

    @precondition(lambda self: self.in_hand)
    @rule(data=st.data())
    def a_message_is_acked(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(self.in_hand))
        came = self.taken[item.connection_id]
        self.done.update(came[: came.index(item.offset) + 1])
        self.tokens.append(Promise())
        self.session.ack(item, self.tokens[-1])

    @precondition(lambda self: self.open is not None and self.heard > self.durable)
    @rule()
    def acks_become_durable(self) -> None:
        assert self.open is not None
        self.durable = self.heard
        position = {"topic": "orders", "partition": 0, "offset": self.durable}
        self.session.received(self.open, frame("acked", positions=[position]), self.now)
        self.act()

    @precondition(lambda self: self.open is not None)
    @rule(is_kept=st.booleans())
    def the_link_is_lost(self, is_kept: bool) -> None:
        """Perhaps after the last acks were stored, without an answer to the client."""
        assert self.open is not None
        self.durable = self.heard if is_kept else self.durable
        connection_id, self.open = self.open, None
        self.session.disconnected(connection_id, ConnectionLoss("cut"), self.now)
        self.act()

    @invariant()
    def settled_acks_are_durable(self) -> None:
        assert not self.session.is_settled or all(offset < self.durable for offset in self.done)

    def teardown(self) -> None:
        self.act()
        self.session.end()
        self.act()
        assert all(promise.is_done for promise in self.tokens), "a caller would wait for ever"


TestSubscribers = Pusher.TestCase
TestSubscribers.settings = settings(max_examples=100, stateful_step_count=40)
