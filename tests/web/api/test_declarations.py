"""Topics and queues of the config file: created once, compared afterwards, never changed."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.config import Address, DeclaredQueue, DeclaredTopic, NodeConfig
from penstock.node import Node
from penstock.node.calls import BROKER
from penstock.service import Service
from penstock.web.api.declarations import Declarations
from tests.web.web_trio import WebTrio

Unique = Callable[[str], str]
ANY_PORT = Address("127.0.0.1", 0)
TOPICS = (DeclaredTopic(name="orders", partitions=3, configs={"retention.ms": 86_400_000}),)
QUEUES = (
    DeclaredQueue(name="mail", lease_ms=60_000, delivery_limit=3),
    DeclaredQueue(name="billing", topic="orders"),
)


class Recorder:
    """Keeps the reasons of unmet declarations."""

    def __init__(self, told: list[str]) -> None:
        self._told = told

    def tell(self, kind: str, **facts: object) -> None:
        if kind == "declaration.unmet":
            self._told.append(str(facts["reason"]))


def run(folder: Path, scenario: Callable[[Node], Any], **settings: Any) -> tuple[Any, list[str]]:
    """A broker with these declarations: the scenario's result, and the reasons of unmet ones."""
    told: list[str] = []

    async def serve() -> Any:
        config = NodeConfig(data_dir=str(folder), kafka=ANY_PORT, http=None, status_topic="", **settings)
        service = Service(config)
        await service.start()
        try:
            assert service.node is not None
            service.node.events = Recorder(told)
            await service.wait_ready()
            return await scenario(service.node)
        finally:
            await service.stop()

    return asyncio.run(serve()), told


async def shown(node: Node) -> tuple[dict[str, tuple[int, dict[str, str]]], dict[str, list[str]]]:
    """Topics with partitions and configs, and queues with their topics."""
    topics = {
        topic.name: (topic.partitions, topic.configs)
        for topic in node.metadata.state.topics.values()
        if not topic.internal
    }
    queues: dict[str, list[str]] = {}
    for one in await node.queues.overview.descriptions(caller=BROKER):
        queues.setdefault(one.group_id, []).append(f"{one.topic}-{one.partition}")
    return topics, queues


def test_they_are_created_before_the_node_is_ready(tmp_path: Path) -> None:
    (topics, queues), told = run(tmp_path, shown, topics=TOPICS, queues=QUEUES)
    assert topics["orders"] == (3, {"retention.ms": "86400000"})
    assert topics["mail"][1]["penstock.retention.keep.undone"] == "true"
    assert queues == {"mail": ["mail-0"], "billing": ["orders-0", "orders-1", "orders-2"]}
    assert told == []
    again, told = run(tmp_path, shown, topics=TOPICS, queues=QUEUES)
    assert (again, told) == ((topics, queues), []), "the next start finds them as they are declared"


def test_differences_are_told_with_a_command_and_nothing_is_changed(tmp_path: Path) -> None:
    before, _ = run(tmp_path, shown, topics=TOPICS, queues=QUEUES)
    other_topics = (DeclaredTopic(name="orders", partitions=6, configs={"retention.ms": 1000}),)
    other_queues = (
        DeclaredQueue(name="mail", lease_ms=90_000),
        DeclaredQueue(name="billing", topic="invoices"),
    )
    after, told = run(tmp_path, shown, topics=other_topics, queues=other_queues)
    assert after == before
    assert told == [
        "topic orders has 3 partitions, the config file says 6; "
        "`penstock topics alter orders --partitions 6` adds them",
        "topic orders has retention.ms=86400000, the config file says 1000; "
        "`penstock topics alter orders --set retention.ms=1000` changes it",
        "queue mail has share.record.lock.duration.ms=60000, the config file says 90000; "
        "`penstock queues alter mail --config share.record.lock.duration.ms=90000` changes it",
        "queue billing is on orders, the config file says invoices; "
        "`penstock queues create billing --topic invoices` puts it there, too",
    ]


