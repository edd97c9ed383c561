"""Queues over HTTP: receipts, and how they are settled."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from confluent_kafka import KafkaError, Producer

from penstock import Broker
from tests.kafka.clients.queues import take, work_off
from tests.kafka.clients.queues import worker as share_consumer
from tests.web.leases import BRIEF_MS, LONG_MS, lease_from_now_on, leased_until_ms

Unique = Callable[[str], str]
Create = Callable[..., str]


def publish(http: httpx.Client, topic: str, *values: object) -> None:
    body = {"records": [{"value": value} for value in values]}
    http.post(f"/v1/topics/{topic}/records", json=body).raise_for_status()


def receive(http: httpx.Client, queue: str, **wish: Any) -> list[dict[str, Any]]:
    answer = http.post(f"/v1/queues/{queue}/receive", json={"wait_ms": 30_000, **wish})
    assert answer.status_code == 200, answer.text
    jobs: list[dict[str, Any]] = answer.json()["jobs"]
    return jobs


def settle(http: httpx.Client, queue: str, **verdicts: Any) -> Any:
    answer = http.post(f"/v1/queues/{queue}/settle", json=verdicts)
    assert answer.status_code == (207 if answer.json()["refused"] else 200)
    return answer.json()


def facts(http: httpx.Client, queue: str) -> Any:
    [row] = http.get(f"/v1/queues/{queue}").json()["partitions"]
    return row


def test_an_accepted_job_is_done_and_the_others_are_not(http: httpx.Client, create: Create) -> None:
    queue = create()
    publish(http, queue, "a", "b", "c")
    first, second = receive(http, queue, max=2)
    assert [first["value"], second["value"]] == ["a", "b"]
    assert (first["topic"], first["partition"], first["offset"], first["deliveries"]) == (queue, 0, 0, 1)
    assert settle(http, queue, accept=[first["receipt"]]) == {"settled": 1, "refused": []}
    row = facts(http, queue)
    assert (row["start_offset"], row["leased"], row["available"], row["undone"]) == (1, 1, 1, 2)


def test_a_job_comes_back_when_its_lease_ends_and_its_receipt_is_then_invalid(
    http: httpx.Client, create: Create
) -> None:
    queue = create(lease_ms=BRIEF_MS)
    publish(http, queue, "slow")
    [job] = receive(http, queue)
    lease_from_now_on(http, queue, LONG_MS)
    [again] = receive(http, queue)
    assert (again["value"], again["deliveries"]) == ("slow", 2)
    refused = settle(http, queue, accept=[job["receipt"]])
    assert refused["settled"] == 0
    assert refused["refused"][0]["receipt"] == job["receipt"]
    assert refused["refused"][0]["error"]["code"] == "lease_over"
    assert settle(http, queue, accept=[again["receipt"]])["settled"] == 1


def test_valid_receipts_are_settled_beside_invalid_ones(http: httpx.Client, create: Create) -> None:
    queue = create()
    publish(http, queue, *range(4))
    jobs = receive(http, queue, max=4)
    receipts = [job["receipt"] for job in jobs]
    settle(http, queue, accept=[receipts[1]])
    answer = settle(http, queue, accept=receipts)
    assert answer["settled"] == 3
    assert [row["receipt"] for row in answer["refused"]] == [receipts[1]]
    assert facts(http, queue)["undone"] == 0


def test_a_retried_job_comes_again_after_its_delay_and_not_before(http: httpx.Client, create: Create) -> None:
    queue = create()
    publish(http, queue, "later", "tomorrow")
    later, tomorrow = receive(http, queue)
    settle(http, queue, retry=[{"receipt": tomorrow["receipt"], "delay_ms": 24 * 3_600_000}])
    assert facts(http, queue)["deferred"] == 1
    began = time.monotonic()
    settle(http, queue, retry=[{"receipt": later["receipt"], "delay_ms": 1_000}])
    [again] = receive(http, queue)
    assert time.monotonic() - began >= 1
    assert (again["value"], again["deliveries"]) == ("later", 2)


def test_a_renewed_lease_runs_from_its_renewal(http: httpx.Client, create: Create) -> None:
    queue = create(lease_ms=60_000)
    publish(http, queue, "long")
    [job] = receive(http, queue)
    until_ms = leased_until_ms(http, queue)
    lease_from_now_on(http, queue, LONG_MS)
    assert leased_until_ms(http, queue) == until_ms
    assert settle(http, queue, renew=[job["receipt"]])["settled"] == 1
    assert leased_until_ms(http, queue) >= until_ms + LONG_MS - 60_000
    assert settle(http, queue, accept=[job["receipt"]])["settled"] == 1


def test_a_waiting_receive_gets_a_new_message(http: httpx.Client, broker: Broker, create: Create) -> None:
    queue = create(partitions=2)
    with ThreadPoolExecutor() as pool, httpx.Client(base_url=broker.http_url, timeout=30) as other:
        waiting = pool.submit(receive, other, queue, wait_ms=20_000)
        publish(http, queue, "here")
        assert [job["value"] for job in waiting.result(30)] == ["here"]


def test_receiving_from_an_empty_queue_returns_no_jobs(http: httpx.Client, create: Create) -> None:
    assert receive(http, create(), wait_ms=50) == []


def test_a_consumer_name_owns_its_jobs(http: httpx.Client, create: Create) -> None:
    queue = create()
    publish(http, queue, "a")
    receive(http, queue, consumer="press-1")
    [seen] = http.get(f"/v1/queues/{queue}/peek").json()["messages"]
    assert (seen["state"], seen["consumer"], seen["deliveries"]) == ("leased", "press-1", 1)


def test_a_queue_that_was_never_used_is_unknown_without_topics(http: httpx.Client, unique: Unique) -> None:
    name = unique("missing")
    answer = http.post(f"/v1/queues/{name}/receive", json={"wait_ms": 0})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_queue")
    answer = http.post(f"/v1/queues/{name}/receive", json={"topics": [name], "wait_ms": 0})
    assert (answer.status_code, answer.json()["error"]["field"]) == (404, "topics")


@pytest.mark.parametrize("receipt", ["x", "lQHZ", "!!!!", "lAGhYaFiAQ", "a" * 400])
def test_an_invalid_receipt_is_refused_with_its_index(
    receipt: str, http: httpx.Client, create: Create
) -> None:
    answer = http.post(f"/v1/queues/{create()}/settle", json={"reject": [receipt]})
    assert answer.status_code == 400
    assert answer.json()["error"]["field"] == "reject[0]"


def test_a_repeated_receipt_or_none_at_all_is_refused(http: httpx.Client, create: Create) -> None:
    queue = create()
    publish(http, queue, "a")
    [job] = receive(http, queue)
    twice = {"accept": [job["receipt"]], "reject": [job["receipt"]]}
    assert http.post(f"/v1/queues/{queue}/settle", json=twice).status_code == 400
    assert http.post(f"/v1/queues/{queue}/settle", json={}).status_code == 400
    assert facts(http, queue)["leased"] == 1


def test_share_consumers_and_http_share_one_queue(http: httpx.Client, broker: Broker, create: Create) -> None:
    queue = create()
    publish(http, queue, *map(str, range(10)))
    jobs = receive(http, queue, max=3)
    settle(http, queue, accept=[job["receipt"] for job in jobs])
    with share_consumer(broker.bootstrap_servers, queue, queue) as consumer:
        rest = work_off(consumer, lambda message: message.value() == b'"9"')
    assert [job["value"] for job in jobs] == ["0", "1", "2"]
    assert rest == [f'"{number}"' for number in range(3, 10)]


def test_a_purge_also_removes_leased_jobs(http: httpx.Client, create: Create) -> None:
    queue = create()
    publish(http, queue, "a", "b")
    [job] = receive(http, queue, max=1)
    purged = http.post(f"/v1/queues/{queue}/purge", json={}).json()
    assert purged["partitions"] == [{"topic": queue, "partition": 0, "start_offset": 2, "purged": 2}]
    assert settle(http, queue, accept=[job["receipt"]])["settled"] == 0
    publish(http, queue, "c")
    assert [job["value"] for job in receive(http, queue)] == ["c"]


def test_peek_starts_at_the_given_offset_and_omits_finished_messages(
    http: httpx.Client, create: Create
) -> None:
    queue = create()
    publish(http, queue, *range(10))
    jobs = receive(http, queue, max=5)
    settle(http, queue, accept=[jobs[1]["receipt"], jobs[3]["receipt"]])
    look: dict[str, str | int] = {"topic": queue, "partition": 0, "offset": 2, "max_records": 4}
    seen = http.get(f"/v1/queues/{queue}/peek", params=look).json()["messages"]
    assert [(row["offset"], row["state"]) for row in seen] == [
        (2, "leased"),
        (4, "leased"),
        (5, "available"),
        (6, "available"),
    ]


# --- exclusive queues


def test_an_exclusive_queue_refuses_a_second_consumer_until_the_first_has_been_idle_for_a_lease(
    http: httpx.Client, create: Create
) -> None:
    queue = create(point_to_point=True, lease_ms=LONG_MS)
    publish(http, queue, "a")
    [job] = receive(http, queue, consumer="till-1")
    settle(http, queue, accept=[job["receipt"]])
    wish = {"consumer": "till-2", "wait_ms": 0}
    refused = http.post(f"/v1/queues/{queue}/receive", json=wish)
    assert refused.status_code == 409
    assert "till-1 at 127.0.0.1" in refused.json()["error"]["message"]
    assert receive(http, queue, consumer="till-2", wait_ms=0, standby=True) == []
    lease_from_now_on(http, queue, BRIEF_MS)
    assert receive(http, queue, consumer="till-1", wait_ms=0) == []
    lease_from_now_on(http, queue, LONG_MS)
    publish(http, queue, "b")
    [taken] = receive(http, queue, consumer="till-2", standby=True)
    assert (taken["value"], taken["deliveries"]) == ("b", 1)
    assert http.post(f"/v1/queues/{queue}/receive", json={**wish, "consumer": "till-1"}).status_code == 409


def test_a_share_consumer_stands_by_silently_while_another_has_an_exclusive_queue(
    http: httpx.Client, broker: Broker, create: Create
) -> None:
    queue = create(point_to_point=True)
    servers = broker.bootstrap_servers
    with share_consumer(servers, queue, queue, **{"client.id": "till-1"}) as first:
        publish(http, queue, "a")
        take(first, lambda messages: len(messages) == 1)
        with share_consumer(servers, queue, queue, **{"client.id": "till-2"}) as second:
            publish(http, queue, "b")
            assert len(second.poll(1.0)) == 0
            assert "'till-1' at 127.0.0.1" in facts(http, queue)["holder"]
            first.close()
            values = work_off(second, lambda message: message.value() == b'"b"')
    assert values == ['"a"', '"b"']


def test_a_point_to_point_queue_takes_records_from_one_producer_at_a_time(
    http: httpx.Client, broker: Broker, create: Create
) -> None:
    queue = create(point_to_point=True)
    one = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, "client.id": "mint-1"}
    )
    one.produce(queue, b"1")
    assert one.flush(20) == 0
    failures: list[Any] = []
    two = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, "client.id": "mint-2"}
    )
    two.produce(queue, b"2", on_delivery=lambda error, _: failures.append(error))
    assert two.flush(20) == 0
    assert [error.code() for error in failures] == [KafkaError.POLICY_VIOLATION]
