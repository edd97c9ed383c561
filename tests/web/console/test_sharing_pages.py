"""Subscriptions, cliques and transactions in the browser, as real subscribers, workers and producers make them."""

from collections.abc import Callable, Iterator

import httpx
import pytest
from confluent_kafka import KafkaException, Producer
from playwright.sync_api import expect

from penstock import Broker
from penstock.node.access import logins
from penstock.ring import SLOTS
from tests.web.api.secured import PASSWORDS, caller
from tests.web.api.test_transaction_admin import begin, open_ids
from tests.web.clique_members import CliqueMember, publish_keys, settled
from tests.web.console.conftest import OpenPage, TakePicture
from tests.web.console.test_login_page import log_in
from tests.web.pushing import create, produce, subscriber

Unique = Callable[[str], str]
SECONDS = 60
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def topic(broker: Broker, unique: Unique) -> str:
    """Two partitions with five messages each."""
    name = unique("orders")
    create(broker.bootstrap_servers, name, partitions=2)
    for partition in (0, 1):
        produce(broker.bootstrap_servers, name, range(5), partition=partition)
    return name


# --- subscriptions


def test_a_subscription_shows_where_it_is_and_is_deleted(
    broker: Broker,
    http: httpx.Client,
    topic: str,
    unique: Unique,
    open_page: OpenPage,
    take_picture: TakePicture,
) -> None:
    name = unique("billing")
    with subscriber(broker.http_url) as one:
        one.subscribe(name, topic, read_old=True)
        first = next(message for message in one.take(10) if message["offset"] == 0)
        one.ack_durably(first)
        page = open_page("subscriptions")
        expect(page.locator("tr", has_text=name)).to_contain_text("attached")
        page.get_by_role("link", name=name).click()
        expect(page.locator(".tile", has_text="Lag").locator(".value")).to_have_text("9")
        expect(page.locator("tbody tr")).to_have_count(2)
        take_picture(page, "subscription")
        consumers = open_page(f"topics/{topic}?part=consumers")
        expect(consumers.locator("tbody tr")).to_have_count(
            1
        )  # its group of the same name is no other reader
        expect(consumers.locator("tbody tr")).to_contain_text("subscription")
        page.get_by_role("button", name="Delete").click()
        expect(page.get_by_role("dialog")).to_contain_text("A subscriber is attached")
        page.get_by_role("dialog").get_by_role("button", name="Delete the subscription").click()
        expect(page.get_by_role("heading", name="Subscriptions")).to_be_visible()
        assert http.get(f"/v1/subscriptions/{name}").status_code == 404
        assert one.closed() == (1000, "unsubscribed")


def test_a_subscription_whose_name_is_html_is_shown_as_text(
    broker: Broker, topic: str, unique: Unique, open_page: OpenPage
) -> None:
    name = HOSTILE + unique("x")
    with subscriber(broker.http_url) as one:
        one.subscribe(name, topic)
        page = open_page("subscriptions")
        page.get_by_role("link", name=name).click()
        expect(page.get_by_role("heading", name=name)).to_be_visible()
        assert page.locator("img[src=x]").count() == 0


# --- cliques


