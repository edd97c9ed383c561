"""Why a queue does not move, as the API says it."""

import re
from collections.abc import Callable
from typing import Any

import httpx

from penstock import Broker
from tests.web.conftest import Create
from tests.web.workers import working

Unique = Callable[[str], str]


def diagnosis(http: httpx.Client, queue: str) -> dict[str, Any]:
    return http.get(f"/v1/queues/{queue}/diagnosis").raise_for_status().json()


def publish(http: httpx.Client, topic: str, count: int, **more: Any) -> None:
    records = [{"value": number, **more} for number in range(count)]
    http.post(f"/v1/topics/{topic}/records", json={"records": records}).raise_for_status()


def test_an_empty_queue_is_not_stuck(http: httpx.Client, create: Create) -> None:
    found = diagnosis(http, create())
    assert (found["moving"], found["stuck"], found["reasons"]) == (False, False, [])
    assert found["summary"] == "It is empty: all messages are done."


def test_messages_without_a_consumer(http: httpx.Client, create: Create) -> None:
    queue = create()
    publish(http, queue, 3)
    found = diagnosis(http, queue)
    assert found["stuck"] is True
    assert "3 messages are ready, and no consumer asks for them" in found["reasons"][0]


def test_one_message_is_spoken_of_as_one(http: httpx.Client, create: Create) -> None:
    queue = create()
    publish(http, queue, 1)
    [reason] = diagnosis(http, queue)["reasons"]
    assert reason.startswith("1 message is ready, and no consumer asks for it")
    http.post(f"/v1/queues/{queue}/receive", json={"max": 1}).raise_for_status()
    [reason] = diagnosis(http, queue)["reasons"]
    assert reason.startswith("1 message is leased")


def test_messages_that_a_worker_holds(http: httpx.Client, create: Create) -> None:
    queue = create(lease_ms=30_000)
    publish(http, queue, 2)
    http.post(f"/v1/queues/{queue}/receive", json={"max": 2}).raise_for_status()
    [reason] = diagnosis(http, queue)["reasons"]
    assert reason.startswith("2 messages are leased")
    assert "30 seconds" in reason


def test_ready_messages_are_explained_first_also_while_others_are_leased(
    http: httpx.Client, create: Create
) -> None:
    queue = create()
    publish(http, queue, 31)
    receive = {"max": 3, "consumer": "mailer"}
    http.post(f"/v1/queues/{queue}/receive", json=receive).raise_for_status()
    ready, leased = diagnosis(http, queue)["reasons"]
    assert re.match(
        r"28 messages are ready, and no consumer asks for them; mailer last asked \d+ s ago and holds 3: ",
        ready,
    )
    assert leased.startswith("3 messages are leased; mailer holds 3 of them")


def test_ready_messages_that_a_connected_worker_does_not_take(
    broker: Broker, http: httpx.Client, create: Create
) -> None:
    queue = create()
    publish(http, queue, 5)
    with working(broker.http_url, queue, queue, credit=2, name="mailer") as worker:
        worker.jobs(2)
        ready, _ = diagnosis(http, queue)["reasons"]
        assert ready.startswith(
            "3 messages are ready, and 1 consumer is connected but takes none; mailer holds 2: "
        )


def test_a_queue_is_not_stuck_if_nothing_is_due(http: httpx.Client, create: Create) -> None:
    queue = create()
    publish(http, queue, 1, delay_ms=3_600_000)
    http.post(f"/v1/queues/{queue}/receive", json={"wait_ms": 0}).raise_for_status()
    found = diagnosis(http, queue)
    assert found["stuck"] is False
    assert re.fullmatch(r"Nothing is due; the next one is due in (1 h|59 min)\.", found["summary"])
    publish(http, queue, 1)
    found = diagnosis(http, queue)
    assert found["stuck"] is True
    assert found["summary"].startswith("It does not move: 1 message is due and not done")


def test_messages_that_are_delayed(http: httpx.Client, create: Create) -> None:
    queue = create()
    publish(http, queue, 4, delay_ms=3_600_000)
    http.post(f"/v1/queues/{queue}/receive", json={"wait_ms": 0}).raise_for_status()
    assert any("4 messages are delayed" in reason for reason in diagnosis(http, queue)["reasons"])


def test_a_queue_that_moves(http: httpx.Client, create: Create) -> None:
    queue = create()
    publish(http, queue, 5)
    jobs = http.post(f"/v1/queues/{queue}/receive", json={"max": 3}).json()["jobs"]
    accepted = [job["receipt"] for job in jobs]
    http.post(f"/v1/queues/{queue}/settle", json={"accept": accepted}).raise_for_status()
    found = diagnosis(http, queue)
    assert (found["moving"], found["stuck"]) == (True, False)
    assert "2 are not done" in found["summary"]


def test_a_queue_that_does_not_exist(http: httpx.Client, unique: Unique) -> None:
    assert http.get(f"/v1/queues/{unique('none')}/diagnosis").status_code == 404
