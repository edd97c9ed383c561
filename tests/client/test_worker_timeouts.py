"""Handlers that hang: after a timeout their jobs go to other workers, and late settlements are ignored."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from penstock import Broker
from penstock.client import AsyncClient, AsyncJob, Client, ClientError, Job, LeaseLost
from penstock.client import workers as thread_workers
from penstock.client.aio import workers as task_workers

SOON = 60.0
SHORT = 2.0
"""Handlers that are to end in time do nothing: a busy machine should not make them late."""


@pytest.fixture
def go_on() -> Iterator[threading.Event]:
    """The event that handlers wait for: set at the end of the test, if not before."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture(autouse=True)
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "penstock.client.workers")
    return caplog


def long_leases(client: Client, group: str) -> None:
    """So that nothing comes back by the lease's end."""
    client.admin.alter_queue(group, {"share.record.lock.duration.ms": "3600000"})


def test_a_thread_that_hangs_loses_its_job_and_is_replaced(
    client: Client, topic: str, group: str, go_on: threading.Event, warnings: pytest.LogCaptureFixture
) -> None:
    long_leases(client, group)
    client.publish(topic, "a")
    attempts: list[int] = []
    first_ended = threading.Event()

    @client.worker(topic, group=group, concurrency=1, backoff=0.01, timeout=SHORT)
    def handle(job: Job) -> None:
        attempts.append(job.deliveries)
        if job.deliveries == 1:
            go_on.wait(SOON)
            first_ended.set()
        else:
            client.stop()

    assert client.run(signals=False, grace=SOON)  # without waiting for the handler that hangs
    assert not first_ended.is_set()
    assert attempts[:2] == [1, 2]
    assert client.admin.queue(group).undone == 0
    assert "the handler was not done within 2 s; its thread goes on; again in" in warnings.text


def test_a_late_settlement_by_a_handler_is_ignored(
    client: Client, topic: str, group: str, go_on: threading.Event
) -> None:
    long_leases(client, group)
    client.publish(topic, "a")
    has_spoken = threading.Event()
    outcome: list[ClientError] = []

    @client.worker(topic, group=group, backoff=0.01, timeout=SHORT)
    def handle(job: Job) -> None:
        if job.deliveries == 1:
            go_on.wait(SOON)  # until another thread has it
            try:
                job.ack().wait(SOON)
            except LeaseLost as lost:
                outcome.append(lost)
            has_spoken.set()
        else:
            go_on.set()
            assert has_spoken.wait(SOON)
            client.stop()
            raise ValueError("not done yet")  # the ack of the first one has not settled it

    assert client.run(signals=False)
    assert [type(one) for one in outcome] == [LeaseLost]
    assert client.admin.queue(group).undone == 1


def test_a_thread_that_hangs_after_settling_its_job_is_replaced(
    client: Client, topic: str, group: str, go_on: threading.Event, warnings: pytest.LogCaptureFixture
) -> None:
    client.publish(topic, "a")
    client.publish(topic, "b")
    seen: list[str] = []

    @client.worker(topic, group=group, concurrency=1, timeout=SHORT)
    def handle(job: Job) -> None:
        seen.append(job.text())
        if job.text() == "a":
            job.ack()
            go_on.wait(SOON)
        else:
            client.stop()

    assert client.run(signals=False)
    assert seen[:2] == ["a", "b"]
    assert client.admin.queue(group).undone == 0
    assert "settled, but the handler was not done" in warnings.text


def test_handlers_that_are_in_time_are_left_alone(client: Client, topic: str, group: str) -> None:
    for number in range(20):
        client.publish_soon(topic, str(number))
    client.flush()
    deliveries: list[int] = []

    @client.worker(topic, group=group, concurrency=3, timeout=timedelta(hours=1))
    def handle(job: Job) -> None:
        deliveries.append(job.deliveries)
        if len(deliveries) == 20:
            client.stop()

    assert client.run(signals=False)
    assert deliveries == [1] * 20
    assert client.admin.queue(group).undone == 0


