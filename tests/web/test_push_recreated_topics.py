"""A topic is deleted under its subscriber, and another one gets its name: positions do not carry over."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from confluent_kafka.admin import AdminClient
from websockets.exceptions import ConnectionClosed

from penstock import Broker
from tests.web.pushing import PATIENCE_SECONDS, committed, create, produce, subscriber, values

Unique = Callable[[str], str]
NOWHERE = -1001
"""librdkafka's offset for "nothing committed"."""


@pytest.fixture
def topic(broker: Broker, unique: Unique) -> str:
    """With five messages."""
    name = unique("recreated")
    create(broker.bootstrap_servers, name, cleanup_policy="acked", penstock_acked_min_age_ms="0")
    produce(broker.bootstrap_servers, name, ["old"] * 5)
    return name


def recreate(broker: Broker, topic: str) -> None:
    """With ten other messages."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    [deleted] = admin.delete_topics([topic]).values()
    deleted.result(PATIENCE_SECONDS)
    create(broker.bootstrap_servers, topic, cleanup_policy="acked", penstock_acked_min_age_ms="0")
    produce(broker.bootstrap_servers, topic, range(10))


def test_a_subscriber_of_a_recreated_topic_gets_all_messages_of_the_new_one(
    broker: Broker, topic: str, unique: Unique
) -> None:
    name = unique("leaves")
    with subscriber(broker.http_url) as one:
        one.subscribe(name, topic, read_old=True)
        one.ack_durably(one.take(5)[-1])
        recreate(broker, topic)
    with subscriber(broker.http_url) as one:
        said = one.subscribe(name, topic, read_old=True, take_over=True)
        assert not said["resumed"]
        assert values(one.take(10)) == list(range(10))


def test_an_ack_of_the_deleted_topic_does_not_ack_the_new_one(
    broker: Broker, topic: str, unique: Unique
) -> None:
    name = unique("acks-late")
    with subscriber(broker.http_url) as one:
        one.subscribe(name, topic, read_old=True)
        last = one.take(5)[-1]
        recreate(broker, topic)
        with suppress(ConnectionClosed):  # the node may have noticed first
            one.ack(last)
        assert one.hear_of("error")["code"] == "unknown_topic"
        one.closed()
    assert committed(broker.bootstrap_servers, name, topic) == NOWHERE
    with subscriber(broker.http_url) as one:
        one.subscribe(name, topic, read_old=True, take_over=True)
        assert values(one.take(10)) == list(range(10))
