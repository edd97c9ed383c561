"""Every page, in both themes and on a narrow screen: axe-core finds nothing serious, and nothing is cut off."""

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from confluent_kafka import Producer
from playwright.sync_api import Page, expect

from penstock import Broker
from tests.web.console.conftest import OpenPage

PAGES = {
    "overview": "",
    "topics": "topics",
    "topic": "topics/orders",
    "consumers": "topics/orders?part=consumers",
    "configs": "topics/orders?part=configs",
    "messages": "topics/orders/messages",
    "message": "topics/orders/messages?start=oldest&limit=1&show=message",
    "groups": "groups",
    "group": "groups/orders-readers",
    "queues": "queues",
    "queue": "queues/orders-work",
    "peek": "queues/orders-work?part=messages",
    "scheduled": "queues/orders-work?part=scheduled",
    "dead-letters": "queues/orders-work?part=dead",
    "subscriptions": "subscriptions",
    "cliques": "cliques",
    "transactions": "transactions",
    "pipelines": "pipelines?prefix=orders",
    "cluster": "cluster",
    "status log": "cluster/log",
    "users": "users",
    "user": "users/alice",
    "missing": "no/such/page",
}
SERIOUS = ("serious", "critical")


@pytest.fixture(scope="module", autouse=True)
def things_to_show(broker: Broker) -> None:
    httpx.post(f"{broker.http_url}/v1/topics", json={"name": "orders", "partitions": 3})
    httpx.post(f"{broker.http_url}/v1/queues", json={"queue": "orders-work", "topic": "orders"})
    producer = Producer(broker.client_settings())
    producer.produce("orders", b'{"id": 1}', b"customer-1", headers={"source": "shop"})
    producer.flush()
    reset = {"topic": "orders", "to": "earliest"}
    httpx.post(f"{broker.http_url}/v1/groups/orders-readers/offsets", json=reset).raise_for_status()


def loaded(page: Page) -> None:
    expect(page.locator("h1")).to_be_visible()
    expect(page.get_by_text("Loading…")).to_have_count(0)


def serious_problems(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {one['help']} at {[node['target'] for node in one['nodes']]}"
        for one in found
        if one["impact"] in SERIOUS
    ]


@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious_and_a_phone_shows_it_all(open_page: OpenPage, name: str) -> None:
    page = open_page(PAGES[name])
    loaded(page)
    assert serious_problems(page) == []
    page.emulate_media(color_scheme="dark")
    assert serious_problems(page) == []
    page.set_viewport_size({"width": 320, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 320


def test_a_dialog_holds_the_focus_and_gives_it_back(open_page: OpenPage) -> None:
    page = open_page("topics")
    opener = page.get_by_role("button", name="Create a topic").first
    opener.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    assert serious_problems(page) == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(opener).to_be_focused()


def test_the_menu_of_a_narrow_screen_works_by_keyboard(open_page: OpenPage) -> None:
    page = open_page(width=320)
    loaded(page)
    page.get_by_role("button", name="Menu").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Menu")).to_have_attribute("aria-expanded", "true")
    page.get_by_role("link", name="Topics").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()


def test_the_theme_is_kept_in_the_browser(open_page: OpenPage) -> None:
    page = open_page()
    loaded(page)
    button = page.get_by_role("button", name="Theme")
    button.click()
    button.click()
    expect(button).to_have_text("Theme: dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
