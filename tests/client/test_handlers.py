"""Kinds of handlers, their results and exceptions. A job is acked only if its handler has run."""

import asyncio
import functools
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from penstock import Broker
from penstock.client import AsyncClient, AsyncJob, Client, Job, LeaseLost, Retry
from penstock.client.retry_policy import Decision, WorkerPolicy
from penstock.client.workers import WorkerPool

SOON = 60.0
WEEK_S = 7 * 24 * 3600.0


async def coroutine(job: Any) -> None:
    raise AssertionError


class Callee:
    async def __call__(self, job: Any) -> None:
        raise AssertionError


def generator(job: Any) -> Iterator[None]:
    yield


@pytest.mark.parametrize("handler", [coroutine, functools.partial(coroutine), Callee(), Callee().__call__])
def test_the_blocking_client_takes_no_coroutine_function(
    client: Client, handler: Callable[[Job], object]
) -> None:
    with pytest.raises(TypeError, match="AsyncClient"):
        client.worker("orders", group="workers")(handler)


def test_a_generator_function_is_no_handler(client: Client) -> None:
    with pytest.raises(TypeError, match="yield"):
        client.worker("orders", group="workers")(generator)


def test_a_job_whose_handler_returns_a_coroutine_is_not_acked(
    client: Client, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    client.publish(topic, b"x")

    @client.worker(topic, group=group, backoff=3600)
    def handle(job: Job) -> object:
        client.stop()
        return coroutine(job)

    with caplog.at_level(logging.WARNING, "penstock.client.workers"):
        assert client.run(signals=False)
    assert "AsyncClient" in caplog.text
    assert client.admin.queue(group).undone == 1


@pytest.mark.parametrize("kind", ["partial", "object", "wrapped", "wrapped with a timeout"])
def test_the_asynchronous_client_awaits_every_awaitable_result(
    broker: Broker, topic: str, group: str, kind: str
) -> None:
    asyncio.run(await_handler(broker, topic, group, kind))


async def await_handler(broker: Broker, topic: str, group: str, kind: str) -> None:
    done: list[str] = []
    async with AsyncClient(broker.bootstrap_servers) as client:
        await client.publish(topic, b"x")

        async def handle(job: AsyncJob) -> None:
            await asyncio.sleep(0)
            done.append(job.text())
            client.stop()

        class Handler:
            async def __call__(self, job: AsyncJob) -> None:
                await handle(job)

        def plain(job: AsyncJob) -> object:
            return handle(job)

        handlers: dict[str, Callable[..., object]] = {
            "partial": functools.partial(handle),
            "object": Handler(),
        }
        timeout = SOON if "timeout" in kind else None
        client.worker(topic, group=group, timeout=timeout)(handlers.get(kind, plain))
        async with asyncio.timeout(SOON):
            assert await client.run(signals=False)
        assert done == ["x"]
        assert (await client.admin.queue(group)).undone == 0


# --- delays


def test_a_delay_out_of_bounds_is_clamped() -> None:
    policy = WorkerPolicy(backoff_s=10 * WEEK_S, max_backoff_s=30 * WEEK_S, jitter=0.0)

    def decided(problem: Exception) -> Decision:
        return policy.decide(1, problem, Random(0))

    assert decided(Retry(delay=-1)) == Decision("retry", 0.0)
    assert decided(Retry(delay=timedelta(days=8))) == Decision("retry", WEEK_S)
    assert decided(Retry(delay=10**400)) == Decision("retry", WEEK_S)
    assert decided(ValueError()) == Decision("retry", WEEK_S)


def test_a_backoff_that_overflows_stays_at_its_maximum() -> None:
    policy = WorkerPolicy(backoff_factor=1e10, max_backoff_s=5.0, jitter=0.0)
    assert policy.decide(255, ValueError(), Random(0)).delay_s == 5.0


def test_an_invalid_delay_is_refused_where_it_is_given() -> None:
    with pytest.raises(TypeError, match=r"delay='soon'"):
        Retry(delay="soon")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"delay=60"):
        Retry(60)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="delay=nan"):
        Retry(delay=float("nan"))


