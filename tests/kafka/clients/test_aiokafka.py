"""aiokafka: the asyncio client, with its own codec and group code."""

import asyncio
from collections.abc import Callable

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic

from penstock import Broker

Unique = Callable[[str], str]
PATIENCE_SECONDS = 60


def test_records_come_back_in_order_with_keys_headers_and_times(broker: Broker, unique: Unique) -> None:
    async def scenario() -> None:
        topic = unique("aio")
        async with AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers,
            acks="all",
            enable_idempotence=True,
            compression_type="gzip",
        ) as producer:
            for number in range(200):
                sent = await producer.send_and_wait(
                    topic,
                    str(number).encode(),
                    key=b"k",
                    headers=[("n", b"1")],
                    timestamp_ms=1_700_000_000_000 + number,
                )
                assert sent.offset == number
        async with AIOKafkaConsumer(
            topic, bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
        ) as consumer:
            records = [await asyncio.wait_for(anext(consumer), PATIENCE_SECONDS) for _ in range(200)]
        assert [record.offset for record in records] == list(range(200))
        assert records[5].key == b"k"
        assert records[5].headers == (("n", b"1"),)
        assert records[5].timestamp == 1_700_000_000_005

    asyncio.run(scenario())


def test_a_group_commits_and_a_new_member_resumes_there(broker: Broker, unique: Unique) -> None:
    async def scenario() -> None:
        topic, group = unique("aio"), unique("group")
        settings = {
            "bootstrap_servers": broker.bootstrap_servers,
            "group_id": group,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
        }
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for number in range(6):
                await producer.send_and_wait(topic, str(number).encode())
        async with AIOKafkaConsumer(topic, **settings) as first:
            for _ in range(3):
                await asyncio.wait_for(anext(first), PATIENCE_SECONDS)
            await first.commit({TopicPartition(topic, 0): 3})
        async with AIOKafkaConsumer(topic, **settings) as second:
            record = await asyncio.wait_for(anext(second), PATIENCE_SECONDS)
            assert record.offset == 3
            assert await second.committed(TopicPartition(topic, 0)) == 3

    asyncio.run(scenario())


class Assignments(ConsumerRebalanceListener):  # type: ignore[misc]
    """One member's assignment, and a condition that notifies all members when it changes."""

    def __init__(self, changed: asyncio.Condition) -> None:
        self.held: set[TopicPartition] = set()
        self._changed = changed

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        await self._hold(set())

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        await self._hold(set(assigned))

    async def _hold(self, partitions: set[TopicPartition]) -> None:
        async with self._changed:
            self.held = partitions
            self._changed.notify_all()


def test_two_members_share_the_partitions(broker: Broker, unique: Unique) -> None:
    async def scenario() -> None:
        topic, group = unique("aio"), unique("group")
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        await admin.start()
        await admin.create_topics([NewTopic(topic, 4, 1)])
        settings = {
            "bootstrap_servers": broker.bootstrap_servers,
            "group_id": group,
            "heartbeat_interval_ms": 200,
        }
        changed = asyncio.Condition()
        shares = Assignments(changed), Assignments(changed)
        async with AIOKafkaConsumer(**settings) as one, AIOKafkaConsumer(**settings) as two:
            one.subscribe([topic], listener=shares[0])
            two.subscribe([topic], listener=shares[1])
            async with asyncio.timeout(PATIENCE_SECONDS), changed:
                await changed.wait_for(lambda: [len(share.held) for share in shares] == [2, 2])
            assert shares[0].held | shares[1].held == {TopicPartition(topic, index) for index in range(4)}
            groups = {row[0] for row in await admin.list_consumer_groups()}
            assert group in groups
            described = await admin.describe_consumer_groups([group])
            assert len(described[0].groups[0][5]) == 2
        await admin.close()

    asyncio.run(scenario())


def test_topics_are_administered(broker: Broker, unique: Unique) -> None:
    async def scenario() -> None:
        topic = unique("aio")
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        await admin.start()
        await admin.create_topics([NewTopic(topic, 2, 1, topic_configs={"retention.ms": "1000"})])
        assert topic in await admin.list_topics()
        await admin.create_partitions({topic: NewPartitions(3)})
        described = await admin.describe_topics([topic])
        assert len(described[0]["partitions"]) == 3
        await admin.delete_topics([topic])
        assert topic not in await admin.list_topics()
        await admin.close()

    asyncio.run(scenario())
