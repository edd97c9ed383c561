"""`penstock serve` with one process and with more: throughput of the machine, and the CPU that it takes.

The client must cost little, or it would take the cores that the processes are to use. It sends requests that were
encoded beforehand over plain sockets, twenty at a time on each connection, and only counts the bytes of the responses.
The machine runs 1 process and N in turns, each on a folder of its own; the partitions are spread over the processes.

    small     Produce with one record of 100 B, acks=all, flushed
    batch     Produce with 100 records of 100 B, acks=1
    fetch     Fetch of 64 KB that are in the page cache

    python benchmarks/processes.py [--processes 2] [--seconds 5] [--rounds 3] [--publish]

`us of CPU` is the broker's, for each request: it says what more cores could do where the client or the disk is in the
way.
"""

import argparse
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import page
import psutil
from confluent_kafka.admin import AdminClient, NewTopic
from cpu_time import cpu_ns

from penstock.batch import Record, build_batch
from penstock.cli.broker_process import BrokerProcess
from penstock.kafka.wire import ApiKey, Message, encode_request
from penstock.kafka.wire.messages import fetch, produce

TOPIC = "load"
PARTITIONS = 8
IN_FLIGHT = 20
CONNECTIONS_PER_PARTITION = 1
TIMEOUT_S = 60
WARM_UP_S = 1.0
VALUE = b"x" * 100
BATCH_RECORDS = 100
FETCH_BYTES = 64 * 1024
STORED_RECORDS = 20_000
QUIET = {"log_level": 0}
"""A client that outlives its broker would say so."""


class Load(NamedTuple):
    api: ApiKey
    version: int
    records: int
    """In each request."""


LOADS = {
    "small": Load(ApiKey.PRODUCE, 9, 1),
    "batch": Load(ApiKey.PRODUCE, 9, BATCH_RECORDS),
    "fetch": Load(ApiKey.FETCH, 11, 0),
}


class Figures(NamedTuple):
    requests_per_second: float
    us_of_cpu: float


def produced(partition: int, records: int, acks: int) -> Message:
    batch = build_batch([Record(number, 1, None, VALUE, ()) for number in range(records)])
    row = produce.PartitionProduceData(index=partition, records=batch)
    topic = produce.TopicProduceData(name=TOPIC, partition_data=[row])
    return produce.ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[topic])


def fetched(partition: int) -> Message:
    row = fetch.FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=FETCH_BYTES)
    topic = fetch.FetchTopic(topic=TOPIC, partitions=[row])
    return fetch.FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=FETCH_BYTES, topics=[topic])


def request_of(name: str, partition: int) -> bytes:
    load = LOADS[name]
    message = (
        fetched(partition)
        if name == "fetch"
        else produced(partition, load.records, -1 if name == "small" else 1)
    )
    return b"".join(bytes(piece) for piece in encode_request(load.api, load.version, 1, "load", message))


class Sender(threading.Thread):
    """One connection: sends twenty requests, reads twenty responses, and again."""

    def __init__(self, address: tuple[str, int], request: bytes, end: threading.Event) -> None:
        super().__init__(daemon=True)
        self._socket = socket.create_connection(address, TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = request
        self._end = end
        self.done = 0

    def run(self) -> None:
        self._socket.sendall(self._request)
        size = self._read_size()
        self._read(size)
        many = self._request * IN_FLIGHT
        while not self._end.is_set():
            self._socket.sendall(many)
            self._read((4 + size) * IN_FLIGHT)
            self.done += IN_FLIGHT
        self._socket.close()

    def _read_size(self) -> int:
        """Responses to the same request have the same size, or the log would have changed under it."""
        return int.from_bytes(self._socket.recv(4, socket.MSG_WAITALL), "big")

    def _read(self, count: int) -> None:
        buffer = bytearray(1 << 20)
        while count > 0:
            got = self._socket.recv_into(buffer, min(count, len(buffer)))
            if not got:
                raise SystemExit("the broker has closed the connection")
            count -= got


@contextmanager
def machine(processes: int) -> Iterator[BrokerProcess]:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        flags = ("--data-dir", f"{name}/data", "--http", "none", "--log-level", "warning")
        broker = BrokerProcess(Path(name), *flags, "--processes", str(processes))
        stack.callback(broker.stop)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, **QUIET})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(TIMEOUT_S)
        yield broker


