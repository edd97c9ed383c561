"""A thread that checks passwords or tokens one after the other, and the clients that wait for it.

One thread, so that guessing takes at most one core. The line is bounded, and an address that has failed before may have
only some places in it: otherwise somebody who guesses over a thousand connections would fill it, and clients of other
addresses could not log in.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from penstock.security.errors import AuthenticationError

T = TypeVar("T")

MAX_WAITING = 1_000
"""Checks that wait; past it a login is refused, and the client tries again. A thousand passwords take some seconds."""
MAX_WAITING_SUSPECT = 10
"""Checks that wait for one address with failures: enough for a program that has the wrong password in all threads."""


class CheckQueue:
    """One thread. Lives on the event loop."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._waiting: Counter[str] = Counter()
        """By address."""
        self._total = 0

    def stop(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def run(self, work: Callable[[], T], host: str, *, is_suspect: bool) -> T:
        """The result of `work`, when its turn has come. `is_suspect`: logins of this address have failed."""
        if self._total >= MAX_WAITING or (is_suspect and self._waiting[host] >= MAX_WAITING_SUSPECT):
            raise AuthenticationError(
                "too many logins wait for a check", "too many logins at once: try again"
            )
        self._total += 1
        self._waiting[host] += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._total -= 1
            self._waiting[host] -= 1
            if not self._waiting[host]:
                del self._waiting[host]
