"""A broker that is killed in the middle of the work: durably acked jobs are done once, all others come again."""

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client import AsyncClient, Client, ClientError
from tests.web.test_push_crash import Served

SOON = 60.0
JOBS = 200
KILLED_AFTER = (40, 90)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    one = Served(tmp_path / "data")
    one.start()
    yield one
    one.end(signal.SIGTERM)


def fill(client: Client) -> None:
    client.admin.create_topic("orders")
    client.admin.create_queue("workers", max_deliveries=50)
    for number in range(JOBS):
        client.publish_soon("orders", str(number))
    client.flush()


def test_every_durably_acked_job_is_done_once(served: Served) -> None:
    with Client(served.bootstrap_servers) as client:
        fill(client)
        durable: Counter[str] = Counter()
        kills = iter(KILLED_AFTER)
        next_kill = next(kills)
        with client.queue("orders", group="workers", prefetch=20) as queue:
            while len(durable) < JOBS:
                job = queue.receive(SOON)
                assert job is not None, f"{len(durable)} of {JOBS}"
                assert job.text() not in durable, "it was acked, and came again"
                settlement = job.ack()
                if len(durable) == next_kill:
                    next_kill = next(kills, JOBS + 1)
                    served.end(signal.SIGKILL)
                    served.start()
                try:
                    settlement.wait(SOON)
                except ClientError:
                    continue  # the outcome is unknown: it may come again, or not
                durable[job.text()] += 1
                if len(durable) + 3 > JOBS:
                    break
        assert set(durable.values()) == {1}
        assert client.admin.queue("workers").undone <= 3


def test_a_subscription_loses_nothing_and_keeps_the_order(served: Served) -> None:
    async def follow() -> list[int]:
        got: list[int] = []
        async with (
            AsyncClient(served.bootstrap_servers) as client,
            client.subscribe("orders", name="billing", read_old=True, prefetch=20) as subscription,
        ):
            while JOBS - 1 not in got:
                message = await subscription.receive(SOON)
                assert message is not None, f"{len(got)} of {JOBS}"
                got.append(int(message.text()))
                message.ack()
                if len(got) in KILLED_AFTER:
                    await asyncio.to_thread(served.end, signal.SIGKILL)
                    await asyncio.to_thread(served.start)
        return got

    with Client(served.bootstrap_servers) as client:
        fill(client)
    got = asyncio.run(follow())
    assert got == list(range(JOBS)), "in order, and what this process has acked is not handed to it twice"
