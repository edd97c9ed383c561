"""Queues in the browser: their state in words, who holds what, and dead letters that are sent back."""

import json
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, Message, Producer
from playwright.sync_api import Page, Route, expect

from penstock import Broker
from tests.web.console.conftest import OpenPage, TakePicture

Unique = Callable[[str], str]


@pytest.fixture
def emails(broker: Broker, http: httpx.Client, unique: Unique) -> str:
    """A queue of five messages, of which three tries are made."""
    name = unique("emails")
    http.post("/v1/queues", json={"queue": name, "lease_ms": 60_000, "delivery_limit": 3}).raise_for_status()
    producer = Producer(broker.client_settings())
    for number in range(5):
        value, key = json.dumps({"to": f"user-{number}@example.org"}), f"user-{number}"
        producer.produce(name, value, key, headers={"source": "shop", "trace": b"\xbe\xef"})
    producer.flush()
    return name


def receive(http: httpx.Client, queue: str, most: int) -> list[dict[str, Any]]:
    body = {"max": most, "wait_ms": 30_000, "consumer": "mailer"}
    jobs: list[dict[str, Any]] = []
    while len(jobs) < most:
        jobs += http.post(f"/v1/queues/{queue}/receive", json=body).raise_for_status().json()["jobs"]
    return jobs


def rejected(http: httpx.Client, queue: str, count: int = 1) -> None:
    """Has a worker reject the first messages, and waits for their dead letters."""
    receipts = [job["receipt"] for job in receive(http, queue, count)]
    http.post(f"/v1/queues/{queue}/settle", json={"reject": receipts}).raise_for_status()
    while len(http.get(f"/v1/queues/{queue}/dead-letters").json()["dead_letters"]) < count:
        time.sleep(0.1)