def test_an_invalid_delay_that_was_set_later_counts_as_no_delay() -> None:
    problem = Retry()
    problem.delay = "soon"  # type: ignore[assignment]
    assert WorkerPolicy(jitter=0.0).decide(1, problem, Random(0)) == Decision("retry", 1.0)


def test_an_invalid_time_of_a_worker_is_refused_with_its_name(client: Client) -> None:
    with pytest.raises(TypeError, match="max_backoff='long'"):
        client.worker("orders", group="workers", max_backoff="long")  # type: ignore[arg-type]


def test_an_invalid_delay_fails_its_own_job_and_no_other(client: Client, topic: str, group: str) -> None:
    for value in ("a", "b", "c"):
        client.publish(topic, value)
    seen: list[str] = []

    @client.worker(topic, group=group, backoff=3600)
    def handle(job: Job) -> None:
        seen.append(job.text())
        if seen == ["a"]:
            raise Retry(delay=-1)
        if job.text() == "b":
            raise Retry(delay="soon")  # type: ignore[arg-type]
        if sorted(seen) == ["a", "a", "b", "c"]:
            client.stop()

    assert client.run(signals=False)
    assert client.admin.queue(group).undone == 1


# --- the end


def test_a_bug_in_a_worker_is_raised_by_run(
    client: Client, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.publish(topic, b"x")

    def broken(pool: WorkerPool, job: Job) -> bool:
        raise RuntimeError("a bug")

    monkeypatch.setattr(WorkerPool, "_handle", broken)
    client.worker(topic, group=group)(print)
    with pytest.raises(RuntimeError, match="a bug"):
        client.run(signals=False)


@pytest.mark.parametrize("is_coroutine", [True, False])
def test_an_exit_in_a_handler_is_raised_at_the_end_and_its_job_given_back(
    broker: Broker, topic: str, group: str, is_coroutine: bool
) -> None:
    asyncio.run(exit_from_handler(broker, topic, group, is_coroutine))


async def exit_from_handler(broker: Broker, topic: str, group: str, is_coroutine: bool) -> None:
    async with AsyncClient(broker.bootstrap_servers) as client:
        await client.publish(topic, b"x")

        async def leave(job: AsyncJob) -> None:
            raise SystemExit(3)

        def leave_thread(job: AsyncJob) -> None:
            raise SystemExit(3)

        client.worker(topic, group=group)(leave if is_coroutine else leave_thread)
        with pytest.raises(SystemExit) as exit_:
            await client.run(signals=False)
        assert exit_.value.code == 3
        assert (await client.admin.queue(group)).undone == 1


def test_an_exit_during_shutdown_is_raised(client: Client, topic: str, group: str) -> None:
    client.publish(topic, b"x")
    begun = threading.Event()

    @client.worker(topic, group=group)
    def handle(job: Job) -> None:
        begun.set()
        client.stop()
        raise SystemExit(4)

    with pytest.raises(SystemExit) as exit_:
        client.run(signals=False)
    assert begun.is_set()
    assert exit_.value.code == 4


def test_a_second_interrupt_does_not_wait_for_the_grace(broker: Broker, topic: str, group: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(interrupt_twice(broker, topic, group))
    with Client(broker.bootstrap_servers) as client, client.queue(topic, group=group) as queue:
        assert queue.receive(SOON) is not None  # given back


async def interrupt_twice(broker: Broker, topic: str, group: str) -> None:
    async with AsyncClient(broker.bootstrap_servers) as client:
        await client.publish(topic, b"x")

        @client.worker(topic, group=group)
        async def handle(job: AsyncJob) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            while not client._streams[0]._driver._is_draining:
                await asyncio.sleep(0)
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(3600)

        await client.run(grace=3600)


def test_the_first_settlement_of_a_job_counts_on_a_loop_as_well(
    broker: Broker, topic: str, group: str
) -> None:
    async def settle_twice() -> None:
        async with AsyncClient(broker.bootstrap_servers) as client:
            await client.publish(topic, b"x")
            async with client.queue(topic, group=group) as queue:
                job = await queue.receive(SOON)
                assert job is not None
                await job.ack()
                await job.ack()
                with pytest.raises(LeaseLost, match="settled it already: accept counts, reject does not"):
                    await job.reject()

    asyncio.run(settle_twice())
