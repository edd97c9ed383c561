"""Consumer groups, compacted topics and idempotent producers when their leader is lost."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.batch import iter_headers
from penstock.errors import ErrorCode
from tests.faults import raw_requests
from tests.faults.checks import assert_kept, assert_last_records_equal, read_all, read_segments
from tests.faults.clients import create_topic, leader_of, leaders, raw, settings
from tests.faults.load import Load
from tests.faults.nodes import Cluster
from tests.faults.waiting import PATIENCE_SECONDS, eventually
from tests.kafka.raw import RawClient

TOPIC = "payments"
GROUP = "billing"
SOME = 100


def test_a_group_keeps_its_offsets_and_goes_on_when_its_coordinator_is_killed(tmp_path: Path) -> None:
    with Cluster(tmp_path, flags=["--set", "groups.offsets_topic_partitions=4"]) as cluster:
        create_topic(cluster, TOPIC)
        with Load(cluster, TOPIC) as load:
            member = Consumer(
                settings(
                    cluster.bootstrap_servers,
                    group_id=GROUP,
                    auto_offset_reset="earliest",
                    enable_auto_commit=False,
                )
            )
            try:
                member.subscribe([TOPIC])
                seen = read_on(member, 100)
                promised = seen[-1] + 1
                eventually(lambda: commits(member, promised), "a commit")
                victim = cluster[coordinator(cluster)]
                victim.kill()
                # The next coordinator has the committed offset, and the member continues there.
                assert committed(cluster) == promised
                seen += read_on(member, 100)
                eventually(lambda: commits(member, seen[-1] + 1), "a commit with the next coordinator")
                assert committed(cluster) == seen[-1] + 1
                victim.start()
                victim.wait_ready()
                seen += read_on(member, 50)
            finally:
                member.close()
            assert seen == list(range(len(seen))), "nothing left out, nothing read twice"
        assert_kept(cluster, load)
        assert committed(cluster) >= promised


def test_no_client_is_sent_to_a_coordinator_that_was_killed(tmp_path: Path) -> None:
    with Cluster(tmp_path, flags=["--set", "groups.offsets_topic_partitions=4"]) as cluster:
        create_topic(cluster, TOPIC)
        committed(cluster)
        victim = cluster[coordinator(cluster)]
        victim.kill()
        for node in cluster.running:
            node.wait_said("connection with", f"node {victim.node_id} ", "ended")
        answers: list[int] = []
        for node in cluster.running:
            answers += asyncio.run(find_until_answered(node.bootstrap_servers))
        assert set(answers) <= {node.node_id for node in cluster.running}
        assert cluster.bugs() == []


async def find_until_answered(bootstrap_servers: str) -> list[int]:
    """Asks until an answer names a coordinator that is alive; all coordinators that were named until then."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    await admin.start()
    named: list[int] = []
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await is_reached(admin, named):
                await asyncio.sleep(0.02)
    finally:
        await admin.close()
    return named


async def is_reached(admin: AIOKafkaAdminClient, named: list[int]) -> bool:
    try:
        named.append(await admin.find_coordinator(GROUP))
        await admin.list_consumer_group_offsets(GROUP, group_coordinator_id=named[-1])
    except AioKafkaError:
        return False
    return True


def read_on(member: Consumer, count: int) -> list[int]:
    """The offsets of the next messages."""
    found: list[int] = []

    def look() -> bool:
        message = member.poll(1.0)
        if message is not None and message.error() is None:
            found.append(message.offset() or 0)
        return len(found) >= count

    eventually(look, f"{count} more messages")
    return found


def commits(member: Consumer, offset: int) -> bool:
    try:
        member.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False)
    except KafkaException:
        return False  # the coordinator is being looked for
    return True


def coordinator(cluster: Cluster) -> int:
    admin = AdminClient(settings(cluster.bootstrap_servers))
    described = admin.describe_consumer_groups([GROUP])[GROUP].result(PATIENCE_SECONDS)
    return int(described.coordinator.id)


def committed(cluster: Cluster) -> int:
    """The group's offset, read by another client."""
    reader = Consumer(settings(cluster.bootstrap_servers, group_id=GROUP))
    try:
        [place] = reader.committed([TopicPartition(TOPIC, 0)], timeout=PATIENCE_SECONDS)
        return int(place.offset)
    finally:
        reader.close()


def test_a_compacted_topic_keeps_the_last_record_of_each_key_through_failovers(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        create_topic(
            cluster,
            TOPIC,
            cleanup_policy="compact",
            internal_segment_bytes="50000",
            min_cleanable_dirty_ratio="0.01",
        )
        with Load(cluster, TOPIC) as load:
            for _ in range(2):
                load.wait_for_more(SOME)
                victim = cluster[leader_of(cluster, TOPIC)]
                victim.kill()
                load.wait_for_more(SOME)
                victim.start()
                victim.wait_ready()
            # Every node has compacted by now, at its own time, or will: some records are gone everywhere.
            for node in cluster.nodes.values():
                eventually(has_gaps(cluster, node.node_id), f"node {node.node_id} compacts")
        assert load.refused == []
        assert_last_records_equal(cluster, load)
        assert cluster.bugs() == []


def has_gaps(cluster: Cluster, node_id: int) -> Callable[[], bool]:
    """Whether fewer records are on the node's disk than its log has offsets."""
    folder = cluster[node_id].data_dir / "topics" / f"{TOPIC}-0"

    def look() -> bool:
        try:
            headers = [header for _, header in iter_headers(read_segments(folder))]
            return sum(header.record_count for header in headers) < max(h.base_offset for h in headers)
        except (OSError, ValueError):
            return False  # files come and go while they are read

    return look


def sent(client: RawClient, producer_id: int, number: int) -> raw_requests.Answer:
    """The answer of a leader with a lease: on a busy machine it may lose that for a moment. The sequence makes
    repetitions safe."""
    found = raw_requests.Answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)

    def answered() -> bool:
        nonlocal found
        state = raw_requests.ProducerState(producer_id, number)
        found = raw_requests.produce(client, TOPIC, f"me:{number}".encode(), state)
        return found.error != ErrorCode.NOT_LEADER_OR_FOLLOWER

    eventually(answered, "the leader answers")
    return found


def test_a_batch_sent_again_after_failover_is_answered_with_its_first_offset(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        create_topic(cluster, TOPIC)
        first = leader_of(cluster, TOPIC)
        with raw(cluster, first) as client:
            me = raw_requests.new_producer_id(client)
            assert [sent(client, me, number).offset for number in range(5)] == [0, 1, 2, 3, 4]
        cluster[first].kill()
        second = leader_of(cluster, TOPIC, other_than=first)
        with raw(cluster, second) as client:
            assert sent(client, me, 3) == raw_requests.Answer(ErrorCode.NONE, 3)
            assert sent(client, me, 9).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            assert sent(client, me, 5) == raw_requests.Answer(ErrorCode.NONE, 5)
        assert min(leaders(cluster, TOPIC).values()) > 0
        stored = read_all(cluster.bootstrap_servers, TOPIC, 1)[0]
        assert stored == {number: f"me:{number}".encode() for number in range(6)}
