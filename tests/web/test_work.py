"""Queues over WebSocket: delivery of jobs to workers, and their settlement."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from penstock import Broker
from penstock.web.worker import RECOUNT_SECONDS

from .leases import BRIEF_MS, LONG_MS, lease_from_now_on, leased_until_ms
from .workers import PATIENCE_SECONDS, Worker, opened, working

Unique = Callable[[str], str]
Create = Callable[..., str]


def publish(http: httpx.Client, topic: str, *values: object, **more: object) -> None:
    records = [{"key": f"k{number}", "value": value, **more} for number, value in enumerate(values)]
    http.post(f"/v1/topics/{topic}/records", json={"records": records}).raise_for_status()


def values(jobs: list[dict[str, Any]]) -> list[Any]:
    return [job["value"] for job in jobs]


def undone(http: httpx.Client, queue: str) -> int:
    return sum(row["undone"] for row in http.get(f"/v1/queues/{queue}").json()["partitions"])


# --- accepted jobs


def test_every_job_is_done_once_by_one_of_the_workers(
    http: httpx.Client, broker: Broker, create: Create
) -> None:
    queue = create(partitions=3)
    publish(http, queue, *range(200))
    done: Counter[int] = Counter()
    lock, finished = threading.Lock(), threading.Event()

    def work(worker: Worker) -> None:
        while not finished.is_set():
            jobs = worker.jobs(1)
            assert all("error" not in answer for answer in worker.settle(jobs).values())
            with lock:
                done.update(values(jobs))
                if done.total() >= 200:
                    finished.set()
        worker.socket.close()

    with (
        working(broker.http_url, queue, queue, credit=7) as one,
        working(broker.http_url, queue, queue, credit=7) as other,
        ThreadPoolExecutor() as pool,
    ):
        tasks = [pool.submit(work, worker) for worker in (one, other)]
        assert finished.wait(PATIENCE_SECONDS)
        one.socket.close()
        other.socket.close()
        for task in tasks:
            with suppress(ConnectionClosed):
                task.result(PATIENCE_SECONDS)
    assert done == Counter(range(200))
    assert undone(http, queue) == 0


def test_an_accepted_job_is_not_delivered_to_the_next_worker(
    http: httpx.Client, broker: Broker, create: Create
) -> None:
    queue = create()
    publish(http, queue, 1, 2)
    with working(broker.http_url, queue, queue, credit=1) as worker:
        worker.settle(worker.jobs(1))
    with working(broker.http_url, queue, queue) as worker:
        assert values(worker.jobs(1)) == [2]


# --- redelivery


def test_jobs_of_a_worker_that_disconnects_come_back_at_once(
    http: httpx.Client, broker: Broker, create: Create
) -> None:
    queue = create(lease_ms=3_600_000)
    publish(http, queue, "a", "b", "c")
    with working(broker.http_url, queue, queue) as worker:
        assert [job["deliveries"] for job in worker.jobs(3)] == [1, 1, 1]
        with working(broker.http_url, queue, queue) as other:
            other.hear("working")
            worker.socket.close()
            again = other.jobs(3)
    assert values(again) == ["a", "b", "c"]
    assert [job["deliveries"] for job in again] == [2, 2, 2]


def test_jobs_that_are_not_settled_in_time_go_to_another_worker_and_cannot_be_settled_any_more(
    http: httpx.Client, broker: Broker, create: Create
) -> None:
    queue = create(lease_ms=BRIEF_MS)
    publish(http, queue, "slow")
    with working(broker.http_url, queue, queue, credit=1) as worker:
        jobs = worker.jobs(1)
        worker.say(type="credit", credit=0)
        lease_from_now_on(http, queue, LONG_MS)
        with working(broker.http_url, queue, queue) as other:
            [again] = other.jobs(1)
            assert (again["value"], again["deliveries"]) == ("slow", 2)
            [answer] = worker.settle(jobs).values()
            assert answer["error"]["code"] == "lease_over"
            assert answer["error"]["refused"] == [[0, 0]]
            other.settle([again])
    assert undone(http, queue) == 0


def test_a_renewed_job_stays_with_its_worker(http: httpx.Client, broker: Broker, create: Create) -> None:
    queue = create(lease_ms=60_000)
    publish(http, queue, "long")
    with working(broker.http_url, queue, queue, credit=2) as worker:
        jobs = worker.jobs(1)
        until_ms = leased_until_ms(http, queue)
        lease_from_now_on(http, queue, LONG_MS)
        assert leased_until_ms(http, queue) == until_ms
        [answer] = worker.settle(jobs, "renew").values()
        assert "error" not in answer
        assert leased_until_ms(http, queue) >= until_ms + LONG_MS - 60_000
        [answer] = worker.settle(jobs).values()
        assert "error" not in answer


def test_a_job_that_is_returned_goes_to_others_as_if_it_had_not_been_delivered(
    http: httpx.Client, broker: Broker, create: Create
) -> None:
    queue = create(lease_ms=3_600_000, delivery_limit=2)
    publish(http, queue, "a", "b", "c")
    for _ in range(5):  # more often than the limit allows deliveries
        with working(broker.http_url, queue, queue) as worker:
            jobs = worker.jobs(3)
            assert [job["deliveries"] for job in jobs] == [1, 1, 1]
            worker.say(type="credit", credit=0)
            [answer] = worker.settle(jobs, "return").values()
            assert "error" not in answer
    assert undone(http, queue) == 3


def test_jobs_that_are_not_returned_count_as_delivered(
    http: httpx.Client, broker: Broker, create: Create
) -> None:
    queue = create(lease_ms=3_600_000)
    publish(http, queue, "a", "b", "c")
    with working(broker.http_url, queue, queue) as worker:
        begun, *rest = worker.jobs(3)
        worker.say(type="credit", credit=0)
        worker.settle(rest, "return")
        with working(broker.http_url, queue, queue) as other:
            assert [(job["value"], job["deliveries"]) for job in other.jobs(2)] == [("b", 1), ("c", 1)]
            worker.socket.close()
            assert [(job["value"], job["deliveries"]) for job in other.jobs(1)] == [("a", 2)]
    assert begun["value"] == "a"


def test_a_job_that_is_not_held_cannot_be_returned(
    http: httpx.Client, broker: Broker, create: Create
) -> None:
    queue = create()
    publish(http, queue, "a", "b", "c")
    with working(broker.http_url, queue, queue, credit=2) as worker:
        assert values(worker.jobs(2)) == ["a", "b"]
        place = {"topic": queue, "partition": 0}
        worker.say(type="settle", number=9, **place, accept=[[0, 0]], **{"return": [[1, 2], [7, 7]]})
        answer = worker.hear("settled")
        assert (answer["number"], answer["error"]["code"]) == (9, "lease_over")
        assert answer["error"]["refused"] == [[1, 2], [7, 7]]
        assert values(worker.jobs(1)) == ["c"]  # exactly one credit is free
        worker.say(type="ping")
        worker.hear("pong")
        assert worker.unheard("jobs") == 0


def test_a_retried_job_comes_again_after_its_delay_and_not_before(
    http: httpx.Client, broker: Broker, create: Create
) -> None:
    queue = create()
    publish(http, queue, "later")
    with working(broker.http_url, queue, queue) as worker:
        jobs = worker.jobs(1)
        began = time.monotonic()
        worker.settle(jobs, "retry", delay_ms=700)
        [again] = worker.jobs(1)
        assert time.monotonic() - began >= 0.7
        assert (again["value"], again["deliveries"]) == ("later", 2)


def test_a_retry_without_a_delay_follows_the_queues_own_backoff(
    http: httpx.Client, broker: Broker, create: Create
) -> None:
    queue = create(retry_backoff_ms=600)
    publish(http, queue, "later")
    with working(broker.http_url, queue, queue) as worker:
        jobs = worker.jobs(1)
        began = time.monotonic()
        worker.settle(jobs, "retry")
        worker.jobs(1)
        assert time.monotonic() - began >= 0.6


# --- dead letters


def test_a_rejected_job_goes_whole_to_the_dead_letters(
    http: httpx.Client, broker: Broker, create: Create
) -> None:
    queue = create()
    body = {"records": [{"key": "c17", "value": {"n": 1}, "headers": {"trace": "t1"}}]}
    http.post(f"/v1/topics/{queue}/records", json=body).raise_for_status()
    with working(broker.http_url, queue, queue) as worker:
        worker.settle(worker.jobs(1), "reject")
    [letter] = dead_letters(http, f"{queue}.dlq", 1)
    assert (letter["key"], letter["value"]) == ("c17", {"n": 1})
    headers = {row["name"]: row["value"] for row in letter["headers"]}
    for moment in ("at", "first-failure", "last-failure"):
        assert headers.pop(f"penstock-dead-{moment}").isdigit()
    assert headers.pop("penstock-dead-worker").startswith("work-")
    assert headers == {
        "trace": "t1",
        "penstock-dead-reason": "rejected",
        "penstock-dead-topic": queue,
        "penstock-dead-partition": "0",
        "penstock-dead-offset": "0",
        "penstock-dead-group": queue,
        "penstock-dead-deliveries": "1",
    }


def test_a_job_that_is_delivered_too_often_goes_to_the_topic_that_the_queue_names(
    http: httpx.Client, broker: Broker, create: Create, unique: Unique
) -> None:
    grave = unique("grave")
    queue = create(delivery_limit=2, dead_letter_topic=grave)
    publish(http, queue, "poison", "fine")
    with working(broker.http_url, queue, queue, credit=1) as worker:
        for _ in range(2):
            [job] = worker.jobs(1)
            assert job["value"] == "poison"
            worker.settle([job], "retry")
        assert values(worker.jobs(1)) == ["fine"]
    [letter] = dead_letters(http, grave, 1)
    headers = {row["name"]: row["value"] for row in letter["headers"]}
    assert (letter["value"], headers["penstock-dead-reason"]) == ("poison", "delivery_limit")
    assert headers["penstock-dead-deliveries"] == "2"


def dead_letters(http: httpx.Client, topic: str, count: int) -> list[Any]:
    """The records of a topic, once there are so many: the first dead letter creates it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        page = http.get(f"/v1/topics/{topic}/partitions/0/records", params={"wait_ms": 1000})
        if page.status_code == 200 and len(page.json()["records"]) >= count:
            found: list[Any] = page.json()["records"]
            return found
    raise AssertionError("waited in vain")


