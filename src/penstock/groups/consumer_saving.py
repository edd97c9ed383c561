"""Which records of a consumer group must be written, and which answers wait for that.

Decisions change the memory at once. Each *marks* the records that it changed, with a number, and an answer is sent once
the log has everything up to the number of the member's last change: no client learns of a state that a crash of this
node could undo. One write of a group is under way at a time; changes that come meanwhile share the next one, so that a
thousand members that join at once cost a few writes.

A write that fails is marked again, and goes with the next one. Its answers are refusals: no client has learned of the
changes.
"""

from typing import NamedTuple

from penstock.groups.consumer_member import ConsumerMember
from penstock.groups.consumer_storage import RecordKind

Mark = tuple[RecordKind | None, str]
"""A record by its kind and name; None: the generation of the classic group that had the name."""


class Waiting(NamedTuple):
    """An answer that waits until a change is durable."""

    change: int
    token: object
    result: object
    refusal: object
    """The answer if that fails."""
    member: ConsumerMember


class Saving:
    """Marks and waiting answers of one group."""

    def __init__(self) -> None:
        self._last = 0
        self._durable = 0
        self._marks: dict[Mark, None] = {}
        """In the order of the last change of each, which is the order in which they are written: if a write of very
        many records is torn by a crash, no partition was given away before it was given up."""
        self._in_flight: dict[Mark, None] | None = None
        self._covers = 0
        """The last change in the write that is under way."""
        self._waiting: list[Waiting] = []
        self._is_frozen = False

    def mark(self, kind: RecordKind | None, name: str) -> int:
        self._marks.pop((kind, name), None)
        self._marks[kind, name] = None
        self._last += 1
        return self._last

    def is_durable(self, change: int) -> bool:
        return change <= self._durable

    def wait(self, waiting: Waiting) -> None:
        self._waiting.append(waiting)

    def begin(self) -> list[Mark]:
        """The records to write now; none while a write is under way."""
        if self._in_flight is not None or not self._marks or self._is_frozen:
            return []
        self._in_flight, self._marks = self._marks, {}
        self._covers = self._last
        return list(self._in_flight)

    def end(self, ok: bool) -> list[Waiting]:
        """The write has ended. Returns the answers that waited for it."""
        assert self._in_flight is not None
        if ok:
            self._durable = self._covers
        else:
            self._marks = self._in_flight | self._marks
        self._in_flight = None
        ended = [each for each in self._waiting if not ok or each.change <= self._durable]
        self._waiting = [each for each in self._waiting if ok and each.change > self._durable]
        return ended

    def freeze(self) -> list[Mark]:
        """The group is being deleted: nothing is written behind its deletion. Returns the marks that are left."""
        self._is_frozen = True
        return list(self._marks)

    def give_up(self) -> list[Waiting]:
        """Returns all answers that wait; they wait no more."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def thaw(self) -> None:
        """The deletion has failed."""
        self._is_frozen = False
