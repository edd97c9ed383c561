"""A thread that checks passwords or tokens one after the other, and the clients that wait for it.

One thread, so that guessing takes at most one core. Each address has a line of its own, and the lines take turns: in
one line for all, a client would wait behind the thousand guesses of somebody else. All lines together are bounded. When
they are full, a newcomer takes the place of the last in the longest line, if that is longer than its own. Once an
address is known for failures, its line is short.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from penstock.security.errors import AuthenticationError

T = TypeVar("T")
Turn = asyncio.Future[None]

MAX_WAITING = 1_000
"""Checks that wait. A login that finds no place is refused, and the client tries again. A thousand passwords take some
seconds."""
MAX_WAITING_SUSPECT = 10
"""Checks that wait for one address with failures: enough for a program that has the wrong password in all threads."""


class CheckQueue:
    """One thread. Lives on the event loop."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._lines: OrderedDict[str, deque[Turn]] = OrderedDict()
        """Those who wait, by address; the first line is the next to be served."""
        self._waiting = 0
        self._is_busy = False

    def stop(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def run(self, work: Callable[[], T], host: str, *, is_suspect: bool) -> T:
        """The result of `work`, when its turn has come. `is_suspect`: logins of this address have failed."""
        loop = asyncio.get_running_loop()
        await self._turn(loop.create_future(), host, is_suspect)
        try:
            return await loop.run_in_executor(self._thread, work)
        finally:
            self._is_busy = False
            self._call_next()

    async def _turn(self, turn: Turn, host: str, is_suspect: bool) -> None:
        """Returns when the thread is free for this one."""
        self._make_room(len(self._lines.get(host, ())), is_suspect)
        self._lines.setdefault(host, deque()).append(turn)
        self._waiting += 1
        self._call_next()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the connection has ended in the moment in which its turn came
                self._is_busy = False
                self._call_next()
            raise

    def _make_room(self, ahead: int, is_suspect: bool) -> None:
        """Raises if there is no place for one more in a line of this length."""
        if is_suspect and ahead >= MAX_WAITING_SUSPECT:
            raise _no_place()
        if self._waiting < MAX_WAITING:
            return
        longest = max(self._lines.values(), key=len)
        if len(longest) <= ahead + 1:
            raise _no_place()
        last = longest.pop()
        self._waiting -= 1
        if not last.done():
            last.set_exception(_no_place())

    def _call_next(self) -> None:
        while self._lines and not self._is_busy:
            host, line = self._lines.popitem(last=False)
            turn = line.popleft()
            self._waiting -= 1
            if line:
                self._lines[host] = line
            if not turn.done():  # its connection has not ended
                self._is_busy = True
                turn.set_result(None)


def _no_place() -> AuthenticationError:
    return AuthenticationError("too many logins wait for a check", "too many logins at once: try again")
