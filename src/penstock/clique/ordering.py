"""Puts the messages of a publisher back into the order in which it published them.

A carrier with queue groups gives each message of a stream to any worker of a clique, and that one forwards it to the
owner of its key. So two messages of one key may come to their owner over different workers, and the later one first.
Every clique that publishes therefore counts its messages by stream and slot, from 1, and sends the number along. The
owner admits the messages of one such *sequence* by their numbers:

 1. The next number is admitted at once, and a higher one is held until those before it have come.
 2. If they do not come within GAP_SECONDS, they are passed over: they were lost in a worker that crashed, or are late.
    One that was passed over is admitted when it comes. Order matters less than a lost message.
 3. A number that was handled before is a duplicate: its acknowledgement was lost.
 4. An owner that does not know a sequence begins it with number 1, or with the lowest number that it has seen after
    GAP_SECONDS.
 5. An owner that gives up a slot tells the next one where the sequences of the slot are, so that (4) costs no time and
    (3) holds across the handover. It then forgets them: from then on they go on elsewhere. Messages that it has
    admitted and not handled are not past for the next owner.

Messages of publishers that are not cliques have no number, and run in the order in which they come.
"""

from collections.abc import Iterable
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from penstock.clique.limits import PUBLISHERS_MAX

GAP_SECONDS: Final = 1.0
"""As long as workers may need to learn of a new owner and forward to it what they hold."""
PASSED_OVER_MAX: Final = 1_000
"""Numbers that a sequence remembers as passed over; older ones count as duplicates when they come."""
HANDLED_AHEAD_MAX: Final = 10_000
"""Numbers that an owner tells the next one as handled although an earlier one is not: as many as are in flight. Without
the older ones the next owner waits for them, once and for GAP_SECONDS."""

Item = TypeVar("Item")


class OrderMark(NamedTuple):
    """The number of a message among those of one publisher for one slot of one stream."""

    publisher: str
    number: int

    def __str__(self) -> str:
        return f"{self.publisher}/{self.number}"

    @classmethod
    def parse(cls, text: str | None) -> "OrderMark | None":
        """None if it is missing or makes no sense: then the message has no order."""
        publisher, _, number = (text or "").rpartition("/")
        if not (publisher and number.isascii() and number.isdigit() and int(number) > 0):
            return None
        return cls(publisher, int(number))


class SequenceId(NamedTuple):
    slot: int
    stream: str
    publisher: str


class SequenceState(msgspec.Struct, frozen=True, array_like=True):
    """Where a sequence is, for the next owner of its slot (5)."""

    slot: int
    stream: str
    publisher: str
    next: int
    """Everything below it was handled or passed over, or came before the first owner that knows the sequence."""
    floor: int
    passed_over: tuple[int, ...] = ()
    handled_ahead: tuple[int, ...] = ()
    """Numbers above `next` that were handled: other keys of the slot were faster."""

    @property
    def sequence(self) -> SequenceId:
        return SequenceId(self.slot, self.stream, self.publisher)


class _Sequence(Generic[Item]):
    __slots__ = ("floor", "handled_ahead", "held", "next", "passed_over", "unhandled", "waits_since")

    def __init__(self, begins_with: int | None) -> None:
        self.next = begins_with
        """The number that is admitted next; None while that is not known (4)."""
        self.floor = begins_with or 0
        """Numbers below it came before this worker, or an owner before it, knew the sequence."""
        self.passed_over: dict[int, None] = {}
        self.handled_ahead: set[int] = set()
        self.unhandled: set[int] = set()
        """Numbers that were admitted and are not handled."""
        self.held: dict[int, Item] = {}
        self.waits_since: float | None = None

    @classmethod
    def of(cls, state: SequenceState) -> "_Sequence[Item]":
        made: _Sequence[Item] = cls(state.next)
        made.floor = state.floor
        made.passed_over = dict.fromkeys(state.passed_over)
        made.handled_ahead = set(state.handled_ahead)
        return made

    def state(self, key: SequenceId) -> SequenceState | None:
        """None if there is nothing to tell."""
        if self.next is None:
            return None
        first = min(self.unhandled, default=self.next)
        newest = range(max(first, self.next - HANDLED_AHEAD_MAX), self.next)
        past = set(newest) - self.unhandled - self.passed_over.keys()
        ahead = tuple(sorted(past | self.handled_ahead))
        passed_over = tuple(number for number in self.passed_over if number < first)
        return SequenceState(*key, first, self.floor, passed_over, ahead)

    def is_duplicate(self, number: int) -> bool:
        if number in self.held or number in self.handled_ahead:
            return True
        is_past = self.next is not None and self.floor <= number < self.next
        return is_past and number not in self.passed_over and number not in self.unhandled

    def is_past(self, number: int) -> bool:
        return self.next is not None and number < self.next

    def admit_past(self, number: int) -> None:
        """One that was passed over, or came back (2)."""
        self.passed_over.pop(number, None)
        self.unhandled.add(number)

    def admit_held(self, now: float) -> list[Item]:
        """Those that are next, one after the other (1)."""
        admitted = []
        while self.next is not None and (self.next in self.held or self.next in self.handled_ahead):
            if self.next in self.held:
                admitted.append(self.held.pop(self.next))
                self.unhandled.add(self.next)
            self.handled_ahead.discard(self.next)
            self.next += 1
        if not self.held:
            self.waits_since = None
        elif admitted or self.waits_since is None:
            self.waits_since = now
        return admitted

    def pass_over(self) -> None:
        """The lowest that is held becomes the next (2, 4)."""
        lowest = min(self.held)
        if self.next is None:
            self.floor = lowest
        else:
            missing = range(max(self.next, lowest - PASSED_OVER_MAX), lowest)
            self.passed_over.update(dict.fromkeys(set(missing) - self.handled_ahead))
            while len(self.passed_over) > PASSED_OVER_MAX:
                del self.passed_over[next(iter(self.passed_over))]
            self.handled_ahead = {number for number in self.handled_ahead if number > lowest}
        self.next = lowest


