"""Settle frames with a transaction: the broker's side of the protocol of docs/queues.md."""

from collections.abc import Callable

import httpx
import pytest

from penstock import Broker
from penstock.client import Client
from penstock.web.work_frames import MAX_TRANSACTIONAL_ID
from tests.web.workers import working

Create = Callable[..., str]
UNKNOWN = {"id": "nobody", "producer_id": 2**40, "epoch": 0}


def publish(http: httpx.Client, topic: str, value: str) -> None:
    http.post(f"/v1/topics/{topic}/records", json={"records": [{"value": value}]}).raise_for_status()


@pytest.fixture
def queue(http: httpx.Client, broker: Broker, create: Create) -> str:
    """With one job. Another client has used a transaction before."""
    name = create()
    publish(http, name, "job")
    with Client(broker.bootstrap_servers) as client, client.transaction("warm-up") as transaction:
        transaction.commit_offsets("readers", {(name, 0): 0})
    return name


def test_the_broker_says_that_it_settles_in_transactions(broker: Broker, queue: str) -> None:
    with working(broker.http_url, queue, queue) as worker:
        assert worker.hear("working")["transactions"] is True


def test_a_transaction_that_no_coordinator_knows_is_refused_and_the_job_comes_again(
    broker: Broker, queue: str
) -> None:
    with working(broker.http_url, queue, queue) as worker:
        [job] = worker.jobs(1)
        [answer] = worker.settle([job], transaction=UNKNOWN).values()
        assert answer["error"]["code"] == "invalid_producer_id_mapping"
        [again] = worker.jobs(1)
        assert (again["offset"], again["deliveries"]) == (job["offset"], 2)


def test_the_longest_id_is_refused_by_the_coordinator_alone(broker: Broker, queue: str) -> None:
    with working(broker.http_url, queue, queue) as worker:
        [job] = worker.jobs(1)
        longest = {**UNKNOWN, "id": "\U0001f600" * MAX_TRANSACTIONAL_ID}
        [answer] = worker.settle([job], transaction=longest).values()
        assert answer["error"]["code"] == "invalid_producer_id_mapping"


@pytest.mark.parametrize("other", ["renew", "return"])
def test_a_transaction_has_final_settlements_only(broker: Broker, queue: str, other: str) -> None:
    with working(broker.http_url, queue, queue) as worker:
        [job] = worker.jobs(1)
        place = {"topic": job["topic"], "partition": job["partition"], other: [[job["offset"]] * 2]}
        worker.say(type="settle", number=1, transaction=UNKNOWN, **place)
        last, code = worker.ending()
        assert (last["code"], code) == ("invalid_transaction", 4400)


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": ""},
        {"id": "x" * (MAX_TRANSACTIONAL_ID + 1)},
        {"producer_id": -1},
        {"epoch": 32_768},
        {"epoch": -1},
        {"more": 1},
    ],
)
def test_a_transaction_with_wrong_fields_ends_the_connection(
    broker: Broker, queue: str, wrong: dict[str, object]
) -> None:
    with working(broker.http_url, queue, queue) as worker:
        [job] = worker.jobs(1)
        place = {"topic": job["topic"], "partition": job["partition"], "accept": [[job["offset"]] * 2]}
        worker.say(type="settle", number=1, transaction={**UNKNOWN, **wrong}, **place)
        assert worker.ending()[1] == 4400
