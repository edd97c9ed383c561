"""The subscriber's invariants under any order of events. The model keeps a state for each offset."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.queue.subscription import Ack, Position, Subscriber, SubscriberSettings, Times
from penstock.queue.subscription_metadata import decode_done, encode_metadata
from penstock.types import TopicPartition

KEYS = [TopicPartition("a", 0), TopicPartition("b", 1)]
LOG_END = 40
MOST_DEFERRED = 5

keys = st.sampled_from(KEYS)
offsets = st.integers(0, LOG_END + 2)


class Log:
    """The log of one partition: some offsets are missing, some records have a due time or expire."""

    def __init__(self) -> None:
        self.start = 0
        self.offsets = [offset for offset in range(LOG_END) if offset % 7 != 3]
        self.times: dict[int, Times] = {}
        for offset in self.offsets:
            due = offset * 5 % 60 + 20 if offset % 4 == 1 else None
            expires = offset * 3 % 70 + 30 if offset % 5 == 2 else None
            if due is not None or expires is not None:
                self.times[offset] = Times(due, expires)


class Model:
    """The invariants of one partition."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.acked: set[int] = set()
        self.ever_sent: list[int] = []
        self.sent_in_order: list[int] = []
        self.first_undone = 0


class SubscriberMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.credit = 3
        self.logs = {key: Log() for key in KEYS}
        self.models = {key: Model() for key in KEYS}
        self.due: list[tuple[TopicPartition, int]] = []
        self.core = self.made([Position(key, 0) for key in KEYS])

    def made(self, positions: list[Position]) -> Subscriber:
        limits = SubscriberSettings(credit=self.credit, ack_timeout_ms=10, max_deferred=MOST_DEFERRED)
        return Subscriber(limits, positions)

    @rule(key=keys, size=st.integers(1, 12), stop=st.integers(1, 12))
    def reads_a_page(self, key: TopicPartition, size: int, stop: int) -> None:
        log, model = self.logs[key], self.models[key]
        position = self.core.next_offset(key)
        assert position is not None
        page = [offset for offset in log.offsets if offset >= max(position, log.start)][:size]
        if position < log.start or not page:
            return
        room = self.core.credit_left
        rows = self.core.offer(self.now, key, page, log.times, stop=stop, end=page[-1] + 1)
        sent = [page[row] for row in rows]
        assert len(sent) <= room, "invariant 4"
        assert sent == sorted(sent), "invariant 5"
        assert not model.sent_in_order or not sent or sent[0] > model.sent_in_order[-1], "invariant 5"
        model.sent_in_order += sent
        self.check_sent(key, sent)

    def check_sent(self, key: TopicPartition, sent: list[int]) -> None:
        model, log = self.models[key], self.logs[key]
        for offset in sent:
            times = log.times.get(offset, Times(None, None))
            assert times.due_ms is None or times.due_ms <= self.now, "invariant 5"
            assert times.expires_ms is None or times.expires_ms > self.now, "invariant 6"
            assert offset not in model.acked, "what is acked does not come again"
            assert offset not in model.sent, "nothing is sent twice on one connection"
        model.sent += sent
        model.ever_sent += sent

    @rule(key=keys, offset=offsets)
    def acks_anything(self, key: TopicPartition, offset: int) -> None:
        model = self.models[key]
        outcome = self.core.ack(key, offset)
        if offset in model.sent:
            assert outcome is Ack.NEW
            upto = model.sent.index(offset) + 1
            model.acked.update(model.sent[:upto])
            del model.sent[:upto]
        else:
            assert outcome is not Ack.NEW

    @rule(key=keys, which=st.integers(0, 5))
    def acks_a_sent_message(self, key: TopicPartition, which: int) -> None:
        sent = self.models[key].sent
        if sent:
            self.acks_anything(key, sent[min(which, len(sent) - 1)])

    @rule(by=st.integers(0, 15))
    def time_passes(self, by: int) -> None:
        self.now += by

    @rule(credit=st.integers(1, 8))
    def changes_the_credit(self, credit: int) -> None:
        self.credit = credit
        self.core.set_credit(credit)

    @rule()
    def looks_for_due_messages(self) -> None:
        room = self.core.credit_left
        found = self.core.pop_due(self.now)
        if found is None:
            return
        key, offset = found
        assert room > 0, "invariant 4"
        due_ms = self.logs[key].times[offset].due_ms
        assert due_ms is not None
        assert due_ms <= self.now, "invariant 5"
        self.due.append(found)

    @rule()
    def reads_a_due_message(self) -> None:
        if not self.due:
            return
        key, offset = self.due.pop()
        times = self.logs[key].times[offset]
        if times.is_over(self.now) or offset < self.logs[key].start:
            self.core.skip(key, offset)
        elif self.core.send_due(self.now, key, offset):
            self.check_sent(key, [offset])

    @rule(key=keys, by=st.integers(1, 6))
    def retention_deletes(self, key: TopicPartition, by: int) -> None:
        log, model = self.logs[key], self.models[key]
        log.start = min(log.start + by, LOG_END)
        self.core.trimmed(key, log.start)
        model.sent = [offset for offset in model.sent if offset >= log.start]

    @rule(max_bytes=st.sampled_from([30, 40, 4096]))
    def connects_again(self, max_bytes: int) -> None:
        """Restores the subscriber from its stored positions. If not all ranges fit, some messages are sent again."""
        positions = []
        for position in self.core.positions():
            mark = encode_metadata(1000, position.offset, position.done, max_bytes)
            positions.append(
                Position(position.key, position.offset, tuple(decode_done(position.offset, mark)))
            )
        self.core = self.made(positions)
        self.due.clear()
        for position in positions:
            model = self.models[position.key]
            model.sent.clear()
            model.sent_in_order.clear()
            kept = {offset for first, end in position.done for offset in range(first, end)}
            model.acked = {offset for offset in model.acked if offset < position.offset or offset in kept}

    @invariant()
    def places_are_true(self) -> None:
        for position in self.core.positions():
            model, log = self.models[position.key], self.logs[position.key]
            assert position.offset >= model.first_undone, "invariant 2"
            model.first_undone = position.offset
            done = set(range(position.offset)) | {
                offset for first, end in position.done for offset in range(first, end)
            }
            assert not done & set(model.sent), "invariants 1, 3"
            position = self.core.next_offset(position.key)
            assert position is not None
            for offset in done:
                assert (
                    offset in model.acked
                    or offset not in log.offsets
                    or offset < log.start
                    or log.times.get(offset, Times(None, None)).is_over(self.now)
                ), "invariant 3"

    @invariant()
    def credit_is_counted(self) -> None:
        taken = sum(len(model.sent) for model in self.models.values())
        assert self.core.unacked == taken
        assert self.core.credit_left <= max(0, self.credit - taken), "invariant 4"
        assert self.core.deferred_count <= MOST_DEFERRED + len(self.due) + 2 * LOG_END

    def teardown(self) -> None:
        """In the end, with time and credit enough, everything that did not expire has been sent and is acked."""
        self.now = 1000
        self.core.set_credit(1000)
        while self.due:
            self.reads_a_due_message()
        for key in KEYS:
            for _ in range(2 * LOG_END):
                self.reads_a_page(key, 12, 12)
                self.looks_for_due_messages()
                self.reads_a_due_message()
            sent = self.models[key].sent
            if sent:
                self.acks_anything(key, sent[-1])
            last = self.logs[key].offsets[-1] + 1
            [position] = [position for position in self.core.positions() if position.key == key]
            assert position.offset == max(last, self.logs[key].start)
            assert position.done == ()


TestSubscriber = SubscriberMachine.TestCase
TestSubscriber.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
