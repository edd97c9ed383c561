"""Subscriptions of three nodes: every node lists, describes and deletes the subscriptions of every coordinator."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from penstock.cluster import OFFSETS_TOPIC, offsets_partition
from tests.web.pushing import create, produce, subscriber
from tests.web.web_trio import WebTrio

Unique = Callable[[str], str]
NODES = (1, 2, 3)


@pytest.fixture(scope="module")
def trio() -> Iterator[WebTrio]:
    """Three nodes with the topic of committed offsets."""
    with WebTrio() as nodes:
        create(nodes.bootstrap_servers, "warm-up")
        with subscriber(nodes.url(1)) as one:  # creates the topic of committed offsets
            one.subscribe("warm-up", "warm-up")
        yield nodes


@pytest.fixture
def topic(trio: WebTrio, unique: Unique) -> str:
    """Three messages in each of three partitions; node n leads partition n - 1, and partition n - 1 of the committed
    offsets, also if a busy machine has let another node lead meanwhile."""
    name = unique("push")
    create(trio.bootstrap_servers, name, partitions=3)
    for node in NODES:
        trio.hand_over(name, node, node - 1)
        produce(trio.bootstrap_servers, name, range(3), partition=node - 1)
    for node in NODES:
        trio.hand_over(OFFSETS_TOPIC, node, node - 1)
    return name


def name_coordinated_by(node: int, unique: Unique) -> str:
    """A name whose subscription that node coordinates."""
    while offsets_partition(name := unique("sub"), 3) != node - 1:
        pass
    return name


def rows(http: httpx.Client) -> dict[str, Any]:
    answer = http.get("/v1/subscriptions").json()
    assert answer["unanswered"] == []
    return {row["subscription"]: row for row in answer["subscriptions"]}


@pytest.mark.parametrize("asked", NODES)
@pytest.mark.parametrize("coordinator", NODES)
def test_every_node_describes_and_deletes_a_subscription_of_any_coordinator(
    trio: WebTrio, topic: str, unique: Unique, asked: int, coordinator: int
) -> None:
    name = name_coordinated_by(coordinator, unique)
    path = f"/v1/subscriptions/{name}"
    with trio.caller(asked) as http, subscriber(trio.url(coordinator)) as one:
        assert one.subscribe(name, topic, read_old=True)["type"] == "subscribed"
        messages = one.take(9)
        one.ack_durably(next(row for row in messages if (row["partition"], row["offset"]) == (2, 0)))
        facts = http.get(path).json()
        assert (facts["coordinator"], facts["attached"], facts["unacked"], facts["lag"]) == (
            coordinator,
            True,
            8,
            8,
        )
        assert [(row["offset"], row["latest_offset"], row["unacked"]) for row in facts["positions"]] == [
            (0, 3, 3),
            (0, 3, 3),
            (1, 3, 2),
        ]
        row = rows(http)[name]
        assert (row["coordinator"], row["attached"], row["lag"]) == (coordinator, True, 8)
        assert http.delete(path).status_code == 409
        assert http.delete(path, params={"force": "true"}).status_code == 204
        assert one.closed() == (1000, "unsubscribed")
        assert http.get(path).status_code == 404
        assert name not in rows(http)


def test_a_subscription_whose_coordinator_moved_is_described_by_the_new_one(
    trio: WebTrio, topic: str, unique: Unique
) -> None:
    name = name_coordinated_by(1, unique)
    with subscriber(trio.url(1)) as one:
        one.subscribe(name, topic, read_old=True)
        one.ack_durably(next(row for row in one.take(9) if (row["partition"], row["offset"]) == (0, 2)))
    try:
        trio.hand_over(OFFSETS_TOPIC, 2, 0)
        with trio.caller(3) as http:
            facts = http.get(f"/v1/subscriptions/{name}").json()
            assert (facts["coordinator"], facts["attached"], facts["lag"]) == (2, False, 6)
            assert http.delete(f"/v1/subscriptions/{name}").status_code == 204
            assert http.get(f"/v1/subscriptions/{name}").status_code == 404
    finally:
        trio.hand_over(OFFSETS_TOPIC, 1, 0)
