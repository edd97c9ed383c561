"""Keeps a worker in its clique, from a thread of its own.

The thread has an event loop and a connection that no handler uses: a handler that blocks the application's loop does
not keep a heartbeat from being sent, so a slow handler is not a dead worker. `MemberCore` decides what the worker may
do; both threads use it, under one lock and never for longer than a lookup or a table takes.

    control thread      heartbeat -> coordinator -> reply -> MemberCore  --on_change-->  application's loop
    application's loop  begin, end (around each handler), take_acquired, take_releasable ... -> MemberCore  --wake-->
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Final

from penstock.client.errors import ClientError
from penstock.clique.clocks import lease_clock_ms
from penstock.clique.coordination import Coordinator
from penstock.clique.errors import CliqueError
from penstock.clique.message import Slots
from penstock.clique.tasks import end_tasks
from penstock.ring.heartbeats import HEARTBEAT_TIMEOUTS_PER_LEASE, HeartbeatReply, HeartbeatStatus
from penstock.ring.member import MemberCore
from penstock.ring.table import Table

log = logging.getLogger("penstock.clique")

WATCH_SECONDS: Final = 5.0
"""How long one request for a newer table waits."""
HELD_PART_OF_LEASE: Final = 0.2
"""How long a heartbeat may be held back. It is the next one before another one is due (a quarter of a lease)."""
NO_MEMBER_PAUSE_SECONDS: Final = 0.1
WATCH_PAUSE_SECONDS: Final = 1.0
"""Between two such requests after one has failed. Heartbeats tell of new tables, too."""

OpenCoordinator = Callable[[], Awaitable[Coordinator]]


class Membership:
    """Usable from any thread."""

    def __init__(
        self,
        core: MemberCore,
        lease_ms: int,
        open_coordinator: OpenCoordinator,
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called in the control thread, after anything has changed: the table, the lease, or
        `failure`."""
        self._core = core
        self._lease_ms = lease_ms
        self._open_coordinator = open_coordinator
        self._on_change = on_change
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._coordinator: Coordinator | None = None
        self._is_started = False
        self._is_stopped = False
        self._is_unanswered = False
        self._latest: Table | None = None
        self.failure: Exception | None = None
        """The reason, once it is certain that the worker will not become or stay a member."""
        self._thread = threading.Thread(target=self._run, name=f"penstock-clique-{core.worker}", daemon=True)

    def start(self) -> None:
        self._is_started = True
        self._thread.start()

    def stop(self) -> None:
        """Stops its heartbeats. The lease ends by itself, unless the worker has left."""
        self._is_stopped = True
        self._wake_up()
        if self._is_started:
            self._thread.join()

    def leave(self) -> None:
        """Asks for all slots to be handed over; heartbeats go on until `has_left`."""
        with self._lock:
            self._core.leave(lease_clock_ms())
        self._wake_up()

    # --- facts

    @property
    def worker(self) -> str:
        return self._core.worker

    @property
    def member_id(self) -> str:
        return self._core.member_id

    @property
    def latest_table(self) -> Table | None:
        """The newest table that this worker has heard of, also when it is not a member any more."""
        own, heard = self._core.table, self._latest
        if own is None or (heard is not None and heard.epoch > own.epoch):
            return heard
        return own

    @property
    def is_member(self) -> bool:
        return self._core.is_member

    @property
    def epoch(self) -> int:
        """Of the table that says what is granted; 0 if this is no member."""
        return self._core.epoch

    @property
    def has_left(self) -> bool:
        """True before the start, too: then there is nothing to hand over."""
        return self._core.has_left or not self._is_started

    @property
    def status(self) -> HeartbeatStatus | None:
        return self._core.status

    @property
    def lease_ends_ms(self) -> float:
        """By the clock of leases."""
        return self._core.lease_ends_ms

    @property
    def held(self) -> int:
        """The number of slots that the worker has not let go of."""
        return len(self._core.held)

    @property
    def is_settled(self) -> bool:
        """Whether this worker owns slots, all of which are ready, and none of the clique changes hands."""
        with self._lock:
            table, held = self._core.table, self._core.held
            if table is None or table.revoked or not held:
                return False
            now_ms = lease_clock_ms()
            granted = table.granted_to(self._core.member_id)
            return all(self._core.may_start(slot, now_ms) is not None for slot in granted) and bool(granted)

    def next_owner(self, slot: int) -> str | None:
        """The member id of the worker that should get a slot."""
        coordinator = self._coordinator
        return None if coordinator is None else coordinator.next_owner(slot)

    # --- handlers (runner.Ownership)

    def begin(self, slot: int) -> int | None:
        with self._lock:
            return self._core.start(slot, lease_clock_ms())

    def begin_nested(self, slot: int) -> int | None:
        with self._lock:
            return self._core.start_nested(slot, lease_clock_ms())

    def end(self, slot: int) -> None:
        with self._lock:
            is_releasable = self._core.finish(slot)
        if is_releasable:
            self._on_change()

    # --- slots

    def take_acquired(self) -> Slots:
        with self._lock:
            return Slots(self._core.take_acquired())

    def acquired(self, slots: Collection[int]) -> None:
        with self._lock:
            self._core.acquired(slots)
        self._on_change()

    def is_granted(self, slot: int) -> bool:
        """Whether handlers run for a slot here, or will as soon as it is acquired."""
        return self._core.is_granted(slot)

    def holds(self, slot: int) -> bool:
        """Whether this worker has not let go of a slot."""
        return slot in self._core.held

    def take_releasable(self) -> tuple[Slots, Slots]:
        """The slots that can be handed over, and those that are lost."""
        kept: dict[int, int] = {}
        lost: dict[int, int] = {}
        with self._lock:
            is_leased = lease_clock_ms() < self._core.lease_ends_ms
            for slot in self._core.take_releasable():
                is_ours = is_leased and self._core.owns(slot)
                (kept if is_ours else lost)[slot] = self._core.epoch_of(slot)
        return Slots(kept), Slots(lost, lost=True)

    def note_overdue(self, change: int) -> None:
        """So many slots more, or fewer, wait for an on_release that has not returned in time."""
        with self._lock:
            self._core.overdue += change

    def released(self, slots: Collection[int]) -> None:
        with self._lock:
            self._core.released(slots, lease_clock_ms())
        self._wake_up()
        self._on_change()

    # --- the control thread

    def _wake_up(self) -> None:
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None:
            with suppress(RuntimeError):  # the thread has ended
                loop.call_soon_threadsafe(wake.set)

    def _run(self) -> None:
        try:
            asyncio.run(self._keep())
        except Exception as problem:  # noqa: BLE001 - those who wait for the membership get it
            self.failure = problem
        self._on_change()

    async def _keep(self) -> None:
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        coordinator = self._coordinator = await self._open_coordinator()
        watching = asyncio.create_task(self._watch(coordinator))
        try:
            while not self._is_stopped:
                if watching.done():
                    watching.result()  # raises what has ended it
                self._wake.clear()
                if not self._core.has_left and lease_clock_ms() >= self._core.next_heartbeat_ms:
                    await self._heartbeat(coordinator)
                else:
                    await self._pause(self._wake)
        finally:
            await end_tasks([watching])
            await coordinator.close()

    async def _pause(self, wake: asyncio.Event) -> None:
        """Until the next heartbeat is due, or something is to be reported."""
        delay_s = max(0.0, self._core.next_heartbeat_ms - lease_clock_ms()) / 1000
        with suppress(TimeoutError):
            async with asyncio.timeout(None if self._core.has_left else delay_s):
                await wake.wait()

    async def _heartbeat(self, coordinator: Coordinator, wait_s: float = 0.0) -> None:
        """`wait_s`: how long the reply may be held back."""
        with self._lock:
            heartbeat = self._core.heartbeat(lease_clock_ms())
        reply: HeartbeatReply | None = None
        try:
            async with asyncio.timeout(wait_s + heartbeat.lease_ms / 1000 / HEARTBEAT_TIMEOUTS_PER_LEASE):
                reply = await coordinator.heartbeat(heartbeat, wait_s)
        except TimeoutError:
            self._log_unanswered("no answer in time")
        except ClientError as problem:
            if not problem.retriable:
                raise
            self._log_unanswered(str(problem))
        with self._lock:
            if reply is None:
                self._core.unanswered(lease_clock_ms())
            else:
                self._is_unanswered = False
                self._log_status(self._core.status, reply.status)
                self._core.replied(reply, lease_clock_ms())
        self._on_change()

    async def _watch(self, coordinator: Coordinator) -> None:
        """Learns of new tables sooner than with the next heartbeat: handovers then take no time."""
        while True:
            try:
                if not coordinator.holds_heartbeats:
                    await self._learn(coordinator)
                elif self._core.is_member and not self._core.has_left:
                    await self._heartbeat(coordinator, HELD_PART_OF_LEASE * self._lease_ms / 1000)
                else:
                    await asyncio.sleep(NO_MEMBER_PAUSE_SECONDS)
            except (ClientError, TimeoutError) as problem:
                if isinstance(problem, ClientError) and not problem.retriable:
                    raise
                log.info("worker %s: waiting for a newer table failed: %s", self._core.worker, problem)
                await asyncio.sleep(WATCH_PAUSE_SECONDS)

    async def _learn(self, coordinator: Coordinator) -> None:
        known = self.latest_table
        table = await coordinator.newer_table(0 if known is None else known.epoch, WATCH_SECONDS)
        if table is None:
            return
        self._latest = table
        with self._lock:
            self._core.learned(table, lease_clock_ms())
        self._on_change()
        if self._wake is not None:
            self._wake.set()

    def _log_unanswered(self, reason: str) -> None:
        """One line until a heartbeat is answered again."""
        level = logging.DEBUG if self._is_unanswered else logging.WARNING
        self._is_unanswered = True
        log.log(level, "worker %s: a heartbeat was not answered: %s", self._core.worker, reason)

    def _log_status(self, before: HeartbeatStatus | None, now: HeartbeatStatus) -> None:
        if now == before:
            return
        worker = self._core.worker
        match now:
            case HeartbeatStatus.FENCED if not self._core.leaving:
                log.warning(
                    "worker %s: its lease had ended, and others have its slots: it joins again", worker
                )
            case HeartbeatStatus.NAME_TAKEN:
                log.warning("worker %s: another process has this name; waiting until its lease ends", worker)
            case HeartbeatStatus.FULL:
                log.warning("worker %s: the clique has as many members as it may have; waiting", worker)
            case HeartbeatStatus.OK:
                log.info("worker %s: member of the clique", worker)


def not_joined(membership: Membership, clique: str, timeout_s: float) -> CliqueError:
    """The error of a start that took too long."""
    reasons = {
        HeartbeatStatus.NAME_TAKEN: "another process has this name: stop it, or give this one another name",
        HeartbeatStatus.FULL: "it has as many members as it may have",
    }
    status = membership.status
    why = "no answer" if status is None else reasons.get(status, f"the last answer was {status.value!r}")
    return CliqueError(f"worker {membership.worker} could not join {clique} within {timeout_s:g} s: {why}")
