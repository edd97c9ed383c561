"""Promises of queues on a cluster of three processes: strict order and every new message, also when leaders die."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from penstock.client import Client
from tests.faults.clients import create_topic, leader_of, leaders
from tests.faults.nodes import Cluster
from tests.faults.queue_workers import open_http, restart
from tests.faults.waiting import PATIENCE_SECONDS, eventually
from tests.web.workers import working

Unique = Callable[[str], str]
LATER_MS = 1500
"""A retry delay that has not ended when the leader is killed a moment later; if it has, the order is the same."""


class Trio(NamedTuple):
    """Three nodes, and a caller of each."""

    cluster: Cluster
    urls: dict[int, str]
    callers: dict[int, httpx.Client]

    def other_than(self, *node_ids: int) -> httpx.Client:
        return next(http for node_id, http in self.callers.items() if node_id not in node_ids)


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    """All tests share it: each ends with all three nodes at work."""
    cluster = Cluster(Path(tmp_path_factory.mktemp("trio")))
    urls = open_http(cluster)
    with cluster, ExitStack() as stack:
        callers = {
            node_id: stack.enter_context(httpx.Client(base_url=url, timeout=PATIENCE_SECONDS))
            for node_id, url in urls.items()
        }
        yield Trio(cluster, urls, callers)
        assert cluster.bugs() == []


def post(http: httpx.Client, path: str, **body: Any) -> Any:
    """Repeated while a leader is being elected."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        answer = http.post(path, json=body)
        if answer.status_code != 503 or time.monotonic() > deadline:
            answer.raise_for_status()
            return answer.json()


