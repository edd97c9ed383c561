"""Settlements in transactions, with members, time, saves, markers and crashes in any order ([11] of `partition.py`).

The state topic is a dictionary: a marker that commits moves the record of a settlement to the stored parts. The driver
may hear of a marker later, or crash before it does.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.errors import ErrorCode
from penstock.queue.partition import QueuePartition
from penstock.queue.settings import QueueSettings
from penstock.queue.settlements import decode_settlement, encode_settlement
from penstock.queue.state_records import settlement_suffix
from penstock.queue.states import CHUNK_SIZE, LEASED
from penstock.queue.values import AckKind, Acknowledgement, ScanResult
from penstock.types import Term

MEMBERS = st.sampled_from(["ann", "ben"])
KINDS = st.sampled_from([AckKind.ACCEPT, AckKind.ACCEPT, AckKind.RELEASE, AckKind.REJECT])
FINAL = (AckKind.ACCEPT, AckKind.REJECT)
"""Without dead letters, a rejected message is done."""
KEYS = st.lists(st.sampled_from([None, 1, 2]), min_size=1, max_size=6)
START = CHUNK_SIZE - 5


class RandomTransactions(RuleBasedStateMachine):
    """Two members, near the border of two chunks."""

    @initialize(key_ordered=st.booleans(), lease_ms=st.sampled_from([1_000, 1_000_000]))
    def begin(self, key_ordered: bool, lease_ms: int) -> None:
        self.settings = QueueSettings(
            key_ordered=key_ordered, lease_ms=lease_ms, delivery_limit=0, dead_letters=False
        )
        self.now_ms = 1_000
        self.term = 1
        self.keys: list[int | None] = []
        self.stored: dict[bytes, bytes] = {}
        self.open: dict[bytes, bytes] = {}
        """The records of open transactions."""
        self.untold: dict[bytes, bool] = {}
        """Settlements with a marker that the driver has not heard of, and whether it commits."""
        self.number = 0
        self.acked: set[int] = set()
        """Accepted without a transaction, and not saved yet."""
        self.doubtful: set[int] = set()
        """Accepted, and perhaps saved when the leader crashed."""
        self.done: set[int] = set()
        """Settled by a committed transaction, or accepted and saved."""
        self.queue = QueuePartition(self.settings, term=Term(1), start_offset=START)
        self.save()

    # --- members

    @rule(keys=KEYS)
    def publish(self, keys: list[int | None]) -> None:
        self.keys += keys
        self.read()

    def read(self) -> None:
        first, end = self.queue.next_offset, START + len(self.keys)
        keys = self.keys[first - START :] if self.settings.key_ordered else ()
        self.queue.extend(self.now_ms, end, ScanResult(keys=keys))

    @rule(member=MEMBERS, count=st.integers(1, 4))
    def acquire(self, member: str, count: int) -> None:
        held = self.held()
        for given in self.queue.acquire(self.now_ms, member, count):
            for offset in range(given.first, given.last + 1):
                assert offset not in self.done, (
                    "it was settled by a committed transaction, or acked and saved"
                )
                assert offset not in held, "an open transaction holds it"
                key = self.keys[offset - START] if self.settings.key_ordered else None
                earlier = [at for at in held if key is not None and self.keys[at - START] == key]
                assert not earlier, "an earlier message of its key is held"

    def held(self) -> set[int]:
        """The messages of settlements about which the driver knows no outcome."""
        values = [*self.open.values(), *(self.stored[one] for one, commit in self.untold.items() if commit)]
        ranges = [one for value in values for one in decode_settlement(value).ranges]
        return {offset for one in ranges for offset in range(one.first, one.last + 1)}

    def leases(self, member: str) -> list[int]:
        end = self.queue.next_offset - 1
        runs = self.queue.peek(START, end) if end >= START else []
        mine = [run for run in runs if run.state == LEASED and run.member == member]
        return [offset for run in mine for offset in range(run.first, run.last + 1)]

    @rule(member=MEMBERS, kind=KINDS, data=st.data())
    def settle(self, member: str, kind: AckKind, data: st.DataObject) -> None:
        mine = self.leases(member)
        if not mine:
            return
        chosen = data.draw(st.lists(st.sampled_from(mine), unique=True, min_size=1))
        acks = [Acknowledgement(offset, offset, bytes((kind,)), 50) for offset in sorted(chosen)]
        self.number += 1
        suffix = settlement_suffix(self.term, self.number)
        errors, settlement = self.queue.begin_settlement(self.now_ms, suffix, member, "billing", acks)
        assert not any(errors) or self.settings.lease_ms == 1_000
        if settlement is not None:
            self.open[suffix] = encode_settlement(settlement)

    @rule(member=MEMBERS)
    def accept_one(self, member: str) -> None:
        for offset in self.leases(member)[:1]:
            kinds = bytes((AckKind.ACCEPT,))
            if self.queue.acknowledge(self.now_ms, member, offset, offset, kinds).error == ErrorCode.NONE:
                self.acked.add(offset)

    @rule(member=MEMBERS)
    def leave(self, member: str) -> None:
        self.queue.release_member(self.now_ms, member)

    @rule(duration_ms=st.sampled_from([10, 100, 2_000]))
    def wait(self, duration_ms: int) -> None:
        self.now_ms += duration_ms
        self.queue.tick(self.now_ms)

    # --- the state topic

    @precondition(lambda self: self.open)
    @rule(commit=st.booleans(), data=st.data())
    def mark(self, commit: bool, data: st.DataObject) -> None:
        suffix = data.draw(st.sampled_from(sorted(self.open)))
        value = self.open.pop(suffix)
        self.untold[suffix] = commit
        if commit:
            self.stored[suffix] = value
            for one in decode_settlement(value).ranges:
                if one.kind in FINAL:
                    self.done |= set(range(one.first, one.last + 1))

    @precondition(lambda self: self.untold)
    @rule(data=st.data())
    def tell(self, data: st.DataObject) -> None:
        suffix = data.draw(st.sampled_from(sorted(self.untold)))
        self.queue.end_settlement(self.now_ms, suffix, commit=self.untold.pop(suffix))

    @rule()
    def save(self) -> None:
        while self.write():
            pass
        self.done |= self.acked
        self.acked.clear()

    def write(self) -> bool:
        changes = self.queue.take_changes()
        for suffix, value in changes.records if changes is not None else ():
            self.stored.pop(suffix, None)
            if value is not None:
                self.stored[suffix] = value
        if changes is not None:
            self.queue.saved(changes.number)
        return changes is not None

    @rule(writes=st.booleans(), reads=st.booleans())
    def crash(self, writes: bool, reads: bool) -> None:
        """The next leader restores the queue; the last write may have been stored."""
        if writes and self.write():
            self.doubtful |= self.acked
        self.acked.clear()
        self.untold.clear()
        self.term += 1
        self.queue = QueuePartition.restore(
            self.settings,
            term=Term(self.term),
            records=self.stored,
            open_settlements=self.open,
            now_ms=self.now_ms,
        )
        if reads:
            self.read()

    # --- promises

    @invariant()
    def the_counters_are_right(self) -> None:
        table = self.queue._table
        assert table.counts[LEASED] == sum(one.state.count(LEASED) for one in table.chunks.values())

    @invariant()
    def transactions_hold_their_messages(self) -> None:
        assert self.queue.held_by_transactions >= len(self.held()) - len(self.done & self.held())

    def teardown(self) -> None:
        """When all transactions have ended, every message that is not done is delivered."""
        if not hasattr(self, "queue"):
            return
        for suffix in list(self.open):
            self.open.pop(suffix)
            self.untold[suffix] = False
        self.crash(writes=True, reads=True)
        left: set[int] = set()
        for _ in range(len(self.keys) + 2):
            self.wait(10_000_000)
            for given in self.queue.acquire(self.now_ms, "cleo", 1_000):
                offsets = range(given.first, given.last + 1)
                left |= set(offsets)
                kinds = bytes((AckKind.ACCEPT,))
                self.queue.acknowledge(self.now_ms, "cleo", given.first, given.last, kinds)
        everything = set(range(START, START + len(self.keys)))
        assert left >= everything - self.done - self.doubtful
        assert not left & self.done


TestTransactionsUnderFire = RandomTransactions.TestCase
TestTransactionsUnderFire.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
