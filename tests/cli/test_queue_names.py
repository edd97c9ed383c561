"""Queues and consumer groups share their names, as the command line shows them."""

import json
from collections.abc import Callable

import httpx
from confluent_kafka import Consumer, TopicPartition

from penstock import Broker

from .conftest import Cli, succeeded

Unique = Callable[[str], str]


def test_an_unused_queue_is_listed_and_deleted_as_a_group(cli: Cli, broker: Broker, unique: Unique) -> None:
    queue = unique("mail")
    succeeded(cli("queues", "create", queue))
    rows = {row["group"]: row for row in json.loads(succeeded(cli("groups", "list", "--json")).stdout)}
    assert rows[queue] == {"group": queue, "state": "empty", "type": "share", "consumers": 0}
    succeeded(cli("groups", "delete", queue, "--yes"))
    assert queue not in succeeded(cli("queues", "list")).stdout


def test_a_queue_is_not_created_under_the_name_of_a_consumer_group(
    cli: Cli, broker: Broker, unique: Unique
) -> None:
    topic, group = unique("orders"), unique("billing")
    httpx.post(f"{broker.http_url}/v1/topics", json={"name": topic}).raise_for_status()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    consumer.close()
    refused = cli("queues", "create", group, "--topic", topic)
    assert refused.exit_code != 0
    assert "consumer group" in refused.output
