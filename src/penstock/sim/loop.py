"""An event loop in virtual time: asyncio programs run on it without an operating system.

Each simulated process has its own loop; all share one scheduler. A callback is an event of its process, so it waits
while the process is paused and is dropped when the process crashes. Futures, tasks, timeouts, locks and events are
those of asyncio. There are no sockets, signals or threads: `run_in_executor` runs the job inline, some virtual time
later.

The tasks of a crashed process, which wait for ever, are kept until the simulation ends: if Python collected them
earlier, it would run the `finally` blocks of dead processes in the middle of other events.
"""

import asyncio
from asyncio import events
from collections.abc import Callable, Coroutine
from contextvars import Context
from random import Random
from typing import Any, TypeVar

from penstock.sim.scheduler import Event, Process, Scheduler

T = TypeVar("T")

WORKER_S = 0.01
"""How long a job in a thread takes, on average."""


class NodeLoop(asyncio.AbstractEventLoop):
    """The loop of one life of one process."""

    def __init__(
        self,
        scheduler: Scheduler,
        process: Process,
        random: Random,
        *,
        rate: float = 1.0,
        on_bug: Callable[[str, BaseException | None], None],
    ) -> None:
        self._scheduler = scheduler
        self._process = process
        self._life = process.life
        self._random = random
        self._rate = rate
        self._on_bug = on_bug
        self._timers: dict[asyncio.TimerHandle, Event] = {}
        self.tasks: dict[asyncio.Task[Any], None] = {}

    @property
    def is_dead(self) -> bool:
        return self._process.life != self._life

    # --- running code of this process

    def enter(self, act: Callable[..., object], *args: object) -> None:
        """Calls it as if the loop had."""
        outer = events._get_running_loop()
        events._set_running_loop(self)
        try:
            act(*args)
        finally:
            events._set_running_loop(outer)

    def _run(self, handle: asyncio.Handle) -> None:
        if not handle.cancelled():
            self.enter(handle._run)

    def _run_timer(self, handle: asyncio.TimerHandle) -> None:
        self._timers.pop(handle, None)
        self._run(handle)

    # --- what asyncio asks for

    def time(self) -> float:
        """The time of this process's own clock, which may run a little slow or fast."""
        return self._scheduler.time * self._rate

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self.is_dead:
            self._scheduler.after(0.0, self._process, self._run, handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.is_dead:
            # A little late rather than early: code that reads the clock then must see that its time has come.
            moment = when / self._rate + 1e-9
            self._timers[handle] = self._scheduler.at(moment, self._process, self._run_timer, handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        event = self._timers.pop(handle, None)
        if event is not None:
            event.cancel()

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self.tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future = self.create_future()
        delay = self._random.expovariate(1 / WORKER_S)
        self._scheduler.after(delay, self._process, self._work, future, func, args)
        return future

    def _work(self, future: asyncio.Future[T], func: Callable[..., T], args: tuple[Any, ...]) -> None:
        """Runs the job, which cannot tell that it is not in a thread."""
        try:
            result = func(*args)
        except Exception as problem:  # noqa: BLE001 - the future gets it
            self.call_soon(_fail, future, problem)
        else:
            self.call_soon(_succeed, future, result)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An exception was not caught: the seed has found a bug."""
        if not self.is_dead:
            self._on_bug(context.get("message", "an exception"), context.get("exception"))


def _succeed(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], problem: Exception) -> None:
    if not future.done():
        future.set_exception(problem)
