"""Three nodes as processes, of which one is killed while pages are open: one that another node serves, and the one that
serves the page itself."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Consumer
from playwright.sync_api import Locator, Page, expect

from tests.faults.nodes import Cluster
from tests.ports import free_port
from tests.web.console.conftest import OpenPage, TakePicture

TOPIC = "payments"
PARTITIONS = 6


class WebCluster(Cluster):
    """Three nodes, each with an HTTP port."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, flags=("--set", "status_topic="))
        self.http_ports = {node_id: free_port() for node_id in self.nodes}
        for node_id, node in self.nodes.items():
            node.flags += ("--http", f"127.0.0.1:{self.http_ports[node_id]}", "--rack", f"rack-{node_id}")

    def url(self, node_id: int) -> str:
        return f"http://127.0.0.1:{self.http_ports[node_id]}"

    def restart(self, node_id: int) -> None:
        if not self[node_id].is_running:
            self[node_id].start()
            self[node_id].wait_ready()


class At:
    """A node, as `open_page` takes it."""

    def __init__(self, url: str) -> None:
        self.console_url = f"{url}/console/"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebCluster]:
    with WebCluster(tmp_path_factory.mktemp("three")) as cluster:
        topic = {"name": TOPIC, "partitions": PARTITIONS, "replication_factor": 3}
        httpx.post(f"{cluster.url(1)}/v1/topics", json=topic, timeout=60).raise_for_status()
        yield cluster


@pytest.fixture
def cluster(three: WebCluster) -> Iterator[WebCluster]:
    """All nodes are alive before a test and after it."""
    yield three
    for node_id in three.nodes:
        three.restart(node_id)


def box_of(page: Page, node_id: int) -> Locator:
    return page.locator(".node", has=page.get_by_role("heading", name=f"Node {node_id}", exact=True))


def publish(page: Page, value: str) -> None:
    page.get_by_role("button", name="Publish").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Value").fill(value)
    dialog.get_by_role("button", name="Publish").click()
    expect(page.get_by_text(re.compile("Stored in partition"))).to_be_visible()


def consumed(cluster: Cluster) -> object:
    """The first message, by a client that asks the cluster."""
    settings = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": "check",
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(settings)
    consumer.subscribe([TOPIC])
    message = None
    while message is None or message.error():
        message = consumer.poll(1)
    consumer.close()
    return json.loads(message.value() or b"")


def test_the_page_shows_the_dead_node_and_works_with_the_others(
    cluster: WebCluster, open_page: OpenPage, take_picture: TakePicture
) -> None:
    overview = open_page(at=At(cluster.url(2)))
    expect(overview.get_by_text("Nothing needs attention.")).to_be_visible()
    page = open_page(f"cluster?topic={TOPIC}", at=At(cluster.url(1)))
    expect(page.locator(".node .cell.leads")).to_have_count(PARTITIONS)
    expect(box_of(page, 3).locator(".cell.leads")).not_to_have_count(0)

    cluster[3].kill()
    expect(box_of(page, 3)).to_contain_text("dead")
    expect(box_of(page, 3).locator(".cell.offline")).to_have_count(PARTITIONS)
    for node_id in (1, 2):
        expect(box_of(page, node_id).locator(".cell.offline")).to_have_count(0)
    expect(page.locator(".node .cell.leads")).to_have_count(PARTITIONS)  # on the other two
    expect(page.get_by_role("alert")).to_contain_text("node 3")
    take_picture(page, "dead-node")
    expect(overview.locator(".tile", has_text="Nodes").locator(".value")).to_have_text("2 of 3")
    expect(overview.get_by_role("alert")).to_contain_text("node 3")

    messages = open_page(f"topics/{TOPIC}/messages", at=At(cluster.url(2)))
    publish(messages, '{"paid": 7}')
    expect(messages.get_by_role("cell", name='{"paid": 7}')).to_be_visible()
    assert consumed(cluster) == {"paid": 7}

    cluster.restart(3)
    expect(box_of(page, 3)).to_contain_text("alive")
    expect(page.locator(".node .cell.offline")).to_have_count(0)
    expect(overview.get_by_text("Nothing needs attention.")).to_be_visible()


def test_pages_of_a_node_that_is_killed_say_so_and_go_on_when_it_is_back(
    cluster: WebCluster, open_page: OpenPage, take_picture: TakePicture
) -> None:
    node, url = cluster[2], cluster.url(2)
    host = url.removeprefix("http://")
    page = open_page("topics", at=At(url))
    expect(page.get_by_role("link", name=TOPIC)).to_be_visible()
    tail = open_page(f"topics/{TOPIC}/messages?start=tail", at=At(url))
    expect(tail.get_by_text("0 messages so far")).to_be_visible()
    page.wait_for_load_state("networkidle")  # the page has what it needs

    node.kill()
    expect(page.locator(".banner")).to_contain_text(f"The node at {host} does not answer.")
    expect(page.get_by_role("link", name=TOPIC)).to_be_visible()  # what it knew
    expect(tail.locator(".banner")).to_contain_text(f"The node at {host} does not answer")
    expect(tail.get_by_text("The connection is lost. The page opens it again.")).to_be_visible()
    meanwhile = {"records": [{"value": "sent while the node was gone"}]}
    sent = httpx.post(f"{cluster.url(1)}/v1/topics/{TOPIC}/records", json=meanwhile, timeout=60)
    assert sent.raise_for_status().json()["records"][0].get("error") is None
    take_picture(page, "node-gone")

    # A page that was not open before says so, too; another node serves the same address.
    page.get_by_role("link", name="Queues", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("The node does not answer")
    other = page.locator("main").get_by_role("link", name="node 1")
    assert other.get_attribute("href") == f"{cluster.url(1)}/console/queues"
    there = open_page("queues", at=At(cluster.url(1)))
    expect(there.get_by_role("heading", name="Queues")).to_be_visible()

    cluster.restart(2)
    expect(page.get_by_role("heading", name="Queues", exact=True)).to_be_visible()  # without a click
    expect(page.locator(".banner")).not_to_be_visible()
    expect(tail.get_by_text("sent while the node was gone")).to_be_visible()  # without a click, either
    expect(tail.get_by_text("1 message so far")).to_be_visible()
    expect(tail.locator(".banner")).not_to_be_visible()


def test_a_page_whose_scripts_could_not_be_loaded_recovers(cluster: WebCluster, open_page: OpenPage) -> None:
    """The node dies before the page has the code of other pages."""
    page = open_page("topics", at=At(cluster.url(2)))
    expect(page.get_by_role("link", name=TOPIC)).to_be_visible()
    page.context.route(re.compile("pages/groups.js"), lambda route: route.abort())
    page.reload()
    expect(page.get_by_role("link", name=TOPIC)).to_be_visible()
    cluster[2].kill()
    page.get_by_role("link", name="Groups", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("does not answer")
    page.context.unroute_all()
    cluster.restart(2)
    expect(page.get_by_role("heading", name="Groups", exact=True)).to_be_visible()
