"""The cluster in the browser: its picture, a node that leaves and stays, a rebalance, and the status log."""

import random
import re
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from confluent_kafka import Producer
from playwright.sync_api import Locator, Page, expect

from penstock import Broker
from tests.web.console.conftest import OpenPage, TakePicture
from tests.web.web_trio import WebTrio

SECONDS = 60
SETTINGS = {"status_topic": "penstock.status", "default_replication_factor": 2}
"""So that a node can leave."""


class AtNode:
    """A node, as `open_page` takes it."""

    def __init__(self, url: str) -> None:
        self.console_url = f"{url}/console/"


@pytest.fixture(scope="module")
def trio() -> Iterator[WebTrio]:
    cluster = WebTrio(settings=SETTINGS)
    with cluster.caller(1) as http:
        topic = {"name": "orders", "partitions": 6, "replication_factor": 2}
        http.post("/v1/topics", json=topic).raise_for_status()
    yield cluster
    cluster.close()


@pytest.fixture
def node(trio: WebTrio) -> Iterator[httpx.Client]:
    with trio.caller(2) as http:
        yield http


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def is_leaving(http: httpx.Client, node_id: int) -> bool:
    nodes = http.get("/v1/cluster/nodes").raise_for_status().json()["nodes"]
    return any(one["node_id"] == node_id and one["decommissioning"] for one in nodes)


def replicas_on(http: httpx.Client, node_id: int) -> list[str]:
    partitions = http.get("/v1/cluster/partitions").raise_for_status().json()["partitions"]
    return [one["topic"] for one in partitions if node_id in one["replicas"]]


def replicas_of(http: httpx.Client, topic: str) -> list[int]:
    """The end of its first partition."""
    found = http.get("/v1/cluster/partitions", params={"topic": topic}).raise_for_status().json()
    replicas: list[int] = found["partitions"][0]["replicas"]
    return replicas


def open_cluster(open_page: OpenPage, trio: WebTrio, path: str = "cluster") -> Page:
    return open_page(path, at=AtNode(trio.url(1)))


def test_the_picture_shows_racks_nodes_replicas_and_leaders(
    trio: WebTrio, open_page: OpenPage, take_picture: TakePicture
) -> None:
    page = open_cluster(open_page, trio)
    for rack in ("rack-1", "rack-2", "rack-3"):
        expect(page.get_by_role("heading", name=f"Rack {rack}")).to_be_visible()
    page.get_by_label("Topic").select_option("orders")
    expect(page.locator(".node .cell")).to_have_count(12)
    expect(page.locator(".node .cell.leads")).to_have_count(6)
    take_picture(page, "cluster")
    page.reload()
    expect(page.locator(".node .cell")).to_have_count(12)


def box(page: Page, node_id: int) -> Locator:
    return page.locator(".node", has=page.get_by_role("heading", name=f"Node {node_id}", exact=True))


def decommission(page: Page, node_id: int) -> None:
    page.get_by_role("button", name=f"Decommission node {node_id}").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("All of its replicas move to other nodes")
    dialog.get_by_role("button", name="Decommission", exact=True).click()


def test_the_page_says_why_a_node_cannot_leave(
    trio: WebTrio, node: httpx.Client, open_page: OpenPage
) -> None:
    node.post("/v1/topics", json={"name": "threefold", "replication_factor": 3}).raise_for_status()
    page = open_cluster(open_page, trio)
    decommission(page, 3)
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("start another node")
    assert not is_leaving(node, 3)
    node.delete("/v1/topics/threefold").raise_for_status()


def test_a_rebalance_shows_its_plan_first_and_then_does_it(
    trio: WebTrio, node: httpx.Client, open_page: OpenPage, take_picture: TakePicture
) -> None:
    preferred, other = replicas_of(node, "orders")
    trio.hand_over("orders", other)
    page = open_cluster(open_page, trio)
    page.get_by_role("button", name="Rebalance").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("tr", has_text="orders/0")).to_contain_text(f"led by node {preferred}")
    take_picture(page, "rebalance")
    dialog.get_by_role("button", name="Begin").click()
    expect(page.get_by_text("The cluster is balanced.")).to_be_visible()
    assert trio.leader("orders") == preferred


def test_events_of_the_status_log_come_by_themselves_and_are_filtered(
    trio: WebTrio,
    node: httpx.Client,
    open_page: OpenPage,
    take_picture: TakePicture,
    unique: Callable[[str], str],
) -> None:
    page = open_cluster(open_page, trio, "cluster/log")
    expect(page.get_by_role("cell", name="broker.ready").first).to_be_visible()
    name = unique("news")
    node.post("/v1/topics", json={"name": name}).raise_for_status()
    expect(page.locator("tr", has_text="topic.created").filter(has_text=name)).to_be_visible()
    take_picture(page, "status-log")
    page.get_by_label("Kind").select_option("topic")
    expect(page.get_by_role("cell", name="broker.ready")).to_have_count(0)
    page.get_by_role("searchbox").fill(name)
    expect(page.locator("tbody tr")).to_have_count(1)


def write_heavy(trio: WebTrio, node: httpx.Client) -> int:
    """A topic of 8 MB, of which node 3 has a replica. Returns the node that will get it."""
    for number in range(10):  # until the placement suits
        name = f"heavy-{number}"
        topic = {"name": name, "replication_factor": 2}
        node.post("/v1/topics", json=topic).raise_for_status()
        replicas = replicas_of(node, name)
        if 3 in replicas:
            break
        node.delete(f"/v1/topics/{name}").raise_for_status()
    producer = Producer({"bootstrap.servers": trio.bootstrap_servers, "batch.size": 200_000})
    for _ in range(80):
        producer.produce(name, random.randbytes(100_000))
    assert producer.flush(SECONDS) == 0
    [target] = {1, 2, 3} - set(replicas)
    return target


def test_a_node_that_is_decommissioned_loses_its_replicas(
    trio: WebTrio, node: httpx.Client, open_page: OpenPage, take_picture: TakePicture
) -> None:
    """The last test of this cluster: the node leaves."""
    target = write_heavy(trio, node)
    page = open_cluster(open_page, trio)
    with trio.held_back(target, after_bytes=500_000):
        decommission(page, 3)
        expect(page.get_by_text("Node 3 is leaving.")).to_be_visible()
        move = page.locator("tr", has_text="heavy")
        expect(move.get_by_role("progressbar")).to_have_attribute("value", re.compile("^[1-9][0-9]?$"))
        expect(move).to_contain_text(re.compile(r"[1-9]\d? % ?[1-9.]+ MB"))
        expect(box(page, 3)).to_contain_text("leaving")
        take_picture(page, "moves")
    expect(page.get_by_text("No partition is moving.")).to_be_visible()
    until(lambda: not replicas_on(node, 3))
    page.get_by_label("Topic").select_option("orders")
    expect(page.locator(".node .cell")).to_have_count(12)
    expect(box(page, 3).locator(".cell")).to_have_count(0)


def test_one_node_without_a_status_log_says_so(broker: Broker, open_page: OpenPage) -> None:
    page = open_page("cluster", at=broker)
    expect(page.get_by_text("which is the whole cluster")).to_be_visible()
    expect(page.get_by_role("button", name="Decommission")).to_have_count(0)
    page.get_by_role("link", name="Status log").click()
    expect(page.get_by_text("This broker writes no status log")).to_be_visible()
