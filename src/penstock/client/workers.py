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
from penstock.client.errors import ClientError
from penstock.client.streams import Job, Queue
from penstock.client.worker_policy import Reject, Retry, WorkerPlan, WorkerPolicy

log = logging.getLogger("penstock.client.workers")

OpenQueue = Callable[[WorkerPlan], Queue]


class WorkerPool:
    """One handler in `concurrency` threads that share a queue."""

    def __init__(
        self, plan: WorkerPlan, open_queue: OpenQueue, on_end: Callable[[ClientError | None], None]
    ) -> None:
        self.plan = plan
        self._on_end = on_end
        self._random = Random()
        self._queue = open_queue(plan)
        self._threads = [
            threading.Thread(target=self._work, name=f"penstock-worker-{plan.group}-{number}", daemon=True)
            for number in range(plan.concurrency)
        ]
        for thread in self._threads:
            thread.start()

    def drain(self) -> None:
        """Takes no more jobs; those in hand go on."""
        self._queue.drain()

    def close(self, deadline: float) -> bool:
        """Waits for handlers until the deadline (monotonic), then hangs up: what is not done goes to others. Whether
        all were done."""
        self._queue.drain()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        done = not any(thread.is_alive() for thread in self._threads)
        self._queue.close(timeout=max(1.0, deadline - time.monotonic()))
        return done

    def _work(self) -> None:
        ended: ClientError | None = None
        try:
            for job in self._queue:
                self._handle(job)
        except ClientError as problem:
            ended = problem
        except SystemExit:
            pass  # said in a handler: all are to end
        finally:
            self._on_end(ended)

    def _handle(self, job: Job) -> None:
        problem: Exception | None = None
        try:
            self.plan.handler(job)
        except Exception as raised:  # noqa: BLE001 - whatever a handler raises is about the job, not about the worker
            problem = raised
        except BaseException:
            if not job.settled:
                job.retry()
            raise
        conclude(job, problem, self.plan.policy, self._random)


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
    """One line; the trace only of what nobody raised on purpose."""
    then = "rejected" if verdict == "reject" else f"again in {delay_s or 0:.1f} s"
    planned = isinstance(problem, (Retry, Reject))
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
