"""README.md: the examples of Penstock's own client run as printed."""

import re
from pathlib import Path

import pytest

from penstock import Broker
from penstock.client import Client

PAGE = Path(__file__).parents[2] / "README.md"


class Enough(Exception):
    """The expected output was printed."""


def block(heading: str) -> str:
    found = re.search(rf"\*\*{heading}\.\*\*.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def run(script: str, broker: Broker) -> list[tuple[object, ...]]:
    """Its first output; the script itself runs for ever."""
    printed: list[tuple[object, ...]] = []

    def tell(*words: object) -> None:
        printed.append(words)
        names["client"].stop()  # type: ignore[attr-defined]
        if "subscribe" in script:
            raise Enough

    names: dict[str, object] = {"__name__": "page", "print": tell}
    at_once = script.replace("127.0.0.1:9092", broker.bootstrap_servers).replace("delay=60", "delay=0.1")
    exec(compile(at_once, str(PAGE), "exec"), names)
    return printed


def test_the_queue_packs_its_own_message_and_the_subscriber_sees_it(disk_broker: Broker) -> None:
    queue, pushed = block("As a queue"), block("Pushed")
    assert run(queue, disk_broker) == [("packing", b"2 books")]
    first_line = queue[: queue.index("\n")]
    with pytest.raises(Enough):
        run(f"{first_line}\n{pushed}", disk_broker)


def test_the_clique_counts_what_any_kafka_client_has_published(disk_broker: Broker) -> None:
    with Client(disk_broker.bootstrap_servers) as client:
        client.admin.create_topic("payments")
        client.publish("payments", json=250, key="alice")
    printed: list[tuple[object, ...]] = []

    def tell(*words: object) -> None:
        printed.append(words)
        names["clique"].stop()  # type: ignore[attr-defined]

    names: dict[str, object] = {"__name__": "page", "print": tell}
    script = block("As a clique").replace("127.0.0.1:9092", disk_broker.bootstrap_servers)
    exec(compile(script, str(PAGE), "exec"), names)
    assert printed == [(b"alice", 250)]
