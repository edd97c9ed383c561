"""A client that reads old records from the disk, and what that does to a producer beside it.

A node has some gigabytes of records that are not in the system's cache of files. A producer sends
one small batch at a time with acks=all, 500 a second, first alone and then while a consumer reads all old records, in
turns. The figure is the producer's p99 beside the reader over its p99 alone. With acks=all it also has the disk's part:
the flush of a batch waits behind reads. `--acks 1` shows the event loop alone.

Where the disk is as quick as memory, nothing waits for it. `--disk-mb 60` makes it slow for the node, by a control
group (Linux, cgroup v1, as root).

    python benchmarks/cold_reads.py [--gigabytes 4] [--acks 1] [--disk-mb 60] [--json]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from penstock_launcher import Penstock
from request_cost import BATCH

from penstock.client.wire import ClientSettings, Connection
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages import produce

OLD, NEW = "old", "new"
PARTITIONS = 4
RECORD_BYTES = 10_000
RATE = 500
ALONE_SECONDS = 5
TURNS = 3
TIMEOUT_S = 600
CONTROL_GROUP = Path("/sys/fs/cgroup/blkio/penstock-benchmark")

READER = """
import sys
from confluent_kafka import Consumer, TopicPartition
servers, topic, partitions, wanted = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
consumer = Consumer({"bootstrap.servers": servers, "group.id": "cold", "check.crcs": False})
consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
while wanted > 0:
    wanted -= len(consumer.consume(1000, timeout=60))
consumer.close()
"""


def fill(servers: str, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for topic in (OLD, NEW):
        admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "batch.size": 1_000_000})
    value = os.urandom(RECORD_BYTES)
    for number in range(count):
        while True:
            try:
                producer.produce(OLD, value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(TIMEOUT_S) == 0


def evict(folder: Path) -> None:
    """Has the system forget the bytes of all files."""
    os.sync()
    for path in folder.rglob("*.log"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def slow_down(pid: int, folder: str, megabytes_per_second: float) -> None:
    """Bounds what the process may read from the disk of this folder."""
    device = os.stat(folder).st_dev
    CONTROL_GROUP.mkdir(exist_ok=True)
    limit = f"{os.major(device)}:{os.minor(device)} {int(megabytes_per_second * 1e6)}"
    (CONTROL_GROUP / "blkio.throttle.read_bps_device").write_text(limit)
    (CONTROL_GROUP / "cgroup.procs").write_text(str(pid))


def latencies_ms(connection: Connection, acks: int, reader: "subprocess.Popen[bytes] | None") -> list[float]:
    """Of one Produce after the other, until the reader has ended."""
    topic = produce.TopicProduceData(
        name=NEW, partition_data=[produce.PartitionProduceData(index=0, records=BATCH)]
    )
    request = produce.ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=[topic])
    began, found = time.perf_counter(), list[float]()
    while (reader.poll() is None) if reader else (time.perf_counter() - began < ALONE_SECONDS):
        sent = time.perf_counter()
        connection.send(ApiKey.PRODUCE, request, version=9)
        connection.receive()
        done = time.perf_counter()
        found.append((done - sent) * 1000)
        time.sleep(max(0.0, 1 / RATE - (done - sent)))
    return found


def p99(values: list[float]) -> float:
    return quantiles(values, n=100)[98]


def measure(gigabytes: float, acks: int, disk_mb: float | None) -> dict[str, float]:
    count = int(gigabytes * 1e9 / RECORD_BYTES)
    with tempfile.TemporaryDirectory() as folder:
        node = Penstock(Path(folder))
        node.start()
        try:
            print(f"writing {gigabytes} GB", file=sys.stderr)
            fill(node.bootstrap, count)
            if disk_mb is not None:
                slow_down(node.pid, folder, disk_mb)
            connection = Connection("127.0.0.1", node.port, ClientSettings(bootstrap_servers=node.bootstrap))
            alone, beside, seconds = list[list[float]](), list[list[float]](), list[float]()
            for turn in range(TURNS):
                evict(Path(folder))
                alone.append(latencies_ms(connection, acks, None))
                command = [sys.executable, "-c", READER, node.bootstrap, OLD, str(PARTITIONS), str(count)]
                began = time.perf_counter()
                with subprocess.Popen(command) as reader:
                    beside.append(latencies_ms(connection, acks, reader))
                seconds.append(time.perf_counter() - began)
                print(f"turn {turn + 1} of {TURNS}", file=sys.stderr)
            connection.close()
        finally:
            node.stop()
    return {
        "alone p50 ms": median(map(median, alone)),
        "alone p99 ms": median(map(p99, alone)),
        "beside a cold reader p50 ms": median(map(median, beside)),
        "beside a cold reader p99 ms": median(map(p99, beside)),
        "beside a cold reader worst ms": median(map(max, beside)),
        "reader MB per_second": gigabytes * 1000 / median(seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--acks", type=int, default=-1, choices=(-1, 1))
    parser.add_argument("--disk-mb", type=float, help="megabytes a second that the node may read")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    values = measure(options.gigabytes, options.acks, options.disk_mb)
    if options.json:
        print(json.dumps(values))
        return
    for name, value in values.items():
        print(f"{name:<32} {value:>10.2f}")


if __name__ == "__main__":
    main()
