"""Queues on three nodes: every call works on every node, and leased jobs survive a leader change."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from penstock.errors import ErrorCode, KafkaError
from penstock.node.queues import Acknowledgement, Consumer, NotLeased, QueueDriver
from penstock.queue.values import AckKind
from penstock.types import ANONYMOUS
from penstock.web.work_frames import Work
from penstock.web.worker import UNANSWERED_MAX, WorkersShare
from penstock.web.worker import Worker as SocketWorker
from tests.web.web_trio import WebTrio
from tests.web.workers import working

Unique = Callable[[str], str]
NODES = (1, 2, 3)


@pytest.fixture(scope="module")
def trio() -> Iterator[WebTrio]:
    with WebTrio() as nodes:
        yield nodes


@pytest.fixture
def callers(trio: WebTrio) -> Iterator[dict[int, httpx.Client]]:
    with trio.caller(1) as one, trio.caller(2) as two, trio.caller(3) as three:
        yield {1: one, 2: two, 3: three}


@pytest.fixture
def queue(trio: WebTrio, callers: dict[int, httpx.Client], unique: Unique) -> str:
    """A queue on a topic of the same name, of which each node leads one partition: node n leads partition n - 1."""
    name = unique("work")
    wish = {"queue": name, "partitions": 3, "replication_factor": 3}
    callers[2].post("/v1/queues", json=wish).raise_for_status()
    for node in NODES:
        trio.hand_over(name, node, node - 1)
    return name


def publish(http: httpx.Client, topic: str, *values: int) -> None:
    """Value n goes to partition n % 3."""
    records = [{"value": value, "partition": value % 3} for value in values]
    answer = http.post(f"/v1/topics/{topic}/records", json={"records": records})
    assert answer.status_code == 200, answer.text


def receive(http: httpx.Client, queue: str, **wish: Any) -> list[dict[str, Any]]:
    answer = http.post(f"/v1/queues/{queue}/receive", json={"wait_ms": 30_000, **wish})
    assert answer.status_code == 200, answer.text
    jobs: list[dict[str, Any]] = answer.json()["jobs"]
    return jobs


def settle(http: httpx.Client, queue: str, **verdicts: Any) -> None:
    answer = http.post(f"/v1/queues/{queue}/settle", json=verdicts)
    assert answer.status_code == 200, answer.text


def undone(http: httpx.Client, queue: str) -> list[int]:
    return [row["undone"] for row in http.get(f"/v1/queues/{queue}").json()["partitions"]]


@pytest.mark.parametrize("node", NODES)
def test_every_node_delivers_settles_and_counts_jobs_of_all_leaders(
    node: int, callers: dict[int, httpx.Client], queue: str
) -> None:
    asked, other = callers[node], callers[node % 3 + 1]
    publish(other, queue, *range(9))
    assert undone(asked, queue) == [3, 3, 3]
    peeked = asked.get(f"/v1/queues/{queue}/peek", params={"max_records": 100}).json()["messages"]
    assert sorted(row["value"] for row in peeked) == list(range(9))
    jobs: list[dict[str, Any]] = []
    while len(jobs) < 9:
        jobs += receive(asked, queue, max=9 - len(jobs))
    assert sorted(job["value"] for job in jobs) == list(range(9))
    settle(other, queue, accept=[job["receipt"] for job in jobs])
    assert undone(asked, queue) == [0, 0, 0]
    names = [row["queue"] for row in asked.get("/v1/queues").json()["queues"]]
    assert queue in names


def test_every_node_lists_the_undone_messages_of_new_leaders_at_once(
    trio: WebTrio, callers: dict[int, httpx.Client], queue: str
) -> None:
    """The new leaders have not loaded the queue, and other nodes may have its stored state."""
    publish(callers[1], queue, *range(12))
    jobs: list[dict[str, Any]] = []
    while len(jobs) < 12:
        jobs += receive(callers[1], queue)
    settle(callers[1], queue, accept=[job["receipt"] for job in jobs if job["value"] >= 3])
    for partition in range(3):
        trio.hand_over(queue, (partition + 1) % 3 + 1, partition)
    for caller in callers.values():
        [row] = [row for row in caller.get("/v1/queues").json()["queues"] if row["queue"] == queue]
        assert (row["undone"], row["leased"]) == (3, 0)


@pytest.mark.parametrize("node", NODES)
def test_every_node_lists_shows_and_sends_back_dead_letters_and_purges(
    trio: WebTrio, node: int, callers: dict[int, httpx.Client], queue: str
) -> None:
    asked = callers[node]
    publish(asked, queue, 0, 1, 2)
    jobs: list[dict[str, Any]] = []
    while len(jobs) < 3:
        jobs += receive(asked, queue)
    settle(asked, queue, reject=[job["receipt"] for job in jobs])

    def dead() -> list[Any]:
        found: list[Any] = asked.get(f"/v1/queues/{queue}/dead-letters").json()["dead_letters"]
        return found

    deadline = time.monotonic() + 60
    while len(dead()) < 3 and time.monotonic() < deadline:
        pass
    letter = dead()[0]
    path = f"/v1/queues/{queue}/dead-letters/{letter['topic']}/{letter['partition']}/{letter['offset']}"
    assert asked.get(path).json() == letter
    done = asked.post(f"/v1/queues/{queue}/dead-letters/send-back", json={"all": True}).json()
    assert (len(done["sent_back"]), done["refused"]) == (3, [])
    assert dead() == []
    assert undone(asked, queue) == [1, 1, 1]
    asked.post(f"/v1/queues/{queue}/purge", json={}).raise_for_status()
    assert undone(asked, queue) == [0, 0, 0]
    assert asked.delete(f"/v1/queues/{queue}").status_code == 204
    assert asked.get(f"/v1/queues/{queue}").status_code == 404


def test_a_receive_that_waits_on_one_node_gets_jobs_of_another_and_no_more_than_requested(
    trio: WebTrio, callers: dict[int, httpx.Client], queue: str
) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(receive, callers[1], queue, max=1, wait_ms=20_000)
        trio.eventually(
            lambda: all(trio.node(node).queues.router.local.receiver.waiting_count for node in NODES)
        )
        publish(callers[2], queue, 0, 1, 2)
        [job] = waiting.result(30)
    trio.eventually(
        lambda: not any(trio.node(node).queues.router.local.receiver.waiting_count for node in NODES)
    )
    rest: list[dict[str, Any]] = []
    while len(rest) < 2:
        rest += receive(callers[3], queue)
    assert sorted([job["value"], *(row["value"] for row in rest)]) == [0, 1, 2]
    assert [row["deliveries"] for row in rest] == [1, 1]


def test_after_a_leader_change_a_job_can_be_settled_only_if_it_is_still_leased(
    trio: WebTrio, callers: dict[int, httpx.Client], queue: str
) -> None:
    publish(callers[1], queue, 0, 3)
    done, held = receive(callers[1], queue, max=2)
    settle(callers[2], queue, accept=[done["receipt"]])
    trio.hand_over(queue, 2, 0)
    late = callers[3].post(f"/v1/queues/{queue}/settle", json={"accept": [held["receipt"]]})
    assert late.status_code == 207  # the next leader knows finished messages, and no leases
    [again] = receive(callers[3], queue)
    assert again["value"] == held["value"]
    settle(callers[1], queue, accept=[again["receipt"]])
    assert undone(callers[2], queue) == [0, 0, 0]


def test_a_worker_gets_the_partitions_of_its_node_and_the_addresses_of_the_others(
    trio: WebTrio, callers: dict[int, httpx.Client], queue: str
) -> None:
    with working(trio.url(1), queue, queue) as worker:
        while (told := worker.hear("working"))["partitions"] != [{"topic": queue, "partition": 0}]:
            assert len(told["partitions"]) < 1, told
        assert [(row["partition"], row["node_id"]) for row in told["elsewhere"]] == [(1, 2), (2, 3)]
        publish(callers[2], queue, 0, 1, 2)
        assert [job["value"] for job in worker.jobs(1)] == [0]
        trio.hand_over(queue, 1, 2)
        [job] = worker.jobs(1)
        assert (job["value"], job["partition"]) == (2, 2)
        [answer] = worker.settle([job]).values()
        assert "error" not in answer
        trio.hand_over(queue, 2, 0)
        while worker.working["partitions"] != [{"topic": queue, "partition": 2}]:
            worker.hear("working")


# --- one driver, called directly


def driver_of(trio: WebTrio, queue: str) -> QueueDriver:
    node = trio.node(1)
    topic = node.metadata.state.topics[queue]
    return trio.run(node.queues.manager.driver(queue, topic.topic_id, node.leader(queue, 0)))


def test_waiting_receives_are_not_woken_while_the_lease_limit_is_reached(
    trio: WebTrio, callers: dict[int, httpx.Client], unique: Unique
) -> None:
    name = unique("work")
    wish = {"queue": name, "partitions": 1, "configs": {"share.partition.max.record.locks": 1}}
    callers[1].post("/v1/queues", json=wish).raise_for_status()
    trio.hand_over(name, 1)
    publish(callers[1], name, 0, 3, 6)
    trio.eventually(lambda: trio.node(1).resources.queue_config(name).max_record_locks == 1)
    driver = driver_of(trio, name)

    def scene() -> tuple[int, bool, bool, bool]:
        first = driver.deliver("a", 10, 1_000_000)
        waiting = Consumer()
        driver.wait(waiting)
        nothing = driver.deliver("b", 10, 1_000_000)
        woken_in_vain = waiting.is_set()
        driver.release("a")
        return len(first.acquired), bool(nothing.acquired), woken_in_vain, waiting.is_set()

    assert trio.call(scene) == (1, False, False, True)


def test_a_settlement_that_is_refused_in_part_is_answered_when_the_rest_is_durable(
    trio: WebTrio, callers: dict[int, httpx.Client], queue: str
) -> None:
    publish(callers[1], queue, 0, 3, 6)
    driver = driver_of(trio, queue)
    accept = bytes([AckKind.ACCEPT])

    async def scene() -> tuple[bool, list[tuple[int, int]], int | None]:
        driver.deliver("a", 2, 1_000_000)
        rows = [Acknowledgement(0, 0, accept), Acknowledgement(2, 2, accept), Acknowledgement(1, 1, accept)]
        outcome = driver.acknowledge("a", rows)
        at_once = outcome.done()
        try:
            await outcome
        except NotLeased as refused:
            return at_once, refused.ranges, driver.core.saved_start_offset
        raise AssertionError("nothing was refused")

    assert trio.run(scene()) == (False, [(2, 2)], 2)


class EverythingRead:
    """The connection of a worker that reads all that it is sent."""

    async def send(self, what: bytes | dict[str, object]) -> None: ...

    async def has_room(self, seconds: float) -> bool:
        return True

    async def wait_for_room(self) -> None: ...


def test_frames_of_a_worker_that_does_not_read_its_responses_are_not_read(trio: WebTrio, queue: str) -> None:
    share = WorkersShare()

    async def scene() -> tuple[bool, bool]:
        worker = SocketWorker(trio.node(1), Work(queue=queue, topics=[queue]), ANONYMOUS, "", share)
        assert share.workers == 1
        for _ in range(UNANSWERED_MAX):
            await worker.pong()
        one_more = asyncio.ensure_future(worker.pong())
        await asyncio.sleep(0)
        before = one_more.done()
        taken = asyncio.ensure_future(worker.run(EverythingRead()))
        await one_more
        taken.cancel()
        worker.leave()
        return before, one_more.done()

    assert trio.run(scene()) == (False, True)
    assert share.workers == 0


@pytest.mark.parametrize(
    ("workers", "kilobytes"),
    [(0, 256), (1, 256), (256, 256), (257, 255), (512, 128), (1024, 64), (50_000, 64)],
)
def test_the_more_workers_there_are_the_smaller_are_their_frames(workers: int, kilobytes: int) -> None:
    share = WorkersShare()
    share.workers = workers
    assert share.frame_bytes // 1024 == kilobytes


def test_a_partition_that_cannot_deliver_now_does_not_block_its_node(
    trio: WebTrio, callers: dict[int, httpx.Client], queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example while a leader does not know whether it still leads. All nodes here share one loop: a busy loop
    in one would stop them all."""
    refused: list[int] = []

    def refuse(driver: QueueDriver, *args: Any, **more: Any) -> None:
        refused.append(driver.partition.name.partition)
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not now")

    with working(trio.url(1), queue, queue, credit=5) as worker:
        worker.hear("working")
        with monkeypatch.context() as patch:
            patch.setattr(QueueDriver, "deliver", refuse)
            publish(callers[2], queue, 0)
            assert trio.eventually(lambda: len(refused) >= 3)
            callers[1].get(f"/v1/queues/{queue}").raise_for_status()
        assert [job["value"] for job in worker.jobs(1)] == [0]
