"""The promises of `queue/partition.py` hold for any order of members' calls, time, retention and crashes.

The partition is compared with a naive model after every step. Numbers are the invariants of that file.
"""

from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.errors import ErrorCode
from penstock.queue.lanes import LaneTable
from penstock.queue.partition import QueuePartition
from penstock.queue.settings import QueueSettings, RetryBackoffSettings
from penstock.queue.state_records import HEAD_SUFFIX, chunk_of, decode_head
from penstock.queue.states import (
    AVAILABLE,
    CHUNK_SIZE,
    DEFERRED,
    DONE,
    DYING,
    LEASED,
    REJECTED,
    UNREAD,
    WAITING,
)
from penstock.queue.stored_backlog import StoredBacklog
from penstock.queue.stored_parts import sort_parts, state_end
from penstock.queue.values import Acknowledgement, DeadLetterRange, ScanResult
from penstock.types import Term
from tests.queue import model as naive
from tests.queue.model import FOR_EVER, Message, Model, Stored

LANES = 4
MEMBERS = st.sampled_from(["ann", "ben", "ann", "ben", "amy"])
SHORT_MS = st.sampled_from([0, 1, 40, 300])
MESSAGES = st.builds(
    Message,
    gap=st.sampled_from([False] * 5 + [True]),
    due_ms=st.sampled_from([0, 0, 0, 500, 1500]),
    expires_ms=st.sampled_from([FOR_EVER, FOR_EVER, FOR_EVER, 900, 2500]),
    key=st.sampled_from([None, 1, 2, 3]),
    lane=st.integers(0, LANES - 1),
)
ORDERS: list[dict[str, Any]] = [
    {"key_ordered": key_ordered, "strict": strict}
    for key_ordered in (False, True)
    for strict in (False, False, True)
] + [{"lanes": LANES}] * 3
SETTINGS = st.builds(
    lambda order, **others: QueueSettings(**order, **others),
    order=st.sampled_from(ORDERS),
    lease_ms=st.just(1500),
    delivery_limit=st.sampled_from([0, 1, 2, 3]),
    max_leased=st.sampled_from([3, 10_000]),
    dead_letters=st.booleans(),
    retry_backoff=st.sampled_from([None, RetryBackoffSettings(first_ms=200, max_ms=500)]),
)
OWNERS = {"ann": "A", "ben": "B", "amy": "A"}
"""In a queue with lanes, by member: amy is another connection of the same worker as ann."""
OWNED_LANES = st.lists(st.sampled_from(["A", "A", "B", "B", None]), min_size=LANES, max_size=LANES)


def some(state: str) -> Callable[[Any], bool]:
    """Purely random steps mostly acquire where nothing is available, and acknowledge messages that no member holds."""
    return lambda self: self.model.count(state) > 0