def test_what_cannot_be_created_is_told_and_does_not_stop_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.service.DECLARE_SECONDS", 0.2)
    wanted = (DeclaredTopic(name="orders", replication_factor=3),)
    (topics, _), told = run(tmp_path, shown, topics=wanted)
    assert topics == {}
    [reason] = told
    assert reason.startswith("topic orders of the config file is not created yet: ")


def test_a_point_to_point_queue_does_not_alter_a_topic_that_is_there(tmp_path: Path) -> None:
    queues = (DeclaredQueue(name="ledger", topic="accounts", point_to_point=True),)
    (topics, found), told = run(tmp_path, shown, topics=(DeclaredTopic(name="accounts"),), queues=queues)
    assert (topics["accounts"][1], found) == ({}, {})
    assert told == [
        "queue ledger needs penstock.producer.exclusive=true on topic accounts, which has false; "
        "`penstock topics alter accounts --set penstock.producer.exclusive=true` changes it"
    ]
    (topics, found), told = run(tmp_path / "other", shown, queues=queues)
    assert topics["accounts"][1]["penstock.producer.exclusive"] == "true"
    wanted = (DeclaredQueue(name="once", dedup_window_ms=60_000),)
    (topics, _), told = run(tmp_path / "third", shown, queues=wanted)
    assert (topics["once"][1]["dedup.window.ms"], told) == ("60000", [])
    assert (found, told) == ({"ledger": ["accounts-0"]}, [])


def test_a_point_to_point_queue_on_three_partitions_is_told_what_it_needs(tmp_path: Path) -> None:
    """It was told to alter the producer of the topic, and after that it could not be created either."""
    topics = (DeclaredTopic(name="accounts", partitions=3),)
    queues = (DeclaredQueue(name="ledger", topic="accounts", point_to_point=True),)
    (_, found), told = run(tmp_path, shown, topics=topics, queues=queues)
    assert found == {}
    assert told == [
        "queue ledger is point-to-point and needs a topic with one partition, but accounts has 3, and partitions "
        "cannot be removed: name another topic for the queue, or do without point-to-point"
    ]
    renamed = (DeclaredQueue(name="ledger", topic="ledger", point_to_point=True),)
    (_, found), told = run(tmp_path, shown, topics=topics, queues=renamed)
    assert (found, told) == ({"ledger": ["ledger-0"]}, [])


# --- three nodes


@pytest.fixture
def trio() -> Iterator[WebTrio]:
    with WebTrio() as nodes:
        yield nodes


def test_three_nodes_create_each_of_them_once(trio: WebTrio, unique: Unique) -> None:
    name = unique("mail")
    topics = [DeclaredTopic(name=unique("orders"), partitions=3, replication_factor=3)]
    queues = [DeclaredQueue(name=name, partitions=2, replication_factor=3)]

    def declare() -> None:
        async def all_nodes() -> None:
            await asyncio.gather(*(Declarations(trio.node(one), topics, queues).run() for one in (1, 2, 3)))

        trio.run(all_nodes())

    declare()
    with trio.caller(2) as http:
        assert len(http.get(f"/v1/queues/{name}").json()["partitions"]) == 2
        assert http.get(f"/v1/topics/{topics[0].name}").json()["partitions"][2]["partition"] == 2
        work_off(http, name)
        declare()
        facts = http.get(f"/v1/queues/{name}").json()
        assert sum(row["undone"] for row in facts["partitions"]) == 0, json.dumps(facts)


def work_off(http: httpx.Client, queue: str) -> None:
    records = [{"value": number} for number in range(10)]
    http.post(f"/v1/topics/{queue}/records", json={"records": records}).raise_for_status()
    done = 0
    while done < 10:
        jobs = http.post(f"/v1/queues/{queue}/receive", json={"wait_ms": 30_000}).json()["jobs"]
        receipts = [job["receipt"] for job in jobs]
        http.post(f"/v1/queues/{queue}/settle", json={"accept": receipts}).raise_for_status()
        done += len(receipts)
