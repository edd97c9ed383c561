"""Pages of a shop at work, for the pictures of docs/console.md: plots and lists say little about an empty broker."""

import itertools
import json
import math
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from confluent_kafka import Consumer, Producer
from playwright.sync_api import Page, expect

from penstock import Broker
from penstock.client.wire import ClientSettings, Cluster
from penstock.node.status import samples
from penstock.web.api import overview
from tests.web.api.test_transactions_api import Query
from tests.web.clique_members import CliqueMember, settled
from tests.web.console.conftest import PICTURES, OpenPage, TakePicture
from tests.web.pushing import subscriber

pytestmark = pytest.mark.skipif(PICTURES is None, reason="pictures are made by `make screenshots`")

PLOTTED = re.compile("Now: ")
SAMPLE_MS = 500
SAMPLES = 100
TOPICS = ("orders", "payments", "clicks", "shipments", "returns", "stock")
PAGES = {
    "overview": "",
    "topics": "topics",
    "topic": "topics/orders",
    "consumers": "topics/orders?part=consumers",
    "groups": "groups",
    "group": "groups/billing",
    "queues": "queues",
    "subscriptions": "subscriptions",
    "cliques": "cliques",
    "pipelines": "pipelines",
}


class Shop:
    """Producers, consumers and workers that go on until they are told to stop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._ended = threading.Event()
        self._closed = threading.Event()
        with httpx.Client(base_url=f"{broker.http_url}/v1/", timeout=60) as http:
            for name in TOPICS:
                http.post("topics", json={"name": name, "partitions": 3}).raise_for_status()
            for name in ("emails", "invoices"):
                http.post("queues", json={"queue": name, "lease_ms": 60_000}).raise_for_status()

    def _sell(self) -> None:
        producer = Producer({**self._broker.client_settings(), "client.id": "shop"})
        for number in itertools.count():
            if self._closed.wait(0.02):  # last: subscribers wait for messages
                producer.flush()
                return
            for _ in range(round(6 + 4 * math.sin(number / 150))):
                order = {"id": number, "customer": {"city": "Ulm" if number % 3 else "Graz"}}
                producer.produce(TOPICS[number % len(TOPICS)], json.dumps(order), f"customer-{number % 40}")
            producer.poll(0)

    def _consume(self, group: str, pause_s: float) -> None:
        settings = {"group.id": group, "client.id": f"{group}-1", "auto.offset.reset": "earliest"}
        consumer = Consumer({**self._broker.client_settings(), **settings, "auto.commit.interval.ms": 500})
        consumer.subscribe(["orders", "payments"])
        while not self._ended.is_set():
            consumer.consume(100, 0.2)
            self._ended.wait(pause_s)
        consumer.close()

    def _mail(self) -> None:
        with httpx.Client(base_url=f"{self._broker.http_url}/v1/", timeout=60) as http:
            for number in itertools.count():
                records = [{"value": {"to": f"user-{number}@example.org"}} for _ in range(10)]
                if number % 4 == 0:
                    records.append({"value": {"to": "later@example.org"}, "delay_ms": 600_000})
                http.post("topics/emails/records", json={"records": records}).raise_for_status()
                received = http.post("queues/emails/receive", json={"max": 10, "consumer": "mailer"})
                jobs = received.raise_for_status().json()["jobs"]
                done = [job["receipt"] for job in jobs[: 10 - number % 2]]
                bad = [done.pop()] if number % 20 == 5 and done else []
                http.post("queues/emails/settle", json={"accept": done, "reject": bad}).raise_for_status()
                if self._ended.wait(0.5):
                    return

    def _subscribe(self, name: str) -> None:
        with subscriber(self._broker.http_url) as one:
            one.subscribe(name, "orders")
            while not self._ended.is_set():
                one.ack(one.take(1)[0])

    def _own_keys(self) -> None:
        with httpx.Client(base_url=self._broker.http_url, timeout=60) as http:
            members = [
                CliqueMember(http, "pricing", worker, "stock").join() for worker in ("ada", "ben", "cyd")
            ]
            while not self._ended.wait(2):
                settled(*members)

    def _write_exactly_once(self) -> None:
        """As the tasks of a Spark sink do: two attempts for each version, of which both win."""
        with (
            httpx.Client(base_url=self._broker.http_url, timeout=60) as http,
            Cluster(ClientSettings(bootstrap_servers=self._broker.bootstrap_servers)) as cluster,
        ):
            query = Query(http, cluster, "spark-orders-by-city")
            for version in itertools.count():
                winners = [query.task(version, "Ulm"), query.task(version, "Graz")]
                if self._ended.wait(2):
                    return
                query.commit(version, *winners)

    @contextmanager
    def open(self) -> Iterator[None]:
        work = [
            threading.Thread(target=self._consume, args=("billing", 1.5)),
            threading.Thread(target=self._consume, args=("shipping", 0.1)),
            threading.Thread(target=self._consume, args=("spark-penstock-source-totals", 0.8)),
            threading.Thread(target=self._consume, args=("spark-penstock-source-archive", 0.2)),
            threading.Thread(target=self._write_exactly_once),
            threading.Thread(target=self._subscribe, args=("fraud-check",)),
            threading.Thread(target=self._subscribe, args=("dashboard",)),
            threading.Thread(target=self._mail),
            threading.Thread(target=self._own_keys),
        ]
        selling = threading.Thread(target=self._sell)
        for thread in (*work, selling):
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in work:
                thread.join()
            self._closed.set()
            selling.join()


def test_pages_of_a_shop(
    open_page: OpenPage, take_picture: TakePicture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (samples, overview):
        monkeypatch.setattr(module, "SAMPLE_MS", SAMPLE_MS)
    with Broker() as broker, Shop(broker).open():
        time.sleep(SAMPLES * SAMPLE_MS / 1000)  # the plots fill
        for name, address in PAGES.items():
            page = open_page(address, at=broker)
            _wait_for_content(page)
            if name == "pipelines":  # forecasts need four looks
                told = re.compile(r"in \d|falls behind|keeps its distance")
                expect(page.locator("tbody tr", has_text=told).first).to_be_visible()
            take_picture(page, name)


def _wait_for_content(page: Page) -> None:
    expect(page.locator("tbody tr").first).to_be_visible()
    for plot in page.locator("line-plot svg").all():
        expect(plot).to_have_attribute("aria-label", PLOTTED)
