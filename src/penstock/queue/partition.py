"""One queue on one partition: which member holds which message until when, and which messages are done.

The leader of a partition has one `QueuePartition` per queue, for one term. Inputs are the records that were read from
the log, the requests of members, and the time. Outputs are leases, the changes that must be stored before an
acknowledgement is answered, and the messages to copy to the dead letters. Work is per range of offsets where members
ask for ranges and acknowledge ranges; only messages with a time or a key of their own cost something each.

Time is the caller's `now_ms`, milliseconds since 1970, because deliver-at and expiry are times of the wall clock. A
clock that jumps makes leases longer or shorter, and does nothing else. Every input first processes what is due by then
(`tick`), so nothing depends on how often the caller ticks.

Invariants. Code and tests cite the numbers.

   1  An offset whose acceptance was saved is never delivered again, nor is one that is done for any other reason and
      saved. This also holds after a restart from any prefix of the writes that contains it.
   2  An offset is leased to at most one member.
   3  The start offset only grows, and everything below it is done.
   4  No message is delivered before it is due, or after it has expired.
   5  An offset below the next offset that is not done is available, leased, deferred, waiting for its key, or on its
      way to the dead letters. It stays in one of these states only while something outside keeps it there: a member
      that renews, a time in the future, a copy that was not made, or one of these for the first message of the key.
   6  The counters equal what the bytes say.
   7  Key order: a message with a key is delivered only when all earlier messages of that key are done. So at most one
      message of a key is in progress, whichever members join or leave; while it is leased, delayed, not due or dying,
      the later messages of its key wait.
   8  The lowest available offset is always delivered first. So messages that came back are delivered before messages
      that were never delivered.
   9  Strict order, if set: a message is delivered only when each earlier message is done, or is held by the same member
      in its first delivery. So a message that came back, is not due or is dying blocks all later ones. Messages that a
      consumer holds already are not recalled: only a consumer that takes one message at a time works strictly in order
      when a message fails.
  10  With lanes: a member that receives for an owner gets only messages of this owner's lanes, none of a revoked lane,
      and none while another member of the same owner holds some. When a lane gets another owner, or another epoch, the
      leases on its messages end at once, and acknowledgements of the previous owner are refused. So two members never
      hold messages of one lane.
      The lowest available offset (8) is the lowest of the owner's lanes then. A member may hold many messages of a
      lane: it processes those of one key in order, and keeps its lease while it tries again. However often an owner
      gets a message while it is at work, that is one delivery: a worker whose connection breaks has its messages in
      hand, most of them not begun, and they must not become dead letters. When it crashes, this delivery counts for
      messages that it had announced, and for no others (`suspects.py`).

  11  A message that is settled in an open transaction stays leased until the transaction ends, also under the next
      leader. A settlement of a committed transaction is applied once, also if leaders change meanwhile.

Delivery is at least once. A member that finished its work and lost its lease before it acknowledged has done work that
another member will repeat; after a restart the same holds for every acknowledgement that was not saved. A dead letter
may be copied twice if the leader dies between the copy and `dead_letters_copied`.

Delivery counts are stored with the next other change in their chunk, not when a message is delivered: after a crash a
count may be lower than it was, and the limit is reached later. An undone message whose stored count has reached the
limit goes to the dead letters at a restart: it may be the message that brought the leader down. With lanes, the
delivery of a message that is leased is not stored: its owner may never have begun it, and a change of leaders must not
count.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Self

from penstock.errors import ErrorCode, KafkaError
from penstock.queue import inspection
from penstock.queue.acknowledging import Acknowledging
from penstock.queue.chunk import Chunk
from penstock.queue.held_ranges import Held, add_range, held_ranges
from penstock.queue.inspection import MAX_PEEKED_RUNS
from penstock.queue.lane_leases import LaneLeases
from penstock.queue.lanes import Lanes, LaneTable
from penstock.queue.leases import Lease, Leases, still_held
from penstock.queue.offset_table import OffsetTable
from penstock.queue.open_settlements import OpenSettlements
from penstock.queue.reading import add_records
from penstock.queue.settings import MAX_DELAY_MS, MAX_DELIVERIES, QueueSettings
from penstock.queue.settlements import TransactionSettlement, decode_settlement
from penstock.queue.state_records import decode_chunk
from penstock.queue.state_writer import StateWriter
from penstock.queue.states import (
    AVAILABLE,
    BYTE,
    CHUNK_SIZE,
    DEFERRED,
    DYING,
    LEASED,
    REJECTED,
    WAITING,
    run_end,
    runs,
)
from penstock.queue.stored_backlog import dead_runs
from penstock.queue.stored_parts import sort_parts
from penstock.queue.stored_values import Backlog
from penstock.queue.strict_order import find_deliverable
from penstock.queue.values import (
    EMPTY_SCAN,
    AckKind,
    Acknowledgement,
    AckResult,
    AckResults,
    Acquired,
    DeadLetterRange,
    DeadLetterReason,
    Description,
    Run,
    ScanResult,
    StateChanges,
    Withdrawn,
)
from penstock.types import Term

# As plain integers, for the same reason as the states.
_RELEASE, _REJECT = int(AckKind.RELEASE), int(AckKind.REJECT)
NO_SETTLEMENTS: Mapping[bytes, bytes] = MappingProxyType({})
_DEAD_STATES = {DeadLetterReason.DELIVERY_LIMIT: DYING, DeadLetterReason.REJECTED: REJECTED}


class QueuePartition:
    """The messages of one partition in one queue."""

    def __init__(self, settings: QueueSettings, *, term: Term, start_offset: int) -> None:
        settings.validate()
        self._settings = settings
        self._leases = Leases()
        lanes = Lanes() if settings.lanes else None
        self._table = OffsetTable(start_offset, self._leases, lanes)
        self.lanes = None if lanes is None else LaneLeases(self._table, lanes, self._leases)
        """For callers that only ask; None in a queue without lanes."""
        self._acks = Acknowledging(self._table, self._leases, self.lanes, self._settle)
        self._transactional = OpenSettlements(self._table, self._leases, self._settle_for)
        self._writer = StateWriter(term)
        self._letters: list[DeadLetterRange] = []

    @classmethod
    def restore(
        cls,
        settings: QueueSettings,
        *,
        term: Term,
        records: Mapping[bytes, bytes],
        open_settlements: Mapping[bytes, bytes] = NO_SETTLEMENTS,
        now_ms: int = 0,
    ) -> Self:
        """From the last value of each key suffix, without deleted ones. `open_settlements`: the records of transactions
        that have not ended. The caller reads the log from next_offset on, and calls `trimmed` if the log starts later
        by now."""
        stored = sort_parts(records)
        partition = cls(settings, term=term, start_offset=stored.head.start_offset)
        partition._writer.restored(stored.head.start_offset, list(stored.chunks))
        table, settlements = partition._table, partition._transactional
        for number in sorted(stored.chunks):
            if (number + 1) * CHUNK_SIZE > table.start_offset:
                table.restore(number, decode_chunk(stored.chunks[number]))
        settlements.restore({one: decode_settlement(value) for one, value in open_settlements.items()})
        settlements.restore(stored.settlements)
        partition._find_dead()
        for suffix in stored.settlements:
            settlements.end(now_ms, suffix, commit=True)
            partition._writer.delete(suffix)
        table.advance()
        return partition

    # Properties

    @property
    def settings(self) -> QueueSettings:
        return self._settings

    @property
    def start_offset(self) -> int:
        return self._table.start_offset

    @property
    def saved_start_offset(self) -> int | None:
        """The stored start offset: the queue needs no record below it. None before the first write."""
        return self._writer.saved_start_offset

    @property
    def next_offset(self) -> int:
        """Where the caller must read the log next. May be beyond the last read, where all offsets are known to be
        done."""
        return self._table.next_offset

    @property
    def available_count(self) -> int:
        """How many messages could be delivered now."""
        if self._settings.strict:
            return find_deliverable(self._table, self._leases).available
        return self._table.counts[AVAILABLE]

    @property
    def leased_count(self) -> int:
        return self._table.counts[LEASED]

    @property
    def deferred_count(self) -> int:
        return self._table.counts[DEFERRED]

    @property
    def waiting_count(self) -> int:
        """Messages that are due but blocked by an earlier one of their key, or of the queue if its order is strict."""
        counts = self._table.counts
        return counts[WAITING] + counts[AVAILABLE] - self.available_count

    @property
    def dying_count(self) -> int:
        return self._table.counts[DYING] + self._table.counts[REJECTED]

    @property
    def next_due_ms(self) -> int | None:
        """When `tick` has work: a lease ends, or a message becomes due or expires."""
        times = [each for each in (self._leases.next_ms, self._table.due.next_ms) if each is not None]
        return min(times, default=None)

    def held_by(self, member: str) -> int:
        """How many offsets a member holds."""
        return self._leases.held_by(member)

    def wants_more(self, max_records: int) -> bool:
        """Whether reading more of the log would help a request for this many messages. One read may exceed the
        limits."""
        table, settings = self._table, self._settings
        return (
            table.counts[AVAILABLE] < (settings.max_ahead if settings.lanes else max_records)
            and table.counts[LEASED] < settings.max_leased
            and table.counts[WAITING] < settings.max_waiting
            and table.reached < settings.max_chunks
        )

    # Inputs

    def configure(self, settings: QueueSettings) -> None:
        """Applies other settings from now on. Existing leases keep their end; a new delivery limit applies when a
        message comes back. Key order and lanes cannot be changed: current leases were not given by them."""
        settings.validate()
        if (settings.key_ordered, settings.lanes) != (self._settings.key_ordered, self._settings.lanes):
            raise ValueError("key order and lanes change only with a new QueuePartition")
        self._settings = settings

    def extend(self, now_ms: int, end_offset: int, scan: ScanResult = EMPTY_SCAN) -> None:
        """The log was read from next_offset to before end_offset."""
        self.tick(now_ms)
        if end_offset < self.next_offset:
            raise ValueError(f"read to {end_offset}, which is before {self.next_offset}")
        if self._settings.key_ordered and len(scan.keys) != end_offset - self.next_offset:
            raise ValueError("a key-ordered queue needs one key, or None, for each offset")
        if self._settings.lanes and len(scan.lanes or ()) != end_offset - self.next_offset:
            raise ValueError("a queue with lanes needs one lane for each offset")
        if end_offset > self.next_offset:
            add_records(self._table, now_ms, end_offset, scan)

    def trimmed(self, now_ms: int, log_start_offset: int) -> int:
        """The records below this offset were deleted. A member that holds one is told so when it acknowledges. Returns
        how many messages were not done; offsets that were not read yet count, whether or not they had a record."""
        self.tick(now_ms)
        if log_start_offset <= self.start_offset:
            return 0
        undone = self._table.count_undone(log_start_offset)
        self._table.trim(log_start_offset)
        return undone

    def acquire(
        self, now_ms: int, member: str, max_records: int, *, below: int | None = None
    ) -> list[Acquired]:
        """Leases the lowest available messages (invariant 8) with one deadline; none at or above `below`. In strict
        order, none behind a blocking message (9). With lanes, those of the member's owner (10); a member without an
        owner gets any."""
        self.tick(now_ms)
        if self.lanes is not None and self.lanes.has_owner(member):
            room = self.lanes.room_for(member, self._settings.max_leased)
            return self.lanes.acquire(member, min(max_records, room), below, now_ms + self._settings.lease_ms)
        lease: Lease | None = None
        acquired: list[Acquired] = []
        for chunk, start, stop in self._lowest_available(member, max_records, below):
            deliveries = min(chunk.deliveries[start] + 1, MAX_DELIVERIES)
            if lease is None:
                lease = self._leases.open(member, now_ms + self._settings.lease_ms)
            self._table.lease(lease, chunk, start, stop, deliveries)
            add_range(acquired, Acquired(chunk.base + start, chunk.base + stop - 1, deliveries))
        return acquired

    def acknowledge(
        self,
        now_ms: int,
        member: str,
        first: int,
        last: int,
        kinds: bytes,
        *,
        delay_ms: int | None = None,
        epoch: int | None = None,
        token: object = None,
    ) -> AckResult:
        """The same as `acknowledge_all` for one acknowledgement."""
        ack = Acknowledgement(first, last, kinds, delay_ms)
        errors, waits = self.acknowledge_all(now_ms, member, [ack], epoch=epoch, token=token)
        return AckResult(errors[0], waits)

    def acknowledge_all(
        self,
        now_ms: int,
        member: str,
        acks: Iterable[Acknowledgement],
        *,
        epoch: int | None = None,
        token: object = None,
    ) -> AckResults:
        """Applies a member's acknowledgements of offsets that it holds, in order: all of each, or nothing. `epoch` is
        the newest table of lanes that the member knew. `saved` returns the token when the changes are durable; pure
        renewals need no save."""
        self.tick(now_ms)
        results = self._acks.apply(now_ms, member, acks, lease_ms=self._settings.lease_ms, epoch=epoch)
        if results.waits and token is not None:
            self._writer.wait(token)
        return results

    def hand_back(self, now_ms: int, member: str, first: int, last: int) -> bool:
        """Undoes a delivery that could not be sent, or that its member did not start: its delivery count goes back. All
        of the range, or nothing if the member does not hold all of it; returns which."""
        self.tick(now_ms)
        held = held_ranges(self._table, self._leases, member, first, last)
        for chunk, start, stop, _ in held or ():
            self._undo(chunk, start, stop)
        if held is not None and self.lanes is not None:
            self.lanes.give_up(first, last)
        return held is not None

    def release_member(self, now_ms: int, member: str) -> None:
        """The member is gone: its messages become available at once. Their deliveries count; otherwise a message that
        crashes each of its consumers would be delivered forever. With lanes it takes more than that (10)."""
        self.tick(now_ms)
        for lease in self._leases.of(member):
            self._end(lease)
        if self.lanes is not None:
            self.lanes.detach(member)

    def tick(self, now_ms: int) -> None:
        """Ends expired leases, makes due messages available, and finishes expired messages."""
        while (lease := self._leases.pop_due(now_ms)) is not None:
            self._end(lease)
        self._table.run_timers(now_ms)

    # Transactions

    def begin_settlement(
        self,
        now_ms: int,
        suffix: bytes,
        member: str,
        transactional_id: str,
        acks: Iterable[Acknowledgement],
    ) -> tuple[list[ErrorCode], TransactionSettlement | None]:
        """A member settles offsets that it holds within a transaction, which holds them from now on. An error for each
        acknowledgement, and the settlement to be stored; None if all were refused. KafkaError: none can be accepted."""
        self.tick(now_ms)
        if self.lanes is not None:
            message = "messages of a clique cannot be settled in a transaction"
            raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
        return self._transactional.begin(suffix, member, transactional_id, acks)

    def end_settlement(self, now_ms: int, suffix: bytes, *, commit: bool) -> TransactionSettlement | None:
        """The transaction has ended, or has not accepted the settlement. Returns the settlement if it was applied."""
        applied = self._transactional.end(now_ms, suffix, commit=commit)
        if applied is not None:
            self._writer.delete(suffix)
        return applied

    @property
    def held_by_transactions(self) -> int:
        """How many of the leased messages open transactions hold."""
        return self._transactional.held

    # Lanes

    def attach(self, member: str, owner: str) -> None:
        """The member receives for this owner of lanes, until `release_member`."""
        assert self.lanes is not None
        self.lanes.attach(member, owner)

    def assign(self, now_ms: int, table: LaneTable) -> Withdrawn:
        """Lanes have other owners from now on; an older table changes nothing. Messages of a lane that its owner lost
        are available at once (10). If that owner is at work, it gave the lane up and had begun none of them: such a
        delivery does not count. If it crashed, the delivery counts for messages that it had announced."""
        assert self.lanes is not None
        self.tick(now_ms)
        lost = self.lanes.assign(table)
        for chunk, index, member, is_begun in lost:
            if is_begun:
                self._give_back(chunk, index, index + 1, member)
            else:
                self._undo(chunk, index, index + 1)
        for chunk, index in self.lanes.take_abandoned():
            self._count_delivery(chunk, index)
        begun = sum(each.is_begun for each in lost)
        return Withdrawn(len(lost) - begun, begun)

    def announce(self, now_ms: int, member: str, first: int, last: int) -> bool:
        """The member is about to begin these messages: if it crashes, their delivery counts. Only suspects need this
        (`LaneLeases.suspects_among`). All of the range, or nothing if the member does not hold all of it; returns
        which."""
        assert self.lanes is not None
        self.tick(now_ms)
        if held_ranges(self._table, self._leases, member, first, last) is None:
            return False
        self.lanes.announce(member, first, last)
        return True

    def may_get(self, member: str) -> bool:
        """Whether `acquire` may find messages for this member among those that were read."""
        if self.lanes is None or not self.lanes.has_owner(member):
            return self.available_count > 0
        room = self.lanes.room_for(member, self._settings.max_leased)
        return room > 0 and self.lanes.first_for(member) is not None

    # Dead letters

    def take_dead_letters(self) -> list[DeadLetterRange]:
        """Messages to copy. They stay undone until `dead_letters_copied`."""
        letters, self._letters = self._letters, []
        start = self.start_offset
        return [each._replace(first=max(each.first, start)) for each in letters if each.last >= start]

    def dead_letters_copied(self, first: int, last: int) -> None:
        """The copies are committed."""
        for chunk, start, stop in self._table.pieces(first, last + 1):
            for index, end, state in runs(chunk.state, start, stop):
                if state in (DYING, REJECTED):
                    self._table.finish(chunk, index, end)

    # Storing

    def take_changes(self) -> StateChanges | None:
        """The next write; None if there is nothing to write, or a write is in progress. After a failed write this
        object must not be used any more: the stored state is unknown, and only a restored object knows what may be
        promised."""
        return self._writer.take(self._table)

    def saved(self, number: int) -> list[object]:
        """A write is committed. Returns the tokens of the acknowledgements that are durable with it."""
        return self._writer.saved(number)

    # For people and tools

    def backlog(self, now_ms: int, end_offset: int) -> Backlog:
        """All messages before `end_offset` that are not done. Those that were not read count by their stored state."""
        unread = self._table.count_unread(now_ms, end_offset)
        return Backlog(
            self.available_count + unread.available,
            self.leased_count,
            self.deferred_count + unread.deferred,
            self.waiting_count,
            self.dying_count,
        )

    def unread_count(self, end_offset: int) -> int:
        """Messages before `end_offset` that are not done and were not read: some may not be due, or have expired."""
        return sum(self._table.count_unread(0, end_offset))

    def describe(self) -> Description:
        return Description(
            leases=len(self._leases),
            members=self._leases.members,
            chunks=len(self._table.chunks),
            ready_lanes=self.lanes.ready_lanes if self.lanes else 0,
            lane_owners=self.lanes.owner_count if self.lanes else 0,
            lane_epoch=self.lanes.epoch if self.lanes else 0,
        )

    def peek(self, first: int, last: int, max_runs: int = MAX_PEEKED_RUNS) -> list[Run]:
        """The state of a range that was read, in runs; done offsets are left out. If there are more runs than asked
        for, the next call starts behind the last one."""
        return inspection.peek(self._table, self._leases, first, last, max_runs)

    def scheduled(self, most: int = MAX_PEEKED_RUNS) -> list[tuple[int, int]]:
        """(due_ms, offset) of deferred messages among those that were read, soonest first."""
        return self._table.scheduled(most)

    # Inside

    def _find_dead(self) -> None:
        """After a restart: the messages that go to the dead letters, without those that transactions hold."""
        for _, chunk in sorted(self._table.chunks.items()):
            limit = self._settings.delivery_limit
            for start, stop, reason in dead_runs(chunk.state, chunk.deliveries, limit):
                self._dead_letter(chunk, start, stop, reason)

    def _lowest_available(
        self, member: str, max_records: int, below: int | None
    ) -> Iterator[tuple[Chunk, int, int]]:
        """Runs (chunk, index, end index) with one delivery count; the caller leases each before it takes the next."""
        table = self._table
        if self._settings.strict:
            end = find_deliverable(table, self._leases, member).end
            below = end if below is None else min(below, end)
        left = min(max_records, self._settings.max_leased - table.counts[LEASED])
        while left > 0 and (found := table.next_available()) is not None:
            chunk, start = found
            most = CHUNK_SIZE if below is None else min(CHUNK_SIZE, below - chunk.base)
            if start >= most:
                break
            stop = run_end(chunk.state, start, min(most, start + left))
            stop = run_end(chunk.deliveries, start, stop)
            yield chunk, start, stop
            left -= stop - start

    def _undo(self, chunk: Chunk, start: int, stop: int) -> None:
        """Leased offsets are available again, as if they had not been delivered."""
        for index, end, deliveries in list(runs(chunk.deliveries, start, stop)):
            chunk.deliveries[index:end] = BYTE[deliveries - 1] * (end - index)
            self._table.release(chunk, index, end, None)

    def _settle(self, now_ms: int, kind: int, piece: Held, delay_ms: int | None) -> None:
        self._settle_for(now_ms, kind, piece, delay_ms, piece[3].member)

    def _settle_for(self, now_ms: int, kind: int, piece: Held, delay_ms: int | None, member: str) -> None:
        chunk, start, stop, _ = piece
        if kind == _RELEASE:
            if self.lanes is not None:
                self.lanes.give_up(chunk.base + start, chunk.base + stop - 1)
            self._give_back(chunk, start, stop, member, now_ms, delay_ms)
        elif kind == _REJECT:
            for first, end, _ in runs(chunk.deliveries, start, stop):
                self._dead_letter(chunk, first, end, DeadLetterReason.REJECTED, member)
        else:
            self._table.finish(chunk, start, stop)

    def _end(self, lease: Lease) -> None:
        held = [
            (chunk, start, stop)
            for first, behind in lease.ranges
            for chunk, index, end in self._table.pieces(first, behind)
            for start, stop in still_held(lease, chunk, index, end)
        ]
        for chunk, start, stop in held:
            if self.lanes is not None and self.lanes.interrupt(lease.member, chunk, start, stop):
                self._undo(chunk, start, stop)
            else:
                self._give_back(chunk, start, stop, lease.member)

    def _count_delivery(self, chunk: Chunk, index: int) -> None:
        """Counts the delivery of an available message after all, which `_end` has undone."""
        chunk.deliveries[index] = min(chunk.deliveries[index] + 1, MAX_DELIVERIES)
        if 0 < self._settings.delivery_limit <= chunk.deliveries[index]:
            self._dead_letter(chunk, index, index + 1, DeadLetterReason.DELIVERY_LIMIT)

    def _give_back(
        self, chunk: Chunk, start: int, stop: int, member: str, now_ms: int = 0, delay_ms: int | None = 0
    ) -> None:
        """Leased offsets become available again after a delay; None: after the queue's backoff."""
        limit, backoff = self._settings.delivery_limit, self._settings.retry_backoff
        for first, end, deliveries in runs(chunk.deliveries, start, stop):
            if 0 < limit <= deliveries:
                self._dead_letter(chunk, first, end, DeadLetterReason.DELIVERY_LIMIT, member)
                continue
            delay = delay_ms
            if delay is None:
                delay = backoff.delay_ms(deliveries) if backoff is not None else 0
            due_ms = now_ms + min(delay, MAX_DELAY_MS) if delay > 0 else None
            self._table.release(chunk, first, end, due_ms)

    def _dead_letter(
        self, chunk: Chunk, start: int, stop: int, reason: DeadLetterReason, member: str | None = None
    ) -> None:
        """Offsets with one delivery count go to the dead letters."""
        if not self._settings.dead_letters:
            self._table.finish(chunk, start, stop)
            return
        self._table.set_state(chunk, start, stop, _DEAD_STATES[reason])
        self._table.changed[chunk.number] = None
        first, last = chunk.base + start, chunk.base + stop - 1
        self._letters.append(DeadLetterRange(first, last, chunk.deliveries[start], reason, member))
