"""Other Kafka clients, as far as they are installed."""

import asyncio
import importlib.util
from collections.abc import Callable

from penstock.cli.demo_stage import Stage
from penstock.cli.problem import Problem

MESSAGES = 1000
TIMEOUT_S = 20.0


def play(stage: Stage) -> None:
    present = {name: run for name, run in CLIENTS.items() if importlib.util.find_spec(run[0]) is not None}
    if not present:
        return
    stage.chapter("Other clients")
    for name, (_, run) in present.items():
        with stage.working(f"{name} at work"):
            got = run(stage.broker.bootstrap, f"hello-{name}")
        if got != MESSAGES:
            raise Problem(f"{name} read {got} of {MESSAGES} messages")
        stage.say(f"{name} produced {MESSAGES:,} messages and read them back")


def _kafka_python(bootstrap: str, topic: str) -> int:
    from kafka import KafkaConsumer, KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
    for number in range(MESSAGES):
        producer.send(topic, str(number).encode())
    producer.flush(TIMEOUT_S)
    producer.close()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(TIMEOUT_S * 1000),
    )
    try:
        return sum(1 for _ in zip(range(MESSAGES), consumer, strict=False))
    finally:
        consumer.close()


def _aiokafka(bootstrap: str, topic: str) -> int:
    return asyncio.run(asyncio.wait_for(_aiokafka_round(bootstrap, topic), TIMEOUT_S))


async def _aiokafka_round(bootstrap: str, topic: str) -> int:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
        futures = [await producer.send(topic, str(number).encode()) for number in range(MESSAGES)]
        await asyncio.gather(*futures)
    got = 0
    async with AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        while got < MESSAGES:
            batches = await consumer.getmany(timeout_ms=1000)
            got += sum(len(batch) for batch in batches.values())
    return got


CLIENTS: dict[str, tuple[str, Callable[[str, str], int]]] = {
    "kafka-python": ("kafka", _kafka_python),
    "aiokafka": ("aiokafka", _aiokafka),
}