class RandomQueue(RuleBasedStateMachine):
    """Two members do anything in any order, near the border of two chunks or with thousands of messages."""

    @initialize(
        queue=SETTINGS, start=st.sampled_from([0, CHUNK_SIZE - 6, 3 * CHUNK_SIZE - 1, 5 * CHUNK_SIZE])
    )
    def begin(self, queue: QueueSettings, start: int) -> None:
        self.settings = queue
        self.now_ms = 10
        self.log: dict[int, Message] = {}
        self.log_start = self.first_start = start
        self.term = 0
        self.writes: list[tuple[list[tuple[bytes, bytes | None]], Stored]] = []
        self.promises: list[set[int]] = []
        """By write: the offsets that were accepted, and confirmed when the write was saved."""
        self.under_way: tuple[int, set[int]] | None = None
        self.accepted: dict[int, set[int]] = {}
        """By token."""
        self.letters: list[DeadLetterRange] = []
        self.start_offset = start
        self.lanes = LaneTable(epoch=1, owners=["A", "A", "B", None], epochs=[1, 1, 1, 0], present={"A"})
        self.restart(0)

    # Steps of members

    @rule(messages=st.lists(MESSAGES, min_size=3, max_size=12))
    def add_records(self, messages: list[Message]) -> None:
        # Times are relative when a message is written.
        stamped = [
            replace(
                each,
                due_ms=each.due_ms and self.now_ms + each.due_ms,
                expires_ms=min(FOR_EVER, self.now_ms + each.expires_ms),
            )
            for each in messages
        ]
        self.extend(stamped)

    def read_much(self) -> None:
        """A whole chunk and a little, most of it gaps."""
        messages = [Message()] * 9 + [Message(gap=True)] * CHUNK_SIZE + [Message()] * 9
        self.extend(messages)

    def extend(self, messages: list[Message]) -> None:
        first = self.partition.next_offset
        end = first + len(messages)
        for offset, message in enumerate(messages, first):
            self.log.setdefault(offset, message)
        read = {offset: self.log[offset] for offset in range(first, end)}
        scan = ScanResult(
            gaps=[(offset, offset) for offset, each in read.items() if each.gap],
            deferred=[(offset, each.due_ms) for offset, each in read.items() if each.due_ms],
            expiring=[(o, each.expires_ms) for o, each in read.items() if each.expires_ms < FOR_EVER],
            keys=[each.key for each in read.values()] if self.settings.key_ordered else (),
            lanes=array("H", [each.lane for each in read.values()]) if self.settings.lanes else None,
        )
        self.partition.extend(self.now_ms, end, scan)
        self.model.extend(self.now_ms, end)

    @rule(member=MEMBERS, count=st.sampled_from([1, 2, 3, 5, 10_000]))
    @precondition(some(naive.AVAILABLE))
    def acquire(self, member: str, count: int) -> None:
        acquired = self.partition.acquire(self.now_ms, member, count)
        got = [(o, each.deliveries) for each in acquired for o in range(each.first, each.last + 1)]
        assert got == self.model.acquire(self.now_ms, member, count)  # [2, 4, 7, 8, 9, 10]
        assert not got or self.partition.held_by(member) >= len(got)
        assert not {offset for offset, _ in got} & set().union(*self.promises)  # [1]

    @rule(
        member=MEMBERS,
        count=st.sampled_from([1, 4, 5000]),
        kept=st.integers(0, 5),
        state_end=st.sampled_from([0, 1, 7, 4000]),
    )
    @precondition(some(naive.AVAILABLE))
    def acquire_more_than_fits(self, member: str, count: int, kept: int, state_end: int) -> None:
        below = self.start_offset + state_end
        acquired = self.partition.acquire(self.now_ms, member, count, below=below)
        got = [o for each in acquired for o in range(each.first, each.last + 1)]
        assert got == [offset for offset, _ in self.model.acquire(self.now_ms, member, count, below)]
        for each in acquired:
            first = min(each.first + kept, each.last)
            self.partition.hand_back(self.now_ms, member, first, each.last)
            for offset in range(first, each.last + 1):
                self.model.hand_back(offset)

    @rule(stranger=st.sampled_from([None, None, None, "ann"]), data=st.data(), delay=st.none() | SHORT_MS)
    @precondition(some(naive.LEASED))
    def acknowledge(self, stranger: str | None, data: st.DataObject, delay: int | None) -> None:
        """Usually by the member that holds it, from a single offset to all that it holds in a row, and sometimes
        beyond."""
        self.model.tick(self.now_ms)
        leased = [
            (offset, offset_state)
            for offset, offset_state in self.model.undone()
            if offset_state.state == naive.LEASED
        ]
        first, offset_state = (
            data.draw(st.sampled_from(leased[-30:])) if leased else (self.start_offset, None)
        )
        member = stranger or (offset_state.member if offset_state is not None else "ann")
        width = 1
        while width < 30 and self.model.holds(member, first, first + width):
            width += 1
        width = data.draw(st.sampled_from([1, width, width, width + 1]))
        each_its_own = data.draw(st.booleans())
        size = width if each_its_own else 1
        kinds = bytes(data.draw(st.lists(st.integers(0, 4), min_size=size, max_size=size)))
        self.say(member, first, first + width - 1, kinds, delay)

    @rule(kind=st.integers(0, 4), place=st.integers(0, 9), delay=st.none() | SHORT_MS, data=st.data())
    @precondition(some(naive.LEASED))
    def acknowledge_one(self, kind: int, place: int, delay: int | None, data: st.DataObject) -> None:
        self.model.tick(self.now_ms)
        leased = [
            (offset, offset_state)
            for offset, offset_state in self.model.undone()
            if offset_state.state == naive.LEASED
        ]
        if leased:
            offset, offset_state = leased[place % len(leased)]
            epoch = data.draw(st.sampled_from([None, self.model.lanes.epoch, self.model.lanes.epoch - 1]))
            self.say(offset_state.member, offset, offset, bytes((kind,)), delay, epoch)

    @rule(
        picks=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), min_size=2, max_size=8),
        delay=st.none() | SHORT_MS,
    )
    @precondition(some(naive.LEASED))
    def acknowledge_many(self, picks: list[tuple[int, int]], delay: int | None) -> None:
        """In one request: also the same offset again, and offsets of others."""
        self.model.tick(self.now_ms)
        leased = [each for each in self.model.undone() if each[1].state == naive.LEASED]
        if not leased:
            return
        member, token = leased[0][1].member, len(self.accepted)
        acks = [
            Acknowledgement(
                leased[place % len(leased)][0], leased[place % len(leased)][0], bytes((kind,)), delay
            )
            for place, kind in picks
        ]
        results = self.partition.acknowledge_all(self.now_ms, member, acks, token=token)
        taken: list[tuple[int, int]] = []
        for ack, error in zip(acks, results.errors, strict=True):
            if self.model.holds(member, ack.first, ack.last):
                assert error is ErrorCode.NONE
                taken.append((ack.first, ack.kinds[0]))
                self.model.settle(self.now_ms, ack.first, ack.kinds[0], delay)
            else:
                assert error in (ErrorCode.INVALID_RECORD_STATE, ErrorCode.FENCED_MEMBER_EPOCH)
        assert results.waits == any(kind != 4 for _, kind in taken)
        self.accepted[token] = {offset for offset, kind in taken if kind == 1}

    @rule(
        owners=OWNED_LANES,
        revoked=st.sets(st.integers(0, LANES - 1), max_size=2),
        present=st.sets(st.sampled_from("AB")),
        again=st.sets(st.integers(0, LANES - 1), max_size=1),
        is_old=st.sampled_from([False] * 5 + [True]),
    )
    @precondition(lambda self: self.settings.lanes)
    def assign(
        self,
        owners: list[str | None],
        revoked: set[int],
        present: set[str],
        again: set[int],
        is_old: bool,
    ) -> None:
        """Lanes get other owners, or the same ones in another epoch; members that had gone are connected again."""
        for member, owner in OWNERS.items():
            if self.model.owner_of.get(member) != owner:
                self.connect(member, owner)
        before = self.lanes
        epoch = before.epoch - 1 if is_old else before.epoch + 1
        moved = [owner != before.owner(lane) or lane in again for lane, owner in enumerate(owners)]
        epochs = [epoch if moved[lane] else before.epoch_of(lane) for lane in range(LANES)]
        table = LaneTable(epoch=epoch, owners=owners, epochs=epochs, revoked=revoked, present=present)
        self.lanes = before if is_old else table
        self.give_lanes(table)

    @rule(place=st.integers(0, 9))
    @precondition(lambda self: self.settings.lanes and self.model.count(naive.LEASED))
    def announce(self, place: int) -> None:
        self.model.tick(self.now_ms)
        leased = [each for each in self.model.undone() if each[1].state == naive.LEASED]
        if leased:
            offset, offset_state = leased[place % len(leased)]
            assert self.partition.announce(self.now_ms, offset_state.member, offset, offset)
            self.model.announce(offset_state.member, offset)
        undone = {offset for offset, _ in self.model.undone()}
        assert self.partition.lanes is not None
        suspects = self.partition.lanes.suspects_among([(self.model.start, self.model.read_to)])
        every = {offset for first, last in suspects for offset in range(first, last + 1)}
        assert every & undone == self.model.suspects.keys() & undone

    def give_lanes(self, table: LaneTable) -> None:
        leased = self.partition.leased_count
        withdrawn = self.partition.assign(self.now_ms, table)
        self.model.assign(self.now_ms, table)
        assert sum(withdrawn) == leased - self.partition.leased_count

    def connect(self, member: str, owner: str) -> None:
        """A member that had leases under no owner would keep them in any lane."""
        for queue in (self.partition.release_member, self.model.release):
            queue(self.now_ms, member)
        self.partition.attach(member, owner)
        self.model.owner_of[member] = owner

    def accept_everything(self) -> None:
        self.model.tick(self.now_ms)
        for offset, offset_state in self.model.undone():
            if offset_state.state == naive.LEASED:
                self.say(offset_state.member, offset, offset, b"\1", None)

    def say(
        self, member: str, first: int, last: int, kinds: bytes, delay: int | None, epoch: int | None = None
    ) -> None:
        token = len(self.accepted)
        result = self.partition.acknowledge(
            self.now_ms, member, first, last, kinds, delay_ms=delay, epoch=epoch, token=token
        )
        if not self.model.holds(member, first, last):
            expected = [ErrorCode.INVALID_RECORD_STATE, ErrorCode.FENCED_MEMBER_EPOCH]
            assert not result.waits
            assert result.error in expected[: 2 if self.settings.lanes else 1]
            return
        if self.model.is_outdated(member, first, last, epoch):
            assert result == (ErrorCode.FENCED_MEMBER_EPOCH, False)  # [10]
            return
        each_kind = kinds if len(kinds) > 1 else kinds * (last - first + 1)
        assert result == (ErrorCode.NONE, each_kind.count(4) < len(each_kind))
        self.accepted[token] = {first + at for at, kind in enumerate(each_kind) if kind == 1}
        for offset, kind in enumerate(each_kind, first):
            self.model.settle(self.now_ms, offset, kind, delay)

    # Steps of the partition

    @rule(duration_ms=st.sampled_from([1, 50, 400, 600, 1000]))
    def time_passes(self, duration_ms: int) -> None:
        self.now_ms += duration_ms
        self.partition.tick(self.now_ms)
        self.model.tick(self.now_ms)

    @rule(
        what=st.sampled_from(["ann leaves", "ben leaves", "all is accepted", "retention", "much", "crash"]),
        data=st.data(),
    )
    def upset(self, what: str, data: st.DataObject) -> None:
        """One rule for everything that makes the state simpler, so that it does not happen all the time."""
        if what == "retention":
            self.retention_deletes(data.draw(st.sampled_from([1, 3, 10])))
        elif what == "much":
            if len(self.log) < 100:
                self.read_much()
        elif what == "all is accepted":
            self.accept_everything()
        elif what == "crash":
            earliest = data.draw(st.sampled_from([0, len(self.writes)]))
            self.restart(
                data.draw(st.integers(earliest, len(self.writes)))
            )  # [1] from any prefix of the writes
        else:
            self.partition.release_member(self.now_ms, what[:3])
            self.model.release(self.now_ms, what[:3])

    def retention_deletes(self, distance: int) -> None:
        self.log_start = max(self.log_start, self.partition.start_offset + distance)
        for offset in range(self.partition.start_offset, self.log_start):
            self.log.setdefault(offset, Message())
        self.partition.trimmed(self.now_ms, self.log_start)
        self.model.trim(self.now_ms, self.log_start)

    @rule(buried=st.integers(0, 3))
    @precondition(lambda self: self.model.letters or self.letters)
    def take_dead_letters(self, buried: int) -> None:
        letters = self.partition.take_dead_letters()
        every = [
            (o, each.deliveries, each.reason) for each in letters for o in range(each.first, each.last + 1)
        ]
        assert sorted(every) == self.model.take_letters()
        self.letters += letters
        for letter in self.letters[:buried]:
            self.partition.dead_letters_copied(letter.first, letter.last)
            self.model.bury(letter.first, letter.last)
        self.letters = self.letters[buried:]

    @rule()
    def write(self) -> None:
        changes = self.partition.take_changes()
        if changes is None:
            return
        assert self.under_way is None
        numbers = [chunk_of(key) for key, value in changes.records if value is not None]
        stored = Stored(self.model.start, {n: self.model.copy_of_chunk(n) for n in numbers if n is not None})
        self.writes.append((changes.records, stored))
        self.promises.append(set())
        self.under_way = (changes.number, set(self.accepted))

    @rule()
    @precondition(lambda self: self.under_way is not None)
    def save(self) -> None:
        if self.under_way is None:
            return
        number, tokens = self.under_way
        self.under_way = None
        for token in self.partition.saved(number):
            assert (
                token in tokens
            )  # an acknowledgement that came after the write began is not confirmed by it
            self.promises[-1] |= self.accepted[token]
        assert self.partition.saved_start_offset is not None
        assert self.partition.saved_start_offset <= self.partition.start_offset

    def restart(self, kept: int) -> None:
        del self.writes[kept:], self.promises[kept:]
        self.under_way = None
        self.letters = []
        self.term += 1
        records: dict[bytes, bytes] = {}
        stored = Stored(self.first_start)
        for written, copies in self.writes:
            for key, value in written:
                records.pop(key, None)
                if value is not None:
                    records[key] = value
                number = chunk_of(key)
                if number is not None:
                    stored.chunks[number] = copies.chunks.get(number, {})
            stored.start = copies.start
        term = Term(self.term)
        if kept:
            self.partition = QueuePartition.restore(self.settings, term=term, records=records)
            self.model = Model.restored(self.settings, self.log, stored)
        else:
            self.partition = QueuePartition(self.settings, term=term, start_offset=self.first_start)
            self.model = Model(self.settings, self.log, self.first_start)
        if self.settings.lanes:
            for member, owner in OWNERS.items():
                self.connect(member, owner)
            self.give_lanes(self.lanes)
        self.start_offset = self.partition.start_offset
        self.partition.trimmed(self.now_ms, self.log_start)
        self.model.trim(self.now_ms, self.log_start)
        if kept:
            self.count_stored(records)

    @property
    def end_offset(self) -> int:
        """A little behind all that was read before a restart."""
        return max(self.partition.next_offset, *self.log, 0) + 3

    def count_stored(self, records: dict[bytes, bytes]) -> None:
        """The stored state alone gives the numbers that the restored partition has."""
        end = self.end_offset
        counted = StoredBacklog(
            decode_head(records[HEAD_SUFFIX]),
            self.settings,
            now_ms=self.now_ms,
            log_start_offset=self.log_start,
            end_offset=end,
        )
        for number, value in sort_parts(records).chunks.items():
            counted.add(number, value)
        assert counted.backlog == self.partition.backlog(self.now_ms, end)
        assert counted.state_end == state_end(records)

    # Invariants

    @invariant()
    def the_model_agrees(self) -> None:
        self.partition.tick(self.now_ms)
        self.model.tick(self.now_ms)
        assert self.partition.start_offset == self.model.start >= self.start_offset  # [3]
        self.start_offset = self.partition.start_offset
        assert self.partition.next_offset == self.model.read_to
        waiting = self.model.waiting()
        assert self.partition.waiting_count == waiting
        assert self.partition.available_count == self.model.count(naive.AVAILABLE) - waiting
        assert self.partition.leased_count == self.model.count(naive.LEASED) <= self.settings.max_leased
        assert self.partition.deferred_count == self.model.count(naive.DEFERRED)

    @invariant()
    def the_backlog_matches_the_model(self) -> None:
        """Also of offsets that were not read since the last restart: the stored state says what they are."""
        end = self.end_offset
        assert self.partition.backlog(self.now_ms, end) == self.model.backlog(self.now_ms, end)

    @invariant()
    def peek_matches_the_model(self) -> None:
        """[2, 5]"""
        runs = self.partition.peek(0, self.partition.next_offset, max_runs=10**6)
        seen = [(o, run) for run in runs for o in range(run.first, run.last + 1)]
        undone = self.model.undone()
        assert [offset for offset, _ in seen] == [offset for offset, _ in undone]
        for (_, run), (_, offset_state) in zip(seen, undone, strict=True):
            assert run.deliveries == offset_state.deliveries
            if offset_state.state == naive.LEASED:
                assert (run.member, run.until_ms) == (offset_state.member, offset_state.until_ms)

    @invariant()
    def no_lane_has_two_holders(self) -> None:
        """[10]"""
        holders: dict[int, set[str]] = {}
        for offset, each in self.model.undone():
            if each.state == naive.LEASED and each.member in self.model.owner_of:
                holders.setdefault(self.log[offset].lane, set()).add(each.member)
        assert not self.settings.lanes or all(len(each) == 1 for each in holders.values())

    @invariant()
    def the_next_deadline_is_not_too_late(self) -> None:
        """[5]"""
        next_ms, model_ms = self.partition.next_due_ms, self.model.next_due_ms()
        assert next_ms is None or next_ms > self.now_ms
        assert model_ms == FOR_EVER or (next_ms is not None and next_ms <= model_ms)

    @invariant()
    def counters_equal_the_bytes(self) -> None:
        """[6]"""
        table, leases = self.partition._table, self.partition._leases
        chunks = list(table.chunks.values())
        for state in (AVAILABLE, LEASED, DEFERRED, WAITING, DYING, REJECTED):
            assert table.counts[state] == sum(chunk.state.count(state) for chunk in chunks)
        assert table.reached == sum(chunk.reached for chunk in chunks)
        held = [lease.held for lease in leases._slots if lease is not None]
        assert sum(held) == table.counts[LEASED]
        assert 0 not in held
        assert len(leases) == len(held)
        for chunk in chunks:
            assert (chunk.owners is None) == (chunk.state.count(LEASED) == 0)
            assert chunk.listed or chunk.state.count(AVAILABLE) == 0
            read = chunk.state[: max(0, table.next_offset - chunk.base)]
            assert UNREAD not in read  # [5]
            done = [index for index, state in enumerate(chunk.state) if state == DONE]
            assert not any(chunk.deliveries[index] for index in done), "their deliveries are not stored"

    def teardown(self) -> None:
        """Nothing is lost: in the end everything is delivered, and then all is done and the state is small."""
        if not hasattr(self, "partition"):
            return
        self.partition.configure(replace_limit(self.settings))
        for _ in range(10_000):
            self.now_ms += 100_000
            for letter in self.letters + self.partition.take_dead_letters():
                self.partition.dead_letters_copied(letter.first, letter.last)
            self.letters = []
            acquired = self.partition.acquire(self.now_ms, "last", 100_000)
            if not acquired:
                break
            for each in acquired:
                self.partition.acknowledge(self.now_ms, "last", each.first, each.last, b"\1")
        assert self.partition.start_offset == self.partition.next_offset
        self.save()
        records: dict[bytes, bytes | None] = {}
        for written, _ in self.writes:
            records.update(written)
        while (changes := self.partition.take_changes()) is not None:
            records.update(changes.records)
            self.partition.saved(changes.number)
        assert len([value for value in records.values() if value is not None]) == 1 + len(self.ahead(records))

    def ahead(self, records: dict[bytes, bytes | None]) -> list[int]:
        """Chunks that are known from before a crash, and were not read again."""
        numbers = [chunk_of(key) for key, value in records.items() if value is not None]
        return [n for n in numbers if n is not None and (n + 1) * CHUNK_SIZE > self.partition.start_offset]


def replace_limit(queue: QueueSettings) -> QueueSettings:
    return QueueSettings(
        key_ordered=queue.key_ordered,
        strict=queue.strict,
        lanes=queue.lanes,
        delivery_limit=0,
        max_leased=10**6,
    )


TestQueueUnderFire = RandomQueue.TestCase
TestQueueUnderFire.settings = settings(max_examples=75, stateful_step_count=50, deadline=None)
