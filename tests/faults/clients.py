"""Real clients, and the metadata that they get from a cluster."""

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.faults.nodes import Cluster
from tests.faults.waiting import PATIENCE_SECONDS, eventually
from tests.kafka.raw import RawClient

METADATA_SECONDS = 5.0


def settings(bootstrap_servers: str, **more: Any) -> dict[str, Any]:
    """Settings of librdkafka that find a new leader soon."""
    ours = {name.replace("_", "."): value for name, value in more.items()}
    return {
        "bootstrap.servers": bootstrap_servers,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 200,
        "retry.backoff.ms": 50,
        "topic.metadata.refresh.interval.ms": 2000,
        "log_level": 0,
        **ours,
    }


def create_topic(
    cluster: Cluster, name: str, partitions: int = 1, *, replicas: int = 3, **config: str
) -> None:
    """Returns when every partition has a leader."""
    admin = AdminClient(settings(cluster.bootstrap_servers))
    configs = {key.replace("_", "."): value for key, value in config.items()}
    wish = NewTopic(name, partitions, replicas, config=configs)
    admin.create_topics([wish])[name].result(PATIENCE_SECONDS)
    eventually(lambda: min(leaders(cluster, name).values(), default=-1) > 0, f"leaders of {name}")


class PartitionInfo:
    """One partition, as metadata shows it."""

    def __init__(self, leader: int, replicas: tuple[int, ...], in_sync: tuple[int, ...]) -> None:
        self.leader = leader
        self.replicas = replicas
        self.in_sync = in_sync


def describe_partitions(
    cluster: Cluster, topic: str, asked: int | None = None
) -> Mapping[int, PartitionInfo]:
    """The topic's partitions in the metadata of the nodes, or of one of them; empty without an answer."""
    where = cluster.bootstrap_servers if asked is None else cluster[asked].bootstrap_servers
    try:
        known = AdminClient(settings(where)).list_topics(topic, timeout=METADATA_SECONDS)
    except KafkaException:
        return {}
    return {
        index: PartitionInfo(one.leader, tuple(one.replicas), tuple(one.isrs))
        for index, one in known.topics[topic].partitions.items()
    }


def leaders(cluster: Cluster, topic: str, asked: int | None = None) -> dict[int, int]:
    return {index: one.leader for index, one in describe_partitions(cluster, topic, asked).items()}


def leader_of(cluster: Cluster, topic: str, partition: int = 0, *, other_than: int = 0) -> int:
    """The leader; waits until there is one that is not `other_than`. Then it asks the other nodes: one that is cut off
    or stopped has old metadata."""
    asked = next((node.node_id for node in cluster.running if node.node_id != other_than), None)
    found = -1

    def is_known() -> bool:
        nonlocal found
        found = leaders(cluster, topic, asked if other_than else None).get(partition, -1)
        return found > 0 and found != other_than

    eventually(is_known, f"a leader of {topic}-{partition} other than {other_than}")
    return found


def wait_in_sync(cluster: Cluster, topic: str) -> None:
    """Waits until every replica of the topic is in sync."""

    def all_in_sync() -> bool:
        known = describe_partitions(cluster, topic)
        return bool(known) and all(set(one.replicas) == set(one.in_sync) for one in known.values())

    eventually(all_in_sync, f"all replicas of {topic} in sync")


def raw(cluster: Cluster, node_id: int) -> RawClient:
    """A client that knows no leaders: it asks this node only."""
    return RawClient(cluster[node_id])