def test_a_clique_shows_the_shares_of_its_workers_and_handovers(
    broker: Broker,
    http: httpx.Client,
    unique: Unique,
    open_page: OpenPage,
    take_picture: TakePicture,
) -> None:
    name, topic = unique("pricing"), unique("prices")
    create(broker.bootstrap_servers, topic, partitions=2)
    one, two = (CliqueMember(http, name, worker, topic, lease_ms=600_000).join() for worker in ("ada", "ben"))
    settled(one, two)
    publish_keys(http, topic, *one.keys(7), *two.keys(4))
    page = open_page("cliques")
    expect(page.locator("tr", has_text=name)).to_contain_text("2")
    page.get_by_role("link", name=name).click()
    expect(page.get_by_role("img", name="Shares: ada")).to_be_visible()
    rows = page.get_by_role("region", name="Workers").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(page.get_by_role("region", name="Streams").locator("tbody tr")).to_have_count(1)
    with one.working(broker.http_url) as ada, two.working(broker.http_url) as ben:
        ada.jobs(7)
        ben.jobs(4)
        three = CliqueMember(http, name, "cyd", topic, lease_ms=600_000).join()
        waiting = page.locator(".tile", has_text="Being handed over").locator(".value")
        expect(waiting).not_to_have_text("0")
        expect(rows).to_have_count(3)
        flying = page.locator(".tile", has_text="In flight").locator(".value")
        expect(flying).not_to_have_text("0")
        take_picture(page, "clique")
    settled(one, two, three)
    expect(waiting).to_have_text("0")
    expect(rows).to_have_count(3)
    owned = http.get(f"/v1/cliques/{name}").json()["members"]
    assert sum(member["slots"] for member in owned) == SLOTS


# --- transactions


def test_an_open_transaction_is_shown_and_aborted(
    broker: Broker, http: httpx.Client, unique: Unique, open_page: OpenPage, take_picture: TakePicture
) -> None:
    name, topic = unique("billing"), unique("orders")
    producer = begin(broker, name, topic)
    page = open_page("transactions")
    row = page.locator("tr", has_text=name)
    expect(row).to_contain_text("open")
    expect(row.get_by_role("link", name=topic)).to_be_visible()
    take_picture(page, "transactions")
    page.get_by_role("button", name=f"Abort {name}").click()
    expect(page.get_by_role("dialog")).to_contain_text("its producer is fenced")
    page.get_by_role("dialog").get_by_role("button", name="Abort the transaction").click()
    expect(page.get_by_text(f"The transaction of {name} was aborted.")).to_be_visible()
    expect(row).to_have_count(0)
    assert name not in open_ids(http)
    with pytest.raises(KafkaException):
        producer.commit_transaction(SECONDS)
    page.get_by_label("Transactional ids without").check()
    expect(row).to_be_visible()


@pytest.fixture(scope="module")
def secured() -> Iterator[Broker]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logins, "FIRST_DELAY_SECONDS", 0.0)
        with Broker(users=PASSWORDS) as broker, caller(broker, "admin", PASSWORDS["admin"]) as admin:
            grants = [
                {"role": "operator", "principal": "User:alice"},
                {"role": "writer", "principal": "User:bob", "name": "bob.", "pattern_type": "prefixed"},
            ]
            for grant in grants:
                admin.post("/v1/grants", json=grant).raise_for_status()
            yield broker


def test_only_those_who_may_abort_see_the_button(secured: Broker, open_page: OpenPage) -> None:
    settings = {
        "bootstrap.servers": secured.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "admin",
        "sasl.password": PASSWORDS["admin"],
        "transaction.timeout.ms": 600_000,
    }
    for name in ("bob.billing", "other"):
        producer = Producer({**settings, "transactional.id": name})
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        producer.produce("bob.orders", b"value")
        producer.flush(SECONDS)
    page = open_page("transactions", at=secured)
    log_in(page, "alice")
    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page.get_by_role("button", name="Abort")).to_have_count(0)
    page.get_by_role("button", name="Log out").click()
    log_in(page, "bob")
    expect(page.get_by_role("button", name="Abort bob.billing")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(1)


# --- nothing there


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("subscriptions", "There are no subscriptions"),
        ("cliques", "There are no cliques"),
        ("transactions", "No transaction is open"),
        ("subscriptions/none", "there is no subscription 'none'"),
        ("cliques/none", "there is no clique 'none'"),
    ],
)
def test_an_empty_page_says_what_to_do(open_page: OpenPage, path: str, says: str) -> None:
    with Broker() as empty:
        expect(open_page(path, at=empty).get_by_text(says)).to_be_visible()
