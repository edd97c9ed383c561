"""Workers in threads: handlers called with jobs until they are told to stop."""

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Protocol

from penstock.client.amounts import Seconds
from penstock.client.lateness import Watch
from penstock.client.streams import Job, Queue
from penstock.client.worker_policy import (
    STUCK_MAX,
    Reject,
    Retry,
    WorkerPlan,
    WorkerPolicy,
    discarded,
    too_many_stuck,
)

log = logging.getLogger("penstock.client.workers")

OpenQueue = Callable[[WorkerPlan], Queue]


class WorkerPool:
    """One handler in `concurrency` threads that share a queue."""

    def __init__(
        self, plan: WorkerPlan, open_queue: OpenQueue, on_end: Callable[[BaseException | None], None]
    ) -> None:
        self.plan = plan
        self._on_end = on_end
        self._random = Random()
        self._queue = open_queue(plan)
        self._watch = Watch(plan.timeout_s, self._late, plan.group)
        self._changed = threading.Condition()
        self._active: set[threading.Thread] = set()
        """Those that take jobs, or are at work on one in time."""
        self._stuck: set[threading.Thread] = set()
        """Those whose handler is late. Each has a successor among the active ones."""
        self._begun = 0
        for _ in range(plan.concurrency):
            self._begin_thread()

    def _begin_thread(self) -> None:
        with self._changed:
            self._begun += 1
            name = f"penstock-worker-{self.plan.group}-{self._begun}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._active.add(thread)
        thread.start()

    def drain(self) -> None:
        """Takes no more jobs; those in hand go on."""
        self._queue.drain()

    def close(self, deadline: float) -> bool:
        """Waits for handlers until the deadline (monotonic), then hangs up: what is not done goes to others. Whether
        all were done. Those that are late are not waited for: their jobs have been given back."""
        self._queue.drain()
        with self._changed:
            left_s = max(0.0, deadline - time.monotonic())
            done = self._changed.wait_for(lambda: not self._active, left_s)
        self._watch.close()
        self._queue.close(timeout=max(1.0, deadline - time.monotonic()))
        return done

    def _work(self) -> None:
        ended: BaseException | None = None
        has_successor = False
        try:
            for job in self._queue:
                if not self._handle(job):
                    has_successor = True
                    break
        except BaseException as problem:  # noqa: BLE001 - SystemExit, or a bug of ours: `run` raises it
            ended = problem
        finally:
            with self._changed:
                self._active.discard(threading.current_thread())
                self._stuck.discard(threading.current_thread())
                self._changed.notify_all()
            if not has_successor:
                self._on_end(ended)

    def _handle(self, job: Job) -> bool:
        """Whether it was in time. Otherwise all has been said of the job, and this thread has a successor."""
        problem: Exception | None = None
        self._watch.begin(job)
        try:
            problem = discarded(self.plan.handler(job))
        except Exception as raised:  # noqa: BLE001 - whatever a handler raises is about the job, not about the worker
            problem = raised
        except BaseException:
            if self._watch.end(job) and not job.settled:
                job.retry()
            raise
        if not self._watch.end(job):
            log.warning("%r, attempt %d: its handler has ended, too late", job, job.deliveries)
            return False
        conclude(job, problem, self.plan.policy, self._random)
        return True

    def _late(self, job: Job, thread: threading.Thread) -> None:
        """Gives the job to others, and the place of the thread to another one."""
        try:
            self._give_up(job)
        except Exception as bug:  # noqa: BLE001 - it would end the watch without a word
            self._on_end(bug)
            return
        with self._changed:
            self._active.discard(thread)
            self._stuck.add(thread)
            is_hopeless = len(self._stuck) >= STUCK_MAX
            self._changed.notify_all()
        if is_hopeless:
            self._on_end(too_many_stuck(self.plan))
        else:
            self._begin_thread()

    def _give_up(self, job: Job) -> None:
        if job.settled:
            log.warning("%r: settled, but %s", job, self.plan.late())
        conclude(job, self.plan.late(), self.plan.policy, self._random)


class Workable(Protocol):
    """A job, of threads or of tasks."""

    deliveries: int

    @property
    def settled(self) -> bool: ...
    def ack(self) -> object: ...
    def retry(self, delay: Seconds | None = None) -> object: ...
    def reject(self) -> object: ...


def conclude(job: Workable, problem: Exception | None, policy: WorkerPolicy, random: Random) -> None:
    """Says what becomes of a job whose handler has ended, unless the handler has said so."""
    if job.settled:
        return
    decision = policy.decide(job.deliveries, problem, random)
    if problem is not None:
        _tell_failure(job, problem, decision.verdict, decision.delay_s)
    match decision.verdict:
        case "accept":
            job.ack()
        case "reject":
            job.reject()
        case _:
            job.retry(delay=decision.delay_s)


def _tell_failure(job: Workable, problem: Exception, verdict: str, delay_s: float | None) -> None:
    """One line; the trace only of what nobody raised on purpose, and where there is one."""
    then = "rejected" if verdict == "reject" else f"again in {delay_s or 0:.1f} s"
    has_trace = problem.__traceback__ is not None or problem.__cause__ is not None
    planned = isinstance(problem, (Retry, Reject)) or not has_trace
    log.warning(
        "%r, attempt %d: %s: %s; %s",
        job,
        job.deliveries,
        type(problem).__name__,
        problem,
        then,
        exc_info=None if planned else problem,
    )


@contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT ask for a graceful end; a second one of them interrupts at once. Only in the main thread:
    nobody else can have signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def hear(number: int, _frame: object) -> None:
        signal.signal(number, before[signal.Signals(number)])
        stop()

    for number in before:
        signal.signal(number, hear)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
