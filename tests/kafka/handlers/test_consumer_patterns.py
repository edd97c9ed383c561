"""A member of a consumer group subscribes by a pattern, which the broker matches."""

from collections.abc import Callable
from uuid import UUID, uuid4

from penstock import Broker
from penstock.cluster import OFFSETS_TOPIC
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages import consumer_group_heartbeat as heartbeats
from penstock.kafka.wire.messages import metadata
from tests.kafka.raw import RawClient
from tests.kafka.requests import ask, create
from tests.kafka.waiting import wait_until

Unique = Callable[[str], str]


def topic_ids(client: RawClient, *names: str) -> set[UUID | None]:
    request = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=name) for name in names])
    answer = ask(client, ApiKey.METADATA, 12, request, metadata.MetadataResponse)
    return {topic.topic_id for topic in answer.topics}


def test_a_pattern_matches_whole_names_also_of_internal_topics(broker: Broker, unique: Unique) -> None:
    """As in Kafka; franz-go relies on it."""
    name, group, member = unique("orders"), unique("group"), str(uuid4())
    heartbeat = heartbeats.ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=[],
        subscribed_topic_regex=f"{name}|{OFFSETS_TOPIC}",
        topic_partitions=[],
    )
    with RawClient(broker) as client:
        create(client, name, replicas=1)
        create(client, f"{name}-v2", replicas=1)
        seen: set[UUID | None] = set()

        def has_both() -> bool:
            answer = ask(
                client,
                ApiKey.CONSUMER_GROUP_HEARTBEAT,
                1,
                heartbeat,
                heartbeats.ConsumerGroupHeartbeatResponse,
            )
            assert answer.error_code in (ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            heartbeat.member_epoch = answer.member_epoch
            if answer.assignment is not None:
                seen.clear()
                seen.update(one.topic_id for one in answer.assignment.topic_partitions)
            return len(seen) == 2

        wait_until(has_both)
        assert seen == topic_ids(client, name, OFFSETS_TOPIC)
