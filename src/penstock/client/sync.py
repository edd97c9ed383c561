"""The blocking client: publish, consume from queues, subscribe, run workers, administer. docs/client.md shows its use.

    with Client("127.0.0.1:9092") as client:
        client.publish("orders", b"...", key=b"alice", message_id="order-17")
        for job in client.queue("workers", topic="orders"):
            with job:
                ...

Threads may share a client. Processes may not: after a fork, make a new one (forks.py).
"""

import time
from concurrent.futures import Future
from contextlib import nullcontext
from queue import SimpleQueue
from typing import Self

from penstock.client.arguments import Seconds, as_seconds
from penstock.client.base import FLUSH_SECONDS, GRACE_SECONDS, BaseClient
from penstock.client.base_streams import CLOSE_SECONDS
from penstock.client.errors import ClientError
from penstock.client.publishing import OutgoingMessage, Stored, check_flushed, publish_timed_out
from penstock.client.signals import stopping_on_signals
from penstock.client.streams import Queue, Subscription
from penstock.client.workers import WorkerPool


class Client(BaseClient[Queue, Subscription, Stored, "Future[Stored]"]):
    """A client connects when it is first used. It must be closed; closing it twice is fine."""

    _queue_type = Queue
    _subscription_type = Subscription
    _awaits_handlers = False

    def _prepare(self) -> None:
        self._events: SimpleQueue[BaseException | None] = SimpleQueue()
        """Ends `run`: None for `stop`, else the error that ended a worker."""
        self.admin = self._new_admin()
        """Topics, queues and groups."""

    # --- publish

    def _publish(self, message: OutgoingMessage, timeout: float) -> Stored:
        deadline = time.monotonic() + timeout
        publisher = self._open_publisher()
        future = publisher.put(message, timeout)
        try:
            return future.result(max(deadline - time.monotonic(), 0.0))
        except TimeoutError:
            publisher.abandon(future)
            raise publish_timed_out(message.topic, timeout) from None

    def _publish_soon(self, message: OutgoingMessage) -> "Future[Stored]":
        return self._open_publisher().put(message)

    def flush(self, timeout: float = FLUSH_SECONDS) -> None:
        """Waits for all messages that were published in the background. Each one's future has its result."""
        self._guard.check()
        if self._publisher is not None:
            check_flushed(self._publisher.flush(timeout), timeout)

    # --- workers

    def run(self, *, grace: Seconds = GRACE_SECONDS, signals: bool = True) -> bool:
        """Runs all workers until `stop` is called, or SIGTERM or Ctrl-C comes. Then waits for running handlers, for
        `grace` seconds at most, and gives the other jobs back; a second signal ends the process at once. `signals`:
        whether it takes them, which it can in the main thread only. Returns whether all handlers have finished. Raises
        errors that end a worker, such as a topic that does not exist, or the SystemExit of a handler. Waits for nodes
        that are away."""
        self._check_plans()
        grace_s = as_seconds("grace", grace)
        with stopping_on_signals(self.stop) if signals else nullcontext():
            return self._run(grace_s)

    def stop(self) -> None:
        """Asks `run` to end, and returns at once. May be called from any thread, from a signal handler, and before
        `run`, which then ends as soon as it has begun."""
        self._events.put(None)

    def _run(self, grace_s: float) -> bool:
        events = self._events
        pools = [WorkerPool(plan, self._open_worker_queue, events.put) for plan in self._plans]
        problem = None
        try:
            problem = events.get()
        finally:
            deadline = time.monotonic() + grace_s
            for pool in pools:
                pool.drain()
            finished = [pool.close(deadline) for pool in pools]
            self._events = SimpleQueue()
        problem = problem or _first_failure(events)
        if problem is not None:
            raise problem
        return all(finished)

    # --- the end

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Waits, for so many seconds in all, until all messages and acks are durable; gives open jobs back. Does not
        wait for messages whose `publish` has timed out."""
        if self._guard.is_forked:
            return
        deadline = time.monotonic() + timeout
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.close(max(deadline - time.monotonic(), 0.0))
        self._close_kafka(max(deadline - time.monotonic(), 0.0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _first_failure(events: "SimpleQueue[BaseException | None]") -> BaseException | None:
    """The first error during a graceful end. A lost broker does not count: other consumers have its jobs."""
    while not events.empty():
        problem = events.get()
        if problem is not None and not isinstance(problem, ClientError):
            return problem
    return None
