"""Consumer groups in the browser: members, lag, and offsets that are reset after a look at what will change."""

from collections.abc import Callable, Iterator

import httpx
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient
from playwright.sync_api import expect

from penstock import Broker
from tests.web.console.conftest import OpenPage, TakePicture

Unique = Callable[[str], str]
SECONDS = 60


@pytest.fixture
def billing(broker: Broker, unique: Unique) -> Iterator[tuple[str, Consumer]]:
    """A group that has read 60 of 100 messages, and its member."""
    name = unique("billing")
    httpx.post(f"{broker.http_url}/v1/topics", json={"name": name, "partitions": 2}).raise_for_status()
    producer = Producer(broker.client_settings())
    for number in range(100):
        producer.produce(name, str(number), partition=number % 2)
    producer.flush()
    consumer = Consumer(
        {
            **broker.client_settings(),
            "group.id": name,
            "client.id": "till-7",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([name])
    got = 0
    while got < 60:
        got += len(consumer.consume(60 - got, 1))
    consumer.commit(asynchronous=False)
    yield name, consumer
    consumer.close()


def committed(broker: Broker, group: str) -> dict[int, int]:
    admin = AdminClient(broker.client_settings())
    [found] = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return {one.partition: one.offset for one in found.result(SECONDS).topic_partitions if one.offset >= 0}


def test_members_and_lag_are_shown_and_topic_and_group_lead_to_each_other(
    billing: tuple[str, Consumer], open_page: OpenPage
) -> None:
    name, _ = billing
    page = open_page("groups")
    expect(page.locator("tr", has_text=name)).to_contain_text("40")
    page.get_by_role("link", name=name).click()
    expect(page.get_by_role("cell", name="till-7").first).to_be_visible()
    expect(page.locator(".tile", has_text="Lag").locator(".value")).to_have_text("40")
    page.get_by_role("cell", name=name).get_by_role("link").first.click()
    page.get_by_role("link", name="Consumers").click()
    page.get_by_role("cell", name=name).get_by_role("link").click()
    expect(page.get_by_text("messages that are not committed")).to_be_visible()


def test_a_partition_without_a_committed_offset_is_shown(
    broker: Broker, unique: Unique, open_page: OpenPage
) -> None:
    name = unique("fresh")
    httpx.post(f"{broker.http_url}/v1/topics", json={"name": name, "partitions": 2}).raise_for_status()
    producer = Producer(broker.client_settings())
    for number in range(7):
        producer.produce(name, str(number), partition=0)
    producer.flush()
    settings = {
        "group.id": name,
        "client.id": "till-8",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer({**broker.client_settings(), **settings})
    consumer.subscribe([name])
    while not consumer.consume(1, 1):
        pass
    page = open_page(f"groups/{name}")
    expect(page.locator("tr", has_text="nothing yet")).to_have_count(2)
    cells = page.locator("tr", has_text="nothing yet").first.locator("td")
    expect(cells).to_have_text([name, "0", "nothing yet", "7", "\u2013", "till-8"])
    consumer.commit(asynchronous=False)
    expect(page.locator("tr", has_text="nothing yet")).to_have_count(1)
    consumer.close()


def test_a_group_with_members_shows_what_would_change_and_is_not_reset(
    broker: Broker, billing: tuple[str, Consumer], open_page: OpenPage
) -> None:
    name, _ = billing
    before = committed(broker, name)
    page = open_page(f"groups/{name}")
    page.get_by_role("button", name="Reset offsets").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("stop its consumers first")
    dialog.get_by_role("button", name="Show what will change").click()
    expect(dialog.get_by_role("button", name="Reset the offsets")).to_be_disabled()
    assert committed(broker, name) == before


def test_offsets_are_reset_after_a_look_at_what_will_change(
    broker: Broker, billing: tuple[str, Consumer], open_page: OpenPage, take_picture: TakePicture
) -> None:
    name, consumer = billing
    consumer.close()
    before = committed(broker, name)
    page = open_page(f"groups/{name}")
    expect(page.get_by_text("The group has no members")).to_be_visible()
    page.get_by_role("button", name="Reset offsets").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Show what will change").click()
    expect(dialog).to_contain_text(f"{before[0]} read again")
    take_picture(page, "reset")
    assert committed(broker, name) == before
    dialog.get_by_role("button", name="Reset the offsets").click()
    expect(page.get_by_text(f"The offsets of {name} were reset.")).to_be_visible()
    assert set(committed(broker, name).values()) == {0}
    expect(page.locator(".tile", has_text="Lag").locator(".value")).to_have_text("100")


def test_a_preview_goes_when_the_form_changes_and_a_choice_needs_its_field(
    broker: Broker, billing: tuple[str, Consumer], open_page: OpenPage
) -> None:
    name, consumer = billing
    consumer.close()
    before = committed(broker, name)
    page = open_page(f"groups/{name}")
    page.get_by_role("button", name="Reset offsets").click()
    dialog = page.get_by_role("dialog")
    look, go = (
        dialog.get_by_role("button", name=label) for label in ("Show what will change", "Reset the offsets")
    )
    look.click()
    expect(go).to_be_enabled()
    dialog.locator("select[name=to]").select_option("timestamp")
    expect(go).to_have_count(0)
    look.click()
    expect(dialog).to_contain_text("Give the time to reset to.")
    dialog.locator("select[name=to]").select_option("offset")
    look.click()
    expect(dialog).to_contain_text("Give the offset to reset to.")
    expect(go).to_have_count(0)
    assert committed(broker, name) == before
    dialog.locator("input[name=offset]").fill("7")
    look.click()
    go.click()
    expect(page.get_by_text(f"The offsets of {name} were reset.")).to_be_visible()
    assert set(committed(broker, name).values()) == {7}


def test_groups_whose_names_are_dots_have_pages(
    billing: tuple[str, Consumer], open_page: OpenPage, http: httpx.Client
) -> None:
    topic, _ = billing
    for segment in ("~.", "~.."):
        http.post(f"/v1/groups/{segment}/offsets", json={"topic": topic, "to": "latest"}).raise_for_status()
    page = open_page("groups")
    page.get_by_role("link", name="..", exact=True).click()
    expect(page.get_by_role("heading", name="..", exact=True)).to_be_visible()
    expect(page.locator(".tile", has_text="Lag").locator(".value")).to_have_text("0")
    page.reload()
    expect(page.get_by_role("heading", name="..", exact=True)).to_be_visible()
    page.get_by_role("link", name=topic).first.click()
    page.get_by_role("link", name="Consumers").click()
    page.get_by_role("cell", name=".", exact=True).get_by_role("link").click()
    expect(page.get_by_role("heading", name=".", exact=True)).to_be_visible()
    for segment in ("~.", "~.."):
        http.delete(f"/v1/groups/{segment}").raise_for_status()


def test_a_group_is_deleted(broker: Broker, billing: tuple[str, Consumer], open_page: OpenPage) -> None:
    name, consumer = billing
    consumer.close()
    page = open_page(f"groups/{name}")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_label("Type").fill(name)
    page.get_by_role("dialog").get_by_role("button", name="Delete the group").click()
    expect(page.get_by_role("heading", name="Groups")).to_be_visible()
    assert committed(broker, name) == {}
