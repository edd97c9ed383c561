"""The broker's CPU for one small request of each kind, in microseconds: what is left when batches are small.

One node in memory, one connection. Requests come one at a time (each waits for the response before it), or twenty in
flight, as librdkafka's producer sends them. The figure is the CPU time of all threads of the broker, also of the thread
that flushes, over the number of requests: the median of several turns.

    python benchmarks/request_cost.py [--json]
    python benchmarks/before_after.py REVISION --only requests     the same at an earlier revision, in turns
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

from confluent_kafka.admin import AdminClient, NewTopic
from cpu_time import cpu_ns
from penstock_launcher import Penstock

from penstock.batch import Record, build_batch
from penstock.client.wire import ClientSettings, Connection
from penstock.kafka.wire import ApiKey, Message
from penstock.kafka.wire.messages import fetch, list_offsets, metadata, produce

TURNS = 7
REQUESTS = 2_000
PIPELINED = 20
TOPIC = "orders"
PARTITIONS = 10
TIMEOUT_S = 60
VALUE = b"x" * 100
BATCH = build_batch([Record(0, 1, None, VALUE, ())])

Make = Callable[[int], Message]


def produced(acks: int, partitions: int = 1) -> Make:
    """A request with one batch of one record for each partition."""

    def request(_: int) -> Message:
        rows = [produce.PartitionProduceData(index=index, records=BATCH) for index in range(partitions)]
        topic = produce.TopicProduceData(name=TOPIC, partition_data=rows)
        return produce.ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=[topic])

    return request


def fetched(number: int) -> Message:
    """One batch, from a place that is in the log."""
    row = fetch.FetchPartition(partition=0, fetch_offset=number % REQUESTS, partition_max_bytes=1)
    topic = fetch.FetchTopic(topic=TOPIC, partitions=[row])
    return fetch.FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, topics=[topic])


def latest(_: int) -> Message:
    row = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
    return list_offsets.ListOffsetsRequest(
        topics=[list_offsets.ListOffsetsTopic(name=TOPIC, partitions=[row])]
    )


def described(_: int) -> Message:
    return metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=TOPIC)])


LOADS: dict[str, tuple[ApiKey, int, Make, int]] = {
    "Produce, acks=1, one at a time": (ApiKey.PRODUCE, 9, produced(1), 1),
    "Produce, acks=all, one at a time": (ApiKey.PRODUCE, 9, produced(-1), 1),
    "Produce, acks=1, pipelined": (ApiKey.PRODUCE, 9, produced(1), PIPELINED),
    "Produce, acks=all, pipelined": (ApiKey.PRODUCE, 9, produced(-1), PIPELINED),
    "Produce, acks=all, pipelined, 10 partitions": (ApiKey.PRODUCE, 9, produced(-1, PARTITIONS), PIPELINED),
    "Fetch of one batch": (ApiKey.FETCH, 11, fetched, 1),
    "ListOffsets": (ApiKey.LIST_OFFSETS, 7, latest, 1),
    "Metadata of one topic": (ApiKey.METADATA, 12, described, 1),
}


def us_per_request(
    connection: Connection, pid: int, api: ApiKey, version: int, make: Make, in_flight: int
) -> float:
    before = cpu_ns(pid)
    for number in range(REQUESTS + in_flight):
        if number < REQUESTS:
            connection.send(api, make(number), version=version)
        if number >= in_flight:
            connection.receive()
    return (cpu_ns(pid) - before) / REQUESTS / 1000


def measure(turns: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        node = Penstock(Path(folder), "--memory")
        node.start()
        try:
            admin = AdminClient({"bootstrap.servers": node.bootstrap})
            admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(TIMEOUT_S)
            connection = Connection("127.0.0.1", node.port, ClientSettings(bootstrap_servers=node.bootstrap))
            values: dict[str, list[float]] = {name: [] for name in LOADS}
            for turn in range(turns + 1):
                for name, load in LOADS.items():
                    value = us_per_request(connection, node.pid, *load)
                    if turn:  # the first turn is for code that is loaded on demand
                        values[name].append(value)
            connection.close()
        finally:
            node.stop()
    return {name: median(found) for name, found in values.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--turns", type=int, default=TURNS)
    options = parser.parse_args()
    values = measure(options.turns)
    if options.json:
        print(json.dumps({f"{name}, us": value for name, value in values.items()}))
        return
    print(f"{'request':<46} {'us of CPU':>10}")
    for name, value in values.items():
        print(f"{name:<46} {value:>10.1f}")


if __name__ == "__main__":
    main()
