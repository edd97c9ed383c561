"""A topic is deleted and recreated while its group has no coordinator: the group begins at its configured start, and
not at its offset in the old topic."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID, uuid4

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place

from penstock import Broker
from penstock.cluster import OFFSETS_TOPIC, TopicCreated
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages import create_topics as creating
from penstock.kafka.wire.messages import delete_topics as deleting
from penstock.kafka.wire.messages import metadata
from penstock.kafka.wire.messages import offset_commit as committing
from penstock.kafka.wire.messages import offset_fetch as fetching
from tests.kafka.raw import RawClient
from tests.kafka.requests import ask, create
from tests.kafka.trio import Trio

Unique = Callable[[str], str]

PATIENCE_SECONDS = 60.0


def keep_offsets_on(trio: Trio, node_id: int) -> None:
    """Without this node there is no coordinator."""
    topic = TopicCreated(
        name=OFFSETS_TOPIC,
        topic_id=uuid4(),
        assignments=[[node_id]],
        configs={"cleanup.policy": "compact"},
        internal=True,
    )
    trio.run(trio.node(trio.controller()).metadata.change(lambda state: [topic]))
    assert trio.leader(OFFSETS_TOPIC) == node_id


def create_on(trio: Trio, name: str, nodes: list[int]) -> None:
    placed = creating.CreatableReplicaAssignment(partition_index=0, broker_ids=nodes)
    wish = creating.CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=[placed])
    request = creating.CreateTopicsRequest(topics=[wish], timeout_ms=10_000)
    with trio.client(nodes[0]) as client:
        answer = ask(client, ApiKey.CREATE_TOPICS, 5, request, creating.CreateTopicsResponse)
    assert answer.topics[0].error_code == ErrorCode.NONE
    trio.leader(name)


def delete(trio: Trio, name: str) -> None:
    request = deleting.DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000)
    with trio.client(trio.running[0]) as client:
        answer = ask(client, ApiKey.DELETE_TOPICS, 4, request, deleting.DeleteTopicsResponse)
    assert answer.responses[0].error_code == ErrorCode.NONE
    trio.eventually(lambda: all(name not in trio.node(one).metadata.state.topics for one in trio.running))


def fill(trio: Trio, topic: str, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": trio.bootstrap_servers, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value.encode())
    assert producer.flush(PATIENCE_SECONDS) == 0


@contextmanager
def consumer(trio: Trio, group: str) -> Iterator[Consumer]:
    member = Consumer(
        {
            "bootstrap.servers": trio.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        yield member
    finally:
        member.close()


def place(trio: Trio, group: str, topic: str) -> int:
    """The group's committed offset; negative if there is none."""
    with consumer(trio, group) as member:
        [found] = member.committed([Place(topic, 0)], timeout=PATIENCE_SECONDS)
        assert found.error is None
        return found.offset


def read(trio: Trio, group: str, topic: str, count: int) -> list[str]:
    """A member of the group reads and commits so many records."""
    with consumer(trio, group) as member:
        member.subscribe([topic])
        records = member.consume(count, timeout=PATIENCE_SECONDS)
        assert [record.error() for record in records] == [None] * count
        member.commit(asynchronous=False)
        return [(record.value() or b"").decode() for record in records]


def test_a_group_starts_over_in_a_topic_that_was_recreated_while_it_had_no_coordinator(
    trio: Trio, unique: Unique
) -> None:
    topic, group = unique("orders"), unique("billing")
    at = next(one for one in trio.running if one != trio.controller())
    others = [one for one in trio.running if one != at]
    keep_offsets_on(trio, at)

    create_on(trio, topic, others)
    fill(trio, topic, [f"old-{number}" for number in range(5)])
    read(trio, group, topic, 5)
    assert place(trio, group, topic) == 5

    trio.stop(at)
    delete(trio, topic)
    create_on(trio, topic, others)
    new = [f"new-{number}" for number in range(8)]
    fill(trio, topic, new)
    trio.start(at)
    trio.leader(OFFSETS_TOPIC)

    assert place(trio, group, topic) < 0
    assert read(trio, group, topic, 8) == new, "the first five would be missing"
    assert place(trio, group, topic) == 8


# --- topics named by their ids


def id_of(client: RawClient, topic: str) -> UUID:
    request = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=topic)])
    return ask(client, ApiKey.METADATA, 12, request, metadata.MetadataResponse).topics[0].topic_id


def commit(client: RawClient, group: str, topic_id: UUID, offset: int) -> int:
    row = committing.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    request = committing.OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[committing.OffsetCommitRequestTopic(topic_id=topic_id, partitions=[row])],
    )
    answer = ask(client, ApiKey.OFFSET_COMMIT, 10, request, committing.OffsetCommitResponse)
    return answer.topics[0].partitions[0].error_code


def committed(client: RawClient, group: str, topic_id: UUID) -> tuple[int, int]:
    wanted = fetching.OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0])
    request = fetching.OffsetFetchRequest(
        groups=[fetching.OffsetFetchRequestGroup(group_id=group, topics=[wanted])]
    )
    answer = ask(client, ApiKey.OFFSET_FETCH, 10, request, fetching.OffsetFetchResponse).groups[0]
    row = answer.topics[0].partitions[0]
    return row.error_code, row.committed_offset


def test_a_topic_id_names_one_topic_also_after_its_name_is_reused(broker: Broker, unique: Unique) -> None:
    topic, group = unique("orders"), unique("billing")
    removal = deleting.DeleteTopicsRequest(topic_names=[topic], timeout_ms=10_000)
    with RawClient(broker) as client:
        create(client, topic, replicas=1)
        old = id_of(client, topic)
        assert commit(client, group, old, 500) == ErrorCode.NONE
        assert committed(client, group, old) == (ErrorCode.NONE, 500)
        ask(client, ApiKey.DELETE_TOPICS, 4, removal, deleting.DeleteTopicsResponse)
        create(client, topic, replicas=1)
        new = id_of(client, topic)
        assert commit(client, group, old, 501) == ErrorCode.UNKNOWN_TOPIC_ID
        assert committed(client, group, old) == (ErrorCode.UNKNOWN_TOPIC_ID, -1)
        assert committed(client, group, new) == (ErrorCode.NONE, -1)
        assert commit(client, group, new, 2) == ErrorCode.NONE
        assert committed(client, group, new) == (ErrorCode.NONE, 2)
