"""kcat on an old librdkafka (Debian's)."""

import shutil
import subprocess
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import Broker

KCAT = shutil.which("kcat") or shutil.which("kafkacat")
pytestmark = pytest.mark.skipif(KCAT is None, reason="kcat is not installed (apt-get install kcat)")

Unique = Callable[[str], str]


def kcat(broker: Broker, *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        [KCAT or "kcat", "-b", broker.bootstrap_servers, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_go_in_and_come_out(broker: Broker, unique: Unique, codec: str) -> None:
    topic = unique("kcat")
    lines = "".join(f"key{number}:value{number}\n" for number in range(300))
    kcat(broker, "-P", "-t", topic, "-K", ":", "-z", codec, stdin=lines)
    assert kcat(broker, "-C", "-t", topic, "-e", "-q", "-K", ":") == lines
    stored = kcat(broker, "-C", "-t", topic, "-e", "-q", "-f", "%o\n")
    assert stored.split() == [str(number) for number in range(300)]


def test_metadata_lists_broker_and_topic(broker: Broker, unique: Unique) -> None:
    topic = unique("kcat")
    kcat(broker, "-P", "-t", topic, stdin="x\n")
    listing = kcat(broker, "-L")
    assert f'topic "{topic}" with 1 partitions' in listing
    assert "1 brokers" in listing


def test_a_balanced_consumer_group_reads_and_commits(broker: Broker, unique: Unique) -> None:
    topic, group = unique("kcat"), unique("group")
    kcat(broker, "-P", "-t", topic, stdin="one\ntwo\n")
    settings = ("-X", "auto.offset.reset=earliest", "-e", "-q", "-G", group, topic)
    assert kcat(broker, *settings) == "one\ntwo\n"
    kcat(broker, "-P", "-t", topic, stdin="three\n")
    assert kcat(broker, *settings) == "three\n"


def test_offsets_are_queried_by_time(broker: Broker, unique: Unique) -> None:
    topic = unique("kcat")
    kcat(broker, "-P", "-t", topic, stdin="one\ntwo\n")
    assert "offset 2" in kcat(broker, "-Q", "-t", f"{topic}:0:-1")
    assert "offset 0" in kcat(broker, "-Q", "-t", f"{topic}:0:-2")


class BalancedKcat:
    """A `kcat -G` that runs until it is stopped; it prints every rebalance on its standard error."""

    def __init__(self, broker: Broker, group: str, topic: str) -> None:
        fast = ("-X", "heartbeat.interval.ms=200", "-X", "session.timeout.ms=30000")
        self._process = subprocess.Popen(
            [KCAT or "kcat", "-b", broker.bootstrap_servers, *fast, "-G", group, topic],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def next_assignment(self) -> int:
        """Waits for the next rebalance that assigns partitions; how many."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if "assigned:" in line and "revoked" not in line:
                return line.split("assigned:", 1)[1].count("[")
        raise AssertionError("kcat ended")

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate()


def test_two_members_share_the_partitions(broker: Broker, unique: Unique) -> None:
    topic, group = unique("kcat"), unique("group")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 4, 1)])[topic].result(60)
    one = BalancedKcat(broker, group, topic)
    assert one.next_assignment() == 4
    two = BalancedKcat(broker, group, topic)
    assert two.next_assignment() == 2
    assert one.next_assignment() == 2
    two.stop()
    assert one.next_assignment() == 4
    one.stop()
