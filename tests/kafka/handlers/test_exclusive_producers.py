"""One producer at a time, on the Kafka port and over HTTP, where every request is a producer of its own."""

from collections.abc import Callable

import httpx

from penstock import Broker
from penstock.errors import ErrorCode
from tests.kafka.raw import RawClient
from tests.kafka.requests import create, write

Unique = Callable[[str], str]
PATIENCE_SECONDS = 60.0


def publish(broker: Broker, topic: str) -> httpx.Response:
    return httpx.post(
        f"{broker.http_url}/v1/topics/{topic}/records",
        json={"records": [{"value": "v"}], "encoding": "text"},
        timeout=PATIENCE_SECONDS,
    )


def test_the_first_producer_owns_the_partition_until_its_connection_ends(
    broker: Broker, unique: Unique
) -> None:
    topic = unique("exclusive")
    with RawClient(broker) as second:
        with RawClient(broker) as first:
            create(first, topic, replicas=1, penstock_producer_exclusive="true")
            assert write(first, topic).base_offset == 0
            refused = write(second, topic)
            assert refused.error_code == ErrorCode.POLICY_VIOLATION
            host, port = first.socket.getsockname()
            assert f"client 'raw' at {host}:{port} has held it since" in (refused.error_message or "")
            assert write(first, topic).base_offset == 1
        while (answer := write(second, topic)).error_code == ErrorCode.POLICY_VIOLATION:
            pass  # until the broker has seen the end of the first connection
        assert answer.base_offset == 2


def test_publishing_over_http_is_refused_meanwhile_and_blocks_no_other_producer(
    broker: Broker, unique: Unique
) -> None:
    topic = unique("exclusive")
    with RawClient(broker) as client:
        create(client, topic, replicas=1, penstock_producer_exclusive="true")
        for _ in range(2):
            assert publish(broker, topic).is_success
        assert write(client, topic).error_code == ErrorCode.NONE
        refused = publish(broker, topic)
        assert "client 'raw'" in refused.text
        assert "one producer at a time" in refused.text
