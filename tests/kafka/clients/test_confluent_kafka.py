"""librdkafka, through confluent-kafka: the client under most language bindings."""

import time
from collections.abc import Callable

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from penstock import Broker

Unique = Callable[[str], str]
PATIENCE_SECONDS = 60.0


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


def producer(broker: Broker, **settings: object) -> Producer:
    return Producer({"bootstrap.servers": broker.bootstrap_servers, **settings})


def consumer(broker: Broker, group: str, **settings: object) -> Consumer:
    defaults = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
    return Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": group, **defaults, **settings}
    )


def make_topic(admin: AdminClient, name: str, partitions: int = 1, **config: str) -> str:
    configs = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, partitions, 1, config=configs)])[name].result(PATIENCE_SECONDS)
    return name


def read(reader: Consumer, count: int) -> list[Message]:
    messages: list[Message] = []
    while len(messages) < count:
        batch = reader.consume(count - len(messages), timeout=PATIENCE_SECONDS)
        assert batch, f"only {len(messages)} of {count} messages arrived"
        for message in batch:
            assert message.error() is None, message.error()
        messages += batch
    return messages


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_records_are_produced_and_consumed_with_every_codec_and_acks_setting(
    broker: Broker, admin: AdminClient, unique: Unique, codec: str, acks: str
) -> None:
    topic = make_topic(admin, unique("codec"))
    sender = producer(broker, **{"compression.type": codec, "acks": acks, "linger.ms": 5})
    for number in range(500):
        sender.produce(topic, key=f"k{number}", value=b"v" * 100 + str(number).encode(), headers={"h": b"1"})
    assert sender.flush(PATIENCE_SECONDS) == 0
    reader = consumer(broker, unique("group"))
    reader.subscribe([topic])
    messages = read(reader, 500)
    reader.close()
    assert [message.offset() for message in messages] == list(range(500))
    assert [message.key() for message in messages] == [f"k{number}".encode() for number in range(500)]
    assert messages[7].headers() == [("h", b"1")]


def test_an_idempotent_producer_is_answered_with_consecutive_offsets(
    broker: Broker, admin: AdminClient, unique: Unique
) -> None:
    topic = make_topic(admin, unique("idempotent"))
    offsets: list[int] = []
    sender = producer(broker, **{"enable.idempotence": True, "linger.ms": 1})
    for number in range(1000):
        sender.produce(
            topic, str(number), on_delivery=lambda error, message: offsets.append(message.offset())
        )
        sender.poll(0)
    assert sender.flush(PATIENCE_SECONDS) == 0
    assert offsets == list(range(1000))


def test_a_group_resumes_where_it_committed(broker: Broker, admin: AdminClient, unique: Unique) -> None:
    topic, group = make_topic(admin, unique("resume")), unique("group")
    sender = producer(broker)
    for number in range(10):
        sender.produce(topic, str(number))
    sender.flush(PATIENCE_SECONDS)
    first = consumer(broker, group)
    first.subscribe([topic])
    fourth = read(first, 4)[-1]
    first.commit(fourth, asynchronous=False)
    first.close()
    second = consumer(broker, group)
    second.subscribe([topic])
    assert [message.value() for message in read(second, 6)] == [
        str(number).encode() for number in range(4, 10)
    ]
    committed = second.committed([TopicPartition(topic, 0)], timeout=PATIENCE_SECONDS)
    assert committed[0].offset == 4
    second.close()


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_share_the_partitions_and_take_over_from_one_that_leaves(
    broker: Broker, admin: AdminClient, unique: Unique, strategy: str
) -> None:
    topic, group = make_topic(admin, unique("share"), partitions=4), unique("group")
    settings = {"partition.assignment.strategy": strategy, "heartbeat.interval.ms": 300}
    one, two = consumer(broker, group, **settings), consumer(broker, group, **settings)
    one.subscribe([topic])
    two.subscribe([topic])
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not len(one.assignment()) == len(two.assignment()) == 2 and time.monotonic() < deadline:
        one.poll(0.05)
        two.poll(0.05)
    shares = {row.partition for row in one.assignment()}, {row.partition for row in two.assignment()}
    assert shares[0] | shares[1] == {0, 1, 2, 3}
    assert not shares[0] & shares[1]
    two.close()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(one.assignment()) != 4 and time.monotonic() < deadline:
        one.poll(0.05)
    assert {row.partition for row in one.assignment()} == {0, 1, 2, 3}
    one.close()


def test_topics_are_created_described_grown_configured_and_deleted(
    broker: Broker, admin: AdminClient, unique: Unique
) -> None:
    topic = make_topic(admin, unique("admin"), partitions=2, retention_ms="60000")
    with pytest.raises(KafkaException) as refused:
        make_topic(admin, topic)
    assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(PATIENCE_SECONDS)
    description = admin.describe_topics(TopicCollection([topic]))[topic].result(PATIENCE_SECONDS)
    assert len(description.partitions) == 3
    resource = ConfigResource(ResourceType.TOPIC, topic)
    configs = admin.describe_configs([resource])[resource].result(PATIENCE_SECONDS)
    assert configs["retention.ms"].value == "60000"
    assert configs["cleanup.policy"].value == "delete"
    changed = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("retention.ms", "120000", incremental_operation=AlterConfigOpType.SET),
        ],
    )
    admin.incremental_alter_configs([changed])[changed].result(PATIENCE_SECONDS)
    configs = admin.describe_configs([resource])[resource].result(PATIENCE_SECONDS)
    assert configs["retention.ms"].value == "120000"
    admin.delete_topics([topic])[topic].result(PATIENCE_SECONDS)
    assert topic not in admin.list_topics(timeout=PATIENCE_SECONDS).topics