def get(http: httpx.Client, path: str) -> Any:
    """Repeated while a leader is being elected."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (answer := http.get(path)).status_code == 503 and time.monotonic() < deadline:
        pass
    answer.raise_for_status()
    return answer.json()


def publish(http: httpx.Client, topic: str, *records: dict[str, Any]) -> None:
    post(http, f"/v1/topics/{topic}/records", records=list(records))


def take(http: httpx.Client, queue: str, most: int = 1) -> list[dict[str, Any]]:
    """Some jobs, at least one."""
    jobs: list[dict[str, Any]] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not jobs and time.monotonic() < deadline:
        jobs = post(http, f"/v1/queues/{queue}/receive", max=most, wait_ms=1000, consumer="till")["jobs"]
    return jobs


def accept(http: httpx.Client, queue: str, jobs: list[dict[str, Any]]) -> list[Any]:
    """The values of jobs that are done now."""
    answer = post(http, f"/v1/queues/{queue}/settle", accept=[job["receipt"] for job in jobs])
    assert answer["refused"] == []
    return [job["value"] for job in jobs]


def work_off(http: httpx.Client, queue: str, count: int, most: int = 1) -> list[Any]:
    """The values of the next jobs, in the order in which they were done."""
    done: list[Any] = []
    while len(done) < count:
        jobs = take(http, queue, most)
        assert jobs, f"{len(done)} of {count} jobs came"
        done += accept(http, queue, jobs)
    return done


def test_a_point_to_point_queue_keeps_its_order_when_a_retried_job_outlives_its_leader(
    trio: Trio, unique: Unique
) -> None:
    queue = unique("till")
    post(trio.callers[1], "/v1/queues", queue=queue, point_to_point=True, replication_factor=3)
    leader = leader_of(trio.cluster, queue)
    http = trio.other_than(leader)
    publish(http, queue, *({"value": number} for number in range(12)))
    assert work_off(http, queue, 3) == [0, 1, 2]
    [failed] = take(http, queue)
    post(http, f"/v1/queues/{queue}/settle", retry=[{"receipt": failed["receipt"], "delay_ms": LATER_MS}])
    trio.cluster[leader].kill()
    [again] = take(http, queue, most=9)
    assert (again["value"], again["deliveries"]) == (3, 2), "nothing overtakes it"
    post(http, f"/v1/queues/{queue}/settle", retry=[{"receipt": again["receipt"], "delay_ms": 0}])
    assert work_off(http, queue, 9, most=2) == list(range(3, 12))
    restart(trio.cluster, leader)


def is_led(trio: Trio, topic: str, asked: int) -> bool:
    known = leaders(trio.cluster, topic, asked)
    return len(known) == 3 and min(known.values()) > 0


def test_a_partition_that_is_added_later_is_read_from_its_beginning_by_a_queue_of_new_messages(
    trio: Trio, unique: Unique
) -> None:
    queue = unique("news")
    post(trio.callers[1], "/v1/topics", name=queue, partitions=1, replication_factor=3)
    publish(trio.callers[1], queue, {"value": "old"})
    post(trio.callers[2], "/v1/queues", queue=queue, start="latest")
    post(trio.callers[3], f"/v1/topics/{queue}/partitions", count=3)
    eventually(
        lambda: all(is_led(trio, queue, asked) for asked in trio.callers), "leaders of three partitions"
    )
    publish(trio.callers[1], queue, *({"value": one, "partition": one} for one in range(3)))
    assert sorted(work_off(trio.callers[3], queue, 3, most=9)) == [0, 1, 2]
    [*_, last] = trio.callers[2].get(f"/v1/queues/{queue}").json()["partitions"]
    assert (last["partition"], last["undone"]) == (2, 0)


def test_a_queue_on_a_topic_in_memory_gets_every_new_message_when_its_leader_died(
    trio: Trio, unique: Unique
) -> None:
    """Such a topic has one copy, and begins at offset 0 again with its node: below what the queue had done."""
    queue = unique("fleeting")
    create_topic(trio.cluster, queue, replicas=1, penstock_storage="memory")
    leader = leader_of(trio.cluster, queue)
    http = trio.other_than(leader)
    post(http, "/v1/queues", queue=queue)
    publish(http, queue, *({"value": number} for number in range(6)))
    assert work_off(http, queue, 4) == [0, 1, 2, 3]
    trio.cluster[leader].kill()
    restart(trio.cluster, leader)
    publish(http, queue, {"value": "new"}, {"value": "newer"})
    assert work_off(http, queue, 2) == ["new", "newer"]


def test_a_queue_is_not_deleted_on_any_node_while_a_worker_is_connected_to_another(
    trio: Trio, unique: Unique
) -> None:
    queue = unique("crew")
    post(trio.callers[1], "/v1/queues", queue=queue, replication_factor=3)
    leader = leader_of(trio.cluster, queue)
    with working(trio.urls[leader], queue, queue, credit=0) as worker:
        worker.hear("working")
        for http in trio.callers.values():
            answer = http.delete(f"/v1/queues/{queue}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "non_empty_group")
    http = trio.other_than(leader)
    eventually(lambda: http.delete(f"/v1/queues/{queue}").status_code == 204, "the worker has gone")
    assert [one.get(f"/v1/queues/{queue}").status_code for one in trio.callers.values()] == [404] * 3


def test_a_message_id_without_a_key_is_stored_once_through_whichever_node_it_comes(
    trio: Trio, unique: Unique
) -> None:
    topic = unique("orders")
    wish = {
        "name": topic,
        "partitions": 6,
        "replication_factor": 3,
        "configs": {"dedup.window.ms": 3_600_000},
    }
    post(trio.callers[1], "/v1/topics", **wish)
    ids = [f"order-{number}" for number in range(8)]
    publish_ids(trio.callers[3], topic, ids[:3])
    places = set()
    for node in trio.cluster.nodes.values():
        with Client(node.bootstrap_servers) as client:
            stored = [client.publish(topic, one, message_id=one) for one in ids]
        places.add(tuple((row.partition, row.offset) for row in stored))
    assert len(places) == 1, "each node told the same"
    publish_ids(trio.callers[2], topic, ids)
    assert stored_in(trio, topic) == sorted(ids)


def publish_ids(http: httpx.Client, topic: str, ids: list[str]) -> None:
    records = [{"value": one, "message_id": one} for one in ids]
    post(http, f"/v1/topics/{topic}/records", records=records, encoding="text")


def stored_in(trio: Trio, topic: str) -> list[str]:
    found: list[str] = []
    for partition in range(6):
        path = f"/v1/topics/{topic}/partitions/{partition}/records?offset=earliest&encoding=text"
        found += [row["value"] for row in get(trio.callers[1], path)["records"]]
    return sorted(found)
