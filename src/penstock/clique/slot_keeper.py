"""Runs on_acquire and on_release as slots come and go, and stops handlers whose lease has ended.

    granted   -> on_acquire -> handlers may start
    revoked   -> nothing starts any more, what waits goes elsewhere -> what runs ends -> on_release -> released
    lost      -> the same, but on_release is told that the slots are lost: other workers may own them already

On the application's event loop. `changed` looks at the membership and starts what follows; it never waits.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from penstock.client.aio.threads import call_in_thread
from penstock.client.handler_checks import is_coroutine_function
from penstock.clique.clocks import lease_clock_ms
from penstock.clique.handlers import HandlerTable
from penstock.clique.membership import Membership
from penstock.clique.message import Slots
from penstock.clique.runner import HandlerRunner
from penstock.clique.tasks import end_tasks
from penstock.clique.transport import Transport

log = logging.getLogger("penstock.clique")

ACQUIRE_PAUSE_SECONDS: Final = 1.0
ACQUIRE_PAUSE_MAX_SECONDS: Final = 30.0
"""Between attempts of on_acquire: handlers cannot start without it. The pause doubles."""


class SlotKeeper:
    """Carries out what the membership decides."""

    def __init__(
        self,
        membership: Membership,
        runner: HandlerRunner,
        transport: Transport,
        handlers: HandlerTable,
        release_timeout_s: float,
    ) -> None:
        self._membership = membership
        self._runner = runner
        self._transport = transport
        self._on_acquire: Sequence[Callable[..., Any]] = handlers.on_acquire
        self._on_release: Sequence[Callable[..., Any]] = handlers.on_release
        self._release_timeout_s = release_timeout_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._unloaded: set[int] = set()
        """Slots that were taken away before on_acquire succeeded."""
        self._lease_timer: asyncio.TimerHandle | None = None
        self._was_leased = False

    def changed(self) -> None:
        """Something has changed: the table, the lease, or whether handlers run."""
        self._watch_lease()
        self._transport.table_changed()
        released, lost = self._membership.take_releasable()
        if lost:
            self._start(self._lose(lost))
        if released:
            self._start(self._release(released))
        acquired = self._membership.take_acquired()
        if acquired:
            self._start(self._acquire(acquired))
        self._runner.slots_changed()

    async def close(self) -> None:
        if self._lease_timer is not None:
            self._lease_timer.cancel()
        await end_tasks(self._tasks)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- callbacks

    async def _acquire(self, slots: Slots) -> None:
        pause_s = ACQUIRE_PAUSE_SECONDS
        while slots and not await self._call(self._on_acquire, slots):
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, ACQUIRE_PAUSE_MAX_SECONDS)
            slots = self._without_revoked(slots)
        self._acquired(slots)

    def _without_revoked(self, slots: Slots) -> Slots:
        """Those that were taken away meanwhile are released without ever having been loaded."""
        gone = {slot for slot in slots if not self._membership.is_granted(slot)}
        self._unloaded |= gone
        self._acquired(gone)
        return Slots({slot: epoch for slot, epoch in slots.epochs.items() if slot not in gone})

    def _acquired(self, slots: Collection[int]) -> None:
        if slots:
            self._membership.acquired(slots)

    async def _release(self, slots: Slots) -> None:
        await self._unload(slots)
        await self._transport.hand_over(slots)
        self._membership.released(slots)

    async def _lose(self, slots: Slots) -> None:
        self._transport.lose(slots)
        await self._unload(slots)
        self._membership.released(slots)

    async def _unload(self, slots: Slots) -> None:
        loaded = {slot: epoch for slot, epoch in slots.epochs.items() if slot not in self._unloaded}
        self._unloaded.difference_update(slots)
        if loaded:
            await self._call(self._on_release, Slots(loaded, lost=slots.lost), self._release_timeout_s)

    async def _call(
        self, callbacks: Sequence[Callable[..., Any]], slots: Slots, timeout_s: float | None = None
    ) -> bool:
        """Whether all have succeeded. A thread cannot be interrupted, and may still write what the next owner is about
        to read: the slots are kept until it has ended."""
        for callback in callbacks:
            try:
                if is_coroutine_function(callback):
                    async with asyncio.timeout(timeout_s):
                        await callback(slots)
                else:
                    with self._noted_if_late(callback, slots, timeout_s):
                        result = await call_in_thread(callback, slots, name="penstock-clique-slots")
                    if inspect.isawaitable(result):
                        await result
            except Exception:
                log.exception("%r failed for %r", callback, slots)
                return False
        return True

    @contextmanager
    def _noted_if_late(
        self, callback: Callable[..., Any], slots: Slots, timeout_s: float | None
    ) -> Iterator[None]:
        """The next owners of these slots wait for the thread: the log and the clique's status say so."""
        if timeout_s is None:
            yield
            return
        late = _LateRelease(self._membership, callback, slots, timeout_s)
        try:
            yield
        finally:
            late.end()

    # --- the lease

    def _watch_lease(self) -> None:
        """Handlers that run are cancelled when the lease ends: others may own their keys soon after."""
        left_s = (self._membership.lease_ends_ms - lease_clock_ms()) / 1000
        if left_s > 0:
            self._was_leased = True
            if self._lease_timer is None:
                loop = asyncio.get_running_loop()
                self._lease_timer = loop.call_later(left_s, self._lease_may_be_over)
        elif self._was_leased:
            self._was_leased = False
            if self._runner.cancel_running():
                log.warning(
                    "worker %s: its lease has ended; running handlers were cancelled", self._membership.worker
                )

    def _lease_may_be_over(self) -> None:
        self._lease_timer = None
        self._watch_lease()


class _LateRelease:
    """An on_release in a thread: after its time is over, the clique's status counts its slots as overdue, and the log
    tells of it again and again, each time after twice as long."""

    def __init__(
        self, membership: Membership, callback: Callable[..., Any], slots: Slots, timeout_s: float
    ) -> None:
        self._membership = membership
        self._callback = callback
        self._slots = slots
        self._waited_s = timeout_s
        self._is_late = False
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(timeout_s, self._note)

    def end(self) -> None:
        self._timer.cancel()
        if self._is_late:
            self._membership.note_overdue(-len(self._slots))

    def _note(self) -> None:
        if not self._is_late:
            self._is_late = True
            self._membership.note_overdue(len(self._slots))
        log.warning(
            "worker %s: %r has not returned for %r within %g s: a thread cannot be interrupted, so %s. End this "
            "process if it never returns",
            self._membership.worker,
            self._callback,
            self._slots,
            self._waited_s,
            "this worker cannot get them back" if self._slots.lost else "no other worker gets them",
        )
        self._timer = self._loop.call_later(self._waited_s, self._note)
        self._waited_s *= 2
