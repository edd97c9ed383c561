"""The numbers of a queue are right at once after its broker was restarted, before any consumer has read."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock import Broker
from penstock.client import Client, Job

from .conftest import Cli, succeeded

HOUR_S = 3600.0
PATIENCE_S = 60.0
UNDONE = 10 - 4 - 1 + 1 + 1
"""Ten jobs, four done, one dead; one that is not due and one that came later."""
BACKLOG = {"undone": UNDONE, "available": 4, "leased": 0, "deferred": 3, "waiting": 0, "dying": 0}


@pytest.fixture
def restarted(tmp_path: Path) -> Iterator[Broker]:
    """A broker with a queue `mail` that another broker served before it."""
    with Broker(data_dir=tmp_path / "data") as before, Client(before.bootstrap_servers) as client:
        client.admin.create_queue("mail")
        for number in range(10):
            client.publish("mail", b"%d" % number)
        with client.queue("mail") as queue:
            jobs = [taken(queue) for _ in range(10)]
            for job in (jobs[1], jobs[3], jobs[4], jobs[8]):
                job.ack().wait(PATIENCE_S)
            jobs[2].retry(delay=HOUR_S).wait(PATIENCE_S)
            jobs[5].retry(delay=HOUR_S).wait(PATIENCE_S)
            jobs[6].reject().wait(PATIENCE_S)
            deadline = time.monotonic() + PATIENCE_S
            while not client.admin.dead_letters("mail"):
                assert time.monotonic() < deadline
        client.publish("mail", b"tomorrow", delay=24 * HOUR_S)
        client.publish("mail", b"later")
    with Broker(data_dir=tmp_path / "data") as after:
        yield after


def taken(queue: Any) -> Job:
    job: Job | None = queue.receive(PATIENCE_S)
    assert job is not None
    return job


def loaded(broker: Broker) -> list[str]:
    node: Any = broker._thread.service.node
    return [driver.key.group_id for driver in node.queues.manager.drivers()]


def test_list_has_the_numbers_of_queues_that_no_consumer_uses_and_does_not_load_them(
    restarted: Broker, plain_cli: Cli
) -> None:
    address = ("--bootstrap", restarted.bootstrap_servers)
    [row] = json.loads(succeeded(plain_cli("queues", "list", "--json", *address)).stdout)
    assert (row["queue"], row["undone"], row["leased"], row["consumers"]) == ("mail", UNDONE, 0, 0)
    assert str(UNDONE) in succeeded(plain_cli("queues", "list", *address)).stdout
    assert "mail" not in loaded(restarted)


def test_describe_has_the_numbers_over_cli_http_and_python(restarted: Broker, plain_cli: Cli) -> None:
    described = succeeded(
        plain_cli("queues", "describe", "mail", "--json", "--bootstrap", restarted.bootstrap_servers)
    )
    over_http = httpx.get(f"{restarted.http_url}/v1/queues/mail", timeout=30).json()
    with Client(restarted.bootstrap_servers) as client:
        [over_python] = client.admin.queue("mail").partitions
    for partition in (json.loads(described.stdout)[0]["partitions"][0], over_http["partitions"][0]):
        assert {name: partition[name] for name in BACKLOG} == BACKLOG
    assert (over_python.undone, over_python.available, over_python.deferred) == (UNDONE, 4, 3)


def test_peek_shows_no_message_that_is_done(restarted: Broker, plain_cli: Cli) -> None:
    peeked = succeeded(plain_cli("queues", "peek", "mail", "-n", "99", "--json",
                                 "--bootstrap", restarted.bootstrap_servers))  # fmt: skip
    found = {row["offset"]: row["state"] for row in json.loads(peeked.stdout)}
    assert found == {
        0: "available",
        2: "deferred",
        5: "deferred",
        7: "available",
        9: "available",
        10: "deferred",
        11: "available",
    }


def test_metrics_count_a_described_queue_as_describe_does(restarted: Broker) -> None:
    httpx.get(f"{restarted.http_url}/v1/queues/mail", timeout=30).raise_for_status()
    metrics = httpx.get(f"{restarted.http_url}/metrics", timeout=30).text
    for name in ("available", "deferred", "dying"):
        assert f'penstock_queue_{name}{{queue="mail",topic="mail"}} {BACKLOG[name]:.1f}' in metrics
