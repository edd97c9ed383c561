"""Damaged and missing files, while other replicas are intact: the replica is copied again, and clients see no error."""

import logging
import posixpath
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from penstock.cluster import Assignment, report_damaged, why_not_rebuilt
from penstock.errors import StorageError
from penstock.node import Partition
from penstock.node.replication import repair
from penstock.node.replication.reconciler import ReplicaReconciler
from penstock.node.replication.repair import ROUNDS_BEFORE_ERROR
from penstock.types import GroupId, Offset
from tests.faults.waiting import eventually
from tests.kafka.requests import create
from tests.kafka.trio import PATIENCE_SECONDS, LastingDisk, Trio

RECORDS = 60
BETWEEN_WRITES_SECONDS = 0.01
"""The nodes share this process with their client."""
SEGMENTS = {"internal_segment_bytes": "2000"}
ROTTEN_BYTE = 150
"""Within the first record of a segment's first batch: behind its header of 61 bytes, and a control entry of 74."""
FIELDS = {"offset": 7, "long length": 8, "term": 15, "crc": 20}
"""Positions in a batch's header, of the least or most significant byte of a field. Each misleads a reader
in another way; the checksum detects the others, as it does for records."""


@pytest.fixture
def trio() -> Iterator[Trio]:
    with Trio() as running:
        yield running


@pytest.fixture
def topic(trio: Trio) -> str:
    """One partition of several segments on all three nodes."""
    with trio.client(1) as client:
        create(client, "rotting", **SEGMENTS)
    trio.leader("rotting")
    produce(trio, "rotting", range(RECORDS))
    return "rotting"


# --- clients


