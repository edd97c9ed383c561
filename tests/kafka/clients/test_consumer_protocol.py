"""librdkafka with `group.protocol=consumer` (KIP-848): groups that share, move and go on without stopping the world."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock import Broker
from penstock.cluster import OFFSETS_TOPIC, offsets_partition
from penstock.config import GroupSettings
from tests.kafka.clients.consumer_members import PATIENCE_SECONDS, make_topic, members_of, produce
from tests.kafka.trio import Trio

Unique = Callable[[str], str]
QUICK = GroupSettings(
    consumer_session_timeout_ms=10_000,
    consumer_heartbeat_interval_ms=400,
    consumer_assignment_interval_ms=100,
    offsets_topic_partitions=3,
)
"""Members learn of changes within a moment. The times leave room for a busy machine: at an interval of 100 ms,
librdkafka disconnected when a heartbeat had no answer after 230 ms."""

MEMBER = """
import sys
from confluent_kafka import Consumer
servers, group, topic = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "group.protocol": "consumer"})
consumer.subscribe([topic])
while True:
    consumer.poll(0.1)
    if consumer.assignment():
        print("assigned", flush=True)
"""


@pytest.fixture(scope="module")
def quick() -> Iterator[Broker]:
    with Broker(groups=QUICK, http=None) as running:
        yield running


def test_three_members_share_a_topic_and_read_all_of_it(quick: Broker, unique: Unique) -> None:
    servers = quick.bootstrap_servers
    topic = make_topic(servers, unique("orders"), 6)
    with members_of(servers, unique("group"), topic) as members:
        for _ in range(3):
            members.join()
        members.poll_until(lambda: members.has_shares(2, 2, 2))
        sent = produce(servers, topic, 6, range(600))
        members.poll_until(lambda: set(members.values) >= sent)
        assert len(members.values) == len(sent), "each was read once"


def test_a_member_that_leaves_hands_its_partitions_to_the_others(quick: Broker, unique: Unique) -> None:
    servers = quick.bootstrap_servers
    topic = make_topic(servers, unique("orders"), 6)
    with members_of(servers, unique("group"), topic) as members:
        for _ in range(3):
            leaver = members.join()
        members.poll_until(lambda: members.has_shares(2, 2, 2))
        members.leave(leaver)
        members.poll_until(lambda: members.has_shares(3, 3))
        members.join()
        members.poll_until(lambda: members.has_shares(2, 2, 2))
        sent = produce(servers, topic, 6, range(60))
        members.poll_until(lambda: set(members.values) >= sent)


def test_the_partitions_of_a_member_that_is_killed_are_read_by_another(quick: Broker, unique: Unique) -> None:
    servers, group = quick.bootstrap_servers, unique("group")
    topic = make_topic(servers, unique("orders"), 2)
    program = [sys.executable, "-c", MEMBER, servers, group, topic]
    with (
        subprocess.Popen(program, stdout=subprocess.PIPE) as process,
        members_of(servers, group, topic) as members,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == b"assigned\n"
        members.join()
        members.poll_until(lambda: members.has_shares(1))
        process.kill()
        members.poll_until(lambda: members.has_shares(2))
        sent = produce(servers, topic, 2, range(20))
        members.poll_until(lambda: set(members.values) >= sent)


def test_a_group_goes_on_where_it_committed(quick: Broker, unique: Unique) -> None:
    servers, group = quick.bootstrap_servers, unique("group")
    topic = make_topic(servers, unique("orders"), 3)
    first = produce(servers, topic, 3, range(30))
    with members_of(servers, group, topic) as members:
        members.join()
        members.poll_until(lambda: set(members.values) >= first)
        members.commit()
    second = produce(servers, topic, 3, range(30, 60))
    with members_of(servers, group, topic) as members:
        reader = members.join()
        members.poll_until(lambda: set(members.values) >= second)
        assert set(members.values) == second
        committed = reader.committed([TopicPartition(topic, 0)], timeout=PATIENCE_SECONDS)
        assert committed[0].offset == 10


def test_a_regular_expression_finds_topics_that_are_created_later(quick: Broker, unique: Unique) -> None:
    servers, prefix = quick.bootstrap_servers, unique("found")
    make_topic(servers, f"{prefix}-1", 1)
    with members_of(servers, unique("group"), f"^{prefix}-.*") as members:
        members.join()
        members.poll_until(lambda: members.has_shares(1))
        later = make_topic(servers, f"{prefix}-2", 2)
        members.poll_until(lambda: members.has_shares(3))
        sent = produce(servers, later, 2, range(4))
        members.poll_until(lambda: set(members.values) >= sent)


def test_a_group_is_listed_described_and_deleted(quick: Broker, unique: Unique) -> None:
    servers, group = quick.bootstrap_servers, unique("group")
    topic = make_topic(servers, unique("orders"), 2)
    admin = AdminClient({"bootstrap.servers": servers})
    with members_of(servers, group, topic) as members:
        members.join()
        members.join()
        members.poll_until(lambda: members.has_shares(1, 1))
        listed = admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(PATIENCE_SECONDS)
        assert group in {row.group_id for row in listed.valid}
        described = admin.describe_consumer_groups([group])[group].result(PATIENCE_SECONDS)
        assert described.type is ConsumerGroupType.CONSUMER
        shares = [member.assignment.topic_partitions for member in described.members]
        assert sorted(part.partition for share in shares for part in share) == [0, 1]
    described = admin.describe_consumer_groups([group])[group].result(PATIENCE_SECONDS)
    assert described.state is ConsumerGroupState.EMPTY
    admin.delete_consumer_groups([group])[group].result(PATIENCE_SECONDS)
    listed = admin.list_consumer_groups().result(PATIENCE_SECONDS)
    assert group not in {row.group_id for row in listed.valid}


def test_members_go_on_when_their_coordinator_is_lost() -> None:
    with Trio(groups=QUICK) as trio:
        servers, group = trio.bootstrap_servers, "readers"
        topic = make_topic(servers, "orders", 6, 3)
        with members_of(servers, group, topic) as members:
            for _ in range(3):
                members.join()
            members.poll_until(lambda: members.has_shares(2, 2, 2))
            sent = produce(servers, topic, 6, range(60))
            members.poll_until(lambda: set(members.values) >= sent)
            coordinator = trio.leader(OFFSETS_TOPIC, offsets_partition(group, 3))
            trio.stop(coordinator)
            more = produce(trio.bootstrap_servers, topic, 6, range(60, 120))
            members.poll_until(lambda: set(members.values) >= sent | more)
            members.join()
            members.poll_until(lambda: members.has_shares(1, 1, 2, 2))


def test_a_group_moves_to_the_consumer_protocol_and_back_while_it_reads(
    quick: Broker, unique: Unique
) -> None:
    servers, group = quick.bootstrap_servers, unique("group")
    topic = make_topic(servers, unique("orders"), 6)
    admin = AdminClient({"bootstrap.servers": servers})

    def is_of(kind: ConsumerGroupType) -> bool:
        listed = admin.list_consumer_groups(types={kind}).result(PATIENCE_SECONDS)
        return group in {row.group_id for row in listed.valid}

    with members_of(servers, group, topic) as members:
        old = [members.join("classic"), members.join("classic")]
        members.poll_until(lambda: members.has_shares(3, 3))
        sent = produce(servers, topic, 6, range(60))
        new = [members.join()]
        members.poll_until(lambda: members.has_shares(2, 2, 2))
        assert is_of(ConsumerGroupType.CONSUMER)
        sent |= produce(servers, topic, 6, range(60, 120))
        for consumer in old:
            members.leave(consumer)
            new.append(members.join())
        members.poll_until(lambda: members.has_shares(2, 2, 2))
        sent |= produce(servers, topic, 6, range(120, 180))
        members.poll_until(lambda: set(members.values) >= sent)
        members.join("classic")
        members.poll_until(lambda: members.has_shares(1, 1, 2, 2))
        for consumer in new:
            members.leave(consumer)
        members.poll_until(lambda: members.has_shares(6))
        assert is_of(ConsumerGroupType.CLASSIC)
        sent |= produce(servers, topic, 6, range(180, 240))
        members.poll_until(lambda: set(members.values) >= sent)


def test_a_cooperative_group_moves_without_stopping(quick: Broker, unique: Unique) -> None:
    servers, group = quick.bootstrap_servers, unique("group")
    topic = make_topic(servers, unique("orders"), 4)
    cooperative = {"partition.assignment.strategy": "cooperative-sticky"}
    with members_of(servers, group, topic) as members:
        members.join("classic", **cooperative)
        members.join("classic", **cooperative)
        members.poll_until(lambda: members.has_shares(2, 2))
        sent = produce(servers, topic, 4, range(40))
        members.join()
        members.join()
        members.poll_until(lambda: members.has_shares(1, 1, 1, 1))
        sent |= produce(servers, topic, 4, range(40, 80))
        members.poll_until(lambda: set(members.values) >= sent)
