"""Clients that ask for features that this broker does not offer fail with an error, instead of waiting for ever."""

from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError

from penstock import Broker

Unique = Callable[[str], str]
PATIENCE_SECONDS = 40.0
PATIENCE_MS = 40_000


def test_librdkafka_is_told_that_there_is_no_consumer_protocol(broker: Broker, unique: Unique) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": unique("readers"),
            "group.protocol": "consumer",
        }
    )
    try:
        consumer.subscribe([unique("orders")])
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None, "it still waits"
        error = message.error()
        assert error is not None
        assert error.code() == KafkaError._FATAL
        assert "API version not supported" in error.str()
    finally:
        consumer.close()
