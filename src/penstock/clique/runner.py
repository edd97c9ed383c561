"""Runs handlers: one at a time for each key, in order, and only while this worker owns the key's slot.

    transport  --submit-->  lanes  --take-->  may it start now?  --yes-->  handler  -->  settle: handled, failed
                              ^                    | no                       | raises
                              +------ park <-------+--------- park <----------+  again after a backoff

Invariants:

 1. The owner of the slot is asked immediately before every call of a handler, also before another attempt. Between the
    answer and the call nothing waits.
 2. A slot is in use from that moment until the outcome is settled.
 3. A message that has failed is tried again here, while later ones of its key wait; it keeps its place. So does one
    whose handler was stopped because the lease has ended: this worker may keep the slot, if its next heartbeat is
    answered before another worker saw the lease end, and later messages of the key must not overtake it. When the slot
    is lost, all of them go back together.
 4. A message that has perhaps crashed an earlier owner is announced first, when nothing else keeps it from being
    called: if this worker crashes as well, the announced ones count as begun.
 5. At most `concurrency` handlers run at once, besides those of requests from inside a handler: these must not wait for
    handlers that wait for them.
"""

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from math import inf
from random import Random
from typing import Any, Final, Protocol

import msgspec

from penstock.client.aio.threads import call_in_thread
from penstock.client.error_texts import error_text, error_type, is_told_whole
from penstock.client.handler_checks import discarded
from penstock.client.retry_policy import Reject, Retry
from penstock.clique.chains import Chain, ChainNumbers, enter_chain
from penstock.clique.lanes import Lanes
from penstock.clique.message import Message, Slot
from penstock.clique.tasks import end_tasks
from penstock.clique.work import Announce, Expired, Failed, Handled, Outcome, Returned, Work

log = logging.getLogger("penstock.clique")

ANNOUNCE_PAUSE_SECONDS: Final = 0.2
"""After an announcement that was not noted."""


class Ownership(Protocol):
    """Which slots this worker may start handlers for. Usable from any thread."""

    def begin(self, slot: int) -> int | None:
        """Begins to use a slot and returns its epoch; None if no handler may start for it now."""
        ...

    def begin_nested(self, slot: int) -> int | None:
        """The same for a request from inside a handler that uses the slot: it may also start while the slot is being
        handed over, because the handover waits for that handler."""
        ...

    def end(self, slot: int) -> None:
        """Ends what `begin` has begun."""
        ...

    def is_granted(self, slot: int) -> bool:
        """Whether handlers run for a slot here, or will as soon as it is acquired and there is a lease."""
        ...


