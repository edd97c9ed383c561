"""The client for programs that wait: publish, work on queues, subscribe, administer. docs/client.md shows it in use.

    with Client("127.0.0.1:9092") as client:
        client.publish("orders", b"...", key=b"alice", message_id="order-17")
        for job in client.queue("orders", group="workers"):
            with job:
                ...

A client may be shared by threads. After a fork it may not: make one in each process.
"""

import queue as standard_queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from penstock.client.admin import Admin
from penstock.client.amounts import Headers, Moment, Seconds, Text, as_seconds
from penstock.client.errors import ClientError, PublishFailed
from penstock.client.publishing import Stored
from penstock.client.shared import (
    DEFAULT_ACK_TIMEOUT_S,
    DEFAULT_CREDIT,
    DEFAULT_PATIENCE_S,
    DEFAULT_TTL_S,
    Workshop,
    names,
    outgoing,
    queue_credit,
)
from penstock.client.streams import FAREWELL_SECONDS, Job, Queue, Subscription
from penstock.client.work_session import Credit
from penstock.client.worker_policy import WorkerPlan, WorkerPolicy, plan_worker
from penstock.client.workers import WorkerPool, stopping_on_signals

PUBLISH_SECONDS = 60.0
GRACE_SECONDS = 30.0
"""How long a graceful end waits for handlers: as long as most process managers wait before they kill."""

Handler = TypeVar("Handler", bound=Callable[[Job], object])


