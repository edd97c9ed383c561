"""The cost of more partitions, connections, groups, queues, data and larger messages: `make bench-scale`.

    partitions     1 to 10,000 on one node, each with a record
    connections    1 to 10,000 that are open and send nothing
    groups         1 to 5,000 consumer groups with a committed offset
    queues         1 to 5,000 queues of one topic
    log            1 MB to 50 GB in one partition; the start is the one after kill -9
    messages       1 B to 10 MB each

One node as `penstock serve` starts it, with its data on disk; a new one for each row. `start` is the time from the
start of its process to its first answer, when it has the load on its disk already. `memory` (RSS) is taken once it
has settled, `idle` is the share of a core that it takes while nobody asks for anything, and `us` are microseconds of
its CPU for each small request, twenty in flight.

    python benchmarks/scale.py [partitions log ...] [--largest 1000] [--publish]

`--largest` leaves out longer rows. Sizes of `log` are in MB, those of `messages` in bytes.
"""

import argparse
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import page
import psutil
from confluent_kafka.admin import AdminClient, NewTopic
from cpu_time import cpu_ns
from penstock_launcher import Penstock

from penstock.batch import Record, build_batch
from penstock.client.wire import ClientSettings, Connection
from penstock.kafka.wire import ApiKey, Message
from penstock.kafka.wire.messages import fetch, offset_commit, produce

TOPIC = "load"
TIMEOUT_S = 300
SETTLE_S = 5
"""A node that has just got its load still flushes and compacts."""
IDLE_S = 10
REQUESTS = 3_000
IN_FLIGHT = 20
LARGE_BYTES = 1 << 20
LARGE_REQUESTS = 200
HTTP_REQUESTS = 200
LARGEST_BYTES = 32 << 20
VALUE = b"x" * 100
PARTITIONS_PER_TOPIC = 1_000
FLAGS = ("--set", "limits.idle_timeout_ms=3600000", "--set", "status_topic=")

Row = tuple[str, ...]


class Load:
    """A node, a connection to it, and what the two cost."""

    def __init__(self, node: Penstock, folder: Path) -> None:
        self.node = node
        self.start_s = 0.0
        self._log = folder / "penstock.log"
        self._connect()

    def _connect(self) -> None:
        settings = ClientSettings(bootstrap_servers=self.node.bootstrap, request_timeout_ms=TIMEOUT_S * 1000)
        self.connection = Connection("127.0.0.1", self.node.port, settings)

    def restart(self, *, crash: bool = False) -> None:
        self.connection.close()
        if crash:
            self.node.kill()
        else:
            self.node.stop()
        self.start_s = self.node.start()
        self._connect()

    def create_topic(self, name: str, partitions: int = 1) -> None:
        admin = AdminClient({"bootstrap.servers": self.node.bootstrap, "log_level": 0})
        topic = NewTopic(name, partitions, config={"max.message.bytes": str(LARGEST_BYTES)})
        admin.create_topics([topic], request_timeout=TIMEOUT_S)[name].result(TIMEOUT_S)

    def http(self) -> httpx.Client:
        addresses = (line.split() for line in self._log.read_text().splitlines())
        *_, url = (words[1] for words in addresses if words[:1] == ["http"])
        return httpx.Client(base_url=f"{url.rstrip('/')}/v1/", timeout=TIMEOUT_S)

    def send(self, api: ApiKey, version: int, make: Callable[[int], Message], count: int) -> float:
        """The broker's CPU for each of these requests, in microseconds."""
        before = cpu_ns(self.node.pid)
        for number in range(count + IN_FLIGHT):
            if number < count:
                self.connection.send(api, make(number), version=version)
            if number >= IN_FLIGHT:
                self.connection.receive()
        return (cpu_ns(self.node.pid) - before) / count / 1000

    def cost(self, do: Callable[[int], None], count: int) -> float:
        """The broker's CPU for each call, in microseconds."""
        before = cpu_ns(self.node.pid)
        for number in range(count):
            do(number)
        return (cpu_ns(self.node.pid) - before) / count / 1000

    def produce(self, make: Callable[[int], Message], count: int = REQUESTS) -> float:
        return self.send(ApiKey.PRODUCE, 9, make, count)

    def rest(self) -> Row:
        """Memory, and the CPU of a node that nobody asks for anything."""
        time.sleep(SETTLE_S)
        before = cpu_ns(self.node.pid)
        time.sleep(IDLE_S)
        idle = (cpu_ns(self.node.pid) - before) / IDLE_S / 1e9
        return f"{psutil.Process(self.node.pid).memory_info().rss / 1e6:,.0f}", f"{idle:.3f}"


