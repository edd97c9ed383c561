"""Limits of push and of workers that an operator may set."""

from collections.abc import Iterator

import pytest

from penstock import Broker
from penstock.config import Limits
from tests.web.pushing import create, produce, subscriber
from tests.web.workers import working


@pytest.fixture
def narrow() -> Iterator[Broker]:
    limits = Limits(max_credit=5, max_partitions_per_subscription=3)
    with Broker(limits=limits) as running:
        create(running.bootstrap_servers, "t")
        yield running


def test_a_subscriber_holds_no_more_than_the_node_allows(narrow: Broker) -> None:
    with subscriber(narrow.http_url) as one:
        one.subscribe("greedy", "t", credit=100)
        produce(narrow.bootstrap_servers, "t", [str(number) for number in range(20)])
        held = one.take(5)
        assert one.nothing_more()
        one.say(type="credit", credit=100)
        assert one.nothing_more(), "nor if it asks later"
        one.ack(held[-1])
        assert len(one.take(5)) == 5


def test_a_subscriber_that_asks_for_less_gets_less(narrow: Broker) -> None:
    with subscriber(narrow.http_url) as one:
        one.subscribe("modest", "t", credit=2)
        produce(narrow.bootstrap_servers, "t", [str(number) for number in range(20)])
        one.take(2)
        assert one.nothing_more()


def test_a_worker_holds_no_more_than_the_node_allows(narrow: Broker) -> None:
    with working(narrow.http_url, "workers", "t", credit=100) as one:
        one.hear("working")
        produce(narrow.bootstrap_servers, "t", [str(number) for number in range(20)])
        jobs = one.jobs(5)
        one.say(type="credit", credit=100)
        one.say(type="ping")
        one.hear("pong")
        assert (len(jobs), one.unheard("jobs")) == (5, 0)
        one.settle(jobs)
        assert len(one.jobs(5)) == 5


def test_a_subscription_to_more_partitions_than_the_node_allows_is_refused(narrow: Broker) -> None:
    create(narrow.bootstrap_servers, "wide", 3)
    with subscriber(narrow.http_url) as one:
        assert one.subscribe("fits", "wide")["type"] == "subscribed"
    with subscriber(narrow.http_url) as one:
        refusal = one.subscribe("broad", "wide", "t")
    assert refusal["code"] == "too_many_partitions"
    assert "limits.max_partitions_per_subscription" in refusal["message"]
