"""The asynchronous client: the same methods, awaited, and many tasks on one event loop."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import Broker
from penstock.client import (
    AsyncClient,
    AsyncJob,
    AsyncQueue,
    Client,
    ClientError,
    Closed,
    Denied,
    LeaseLost,
    PublishFailed,
    Unreachable,
)
from tests.ports import free_ports

SOON = 60.0
Unique = Callable[[str], str]


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


async def fill(client: AsyncClient, topic: str, count: int) -> None:
    for number in range(count):
        await client.publish_soon(topic, str(number))
    await client.flush()


async def take(queue: AsyncQueue, count: int) -> list[AsyncJob]:
    jobs = []
    while len(jobs) < count:
        job = await queue.receive(SOON)
        assert job is not None, f"{len(jobs)} of {count} jobs"
        jobs.append(job)
    return jobs


@asynccontextmanager
async def opened(broker: Broker) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(broker.bootstrap_servers) as client:
        yield client


def test_publishing_is_acknowledged_and_in_order(broker: Broker, topic: str) -> None:
    async def work() -> None:
        async with opened(broker) as client:
            assert (await client.publish(topic, "a", key="k")).offset == 0
            futures = [await client.publish_soon(topic, str(number)) for number in range(100)]
            assert [stored.offset for stored in await asyncio.gather(*futures)] == list(range(1, 101))
            with pytest.raises(PublishFailed, match=r"message\.max\.bytes"):
                await client.publish(topic, bytes(2_000_000))

    run(work())


def test_a_cancelled_publish_does_no_harm(broker: Broker, topic: str) -> None:
    async def work() -> None:
        async with AsyncClient(broker.bootstrap_servers, kafka={"linger.ms": 1000}) as client:
            await client.publish(topic, "first")  # the client knows the topic from now on
            with pytest.raises(PublishFailed, match="still under way"):
                await client.publish(topic, "slow", timeout=0.01)
            assert (await client.publish(topic, "next")).offset == 2

    run(work())


def test_jobs_are_acked_retried_rejected_and_done_once(broker: Broker, topic: str, group: str) -> None:
    async def work() -> None:
        async with opened(broker) as client:
            await fill(client, topic, 4)
            async with client.queue(topic, group=group) as queue:
                first, second, third, fourth = await take(queue, 4)
                await first.ack()
                second.retry(delay=0)
                await third.reject()
                async with fourth:
                    pass
                [again] = await take(queue, 1)
                assert (again.offset, again.deliveries) == (second.offset, 2)
                with pytest.raises(ZeroDivisionError):
                    async with again:
                        raise ZeroDivisionError
                [last] = await take(queue, 1)
                await last.ack()
                with pytest.raises(LeaseLost):
                    await last.retry()
            while (await client.admin.queue(group)).undone:  # until the rejected one is with the dead letters
                await asyncio.sleep(0.02)

    run(work())


def test_many_tasks_share_a_queue(broker: Broker, topic: str, group: str) -> None:
    async def work() -> None:
        done: list[int] = []
        async with opened(broker) as client:
            await fill(client, topic, 500)
            async with client.queue(topic, group=group, idle_s=15.0) as queue:

                async def worker() -> None:
                    async for job in queue:
                        done.append(job.offset)
                        job.ack()
                        if len(done) == 500:
                            queue.drain()

                await asyncio.gather(*(worker() for _ in range(8)))
        assert sorted(done) == list(range(500))

    run(work())


def test_cancelling_a_waiting_task_loses_no_job(broker: Broker, topic: str, group: str) -> None:
    async def work() -> None:
        async with opened(broker) as client, client.queue(topic, group=group) as queue:
            waiting = [asyncio.ensure_future(queue.receive()) for _ in range(3)]
            await asyncio.sleep(0)
            waiting[0].cancel()
            await fill(client, topic, 2)
            jobs = await asyncio.gather(*waiting[1:])
            assert [job.text() for job in jobs if job] == ["0", "1"]

    run(work())


def test_a_subscription_continues_after_its_last_ack(broker: Broker, topic: str, unique: Unique) -> None:
    async def work() -> None:
        name = unique("billing")
        async with opened(broker) as client:
            await fill(client, topic, 5)
            async with client.subscribe(topic, name=name, read_old=True, idle_s=15.0) as subscription:
                async for message in subscription:
                    if message.text() == "2":
                        await message.ack()
                        break
            async with client.subscribe(topic, name=name) as subscription:
                message = await subscription.receive(SOON)  # type: ignore[assignment]
                assert message.text() == "3"
                assert subscription.resumed
                await subscription.unsubscribe()
            async with client.subscribe(topic, name=name, read_old=True) as subscription:
                message = await subscription.receive(SOON)  # type: ignore[assignment]
                assert message.text() == "0"

    run(work())


def test_async_workers_run_side_by_side_and_retry(
    broker: Broker, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "penstock.client.workers")

    async def work() -> None:
        seen: list[tuple[str, int]] = []
        together = asyncio.Barrier(4)
        async with opened(broker) as client:
            await fill(client, topic, 8)

            @client.worker(topic, group=group, concurrency=4, backoff=0.01)
            async def handle(job: AsyncJob) -> None:
                if int(job.text()) < 4 and job.deliveries == 1:
                    await together.wait()  # passes only if four handlers run at once
                seen.append((job.text(), job.deliveries))
                if len(seen) == 9:
                    client.stop()
                if job.text() == "7" and job.deliveries == 1:
                    raise ValueError("seven")

            assert await client.run(signals=False)
            assert sorted(seen) == [(str(number), 1) for number in range(8)] + [("7", 2)]
            assert (await client.admin.queue(group)).undone == 0

    run(work())


def test_a_handler_that_is_no_coroutine_runs_in_a_thread(broker: Broker, topic: str, group: str) -> None:
    async def work() -> None:
        async with opened(broker) as client:
            await fill(client, topic, 1)
            loop = asyncio.get_running_loop()

            @client.worker(topic, group=group)
            def handle(job: AsyncJob) -> None:
                with pytest.raises(RuntimeError):
                    asyncio.get_running_loop()
                loop.call_soon_threadsafe(client.stop)

            assert await client.run(signals=False)
            assert (await client.admin.queue(group)).undone == 0

    run(work())


def test_prefetched_jobs_do_not_count_as_delivered(broker: Broker, topic: str, group: str) -> None:
    async def work() -> None:
        async with opened(broker) as client:
            await client.admin.alter_queue(group, {"share.delivery.count.limit": "2"})
            await fill(client, topic, 50)
            for number in range(4):
                async with client.queue(topic, group=group, prefetch=30) as queue:
                    [job] = await take(queue, 1)
                    assert (job.text(), job.deliveries) == (str(number), 1)
                    await job.ack()
            async with client.queue(topic, group=group, prefetch=30) as queue:
                assert {job.deliveries for job in await take(queue, 30)} == {1}

    run(work())


def test_a_worker_of_a_point_to_point_queue_keeps_its_order_when_a_job_fails(
    broker: Broker, topic: str, group: str
) -> None:
    async def work() -> None:
        seen: list[str] = []
        async with opened(broker) as client:
            await client.admin.alter_queue(group, {"penstock.queue.exclusive": "true"})
            await fill(client, topic, 3)

            @client.worker(topic, group=group, backoff=0.01)
            async def handle(job: AsyncJob) -> None:
                seen.append(job.text())
                if job.text() == "2":
                    client.stop()
                if seen == ["0"]:
                    raise ValueError("not yet")

            assert await client.run(signals=False)
        assert seen == ["0", "0", "1", "2"]

    run(work())


def test_a_signal_ends_workers_gracefully(broker: Broker, topic: str, group: str) -> None:
    async def work() -> None:
        done: list[str] = []
        async with opened(broker) as client:
            await fill(client, topic, 1)

            @client.worker(topic, group=group)
            async def handle(job: AsyncJob) -> None:
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(0.05)
                done.append(job.text())

            assert await client.run(signals=True)
        assert done == ["0"]

    run(work())


def test_cancelling_a_run_finishes_running_jobs(broker: Broker, topic: str, group: str) -> None:
    async def work() -> None:
        begun, done = asyncio.Event(), []
        async with opened(broker) as client:
            await fill(client, topic, 1)

            @client.worker(topic, group=group)
            async def handle(job: AsyncJob) -> None:
                begun.set()
                await asyncio.sleep(0.05)
                done.append(job.text())

            running = asyncio.ensure_future(client.run(signals=False))
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert done == ["0"]
            assert (await client.admin.queue(group)).undone == 0

    run(work())


def test_invalid_calls_are_refused_with_the_reason(broker: Broker, group: str) -> None:
    async def work() -> None:
        async with opened(broker) as client:
            with pytest.raises(ClientError, match=r"@client\.worker"):
                await client.run()
            queue = client.queue("no-such-topic", group=group)
            with pytest.raises(Denied, match="no-such-topic"):
                await queue.receive(SOON)
        with pytest.raises(Closed):
            await client.publish("orders", b"x")
        [port] = free_ports(1)
        servers = f"127.0.0.1:{port}"
        async with AsyncClient(servers, http=f"http://{servers}", reconnect_timeout_s=0.3) as client:
            with pytest.raises(Unreachable):
                await client.queue("orders", group=group).receive(SOON)

    run(work())


def test_it_continues_after_a_broker_restart(tmp_path: Path) -> None:
    kafka, http = (f"127.0.0.1:{port}" for port in free_ports(2))

    def start() -> Broker:
        return Broker(data_dir=tmp_path, kafka=kafka, http=http)

    async def work() -> None:
        broker = await asyncio.to_thread(start)
        async with AsyncClient(kafka) as client:
            await client.admin.create_topic("orders")
            await client.admin.create_queue("workers")
            await fill(client, "orders", 2)
            queue = client.queue("orders", group="workers")
            first, second = await take(queue, 2)
            await first.ack()
            await asyncio.to_thread(broker.close)
            with pytest.raises(LeaseLost):
                await second.ack()
            broker = await asyncio.to_thread(start)
            [again] = await take(queue, 1)
            assert again.text() == "1"
            await again.ack()
        await asyncio.to_thread(broker.close)

    run(work())


def test_nothing_is_left_running_after_the_end(
    broker: Broker, topic: str, group: str, unique: Unique
) -> None:
    async def work() -> None:
        before = asyncio.all_tasks()
        client = AsyncClient(broker.bootstrap_servers)
        await fill(client, topic, 3)
        await take(client.queue(topic, group=group), 1)
        client.subscribe(topic, name=unique("left"))
        await client.close()
        await client.close()
        assert asyncio.all_tasks() == before

    run(work())


def test_blocking_and_asynchronous_clients_have_the_same_methods() -> None:
    def verbs(cls: type) -> set[str]:
        return {name for name in dir(cls) if not name.startswith("_")}

    assert verbs(Client) == verbs(AsyncClient)
    with Client("127.0.0.1:1") as blocking:
        assert verbs(type(blocking.admin)) == verbs(type(AsyncClient("127.0.0.1:1").admin))


def test_closing_the_client_ends_its_workers(broker: Broker, topic: str, group: str) -> None:
    async def work() -> None:
        async with opened(broker) as client:

            @client.worker(topic, group=group)
            async def handle(job: AsyncJob) -> None:
                raise AssertionError

            client.stop()
            assert await client.run(signals=False), "what was asked before it ran counts"
            running = asyncio.ensure_future(client.run(signals=False))
            await asyncio.sleep(0)
            await client.close()
            assert await running

    run(work())
