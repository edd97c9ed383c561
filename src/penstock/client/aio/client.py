"""The client for programs with an event loop: the same verbs as `Client`, awaited.

    async with AsyncClient("127.0.0.1:9092") as client:
        await client.publish("orders", b"...", key=b"alice")
        async for job in client.queue("orders", group="workers"):
            async with job:
                ...

A client belongs to the event loop on which it is used first. Publishing uses librdkafka's threads, and administration a
thread for each call; the loop never waits for them.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

from penstock.client.admin import Admin
from penstock.client.aio.admin import AsyncAdmin
from penstock.client.aio.streams import AsyncQueue, AsyncSubscription
from penstock.client.aio.workers import AsyncWorkerPool, stopping_on_signals
from penstock.client.amounts import Headers, Moment, Seconds, Text, as_seconds
from penstock.client.destinations import REACH_SECONDS
from penstock.client.errors import ClientError, PublishFailed
from penstock.client.publishing import ROOM_PAUSE_SECONDS, NoRoom, Outgoing, Stored
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
from penstock.client.streams import FAREWELL_SECONDS
from penstock.client.sync import GRACE_SECONDS, PUBLISH_SECONDS
from penstock.client.work_session import Credit
from penstock.client.worker_policy import WorkerPlan, WorkerPolicy, plan_worker

Handler = TypeVar("Handler", bound=Callable[..., object])


class AsyncClient:
    """Made at once; connects when something is asked of it. Closing is needed, and may be done twice."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        http: str | Sequence[str] | None = None,
        kafka: Mapping[str, Any] | None = None,
        patience_s: float | None = DEFAULT_PATIENCE_S,
    ) -> None:
        """As `Client`."""
        self._workshop = Workshop(bootstrap_servers, http=http, kafka=kafka, patience_s=patience_s)
        self._streams: list[AsyncQueue | AsyncSubscription] = []
        self._plans: list[WorkerPlan] = []
        self._stop: asyncio.Future[BaseException | None] | None = None
        self._is_stop_asked = False
        self._failures: list[BaseException] = []
        """Bugs, and what handlers have raised to exit, when the end had begun already."""
        self.admin = AsyncAdmin(
            Admin(self._workshop.kafka_admin, self._workshop.find_urls, self._workshop.servers)
        )
        """Topics, queues and groups."""

    # --- publish

    async def publish(
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
        `Client.publish` says what each argument is."""
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
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        future = await self._put(message, timeout)
        try:
            async with asyncio.timeout_at(deadline):
                return await future
        except TimeoutError:
            doubt = "it is still under way and may be stored; publish it again only with a message_id"
            raise PublishFailed(f"publishing to {topic}: no answer within {timeout} s: {doubt}") from None

    async def publish_soon(
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
    ) -> "asyncio.Future[Stored]":
        """As `publish`, in the background, many in a batch: returns a future that has the place, or raises
        PublishFailed. Waits only for a topic that is new to this client, and while far too much is under way."""
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
        return await self._put(message, REACH_SECONDS)

    async def _put(self, message: Outgoing, patience_s: float) -> "asyncio.Future[Stored]":
        publisher = self._workshop.publisher()
        if not publisher.knows(message):
            await asyncio.to_thread(publisher.look_up, message, patience_s)
        while True:
            try:
                return asyncio.wrap_future(publisher.offer(message))
            except NoRoom:
                await asyncio.sleep(ROOM_PAUSE_SECONDS)

    async def flush(self, timeout: float = PUBLISH_SECONDS) -> None:
        """Waits for all that was published in the background. Whether each was stored, its future says."""
        if self._workshop.has_publisher():
            left = await asyncio.to_thread(self._workshop.publisher().flush, timeout)
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
    ) -> AsyncQueue:
        """A consumer of the queue that `group` has on these topics: see `Client.queue`."""
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
    ) -> AsyncSubscription:
        """Follows topics in the log's order, from where the last ack of this name left off: see `Client.subscribe`."""
        self._workshop.check_open()
        subscription = AsyncSubscription(
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
            self._find_urls,
            idle_s=idle_s,
            on_close=self._forget,
        )
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
        """Registers a handler for `run`: see `Client.worker`. A coroutine function is awaited; any other is called in a
        thread, and may raise Retry or Reject but not settle the job itself; if it returns something to be awaited, that
        is done. `timeout`: a coroutine that takes longer is cancelled, which is a failure like any other; a thread goes
        on, without its job."""
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
                may_await=True,
            )
            self._plans.append(plan)
            return handler

        return register

    async def run(self, *, grace: Seconds = GRACE_SECONDS, signals: bool = True) -> bool:
        """Runs all workers until `stop` is called, SIGTERM or Ctrl-C comes, or it is cancelled; then finishes what is
        in hand, for `grace` seconds at most, and gives the rest back. Whether all was finished. Raises what
        `Client.run` raises."""
        if not self._plans:
            raise ClientError("no workers: decorate a handler with @client.worker(...) first")
        self._stop = asyncio.get_running_loop().create_future()
        if self._is_stop_asked:
            self.stop()
        try:
            if signals:
                with stopping_on_signals(self.stop):
                    return await self._run(self._stop, as_seconds("grace", grace))
            return await self._run(self._stop, as_seconds("grace", grace))
        finally:
            self._stop, self._is_stop_asked = None, False

    def stop(self) -> None:
        """Asks `run` to end; returns at once. Before `run`: it ends as soon as it has begun."""
        self._is_stop_asked = True
        self._end_run(None)

    async def _run(self, stop: "asyncio.Future[BaseException | None]", grace_s: float) -> bool:
        self._failures.clear()
        pools = [AsyncWorkerPool(plan, self._open_worker_queue, self._end_run) for plan in self._plans]
        try:
            problem = await stop
        finally:
            deadline = asyncio.get_running_loop().time() + grace_s
            for pool in pools:
                pool.drain()
            done = all(await asyncio.gather(*(pool.close(deadline) for pool in pools)))
        problem = problem or next(iter(self._failures), None)
        if problem is not None:
            raise problem
        return done

    def _end_run(self, problem: BaseException | None) -> None:
        if self._stop is not None and not self._stop.done():
            self._stop.set_result(problem)
        elif problem is not None and not isinstance(problem, ClientError):
            self._failures.append(problem)

    def _open_worker_queue(self, plan: WorkerPlan) -> AsyncQueue:
        return self._open_queue(
            plan.topics, plan.group, credit=plan.credit, standby=plan.standby, idle_s=None, forever=True
        )

    # --- the end

    async def close(self, timeout: float = FAREWELL_SECONDS) -> None:
        """Waits, for so many seconds, until what was published and acked is durable; gives open jobs back."""
        for stream in list(self._streams):
            await stream.close(timeout)
        await asyncio.to_thread(self._workshop.close, timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _open_queue(
        self,
        topics: tuple[str, ...],
        group: str,
        *,
        credit: Credit,
        standby: bool,
        idle_s: float | None,
        forever: bool = False,
    ) -> AsyncQueue:
        self._workshop.check_open()
        queue = AsyncQueue(
            lambda make: self._workshop.work_session(
                make, topics, group, credit=credit, standby=standby, forever=forever
            ),
            self._find_urls,
            idle_s=idle_s,
            on_close=self._forget,
        )
        self._streams.append(queue)
        return queue

    async def _find_urls(self) -> list[str]:
        return await asyncio.to_thread(self._workshop.find_urls)

    def _forget(self, stream: AsyncQueue | AsyncSubscription) -> None:
        if stream in self._streams:
            self._streams.remove(stream)
