"""Leases in a queue with lanes: which messages a member gets, and which it loses (invariant 10 in `partition.py`)."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.queue.chunk import Chunk
from penstock.queue.lanes import Lanes, LaneTable
from penstock.queue.leases import Lease, Leases, still_held
from penstock.queue.offset_table import OffsetTable
from penstock.queue.settings import MAX_DELIVERIES
from penstock.queue.states import AVAILABLE, CHUNK_SIZE, DONE, LEASED
from penstock.queue.suspects import Suspects
from penstock.queue.values import Acquired


class Lost(NamedTuple):
    """An offset whose lane belongs to another owner now, or to the same one in another epoch. `is_begun`: its owner
    crashed, and had announced the message before. An owner that gave the lane up had begun none of its messages."""

    chunk: Chunk
    place: int
    member: str
    is_begun: bool


class LaneLeases:
    """Decides by lanes; the queue partition makes and ends the leases."""

    def __init__(self, table: OffsetTable, lanes: Lanes, leases: Leases) -> None:
        self._table = table
        self._lanes = lanes
        self._leases = leases
        self._interrupted: dict[str, set[int]] = {}
        """By owner: messages whose leases ended while it was at work, and that it has not got again."""
        self._suspects = Suspects()

    @property
    def ready_lanes(self) -> int:
        """How many lanes have available messages."""
        return self._lanes.ready_lanes

    @property
    def owner_count(self) -> int:
        return self._lanes.owner_count

    @property
    def epoch(self) -> int:
        """The epoch of the table by which messages are delivered."""
        return self._lanes.table.epoch

    def attach(self, member: str, owner: str) -> None:
        self._lanes.attach(member, owner)

    def detach(self, member: str) -> None:
        self._lanes.detach(member)

    def has_owner(self, member: str) -> bool:
        return self._lanes.owner_of(member) is not None

    # Delivering

    def room_for(self, member: str, max_leased: int) -> int:
        """How many messages this member may get. One slow owner must not hold all the leases of a partition. No message
        while another member of the same owner holds some: two connections of one worker would otherwise both have
        messages of one lane."""
        if any(self._leases.holds_any(other) for other in self._lanes.others_of(member)):
            return 0
        share = max(1, max_leased // self._lanes.owner_count)
        left = max_leased - self._table.counts[LEASED]
        return min(left, share - self._leases.held_by(member))

    def first_for(self, member: str) -> int | None:
        """The lowest offset that this member may get, or one below it that is not available any more."""
        owner = self._lanes.owner_of(member)
        return None if owner is None else self._lanes.first(owner)

    def acquire(self, member: str, count: int, below: int | None, until_ms: int) -> list[Acquired]:
        """Leases the lowest available offsets of the lanes of the member's owner. They are mostly single ones: a loop
        over them takes a third of the time of a call for each."""
        offsets = self._take_offsets(member, count, below)
        if not offsets:
            return []
        lease = self._leases.open(member, until_ms)
        acquired: list[Acquired] = []
        first, last, run_deliveries = offsets[0], offsets[0] - 1, -1
        number = -1
        for offset in offsets:
            if offset // CHUNK_SIZE != number:
                number = offset // CHUNK_SIZE
                chunk = self._table.chunks[number]
                state, counts, owners = chunk.state, chunk.deliveries, chunk.open_owners()
            index = offset % CHUNK_SIZE
            state[index] = LEASED
            owners[index] = lease.slot
            counts[index] = deliveries = min(counts[index] + 1, MAX_DELIVERIES)
            if offset != last + 1 or deliveries != run_deliveries:
                if last >= first:
                    acquired.append(Acquired(first, last, run_deliveries))
                first, run_deliveries = offset, deliveries
            last = offset
        acquired.append(Acquired(first, last, run_deliveries))
        self._leases.give_all(lease, offsets[0], last, len(offsets))
        self._table.counts[AVAILABLE] -= len(offsets)
        self._table.counts[LEASED] += len(offsets)
        return acquired

    def _take_offsets(self, member: str, count: int, below: int | None) -> list[int]:
        owner, chunks = self._lanes.owner_of(member), self._table.chunks
        offsets: list[int] = []
        while owner is not None and len(offsets) < count:
            taken = self._lanes.take(owner, count - len(offsets), below)
            if not taken:
                break
            for offset in taken:
                chunk = chunks.get(offset // CHUNK_SIZE)
                if chunk is None or chunk.state[offset % CHUNK_SIZE] != AVAILABLE:
                    continue  # it was finished some other way
                if not offsets or offsets[-1] != offset:  # one that came back may be listed twice
                    offsets.append(offset)
        if owner in self._interrupted:
            self._interrupted[owner].difference_update(offsets)
        return offsets

    # Suspects

    def suspects_among(self, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Messages that an owner held when it crashed: the next one announces them before it begins them."""
        return self._suspects.among(ranges)

    def announce(self, member: str, first: int, last: int) -> None:
        """The member is about to begin these messages, which it holds."""
        owner = self._lanes.owner_of(member)
        if owner is not None:
            self._suspects.announce(owner, first, last)

    def give_up(self, first: int, last: int) -> None:
        """The member that held these messages does not work on them any more, and has not crashed."""
        self._suspects.give_up(first, last)

    # Leases that end

    def interrupt(self, member: str, chunk: Chunk, start: int, stop: int) -> bool:
        """The member's lease on these offsets has ended. True if its owner is at work: a connection broke, or the
        worker renewed too late. The owner gets them again, and only its crash makes that delivery count."""
        owner = self._lanes.owner_of(member)
        if owner is None or owner not in self._lanes.table.present:
            return False
        self._interrupted.setdefault(owner, set()).update(range(chunk.base + start, chunk.base + stop))
        return True

    def take_abandoned(self) -> Iterator[tuple[Chunk, int]]:
        """The interrupted messages of owners that have crashed since, as far as they are still available and these
        owners had announced them."""
        table = self._lanes.table
        for owner in list(self._interrupted):
            kept: set[int] = set()
            for chunk, at in list(self._available(self._interrupted.pop(owner))):
                offset = chunk.base + at
                if owner not in table.present:
                    if self._suspects.crashed(owner, offset):
                        yield chunk, at
                elif self._is_of(owner, chunk, at):
                    kept.add(offset)
                else:
                    self._suspects.give_up(offset, offset)
            if kept:
                self._interrupted[owner] = kept

    def _available(self, offsets: set[int]) -> Iterator[tuple[Chunk, int]]:
        for offset in sorted(offsets):
            chunk = self._table.chunks.get(offset // CHUNK_SIZE)
            if chunk is not None and chunk.state[offset % CHUNK_SIZE] == AVAILABLE:
                yield chunk, offset % CHUNK_SIZE

    def _is_of(self, owner: str, chunk: Chunk, at: int) -> bool:
        return chunk.lanes is not None and self._lanes.table.owner(chunk.lanes[at]) == owner

    # Other owners

    def assign(self, table: LaneTable) -> list[Lost]:
        """Lanes have other owners from now on: returns the leases that must end. An older table changes nothing."""
        before = self._lanes.table
        if table.epoch < before.epoch:
            return []
        self._lanes.assign(table)
        self._suspects.prune(self._is_undone)
        return [
            lost
            for member, owner in self._lanes.members
            for lease in self._leases.of(member)
            for lost in self._lost_parts(lease, owner, before)
        ]

    def _lost_parts(self, lease: Lease, owner: str, before: LaneTable) -> Iterator[Lost]:
        """All leases were given by the table before. If the epoch of a lane is another one, its owner has lost the lane
        in between, or was about to."""
        table = self._lanes.table
        for first, behind in lease.ranges:
            for chunk, index, end in self._table.pieces(first, behind):
                for start, stop in still_held(lease, chunk, index, end):
                    assert chunk.lanes is not None
                    for at in range(start, stop):
                        lane = chunk.lanes[at]
                        if table.owner(lane) != owner or table.epoch_of(lane) != before.epoch_of(lane):
                            yield Lost(chunk, at, lease.member, self._is_counted(owner, chunk.base + at))

    def _is_counted(self, owner: str, offset: int) -> bool:
        """Whether the delivery of a message counts that its owner has lost."""
        if owner not in self._lanes.table.present:
            return self._suspects.crashed(owner, offset)
        self._suspects.give_up(offset, offset)
        return False

    def _is_undone(self, offset: int) -> bool:
        chunk = self._table.chunks.get(offset // CHUNK_SIZE)
        return chunk is not None and chunk.state[offset % CHUNK_SIZE] != DONE

    def is_fenced(self, member: str, first: int, last: int, epoch: int | None, *, is_held: bool) -> bool:
        """Whether the lane of one of these messages has another owner now, or got its owner in a later epoch than the
        newest that the member knew. Without the second check, a member that lost a lane and got it back could
        acknowledge a message for work that it did before."""
        owner, table = self._lanes.owner_of(member), self._lanes.table
        if owner is None or (is_held and (epoch is None or epoch >= table.epoch)):
            return False  # a lost lane has no leases
        return any(
            table.owner(lane) != owner or (epoch is not None and epoch < table.epoch_of(lane))
            for lane in self._table.lanes_of(first, last)
        )
