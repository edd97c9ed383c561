"""How long a subscription is kept."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import Broker
from penstock.config import GroupSettings
from penstock.types import TopicPartition
from tests.web.pushing import PATIENCE_SECONDS, committed, create, produce, subscriber, values

LOOK_AGAIN_SECONDS = 0.02


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Checks for expired subscriptions twenty times a second."""
    with Broker(groups=GroupSettings(offsets_retention_check_interval_ms=50)) as running:
        create(running.bootstrap_servers, "t")
        yield running


def eventually(question: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not question():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(LOOK_AGAIN_SECONDS)


def expires_ms(broker: Broker, name: str) -> int:
    service: Any = broker._thread.service
    return int(service.node.groups.committed(name)[TopicPartition("t", 0)].expire_timestamp_ms)


def test_an_unused_subscription_is_deleted_after_its_ttl(broker: Broker) -> None:
    produce(broker.bootstrap_servers, "t", ["x"])
    with subscriber(broker.http_url) as one:
        one.subscribe("forgotten", "t", read_old=True, ttl_ms=1000)
        one.ack_durably(one.take(1)[0])
    eventually(lambda: committed(broker.bootstrap_servers, "forgotten", "t") < 0)
    with subscriber(broker.http_url) as one:
        assert one.subscribe("forgotten", "t", read_old=True)["resumed"] is False
        assert values(one.take(1)) == ["x"]


def test_the_ttl_counts_from_the_end_of_the_connection(broker: Broker) -> None:
    with subscriber(broker.http_url) as one:
        one.subscribe("counted", "t", ttl_ms=60_000)
        while_attached = expires_ms(broker, "counted")
        assert while_attached > time.time() * 1000 + 60_000
    eventually(lambda: expires_ms(broker, "counted") < while_attached)
    assert expires_ms(broker, "counted") <= time.time() * 1000 + 60_000


def test_the_subscription_of_a_connected_idle_subscriber_is_kept(broker: Broker) -> None:
    with subscriber(broker.http_url) as one:
        one.subscribe("quiet", "t", ttl_ms=1000)
        first = expires_ms(broker, "quiet")
        eventually(lambda: expires_ms(broker, "quiet") > first)
        assert expires_ms(broker, "quiet") > first