# --- credit


def test_no_more_than_the_credit_is_handed_out_at_once(
    http: httpx.Client, broker: Broker, create: Create
) -> None:
    queue = create(partitions=2)
    publish(http, queue, *range(20))
    with working(broker.http_url, queue, queue, credit=5) as worker:
        worker.hear("working")
        first = worker.jobs(5)
        assert len(first) == 5
        worker.say(type="ping")
        assert worker.hear()["type"] == "pong"
        worker.settle(first[:2])
        assert len(worker.jobs(2)) == 2
        worker.say(type="credit", credit=8)
        assert len(worker.jobs(3)) == 3
        worker.say(type="ping")
        assert worker.hear()["type"] == "pong"


def test_a_settlement_frees_its_credit_once(http: httpx.Client, broker: Broker, create: Create) -> None:
    queue = create()
    publish(http, queue, *range(30))
    with working(broker.http_url, queue, queue, credit=5) as worker:
        worker.jobs(5)
        for round_number in range(10):
            at = 2 * round_number
            worker.say(type="settle", number=round_number, topic=queue, partition=0, accept=[[at, at + 1]])
            worker.say(
                type="credit", credit=5
            )  # makes the node recount, perhaps while the settlement is being saved
            worker.hear("settled")
            assert len(worker.jobs(2)) == 2
            worker.say(type="ping")
            worker.hear("pong")
            assert worker.unheard("jobs") == 0


