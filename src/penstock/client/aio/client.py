"""The asyncio client: the methods of `Client`, awaited.

    async with AsyncClient("127.0.0.1:9092") as client:
        await client.publish("orders", b"...", key=b"alice")
        async for job in client.queue("workers", topic="orders"):
            async with job:
                ...

A client belongs to the event loop on which it is first used. Publishing uses librdkafka's threads, and administration a
thread for each call; they never block the loop.
"""

import asyncio
import concurrent.futures
from collections.abc import Coroutine
from contextlib import nullcontext
from typing import Any, Self

from penstock.client.aio.admin import AsyncAdmin
from penstock.client.aio.streams import AsyncQueue, AsyncSubscription
from penstock.client.aio.threads import call_in_thread
from penstock.client.aio.transactions import AsyncTransaction
from penstock.client.aio.workers import AsyncWorkerPool
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
from penstock.client.publishing import (
    FULL_PAUSE_SECONDS,
    OutgoingMessage,
    Publisher,
    QueueFull,
    Stored,
    check_flushed,
    publish_timed_out,
    queue_stays_full,
)
from penstock.client.session_driver import log
from penstock.client.signals import stopping_on_signals
from penstock.client.topic_cache import REACH_SECONDS

StoredFuture = asyncio.Future[Stored]


class AsyncClient(
    BaseClient[AsyncQueue, AsyncSubscription, Coroutine[Any, Any, Stored], Coroutine[Any, Any, StoredFuture]]
):
    """A client connects when it is first used. It must be closed; closing it twice is fine. `publish` and
    `publish_soon` are to be awaited."""

    _queue_type = AsyncQueue
    _subscription_type = AsyncSubscription
    _awaits_handlers = True

    def _prepare(self) -> None:
        self._stop: asyncio.Future[BaseException | None] | None = None
        self._is_stop_asked = False
        self._failures: list[BaseException] = []
        """Bugs, and what handlers have raised to exit, after the graceful end had begun."""
        self.admin = AsyncAdmin(self._new_admin())
        """Topics, queues and groups."""

    # --- publish

    async def _publish(self, message: OutgoingMessage, timeout: float) -> Stored:
        deadline = asyncio.get_running_loop().time() + timeout
        publisher = self._open_publisher()
        future = await self._put(publisher, message, timeout)
        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise publish_timed_out(message.topic, timeout) from None
        finally:
            publisher.abandon(future)

    async def _publish_soon(self, message: OutgoingMessage) -> StoredFuture:
        return asyncio.wrap_future(await self._put(self._open_publisher(), message, REACH_SECONDS))

    async def _put(
        self, publisher: Publisher, message: OutgoingMessage, timeout_s: float
    ) -> concurrent.futures.Future[Stored]:
        """The same as `Publisher.put`, on the event loop."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        if not publisher.knows(message):
            await call_in_thread(publisher.look_up, message, timeout_s)
        while True:
            try:
                return publisher.offer(message)
            except QueueFull:
                if loop.time() >= deadline:
                    raise queue_stays_full(message.topic, timeout_s) from None
                await asyncio.sleep(FULL_PAUSE_SECONDS)

    async def flush(self, timeout: Seconds = FLUSH_SECONDS) -> None:
        """Waits for all messages that were published in the background. Each one's future has its result."""
        self._guard.check()
        timeout_s = wait_seconds("timeout", timeout)
        if self._publisher is not None:
            check_flushed(await call_in_thread(self._publisher.flush, timeout_s), timeout_s)

    async def call(
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
        replies, reply_topic = self._open_replies(), reply_topic or f"{topic}.replies"
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                if not replies.listens_to(reply_topic):
                    await call_in_thread(replies.listen, reply_topic)
                call = replies.begin()
                try:
                    left_s = max(deadline - loop.time(), 0.0)
                    message = self._call_message(call.call_id, topic, reply_topic, data, key, headers, left_s)
                    await self._publish(message, left_s)
                    return await asyncio.wrap_future(call.reply)
                finally:
                    replies.end(call)
        except TimeoutError:
            raise call_timed_out(topic, timeout_s) from None

    # --- transactions

    def transaction(
        self, transactional_id: str, *, timeout: Seconds = TRANSACTION_SECONDS
    ) -> AsyncTransaction:
        """Messages, offsets of groups, and jobs of queues that count together, or not at all: `async with` it. An id
        has one transaction at a time; a client that uses the id later takes it over, and the one before is fenced. The
        broker aborts a transaction that takes longer than `timeout` seconds."""
        self._check_open()
        return AsyncTransaction(self._transactional_ids, transactional_id, as_ms("timeout", timeout))

    # --- workers

    async def run(
        self, *, grace: Seconds = GRACE_SECONDS, signals: bool = False, schedules: bool = True
    ) -> bool:
        """Runs all workers and schedules until `stop` is called or the call is cancelled. Then waits for running
        handlers, for `grace` seconds at most, and gives the other jobs back. Returns whether all handlers have
        finished. Raises what `Client.run` raises. `schedules`: whether it publishes the jobs of schedules; it works on
        them in any case.

        `signals`: whether SIGTERM and Ctrl-C end it, too, and a second one the process, at once. The program that has
        the event loop usually handles them itself; set it if this call is all that the program does."""
        grace_s = wait_seconds("grace", grace)
        self._check_plans()
        loop = asyncio.get_running_loop()
        self._stop = loop.create_future()
        if self._is_stop_asked:
            self.stop()
        taking = (
            stopping_on_signals(lambda: loop.call_soon_threadsafe(self.stop)) if signals else nullcontext()
        )
        try:
            with taking:
                await self._declare_or_stop(self._stop)
                with self._running_schedules(schedules):
                    return await self._run(self._stop, grace_s)
        finally:
            self._stop, self._is_stop_asked = None, False

    async def _declare_or_stop(self, stop: "asyncio.Future[BaseException | None]") -> None:
        """Declares schedules, unless `run` is to end before that."""
        if not self._schedules:
            return
        declared = asyncio.ensure_future(call_in_thread(self._declare_schedules, stop.done))
        either: set[asyncio.Future[Any]] = {declared, stop}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not declared.done():
                declared.cancel()
        if declared.done():
            await declared

    def stop(self) -> None:
        """Asks `run` to end, and returns at once. If it is called before `run`, that ends as soon as it has begun."""
        self._is_stop_asked = True
        self._end_run(None)

    async def _run(self, stop: "asyncio.Future[BaseException | None]", grace_s: float) -> bool:
        self._failures.clear()
        pools = [
            AsyncWorkerPool(plan, self._open_worker_queue, self._end_run, self._send_reply, self._counter)
            for plan in self._plans
        ]
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

    async def _send_reply(self, reply: OutgoingMessage) -> None:
        """If it fails, the caller gets an error or no reply; the job is done all the same."""
        try:
            await self._publish(reply, PUBLISH_SECONDS)
        except ClientError as failed:
            log.warning("the reply to a call is lost: %s", failed)
            if not failed.retriable and reply.value is not None:  # such as one that is too large
                await self._send_reply(error_reply(reply, failed))

    # --- the end

    async def close(self, timeout: Seconds = CLOSE_SECONDS) -> None:
        """Waits, for so many seconds in all, until all messages and acks are durable; gives open jobs back. Does not
        wait for messages whose `publish` has timed out."""
        if self._guard.is_forked:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds("timeout", timeout)
        for stream in list(self._streams):
            await stream.close(max(deadline - loop.time(), 0.0))
        await call_in_thread(self._close_kafka, max(deadline - loop.time(), 0.0))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
