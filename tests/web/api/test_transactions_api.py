"""Attempts over HTTP: tasks get producers, write over Kafka's protocol, and their driver decides."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from penstock import Broker
from penstock.batch import Record
from penstock.client.errors import ClientError
from penstock.client.wire import ClientSettings, Cluster
from penstock.client.wire.producer import BatchProducer, TransactionIdentity
from penstock.client.wire.transactions import Filters, TransactionAdmin
from penstock.errors import ErrorCode
from tests.spark.committed import committed_values

Unique = Callable[[str], str]
PARTITIONS = 3


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    with Cluster(ClientSettings(bootstrap_servers=broker.bootstrap_servers)) as cluster:
        yield cluster


class Query:
    """A driver and its tasks."""

    def __init__(self, http: httpx.Client, cluster: Cluster, name: str) -> None:
        self.http = http
        self._cluster = cluster
        self.name = name
        self.topic = f"{name}-out"
        cluster.create_topic(self.topic, PARTITIONS)

    def ask(self, what: str, **body: Any) -> httpx.Response:
        return self.http.post(f"/v1/transactions/{self.name}/{what}", json=body)

    def lend(self, version: int) -> dict[str, int]:
        answer = self.ask("attempts", version=version).raise_for_status().json()
        assert answer["committed"] is False
        producer: dict[str, int] = answer["producer"]
        return producer

    def write(self, producer: dict[str, int], value: str) -> None:
        """One record to each partition."""
        identity = TransactionIdentity(self.name, producer["producer_id"], producer["producer_epoch"])
        with BatchProducer(self._cluster, transaction=identity) as batches:
            for partition in range(PARTITIONS):
                batches.send_records(
                    self.topic, partition, [Record(offset=0, timestamp=0, value=value.encode())]
                )

    def task(self, version: int, value: str) -> dict[str, int]:
        producer = self.lend(version)
        self.write(producer, value)
        return producer

    def commit(self, version: int, *winners: dict[str, int]) -> bool:
        answer = self.ask("commit", version=version, winners=winners).raise_for_status().json()
        return bool(answer["was_committed"])


@pytest.fixture
def query(http: httpx.Client, cluster: Cluster, unique: Unique) -> Query:
    return Query(http, cluster, unique("query"))


def test_readers_of_committed_records_see_the_winners_and_nothing_else(query: Query, broker: Broker) -> None:
    won = [query.task(0, "a"), query.task(0, "b")]
    query.task(0, "lost")
    assert query.commit(0, *won) is False
    assert query.commit(0, *won) is True, "the repeated request"
    query.commit(1, query.task(1, "c"))
    found = committed_values(broker.bootstrap_servers, query.topic, PARTITIONS)
    assert sorted(found) == sorted(["a", "b", "c"] * PARTITIONS)


def test_a_task_of_a_committed_version_gets_no_producer(query: Query) -> None:
    query.commit(5, query.task(5, "a"))
    answer = query.ask("attempts", version=5).json()
    assert answer == {"producer": None, "committed": True}


def test_a_task_whose_version_is_decided_writes_nothing_more(query: Query, broker: Broker) -> None:
    zombie = query.lend(0)
    query.commit(0, query.task(0, "a"))
    with pytest.raises(ClientError):
        query.write(zombie, "late")
    assert committed_values(broker.bootstrap_servers, query.topic, PARTITIONS) == ["a"] * PARTITIONS


def test_a_decision_that_names_a_lost_attempt_is_refused_whole(query: Query, broker: Broker) -> None:
    good, lost = query.task(0, "a"), query.task(0, "b")
    assert query.ask("rollback", version=0).json() == {"was_committed": False}
    again = query.task(0, "a")
    refused = query.ask("commit", version=0, winners=[again, lost])
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "invalid_txn_state"
    query.commit(0, again)
    assert good != again
    assert committed_values(broker.bootstrap_servers, query.topic, PARTITIONS) == ["a"] * PARTITIONS


def test_a_sign_of_life_is_taken_while_attempts_are_open(query: Query) -> None:
    winner = query.task(0, "a")
    assert query.ask("renew").json() == {"transactional_id": query.name}
    query.commit(0, winner)
    assert query.ask("renew").status_code == 409


def test_open_attempts_are_listed_described_and_counted(
    query: Query, cluster: Cluster, http: httpx.Client
) -> None:
    query.task(0, "a")
    admin = TransactionAdmin(cluster)
    [row] = admin.find(Filters(states=("Ongoing",), pattern=f"{query.name}.*"))
    described = admin.describe(row.transactional_id)
    assert {tp.topic for tp in described.partitions} == {query.topic}
    [line] = [
        line
        for line in http.get("/metrics").text.splitlines()
        if line.startswith("penstock_transaction_attempts_open ")
    ]
    assert float(line.split()[1]) >= 1
    admin.abort(described)
    assert not admin.find(Filters(states=("Ongoing",), pattern=f"{query.name}.*"))


@pytest.mark.parametrize(
    ("what", "body", "status"),
    [
        ("attempts", {"version": -1}, 400),
        ("attempts", {"version": 0, "timeout_ms": 2**31 - 1}, 400),
        ("commit", {"version": 0, "winners": [{"producer_id": 1, "producer_epoch": 0}]}, 409),
        (
            "commit",
            {"version": 0, "winners": [{"producer_id": n, "producer_epoch": 0} for n in range(1000)]},
            400,
        ),
    ],
)
def test_wrong_requests(query: Query, what: str, body: dict[str, Any], status: int) -> None:
    answer = query.ask(what, **body)
    assert answer.status_code == status, answer.text
    assert ErrorCode.NONE.name.lower() not in answer.text
