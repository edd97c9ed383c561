"""Workers in threads: they call a handler with each job until they are stopped."""

import logging
import threading
import time
from collections.abc import Callable
from random import Random

from penstock.client.handler_checks import discarded
from penstock.client.handler_timeouts import TimeoutMonitor
from penstock.client.publishing import OutgoingMessage
from penstock.client.streams import Job, Queue
from penstock.client.worker_counts import JobCounter
from penstock.client.worker_policy import (
    STUCK_MAX,
    WorkerPlan,
    conclude,
    reply_of,
    too_many_stuck,
)

log = logging.getLogger("penstock.client.workers")

OpenQueue = Callable[[WorkerPlan], Queue]


class WorkerPool:
    """One handler in `concurrency` threads that share a queue."""

    def __init__(
        self,
        plan: WorkerPlan,
        open_queue: OpenQueue,
        on_end: Callable[[BaseException | None], None],
        send_reply: Callable[[OutgoingMessage], None],
        counter: JobCounter,
    ) -> None:
        self.plan = plan
        self._counter = counter
        self._send_reply = send_reply
        self._on_end = on_end
        self._random = Random()
        self._queue = open_queue(plan)
        self._timeouts = TimeoutMonitor(plan.timeout_s, self._timed_out, plan.group)
        self._changed = threading.Condition()
        self._active: set[threading.Thread] = set()
        """Threads that take jobs, or run a handler that is in time."""
        self._stuck: set[threading.Thread] = set()
        """Threads whose handler has timed out. An active thread has replaced each of them."""
        self._started = 0
        for _ in range(plan.concurrency):
            self._start_thread()

    def _start_thread(self) -> None:
        with self._changed:
            self._started += 1
            name = f"penstock-worker-{self.plan.group}-{self._started}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._active.add(thread)
        thread.start()

    def drain(self) -> None:
        """Takes no more jobs; running handlers go on."""
        self._queue.drain()

    def close(self, deadline: float) -> bool:
        """Waits for handlers until the deadline (monotonic), then disconnects: other consumers get the jobs that are
        not done. Returns whether all handlers have finished. Does not wait for handlers that have timed out: their jobs
        have been given back."""
        self._queue.drain()
        with self._changed:
            left_s = max(0.0, deadline - time.monotonic())
            done = self._changed.wait_for(lambda: not self._active, left_s)
        self._timeouts.close()
        self._queue.close(timeout=max(1.0, deadline - time.monotonic()))
        return done

    def _work(self) -> None:
        error: BaseException | None = None
        is_replaced = False
        try:
            for job in self._queue:
                self._counter.begin()
                try:
                    is_replaced = not self._handle(job)
                finally:
                    self._counter.end(job.action)
                if is_replaced:
                    break
        except BaseException as problem:  # noqa: BLE001 - SystemExit, or a bug of ours: `run` raises it
            error = problem
        finally:
            with self._changed:
                self._active.discard(threading.current_thread())
                self._stuck.discard(threading.current_thread())
                self._changed.notify_all()
            if not is_replaced:
                self._on_end(error)

    def _handle(self, job: Job) -> bool:
        """False if the handler has timed out: the job is settled, and another thread has replaced this one."""
        problem: Exception | None = None
        result: object = None
        self._timeouts.begin(job)
        try:
            result = self.plan.handler(job)
            problem = discarded(result)
        except Exception as raised:  # noqa: BLE001 - a handler's errors are about the job, not about the worker
            problem = raised
        except BaseException:
            if self._timeouts.end(job) and not job.settled:
                job.retry()
            raise
        if not self._timeouts.end(job):
            log.warning("%r, attempt %d: its handler has ended, after its timeout", job, job.deliveries)
            return False
        if (reply := reply_of(job, result, problem, self.plan.policy)) is not None:
            self._send_reply(reply)
        conclude(job, problem, self.plan.policy, self._random)
        return True

    def _timed_out(self, job: Job, thread: threading.Thread) -> None:
        """Gives the job back, and replaces the thread."""
        try:
            if job.settled:
                log.warning("%r: settled, but %s", job, self.plan.timeout_error())
            conclude(job, self.plan.timeout_error(), self.plan.policy, self._random)
        except Exception as bug:  # noqa: BLE001 - it would end the monitor without a word
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
            self._start_thread()