@contextmanager
def load(*flags: str) -> Iterator[Load]:
    with tempfile.TemporaryDirectory(prefix="penstock-scale-") as name:
        node = Penstock(Path(name), *FLAGS, *flags)
        start_s = node.start()
        try:
            one = Load(node, Path(name))
            one.start_s = start_s
            yield one
        finally:
            node.stop()


def batch_of(value: bytes) -> bytes:
    return bytes(build_batch([Record(0, 1, None, value, ())]))


def produced(batch: bytes, topic: str = TOPIC, partition: int = 0, acks: int = 1) -> Message:
    row = produce.PartitionProduceData(index=partition, records=batch)
    found = produce.TopicProduceData(name=topic, partition_data=[row])
    return produce.ProduceRequest(acks=acks, timeout_ms=TIMEOUT_S * 1000, topic_data=[found])


def fetched(offset: int, max_bytes: int) -> Message:
    row = fetch.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    topic = fetch.FetchTopic(topic=TOPIC, partitions=[row])
    return fetch.FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=max_bytes, topics=[topic])


SMALL = batch_of(VALUE)


def partitions(count: int) -> Row:
    topics = [(f"{TOPIC}-{first}", min(PARTITIONS_PER_TOPIC, count - first))
              for first in range(0, count, PARTITIONS_PER_TOPIC)]  # fmt: skip
    each = [(name, partition) for name, size in topics for partition in range(size)]
    with load() as one:
        for name, size in topics:
            one.create_topic(name, size)
        one.produce(lambda number: produced(SMALL, *each[number]), count)
        one.restart()
        rest = one.rest()
        us = one.produce(lambda number: produced(SMALL, *each[number % count]), max(REQUESTS, count))
        return f"{count:,}", f"{one.start_s:.2f}", *rest, f"{us:.0f}"


def connections(count: int) -> Row:
    with load() as one:
        one.create_topic(TOPIC)
        one.produce(lambda _: produced(SMALL))
        opened = [socket.create_connection(("127.0.0.1", one.node.port)) for _ in range(count)]
        rest = one.rest()
        us = one.produce(lambda _: produced(SMALL))
        for each in opened:
            each.close()
        return f"{count:,}", *rest, f"{us:.0f}"


def groups(count: int) -> Row:
    row = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topics = [offset_commit.OffsetCommitRequestTopic(name=TOPIC, partitions=[row])]

    def committed(number: int) -> Message:
        return offset_commit.OffsetCommitRequest(group_id=f"group-{number % count}", topics=topics)

    with load() as one:
        one.create_topic(TOPIC)
        one.produce(lambda _: produced(SMALL), IN_FLIGHT)
        time.sleep(SETTLE_S)  # the first commits create the offsets topic
        one.send(ApiKey.OFFSET_COMMIT, 8, committed, IN_FLIGHT)
        time.sleep(SETTLE_S)
        one.send(ApiKey.OFFSET_COMMIT, 8, committed, count)
        one.restart()
        rest = one.rest()
        us = one.send(ApiKey.OFFSET_COMMIT, 8, committed, max(REQUESTS, count))
        return f"{count:,}", f"{one.start_s:.2f}", *rest, f"{us:.0f}"


def queues(count: int) -> Row:
    with load() as one:
        one.create_topic(TOPIC)
        with one.http() as http:
            for number in range(count):
                http.post("queues", json={"queue": f"queue-{number}", "topic": TOPIC}).raise_for_status()
        one.restart()
        rest = one.rest()
        us = one.produce(lambda _: produced(SMALL))
        with one.http() as http:
            receive(http, count - 1)  # loads the code
            opened = min(count, HTTP_REQUESTS)
            first = one.cost(lambda number: receive(http, number), opened)
            later = one.cost(lambda number: receive(http, number % opened), HTTP_REQUESTS)
        return f"{count:,}", f"{one.start_s:.2f}", *rest, f"{us:.0f}", f"{first:.0f}", f"{later:.0f}"


