"""Suspects: messages that an owner of lanes held when it crashed. One of them may have crashed it.

An owner holds thousands of messages and has begun a few of them. If a crash counted as a delivery of all, a message
that crashes its owners would take the messages behind it to the dead letters. So a crash counts for messages that the
owner had *announced* before it began them, and it announces suspects only: work without crashes costs nothing.

The first crash makes suspects of all messages that the owner held, and counts for none of them. Each further one counts
for the suspects that the owner had announced. So a message that crashes each of its owners is a dead letter after one
crash more than the delivery limit.

Suspects are in memory only. After a change of leaders, the next crash is the first one again.
"""

from collections.abc import Callable, Iterable


class Suspects:
    """By offset: the owner that has announced it, or None."""

    def __init__(self) -> None:
        self._announced_by: dict[int, str | None] = {}

    def __len__(self) -> int:
        return len(self._announced_by)

    def among(self, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """The suspects in these ranges (first, last), as ranges."""
        found: list[tuple[int, int]] = []
        for offset in self._within(ranges):
            if found and found[-1][1] == offset - 1:
                found[-1] = found[-1][0], offset
            else:
                found.append((offset, offset))
        return found

    def announce(self, owner: str, first: int, last: int) -> None:
        """The owner is about to begin these messages. Others than suspects are not remembered."""
        for offset in self._within([(first, last)]):
            self._announced_by[offset] = owner

    def give_up(self, first: int, last: int) -> None:
        """The owner that has announced them does not work on them."""
        for offset in self._within([(first, last)]):
            self._announced_by[offset] = None

    def crashed(self, owner: str, offset: int) -> bool:
        """An owner that held this message has crashed. Whether it had announced it."""
        was_announced = self._announced_by.get(offset) == owner
        self._announced_by[offset] = None
        return was_announced

    def prune(self, is_undone: Callable[[int], bool]) -> None:
        """Forgets messages that are done."""
        self._announced_by = {one: by for one, by in self._announced_by.items() if is_undone(one)}

    def _within(self, ranges: Iterable[tuple[int, int]]) -> list[int]:
        if not self._announced_by:
            return []
        return [
            offset
            for first, last in ranges
            for offset in range(first, last + 1)
            if offset in self._announced_by
        ]