def stored(broker: Broker, topic: str, count: int) -> list[Message]:
    consumer = Consumer(
        {**broker.client_settings(), "group.id": f"check-{topic}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: list[Message] = []
    while len(found) < count:
        found += [one for one in consumer.consume(count, 1) if one.error() is None]
    consumer.close()
    return found


def test_a_queue_is_created(open_page: OpenPage, http: httpx.Client, unique: Unique) -> None:
    name = unique("thumbnails")
    page = open_page("queues")
    page.get_by_role("button", name="Create a queue").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill(name)
    dialog.get_by_label("Lease").fill("30")
    dialog.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    expect(page.get_by_text("It is empty: all messages are done.")).to_be_visible()
    assert http.get(f"/v1/queues/{name}").json()["settings"]["lease_ms"] == 30_000


def test_the_page_says_in_words_why_the_queue_does_not_move(
    emails: str, open_page: OpenPage, http: httpx.Client, take_picture: TakePicture
) -> None:
    page = open_page("queues")
    page.get_by_role("link", name=emails).first.click()
    expect(page.get_by_text("5 messages are ready, and no consumer asks for them")).to_be_visible()
    receive(http, emails, 2)
    expect(page.get_by_text("2 messages are leased")).to_be_visible()
    expect(page.locator(".tile", has_text="Ready").locator(".value")).to_have_text("3")
    take_picture(page, "queue")
    page.get_by_role("link", name="Messages").click()
    expect(page.get_by_role("row").filter(has_text="leased")).to_have_count(2)
    expect(page.get_by_role("row").filter(has_text="ready")).to_have_count(3)
    take_picture(page, "queue-messages")


def test_bytes_are_shown_as_bytes(
    broker: Broker, unique: Unique, open_page: OpenPage, http: httpx.Client
) -> None:
    name = unique("binary")
    http.post("/v1/queues", json={"queue": name}).raise_for_status()
    producer = Producer(broker.client_settings())
    producer.produce(name, b"\xff\xfe\x01", b"\xca\xfe", headers={"trace": b"\xbe\xef", "who": "a\u202eb"})
    producer.flush()
    page = open_page(f"queues/{name}?part=messages")
    expect(page.get_by_role("cell", name="ca fe", exact=True)).to_be_visible()
    expect(page.get_by_role("cell", name="ff fe 01", exact=True)).to_be_visible()
    page.get_by_role("link", name=f"{name}-0@0").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("dd", has_text="ca fe")).to_be_visible()
    expect(dialog.get_by_role("cell", name="be ef", exact=True)).to_be_visible()
    expect(
        dialog.get_by_role("cell", name="a⟨U+202E⟩b", exact=True)
    ).to_be_visible()  # it would turn the text
    rejected(http, name)
    page.goto(f"{broker.console_url}queues/{name}?part=dead")
    page.get_by_role("button", name="Open the dead letter").click()
    expect(dialog.locator("dd", has_text="ca fe")).to_be_visible()
    expect(dialog.get_by_label("Value")).to_contain_text("00000000  ff fe 01")


def test_scheduled_messages_are_on_a_time_line(
    emails: str, open_page: OpenPage, http: httpx.Client, take_picture: TakePicture
) -> None:
    receive(http, emails, 5)
    records = [{"value": number, "delay_ms": 600_000 + 60_000 * number**2} for number in range(10)]
    http.post(f"/v1/topics/{emails}/records", json={"records": records}).raise_for_status()
    http.post(f"/v1/queues/{emails}/receive", json={"wait_ms": 0}).raise_for_status()
    page = open_page(f"queues/{emails}?part=scheduled")
    expect(page.get_by_text("10 messages are not due yet.")).to_be_visible()
    expect(page.locator(".time-line svg")).to_be_visible()
    take_picture(page, "scheduled")


def test_a_dead_letter_is_edited_and_sent_back(
    broker: Broker, emails: str, open_page: OpenPage, http: httpx.Client, take_picture: TakePicture
) -> None:
    rejected(http, emails)
    page = open_page("queues")
    page.locator("tr", has_text=emails).get_by_role("link", name="1", exact=True).click()
    expect(page.get_by_role("link", name=f"{emails}-0@")).to_be_visible()
    take_picture(page, "dead-letters")
    page.get_by_role("button", name="Open the dead letter").click()
    expect(page.get_by_role("dialog").get_by_label("Value")).to_contain_text("user-")
    take_picture(page, "dead-letter")
    page.get_by_role("button", name="Edit and send back").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Key")).to_have_value(re.compile("user-"))
    expect(dialog.get_by_label("Headers")).to_have_value("source: shop")  # without those of the broker
    expect(dialog).to_contain_text("they stay as they are: trace")
    dialog.get_by_label("Value").fill('{"to": "corrected@example.org"}')
    dialog.get_by_label("Key").fill("corrected")
    dialog.get_by_label("Headers").fill("source: console\nticket: 17")
    take_picture(page, "edit-dead-letter")
    dialog.get_by_role("button", name="Send back").click()
    expect(page.get_by_text("There are no dead letters")).to_be_visible()
    sent = stored(broker, emails, 6)[-1]
    assert (sent.key(), json.loads(sent.value())) == (b"corrected", {"to": "corrected@example.org"})
    assert sent.headers() == [("source", b"console"), ("ticket", b"17"), ("trace", b"\xbe\xef")]
    page.get_by_role("link", name="State").click()
    expect(page.locator(".tile", has_text="not sent back").locator(".value")).to_have_text("0")


def test_all_dead_letters_are_sent_back(
    broker: Broker, emails: str, open_page: OpenPage, http: httpx.Client
) -> None:
    rejected(http, emails, 5)
    page = open_page(f"queues/{emails}?part=dead")
    send_in_steps_of(page, 2)
    page.get_by_role("button", name="Send all back").click()
    page.get_by_role("dialog").get_by_role("button", name="Send all back").click()
    expect(page.get_by_text("There are no dead letters")).to_be_visible()
    expect(page.get_by_text("5 messages went back.")).to_be_visible()
    assert len(stored(broker, emails, 10)) == 10


def test_sending_back_is_stopped(
    emails: str, open_page: OpenPage, http: httpx.Client, take_picture: TakePicture
) -> None:
    rejected(http, emails, 5)
    page = open_page(f"queues/{emails}?part=dead")
    waiting: list[Route] = []
    send_in_steps_of(page, 2, waiting)
    page.get_by_role("button", name="Send all back").click()
    page.get_by_role("dialog").get_by_role("button", name="Send all back").click()
    expect(page.get_by_text("2 of about 5 messages sent back.")).to_be_visible()
    take_picture(page, "send-all-back")
    page.get_by_role("button", name="Stop").click()
    wait_for_one(page, waiting)
    with page.expect_response("**/send-back"):
        send_on(waiting[0], 2)
    expect(page.get_by_text("4 messages went back; stopped, there are more.")).to_be_visible()
    assert len(http.get(f"/v1/queues/{emails}/dead-letters").json()["dead_letters"]) == 1


def test_sending_all_back_ends_although_the_messages_fail_again(
    emails: str, open_page: OpenPage, http: httpx.Client
) -> None:
    rejected(http, emails, 5)
    page = open_page(f"queues/{emails}?part=dead")
    send_in_steps_of(page, 1)
    stop = threading.Event()

    def reject_all() -> None:
        with httpx.Client(base_url=http.base_url, timeout=60) as worker:
            while not stop.is_set():
                answer = worker.post(f"/v1/queues/{emails}/receive", json={"max": 10, "wait_ms": 100})
                if receipts := [job["receipt"] for job in answer.json()["jobs"]]:
                    worker.post(f"/v1/queues/{emails}/settle", json={"reject": receipts}).raise_for_status()

    rejecting = threading.Thread(target=reject_all)
    rejecting.start()
    try:
        page.get_by_role("button", name="Send all back").click()
        page.get_by_role("dialog").get_by_role("button", name="Send all back").click()
        expect(page.get_by_text(re.compile(r"^\d+ messages went back\."))).to_be_visible()
    finally:
        stop.set()
        rejecting.join()


def test_sending_all_back_ends_with_the_page(emails: str, open_page: OpenPage, http: httpx.Client) -> None:
    rejected(http, emails, 5)
    page = open_page(f"queues/{emails}?part=dead")
    waiting: list[Route] = []
    send_in_steps_of(page, 1, waiting)
    page.get_by_role("button", name="Send all back").click()
    page.get_by_role("dialog").get_by_role("button", name="Send all back").click()
    expect(page.get_by_text("1 of about 5 messages sent back.")).to_be_visible()
    page.evaluate("history.pushState(null, '', 'topics'); dispatchEvent(new PopStateEvent('popstate'))")
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()
    wait_for_one(page, waiting)
    with page.expect_response("**/send-back"):
        send_on(waiting[0], 1)
    expect(page.get_by_text("2 messages went back; stopped, there are more.")).to_be_visible()
    assert len(waiting) == 1


def wait_for_one(page: Page, waiting: list[Route]) -> None:
    """The page shows what has gone before it sends the next request."""
    while not waiting:
        page.wait_for_timeout(50)


def send_in_steps_of(page: Page, most: int, held: list[Route] | None = None) -> None:
    """The page sends so many letters at once. From the second request on, they are held if there is a list for them."""
    begun: list[Route] = []

    def shorten(route: Route) -> None:
        begun.append(route)
        if held is not None and len(begun) > 1:
            held.append(route)
        else:
            send_on(route, most)

    page.route("**/send-back", shorten)


def send_on(route: Route, most: int) -> None:
    route.continue_(post_data=json.dumps({**(route.request.post_data_json or {}), "max_records": most}))


def test_a_queue_is_purged_and_deleted(emails: str, open_page: OpenPage, http: httpx.Client) -> None:
    page = open_page(f"queues/{emails}")
    page.get_by_role("button", name="Purge").click()
    page.get_by_role("dialog").get_by_label("Type").fill(emails)
    page.get_by_role("dialog").get_by_role("button", name="Purge the queue").click()
    expect(page.get_by_text("It is empty: all messages are done.")).to_be_visible()
    assert http.get(f"/v1/queues/{emails}").json()["partitions"][0]["undone"] == 0
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_label("Type").fill(emails)
    page.get_by_role("dialog").get_by_role("button", name="Delete the queue").click()
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()
    assert http.get(f"/v1/queues/{emails}").status_code == 404
