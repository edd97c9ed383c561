"""A simple model of a queue partition: a dictionary with one entry per offset."""

from dataclasses import dataclass, field, replace

from penstock.queue import Backlog
from penstock.queue.lanes import LaneTable
from penstock.queue.settings import QueueSettings
from penstock.queue.states import CHUNK_SIZE

AVAILABLE, LEASED, DEFERRED, DYING, DONE = "available", "leased", "deferred", "dying", "done"
FOR_EVER = 10**15


@dataclass(frozen=True)
class Message:
    """The record at an offset."""

    gap: bool = False
    due_ms: int = 0
    expires_ms: int = FOR_EVER
    key: int | None = None
    lane: int = 0


@dataclass
class OffsetState:
    """The state of an offset."""

    state: str
    deliveries: int = 0
    member: str = ""
    until_ms: int = 0
    due_ms: int = 0
    reason: str = ""


@dataclass
class Stored:
    """The contents of the state topic, as whole copies."""

    start: int
    chunks: dict[int, dict[int, OffsetState]] = field(default_factory=dict)


class Model:
    """Includes the log."""

    def __init__(self, settings: QueueSettings, log: dict[int, Message], start: int) -> None:
        self.settings = settings
        self.log = log
        self.start = start
        self.read_to = start
        self.offset_states: dict[int, OffsetState] = {}
        self.letters: dict[int, tuple[int, str]] = {}
        self.lanes = LaneTable()
        self.owner_of: dict[str, str] = {}
        """By member, in a queue with lanes."""
        self.interrupted: dict[int, str] = {}
        """By offset: the owner whose lease on it ended while it was at work."""
        self.suspects: dict[int, str | None] = {}
        """By offset: the owner that has announced it, or None."""

    @classmethod
    def restored(cls, settings: QueueSettings, log: dict[int, Message], stored: Stored) -> "Model":
        model = cls(settings, log, stored.start)
        for number in sorted(stored.chunks):
            for offset, offset_state in stored.chunks[number].items():
                if offset >= stored.start:
                    model._remember(offset, offset_state)
        model._move_ends()
        return model

    def _remember(self, offset: int, offset_state: OffsetState) -> None:
        if offset_state.state == DONE:
            self.offset_states[offset] = OffsetState(DONE)
            return
        rests_until_ms = (
            offset_state.due_ms
            if offset_state.deliveries and offset_state.state in (DEFERRED, "unread")
            else 0
        )
        self.offset_states[offset] = OffsetState("unread", offset_state.deliveries, due_ms=rests_until_ms)
        if offset_state.reason == "rejected":
            self._dead_letter(offset, "rejected")
        elif 0 < self.settings.delivery_limit <= offset_state.deliveries:
            self._dead_letter(offset, "delivery_limit")

    # Inputs

    def extend(self, now_ms: int, end: int) -> None:
        self.tick(now_ms)
        for offset in range(self.read_to, end):
            offset_state = self.offset_states.setdefault(offset, OffsetState("unread"))
            if offset_state.state != "unread":
                continue
            message = self.log[offset]
            if message.gap or message.expires_ms <= now_ms:
                offset_state.state = DONE
            else:
                offset_state.due_ms = max(message.due_ms, offset_state.due_ms)
                offset_state.state = DEFERRED if offset_state.due_ms > now_ms else AVAILABLE
        self.read_to = max(self.read_to, end)
        self._move_ends()

    def trim(self, now_ms: int, log_start: int) -> None:
        self.tick(now_ms)
        for offset in range(self.start, log_start):
            self.offset_states[offset] = OffsetState(DONE)
        self.start = max(self.start, log_start)
        self.read_to = max(self.read_to, log_start)
        self._move_ends()

    def acquire(self, now_ms: int, member: str, count: int, below: int = FOR_EVER) -> list[tuple[int, int]]:
        self.tick(now_ms)
        taken: list[tuple[int, int]] = []
        busy: set[int] = set()
        count = min(count, self.settings.max_leased - self.count(LEASED), self.most_of(member))
        for offset, offset_state in self.undone():
            if len(taken) >= count or offset >= below:
                break
            key = self.log[offset].key if self.settings.key_ordered else None
            if self.settings.strict and not self._may_follow(offset_state, member, key, busy):
                break
            if offset_state.state == AVAILABLE and key not in busy and self.may_get(member, offset):
                offset_state.state, offset_state.member, offset_state.until_ms = (
                    LEASED,
                    member,
                    now_ms + self.settings.lease_ms,
                )
                offset_state.deliveries += 1
                self.interrupted.pop(offset, None)
                taken.append((offset, offset_state.deliveries))
                if self.settings.strict and offset_state.deliveries > 1:
                    break
            if key is not None:
                busy.add(key)
        return taken

    # Lanes

    def assign(self, now_ms: int, table: LaneTable) -> None:
        self.tick(now_ms)
        before = self.lanes
        if table.epoch < before.epoch:
            return
        self.lanes = table
        for offset, offset_state in self.undone():
            owner, lane = self.owner_of.get(offset_state.member), self.log[offset].lane
            lost = table.owner(lane) != owner or table.epoch_of(lane) != before.epoch_of(lane)
            if offset_state.state == LEASED and owner is not None and lost:
                if owner in table.present or not self._crashed(owner, offset):
                    self._undo(now_ms, offset)
                else:
                    self._give_back(now_ms, offset, 0)
                self._unannounce(offset)
        for offset, owner in list(self.interrupted.items()):
            self._look_after(offset, owner)
        self._move_ends()

    def _look_after(self, offset: int, owner: str) -> None:
        """An interrupted delivery counts if its owner has crashed, and had announced it."""
        offset_state = self.offset_states[offset]
        is_available = offset >= self.start and offset_state.state == AVAILABLE
        if is_available and owner not in self.lanes.present and self._crashed(owner, offset):
            offset_state.deliveries += 1
            if 0 < self.settings.delivery_limit <= offset_state.deliveries:
                self._dead_letter(offset, "delivery_limit")
        if (
            owner not in self.lanes.present
            or not is_available
            or self.lanes.owner(self.log[offset].lane) != owner
        ):
            del self.interrupted[offset]
            if is_available:
                self._unannounce(offset)

    def announce(self, member: str, offset: int) -> None:
        if offset in self.suspects and member in self.owner_of:
            self.suspects[offset] = self.owner_of[member]

    def _crashed(self, owner: str, offset: int) -> bool:
        """Whether the owner had announced it; from now on it is a suspect."""
        return self.suspects.setdefault(offset, None) == owner

    def _unannounce(self, offset: int) -> None:
        if offset in self.suspects:
            self.suspects[offset] = None

    def _end_lease(self, now_ms: int, offset: int) -> None:
        offset_state = self.offset_states[offset]
        owner = self.owner_of.get(offset_state.member)
        if owner is None or owner not in self.lanes.present:
            self._give_back(now_ms, offset, 0)
            return
        self.interrupted[offset] = owner
        self._undo(now_ms, offset)

    def may_get(self, member: str, offset: int) -> bool:
        lane, owner = self.log[offset].lane, self.owner_of.get(member)
        return owner is None or (self.lanes.owner(lane) == owner and lane not in self.lanes.revoked)

    def most_of(self, member: str) -> int:
        """How many more messages a member may hold."""
        owner = self.owner_of.get(member)
        if owner is None:
            return FOR_EVER
        holders = [each.member for _, each in self.undone() if each.state == LEASED]
        if any(self.owner_of.get(each) == owner and each != member for each in holders):
            return 0
        owners = len({each for each in self.lanes.owners if each is not None}) or 1
        return max(1, self.settings.max_leased // owners) - holders.count(member)

    def is_outdated(self, member: str, first: int, last: int, epoch: int | None) -> bool:
        """Whether the lane of one of these messages got its owner after this epoch."""
        if member not in self.owner_of or epoch is None:
            return False
        return any(epoch < self.lanes.epoch_of(self.log[each].lane) for each in range(first, last + 1))

    def _may_follow(
        self, offset_state: OffsetState, member: str | None, key: int | None, busy: set[int]
    ) -> bool:
        """Whether strict order allows delivering it, or others behind it."""
        if offset_state.state == LEASED:
            return offset_state.deliveries == 1 and member in (None, offset_state.member)
        return offset_state.state == AVAILABLE and key not in busy

    def hand_back(self, offset: int) -> None:
        self._unannounce(offset)
        self._undo(0, offset)

    def _undo(self, now_ms: int, offset: int) -> None:
        offset_state = self.offset_states[offset]
        offset_state.state = DONE if self.log[offset].expires_ms <= now_ms else AVAILABLE
        offset_state.deliveries -= 1

    def holds(self, member: str, first: int, last: int) -> bool:
        return all(self._is_held(member, offset) for offset in range(first, last + 1))

    def _is_held(self, member: str, offset: int) -> bool:
        offset_state = self.offset_states.get(offset)
        return offset_state is not None and offset_state.state == LEASED and offset_state.member == member

    def settle(self, now_ms: int, offset: int, kind: int, delay_ms: int | None) -> None:
        offset_state = self.offset_states[offset]
        if kind in (0, 1):
            offset_state.state = DONE
        elif kind == 2:
            self._unannounce(offset)
            self._give_back(now_ms, offset, delay_ms)
        elif kind == 3:
            self._dead_letter(offset, "rejected")
        else:
            offset_state.until_ms = now_ms + self.settings.lease_ms
        self._move_ends()

    def release(self, now_ms: int, member: str) -> None:
        self.tick(now_ms)
        for offset, _ in self.undone():
            if self._is_held(member, offset):
                self._end_lease(now_ms, offset)
        self.owner_of.pop(member, None)
        self._move_ends()

    def bury(self, first: int, last: int) -> None:
        for offset in range(first, last + 1):
            if offset in self.offset_states and self.offset_states[offset].state == DYING:
                self.offset_states[offset].state = DONE
        self._move_ends()

    def tick(self, now_ms: int) -> None:
        for offset, offset_state in self.undone():
            if offset_state.state == LEASED and offset_state.until_ms <= now_ms:
                self._end_lease(now_ms, offset)
            if offset_state.state in (AVAILABLE, DEFERRED) and self.log[offset].expires_ms <= now_ms:
                offset_state.state = DONE
            if offset_state.state == DEFERRED and offset_state.due_ms <= now_ms:
                offset_state.state = AVAILABLE
        self._move_ends()

    def _give_back(self, now_ms: int, offset: int, delay_ms: int | None) -> None:
        offset_state = self.offset_states[offset]
        if 0 < self.settings.delivery_limit <= offset_state.deliveries:
            self._dead_letter(offset, "delivery_limit")
            return
        backoff = self.settings.retry_backoff
        if delay_ms is None:
            delay_ms = 0
            if backoff is not None:
                delay_ms = min(
                    int(backoff.first_ms * backoff.factor ** (offset_state.deliveries - 1)), backoff.max_ms
                )
        offset_state.state, offset_state.due_ms = (
            (DEFERRED, now_ms + delay_ms) if delay_ms else (AVAILABLE, 0)
        )
        if self.log[offset].expires_ms <= now_ms:
            offset_state.state = DONE

    def _dead_letter(self, offset: int, reason: str) -> None:
        offset_state = self.offset_states[offset]
        if not self.settings.dead_letters:
            offset_state.state = DONE
            return
        offset_state.state, offset_state.reason = DYING, reason
        self.letters[offset] = (offset_state.deliveries, reason)

    def _move_ends(self) -> None:
        while self.read_to in self.offset_states and self.offset_states[self.read_to].state == DONE:
            self.read_to += 1
        while self.start < self.read_to and self.offset_states[self.start].state == DONE:
            self.start += 1

    # Queries

    def undone(self) -> list[tuple[int, OffsetState]]:
        """Offsets that were read and are not done."""
        read = [
            offset for offset in range(self.start, self.read_to) if self.offset_states[offset].state != DONE
        ]
        return [(offset, self.offset_states[offset]) for offset in read]

    def count(self, state: str) -> int:
        return sum(offset_state.state == state for _, offset_state in self.undone())

    def waiting(self) -> int:
        """How many are available but wait for an earlier message."""
        busy: set[int] = set()
        found, held_up = 0, False
        for offset, offset_state in self.undone():
            key = self.log[offset].key if self.settings.key_ordered else None
            if self.settings.strict and not self._may_follow(offset_state, None, key, busy):
                held_up = True
            found += offset_state.state == AVAILABLE and (held_up or key in busy)
            if self.settings.strict and offset_state.state == AVAILABLE and offset_state.deliveries:
                held_up = True
            if key is not None:
                busy.add(key)
        return found

    def backlog(self, now_ms: int, end: int) -> Backlog:
        """All offsets before `end` that are not done, also those that were not read."""
        waiting = self.waiting()
        ahead = [self.offset_states.get(offset, OffsetState("unread")) for offset in range(self.read_to, end)]
        unread = sum(one.state == "unread" for one in ahead)
        not_due = sum(one.state == "unread" and one.due_ms > now_ms for one in ahead)
        return Backlog(
            self.count(AVAILABLE) - waiting + unread - not_due,
            self.count(LEASED),
            self.count(DEFERRED) + not_due,
            waiting,
            self.count(DYING) + sum(one.state == DYING for one in ahead),
        )

    def next_due_ms(self) -> int:
        times = [FOR_EVER]
        for offset, offset_state in self.undone():
            if offset_state.state == LEASED:
                times.append(offset_state.until_ms)
            if offset_state.state == DEFERRED:
                times.append(offset_state.due_ms)
            if offset_state.state in (AVAILABLE, DEFERRED):
                times.append(self.log[offset].expires_ms)
        return min(times)

    def copy_of_chunk(self, number: int) -> dict[int, OffsetState]:
        base = number * CHUNK_SIZE
        known = [offset for offset in range(base, base + CHUNK_SIZE) if offset in self.offset_states]
        return {offset: self._stored(self.offset_states[offset]) for offset in known}

    def _stored(self, offset_state: OffsetState) -> OffsetState:
        """With lanes, the delivery of a message that is leased is not stored."""
        under_way = bool(self.settings.lanes and offset_state.state == LEASED)
        return replace(offset_state, deliveries=offset_state.deliveries - under_way)

    def take_letters(self) -> list[tuple[int, int, str]]:
        letters, self.letters = self.letters, {}
        return [(offset, *what) for offset, what in sorted(letters.items()) if offset >= self.start]
