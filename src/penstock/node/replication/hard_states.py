"""Saves terms and votes of all Raft groups, before any message that depends on them is sent.

A Raft core that votes or begins a term returns the term and vote to save together with the messages that may be sent
after the save. All groups share one store and one flush cycle: elections of a thousand groups at once cost a few
flushes, not a thousand. Saves are reported in the order in which they were requested.
"""

import logging
from collections.abc import Callable

from penstock.errors import OutOfResources, StorageError
from penstock.log.votes import NEVER_VOTED, VoteStore
from penstock.node.replication.flush_cycle import FlushCycle, attempt
from penstock.node.scheduling.threads import JobThread
from penstock.raft import HardState
from penstock.types import GroupId

log = logging.getLogger("penstock.node")

Saved = Callable[[StorageError | None], None]

RETRY_SECONDS = 1.0
SAVES_PER_CYCLE = 200
"""Saves that one cycle reports. A group that hears of its vote may begin to lead at once, and the event loop runs no
other work until all groups of the cycle have."""


class HardStates:
    """The store, and its flushes off the event loop."""

    def __init__(self, store: VoteStore, thread: JobThread, *, volatile: bool, adopts: bool) -> None:
        self._store = store
        self._adopts = adopts
        """The folder was written by a version without terms and votes: every log in it counts as known."""
        self._volatile = volatile
        self._waiting: list[Saved] = []
        self._cycle = FlushCycle(thread, begin=self._begin, flush=self._flush, finish=self._finish)
        self.failed: StorageError | None = None

    def get(self, group: GroupId) -> HardState:
        kept = self._store.get(group)
        return HardState(kept.term, kept.voted_for)

    def is_known(self, group: GroupId) -> bool:
        """Whether this node has ever saved a vote of the group. It acknowledges nothing before it has."""
        return self._adopts or self._store.get(group) != NEVER_VOTED

    def had_log(self, group: GroupId) -> bool:
        """Whether the group's log is known to have held something: if its files are missing, they were lost."""
        return self._store.get(group).has_log

    def note_log(self, group: GroupId, *, has_log: bool, saved: Saved) -> None:
        """Saves whether the group's log holds something. Saved before anything of the log is acknowledged, so that a
        log whose files are gone is never mistaken for a new one."""
        self.save(group, self.get(group), has_log=has_log, saved=saved)

    def note_log_now(self, group: GroupId) -> None:
        """Saves that the log holds something, and waits for the disk. Raises StorageError."""
        self._store.put(group, self.get(group), True)
        if not self._volatile:
            self._store.flush()

    def life(self, group: GroupId) -> int:
        """How often this node's replica of the group was recreated from the others."""
        return self._store.get(group).life

    def renew_now(self, group: GroupId, life: int) -> None:
        """The replica begins its next life, without a log; on the disk when this returns. Raises StorageError."""
        self._store.renew(group, life)
        if not self._volatile:
            self._store.flush()

    def forget(self, group: GroupId) -> None:
        self._store.forget(group)

    def save(self, group: GroupId, hard: HardState, *, has_log: bool, saved: Saved) -> None:
        """Calls `saved` once it is on the disk, in a later turn of the loop."""
        if self.failed is None:
            self._store.put(group, hard, has_log)
        if not self._waiting:
            self._cycle.request()
        self._waiting.append(saved)

    async def drain(self) -> None:
        """Returns when everything is saved."""
        await self._cycle.drain()

    async def stop(self) -> None:
        await self._cycle.stop()

    # --- one cycle

    def _begin(self) -> list[Saved] | None:
        waiting, self._waiting = self._waiting[:SAVES_PER_CYCLE], self._waiting[SAVES_PER_CYCLE:]
        if self.failed is None and not self._volatile:
            return waiting
        self._finish(waiting, self.failed)
        return None

    def _flush(self, waiting: list[Saved]) -> StorageError | None:
        """Saves the votes; runs in the flush thread."""
        return attempt(self._store.flush)

    def _finish(self, waiting: list[Saved], error: StorageError | None) -> None:
        if isinstance(error, OutOfResources):
            # The store keeps what was put. No reply depended on it yet, so waiting loses nothing.
            log.error("terms and votes cannot be saved now; next attempt in %g s: %s", RETRY_SECONDS, error)
            self._waiting[:0] = waiting
            self._cycle.request(RETRY_SECONDS)
            return
        if error is not None and self.failed is None:
            log.error("terms and votes cannot be saved, so this node takes no part in elections: %s", error)
            self.failed = error
        for saved in waiting:
            try:
                saved(error)
            except Exception:
                # The other groups must hear of their votes, and `save` requests no cycle while others wait.
                log.exception("a bug in a group that was told of its saved vote; the other groups go on")
        if self._waiting:
            self._cycle.request()
