"""A broker that went away: publishing gives up in time, and closing waits for no answer that cannot come."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client import AsyncClient, Client, PublishFailed
from penstock.client.base import PUBLISH_SECONDS
from tests.web.test_push_crash import Served

SOON = 60.0
FOR_EVER = 3600.0
"""Longer than any test may take: whatever waits for it fails its test."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    one = Served(tmp_path / "data")
    one.start()
    yield one
    one.end(signal.SIGTERM)


def test_publishing_waits_for_ten_seconds_unless_told_otherwise() -> None:
    assert PUBLISH_SECONDS == 10.0


def test_publish_gives_up_and_close_does_not_wait_for_its_message(served: Served) -> None:
    client = Client(served.bootstrap_servers)
    client.admin.create_queue("workers", topic="orders")
    client.publish("orders", b"stored")
    queue = client.queue("orders", group="workers")
    job = queue.receive(SOON)
    served.end(signal.SIGKILL)
    with pytest.raises(PublishFailed, match="may be stored"):
        client.publish("orders", b"lost", timeout=0.5)
    with pytest.raises(PublishFailed):
        client.publish("orders", b"lost", message_id="a", timeout=0.5)
    assert job is not None
    job.ack()
    client.close(timeout=FOR_EVER)


def test_messages_that_a_caller_waits_for_fail_when_the_client_is_closed(served: Served) -> None:
    client = Client(served.bootstrap_servers)
    client.publish("orders", b"stored")
    served.end(signal.SIGKILL)
    soon = client.publish_soon("orders", b"lost")
    client.close(timeout=0.5)
    with pytest.raises(PublishFailed):
        soon.result(SOON)


def test_an_asynchronous_client_gives_up_as_well(served: Served) -> None:
    async def work() -> None:
        client = AsyncClient(served.bootstrap_servers)
        await client.admin.create_queue("workers", topic="orders")
        await client.publish("orders", b"stored")
        queue = client.queue("orders", group="workers")
        job = await queue.receive(SOON)
        await asyncio.to_thread(served.end, signal.SIGKILL)
        with pytest.raises(PublishFailed, match="may be stored"):
            await client.publish("orders", b"lost", timeout=0.5)
        assert job is not None
        job.ack()
        await client.close(timeout=FOR_EVER)

    asyncio.run(work())
