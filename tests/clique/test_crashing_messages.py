"""A message that kills each of its workers becomes a dead letter. Messages that these workers held, and never began, do
not."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer

from penstock import Broker
from penstock.client import Client
from tests.faults.waiting import PATIENCE_SECONDS, eventually

PROGRAM = Path(__file__).with_name("crashing_program.py")
LEASE_MS = 5_000
"""Each crash costs one."""
DELIVERY_LIMIT = 2
OTHERS = 100


def test_a_message_that_kills_its_workers_takes_no_other_message_to_the_dead_letters(
    broker: Broker, unique: Callable[[str], str], tmp_path: Path
) -> None:
    clique, stream, file = unique("pricing"), unique("orders"), tmp_path / "calls"
    file.touch()
    with Client(broker.bootstrap_servers) as client:
        client.admin.create_topic(stream, partitions=1)
        _publish(broker.bootstrap_servers, stream)
        command = [sys.executable, str(PROGRAM), f"penstock://{broker.bootstrap_servers}", clique, stream]
        crashes = 0
        with (tmp_path / "log").open("wb") as log:
            while not _are_handled(file):
                process = subprocess.Popen([*command, str(LEASE_MS), str(file)], stdout=log, stderr=log)
                crashes += _end_of(process, file)
                client.admin.alter_queue(clique, max_deliveries=DELIVERY_LIMIT)
        eventually(lambda: list(client.admin.dead_letters(clique)), "a dead letter")
        letters = [letter.value for letter in client.admin.dead_letters(clique)]
    assert letters == [b"poison"]
    lines = _lines(file)
    assert crashes == lines.count("begin poison") == DELIVERY_LIMIT + 1, "the first crash makes suspects"
    for what in ("begin", "end"):
        numbers = [line.split()[1] for line in lines if line.startswith(what) and line != "begin poison"]
        assert sorted(map(int, numbers)) == list(range(OTHERS)), "each ran once"


def _publish(bootstrap: str, stream: str) -> None:
    """Some of the messages have the key of the first one."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    producer.produce(stream, b"poison", b"key-0")
    for number in range(OTHERS):
        producer.produce(stream, b"%d" % number, b"key-%d" % (number % 10))
    producer.flush()


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


def _are_handled(file: Path) -> bool:
    return sum(line.startswith("end") for line in _lines(file)) >= OTHERS


def _end_of(process: "subprocess.Popen[bytes]", file: Path) -> bool:
    """Until it has killed itself, or all other messages are handled and it was told to end. Whether it has killed
    itself."""
    try:
        eventually(
            lambda: process.poll() is not None or _are_handled(file),
            "the end of the worker, or of its work",
        )
        process.send_signal(signal.SIGTERM)
        return process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()