def test_credit_of_expired_leases_is_given_back_to_a_live_worker(
    http: httpx.Client, broker: Broker, create: Create
) -> None:
    queue = create(lease_ms=BRIEF_MS)
    publish(http, queue, "only")
    with working(broker.http_url, queue, queue, credit=1) as worker:
        worker.jobs(1)
        worker.say(type="ping")
        [again] = worker.jobs(1)
        assert again["deliveries"] == 2


def test_a_stalled_worker_is_not_sent_the_same_jobs_repeatedly(
    http: httpx.Client, broker: Broker, create: Create
) -> None:
    queue = create(lease_ms=BRIEF_MS)
    publish(http, queue, "only")
    with working(broker.http_url, queue, queue, credit=1) as worker:
        worker.jobs(1)
        began = since = time.monotonic()
        while (
            now := time.monotonic()
        ) < since + 4 * RECOUNT_SECONDS:  # it is available, and no worker gets it
            assert now < began + PATIENCE_SECONDS
            if http.get(f"/v1/queues/{queue}").json()["partitions"][0]["available"] == 0:
                since = now
        [job] = http.post(f"/v1/queues/{queue}/receive", json={"wait_ms": 30_000}).json()["jobs"]
        assert job["deliveries"] == 2
        assert worker.unheard("jobs") == 0


