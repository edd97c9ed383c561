"""Invalid arguments are refused at the call, with the name of the argument; and all public names have docstrings."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import penstock.client
from penstock.client import Client, Denied, Refused

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
