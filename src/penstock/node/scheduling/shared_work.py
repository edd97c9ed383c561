"""Work whose result many callers want at the same time: it runs once for all that asked before it began.

A caller never gets a result that is older than its request: a run that has begun does not count for it, and the next
one begins when that run has ended. So a client that has created a queue finds it in the list that it asks for
afterwards, and a thousand clients that ask again and again cause one run after the other, never two at once.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedWork(Generic[T]):
    """Runs `work`. Every method is called on the event loop."""

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._work = work
        self._current: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None
        """It has not begun: callers may still join it."""

    async def result(self) -> T:
        """The result of a run that begins now or later. Raises what the work raises."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._run(self._current))
            self._next.add_done_callback(_retrieve)
        return await asyncio.shield(self._next)

    async def _run(self, before: "asyncio.Task[T] | None") -> T:
        if before is not None:
            await asyncio.wait({before})
        self._current, self._next = self._next, None
        return await self._work()


def _retrieve(task: "asyncio.Task[T]") -> None:
    """All callers may have gone: then no other code asks for its error."""
    if not task.cancelled():
        task.exception()
