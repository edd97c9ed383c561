"""The pages for people who come from another system: their programs run as printed."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, Producer
from httpx import ASGITransport

from penstock import Broker

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
PATIENCE_SECONDS = 60.0


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def run_page(name: str, broker: Broker) -> dict[str, Any]:
    """The names that the page's own programs define; programs for the other system are marked as `before`."""
    source = "\n".join(BLOCK.findall((DOCS / name).read_text()))
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(source.replace("127.0.0.1:9092", broker.bootstrap_servers), name, "exec"), names)
    return names


def test_a_kafka_program_runs_unchanged_and_then_as_a_queue(broker: Broker) -> None:
    page = run_page("from-kafka.md", broker)
    client = page["client"]
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for order in (b"good", b"bad", b"good"):
        producer.produce("orders", order)
    assert producer.flush(PATIENCE_SECONDS) == 0
    page["charge_orders"](3)
    assert values_of(broker, "orders.retry", 1) == [b"bad"]
    with client:
        stop_when(client, lambda: client.admin.queue("billing-jobs").undone == 0)
        client.run()
    assert values_of(broker, "orders.dlq", 1) == [b"bad"]


def test_a_rabbitmq_worker_as_a_queue(broker: Broker) -> None:
    page = run_page("from-rabbitmq.md", broker)
    client, sent = page["client"], page["sent"]
    with client:
        stop_when(client, lambda: sent and client.admin.queue("mails").undone == 0)
        client.run()
    assert sent == [b"alice@example.org"]


def test_a_jetstream_worker_as_a_queue(broker: Broker) -> None:
    page = run_page("from-nats.md", broker)
    clients: list[Any] = []
    client_type: Any = page["AsyncClient"]

    class Watched(client_type):  # type: ignore[misc]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            clients.append(self)

    async def run_until_resized() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
            tasks.create_task(page["main"]())
            while not page["resized"]:
                await asyncio.sleep(0.05)
            clients[0].stop()

    page["AsyncClient"] = Watched
    asyncio.run(run_until_resized())
    assert page["resized"] == [b"cat.png"]


def test_celery_tasks_as_jobs(broker: Broker) -> None:
    page = run_page("from-celery.md", broker)
    client, resized = page["client"], page["resized"]
    with client:
        stop_when(client, lambda: len(resized) >= 2 and client.admin.queue("thumbnails").undone == 0)
        client.run()
    assert sorted(resized) == ["cat.png", "dog.png"]


@pytest.mark.parametrize("inside", [False, True])
def test_the_fastapi_recipe_with_workers_beside_and_inside(broker: Broker, inside: bool) -> None:
    page = run_page("fastapi.md", broker)
    app, charged = page["app"], page["charged"]

    async def order() -> None:
        async with (
            page["lifespan"](app),
            httpx.AsyncClient(transport=ASGITransport(app), base_url="http://shop") as web,
        ):
            for number in ("one", "one", "two"):
                assert (await web.post(f"/orders/{number}?cents=100")).status_code == 202

    async def work_inside() -> None:
        async with page["with_workers"](app):
            await asyncio.to_thread(wait_for, lambda: len(charged) == 2)

    asyncio.run(order())
    if inside:
        asyncio.run(work_inside())
    else:
        with page["client"] as client:
            stop_when(client, lambda: len(charged) == 2)
            client.run()
    assert sorted(charged) == ["one", "two"]


def wait_for(done: Callable[[], object]) -> None:
    while not done():
        threading.Event().wait(0.05)


def stop_when(client: Any, done: Callable[[], object]) -> None:
    """Ends `run` when this holds."""

    def watch() -> None:
        wait_for(done)
        client.stop()

    threading.Thread(target=watch, daemon=True).start()


def values_of(broker: Broker, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "check", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    values: list[bytes] = []
    while len(values) < count:
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None
        assert message.error() is None
        values.append(message.value())
    consumer.close()
    return values
