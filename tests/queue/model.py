"""A queue partition as one would write it if neither time nor memory mattered: a dictionary, one entry per offset."""

from dataclasses import dataclass, field, replace

from penstock.queue import QueueSettings
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


@dataclass
class Fate:
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
    chunks: dict[int, dict[int, Fate]] = field(default_factory=dict)


class Model:
    """Knows the log, too."""

    def __init__(self, settings: QueueSettings, log: dict[int, Message], start: int) -> None:
        self.settings = settings
        self.log = log
        self.start = start
        self.read_to = start
        self.fates: dict[int, Fate] = {}
        self.letters: dict[int, tuple[int, str]] = {}

    @classmethod
    def restored(cls, settings: QueueSettings, log: dict[int, Message], stored: Stored) -> "Model":
        model = cls(settings, log, stored.start)
        for number in sorted(stored.chunks):
            for offset, fate in stored.chunks[number].items():
                if offset >= stored.start:
                    model._remember(offset, fate)
        model._move_ends()
        return model

    def _remember(self, offset: int, fate: Fate) -> None:
        if fate.state == DONE:
            self.fates[offset] = Fate(DONE)
            return
        rests_until_ms = fate.due_ms if fate.deliveries and fate.state in (DEFERRED, "unread") else 0
        self.fates[offset] = Fate("unread", fate.deliveries, due_ms=rests_until_ms)
        if fate.reason == "rejected":
            self._dead_letter(offset, "rejected")
        elif 0 < self.settings.delivery_limit <= fate.deliveries:
            self._dead_letter(offset, "delivery_limit")

    # Inputs

    def extend(self, now_ms: int, end: int) -> None:
        self.tick(now_ms)
        for offset in range(self.read_to, end):
            fate = self.fates.setdefault(offset, Fate("unread"))
            if fate.state != "unread":
                continue
            message = self.log[offset]
            if message.gap or message.expires_ms <= now_ms:
                fate.state = DONE
            else:
                fate.due_ms = max(message.due_ms, fate.due_ms)
                fate.state = DEFERRED if fate.due_ms > now_ms else AVAILABLE
        self.read_to = max(self.read_to, end)
        self._move_ends()

    def trim(self, now_ms: int, log_start: int) -> None:
        self.tick(now_ms)
        for offset in range(self.start, log_start):
            self.fates[offset] = Fate(DONE)
        self.start = max(self.start, log_start)
        self.read_to = max(self.read_to, log_start)
        self._move_ends()

    def acquire(self, now_ms: int, member: str, count: int, below: int = FOR_EVER) -> list[tuple[int, int]]:
        self.tick(now_ms)
        taken: list[tuple[int, int]] = []
        busy: set[int] = set()
        count = min(count, self.settings.max_leased - self.count(LEASED))
        for offset, fate in self.undone():
            if len(taken) >= count or offset >= below:
                break
            key = self.log[offset].key if self.settings.key_ordered else None
            if self.settings.strict and not self._may_follow(fate, member, key, busy):
                break
            if fate.state == AVAILABLE and key not in busy:
                fate.state, fate.member, fate.until_ms = LEASED, member, now_ms + self.settings.lease_ms
                fate.deliveries += 1
                taken.append((offset, fate.deliveries))
                if self.settings.strict and fate.deliveries > 1:
                    break
            if key is not None:
                busy.add(key)
        return taken

    def _may_follow(self, fate: Fate, member: str | None, key: int | None, busy: set[int]) -> bool:
        """Whether, in strict order, it can be had, or others behind it."""
        if fate.state == LEASED:
            return fate.deliveries == 1 and member in (None, fate.member)
        return fate.state == AVAILABLE and key not in busy

    def hand_back(self, offset: int) -> None:
        self.fates[offset].state = AVAILABLE
        self.fates[offset].deliveries -= 1

    def holds(self, member: str, first: int, last: int) -> bool:
        return all(self._is_held(member, offset) for offset in range(first, last + 1))

    def _is_held(self, member: str, offset: int) -> bool:
        fate = self.fates.get(offset)
        return fate is not None and fate.state == LEASED and fate.member == member

    def settle(self, now_ms: int, offset: int, kind: int, delay_ms: int | None) -> None:
        fate = self.fates[offset]
        if kind in (0, 1):
            fate.state = DONE
        elif kind == 2:
            self._give_back(now_ms, offset, delay_ms)
        elif kind == 3:
            self._dead_letter(offset, "rejected")
        else:
            fate.until_ms = now_ms + self.settings.lease_ms
        self._move_ends()

    def release(self, now_ms: int, member: str) -> None:
        self.tick(now_ms)
        for offset, _ in self.undone():
            if self._is_held(member, offset):
                self._give_back(now_ms, offset, 0)
        self._move_ends()

    def bury(self, first: int, last: int) -> None:
        for offset in range(first, last + 1):
            if offset in self.fates and self.fates[offset].state == DYING:
                self.fates[offset].state = DONE
        self._move_ends()

    def tick(self, now_ms: int) -> None:
        for offset, fate in self.undone():
            if fate.state == LEASED and fate.until_ms <= now_ms:
                self._give_back(now_ms, offset, 0)
            if fate.state in (AVAILABLE, DEFERRED) and self.log[offset].expires_ms <= now_ms:
                fate.state = DONE
            if fate.state == DEFERRED and fate.due_ms <= now_ms:
                fate.state = AVAILABLE
        self._move_ends()

    def _give_back(self, now_ms: int, offset: int, delay_ms: int | None) -> None:
        fate = self.fates[offset]
        if 0 < self.settings.delivery_limit <= fate.deliveries:
            self._dead_letter(offset, "delivery_limit")
            return
        backoff = self.settings.retry_backoff
        if delay_ms is None:
            delay_ms = 0
            if backoff is not None:
                delay_ms = min(
                    int(backoff.first_ms * backoff.factor ** (fate.deliveries - 1)), backoff.max_ms
                )
        fate.state, fate.due_ms = (DEFERRED, now_ms + delay_ms) if delay_ms else (AVAILABLE, 0)
        if self.log[offset].expires_ms <= now_ms:
            fate.state = DONE

    def _dead_letter(self, offset: int, reason: str) -> None:
        fate = self.fates[offset]
        if not self.settings.dead_letters:
            fate.state = DONE
            return
        fate.state, fate.reason = DYING, reason
        self.letters[offset] = (fate.deliveries, reason)

    def _move_ends(self) -> None:
        while self.read_to in self.fates and self.fates[self.read_to].state == DONE:
            self.read_to += 1
        while self.start < self.read_to and self.fates[self.start].state == DONE:
            self.start += 1

    # Looking

    def undone(self) -> list[tuple[int, Fate]]:
        """Offsets that were read and are not done."""
        read = [offset for offset in range(self.start, self.read_to) if self.fates[offset].state != DONE]
        return [(offset, self.fates[offset]) for offset in read]

    def count(self, state: str) -> int:
        return sum(fate.state == state for _, fate in self.undone())

    def waiting(self) -> int:
        """How many could be had, were it not for one before them."""
        busy: set[int] = set()
        found, held_up = 0, False
        for offset, fate in self.undone():
            key = self.log[offset].key if self.settings.key_ordered else None
            if self.settings.strict and not self._may_follow(fate, None, key, busy):
                held_up = True
            found += fate.state == AVAILABLE and (held_up or key in busy)
            if self.settings.strict and fate.state == AVAILABLE and fate.deliveries:
                held_up = True
            if key is not None:
                busy.add(key)
        return found

    def next_due_ms(self) -> int:
        times = [FOR_EVER]
        for offset, fate in self.undone():
            if fate.state == LEASED:
                times.append(fate.until_ms)
            if fate.state == DEFERRED:
                times.append(fate.due_ms)
            if fate.state in (AVAILABLE, DEFERRED):
                times.append(self.log[offset].expires_ms)
        return min(times)

    def copy_of_chunk(self, number: int) -> dict[int, Fate]:
        base = number * CHUNK_SIZE
        known = [offset for offset in range(base, base + CHUNK_SIZE) if offset in self.fates]
        return {offset: replace(self.fates[offset]) for offset in known}

    def take_letters(self) -> list[tuple[int, int, str]]:
        letters, self.letters = self.letters, {}
        return [(offset, *what) for offset, what in sorted(letters.items()) if offset >= self.start]