class HandlerRunner:
    """On one event loop."""

    def __init__(
        self,
        ownership: Ownership,
        concurrency: int,
        on_exit: Callable[[BaseException], None],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`on_exit`: is told what a handler raises to end the process, such as SystemExit."""
        self._ownership = ownership
        self._concurrency = concurrency
        self._on_exit = on_exit
        self._wall_clock = wall_clock
        self._random = Random()
        self._chains = ChainNumbers()
        self._lanes: Lanes[Work] = Lanes()
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting: set[asyncio.Task[None]] = set()
        """Tasks that have not taken anything yet."""
        self._nested: set[asyncio.Task[None]] = set()
        self._from_handlers = 0
        """Requests in lanes that were sent from inside a handler (5)."""
        self._backoffs: dict[Work, asyncio.TimerHandle] = {}
        """Messages that wait for another attempt (3)."""
        self._announcing: set[Work] = set()
        """Messages whose announcement is under way (4)."""
        self._abandoned: set[Work] = set()
        """Their handlers run in threads, which could not be stopped: their slots stay in use (2)."""
        self._in_threads: set[Work] = set()
        """Those of them that keep their places: they do not begin again before their threads have ended (3)."""
        self._is_stopping = False
        self.handled = 0
        self.failed = 0

    # --- for the transport

    def submit(self, work: Work) -> None:
        if self._lanes.is_nested(work.lane_key, work.chain):
            self._start(self._nested, self._run_nested(work))
            return
        self._from_handlers += work.chain is not None
        self._lanes.add(work, is_urgent=work.chain is not None)
        self._pump()

    def is_inside(self, key: bytes, chain: Chain | None) -> bool:
        """Whether a request of this chain comes from inside the handler that runs for the key."""
        return self._lanes.is_nested(key, chain)

    def slots_changed(self) -> None:
        """Slots may have become startable: messages that wait for them are looked at again."""
        self._lanes.unpark_all(self._may_resume)
        self._pump()

    def _may_resume(self, work: Work) -> bool:
        return not (work in self._backoffs or work in self._announcing or work in self._in_threads)

    def take_back(self, is_wanted: Callable[[int], bool], known_epoch: int | None = None) -> None:
        """Returns the messages of the slots that are wanted back, except those whose handler runs. If this worker got
        some by a newer table than the one of `known_epoch`, it waits for that: the slots may be its own. Messages that
        are returned too soon would come again, behind later ones that are on their way."""
        slots = [slot for slot in self._lanes.slots if is_wanted(slot)]
        known = inf if known_epoch is None else known_epoch
        self._return(self._lanes.take_back(slots, lambda work: work.table_epoch > known))

    @property
    def in_flight(self) -> int:
        return self._lanes.count + len(self._nested)

    @property
    def buffered_bytes(self) -> int:
        return self._lanes.bytes

    def cancel_running(self) -> int:
        """The lease has ended: handlers that can be cancelled are. Their messages go to the next owners, when there are
        any, or begin again here (3). Returns how many."""
        running = [*self._tasks, *self._nested]
        for task in running:
            task.cancel()
        return len(running)

    async def stop(self, grace_s: float) -> bool:
        """Returns what waits, and waits for the handlers that run; after the grace time they are cancelled. Whether all
        have ended by themselves."""
        self._is_stopping = True
        self.take_back(lambda _slot: True)
        late = {*self._tasks, *self._nested}
        if late:
            _done, late = await asyncio.wait(late, timeout=grace_s)
        await end_tasks(late)
        return not late

    def _return(self, works: Iterable[Work]) -> None:
        for work in works:
            self._left_lane(work)
            work.settle(Returned(work.attempts))

    def _left_lane(self, work: Work) -> None:
        self._from_handlers -= work.chain is not None
        self._announcing.discard(work)
        self._in_threads.discard(work)
        if (timer := self._backoffs.pop(work, None)) is not None:
            timer.cancel()

    # --- tasks

    def _pump(self) -> None:
        """Starts as many tasks as there are lanes for."""
        most = self._concurrency + self._from_handlers
        while self._lanes.ready > len(self._starting) and len(self._tasks) < most and not self._is_stopping:
            self._starting.add(self._start(self._tasks, self._run_lanes()))

    def _start(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        def ended(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            self._starting.discard(task)  # it was cancelled before it had begun
            self._pump()

        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(ended)
        return task

    async def _run_lanes(self) -> None:
        if (task := asyncio.current_task()) is not None:
            self._starting.discard(task)
        try:
            while not self._is_stopping and (work := self._lanes.take()) is not None:
                await self._attempt(work)
        except (SystemExit, KeyboardInterrupt) as ending:
            self._on_exit(ending)

    async def _attempt(self, work: Work) -> None:
        if self._is_expired(work):
            self._finish(work, Expired())
            return
        epoch = self._ownership.begin(work.slot)  # (1): nothing waits between this and the call
        if epoch is not None and work.announce is not None:
            self._ownership.end(work.slot)
            if not await self._announce(work, work.announce):
                return
            epoch = self._ownership.begin(work.slot)
        if epoch is None:
            self._lanes.park(work)
            return
        work.epoch = epoch
        chain = self._chains.next() if work.chain is None else work.chain
        self._lanes.begin(work, chain)
        enter_chain(chain)
        try:
            outcome = await self._call(work, Slot(work.slot, epoch))
        except asyncio.CancelledError:
            self._stopped(work)
            raise
        except BaseException:
            self._finish(work, Returned(work.attempts))
            raise
        if isinstance(outcome, float):
            self._ownership.end(work.slot)
            self._lanes.park(work)
            self._backoffs[work] = asyncio.get_running_loop().call_later(outcome, self._try_again, work)
        else:
            self._finish(work, outcome)

    def _stopped(self, work: Work) -> None:
        """Its handler was cancelled: by `cancel_running` (3), at the end of the grace time, or by itself."""
        task = asyncio.current_task()
        was_told = task is not None and task.cancelling() > 0
        if self._is_stopping or not was_told or not self._ownership.is_granted(work.slot):
            self._finish(work, Returned(work.attempts))
            return
        work.attempts -= 1  # it has not failed
        self._lanes.park(work)
        if work in self._abandoned:
            self._in_threads.add(work)
        else:
            self._ownership.end(work.slot)

    async def _announce(self, work: Work, announce: Announce) -> bool:
        """Whether it may begin now (4). Its lane is parked meanwhile, so that it can be taken back. If it was not
        noted, its connection broke, or it is not this worker's any more: then it comes again, or is taken back soon."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bool] = loop.create_future()
        self._lanes.park(work)
        self._announcing.add(work)
        try:
            announce(lambda is_noted: None if answer.done() else answer.set_result(is_noted))
            is_noted = await answer
            if work not in self._announcing:
                return False  # it was taken back
        finally:
            self._announcing.discard(work)
        if is_noted:
            work.announce = None
            self._lanes.resume(work)
        else:
            self._backoffs[work] = loop.call_later(ANNOUNCE_PAUSE_SECONDS, self._try_again, work)
        return is_noted

    def _try_again(self, work: Work) -> None:
        self._backoffs.pop(work, None)
        self._lanes.unpark(work.lane_key)
        self._pump()

    def _finish(self, work: Work, outcome: Outcome) -> None:
        self._left_lane(work)
        self._lanes.finish(work)
        self._settle(work, outcome)

    async def _run_nested(self, work: Work) -> None:
        epoch = None if self._is_expired(work) else self._ownership.begin_nested(work.slot)
        if epoch is None:
            work.settle(Returned(work.attempts))
            return
        work.epoch = epoch
        enter_chain(work.chain)
        outcome: Outcome | float = Returned(work.attempts)
        try:
            outcome = await self._call(work, Slot(work.slot, epoch))
        except (SystemExit, KeyboardInterrupt) as ending:
            self._on_exit(ending)
        finally:
            assert not isinstance(outcome, float)  # requests are not tried again
            self._settle(work, outcome)

    def _settle(self, work: Work, outcome: Outcome) -> None:
        """The slot stays in use until the transport has done its part (2)."""
        self.handled += isinstance(outcome, Handled)
        self.failed += isinstance(outcome, Failed)
        answer = work.settle(outcome)
        if isinstance(outcome, Expired) or work in self._abandoned:
            return
        if answer is None:
            self._ownership.end(work.slot)
        else:
            answer.add_done_callback(lambda _answer: self._ownership.end(work.slot))

    def _is_expired(self, work: Work) -> bool:
        return work.deadline is not None and self._wall_clock() >= work.deadline

    # --- one call

    async def _call(self, work: Work, slot: Slot) -> Outcome | float:
        """The outcome, or the seconds until another attempt."""
        problem: Exception | None = None
        result: object = None
        work.attempts += 1
        message = work.message
        if work.attempts > 1:
            message = msgspec.structs.replace(message, attempt=work.attempts)
        try:
            if work.handler.timeout_s is None:
                result = await self._result(work, message, slot)
            else:
                result = await self._bounded_result(work, message, slot, work.handler.timeout_s)
            problem = None if result is None else discarded(result)
        except Exception as raised:  # noqa: BLE001 - a handler's errors are about the message, not about the worker
            problem = raised
        return Handled(result) if problem is None else self._judge(work, problem)

    async def _bounded_result(self, work: Work, message: Message, slot: Slot, timeout_s: float) -> object:
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                return await self._result(work, message, slot)
        except TimeoutError as late:
            if not limit.expired():
                raise
            raise TimeoutError(f"the handler was not done within {timeout_s:g} s") from late

    async def _result(self, work: Work, message: Message, slot: Slot) -> object:
        function = work.handler.function
        if work.handler.is_coroutine:
            return await function(message, slot)
        result = await call_in_thread(
            function,
            message,
            slot,
            name=f"penstock-clique-{work.handler.stream}",
            on_abandon=lambda: self._abandoned.add(work),
            on_late=lambda _result: self._ended_late(work),
        )
        # A plain function may have wrapped a coroutine function: what it returns belongs to this loop.
        return await result if inspect.isawaitable(result) else result

    def _ended_late(self, work: Work) -> None:
        self._abandoned.discard(work)
        self._ownership.end(work.slot)
        if work in self._in_threads:
            self._in_threads.discard(work)
            self._lanes.unpark(work.lane_key)
            self._pump()

    def _judge(self, work: Work, problem: Exception) -> Outcome | float:
        """The sender of a request is told at once: it may try again, and no other message waits meanwhile."""
        decision = work.handler.policy.decide(work.attempts, problem, self._random)
        is_final = decision.action == "reject" or work.is_request
        _log_failure(work, problem, None if is_final else decision.delay_s or 0.0)
        return Failed(problem, work.attempts) if is_final else decision.delay_s or 0.0


def _log_failure(work: Work, problem: Exception, delay_s: float | None) -> None:
    """With a traceback only for errors that were not raised on purpose, and whose text a log file can hold."""
    then = "given up" if delay_s is None else f"again in {delay_s:.1f} s"
    is_planned = isinstance(problem, (Retry, Reject)) or problem.__traceback__ is None
    log.warning(
        "%r, attempt %d: %s: %s; %s",
        work,
        work.attempts,
        error_type(problem),
        error_text(problem),
        then,
        exc_info=problem if not is_planned and is_told_whole(problem) else None,
    )
