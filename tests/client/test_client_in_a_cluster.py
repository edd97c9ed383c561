"""Clients of three nodes: they find every leader, follow leader changes, and survive the loss of a node."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from penstock.client import AsyncClient, Client, Queue, Subscription
from tests.web.test_push_cluster import WebTrio

SOON = 60.0
PARTITIONS = 3
JOBS = 60
Unique = Callable[[str], str]


@pytest.fixture
def trio() -> Iterator[WebTrio]:
    with WebTrio() as running:
        yield running


@pytest.fixture
def client(trio: WebTrio) -> Iterator[Client]:
    with Client(trio.bootstrap_servers) as made:
        yield made


def spread(trio: WebTrio, client: Client, topic: str) -> None:
    """A topic of which each node leads one partition, with as many jobs in each."""
    client.admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
    for index in range(PARTITIONS):
        trio.hand_over(topic, index + 1, index)
    futures = [
        client.publish_soon(topic, str(number), partition=number % PARTITIONS) for number in range(JOBS)
    ]
    client.flush()
    assert all(future.result(0) for future in futures)


def finish(queue: Queue, count: int) -> list[str]:
    done: list[str] = []
    while len(done) < count:
        job = queue.receive(SOON)
        assert job is not None, f"{len(done)} of {count} jobs"
        done.append(job.text())
        job.ack()
    return done


def finish_rest(client: Client, queue: Queue) -> None:
    """Jobs come again whose acks were lost with a node."""
    while client.admin.queue("workers").undone:
        job = queue.receive(1.0)
        if job is not None:
            job.ack()
        queue.flush(SOON)


def follow(subscription: Subscription, last: set[str]) -> list[str]:
    """Acks everything until all of these have come."""
    got: list[str] = []
    while not last <= set(got):
        message = subscription.receive(SOON)
        assert message is not None, f"missing: {sorted(last - set(got))[:5]}"
        got.append(message.text())
        message.ack()
    return got


def test_jobs_and_messages_come_from_every_leader(trio: WebTrio, client: Client) -> None:
    spread(trio, client, "orders")
    client.admin.create_queue("workers")
    everything = {str(number) for number in range(JOBS)}
    with client.queue("orders", group="workers") as queue:
        assert set(finish(queue, JOBS)) == everything
        assert queue.flush(SOON)
    with client.subscribe("orders", name="billing", read_old=True) as subscription:
        assert sorted(follow(subscription, everything)) == sorted(everything)
    assert client.admin.queue("workers").undone == 0


def test_a_stopped_node_costs_no_job_and_no_message(trio: WebTrio, client: Client) -> None:
    spread(trio, client, "orders")
    client.admin.create_queue("workers")
    with (
        client.queue("orders", group="workers", prefetch=5) as queue,
        client.subscribe("orders", name="billing", read_old=True, prefetch=5) as subscription,
    ):
        done = finish(queue, 20)
        got = follow(subscription, {"0"})
        trio.stop(trio.coordinator_of("billing"))
        futures = [client.publish_soon("orders", str(number)) for number in range(JOBS, JOBS + 20)]
        client.flush()
        assert all(future.result(0) for future in futures)
        everything = {str(number) for number in range(JOBS + 20)}
        while set(done) != everything:
            done += finish(queue, 1)
        assert set(got + follow(subscription, everything - set(got))) == everything
        finish_rest(client, queue)


def test_an_asynchronous_client_survives_the_loss_of_a_node(trio: WebTrio, client: Client) -> None:
    spread(trio, client, "orders")
    client.admin.create_queue("workers")

    async def work() -> set[str]:
        done: set[str] = set()
        async with (
            AsyncClient(trio.bootstrap_servers) as other,
            other.queue("orders", group="workers", prefetch=5) as queue,
        ):
            while len(done) < JOBS:
                job = await queue.receive(SOON)
                assert job is not None, f"{len(done)} of {JOBS} jobs"
                job.ack()
                done.add(job.text())
                if len(done) == 20 and len(trio.running) == 3:
                    await asyncio.to_thread(trio.stop, 2)
        return done

    assert asyncio.run(work()) == {str(number) for number in range(JOBS)}


def test_every_node_redirects_an_asynchronous_subscriber_to_its_coordinator(
    trio: WebTrio, client: Client
) -> None:
    spread(trio, client, "orders")

    async def follow(node_id: int) -> set[str]:
        got: set[str] = set()
        async with (
            AsyncClient(trio.bootstrap_servers, http=trio.http_url(node_id)) as other,
            other.subscribe("orders", name=f"billing-{node_id}", read_old=True) as subscription,
        ):
            while len(got) < JOBS:
                message = await subscription.receive(SOON)
                assert message is not None, f"{len(got)} of {JOBS} messages"
                got.add(message.text())
                message.ack()
            assert await subscription.flush(SOON)
        return got

    for node_id in trio.running:
        assert asyncio.run(follow(node_id)) == {str(number) for number in range(JOBS)}
    assert [client.admin.group(f"billing-{node_id}").total_lag for node_id in trio.running] == [0, 0, 0]
