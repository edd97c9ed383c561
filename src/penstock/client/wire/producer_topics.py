"""How many partitions a topic has that is to be written to, and making it where the broker does that on first use."""

from penstock.client.errors import Refused
from penstock.client.wire.cluster import Cluster
from penstock.client.wire.connection_pool import Pool
from penstock.client.wire.retry import persist
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse


def partition_count(cluster: Cluster, topic: str) -> int:
    """Refused, if the topic is not there and does not come into being either."""
    found = cluster.topics([topic]).get(topic)
    if found is None:
        persist(cluster.settings, lambda: _ask_to_create(cluster, topic))
        found = cluster.topics([topic]).get(topic)
    if found is None or not found.partitions:
        raise _missing(topic)
    return len(found.partitions)


def _ask_to_create(cluster: Cluster, topic: str) -> None:
    """Metadata as Kafka's producer asks for it: a broker that creates topics on first use does so now."""
    pool = Pool(cluster.settings)
    wish = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True)
    try:
        answer = pool.ask_any(ApiKey.METADATA, wish)
    finally:
        pool.close()
    assert isinstance(answer, MetadataResponse)
    for row in answer.topics:
        if row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise _missing(topic)
        if row.error_code != ErrorCode.NONE:
            raise Refused(row.error_code, f"topic {topic!r}")


def _missing(topic: str) -> Refused:
    return Refused(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"topic {topic!r}",
        "it does not exist and the broker does not create topics on first use: create it, or check its name",
    )
