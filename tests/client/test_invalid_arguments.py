"""Invalid arguments are refused at the call, with the name of the argument; and all public names have docstrings."""

import asyncio
import inspect
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import penstock.client
from penstock.client import AsyncClient, Client, Denied, Refused

MISTAKES: dict[str, Callable[[Any], object]] = {
    r"value=\{'a': 1\}.*json=": lambda client: client.publish("orders", {"a": 1}),
    "key=5: expected": lambda client: client.publish("orders", b"x", key=5),
    "message_id=17: expected": lambda client: client.publish("orders", b"x", message_id=17),
    r"headers\['a'\]=5: expected": lambda client: client.publish("orders", b"x", headers={"a": 5}),
    "partition=-1: expected": lambda client: client.publish("orders", b"x", partition=-1),
    "delay='60': expected": lambda client: client.publish("orders", b"x", delay="60"),
    r"bootstrap_servers=\['a:9092'\]: expected": lambda _client: Client(["a:9092"]),  # type: ignore[arg-type]
    "prefetch=0: expected": lambda client: client.queue("orders", group="workers", prefetch=0),
    "prefetch='1': expected": lambda client: client.queue("orders", group="workers", prefetch="1"),
    "group='': expected": lambda client: client.queue("orders", group=""),
    "name='': expected": lambda client: client.subscribe("orders", name=""),
    r"configs\['retention.ms'\]=5: expected text, such as '5'": lambda client: client.admin.alter_topic(
        "orders", {"retention.ms": 5}
    ),
}


DURATIONS: dict[str, Callable[[Any, Any], object]] = {
    "publish": lambda client, wait: client.publish("orders", b"x", timeout=wait),
    "flush": lambda client, wait: client.flush(wait),
    "call": lambda client, wait: client.call("orders", b"x", timeout=wait),
    "run": lambda client, wait: client.run(grace=wait),
    "close": lambda client, wait: client.close(wait),
    "queue": lambda client, wait: client.queue("orders", idle_s=wait),
    "subscribe": lambda client, wait: client.subscribe("orders", name="audit", idle_s=wait),
    "ack_timeout": lambda client, wait: client.subscribe("orders", name="audit", ack_timeout=wait),
    "worker": lambda client, wait: client.worker("orders", backoff=wait),
    "every": lambda client, wait: client.every("1h", name="tick", ttl=wait)(lambda job: None),
    "Client": lambda client, wait: type(client)("127.0.0.1:9", reconnect_timeout_s=wait),
    "receive": lambda client, wait: client.queue("orders").receive(wait),
    "Stream.flush": lambda client, wait: client.queue("orders").flush(wait),
    "Stream.close": lambda client, wait: client.queue("orders").close(wait),
    "unsubscribe": lambda client, wait: client.subscribe("orders", name="audit").unsubscribe(wait),
}
REFUSED = r"\w+={}: expected seconds, (at least 0, )?or a timedelta"


@pytest.mark.parametrize("call", DURATIONS.values(), ids=DURATIONS)
def test_a_duration_that_is_negative_or_no_number_is_refused_with_its_name(
    call: Callable[[Any, Any], object],
) -> None:
    """Kafka's clients mean "for ever" by -1; here it had timed out at once, or later, with other errors."""

    async def call_and_await(client: AsyncClient, wait: object) -> None:
        result = call(client, wait)
        if inspect.isawaitable(result):
            await result

    async def with_asyncio() -> None:
        client = AsyncClient("127.0.0.1:9", http="http://127.0.0.1:9")
        for wait in (-1, timedelta(seconds=-1), "10"):
            with pytest.raises((TypeError, ValueError), match=REFUSED.format(re.escape(repr(wait)))):
                await call_and_await(client, wait)
        await client.close(timeout=0)

    client = Client("127.0.0.1:9", http="http://127.0.0.1:9")
    for wait in (-1, timedelta(seconds=-1), "10"):
        with pytest.raises((TypeError, ValueError), match=REFUSED.format(re.escape(repr(wait)))):
            call(client, wait)
    client.close(timeout=0)
    asyncio.run(with_asyncio())


def test_a_settlement_refuses_a_negative_wait(client: Client, topic: str, group: str) -> None:
    client.publish(topic, b"x", timeout=timedelta(seconds=30))
    with client.queue(topic, group=group) as queue:
        job = queue.receive(timedelta(seconds=30))
        assert job is not None
        with pytest.raises(ValueError, match=r"timeout=-0\.5: expected seconds, at least 0"):
            job.ack().wait(-0.5)


@pytest.mark.parametrize("told", MISTAKES)
def test_an_invalid_argument_is_refused_with_its_name(client: Client, told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=told):
        MISTAKES[told](client)


def test_deleting_a_missing_topic_is_an_error(client: Client) -> None:
    with pytest.raises(Refused, match="there is no such topic") as refused:
        client.admin.delete_topic("no-such-topic")
    assert not refused.value.retriable


def test_a_missing_group_is_an_error(client: Client) -> None:
    with pytest.raises(Denied) as denied:
        client.admin.group("no-such-group")
    assert denied.value.code == "unknown_group"


@pytest.mark.parametrize(
    "name", ["Client", "AsyncClient", "Admin", "AsyncAdmin", "Job", "AsyncJob", "Message"]
)
def test_every_public_name_has_a_docstring(name: str) -> None:
    kind = getattr(penstock.client, name)
    silent = [
        member
        for member, found in inspect.getmembers(kind)
        if not member.startswith("_")
        and (inspect.isfunction(found) or isinstance(found, property))
        and not inspect.getdoc(found)
    ]
    assert silent == []
