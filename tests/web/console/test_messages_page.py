"""Messages in the browser: found, filtered, tailed, opened, shared, downloaded and published; and messages that are
scripts, which do nothing."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from playwright.sync_api import Page, Route, expect

from penstock import Broker
from tests.web.console.conftest import OpenPage, TakePicture

Unique = Callable[[str], str]
SECONDS = 60
ATTACK = '<img src=x onerror="window.attacked=1"><script>window.attacked=1</script>'


@pytest.fixture
def orders(broker: Broker, unique: Unique) -> str:
    """Two partitions with 300 orders."""
    name = unique("orders")
    httpx.post(f"{broker.http_url}/v1/topics", json={"name": name, "partitions": 2}).raise_for_status()
    producer = Producer(broker.client_settings())
    for number in range(300):
        order = {"id": number, "customer": {"city": "Ulm" if number % 3 else "Graz"}, "total": number / 4}
        headers = {"source": "shop" if number % 2 else "phone"}
        producer.produce(
            name, json.dumps(order), f"customer-{number % 10}", partition=number % 2, headers=headers
        )
    producer.flush()
    return name


def consumed(broker: Broker, topic: str, count: int) -> list:
    consumer = Consumer(
        {**broker.client_settings(), "group.id": f"check-{topic}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: list = []
    while len(found) < count:
        found += [one for one in consumer.consume(count, 1) if one.error() is None]
    consumer.close()
    return found


def rows(page: Page):
    return page.locator("tbody tr")


def ask(page: Page, **fields: str) -> None:
    """Fills the form, and shows what it asks for."""
    expect(page.locator("details.filters")).to_have_count(1)
    if page.locator("details.filters:not([open])").count():
        page.locator("details.filters summary").click()
    for label, value in fields.items():
        box = page.get_by_label(label.replace("_", " "), exact=True)
        if label in ("Start", "Partition"):
            box.select_option(label=value)
        else:
            box.fill(value)
    page.get_by_role("button", name="Show", exact=True).click()


def test_the_newest_messages_are_shown_and_one_is_opened(
    orders: str, open_page: OpenPage, take_picture: TakePicture
) -> None:
    page = open_page(f"topics/{orders}/messages")
    expect(rows(page)).to_have_count(50)
    expect(page.get_by_text("100 messages, 300 of 300 scanned. It ended at 100 messages")).to_be_visible()
    page.get_by_label("Columns from JSON").fill("id, customer.city")
    page.get_by_label("Columns from JSON").press("Enter")
    expect(page.get_by_role("cell", name="Graz").first).to_be_visible()
    take_picture(page, "messages")
    page.get_by_role("button", name="Open the message at offset 149 of partition 1").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Value")).to_contain_text('"city": "Ulm"')
    expect(dialog).to_contain_text("source")
    take_picture(page, "message")
    dialog.get_by_role("button", name="Hex").click()
    expect(dialog.get_by_label("Value")).to_contain_text("7b 22 69 64")


INDENT = "async text => (await import(new URL('static/lib/payload.js', document.baseURI))).indented(text)"


def test_json_is_indented_unless_it_is_too_deep_or_too_long(open_page: OpenPage) -> None:
    page = open_page()
    orders = [
        {"id": number, "tags": [], "city": {}, "note": 'a "b" \\ {[,:]}', "of": [1.5, None]}
        for number in range(5000)
    ]
    assert page.evaluate(INDENT, json.dumps(orders)) == json.dumps(orders, indent=2)
    deep = "[" * 3000 + "]" * 3000
    assert page.evaluate(INDENT, deep) == deep
    wide = "[" * 90 + ",".join(["1"] * 30_000) + "]" * 90  # it would be more than 5 MB of spaces
    assert page.evaluate(INDENT, wide) == wide


def test_filters_select_and_are_in_the_address(orders: str, open_page: OpenPage) -> None:
    page = open_page(f"topics/{orders}/messages")
    ask(page, JSON_field="customer.city", Field_is="Graz", Key_contains="customer-3", At_most="500")
    expect(page.get_by_text("10 messages, 300 of 300 scanned: all of them")).to_be_visible()
    again = open_page(page.url.partition("/console/")[2])
    expect(again.get_by_text("10 messages, 300 of 300 scanned")).to_be_visible()
    ask(again, Header="source", Header_contains="phone")
    expect(again.get_by_text("0 messages, 300 of 300 scanned")).to_be_visible()
    expect(again.get_by_text("No messages to show")).to_be_visible()


def test_from_an_offset_of_a_partition(orders: str, open_page: OpenPage) -> None:
    page = open_page(f"topics/{orders}/messages")
    ask(page, Start="From an offset", Partition="1")
    page.get_by_label("Offset", exact=True).fill("147")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(rows(page)).to_have_count(3)
    expect(rows(page).first).to_contain_text("147")


def test_a_link_opens_its_message(orders: str, open_page: OpenPage) -> None:
    page = open_page(f"topics/{orders}/messages?start=offset&offset=5&partition=0&limit=1&show=message")
    expect(page.get_by_role("dialog").get_by_label("Value")).to_contain_text('"id": 10')


def test_a_link_to_a_message_that_is_gone_names_the_next_one(
    broker: Broker, orders: str, open_page: OpenPage
) -> None:
    admin = AdminClient(broker.client_settings())
    [deleted] = admin.delete_records([TopicPartition(orders, 0, 10)]).values()
    deleted.result(SECONDS)
    page = open_page(f"topics/{orders}/messages?start=offset&offset=5&partition=0&limit=1&show=message")
    expect(page.get_by_text("The message at offset 5 of partition 0 is gone")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("link", name="offset 10", exact=True).click()
    expect(page.get_by_role("dialog").get_by_label("Value")).to_contain_text('"id": 20')
    page.goto(
        f"{broker.console_url}topics/{orders}/messages?start=offset&offset=900&partition=0&show=message"
    )
    expect(page.get_by_text("or it is not written yet")).to_be_visible()


def test_a_link_names_a_partition_that_does_not_exist(orders: str, open_page: OpenPage) -> None:
    page = open_page(f"topics/{orders}/messages?start=offset&offset=5&partition=2&limit=1&show=message")
    expect(page.get_by_text(f"Partition 2 does not exist: {orders} has 2 partitions")).to_be_visible()


def test_partitions_from_1000_on_are_asked_for_by_number(orders: str, open_page: OpenPage) -> None:
    page = open_page()

    def answer_with_many_partitions(route: Route) -> None:
        found = route.fetch().json()
        route.fulfill(json={**found, "partitions": found["partitions"] * 600})

    page.route(f"**/v1/topics/{orders}", answer_with_many_partitions)
    with page.expect_websocket() as opened:
        page.goto(
            f"{page.url}topics/{orders}/messages?start=offset&offset=5&partition=1100&limit=1&show=message"
        )
    assert json.loads(opened.value.wait_for_event("framesent"))["partitions"] == [1100]


def test_a_start_needs_its_time(orders: str, open_page: OpenPage) -> None:
    page = open_page(f"topics/{orders}/messages")
    expect(rows(page)).to_have_count(50)
    ask(page, Start="From a time")
    expect(page.get_by_label("Time", exact=True)).to_be_focused()
    expect(rows(page)).to_have_count(50)  # nothing was asked
    page.get_by_label("Time", exact=True).fill("2020-01-01T00:00:00")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(rows(page).first).to_contain_text('"id": 0')
    again = open_page(f"topics/{orders}/messages?start=timestamp")
    expect(again.get_by_text("A field above is empty, or its value is out of range.")).to_be_visible()


def test_a_tail_shows_new_messages_and_pauses(broker: Broker, orders: str, open_page: OpenPage) -> None:
    page = open_page(f"topics/{orders}/messages?start=tail")
    expect(page.get_by_text("0 messages so far")).to_be_visible()
    producer = Producer(broker.client_settings())
    producer.produce(orders, b"hot off the press")
    producer.flush()
    expect(page.get_by_text("hot off the press")).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    for number in range(600):  # more than the credit that the page has given
        producer.produce(orders, f"while paused {number}".encode())
    producer.flush()
    expect(page.get_by_role("button", name=re.compile(r"^Go on \((199|200) new messages\)$"))).to_be_visible()
    assert page.locator("data-table").evaluate("table => table.rows.length") == 1
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_text("601 messages so far")).to_be_visible()
    page.wait_for_function("document.querySelector('data-table').rows.length === 601")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Stop")).not_to_be_visible()


def test_messages_of_one_time_are_in_the_order_of_their_offsets(
    broker: Broker, unique: Unique, open_page: OpenPage
) -> None:
    name = unique("bursts")
    page = open_page()
    httpx.post(f"{broker.http_url}/v1/topics", json={"name": name}).raise_for_status()
    page.goto(f"{page.url}topics/{name}/messages?start=tail")
    expect(page.get_by_text("0 messages so far")).to_be_visible()
    producer = Producer(broker.client_settings())
    for number in range(20):
        producer.produce(name, f"number {number}", timestamp=1_700_000_000_000)
    producer.flush()
    expect(rows(page)).to_have_count(20)
    expect(rows(page).first).to_contain_text("number 19")
    expect(rows(page).last).to_contain_text("number 0")
    page.get_by_role("button", name="Time").click()
    expect(rows(page).first).to_contain_text("number 0")


def test_messages_are_downloaded_whole(
    broker: Broker, orders: str, open_page: OpenPage, tmp_path: Path, take_picture: TakePicture
) -> None:
    long = "x" * 50_000  # longer than the page shows
    producer = Producer(broker.client_settings())
    producer.produce(orders, long, partition=1)
    producer.flush()
    page = open_page(f"topics/{orders}/messages?start=newest&limit=20")
    expect(rows(page)).to_have_count(20)

    def downloaded(which: str) -> list[Any]:
        page.get_by_role("button", name="Download").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Messages").select_option(which)
        take_picture(page, "download")
        with page.expect_download() as started:
            dialog.get_by_role("button", name="Download").click()
        started.value.save_as(tmp_path / "messages.jsonl")
        return [json.loads(line) for line in (tmp_path / "messages.jsonl").read_text().splitlines()]

    lines = downloaded("shown")
    assert {one["topic"] for one in lines} == {orders}
    assert (len(lines), max(len(one["value"]) for one in lines)) == (20, len(long))
    expect(page.get_by_text("20 messages downloaded. These are all.")).to_be_visible()
    lines = downloaded("all")
    assert (len(lines), lines[-1]["value"]) == (301, long)
    assert sorted((one["partition"], one["offset"]) for one in lines) == [
        *((0, at) for at in range(150)),
        *((1, at) for at in range(151)),
    ]
    ask(page, Key_contains="customer-3", Start="From an offset")
    page.get_by_label("Offset", exact=True).fill("100")
    page.get_by_role("button", name="Show", exact=True).click()
    assert [json.loads(one["value"])["id"] for one in downloaded("all")] == [*range(203, 300, 10)]


def test_a_download_that_is_stopped_says_so_on_the_page_and_in_the_file(
    orders: str, open_page: OpenPage, tmp_path: Path
) -> None:
    page = open_page(f"topics/{orders}/messages?limit=20")
    expect(rows(page)).to_have_count(20)
    page.route_web_socket("**/v1/browse", lambda _: None)  # a node that says nothing
    page.get_by_role("button", name="Download").click()
    page.get_by_role("dialog").get_by_label("Messages").select_option("all")
    page.get_by_role("dialog").get_by_role("button", name="Download").click()
    with page.expect_download() as started:
        page.get_by_role("button", name="Stop and save").click()
    started.value.save_as(tmp_path / "messages.jsonl")
    [last] = (tmp_path / "messages.jsonl").read_text().splitlines()
    assert json.loads(last)["incomplete_download"]["reason"] == "it was stopped"
    expect(page.get_by_text("There may be more: it was stopped.")).to_be_visible()


def test_a_download_ends_at_its_limit_and_says_so(orders: str, open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page()

    def answer_with_a_lower_limit(route: Route) -> None:
        found = route.fetch()
        route.fulfill(
            response=found, body=found.text().replace("MOST_MESSAGES = 100_000", "MOST_MESSAGES = 7")
        )

    page.route("**/elements/download.js", answer_with_a_lower_limit)
    page.goto(f"{page.url}topics/{orders}/messages?limit=20")
    expect(rows(page)).to_have_count(20)
    page.get_by_role("button", name="Download").click()
    page.get_by_role("dialog").get_by_label("Messages").select_option("all")
    with page.expect_download() as started:
        page.get_by_role("dialog").get_by_role("button", name="Download").click()
    started.value.save_as(tmp_path / "messages.jsonl")
    *lines, last = (tmp_path / "messages.jsonl").read_text().splitlines()
    told = json.loads(last)["incomplete_download"]
    assert (len(lines), told["messages"]) == (7, 7)
    assert told["reason"] == "it has 7 messages, the most of one download"
    expect(page.get_by_text("The last line of the file says so, too.")).to_be_visible()


def test_a_message_is_published(
    broker: Broker, unique: Unique, open_page: OpenPage, http: httpx.Client, take_picture: TakePicture
) -> None:
    name = unique("written")
    http.post("/v1/topics", json={"name": name}).raise_for_status()
    page = open_page(f"topics/{name}/messages")
    page.get_by_role("button", name="Publish").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Value").fill('{"id": 12345678901234567890')
    dialog.get_by_role("button", name="Publish").click()
    expect(dialog).to_contain_text("This is not JSON.")
    dialog.get_by_label("Value").fill('{"id": 12345678901234567890}')
    dialog.get_by_label("Key").fill("customer-1")
    dialog.get_by_label("Headers").fill("source: console\ntrace: a:b")
    take_picture(page, "publish")
    dialog.get_by_role("button", name="Publish").click()
    expect(page.get_by_text("Stored in partition 0 at offset 0.")).to_be_visible()
    expect(page.get_by_role("cell", name='{"id": 12345678901234567890}')).to_be_visible()
    [message] = consumed(broker, name, 1)
    assert (message.key(), message.value()) == (b"customer-1", b'{"id": 12345678901234567890}')
    assert message.headers() == [("source", b"console"), ("trace", b"a:b")]


def test_values_that_are_empty_or_long_are_shown(
    http: httpx.Client, unique: Unique, open_page: OpenPage
) -> None:
    name = unique("odd")
    http.post("/v1/topics", json={"name": name}).raise_for_status()
    marks = "Z" + "\u0301\u0300\u0302" * 50
    records = [{"value": "y" * 200_000}, {"value": "", "key": ""}, {"value": marks * 9, "key": "k" * 300}]
    wanted = {"encoding": "text", "records": records}
    http.post(f"/v1/topics/{name}/records", json=wanted).raise_for_status()
    page = open_page(f"topics/{name}/messages")
    expect(rows(page)).to_have_count(3)
    expect(rows(page).filter(has_text="empty").locator("i")).to_have_text(["empty", "empty"])
    inside = "frame => frame.scrollWidth <= frame.clientWidth"
    assert page.locator(".table-frame").evaluate(inside)
    page.set_viewport_size({"width": 320, "height": 800})
    assert page.locator(".table-frame").evaluate(inside)
    rows(page).last.locator("td.value").scroll_into_view_if_needed()
    assert page.locator(".table-frame").evaluate("frame => frame.scrollLeft") == 0
    page.get_by_role("button", name="Open the message at offset 0 of partition 0").click()
    shown = page.get_by_role("dialog").get_by_label("Value")
    expect(page.get_by_role("button", name="Show more (134.5 KB are left)")).to_be_visible()
    assert len(shown.text_content() or "") == 65536
    page.get_by_role("button", name="Show more").click()
    assert len(shown.text_content() or "") == 200_000
    expect(page.get_by_role("button", name="Show more")).to_have_count(0)


def test_escape_asks_before_a_draft_is_lost(orders: str, open_page: OpenPage) -> None:
    page = open_page(f"topics/{orders}/messages")
    dialog = page.get_by_role("dialog")
    page.get_by_role("button", name="Publish").click()
    dialog.get_by_label("Format").select_option("text")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)  # nothing was typed
    page.get_by_role("button", name="Publish").click()
    dialog.get_by_label("Value").fill("a long draft")
    page.keyboard.press("Escape")
    expect(dialog.get_by_role("alert").filter(has_text="lose what you typed")).to_be_visible()
    page.keyboard.press("Escape")  # which is no answer
    expect(dialog.get_by_label("Value")).to_have_value("a long draft")
    dialog.get_by_role("button", name="Close").click()
    dialog.get_by_role("button", name="Go on editing").click()
    dialog.get_by_role("button", name="Close").click()
    dialog.get_by_role("button", name="Lose it").click()
    expect(dialog).to_have_count(0)


def test_one_message_for_each_line(
    broker: Broker, unique: Unique, open_page: OpenPage, http: httpx.Client
) -> None:
    name = unique("lines")
    http.post("/v1/topics", json={"name": name}).raise_for_status()
    page = open_page(f"topics/{name}/messages")
    page.get_by_role("button", name="Publish").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Value").fill("one\ntwo\n\nthree")
    dialog.get_by_label("Format").select_option("text")
    dialog.get_by_label("One message for each line").check()
    dialog.get_by_role("button", name="Publish").click()
    expect(page.get_by_text("3 messages were stored.")).to_be_visible()
    assert [one.value() for one in consumed(broker, name, 3)] == [b"one", b"two", b"three"]


def test_publishing_refuses_an_id_for_several_lines_and_lines_that_are_no_headers(
    broker: Broker, unique: Unique, open_page: OpenPage, http: httpx.Client
) -> None:
    name = unique("refused")
    http.post("/v1/topics", json={"name": name}).raise_for_status()
    page = open_page(f"topics/{name}/messages")
    page.get_by_role("button", name="Publish").click()
    dialog = page.get_by_role("dialog")
    send = dialog.get_by_role("button", name="Publish")
    dialog.get_by_label("Value").fill("1\n2")
    dialog.get_by_label("One message for each line").check()
    dialog.get_by_label("Message id").fill("order-1")
    send.click()
    expect(dialog).to_contain_text("would have the same id")
    dialog.get_by_label("Message id").fill("")
    for line in ("source", ": console"):
        dialog.get_by_label("Headers").fill(f"trace: 1\n{line}")
        send.click()
        expect(dialog).to_contain_text(f"“{line}” is not a header")
    dialog.get_by_label("Headers").fill("")
    dialog.get_by_label("Delay").fill("0.25")
    send.click()
    expect(page.get_by_text("2 messages were stored.")).to_be_visible()
    delays = [one.headers() for one in consumed(broker, name, 2)]
    assert delays == [[("penstock-delay-ms", b"250")]] * 2


def test_a_dialog_ends_with_its_page_and_toasts_can_be_closed_in_it(orders: str, open_page: OpenPage) -> None:
    page = open_page()

    def show_toasts_for_long(route: Route) -> None:
        found = route.fetch()
        route.fulfill(response=found, body=found.text().replace("SHOWN_MS = 6000", "SHOWN_MS = 600_000"))

    page.route("**/elements/toast.js", show_toasts_for_long)
    page.goto(f"{page.url}topics")
    page.get_by_role("link", name=orders, exact=True).click()
    page.get_by_role("link", name="Messages", exact=True).click()
    page.get_by_role("button", name="Open the message at offset 149 of partition 1").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Copy a link").click()
    dialog.get_by_role("button", name="Close this message").click()
    expect(page.locator(".toast")).to_have_count(0)
    dialog.get_by_role("button", name="Copy a link").click()
    page.go_back()
    expect(page.get_by_role("link", name="Consumers")).to_be_visible()
    expect(page.locator("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Close this message")).to_be_visible()


def test_a_message_that_is_a_script_is_shown_and_does_nothing(
    broker: Broker, unique: Unique, open_page: OpenPage
) -> None:
    name = unique("hostile")
    producer = Producer(broker.client_settings())
    producer.produce(name, json.dumps({ATTACK: ATTACK}), ATTACK, headers={ATTACK: ATTACK})
    producer.flush()
    page = open_page(f"topics/{name}/messages?columns={ATTACK.replace('=', '%3D')}")
    page.get_by_role("button", name="Open the message at offset 0").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("cell", name=ATTACK).first).to_be_visible()
    for format_name in ("Text", "Hex", "JSON"):
        dialog.get_by_role("button", name=format_name).click()
    assert page.evaluate("window.attacked") is None
    assert page.locator("main img, main script, dialog img, dialog script").count() == 0
