"""Subscriptions survive a crash of the broker: confirmed acks are kept, and nothing else is lost or acked."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.ports import free_port
from tests.web.pushing import create, produce, subscriber, values


class Served:
    """`penstock serve` with both ports, on the same addresses after every start."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self.bootstrap_servers = f"127.0.0.1:{free_port()}"
        self._http = f"127.0.0.1:{free_port()}"
        self.http_url = f"http://{self._http}"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "penstock.cli", "serve", "--data-dir", str(self._data_dir)),
                *("--kafka", self.bootstrap_servers, "--http", self._http),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert self._process.stdout is not None
        said = []
        for line in self._process.stdout:
            said.append(line)
            if line.startswith("ready"):
                return
        raise AssertionError("".join(said))

    def end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.communicate(timeout=60)
            self._process = None


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    one = Served(tmp_path / "data")
    one.start()
    yield one
    one.end(signal.SIGTERM)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_subscriber_resumes_after_its_durable_acks_when_the_broker_was_killed(
    served: Served, unique: Callable[[str], str], how: signal.Signals
) -> None:
    topic = unique("crash")
    create(served.bootstrap_servers, topic)
    produce(served.bootstrap_servers, topic, range(50))
    with subscriber(served.http_url) as one:
        one.subscribe("survivor", topic, read_old=True)
        got = one.take(50)
        one.ack_durably(got[19])
        served.end(how)
    served.start()
    with subscriber(served.http_url) as one:
        said = one.subscribe("survivor", topic)
        assert said["resumed"] is True
        assert values(one.take(30)) == list(range(20, 50))
        produce(served.bootstrap_servers, topic, ["after"])
        assert values(one.take(1)) == ["after"]


def test_scheduled_messages_come_after_a_crash_and_acked_messages_around_them_do_not(
    served: Served, unique: Callable[[str], str]
) -> None:
    topic = unique("scheduled")
    create(served.bootstrap_servers, topic)
    producer = Producer({"bootstrap.servers": served.bootstrap_servers, "enable.idempotence": True})
    for number in range(20):
        headers = [("penstock-delay-ms", b"15000")] if number % 4 == 0 else []
        producer.produce(topic, str(number), headers=headers)
    assert producer.flush(60) == 0
    with subscriber(served.http_url) as one:
        one.subscribe("scheduler", topic, read_old=True)
        got = one.take(15)
        assert values(got) == [number for number in range(20) if number % 4]
        one.ack(got[-1])
        one.hear_of("acked")
        served.end(signal.SIGKILL)
    served.start()
    with subscriber(served.http_url) as one:
        one.subscribe("scheduler", topic)
        late = one.take(5)
        assert values(late) == [0, 4, 8, 12, 16]
        one.ack(late[-1])
        while one.hear_of("acked")["positions"][0]["offset"] != 20:
            pass
        assert one.nothing_more()