def test_a_config_that_cannot_be_honoured_is_refused_by_name(admin: AdminClient, unique: Unique) -> None:
    with pytest.raises(KafkaException, match=r"preallocate"):
        make_topic(admin, unique("refused"), preallocate="true")
    with pytest.raises(KafkaException, match=r"Unknown topic config name: retention\.msec"):
        make_topic(admin, unique("refused"), retention_msec="1")


def test_offsets_are_found_by_end_and_by_time(broker: Broker, admin: AdminClient, unique: Unique) -> None:
    topic = make_topic(admin, unique("times"))
    sender = producer(broker, **{"linger.ms": 0})
    for number in range(5):
        sender.produce(topic, str(number), timestamp=1_700_000_000_000 + number * 1000)
        sender.flush(PATIENCE_SECONDS)
    partition = TopicPartition(topic, 0)

    def find(spec: OffsetSpec) -> int:
        answer = admin.list_offsets({partition: spec}, isolation_level=IsolationLevel.READ_UNCOMMITTED)
        return int(answer[partition].result(PATIENCE_SECONDS).offset)

    assert find(OffsetSpec.earliest()) == 0
    assert find(OffsetSpec.latest()) == 5
    assert find(OffsetSpec.max_timestamp()) == 4
    assert find(OffsetSpec.for_timestamp(1_700_000_002_500)) == 3
    assert find(OffsetSpec.for_timestamp(1_800_000_000_000)) == -1


def test_deleted_records_are_gone_and_the_rest_stays(
    broker: Broker, admin: AdminClient, unique: Unique
) -> None:
    topic = make_topic(admin, unique("prefix"))
    sender = producer(broker, **{"linger.ms": 0})
    for number in range(10):
        sender.produce(topic, str(number))
        sender.flush(PATIENCE_SECONDS)
    partition = TopicPartition(topic, 0, 6)
    deleted = admin.delete_records([partition])
    assert deleted[partition].result(PATIENCE_SECONDS).low_watermark == 6
    reader = consumer(broker, unique("group"))
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert [message.offset() for message in read(reader, 4)] == [6, 7, 8, 9]
    reader.close()


def test_groups_are_listed_described_reset_and_deleted(
    broker: Broker, admin: AdminClient, unique: Unique
) -> None:
    topic, group = make_topic(admin, unique("groups")), unique("group")
    sender = producer(broker)
    sender.produce(topic, "x")
    sender.flush(PATIENCE_SECONDS)
    reader = consumer(broker, group)
    reader.subscribe([topic])
    reader.commit(read(reader, 1)[0], asynchronous=False)
    described = admin.describe_consumer_groups([group])[group].result(PATIENCE_SECONDS)
    assert described.state.name == "STABLE"
    assert len(described.members) == 1
    assert group in {row.group_id for row in admin.list_consumer_groups().result(PATIENCE_SECONDS).valid}
    reader.close()
    moved = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 0)])
    admin.alter_consumer_group_offsets([moved])[group].result(PATIENCE_SECONDS)
    asked = ConsumerGroupTopicPartitions(group)
    offsets = admin.list_consumer_group_offsets([asked])[group].result(PATIENCE_SECONDS)
    assert [row.offset for row in offsets.topic_partitions] == [0]
    admin.delete_consumer_groups([group])[group].result(PATIENCE_SECONDS)
    assert group not in {row.group_id for row in admin.list_consumer_groups().result(PATIENCE_SECONDS).valid}


def test_an_unknown_topic_is_created_by_producing_to_it(broker: Broker, unique: Unique) -> None:
    topic = unique("auto")
    sender = producer(broker)
    sender.produce(topic, "hello")
    assert sender.flush(PATIENCE_SECONDS) == 0
    reader = consumer(broker, unique("group"))
    reader.subscribe([topic])
    assert read(reader, 1)[0].value() == b"hello"
    reader.close()


def test_a_batch_over_the_topics_limit_is_refused_and_the_next_one_is_not(
    broker: Broker, admin: AdminClient, unique: Unique
) -> None:
    topic = make_topic(admin, unique("limit"), max_message_bytes="2000")
    outcomes: list[int | None] = []
    sender = producer(broker, **{"linger.ms": 0})
    for size in (3000, 100):
        sender.produce(
            topic,
            b"x" * size,
            on_delivery=lambda error, message: outcomes.append(error.code() if error else None),
        )
        sender.flush(PATIENCE_SECONDS)
    assert outcomes == [KafkaError.MSG_SIZE_TOO_LARGE, None]
