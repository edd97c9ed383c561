"""Clients of three nodes that require login and TLS: the login goes with them to the node that serves them."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.client import AsyncClient, Client
from penstock.config import Address
from tests.kafka.trio import Trio
from tests.tls import Certificates

PATIENCE_SECONDS = 60
PASSWORDS = {"admin": "admin-password"}
Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(Path(tmp_path_factory.mktemp("certificates")))


@pytest.fixture(scope="module")
def trio(certificates: Certificates) -> Iterator[Trio]:
    tls = {"tls_cert": certificates.cert, "tls_key": certificates.key}
    with Trio(users=PASSWORDS, settings={"http": Address("127.0.0.1", 0), **tls}) as running:
        running.eventually(
            lambda: all("admin" in running.node(one).metadata.state.access.users for one in (1, 2, 3))
        )
        yield running


@pytest.fixture
def arguments(certificates: Certificates) -> dict[str, Any]:
    return {"user": "admin", "password": PASSWORDS["admin"], "tls_ca": certificates.ca}


def test_queues_and_subscriptions_follow_leaders_and_coordinators(
    trio: Trio, arguments: dict[str, Any], unique: Unique
) -> None:
    topic = unique("orders")
    with Client(trio.bootstrap_servers, **arguments) as client:
        client.admin.create_queue(topic, partitions=3)
        for partition in range(3):
            client.publish(topic, b"one", partition=partition)
        with client.queue(topic) as queue:
            jobs = [queue.receive(PATIENCE_SECONDS) for _ in range(3)]
            assert sorted(job.partition for job in jobs if job is not None) == [0, 1, 2]
        for number in range(6):  # the coordinators of some of these names are other nodes than the first
            with client.subscribe(topic, name=f"{topic}-{number}", read_old=True) as subscription:
                assert subscription.receive(PATIENCE_SECONDS) is not None


def test_so_do_those_of_asyncio(trio: Trio, arguments: dict[str, Any], unique: Unique) -> None:
    topic = unique("orders")

    async def scenario() -> None:
        async with AsyncClient(trio.bootstrap_servers, **arguments) as client:
            await client.admin.create_topic(topic, partitions=3)
            await client.publish(topic, b"one")
            for number in range(6):
                async with client.subscribe(topic, name=f"{topic}-{number}", read_old=True) as subscription:
                    assert await subscription.receive(PATIENCE_SECONDS) is not None

    asyncio.run(scenario())