def leaders(bootstrap: str) -> dict[int, tuple[str, int]]:
    """The address of each partition's leader."""
    found = AdminClient({"bootstrap.servers": bootstrap, **QUIET}).list_topics(TOPIC, TIMEOUT_S)
    partitions = found.topics[TOPIC].partitions
    brokers = {number: found.brokers[one.leader] for number, one in partitions.items()}
    return {number: (str(broker.host), broker.port) for number, broker in brokers.items()}


def pids(broker: BrokerProcess) -> list[int]:
    """Of the processes that serve."""
    return [child.pid for child in psutil.Process(broker.pid).children()] or [broker.pid]


def fill(address: tuple[str, int], partition: int) -> None:
    """Records to fetch."""
    end = threading.Event()
    sender = Sender(address, request_of("batch", partition), end)
    sender.start()
    while sender.done * BATCH_RECORDS < STORED_RECORDS:
        time.sleep(0.01)
    end.set()
    sender.join()


def measure(broker: BrokerProcess, name: str, seconds: float) -> Figures:
    where = leaders(broker.bootstrap)
    if name == "fetch":
        for partition, address in where.items():
            fill(address, partition)
    end = threading.Event()
    senders = [
        Sender(address, request_of(name, partition), end)
        for partition, address in where.items()
        for _ in range(CONNECTIONS_PER_PARTITION)
    ]
    for sender in senders:
        sender.start()
    time.sleep(WARM_UP_S)
    processes = pids(broker)
    began, done, cpu = time.perf_counter(), sum(one.done for one in senders), sum(map(cpu_ns, processes))
    time.sleep(seconds)
    took, count = time.perf_counter() - began, sum(one.done for one in senders) - done
    used = sum(map(cpu_ns, processes)) - cpu
    end.set()
    for sender in senders:
        sender.join()
    return Figures(count / took, used / max(count, 1) / 1000)


def compare(counts: Sequence[int], seconds: float, rounds: int) -> dict[tuple[str, int], Figures]:
    found: dict[tuple[str, int], list[Figures]] = {}
    for _ in range(rounds):
        for name in LOADS:
            for processes in counts:
                with machine(processes) as broker:
                    found.setdefault((name, processes), []).append(measure(broker, name, seconds))
    return {
        key: Figures(median(one.requests_per_second for one in runs), median(one.us_of_cpu for one in runs))
        for key, runs in found.items()
    }


def table(found: dict[tuple[str, int], Figures], counts: Sequence[int]) -> str:
    lines = [
        "| load | processes | requests/s | ratio | us of CPU a request |",
        "|---|---:|---:|---:|---:|",
    ]
    for name in LOADS:
        for processes in counts:
            one, first = found[name, processes], found[name, counts[0]]
            ratio = one.requests_per_second / first.requests_per_second
            lines.append(
                f"| {name} | {processes} | {one.requests_per_second:,.0f} | {ratio:.2f} | {one.us_of_cpu:.1f} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--publish", action="store_true", help="put the table into docs/benchmarks.md")
    options = parser.parse_args()
    counts = (1, options.processes)
    text = table(compare(counts, options.seconds, options.rounds), counts)
    print(text)
    if options.publish:
        how = f"{os.cpu_count()} cores, {options.rounds} rounds of {options.seconds:g} s in turns, medians."
        page.publish("processes", f"{how}\n\n{text}")


if __name__ == "__main__":
    main()