class Admission(NamedTuple, Generic[Item]):
    """What follows from the arrival of a message."""

    admitted: list[Item]
    """May go on now, in this order."""
    is_duplicate: bool = False
    """The message that has come waits here already, or was handled before."""


class Resequencer(Generic[Item]):
    """All sequences of the slots that a worker owns. It has no clock: the time comes with each call."""

    def __init__(self, gap_s: float = GAP_SECONDS) -> None:
        self._gap_s = gap_s
        self._sequences: dict[SequenceId, _Sequence[Item]] = {}
        """The one that was used last is at the end."""
        self._waiting: dict[SequenceId, _Sequence[Item]] = {}
        """Those that hold messages."""

    @property
    def slots(self) -> set[int]:
        """The slots whose sequences it knows."""
        return {key.slot for key in self._sequences}

    def arrive(self, slot: int, stream: str, mark: OrderMark, item: Item, now: float) -> Admission[Item]:
        """A message has come, and this worker does not run it already."""
        key = SequenceId(slot, stream, mark.publisher)
        sequence = self._sequences.pop(key, None)
        if sequence is None:
            sequence = _Sequence(1 if mark.number == 1 else None)
        self._sequences[key] = sequence
        self._forget_oldest()
        if sequence.is_duplicate(mark.number):
            return Admission([], is_duplicate=True)
        if sequence.is_past(mark.number):
            sequence.admit_past(mark.number)
            return Admission([item])
        sequence.held[mark.number] = item
        return Admission(self._admit(key, sequence, now))

    def handled(self, slot: int, stream: str, mark: OrderMark) -> None:
        """A message that was admitted is done."""
        sequence = self._sequences.get(SequenceId(slot, stream, mark.publisher))
        if sequence is not None:
            sequence.unhandled.discard(mark.number)

    def overdue(self, now: float) -> list[Item]:
        """Those that have waited long enough for earlier ones (2)."""
        admitted = []
        for key, sequence in list(self._waiting.items()):
            if sequence.waits_since is not None and now - sequence.waits_since >= self._gap_s:
                sequence.pass_over()
                admitted += self._admit(key, sequence, now)
        return admitted

    def give_up(self, slots: Iterable[int]) -> tuple[list[SequenceState], list[Item]]:
        """Forgets the sequences of these slots: where they are, for the next owner, and what was held (5)."""
        gone = frozenset(slots)
        states, held = [], []
        for key in [key for key in self._sequences if key.slot in gone]:
            sequence = self._sequences.pop(key)
            self._waiting.pop(key, None)
            held += [sequence.held[number] for number in sorted(sequence.held)]
            if (state := sequence.state(key)) is not None:
                states.append(state)
        return states, held

    def go_on(self, states: Iterable[SequenceState], now: float) -> tuple[list[Item], list[Item]]:
        """The previous owner has told where the sequences are. Returns the items that may go on because of it, and
        those that turn out to be handled already. A sequence that has begun here meanwhile (4) stays as it is."""
        admitted: list[Item] = []
        handled: list[Item] = []
        for state in states:
            known = self._sequences.get(state.sequence)
            if known is not None and known.next is not None:
                continue
            sequence: _Sequence[Item] = _Sequence.of(state)
            self._sequences[state.sequence] = sequence
            for number, one in sorted(known.held.items() if known is not None else ()):
                if sequence.is_duplicate(number):
                    handled.append(one)
                elif sequence.is_past(number):
                    sequence.admit_past(number)
                    admitted.append(one)
                else:
                    sequence.held[number] = one
            admitted += self._admit(state.sequence, sequence, now)
        self._forget_oldest()
        return admitted, handled

    def _admit(self, key: SequenceId, sequence: _Sequence[Item], now: float) -> list[Item]:
        admitted = sequence.admit_held(now)
        if sequence.held:
            self._waiting[key] = sequence
        else:
            self._waiting.pop(key, None)
        return admitted

    def _forget_oldest(self) -> None:
        """Those that have nothing in hand; the others are as many as there are messages in flight at most. A tenth at
        once, so that not every message searches for the oldest."""
        if len(self._sequences) <= PUBLISHERS_MAX:
            return
        idle = [key for key, one in self._sequences.items() if not one.held and not one.unhandled]
        for key in idle[: PUBLISHERS_MAX // 10]:
            del self._sequences[key]