def test_a_worker_with_too_many_threads_that_hang_ends(
    client: Client, topic: str, group: str, go_on: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_workers, "STUCK_MAX", 2)
    client.publish(topic, "a")

    @client.worker(topic, group=group, concurrency=1, backoff=0.01, timeout=0.05)
    def handle(job: Job) -> None:
        go_on.wait(SOON)

    with pytest.raises(ClientError, match=r"handlers of .* hang in threads: restart the process"):
        client.run(signals=False)


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan"), timedelta(0)])
def test_invalid_timeouts_are_refused(client: Client, timeout: float) -> None:
    with pytest.raises(ValueError, match=r"timeout=.*: expected"):
        client.worker("orders", group="workers", timeout=timeout)(print)


# --- with an event loop


def test_a_coroutine_that_hangs_is_cancelled_and_its_job_comes_again(
    broker: Broker, client: Client, topic: str, group: str, warnings: pytest.LogCaptureFixture
) -> None:
    long_leases(client, group)
    client.publish(topic, "a")
    attempts: list[int] = []
    cancelled: list[int] = []

    async def work() -> None:
        async with AsyncClient(broker.bootstrap_servers) as own:

            @own.worker(topic, group=group, backoff=0.01, timeout=SHORT)
            async def handle(job: AsyncJob) -> None:
                attempts.append(job.deliveries)
                if job.deliveries > 1:
                    own.stop()
                    return
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    cancelled.append(job.deliveries)
                    raise

            assert await own.run(signals=False)

    asyncio.run(asyncio.wait_for(work(), 60))
    assert attempts[:2] == [1, 2]
    assert cancelled == [1]
    assert client.admin.queue(group).undone == 0
    assert "TimeoutError: the handler was not done within 2 s; again in" in warnings.text
    assert "asyncio.Event().wait()" in warnings.text  # where it hung


def test_a_thread_of_an_event_loop_that_hangs_loses_its_job(
    broker: Broker, client: Client, topic: str, group: str, go_on: threading.Event
) -> None:
    long_leases(client, group)
    client.publish(topic, "a")
    attempts: list[int] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        async with AsyncClient(broker.bootstrap_servers) as own:

            @own.worker(topic, group=group, backoff=0.01, timeout=SHORT)
            def handle(job: AsyncJob) -> None:
                attempts.append(job.deliveries)
                if job.deliveries == 1:
                    go_on.wait(SOON)
                    return
                loop.call_soon_threadsafe(own.stop)

            assert await own.run(signals=False)

    asyncio.run(asyncio.wait_for(work(), 60))
    assert not go_on.is_set()  # nor did the loop wait for that thread when it ended
    assert attempts[:2] == [1, 2]
    assert client.admin.queue(group).undone == 0


def test_an_exception_of_a_threaded_handler_in_time_is_a_failure(
    broker: Broker, client: Client, topic: str, group: str, warnings: pytest.LogCaptureFixture
) -> None:
    client.publish(topic, "a")

    async def work() -> None:
        loop = asyncio.get_running_loop()
        async with AsyncClient(broker.bootstrap_servers) as own:

            @own.worker(topic, group=group, backoff=0.01, timeout=3600)
            def handle(job: AsyncJob) -> None:
                if job.deliveries == 1:
                    raise StopIteration("not yet")
                loop.call_soon_threadsafe(own.stop)

            assert await own.run(signals=False)

    asyncio.run(asyncio.wait_for(work(), 60))
    assert client.admin.queue(group).undone == 0
    assert "StopIteration: not yet" in warnings.text


def test_an_event_loop_with_too_many_threads_that_hang_ends_its_worker(
    broker: Broker,
    client: Client,
    topic: str,
    group: str,
    go_on: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_workers, "STUCK_MAX", 2)
    client.publish(topic, "a")

    async def work() -> None:
        async with AsyncClient(broker.bootstrap_servers) as own:

            @own.worker(topic, group=group, backoff=0.01, timeout=0.05)
            def handle(job: AsyncJob) -> None:
                go_on.wait(SOON)

            with pytest.raises(ClientError, match="restart the process"):
                await own.run(signals=False)

    asyncio.run(asyncio.wait_for(work(), 60))