class Client:
    """Made at once; connects when something is asked of it. Closing is needed, and may be done twice."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        http: str | Sequence[str] | None = None,
        kafka: Mapping[str, Any] | None = None,
        patience_s: float | None = DEFAULT_PATIENCE_S,
    ) -> None:
        """`http`: where the HTTP ports are, if the nodes cannot say so themselves (behind a proxy). `kafka`: settings
        of librdkafka, such as those for security. `patience_s`: how long queues and subscriptions try to reach a node
        before they raise Unreachable; None: for ever."""
        self._workshop = Workshop(bootstrap_servers, http=http, kafka=kafka, patience_s=patience_s)
        self._streams: list[Queue | Subscription] = []
        self._lock = threading.Lock()
        self._plans: list[WorkerPlan] = []
        self._events: standard_queue.SimpleQueue[BaseException | None] = standard_queue.SimpleQueue()
        self.admin = Admin(self._workshop.kafka_admin, self._workshop.find_urls, self._workshop.servers)
        """Topics, queues and groups."""

    # --- publish

    def publish(
        self,
        topic: str,
        value: Text | None,
        *,
        key: Text | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        message_id: Text | None = None,
        delay: Seconds | None = None,
        deliver_at: Moment | None = None,
        ttl: Seconds | None = None,
        timeout: float = PUBLISH_SECONDS,
    ) -> Stored:
        """Returns when the message is on the disks of a majority, with its place. PublishFailed if it is not.

        `message_id`: stored once within the topic's dedup.window.ms, however often it is published; without `key` and
        `partition`, it also says which partition. `delay` (seconds) or `deliver_at`: queues and subscriptions get it
        then. `ttl` (seconds): after that they do not get it any more.
        """
        message = outgoing(
            topic,
            value,
            key=key,
            headers=headers,
            partition=partition,
            message_id=message_id,
            delay=delay,
            deliver_at=deliver_at,
            ttl=ttl,
        )
        deadline = time.monotonic() + timeout
        future = self._workshop.publisher().put(message, timeout)
        try:
            return future.result(max(deadline - time.monotonic(), 0.0))
        except TimeoutError:
            doubt = "it is still under way and may be stored; publish it again only with a message_id"
            raise PublishFailed(f"publishing to {topic}: no answer within {timeout} s: {doubt}") from None

    def publish_soon(
        self,
        topic: str,
        value: Text | None,
        *,
        key: Text | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        message_id: Text | None = None,
        delay: Seconds | None = None,
        deliver_at: Moment | None = None,
        ttl: Seconds | None = None,
    ) -> "Future[Stored]":
        """As `publish`, in the background, many in a batch. The future has the place, or raises PublishFailed; `flush`
        and `close` wait for all. Waits only for a topic that is new to this client, and while far too much is under
        way; PublishFailed at once if there is no such topic."""
        message = outgoing(
            topic,
            value,
            key=key,
            headers=headers,
            partition=partition,
            message_id=message_id,
            delay=delay,
            deliver_at=deliver_at,
            ttl=ttl,
        )
        return self._workshop.publisher().put(message)

    def flush(self, timeout: float = PUBLISH_SECONDS) -> None:
        """Waits for all that was published in the background. Whether each was stored, its future says."""
        if self._workshop.has_publisher():
            left = self._workshop.publisher().flush(timeout)
            if left:
                raise PublishFailed(
                    f"{left} messages are not acknowledged after {timeout} s: flush again, or close"
                )

    # --- consume

    def queue(
        self,
        topics: str | Sequence[str],
        *,
        group: str,
        prefetch: int | None = None,
        standby: bool = False,
        idle_s: float | None = None,
    ) -> Queue:
        """A consumer of the queue that `group` has on these topics. Iterate over it, or `receive`; close it when done.

        `prefetch`: the most jobs that this consumer has at once from each node; by default 100, and of a queue for one
        consumer 1, so that nothing is done before one that failed. `standby`: if it is a queue for one
        consumer, wait until it is free. `idle_s`: iterating ends when there was nothing to do for so long.
        """
        credit = queue_credit(prefetch)
        return self._open_queue(names(topics), group, credit=credit, standby=standby, idle_s=idle_s)

    def subscribe(
        self,
        topics: str | Sequence[str],
        *,
        name: str,
        read_old: bool = False,
        prefetch: int = DEFAULT_CREDIT,
        take_over: bool = False,
        ack_timeout: Seconds = DEFAULT_ACK_TIMEOUT_S,
        ttl: Seconds = DEFAULT_TTL_S,
        idle_s: float | None = None,
    ) -> Subscription:
        """Follows topics in the log's order, from where the last ack of this name left off.

        `read_old`: a new subscription begins with the oldest message. `prefetch`: the most unacked messages at once.
        `take_over`: if the name is in use, its user is sent away. A message that is not acked within `ack_timeout` is
        sent again; a subscription that nobody has used for its `ttl` is forgotten.
        """
        self._workshop.check_open()
        subscription = Subscription(
            lambda make: self._workshop.feed_session(
                make,
                names(topics),
                name,
                credit=prefetch,
                read_old=read_old,
                take_over=take_over,
                ack_timeout=ack_timeout,
                ttl=ttl,
            ),
            self._workshop.find_urls,
            idle_s=idle_s,
            on_close=self._forget,
        )
        with self._lock:
            self._streams.append(subscription)
        return subscription

    # --- workers

    def worker(
        self,
        topics: str | Sequence[str],
        *,
        group: str,
        concurrency: int = 1,
        max_attempts: int | None = None,
        backoff: Seconds = 1.0,
        backoff_factor: float = 2.0,
        max_backoff: Seconds = 300.0,
        jitter: float = 0.2,
        prefetch: int | None = None,
        standby: bool = False,
        timeout: Seconds | None = None,
    ) -> Callable[[Handler], Handler]:
        """Registers a handler for `run`. A job is acked when the handler returns and tried again, later each time, when
        it raises; after `max_attempts` it is rejected. A handler may settle the job itself, or raise Retry or Reject.

        `timeout`: a handler that takes longer has failed. It cannot be interrupted: its job goes to others, what it
        says of it later is ignored, and another thread takes its place. None: the job is its own while it runs.
        """
        policy = WorkerPolicy(
            max_attempts=max_attempts,
            backoff_s=as_seconds("backoff", backoff),
            backoff_factor=backoff_factor,
            max_backoff_s=as_seconds("max_backoff", max_backoff),
            jitter=jitter,
        )

        def register(handler: Handler) -> Handler:
            plan = plan_worker(
                names(topics),
                group,
                handler,
                concurrency=concurrency,
                prefetch=prefetch,
                policy=policy,
                standby=standby,
                timeout=timeout,
            )
            self._plans.append(plan)
            return handler

        return register

    def run(self, *, grace: Seconds = GRACE_SECONDS, signals: bool = True) -> bool:
        """Runs all workers until `stop` is called, or SIGTERM or Ctrl-C comes; then finishes what is in hand, for
        `grace` seconds at most, and gives the rest back. Whether all was finished. Raises what workers cannot go on
        after, such as a topic that does not exist, or the SystemExit of a handler. Nodes that are away are waited for.
        """
        if not self._plans:
            raise ClientError("no workers: decorate a handler with @client.worker(...) first")
        if signals:
            with stopping_on_signals(self.stop):
                return self._run(as_seconds("grace", grace))
        return self._run(as_seconds("grace", grace))

    def stop(self) -> None:
        """Asks `run` to end; returns at once. From any thread, and from a signal handler. Before `run`: it ends as soon
        as it has begun."""
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
            self._events = standard_queue.SimpleQueue()
        problem = problem or _first_failure(events)
        if problem is not None:
            raise problem
        return all(finished)

    def _open_worker_queue(self, plan: WorkerPlan) -> Queue:
        return self._open_queue(
            plan.topics, plan.group, credit=plan.credit, standby=plan.standby, idle_s=None, forever=True
        )

    # --- the end

    def close(self, timeout: float = FAREWELL_SECONDS) -> None:
        """Waits, for so many seconds, until what was published and acked is durable; gives open jobs back."""
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.close(timeout)
        self._workshop.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _open_queue(
        self,
        topics: tuple[str, ...],
        group: str,
        *,
        credit: Credit,
        standby: bool,
        idle_s: float | None,
        forever: bool = False,
    ) -> Queue:
        self._workshop.check_open()
        queue = Queue(
            lambda make: self._workshop.work_session(
                make, topics, group, credit=credit, standby=standby, forever=forever
            ),
            self._workshop.find_urls,
            idle_s=idle_s,
            on_close=self._forget,
        )
        with self._lock:
            self._streams.append(queue)
        return queue

    def _forget(self, stream: Queue | Subscription) -> None:
        with self._lock:
            if stream in self._streams:
                self._streams.remove(stream)


def _first_failure(events: "standard_queue.SimpleQueue[BaseException | None]") -> BaseException | None:
    """What went wrong during a graceful end. That a broker went away does not count then: its jobs are with others."""
    while not events.empty():
        problem = events.get()
        if problem is not None and not isinstance(problem, ClientError):
            return problem
    return None
