"""Two of three nodes are destroyed: the records of the one that is left are read again after `cluster recover`."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.faults.clients import create_topic, describe_partitions, settings
from tests.faults.nodes import Cluster
from tests.faults.queue_workers import open_http
from tests.faults.waiting import PATIENCE_SECONDS, eventually

TOPIC = "orders"
COUNT = 50
SURVIVOR = 2


def command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli", "cluster", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def produce(bootstrap_servers: str, values: range) -> None:
    """Returns when all are acknowledged."""
    failed: list[object] = []
    producer = Producer(settings(bootstrap_servers, acks="all", enable_idempotence=True))
    for value in values:
        producer.produce(
            TOPIC, str(value), on_delivery=lambda error, _: failed.append(error) if error else None
        )
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert failed == []


def read_all(bootstrap_servers: str, count: int) -> list[int]:
    reader = Consumer(settings(bootstrap_servers, group_id="readers", enable_auto_commit=False))
    reader.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[int] = []

    def have_come() -> bool:
        found.extend(int(m.value() or b"") for m in reader.consume(count, 1.0) if m.error() is None)
        return len(found) >= count

    try:
        eventually(have_come, f"{count} records")
    finally:
        reader.close()
    return found


def is_healthy(url: str) -> bool:
    return command("status", "--check", "--http", url).returncode == 0


def test_the_records_of_the_last_node_are_read_and_copied_again(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    urls = open_http(cluster)
    with cluster:
        create_topic(cluster, TOPIC)
        produce(cluster.bootstrap_servers, range(COUNT))
        url = urls[SURVIVOR]
        eventually(lambda: is_healthy(url), "all replicas in sync")
        assert "nothing to do" in command("recover", "--http", url, "--accept-data-loss").stderr

        lost = [node for node in cluster.nodes.values() if node.node_id != SURVIVOR]
        for node in lost:
            node.kill()
            node.wipe()
        survivor = cluster[SURVIVOR]
        eventually(
            lambda: "nothing was changed" in command("recover", "--http", url).stderr, "a loss to recover"
        )
        assert survivor.is_running
        _recover_and_check(cluster, url)

        for node in lost:
            node.start()
        for node in lost:
            node.wait_ready()
        eventually(lambda: replicas_in_sync(cluster) == 3, "three replicas again")
        eventually(lambda: is_healthy(url), "a healthy cluster")
        survivor.kill()
        left = ",".join(node.bootstrap_servers for node in lost)
        produce(left, range(2 * COUNT, 3 * COUNT))
        assert read_all(left, 3 * COUNT) == list(range(3 * COUNT))
        survivor.start()
        survivor.wait_ready()


def _recover_and_check(cluster: Cluster, url: str) -> None:
    eventually(
        lambda: command("recover", "--http", url).returncode == 0, "nothing that heard its leader lately"
    )
    done = command("recover", "--http", url, "--accept-data-loss", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["recovered"]
    assert {"topic": TOPIC, "end_offset": COUNT}.items() <= next(
        one for one in report["partitions"] if one["topic"] == TOPIC
    ).items()
    survivor = cluster[SURVIVOR].bootstrap_servers
    assert read_all(survivor, COUNT) == list(range(COUNT))
    produce(survivor, range(COUNT, 2 * COUNT))
    assert read_all(survivor, 2 * COUNT) == list(range(2 * COUNT))


def replicas_in_sync(cluster: Cluster) -> int:
    found = describe_partitions(cluster, TOPIC, SURVIVOR)
    return len(found[0].in_sync) if found else 0


def test_a_node_that_was_restarted_after_the_loss_is_recovered_too(tmp_path: Path) -> None:
    """It serves no clients and has read none of its metadata: without a majority it does not know what is committed."""
    cluster = Cluster(tmp_path)
    urls = open_http(cluster)
    with cluster:
        create_topic(cluster, TOPIC)
        produce(cluster.bootstrap_servers, range(COUNT))
        eventually(lambda: is_healthy(urls[SURVIVOR]), "all replicas in sync")
        for node in cluster.nodes.values():
            node.kill()
            if node.node_id != SURVIVOR:
                node.wipe()
        survivor = cluster[SURVIVOR]
        survivor.start()
        eventually(answers(urls[SURVIVOR]), "its HTTP port")
        done = command("recover", "--http", urls[SURVIVOR], "--accept-data-loss")
        assert done.returncode == 0, done.stderr
        survivor.wait_ready()
        assert read_all(survivor.bootstrap_servers, COUNT) == list(range(COUNT))


def answers(url: str) -> Callable[[], bool]:
    return lambda: "__cluster_metadata" in command("recover", "--http", url).stdout
