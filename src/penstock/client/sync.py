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
from typing import Any, Self

from penstock.client.arguments import UNSET, Headers, Seconds, Text, Unset, as_ms, payload, wait_seconds
from penstock.client.base import (
    CALL_SECONDS,
    FLUSH_SECONDS,
    GRACE_SECONDS,
    PUBLISH_SECONDS,
    TRANSACTION_SECONDS,
    BaseClient,
)
from penstock.client.base_streams import CLOSE_SECONDS
from penstock.client.calls import Reply, call_timed_out, error_reply
from penstock.client.errors import ClientError
from penstock.client.publishing import OutgoingMessage, Stored, check_flushed
from penstock.client.session_driver import log
from penstock.client.signals import stopping_on_signals
from penstock.client.streams import Queue, Subscription
from penstock.client.transactions import Transaction
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
        return self._open_publisher().publish(message, timeout)

    def _publish_soon(self, message: OutgoingMessage) -> "Future[Stored]":
        return self._open_publisher().put(message)

    def flush(self, timeout: Seconds = FLUSH_SECONDS) -> None:
        """Waits for all messages that were published in the background. Each one's future has its result."""
        self._guard.check()
        timeout_s = wait_seconds("timeout", timeout)
        if self._publisher is not None:
            check_flushed(self._publisher.flush(timeout_s), timeout_s)

    def call(
        self,
        topic: str,
        value: Text | Unset | None = UNSET,
        *,
        json: Any = UNSET,
        key: Text | None = None,
        headers: Headers | None = None,
        timeout: Seconds = CALL_SECONDS,
        reply_topic: str | None = None,
    ) -> Reply:
        """Publishes a job and waits for the result of its handler. Raises CallFailed if the handler has failed for
        good, and TimeoutError after `timeout` seconds; a job that no worker has begun by then expires. `reply_topic`:
        by default the topic's name with .replies appended; it is created if it does not exist."""
        data, timeout_s = payload(value, json), wait_seconds("timeout", timeout)
        deadline = time.monotonic() + timeout_s
        replies, reply_topic = self._open_replies(), reply_topic or f"{topic}.replies"
        if not replies.listens_to(reply_topic):
            replies.listen(reply_topic)
        call = replies.begin()
        try:
            left_s = max(deadline - time.monotonic(), 0.0)
            message = self._call_message(call.call_id, topic, reply_topic, data, key, headers, left_s)
            self._publish(message, left_s)
            return call.reply.result(max(deadline - time.monotonic(), 0.0))
        except TimeoutError:
            raise call_timed_out(topic, timeout_s) from None
        finally:
            replies.end(call)

    # --- transactions

    def transaction(self, transactional_id: str, *, timeout: Seconds = TRANSACTION_SECONDS) -> Transaction:
        """Messages, offsets of groups, and jobs of queues that count together, or not at all: `with` it. An id has
        one transaction at a time; a client that uses the id later takes it over, and the one before is fenced. The
        broker aborts a transaction that takes longer than `timeout` seconds."""
        self._check_open()
        return Transaction(self._transactional_ids, transactional_id, as_ms("timeout", timeout))

    # --- workers

    def run(self, *, grace: Seconds = GRACE_SECONDS, signals: bool = True, schedules: bool = True) -> bool:
        """Runs all workers and schedules until `stop` is called, or SIGTERM or Ctrl-C comes. Then waits for running
        handlers, for `grace` seconds at most, and gives the other jobs back; a second signal ends the process at once.
        `signals`: whether it takes them, which it can in the main thread only. `schedules`: whether it publishes the
        jobs of schedules; it works on them in any case.

        Returns whether all handlers have finished. Raises errors that end a worker, such as a topic that does not
        exist, or the SystemExit of a handler. Waits for nodes that are away."""
        grace_s = wait_seconds("grace", grace)
        self._check_plans()
        with stopping_on_signals(self.stop) if signals else nullcontext():
            events = self._events
            self._declare_schedules(lambda: not events.empty())
            with self._running_schedules(schedules):
                return self._run(grace_s)

    def stop(self) -> None:
        """Asks `run` to end, and returns at once. May be called from any thread, from a signal handler, and before
        `run`, which then ends as soon as it has begun."""
        self._events.put(None)

    def _run(self, grace_s: float) -> bool:
        events = self._events
        pools = [
            WorkerPool(plan, self._open_worker_queue, events.put, self._send_reply, self._counter)
            for plan in self._plans
        ]
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

    def _send_reply(self, reply: OutgoingMessage) -> None:
        """If it fails, the caller gets an error or no reply; the job is done all the same."""
        try:
            self._publish(reply, PUBLISH_SECONDS)
        except ClientError as failed:
            log.warning("the reply to a call is lost: %s", failed)
            if not failed.retriable and reply.value is not None:  # such as one that is too large
                self._send_reply(error_reply(reply, failed))

    # --- the end

    def close(self, timeout: Seconds = CLOSE_SECONDS) -> None:
        """Waits, for so many seconds in all, until all messages and acks are durable; gives open jobs back. Does not
        wait for messages whose `publish` has timed out."""
        if self._guard.is_forked:
            return
        deadline = time.monotonic() + wait_seconds("timeout", timeout)
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
