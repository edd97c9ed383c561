"""Terms and votes of all groups, saved before anything that depends on them is said.

A Raft core that votes or begins a term hands out what must be remembered together with the messages that may go out
once it is. All groups share one store and one flush cycle: an election storm of a thousand groups costs a few flushes,
not a thousand. Saves become known in the order in which they were asked for.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from penstock.errors import DiskFull, StorageError
from penstock.log.votes import NEVER_VOTED, VoteStore
from penstock.node.threads import JobThread
from penstock.raft import HardState
from penstock.types import GroupId

log = logging.getLogger("penstock.node")

Saved = Callable[[StorageError | None], None]

RETRY_SECONDS = 1.0


class HardStates:
    """The store, and its flushes off the event loop."""

    def __init__(self, store: VoteStore, thread: JobThread, *, volatile: bool, adopts: bool) -> None:
        self._store = store
        self._adopts = adopts
        """The folder was written before there were terms and votes of groups: every log in it is known."""
        self._thread = thread
        self._volatile = volatile
        self._waiting: list[Saved] = []
        self._running = False
        self._scheduled = False
        self._idle: list[asyncio.Future[None]] = []
        self._loop = asyncio.get_running_loop()
        self.failed: StorageError | None = None

    def get(self, group: GroupId) -> HardState:
        kept = self._store.get(group)
        return HardState(kept.term, kept.voted_for)

    def is_known(self, group: GroupId) -> bool:
        """Whether this group has ever taken part here. Nothing is acknowledged before it has."""
        return self._adopts or self._store.get(group) != NEVER_VOTED

    def had_log(self, group: GroupId) -> bool:
        """Whether its log is known to have held something: should its files be missing, they were lost."""
        return self._store.get(group).has_log

    def note_log(self, group: GroupId, *, has_log: bool, saved: Saved) -> None:
        """Whether there is something in the group's log. Noted before anything of it is acknowledged, so that a log
        whose files are gone is never taken for a new one."""
        self.save(group, self.get(group), has_log=has_log, saved=saved)

    def note_log_now(self, group: GroupId) -> None:
        """The same, waiting for the disk. Raises StorageError."""
        self._store.put(group, self.get(group), True)
        if not self._volatile:
            self._store.flush()

    def life(self, group: GroupId) -> int:
        """How often this node's replica of the group was made anew."""
        return self._store.get(group).life

    def renew_now(self, group: GroupId, life: int) -> None:
        """The replica begins another life, without a log; on the disk when this returns. Raises StorageError."""
        self._store.renew(group, life)
        if not self._volatile:
            self._store.flush()

    def forget(self, group: GroupId) -> None:
        self._store.forget(group)

    def save(self, group: GroupId, hard: HardState, *, has_log: bool, saved: Saved) -> None:
        """Calls `saved` once it is on the disk, in a later turn of the loop."""
        if self.failed is None:
            self._store.put(group, hard, has_log)
        self._waiting.append(saved)
        if not self._running and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._start_cycle)

    async def drain(self) -> None:
        """Returns when everything is saved."""
        while self._waiting or self._running or self._scheduled:
            future: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(future)
            await future

    async def stop(self) -> None:
        await self.drain()
        await self._thread.stop()

    def _start_cycle(self) -> None:
        self._scheduled = False
        if self._running:
            return
        waiting, self._waiting = self._waiting, []
        if self.failed is not None or self._volatile:
            self._finish_cycle(waiting, self.failed)
            return
        self._running = True
        self._thread.submit(partial(self._flush, waiting))

    def _flush(self, waiting: list[Saved]) -> None:
        """In the thread. The cycle must end whatever happens, or no election would ever end again."""
        error: StorageError | None = None
        try:
            self._store.flush()
        except StorageError as refused:
            error = refused
        except Exception as surprise:
            log.exception("a bug in saving terms and votes")
            error = StorageError(f"terms and votes could not be saved: {surprise!r}")
        self._loop.call_soon_threadsafe(self._finish_cycle, waiting, error)

    def _finish_cycle(self, waiting: list[Saved], error: StorageError | None) -> None:
        self._running = False
        if isinstance(error, DiskFull):
            # What was put stays put. Nobody was told anything, so nothing is lost by waiting for space.
            log.error("terms and votes cannot be saved now, again in %g s: %s", RETRY_SECONDS, error)
            self._waiting[:0] = waiting
            self._scheduled = True
            self._loop.call_later(RETRY_SECONDS, self._start_cycle)
            return
        if error is not None and self.failed is None:
            log.error("terms and votes cannot be saved, so this node takes no part in elections: %s", error)
            self.failed = error
        for saved in waiting:
            saved(error)
        if self._waiting:
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._start_cycle)
        else:
            idle, self._idle = self._idle, []
            for future in idle:
                if not future.done():
                    future.set_result(None)