def test_new_jobs_are_spread_over_waiting_workers(http: httpx.Client, broker: Broker, create: Create) -> None:
    queue = create()
    with (
        working(broker.http_url, queue, queue, credit=100) as one,
        working(broker.http_url, queue, queue, credit=100) as other,
    ):
        one.hear("working")
        other.hear("working")
        handed: Counter[str] = Counter()
        for number in range(10):
            publish(http, queue, number, number)
            handed["one"] += len(one.jobs(1))
            handed["other"] += len(other.jobs(1))
        assert min(handed.values()) >= 5


# --- what jobs look like


def test_stored_batches_are_sent_with_the_ranges_of_the_worker(
    http: httpx.Client, broker: Broker, create: Create
) -> None:
    queue = create()
    publish(http, queue, *range(10))
    with working(broker.http_url, queue, queue, credit=4, encoding="batch") as worker:
        frame = worker.hear("jobs")
        assert (frame["topic"], frame["partition"], frame["acquired"]) == (queue, 0, [[0, 3, 1]])
        assert opened(frame) == {0: 0, 1: 1, 2: 2, 3: 3}
        worker.say(type="settle", number=1, topic=queue, partition=0, accept=[[0, 3]])
        assert worker.hear("settled") == {"type": "settled", "number": 1}
        assert opened(worker.hear("jobs")) == {4: 4, 5: 5, 6: 6, 7: 7}


def test_only_the_workers_own_records_of_a_large_batch_are_sent(
    http: httpx.Client, broker: Broker, create: Create
) -> None:
    queue = create()
    publish(http, queue, *({"number": number, "filler": "x" * 1000} for number in range(500)))
    with working(broker.http_url, queue, queue, credit=3, encoding="batch") as worker:
        for first in (0, 3):
            frame = worker.hear("jobs")
            assert frame["acquired"] == [[first, first + 2, 1]]
            assert [row["number"] for row in opened(frame).values()] == [first, first + 1, first + 2]
            assert len(frame["records"]) < 5_000
            worker.say(type="settle", number=1, topic=queue, partition=0, accept=[[first, first + 2]])


def test_a_settlement_of_very_many_ranges_is_one_settlement(
    http: httpx.Client, broker: Broker, create: Create
) -> None:
    queue = create()
    publish(http, queue, *range(1000))
    with working(broker.http_url, queue, queue, credit=1000) as worker:
        jobs = worker.jobs(1000)
        odd = [[job["offset"]] * 2 for job in jobs if job["offset"] % 2]
        worker.say(type="settle", number=5, topic=queue, partition=0, accept=odd)
        assert worker.hear("settled") == {"type": "settled", "number": 5}
        worker.say(type="settle", number=6, topic=queue, partition=0, accept=[[at, at] for at in range(1000)])
        answer = worker.hear("settled")
        assert answer["error"]["refused"] == odd
    assert undone(http, queue) == 0


def test_each_encoding_represents_values_in_its_own_way(
    http: httpx.Client, broker: Broker, create: Create
) -> None:
    queue = create()
    publish(http, queue, {"a": 1})
    for encoding, value in (("json", {"a": 1}), ("text", '{"a":1}'), ("base64", "eyJhIjoxfQ==")):
        with working(broker.http_url, queue, queue, encoding=encoding) as worker:
            [job] = worker.jobs(1)
            assert (job["value"], job["value_encoding"]) == (value, encoding)
            assert (job["topic"], job["partition"], job["offset"]) == (queue, 0, 0)


def test_a_settlement_with_ranges_that_are_not_held_settles_the_others(
    http: httpx.Client, broker: Broker, create: Create
) -> None:
    queue = create()
    publish(http, queue, "a", "b")
    with working(broker.http_url, queue, queue, credit=1) as worker:
        worker.jobs(1)
        worker.say(type="settle", number=9, topic=queue, partition=0, accept=[[0, 0], [1, 1]])
        answer = worker.hear("settled")
        assert (answer["number"], answer["error"]["code"]) == (9, "lease_over")
        assert answer["error"]["refused"] == [[1, 1]]
        assert values(worker.jobs(1)) == ["b"]
    assert undone(http, queue) == 1


def test_a_job_that_is_not_due_is_not_handed_out_before(
    http: httpx.Client, broker: Broker, create: Create
) -> None:
    queue = create()
    publish(http, queue, "tomorrow", delay_ms=24 * 3_600_000)
    began = time.monotonic()
    publish(http, queue, "due", delay_ms=1_000)
    publish(http, queue, "now")
    with working(broker.http_url, queue, queue) as worker:
        assert sorted(values(worker.jobs(2))) == ["due", "now"]
        assert time.monotonic() - began >= 1


