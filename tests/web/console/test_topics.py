"""Topics in the browser: each job is done on the page, and checked with a Kafka client."""

import re
from collections.abc import Callable, Iterator

import httpx
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from playwright.sync_api import expect

from penstock import Broker
from tests.web.console.conftest import OpenPage, TakePicture

Unique = Callable[[str], str]
SECONDS = 60


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient(broker.client_settings())


def config_of(admin: AdminClient, topic: str, name: str) -> str:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    [found] = admin.describe_configs([resource]).values()
    return found.result(SECONDS)[name].value


def test_a_topic_is_created(
    open_page: OpenPage, admin: AdminClient, unique: Unique, take_picture: TakePicture
) -> None:
    name = unique("orders")
    page = open_page("topics")
    page.get_by_role("button", name="Create a topic").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill(name)
    dialog.get_by_label("Partitions").fill("3")
    take_picture(page, "create-topic")
    dialog.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    expect(page.get_by_role("row")).to_have_count(4)
    assert len(admin.list_topics(timeout=SECONDS).topics[name].partitions) == 3


def test_a_refusal_is_shown_at_its_field(open_page: OpenPage, http: httpx.Client, unique: Unique) -> None:
    name = unique("taken")
    http.post("/v1/topics", json={"name": name}).raise_for_status()
    page = open_page("topics")
    page.get_by_role("button", name="Create a topic").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill(name)
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_label("Name")).to_have_attribute("aria-invalid", "true")
    expect(dialog).to_contain_text("exists")


def test_a_name_that_is_too_long_is_refused_in_words(open_page: OpenPage) -> None:
    page = open_page("topics")
    page.get_by_role("button", name="Create a topic").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("x" * 250)
    dialog.get_by_role("button", name="Create").click()
    expect(dialog).to_contain_text("expected at most 249 characters")


def test_a_config_is_changed_with_its_documentation_beside_it(
    open_page: OpenPage, admin: AdminClient, http: httpx.Client, unique: Unique, take_picture: TakePicture
) -> None:
    name = unique("kept")
    http.post("/v1/topics", json={"name": name}).raise_for_status()
    page = open_page(f"topics/{name}?part=configs")
    expect(page.get_by_text("How long a segment is kept")).to_be_visible()
    take_picture(page, "topic-configs")
    page.get_by_role("button", name="Change retention.ms").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("soon")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("textbox")).to_have_attribute("aria-invalid", "true")
    dialog.get_by_role("textbox").fill("3600000")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_text("retention.ms was changed.")).to_be_visible()
    assert config_of(admin, name, "retention.ms") == "3600000"


def test_partitions_are_added(
    open_page: OpenPage, admin: AdminClient, http: httpx.Client, unique: Unique
) -> None:
    name = unique("grows")
    http.post("/v1/topics", json={"name": name, "partitions": 2}).raise_for_status()
    page = open_page(f"topics/{name}")
    page.get_by_role("button", name="Add partitions").click()
    page.get_by_role("dialog").get_by_label("Partitions in all").fill("5")
    page.get_by_role("dialog").get_by_role("button", name="Add").click()
    expect(page.get_by_text(f"{name} has 5 partitions now.")).to_be_visible()
    assert len(admin.list_topics(timeout=SECONDS).topics[name].partitions) == 5


def test_a_topic_is_deleted_when_its_name_was_typed_again(
    open_page: OpenPage, admin: AdminClient, http: httpx.Client, unique: Unique
) -> None:
    name = unique("old")
    http.post("/v1/topics", json={"name": name}).raise_for_status()
    page = open_page(f"topics/{name}")
    page.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Type").fill("something else")
    dialog.get_by_role("button", name="Delete the topic").click()
    expect(dialog).to_contain_text(f"This is not {name}")
    assert name in admin.list_topics(timeout=SECONDS).topics
    dialog.get_by_label("Type").fill(name)
    dialog.get_by_role("button", name="Delete the topic").click()
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()
    assert name not in admin.list_topics(timeout=SECONDS).topics


@pytest.fixture(scope="module")
def crowded() -> Iterator[Broker]:
    with (
        Broker(status_topic="penstock.status") as broker,
        httpx.Client(base_url=broker.http_url, timeout=60) as http,
    ):
        for number in range(1_000):
            http.post("/v1/topics", json={"name": f"topic-{number:04}"}).raise_for_status()
        yield broker


def test_a_thousand_topics_are_sorted_filtered_and_turned_page_by_page(
    crowded: Broker, open_page: OpenPage
) -> None:
    page = open_page("topics", at=crowded)
    rows = page.locator("tbody tr")
    expect(page.get_by_text("1,000 topics")).to_be_visible()
    expect(rows).to_have_count(50)
    expect(page.get_by_role("columnheader", name="Size")).to_be_visible()
    expect(rows.first).to_contain_text("0 B")
    page.get_by_label("Show internal topics").check()
    expect(page.get_by_text("1,001 topics")).to_be_visible()
    expect(page).to_have_url(re.compile("internal=true"))
    page.reload()
    expect(page.get_by_text("1,001 topics")).to_be_visible()
    page.get_by_label("Show internal topics").uncheck()
    expect(page.get_by_text("1,000 topics")).to_be_visible()
    page.get_by_role("button", name="Name").click()
    expect(rows.first).to_contain_text("topic-0999")
    page.get_by_role("button", name="Next").click()
    expect(rows.first).to_contain_text("topic-0949")
    page.get_by_role("searchbox").fill("topic-012")
    expect(rows).to_have_count(10)
    expect(page.get_by_text("10 of 1,000 topics")).to_be_visible()
    rows.first.get_by_role("link", name="topic-0129").click()
    expect(page.get_by_role("heading", name="topic-0129")).to_be_visible()