def receive(http: httpx.Client, queue: int) -> None:
    got = http.post(f"queues/queue-{queue}/receive", json={"max": 1})
    assert got.is_success, got.text
    assert got.json()["jobs"], f"queue-{queue} has no messages"


def log(megabytes: int) -> Row:
    batch = batch_of(os.urandom(LARGE_BYTES - 100))
    with load() as one:
        one.create_topic(TOPIC)
        for first in range(0, megabytes, 256):
            one.produce(lambda _: produced(batch), min(256, megabytes - first))
        one.restart(crash=True)
        rest = one.rest()
        us = one.produce(lambda _: produced(SMALL))
        middle = megabytes // 2
        read = one.send(ApiKey.FETCH, 11, lambda _: fetched(middle, 1), LARGE_REQUESTS)
        return f"{megabytes:,} MB", f"{one.start_s:.2f}", *rest, f"{us:.0f}", f"{read:.0f}"


def messages(size: int) -> Row:
    batch = batch_of(os.urandom(size))
    count = max(IN_FLIGHT * 2, min(REQUESTS, (256 << 20) // size))
    with load() as one:
        one.create_topic(TOPIC)
        one.produce(lambda _: produced(batch), IN_FLIGHT)
        memory = psutil.Process(one.node.pid)
        us = one.produce(lambda _: produced(batch), count)
        read = one.send(ApiKey.FETCH, 11, lambda number: fetched(number % count, 1), count)
        per_mb = us / (size / 1e6)
        shown = f"{per_mb:,.0f}" if size >= 1000 else "-"
        return f"{size:,} B", f"{memory.memory_info().rss / 1e6:,.0f}", f"{us:,.0f}", shown, f"{read:,.0f}"


STARTED = ("start, s", "memory, MB", "idle, cores")
TABLES: dict[str, tuple[Callable[[int], Row], Row, Sequence[int]]] = {
    "partitions": (
        partitions, ("partitions", *STARTED, "Produce to each in turn, us"), (1, 10, 100, 1_000, 10_000),
    ),
    "connections": (
        connections, ("idle connections", *STARTED[1:], "Produce on another, us"), (1, 100, 1_000, 10_000),
    ),
    "groups": (groups, ("groups", *STARTED, "OffsetCommit to each in turn, us"), (1, 10, 100, 1_000, 5_000)),
    "queues": (
        queues,
        ("queues of a topic", *STARTED, "Produce, us", "first receive of a queue, us", "later ones, us"),
        (1, 10, 100, 1_000, 5_000),
    ),
    "log": (log, ("log", *STARTED, "Produce, us", "Fetch from the middle, 1 MB, us"),
            (1, 100, 1_000, 10_000, 50_000)),
    "messages": (
        messages, ("message", "memory, MB", "Produce, us", "a MB", "Fetch, us"),
        (1, 100, 10_000, 100_000, 1_000_000, 10_000_000),
    ),
}  # fmt: skip


def table(name: str, largest: int | None) -> Iterator[str]:
    """Its lines, each as soon as it is measured."""
    measure, heads, sizes = TABLES[name]
    yield "| " + " | ".join(heads) + " |"
    yield "|---:" * len(heads) + "|"
    for size in sizes:
        if largest is None or size <= largest:
            yield "| " + " | ".join(measure(size)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}; all by default")
    parser.add_argument("--largest", type=int, metavar="COUNT", help="no rows above this")
    parser.add_argument("--publish", action="store_true", help="put the tables into docs/benchmarks.md")
    options = parser.parse_args()
    if unknown := set(options.tables) - set(TABLES):
        parser.error(f"TABLE: {', '.join(sorted(unknown))} is none of {', '.join(TABLES)}")
    for name in options.tables or TABLES:
        lines = []
        for line in table(name, options.largest):
            print(line, flush=True)
            lines.append(line)
        print(file=sys.stdout)
        if options.publish:
            page.publish(f"scale-{name}", "\n".join(lines))


if __name__ == "__main__":
    main()
