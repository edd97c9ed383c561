"""A producer and a real broker, read back by librdkafka."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import pack

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock import Broker
from penstock.batch import Record
from penstock.batch.producing import Column, RowColumns, encode_columns
from penstock.client import Refused, Unreachable
from penstock.client.wire import ClientSettings, Cluster
from penstock.client.wire.producer import BatchProducer
from penstock.errors import ConfigError
from penstock.types import TopicPartition as Place
from tests.client.wire.conftest import Connect

NOW_MS = 1_700_000_000_000
PATIENCE_SECONDS = 60.0


def read_values(servers: str, topic: str, partitions: int, count: int) -> list[list[bytes]]:
    """The values in each partition, which together must be `count`."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": topic, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found: list[list[bytes]] = [[] for _ in range(partitions)]
    ends = 0
    while ends < partitions:
        (message,) = consumer.consume(1, PATIENCE_SECONDS) or [None]
        assert message is not None, "the broker gave nothing more"
        if message.error():
            ends += 1
        else:
            found[message.partition() or 0].append(message.value() or b"")
    consumer.close()
    assert sum(map(len, found)) == count
    return found


def records(*values: bytes) -> list[Record]:
    return [Record(0, NOW_MS, None, value) for value in values]


def rows_of(values: list[bytes]) -> RowColumns:
    ends = [0]
    for value in values:
        ends.append(ends[-1] + len(value))
    return RowColumns(len(values), Column(), Column(pack(f"<{len(ends)}i", *ends), b"".join(values)))


@pytest.mark.parametrize("compression", range(5))
def test_encoded_rows_arrive_in_order(
    broker: Broker, cluster: Cluster, unique: Callable[[str], str], compression: int
) -> None:
    topic = unique("rows")
    cluster.create_topic(topic, 2)
    values = [b"value-%d" % number for number in range(5000)]
    with BatchProducer(cluster, compression=compression, batch_bytes=4096) as producer:
        columns = rows_of(values)
        for partition in range(2):
            start = 0
            while start < len(values):
                rows = encode_columns(columns, b"", start, producer.batch_bytes(topic), NOW_MS)
                producer.send(Place(topic, partition), rows)
                start += rows.rows
        producer.flush()
        assert producer.acked_rows == 10_000
    assert read_values(broker.bootstrap_servers, topic, 2, 10_000) == [values, values]


def test_headers_keys_and_times_of_single_records_are_kept(
    broker: Broker, cluster: Cluster, unique: Callable[[str], str]
) -> None:
    topic = unique("letters")
    with BatchProducer(cluster) as producer:
        assert producer.partitions_of(topic) == 1
        producer.send_records(topic, 0, [Record(9, NOW_MS, b"k", None, (("why", b"bad"), ("none", None)))])
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    (message,) = consumer.consume(1, PATIENCE_SECONDS)
    consumer.close()
    assert (message.key(), message.value(), message.timestamp()[1]) == (b"k", None, NOW_MS)
    assert message.headers() == [("why", b"bad"), ("none", None)]


def test_a_missing_topic_is_created_if_the_broker_does_that(
    cluster: Cluster, unique: Callable[[str], str]
) -> None:
    topic = unique("new")
    assert BatchProducer(cluster).partitions_of(topic) == 1
    assert topic in cluster.topics([topic])


def test_a_missing_topic_is_an_error_if_the_broker_does_not_create_it(connect: Connect) -> None:
    with Broker(auto_create_topics=False) as broker:
        producer = BatchProducer(connect(broker.bootstrap_servers, retry_for_ms=20))
        with pytest.raises(Refused, match=r"topic 'absent': UNKNOWN_TOPIC_OR_PARTITION, .*create it"):
            producer.partitions_of("absent")


def test_batches_are_split_to_fit_the_topics_limit(
    broker: Broker, cluster: Cluster, unique: Callable[[str], str]
) -> None:
    topic = unique("small")
    cluster.create_topic(topic, 1, {"max.message.bytes": "3000"})
    values = [b"%03d" % number + b"." * 100 for number in range(200)]
    with BatchProducer(cluster) as producer:
        producer.send_records(topic, 0, records(*values))
    assert read_values(broker.bootstrap_servers, topic, 1, 200) == [values]


def test_a_record_beyond_a_request_is_refused_before_it_is_sent(cluster: Cluster) -> None:
    producer = BatchProducer(cluster, max_request_bytes=2000)
    rows = encode_columns(rows_of([b"." * 3000]), b"", 0, 1, NOW_MS)
    with pytest.raises(Refused, match=r"topic-0: MESSAGE_TOO_LARGE, .*max_request_bytes=2000"):
        producer.send(Place("topic", 0), rows)


def test_more_than_five_requests_in_flight_are_refused(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="max_in_flight=6"):
        BatchProducer(cluster, max_in_flight=6)


def test_an_unreachable_broker_is_named() -> None:
    settings = ClientSettings(bootstrap_servers="127.0.0.1:1", retry_for_ms=10)
    with Cluster(settings) as cluster, pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
        BatchProducer(cluster).partitions_of("any")


class BrokerProcess:
    """A broker that can be killed and restarted on the same port."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._port = 0
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> str:
        code = (
            "import sys, penstock; "
            "broker = penstock.Broker(data_dir=sys.argv[1], kafka=sys.argv[2], http=None); "
            "print(broker.bootstrap_servers, flush=True); sys.stdin.read()"
        )
        address = f"127.0.0.1:{self._port}"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, str(self._data_dir), address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        servers = self._process.stdout.readline().strip()
        self._port = int(servers.rpartition(":")[2])
        return servers

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


@contextmanager
def broker_process(data_dir: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(data_dir)
    try:
        yield process
    finally:
        process.kill()


def test_a_broker_killed_in_mid_write_has_each_record_once_and_in_order(tmp_path: Path) -> None:
    values = [b"%06d" % number + b"." * 90 for number in range(30_000)]
    with broker_process(tmp_path / "data") as process:
        settings = ClientSettings(bootstrap_servers=process.start(), retry_backoff_ms=10)
        with Cluster(settings) as cluster:
            cluster.create_topic("kept", 3)
            with BatchProducer(
                cluster, batch_bytes=8_000, max_request_bytes=20_000, buffer_bytes=200_000
            ) as producer:
                for start in range(0, len(values), 100):
                    if start in (9_000, 21_000):
                        process.kill()  # requests are in flight, answers are on their way
                        process.start()
                    for partition in range(3):
                        producer.send_records("kept", partition, records(*values[start : start + 100]))
        found = read_values(settings.bootstrap_servers, "kept", 3, 90_000)
    assert found == [values] * 3
