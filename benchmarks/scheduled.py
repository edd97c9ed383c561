"""A million messages that are due later, and a broker that is killed meanwhile: is any of them lost, or early?

An unmodified producer sends them with the header penstock-deliver-at; a share consumer joins, so that the queue has
read past all of them; the broker is killed with SIGKILL and started again; a consumer takes what is due, and
acknowledges it. Exit code 1 if a message was lost, early or delivered again after its acknowledgement.

    python benchmarks/scheduled.py --messages 1000000
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Message, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from penstock_launcher import Penstock

TOPIC, GROUP = "jobs", "workers"
NOW = b"now"
"""A message without a time, behind all the others: who gets it has passed them."""
SPREAD_MS = 5_000
"""The messages are due within so long."""
PUBLISHED_PER_SECOND_LEAST = 50_000
PATIENCE_SECONDS = 60
"""Nothing more comes if so long nothing has come."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def begin_at_the_beginning(servers: str) -> None:
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    group = ConfigResource(ResourceType.GROUP, GROUP, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": servers})
    admin.incremental_alter_configs([group])[group].result(30)


def publish(servers: str, count: int, due_ms: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "enable.idempotence": True})
    for number in range(count):
        due = b"%d" % (due_ms + number % SPREAD_MS)
        _produce(producer, b"%d" % number, [("penstock-deliver-at", due)])
    _produce(producer, NOW, [])
    if producer.flush(60):
        raise SystemExit("not all messages could be published")


def _produce(producer: Producer, value: bytes, headers: list[tuple[str, str | bytes | None]]) -> None:
    while True:
        try:
            producer.produce(TOPIC, value, headers=headers)
            producer.poll(0)
            return
        except BufferError:
            producer.poll(0.1)


@contextmanager
def worker(servers: str) -> Iterator[ShareConsumer]:
    settings = {
        "bootstrap.servers": servers,
        "group.id": GROUP,
        "share.acknowledgement.mode": "explicit",
    }
    consumer = ShareConsumer(settings)
    consumer.subscribe([TOPIC])
    try:
        yield consumer
    finally:
        consumer.close()


def taken(consumer: ShareConsumer) -> list[Message]:
    """The messages of one poll, acknowledged durably."""
    messages = [one for one in consumer.poll(1.0) if one.error() is None]
    for message in messages:
        consumer.acknowledge(message)
    if messages:
        consumer.commit_sync()
    return messages


class Ledger:
    """The messages that have arrived, and when."""

    def __init__(self, count: int, due_ms: int) -> None:
        self.count, self.due_ms = count, due_ms
        self.seen = bytearray(count)
        self.got = self.early = self.again = 0

    def enter(self, message: Message) -> None:
        value = message.value()
        if value is None or value == NOW:
            return
        number = int(value)
        self.early += now_ms() < self.due_ms + number % SPREAD_MS
        self.again += self.seen[number]
        self.got += not self.seen[number]
        self.seen[number] = 1


def run(folder: Path, count: int) -> int:
    ledger = Ledger(count, now_ms() + 20_000 + count * 1000 // PUBLISHED_PER_SECOND_LEAST)
    penstock = Penstock(folder)
    penstock.start()
    try:
        begin_at_the_beginning(penstock.bootstrap)
        began = time.monotonic()
        publish(penstock.bootstrap, count, ledger.due_ms)
        say(f"{count:,} messages published", began)
        began = time.monotonic()
        with worker(penstock.bootstrap) as consumer:
            while not any(message.value() == NOW for message in taken(consumer)):
                pass
        say("the queue has read past them", began)
        penstock.kill()
        say(f"killed, and serving again {penstock.start():.1f} s later; {left(ledger):.0f} s to go")
        work_off(penstock.bootstrap, ledger)
    finally:
        penstock.stop()
    say(f"delivered {ledger.got:,}, early {ledger.early:,}, again {ledger.again:,}")
    return int(ledger.got != count or ledger.early > 0 or ledger.again > 0)


def work_off(servers: str, ledger: Ledger) -> None:
    first: float | None = None
    with worker(servers) as consumer:
        give_up = time.monotonic() + left(ledger) + PATIENCE_SECONDS
        while ledger.got < ledger.count and time.monotonic() < give_up:
            messages = taken(consumer)
            for message in messages:
                ledger.enter(message)
            if messages:
                first = first or time.monotonic()
                give_up = time.monotonic() + PATIENCE_SECONDS
    if first is not None:
        say("worked off", first)


def left(ledger: Ledger) -> float:
    """Seconds until the first one is due."""
    return max(0.0, (ledger.due_ms - now_ms()) / 1000)


def say(what: str, since: float | None = None) -> None:
    took = "" if since is None else f" in {time.monotonic() - since:.1f} s"
    print(f"{what}{took}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=1_000_000, metavar="N")
    count: int = parser.parse_args().messages
    with tempfile.TemporaryDirectory(prefix="penstock-scheduled-") as folder:
        sys.exit(run(Path(folder), count))


if __name__ == "__main__":
    main()
