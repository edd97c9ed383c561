"""The overview: figures and plots that come by themselves, alarms, and a node that goes away."""

import re
from collections.abc import Callable

import httpx
import pytest
from confluent_kafka import Producer
from playwright.sync_api import expect

from penstock import Broker
from penstock.node.status import samples
from penstock.web.api import overview
from tests.ports import free_ports
from tests.web.console.conftest import OpenPage

PLOTTED = re.compile(r"Messages per second, last .* Now: in [0-9.]+")


@pytest.fixture
def quick_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two samples a second instead of one in five."""
    for module in (samples, overview):
        monkeypatch.setattr(module, "SAMPLE_MS", 500)


@pytest.mark.usefixtures("quick_samples")
def test_figures_and_plots_come_without_a_reload(open_page: OpenPage, unique: Callable[[str], str]) -> None:
    with Broker() as broker:
        producer = Producer(broker.client_settings())
        topic = unique("clicks")
        producer.produce(topic, b"first")
        producer.flush()
        page = open_page(at=broker)
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        expect(page.get_by_text("Nothing needs attention.")).to_be_visible()
        expect(page.get_by_role("cell", name="alive")).to_be_visible()
        expect(page.locator(".tile", has_text="Topics").locator(".value")).to_have_text("1")
        expect(page.locator("line-plot svg").first).to_have_attribute("aria-label", PLOTTED)
        page.set_viewport_size({"width": 3840, "height": 2160})
        edges = "parts => parts.map((part) => part.getBoundingClientRect().right / innerWidth)"
        for part in ("line-plot", ".tile", ".table-frame"):  # they use all of a large screen
            assert max(page.locator(part).evaluate_all(edges)) > 0.98
        assert page.evaluate("getComputedStyle(document.documentElement).fontSize") == "24px"


def test_a_node_that_is_gone_is_told_and_the_page_keeps_what_it_knew(open_page: OpenPage) -> None:
    [port] = free_ports(1)
    with Broker(http=f"127.0.0.1:{port}") as broker:
        page = open_page("topics", at=broker)
        httpx.post(f"{broker.http_url}/v1/topics", json={"name": "kept"}).raise_for_status()
        expect(page.get_by_role("link", name="kept")).to_be_visible()
        broker.close()
        expect(page.locator(".banner")).to_contain_text("does not answer")
        expect(page.get_by_role("link", name="kept")).to_be_visible()
        with Broker(http=f"127.0.0.1:{port}"):
            expect(page.locator(".banner")).not_to_be_visible()
            expect(page.get_by_text("There are no topics yet")).to_be_visible()


@pytest.mark.usefixtures("quick_samples")
def test_queues_that_do_not_move_are_named_and_nothing_is_green_while_the_node_is_gone(
    open_page: OpenPage,
) -> None:
    with Broker() as broker, httpx.Client(base_url=f"{broker.http_url}/v1/") as http:
        for name in ("emails", "idle"):
            http.post("queues", json={"queue": name}).raise_for_status()
        page = open_page(at=broker)
        badge = page.get_by_text("healthy")
        green = badge.evaluate("badge => getComputedStyle(badge).color")
        http.post("topics/emails/records", json={"records": [{"value": 1}]}).raise_for_status()
        expect(page.get_by_role("alert")).to_contain_text("A queue has ready messages and settled none")
        page.get_by_role("alert").get_by_role("link", name="emails").click()
        expect(page.get_by_text("no consumer asks for it")).to_be_visible()
        page.get_by_role("link", name="Queues", exact=True).first.click()
        expect(page.locator("tr", has_text="emails")).to_contain_text("stuck")
        expect(page.locator("tr", has_text="idle").locator(".badge")).to_have_text("idle")
        job = http.post("queues/emails/receive", json={"max": 1}).json()["jobs"][0]
        http.post("queues/emails/settle", json={"accept": [job["receipt"]]}).raise_for_status()
        expect(page.locator("tr", has_text="emails")).to_contain_text("moving")
        page.get_by_role("link", name="Overview").click()
        expect(badge).to_have_css("color", green)
        broker.close()
        expect(page.locator(".banner")).to_contain_text("does not answer")
        expect(badge).not_to_have_css("color", green)


def test_a_page_that_does_not_exist_leads_back_to_its_list(open_page: OpenPage) -> None:
    page = open_page("topics/nothing")
    expect(page.get_by_role("heading", name="nothing")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("There is no topic 'nothing'")
    expect(page.get_by_role("alert")).not_to_contain_text("/v1/")
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)
    expect(page.get_by_label("You are here").get_by_role("link", name="Topics")).to_be_visible()
    page.get_by_role("link", name="Go to Topics").click()
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()


def test_the_menu_of_a_small_screen_closes_with_escape(open_page: OpenPage) -> None:
    page = open_page("topics", width=320)
    page.get_by_role("button", name="Menu").click()
    expect(page.get_by_role("link", name="Queues")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("link", name="Queues")).not_to_be_visible()
    expect(page.get_by_role("button", name="Menu")).to_be_focused()


def test_an_unknown_address_says_so(open_page: OpenPage) -> None:
    page = open_page("no/such/page")
    page.get_by_role("link", name="Go to the overview").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