class Writer:
    """Sends one record after the other, each when the one before is acked."""

    def __init__(self, trio: Trio, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": trio.bootstrap_servers,
                "enable.idempotence": True,  # a retry must not store a record twice: the tests count
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        self._problems: list[KafkaError] = []

    def write(self, number: int) -> None:
        self._producer.produce(self._topic, value(number), on_delivery=self._told)
        assert self._producer.flush(PATIENCE_SECONDS) == 0
        assert not self._problems

    def _told(self, problem: KafkaError | None, message: Message) -> None:
        if problem is not None:
            self._problems.append(problem)


def produce(trio: Trio, topic: str, numbers: range) -> None:
    writer = Writer(trio, topic)
    for number in numbers:
        writer.write(number)


def value(number: int) -> bytes:
    return b"%d " % number + b"v" * 200


@contextmanager
def under_load(trio: Trio, topic: str, first: int) -> Iterator[Callable[[], range]]:
    """Produces all the time; returns the acked numbers so far. Fails with the first error."""
    ended, acked, problems = threading.Event(), [first], []

    def load() -> None:
        try:
            writer = Writer(trio, topic)
            while not ended.wait(BETWEEN_WRITES_SECONDS):
                writer.write(acked[0])
                acked[0] += 1
        except BaseException as problem:  # noqa: BLE001 - raised below
            problems.append(problem)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        yield lambda: range(acked[0])
    finally:
        ended.set()
        thread.join()
    assert not problems


def consume(trio: Trio, topic: str, count: int, *, check_crcs: bool = True) -> list[bytes]:
    """All records."""
    consumer = Consumer(
        {"bootstrap.servers": trio.bootstrap_servers, "group.id": "any", "check.crcs": check_crcs}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    try:
        while len(found) < count:
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None, f"only {len(found)} of {count}"
            assert message.error() is None
            found.append(message.value() or b"")
    finally:
        consumer.close()
    return found


# --- disks


def disk(trio: Trio, node_id: int) -> LastingDisk:
    return trio._disks[node_id]


def segments(trio: Trio, node_id: int, topic: str) -> list[str]:
    folder = f"topics/{topic}-0"
    names = sorted(disk(trio, node_id).list_dir(folder))
    return [posixpath.join(folder, name) for name in names if name.endswith(".log")]


def rot(trio: Trio, node_id: int, topic: str, segment: int = 0, position: int = ROTTEN_BYTE) -> str:
    """A bit flips in a sealed segment. Returns the file."""
    paths = segments(trio, node_id, topic)
    assert segment < len(paths) - 1
    file = disk(trio, node_id).open(paths[segment])
    [byte] = file.read_at(position, 1)
    trio.call(lambda: file.write_at(position, bytes([byte ^ 1])))
    return paths[segment]


def scrub(trio: Trio, node_id: int, topic: str) -> None:
    """Scrubs until the damage is found; each call reads at least one partition."""
    node, replica = trio.node(node_id), trio.replica(node_id, topic)
    for _ in range(len(node.partitions.tended())):
        trio.run(node.housekeeping.scrub())
    assert replica.damage is not None or replica.closed


def is_whole(partition: Partition) -> bool:
    plan = partition.log.scrubber.plan(Offset(0))
    assert plan is not None
    plan.run()
    return plan.wrong is None


# --- replicas


def life(trio: Trio, node_id: int, topic: str) -> int | None:
    node = trio.node(node_id)
    found = node.partitions.find(topic, 0)
    return None if found is None else found.replica.me.life_of(node.me)


def assignment(trio: Trio, node_id: int, topic: str) -> Assignment:
    return trio.node(node_id).metadata.state.topics[topic].assignments[0]


def wait_renewed(trio: Trio, topic: str, *node_ids: int) -> None:
    """These replicas are new ones, all are in sync, and nothing is left to do."""

    def done() -> bool:
        now = assignment(trio, trio.running[0], topic)
        leader: Any = (
            trio.node(trio.running[0])
            .view.partition(trio.node(trio.running[0]).metadata.state.topics[topic], 0)
            .leader
        )
        if now.target is not None or now.damaged or leader not in trio.running:
            return False
        replica = trio.node(leader).partitions.find(topic, 0)
        lives = [life(trio, one, topic) for one in node_ids]
        return (
            replica is not None and lives == [1] * len(node_ids) and len(replica.replica.in_sync_nodes()) == 3
        )

    eventually(lambda: trio.call(done), f"{topic} is rebuilt on {node_ids}")
    assert all(trio.call(lambda one=one: is_whole(trio.replica(one, topic))) for one in trio.running)


def orphans(trio: Trio, node_id: int, topic: str) -> list[str]:
    return [name for name in disk(trio, node_id).list_dir("orphans") if name.startswith(f"{topic}-0")]


# --- repairs


def test_a_damaged_follower_is_recreated(trio: Trio, topic: str) -> None:
    follower = trio.followers(topic)[0]
    rot(trio, follower, topic)
    with under_load(trio, topic, RECORDS) as acked:
        scrub(trio, follower, topic)
        wait_renewed(trio, topic, follower)
    assert consume(trio, topic, len(acked())) == list(map(value, acked()))
    trio.hand_over(topic, follower)
    assert consume(trio, topic, len(acked())) == list(map(value, acked()))
    assert len(orphans(trio, follower, topic)) == 1, "the damaged bytes are kept"


def test_a_damaged_leader_hands_over_and_is_recreated(trio: Trio, topic: str) -> None:
    leader = trio.leader(topic)
    rot(trio, leader, topic)
    with under_load(trio, topic, RECORDS) as acked:
        scrub(trio, leader, topic)
        wait_renewed(trio, topic, leader)
        assert trio.leader(topic) != leader
    assert consume(trio, topic, len(acked())) == list(map(value, acked()))


def test_a_consumer_that_comes_to_damaged_bytes_gets_them_from_another_replica(
    trio: Trio, topic: str
) -> None:
    leader = trio.leader(topic)
    for segment in trio.replica(leader, topic).log.files.segments.segments[:-1]:
        trio.call(segment.close)  # from now on they are read from the disk
    rot(trio, leader, topic)
    assert consume(trio, topic, RECORDS, check_crcs=False) == list(map(value, range(RECORDS)))
    assert trio.leader(topic) != leader
    wait_renewed(trio, topic, leader)


@pytest.mark.parametrize("position", [ROTTEN_BYTE, *FIELDS.values()], ids=["record", *FIELDS])
def test_a_follower_without_files_finds_the_damage_of_its_leader_and_both_are_repaired(
    trio: Trio, topic: str, caplog: pytest.LogCaptureFixture, position: int
) -> None:
    leader, follower = trio.leader(topic), trio.followers(topic)[0]
    trio.stop(follower)
    disk(trio, follower).remove_tree(f"topics/{topic}-0")
    path = rot(trio, leader, topic, segment=1, position=position)
    with caplog.at_level(logging.ERROR), under_load(trio, topic, RECORDS) as acked:
        trio.start(follower)
        wait_renewed(trio, topic, leader, follower)
    assert consume(trio, topic, len(acked())) == list(map(value, acked()))
    assert sum("cannot be stored" in line for line in caplog.messages) <= 1
    assert any("is damaged" in line and f"{path} at byte" in line for line in caplog.messages)


@pytest.mark.parametrize("emptied", [False, True])
def test_a_replica_whose_folder_is_missing_at_the_start_is_copied_again(
    trio: Trio, topic: str, emptied: bool
) -> None:
    follower = trio.followers(topic)[0]
    trio.stop(follower)
    disk(trio, follower).remove_tree(f"topics/{topic}-0")
    if emptied:
        disk(trio, follower).make_dir(f"topics/{topic}-0")
    trio.start(follower)
    wait_renewed(trio, topic, follower)
    trio.hand_over(topic, follower)
    assert consume(trio, topic, RECORDS) == list(map(value, range(RECORDS)))


def test_a_replica_whose_log_has_a_gap_at_the_start_is_copied_again(trio: Trio, topic: str) -> None:
    follower = trio.followers(topic)[0]
    trio.stop(follower)
    disk(trio, follower).remove(segments(trio, follower, topic)[1])
    trio.start(follower)
    wait_renewed(trio, topic, follower)
    trio.hand_over(topic, follower)
    assert consume(trio, topic, RECORDS) == list(map(value, range(RECORDS)))
    assert len(orphans(trio, follower, topic)) == 1


def test_a_new_incarnation_survives_restarts_and_the_old_one_never_returns(trio: Trio, topic: str) -> None:
    follower = trio.followers(topic)[0]
    rot(trio, follower, topic)
    scrub(trio, follower, topic)
    wait_renewed(trio, topic, follower)
    trio.stop(follower)
    trio.start(follower)
    wait_renewed(trio, topic, follower)
    produce(trio, topic, range(RECORDS, RECORDS + 5))
    assert consume(trio, topic, RECORDS + 5) == list(map(value, range(RECORDS + 5)))


def test_a_repair_interrupted_by_a_disk_error_is_finished_later(
    trio: Trio, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two steps there is a replica without its files, and no new incarnation with old files."""
    follower = trio.followers(topic)[0]
    states = trio.node(follower).storage.hard_states
    renew_now, seen = states.renew_now, []

    def fail_once(group: GroupId, new_life: int) -> None:
        seen.append((segments(trio, follower, topic), states.life(group)))
        if len(seen) == 1:
            raise StorageError("a disk that does not want to")
        renew_now(group, new_life)

    monkeypatch.setattr(states, "renew_now", fail_once)
    rot(trio, follower, topic)
    scrub(trio, follower, topic)
    wait_renewed(trio, topic, follower)
    assert seen == [([], 0), ([], 0)]
    assert len(orphans(trio, follower, topic)) == 1


def test_a_repair_continues_when_the_controller_changes(trio: Trio, topic: str) -> None:
    controller = trio.controller()
    follower = next(one for one in trio.followers(topic) if one != controller)
    rot(trio, follower, topic)
    scrub(trio, follower, topic)
    trio.eventually(lambda: bool(assignment(trio, controller, topic).damaged))
    trio.stop(controller)
    trio.start(controller)
    wait_renewed(trio, topic, follower)
    assert consume(trio, topic, RECORDS) == list(map(value, range(RECORDS)))


def test_nothing_is_set_aside_while_another_copy_is_on_a_node_that_has_just_died(
    trio: Trio, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not fenced yet, so the metadata still counts it, and the repair may have begun before it died."""
    follower = next(one for one in trio.followers(topic) if one != trio.controller())
    [other] = {1, 2, 3} - {trio.leader(topic), follower}
    looks: list[str | None] = []

    def look(*facts: Any) -> str | None:
        found = why_not_rebuilt(*facts)
        looks.extend([found] if facts[3:] == ([other],) else [])
        return found

    monkeypatch.setattr(repair, "why_not_rebuilt", look)
    with without_peer(trio, follower, other):
        rot(trio, follower, topic)
        scrub(trio, follower, topic)
        trio.eventually(lambda: any(obstacle is not None for obstacle in looks))
        assert life(trio, follower, topic) == 0
        assert orphans(trio, follower, topic) == []
    obstacles = [one for one in looks if one is not None]
    wait_renewed(trio, topic, follower)
    is_short = len(obstacles) < ROUNDS_BEFORE_ERROR
    assert not is_short or not any("not rebuilt" in line for line in caplog.messages)


@contextmanager
def without_peer(trio: Trio, node_id: int, other: int) -> Iterator[None]:
    """The node's connection with the other one has ended, and no other node knows."""
    table: Any = trio.node(node_id).partitions
    is_connected = table.is_connected
    table.is_connected = lambda member: member.node != other and is_connected(member)
    try:
        yield
    finally:
        del table.is_connected


# --- without an intact copy


def test_if_every_copy_is_damaged_all_of_them_are_kept(trio: Trio, topic: str) -> None:
    before = {one: segments(trio, one, topic) for one in trio.running}
    controller = trio.controller()

    def all_at_once() -> Any:
        metadata = trio.node(controller).metadata
        group = trio.replica(1, topic).group
        members = assignment(trio, 1, topic).members
        return metadata.change(
            lambda state: [
                record
                for member in members
                for record in report_damaged(state, group, member, member.in_life(1).incarnation)
            ]
        )

    for one in trio.running:
        rot(trio, one, topic)
    trio.run(all_at_once())
    for one in trio.running:
        scrub(trio, one, topic)
    produce(trio, topic, range(RECORDS, RECORDS + 5))
    assert assignment(trio, 1, topic).target is None
    for one, paths in before.items():
        assert segments(trio, one, topic)[: len(paths)] == paths
        assert life(trio, one, topic) == 0


@pytest.mark.parametrize("replicas", [1, 2])
def test_with_one_or_two_copies_the_damage_is_reported_and_nothing_is_changed(
    trio: Trio, replicas: int, caplog: pytest.LogCaptureFixture
) -> None:
    with trio.client(1) as client:
        create(client, "few", replicas=replicas, **SEGMENTS)
    trio.eventually(lambda: "few" in trio.node(1).metadata.state.topics)
    produce(trio, "few", range(RECORDS))
    holder = assignment(trio, 1, "few").replicas[-1]
    path = rot(trio, holder, "few")
    with caplog.at_level(logging.ERROR):
        scrub(trio, holder, "few")
        trio.eventually(lambda: any("few-0: damaged, and not rebuilt" in one for one in caplog.messages))
        [mender] = [
            part._repair for part in trio.node(holder).parts._parts if isinstance(part, ReplicaReconciler)
        ]
        for _ in range(ROUNDS_BEFORE_ERROR + 1):
            trio.call(mender.look)
    assert any(f"{path} at byte" in line for line in caplog.messages)
    assert sum("few-0: damaged, and not rebuilt" in line for line in caplog.messages) == 1
    produce(trio, "few", range(RECORDS, RECORDS + 5))
    assert path in segments(trio, holder, "few")
