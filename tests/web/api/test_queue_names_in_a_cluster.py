"""On three nodes the coordinator of a queue's group knows its name, whichever node created the queue."""

from collections.abc import Callable, Iterator

import httpx
import pytest

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
def topic(trio: WebTrio, callers: dict[int, httpx.Client], unique: Unique) -> str:
    """A topic of which each node leads one partition: node n leads partition n - 1."""
    name = unique("mail")
    wish = {"name": name, "partitions": 3, "replication_factor": 3}
    callers[1].post("/v1/topics", json=wish).raise_for_status()
    for node in NODES:
        trio.hand_over(name, node, node - 1)
    return name


def listed(http: httpx.Client, name: str) -> list[tuple[str, str]]:
    answer = http.get("/v1/groups").json()
    assert answer["unanswered"] == []
    return [(row["type"], row["state"]) for row in answer["groups"] if row["group"] == name]


@pytest.mark.parametrize("node", NODES)
def test_a_queue_that_is_created_on_any_node_is_listed_once(
    node: int, callers: dict[int, httpx.Client], topic: str, unique: Unique
) -> None:
    name = unique("work")
    callers[node].post("/v1/queues", json={"queue": name, "topic": topic}).raise_for_status()
    assert [listed(each, name) for each in callers.values()] == [[("share", "Empty")]] * 3
    assert callers[node % 3 + 1].delete(f"/v1/queues/{name}").status_code == 204
    assert listed(callers[node], name) == []


def test_a_queue_that_is_created_again_is_listed_again(
    trio: WebTrio, callers: dict[int, httpx.Client], unique: Unique
) -> None:
    """On a node that leads none of its partitions, and so does not know of its deletion."""
    topic, name = unique("mail"), unique("work")
    wish = {"name": topic, "partitions": 1, "replication_factor": 3}
    callers[1].post("/v1/topics", json=wish).raise_for_status()
    trio.hand_over(topic, 2)
    for _ in range(2):
        callers[1].post("/v1/queues", json={"queue": name, "topic": topic}).raise_for_status()
        assert listed(callers[1], name) == [("share", "Empty")]
        assert callers[3].delete(f"/v1/queues/{name}").status_code == 204
        assert listed(callers[1], name) == []


@pytest.mark.parametrize("node", NODES)
def test_a_queue_that_begins_with_a_worker_of_any_node_is_listed_once(
    node: int, trio: WebTrio, callers: dict[int, httpx.Client], topic: str, unique: Unique
) -> None:
    name = unique("work")
    with working(trio.url(node), name, topic) as worker:
        while worker.working.get("partitions") != [{"topic": topic, "partition": node - 1}]:
            worker.hear("working")
        assert listed(callers[node], name) == [("share", "Empty")]


def test_a_consumer_groups_name_is_refused_on_every_node(
    trio: WebTrio, callers: dict[int, httpx.Client], topic: str, unique: Unique
) -> None:
    group = unique("readers")
    reset = callers[1].post(f"/v1/groups/{group}/offsets", json={"topic": topic, "to": "earliest"})
    assert reset.status_code == 200, reset.text
    for node, http in callers.items():
        assert http.post("/v1/queues", json={"queue": group, "topic": topic}).status_code == 409
        assert http.post(f"/v1/queues/{group}/receive", json={"topics": [topic]}).status_code == 409
        with working(trio.url(node), group, topic) as worker:
            said, _ = worker.ending()
        assert "consumer group" in said["message"]
        assert http.get(f"/v1/queues/{group}").status_code == 404
