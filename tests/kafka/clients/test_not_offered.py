"""Clients that ask for features that this broker does not offer fail with an error, instead of waiting for ever."""

import asyncio
from collections.abc import Callable

import aiokafka.errors
import kafka.errors
import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from kafka import KafkaProducer

from penstock import Broker

Unique = Callable[[str], str]
PATIENCE_SECONDS = 40.0
PATIENCE_MS = 40_000


def test_librdkafka_is_told_that_there_are_no_transactions(broker: Broker, unique: Unique) -> None:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": unique("payments")}
    )
    with pytest.raises(KafkaException) as caught:
        producer.init_transactions(PATIENCE_SECONDS)
    error = caught.value.args[0]
    assert error.fatal()
    assert error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert "this broker does not offer transactions" in error.str()


def test_kafka_python_is_told_that_there_are_no_transactions(broker: Broker, unique: Unique) -> None:
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers,
        transactional_id=unique("payments"),
        max_block_ms=PATIENCE_MS,
    )
    try:
        with pytest.raises(kafka.errors.KafkaError, match="UnsupportedVersionError"):
            producer.init_transactions()
    finally:
        producer.close(timeout=0)


def test_aiokafka_is_told_that_there_are_no_transactions(broker: Broker, unique: Unique) -> None:
    async def starting() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, transactional_id=unique("payments")
        )
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await producer.start()
        finally:
            await producer.stop()

    with pytest.raises(aiokafka.errors.TransactionalIdAuthorizationFailed):
        asyncio.run(starting())


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
