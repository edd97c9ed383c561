"""Streams of Spark in the browser. Tests of Spark itself are elsewhere: these commit and write as its source and its
sink do, by the same names."""

from collections.abc import Callable, Iterator

import httpx
import pytest
from confluent_kafka import Consumer, TopicPartition
from playwright.sync_api import Page, expect

from penstock import Broker
from penstock.client.wire import ClientSettings, Cluster
from tests.spark.committed import committed_values
from tests.web.api.test_transactions_api import PARTITIONS, Query
from tests.web.console.conftest import OpenPage
from tests.web.pushing import create, produce

Unique = Callable[[str], str]
PREFIX = "spark-penstock-source"
OWNER_PREFIX = "spark-"
"""As penstock.spark has them."""


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    with Cluster(ClientSettings(bootstrap_servers=broker.bootstrap_servers)) as cluster:
        yield cluster


def commit(broker: Broker, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({**broker.client_settings(), "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def look_again(page: Page, prefix: str) -> None:
    """The page would look by itself, some seconds later."""
    page.get_by_label("Groups that begin with").fill(prefix)
    page.keyboard.press("Enter")


def test_a_stream_that_reads_shows_its_lag_and_its_rate(
    broker: Broker, unique: Unique, open_page: OpenPage
) -> None:
    topic = unique("orders")
    group = f"{PREFIX}-{unique('totals')}"
    create(broker.bootstrap_servers, topic, partitions=1)
    produce(broker.bootstrap_servers, topic, range(10))
    commit(broker, group, topic, 3)
    page = open_page("pipelines")
    row = page.locator("tr", has_text=group)
    expect(row).to_contain_text("behind")
    expect(row.locator("td").nth(3)).to_have_text("7")
    commit(broker, group, topic, 10)
    look_again(page, PREFIX + "-")
    expect(row).to_contain_text("caught up")
    expect(row.locator("td").nth(5)).to_contain_text("ago")
    row.get_by_role("link", name=group).click()
    expect(page.get_by_role("heading", name=group)).to_be_visible()


def test_a_stream_that_reads_too_slowly_falls_behind_and_a_quick_one_will_have_caught_up(
    broker: Broker, unique: Unique, open_page: OpenPage
) -> None:
    topic = unique("orders")
    slow, quick = (f"{PREFIX}-{unique(name)}" for name in ("slow", "quick"))
    create(broker.bootstrap_servers, topic, partitions=1)
    produce(broker.bootstrap_servers, topic, range(100))
    commit(broker, slow, topic, 1)
    commit(broker, quick, topic, 1)
    page = open_page("pipelines")
    row = page.locator("tr", has_text=slow)
    expect(row.locator("td").nth(5)).to_have_text("not seen yet")
    expect(row.locator("td").nth(6)).to_have_text("\u2013")
    for number in range(1, 4):
        produce(broker.bootstrap_servers, topic, range(50))
        commit(broker, slow, topic, 10 * number)
        commit(broker, quick, topic, 70 * number)
        look_again(page, PREFIX + "-" * (number % 2))
        expect(row.locator("td").nth(3)).to_have_text(str(100 + 40 * number))
    expect(row.locator("td").nth(6)).to_have_text("falls behind")
    expect(page.locator("tr", has_text=quick).locator("td").nth(6)).to_contain_text("in ")
    expect(row.locator("td").nth(5)).not_to_contain_text("now ago")


def test_a_group_with_a_name_of_its_own_is_found_by_its_prefix(
    broker: Broker, unique: Unique, open_page: OpenPage
) -> None:
    topic, group = unique("orders"), "<b>" + unique("nightly")
    create(broker.bootstrap_servers, topic, partitions=1)
    commit(broker, group, topic, 0)
    page = open_page("pipelines")
    expect(page.locator("tr", has_text=group)).to_have_count(0)
    look_again(page, "<b>")
    expect(page.locator("tr", has_text=group)).to_be_visible()
    assert page.locator("main td b").count() == 0


def test_a_stream_that_writes_is_shown_while_its_tasks_are_open(
    http: httpx.Client, cluster: Cluster, broker: Broker, unique: Unique, open_page: OpenPage
) -> None:
    query = Query(http, cluster, OWNER_PREFIX + unique("query"))
    producers = [query.task(1, "kept"), query.task(1, "kept too")]
    page = open_page("pipelines")
    row = page.locator("tr", has_text=query.name)
    expect(row).to_contain_text("writing")
    expect(row.locator("td").nth(2)).to_have_text("2")
    expect(row.get_by_role("link", name=query.topic)).to_be_visible()
    query.ask("commit", version=1, winners=producers).raise_for_status()
    look_again(page, PREFIX + "-")
    expect(row).to_contain_text("idle")
    assert set(committed_values(broker.bootstrap_servers, query.topic, PARTITIONS)) == {"kept", "kept too"}
