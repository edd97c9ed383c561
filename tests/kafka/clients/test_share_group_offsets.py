"""AlterShareGroupOffsets and DescribeShareGroupOffsets, as Apache Kafka 4.2.1 answers them.

No Python client sends these two requests, so a raw client does; confluent-kafka's share consumer and its administrator
see the effect.
"""

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import Broker
from penstock.errors import ErrorCode
from penstock.kafka.wire import NO_UUID, ApiKey
from penstock.kafka.wire.messages import alter_share_group_offsets as altering
from penstock.kafka.wire.messages import delete_share_group_offsets as deleting
from penstock.kafka.wire.messages import describe_share_group_offsets as describing
from penstock.kafka.wire.messages import find_coordinator as finding
from penstock.kafka.wire.messages import share_group_describe as groups
from tests.kafka.clients.queues import PATIENCE_SECONDS, publish, take, worker
from tests.kafka.raw import RawClient
from tests.kafka.requests import ask

Unique = Callable[[str], str]
NOT_YET = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    """Connected to the coordinator of all groups, which has loaded."""
    with RawClient(broker) as connected:
        request = finding.FindCoordinatorRequest(key_type=0, coordinator_keys=["any"])
        ask(connected, ApiKey.FIND_COORDINATOR, 4, request, finding.FindCoordinatorResponse)
        yield connected


@pytest.fixture
def topic(admin: AdminClient, unique: Unique) -> str:
    name = unique("orders")
    admin.create_topics([NewTopic(name, num_partitions=2)])[name].result(PATIENCE_SECONDS)
    return name


def alter(
    client: RawClient, group: str, rows: dict[str, dict[int, int]]
) -> altering.AlterShareGroupOffsetsResponse:
    """Start offsets by topic and partition."""
    topics = [
        altering.AlterShareGroupOffsetsRequestTopic(
            topic_name=name,
            partitions=[
                altering.AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset)
                for index, offset in offsets.items()
            ],
        )
        for name, offsets in rows.items()
    ]
    request = altering.AlterShareGroupOffsetsRequest(group_id=group, topics=topics)
    while True:
        key = ApiKey.ALTER_SHARE_GROUP_OFFSETS
        answer = ask(client, key, 0, request, altering.AlterShareGroupOffsetsResponse)
        if answer.error_code not in NOT_YET:
            return answer


def codes(answer: altering.AlterShareGroupOffsetsResponse) -> dict[str, dict[int, int]]:
    return {
        topic.topic_name: {row.partition_index: row.error_code for row in topic.partitions}
        for topic in answer.responses
    }


def describe(
    client: RawClient, group: str, wanted: dict[str, list[int]] | None
) -> describing.DescribeShareGroupOffsetsResponseGroup:
    topics = None
    if wanted is not None:
        topics = [
            describing.DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=indexes)
            for name, indexes in wanted.items()
        ]
    row = describing.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=topics)
    request = describing.DescribeShareGroupOffsetsRequest(groups=[row])
    while True:
        key = ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS
        (found,) = ask(client, key, 1, request, describing.DescribeShareGroupOffsetsResponse).groups
        if found.error_code not in NOT_YET:
            return found


def starts(group: describing.DescribeShareGroupOffsetsResponseGroup) -> dict[str, dict[int, int]]:
    assert group.error_code == ErrorCode.NONE
    rows = [row for topic in group.topics for row in topic.partitions]
    assert all((row.error_code, row.error_message) == (ErrorCode.NONE, None) for row in rows)
    return {
        topic.topic_name: {row.partition_index: row.start_offset for row in topic.partitions}
        for topic in group.topics
    }


def exists(client: RawClient, group: str) -> bool:
    request = groups.ShareGroupDescribeRequest(group_ids=[group])
    (found,) = ask(client, ApiKey.SHARE_GROUP_DESCRIBE, 1, request, groups.ShareGroupDescribeResponse).groups
    assert found.error_code in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND)
    return found.error_code == ErrorCode.NONE


def test_offsets_of_a_group_that_does_not_exist_create_it(
    broker: Broker, admin: AdminClient, client: RawClient, unique: Unique
) -> None:
    topic, group = unique("orders"), unique("workers")
    admin.create_topics([NewTopic(topic, num_partitions=1)])[topic].result(PATIENCE_SECONDS)
    publish(broker.bootstrap_servers, topic, ["0", "1", "2", "3"])
    assert codes(alter(client, group, {topic: {0: 2}})) == {topic: {0: ErrorCode.NONE}}
    assert exists(client, group)
    # A group without offsets would begin at the end, and get nothing.
    with worker(broker.bootstrap_servers, group, topic) as consumer:
        assert [one.value() for one in take(consumer, lambda found: len(found) == 2)] == [b"2", b"3"]


def test_a_request_without_a_partition_that_exists_creates_no_group(
    client: RawClient, topic: str, unique: Unique
) -> None:
    group, unknown = unique("workers"), unique("nowhere")
    refused = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes(alter(client, group, {unknown: {0: 1}})) == {unknown: {0: refused}}
    assert not exists(client, group)
    mixed = alter(client, group, {topic: {1: 1, 9: 1}, unknown: {0: 1}})
    assert codes(mixed) == {topic: {1: ErrorCode.NONE, 9: refused}, unknown: {0: refused}}
    assert exists(client, group)
    assert starts(describe(client, group, None)) == {topic: {1: 1}}


def test_the_name_of_a_consumer_group_is_no_share_group(
    broker: Broker, client: RawClient, topic: str, unique: Unique
) -> None:
    group = unique("readers")
    reader = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    try:
        reader.subscribe([topic])
        while not reader.assignment():
            reader.poll(0.1)
        assert alter(client, group, {topic: {0: 1}}).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    finally:
        reader.close()
    assert alter(client, "", {topic: {0: 1}}).error_code == ErrorCode.INVALID_GROUP_ID


def test_offsets_are_described_without_looking_the_group_or_the_topic_up(
    client: RawClient, topic: str, unique: Unique
) -> None:
    group, unknown = unique("workers"), unique("nowhere")
    found = describe(client, group, {topic: [0, 1, 7], unknown: [0]})
    assert starts(found) == {topic: {0: -1, 1: -1, 7: -1}, unknown: {0: -1}}
    assert {one.topic_name: one.topic_id == NO_UUID for one in found.topics} == {topic: False, unknown: True}
    assert starts(describe(client, group, None)) == {}
    assert not exists(client, group)
    alter(client, group, {topic: {0: 5}})
    assert starts(describe(client, group, {topic: [0, 1], unknown: [0]})) == {
        topic: {0: 5, 1: -1},
        unknown: {0: -1},
    }


def test_offsets_of_a_group_that_does_not_exist_cannot_be_deleted(
    client: RawClient, topic: str, unique: Unique
) -> None:
    row = deleting.DeleteShareGroupOffsetsRequestTopic(topic_name=topic)
    request = deleting.DeleteShareGroupOffsetsRequest(group_id=unique("workers"), topics=[row])
    key = ApiKey.DELETE_SHARE_GROUP_OFFSETS
    answer = ask(client, key, 0, request, deleting.DeleteShareGroupOffsetsResponse)
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
