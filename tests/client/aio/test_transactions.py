"""Transactions of the asyncio client."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock import Broker
from penstock.client import AsyncClient, AsyncJob, AsyncQueue, Client, ClientError, TransactionFailed
from tests.client.committed import committed_values
from tests.faults.waiting import eventually

SOON = 60.0

Act = Callable[[AsyncClient], Coroutine[Any, Any, None]]


fails = pytest.raises
"""Around a transaction, which has several statements."""


class Failure(Exception):
    pass


@pytest.fixture
def results(client: Client, unique: Callable[[str], str]) -> str:
    name = unique("results")
    client.admin.create_topic(name, partitions=1)
    return name


def play(broker: Broker, act: Act) -> None:
    async def run() -> None:
        async with asyncio.timeout(2 * SOON), AsyncClient(broker.bootstrap_servers) as client:
            await act(client)

    asyncio.run(run())


def eventually_committed(broker: Broker, topic: str, *values: str) -> None:
    eventually(lambda: committed_values(broker.bootstrap_servers, topic) == [*values], f"{values} in {topic}")


async def take(queue: AsyncQueue) -> AsyncJob:
    job = await queue.receive(SOON)
    assert job is not None
    return job


def test_a_job_and_its_result_are_done_together(
    broker: Broker, client: Client, topic: str, group: str, results: str
) -> None:
    async def act(aio: AsyncClient) -> None:
        for value in ("1", "2"):
            await aio.publish(topic, value)
        async with aio.queue(topic, group=group) as queue:
            for _ in range(2):
                job = await take(queue)
                async with aio.transaction("billing") as transaction:
                    await transaction.publish(results, job.text() * 2, headers={"trace": "t"})
                    transaction.ack(job)

    play(broker, act)
    eventually_committed(broker, results, "11", "22")
    eventually(lambda: client.admin.queue(group).undone == 0, "both jobs to be done")


def test_a_block_that_raises_gives_the_job_back(broker: Broker, topic: str, group: str, results: str) -> None:
    async def act(aio: AsyncClient) -> None:
        await aio.publish(topic, "1")
        async with aio.queue(topic, group=group) as queue:
            job = await take(queue)
            with fails(Failure):
                async with aio.transaction("billing") as transaction:
                    await transaction.publish(results, "lost")
                    await transaction.ack(job)
                    raise Failure
            again = await take(queue)
            assert again.deliveries == 2
            async with aio.transaction("billing") as transaction:
                await transaction.publish(results, "kept")
                transaction.ack(again)

    play(broker, act)
    eventually_committed(broker, results, "kept")


def test_a_task_that_is_cancelled_aborts_its_transaction(broker: Broker, topic: str) -> None:
    async def act(aio: AsyncClient) -> None:
        has_published = asyncio.Event()

        async def work() -> None:
            async with aio.transaction("billing") as transaction:
                await transaction.publish(topic, "lost".ljust(300_000))
                has_published.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await has_published.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with aio.transaction("billing") as transaction:
            await transaction.publish(topic, "kept")

    play(broker, act)
    eventually_committed(broker, topic, "kept")


def test_offsets_and_many_messages_are_part_of_it(
    broker: Broker, topic: str, results: str, unique: Callable[[str], str]
) -> None:
    async def act(aio: AsyncClient) -> None:
        async with aio.transaction("billing") as transaction:
            for number in range(30):
                await transaction.publish(results, str(number).ljust(20_000))
            await transaction.commit_offsets(unique("readers"), {(topic, 0): 3})

    play(broker, act)
    eventually(
        lambda: [int(one) for one in committed_values(broker.bootstrap_servers, results)] == [*range(30)],
        "all results",
    )


def test_a_lost_lease_aborts_the_transaction(broker: Broker, topic: str, group: str, results: str) -> None:
    async def act(aio: AsyncClient) -> None:
        await aio.publish(topic, "1")
        async with aio.queue(topic, group=group) as queue:
            job = await take(queue)
        with fails(TransactionFailed) as failed:
            async with aio.transaction("billing") as transaction:
                await transaction.publish(results, "lost")
                transaction.ack(job)
        assert failed.value.outcome == "aborted"
        with pytest.raises(ClientError, match="it has ended"):
            await transaction.publish(results, "late")

    play(broker, act)
    eventually_committed(broker, results)