# --- one at a time


def test_a_second_consumer_of_an_exclusive_queue_is_refused_with_the_name_of_the_first(
    http: httpx.Client, broker: Broker, create: Create
) -> None:
    queue = create(point_to_point=True)
    with working(broker.http_url, queue, queue, name="till-1") as first:
        first.hear("working")
        with working(broker.http_url, queue, queue) as second:
            said, code = second.ending()
        assert (said["code"], code) == ("held", 4409)
        assert "till-1 at 127.0.0.1" in said["message"]
        [row] = http.get(f"/v1/queues/{queue}").json()["partitions"]
        assert "till-1" in row["holder"]
        receive = {"wait_ms": 0, "topics": [queue]}
        refused = http.post(f"/v1/queues/{queue}/receive", json=receive)
        assert refused.status_code == 409
        assert "till-1" in refused.json()["error"]["message"]


def test_a_worker_is_told_whether_its_queue_is_for_one_consumer_also_when_that_changes(
    http: httpx.Client, broker: Broker, create: Create
) -> None:
    queue = create(point_to_point=True)
    with working(broker.http_url, queue, queue) as worker:
        assert worker.hear("working")["exclusive"] is True
        http.patch(f"/v1/queues/{queue}", json={"exclusive": False}).raise_for_status()
        while worker.working["exclusive"]:
            worker.hear("working")


def test_a_standby_takes_over_all_unfinished_jobs_in_order(
    http: httpx.Client, broker: Broker, create: Create
) -> None:
    queue = create(point_to_point=True, lease_ms=3_600_000)
    publish(http, queue, 1, 2, 3, 4)
    with (
        working(broker.http_url, queue, queue, credit=2) as first,
        working(broker.http_url, queue, queue, standby=True, name="till-2") as second,
    ):
        done, undone_job = first.jobs(2)
        while not second.working.get("standby"):
            second.hear("working")
        assert second.working["partitions"] == []
        assert first.working["consumer"] in second.working["standby"][0]["holder"]
        first.settle([done])
        assert undone_job["value"] == 2
        first.socket.close()
        done_by_second: list[dict[str, Any]] = []
        while len(done_by_second) < 3:  # redelivered jobs come before all others
            jobs = second.jobs(1)
            second.settle(jobs)
            done_by_second += jobs
        assert values(done_by_second) == [2, 3, 4]
        assert second.working["standby"] == []
        assert second.working["partitions"] == [{"topic": queue, "partition": 0}]


# --- mistakes


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ({"type": "settle", "number": 1, "topic": "x", "partition": 0}, "not_working"),
        ({"type": "work", "queue": "q", "topics": []}, "invalid_field"),
        ({"type": "work", "queue": "q", "topics": ["x"], "credits": 3}, "invalid_field"),
        ({"type": "work", "queue": "q", "topics": ["no-such-topic"]}, "unknown_topic"),
        ({"type": "dance"}, "invalid_field"),
    ],
)
def test_an_invalid_first_frame_ends_the_connection_with_a_reason(
    frame: dict[str, Any], code: str, broker: Broker
) -> None:
    with connect(broker.http_url.replace("http", "ws") + "/v1/work") as socket:
        socket.send(json.dumps(frame))
        said = json.loads(socket.recv(PATIENCE_SECONDS))
    assert (said["type"], said["code"]) == ("error", code)


@pytest.mark.parametrize(
    "settle", [{"accept": [[5, 3]]}, {"accept": [[0, 10**9]]}, {"accept": [[-1, 0]]}, {"accept": "all"}]
)
def test_invalid_ranges_end_the_connection(
    settle: dict[str, Any], http: httpx.Client, broker: Broker, create: Create
) -> None:
    queue = create()
    with working(broker.http_url, queue, queue) as worker:
        worker.hear("working")
        worker.say(type="settle", number=1, topic=queue, partition=0, **settle)
        said, code = worker.ending()
    assert said["type"] == "error"
    assert code == 4400


def test_a_plain_request_for_the_work_path_is_answered_with_a_hint(http: httpx.Client) -> None:
    answer = http.get("/v1/work")
    assert answer.status_code == 426
    assert answer.json()["error"]["code"] == "upgrade_required"
