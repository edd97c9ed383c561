"""Appends whose producers wait until they can no longer be lost, in the order of their offsets."""

import asyncio
from collections import deque

from penstock.types import Offset

EVERYTHING = Offset(2**63 - 1)


class PendingAcks:
    """Futures by the last offset of what they wait for."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[Offset, asyncio.Future[None]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, last_offset: Offset, future: asyncio.Future[None]) -> None:
        self._waiting.append((last_offset, future))

    def answer(self, below: Offset) -> None:
        """All appends that end below this offset have what they wait for."""
        waiting = self._waiting
        while waiting and waiting[0][0] < below:
            future = waiting.popleft()[1]
            if not future.done():
                future.set_result(None)

    def fail(self, error: Exception, below: Offset = EVERYTHING) -> None:
        """They will not get it, or not from this leader."""
        waiting = self._waiting
        while waiting and waiting[0][0] < below:
            future = waiting.popleft()[1]
            if not future.done():
                future.set_exception(error)
                future.exception()  # marks it as retrieved: an acks=1 producer may have gone away
