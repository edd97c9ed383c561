"""`cleanup.policy=acked` and `penstock.retention.keep.undone` on three nodes: groups and queues have different
coordinators, which may fail."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from uuid import UUID

import pytest

from penstock.cluster import OFFSETS_TOPIC, STATE_TOPIC, offsets_partition
from penstock.config import GroupSettings
from penstock.errors import ErrorCode, KafkaError
from penstock.groups import CommitRequest, OffsetToCommit
from penstock.node import Partition
from penstock.node.calls import BROKER, AtNode, methods
from penstock.node.calls.messages.groups import ListAckedOffsets
from penstock.node.coordination import acked_cleanup
from penstock.node.queues import Acknowledgement, QueueDriver
from penstock.queue.values import AckKind
from penstock.types import NodeId
from tests.kafka.requests import EARLIEST, create, offset_at, write
from tests.kafka.trio import LOOK_AGAIN_SECONDS, PATIENCE_SECONDS, Trio

Unique = Callable[[str], str]
RECORDS = 10
ACCEPT = bytes([AckKind.ACCEPT])


@pytest.fixture(scope="module")
def trio() -> Iterator[Trio]:
    """Each test uses a topic of its own and leaves all three nodes running."""
    with Trio(groups=GroupSettings(offsets_topic_partitions=3, state_topic_partitions=2)) as running:
        running.run(running.node(1).groups.cores.ensure_topic())
        yield running


@pytest.fixture
def topic(trio: Trio, unique: Unique) -> str:
    """A topic with ten old records. Each node coordinates a third of all groups."""
    for index, node_id in enumerate((1, 2, 3)):
        hand_over(trio, OFFSETS_TOPIC, node_id, index)
    name = unique("acked")
    with trio.client(1) as client:
        made = create(client, name, cleanup_policy="acked", penstock_acked_min_age_ms="0")
        assert made.error_code == ErrorCode.NONE, made.error_message
    with trio.client(trio.leader(name)) as client:
        for _ in range(RECORDS):
            assert write(client, name).error_code == ErrorCode.NONE
    return name


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(LOOK_AGAIN_SECONDS)


def hand_over(trio: Trio, topic: str, to: int, index: int = 0) -> None:
    """Retries: a node that was cut off a moment ago has to catch up before it can lead."""

    def leads() -> bool:
        leader = trio.leader(topic, index)
        if leader != to:
            group = trio.replica(leader, topic, index).group
            with suppress(KafkaError):
                trio.run(trio.node(leader).controller.hand_over(group, leader, to, caller=BROKER))
        return leader == to

    until(leads)


def index_of(group: str) -> int:
    return offsets_partition(group, 3)


def group_at(trio: Trio, unique: Unique, node_id: int) -> str:
    """A name that this node coordinates: each has one of the three partitions."""
    index = node_id - 1
    hand_over(trio, OFFSETS_TOPIC, node_id, index)
    return next(name for name in (unique("group") for _ in range(1000)) if index_of(name) == index)


def commit(trio: Trio, group: str, topic: str, offset: int) -> None:
    """At the group's current coordinator."""
    row = OffsetToCommit(topic=topic, partition=0, offset=offset, metadata="")
    request = CommitRequest(group_id=group, offsets=(row,))

    def is_committed() -> bool:
        coordinator = trio.leader(OFFSETS_TOPIC, index_of(group), among=tuple(trio.running))
        result = trio.run(trio.node(coordinator).groups.commit(request))
        return list(result.errors.values()) == [ErrorCode.NONE]

    until(is_committed)


def succeeded(trio: Trio, *among: int) -> None:
    """Returns when these nodes coordinate all groups."""
    for index in range(3):
        trio.leader(OFFSETS_TOPIC, index, among=among)


def clean(trio: Trio, node_id: int, topic: str) -> int:
    """The log start after a round on this node."""
    trio.run(trio.node(node_id).acked.clean())
    return trio.replica(node_id, topic).start_offset


def starts_at(trio: Trio, topic: str, offset: int, *, among: tuple[int, ...] = ()) -> None:
    """Returns when its leader has deleted all records before, and clients see that. The leader may change meanwhile."""

    def is_so() -> bool:
        leader = trio.leader(topic, among=among)
        clean(trio, leader, topic)
        with trio.client(leader) as client:
            answer = offset_at(client, topic, EARLIEST, once=True)
        assert answer.error_code != ErrorCode.NONE or answer.offset <= offset
        return answer.error_code == ErrorCode.NONE and answer.offset == offset

    until(is_so)


# --- groups


def test_groups_of_all_coordinators_count(trio: Trio, topic: str, unique: Unique) -> None:
    groups = [group_at(trio, unique, node_id) for node_id in (1, 2, 3)]
    for group, offset in zip(groups, (10, 3, 7), strict=True):
        commit(trio, group, topic, offset)
    starts_at(trio, topic, 3)
    commit(trio, groups[1], topic, 10)
    starts_at(trio, topic, 7)
    commit(trio, groups[2], topic, 9)
    starts_at(trio, topic, 9)


def test_replicas_follow_the_log_start_of_their_leader(trio: Trio, topic: str, unique: Unique) -> None:
    commit(trio, group_at(trio, unique, 1), topic, 6)
    starts_at(trio, topic, 6)
    replicas = [trio.replica(follower, topic) for follower in trio.followers(topic)]
    trio.eventually(lambda: all(replica.start_offset == 6 for replica in replicas))


def test_nothing_is_deleted_while_a_coordinator_is_unreachable_and_its_successor_knows_its_groups(
    trio: Trio, topic: str, unique: Unique
) -> None:
    leader = trio.leader(topic)
    silent, other = trio.followers(topic)
    commit(trio, slow := group_at(trio, unique, silent), topic, 2)
    commit(trio, group_at(trio, unique, leader), topic, 10)
    with trio.cut_off(silent):
        assert clean(trio, leader, topic) <= 2
        succeeded(trio, leader, other)
        starts_at(trio, topic, 2, among=(leader, other))
    commit(trio, slow, topic, 10)
    starts_at(trio, topic, 10)


def test_a_coordinator_that_may_have_been_replaced_reports_no_offsets(
    trio: Trio, topic: str, unique: Unique
) -> None:
    """It does not know the groups that were created at its successor."""
    leader = trio.leader(topic)
    silent, other = trio.followers(topic)
    commit(trio, group_at(trio, unique, leader), topic, 10)
    with trio.cut_off(silent):
        node = trio.node(silent)
        index = next(iter(trio.call(lambda: node.groups.cores.loaded())))
        trio.eventually(lambda: not node.partitions.get(OFFSETS_TOPIC, index).may_serve)
        topic_id = trio.replica(leader, topic).group.topic_id
        assert index not in trio.run(_told(trio, silent, topic_id))
        succeeded(trio, leader, other)


async def _told(trio: Trio, node_id: int, topic_id: UUID) -> list[int]:
    """Partitions of the offsets topic whose groups this node reports."""
    calls, request = trio.node(node_id).calls, ListAckedOffsets([(topic_id, [0])])
    answer = await calls.ask(AtNode(NodeId(node_id)), methods.LIST_ACKED_OFFSETS, request, caller=BROKER)
    return [index for kind, index, _ in answer.sources if kind == 0]


def test_a_new_leader_continues_the_cleanup_of_the_last_one(trio: Trio, topic: str, unique: Unique) -> None:
    first = trio.leader(topic)
    second = trio.followers(topic)[0]
    commit(trio, slow := group_at(trio, unique, second), topic, 4)
    commit(trio, group_at(trio, unique, first), topic, 10)
    starts_at(trio, topic, 4)
    trio.stop(first)
    try:
        leader = trio.leader(topic)
        starts_at(trio, topic, 4)
        assert clean(trio, leader, topic) == 4
        commit(trio, slow, topic, 8)
        starts_at(trio, topic, 8)
    finally:
        trio.start(first)


def test_a_node_that_does_not_lead_deletes_nothing(trio: Trio, topic: str, unique: Unique) -> None:
    commit(trio, group_at(trio, unique, 1), topic, 10)
    with trio.unconfirmed(trio.leader(topic), topic):
        for node_id in trio.running:
            assert clean(trio, node_id, topic) == 0
    starts_at(trio, topic, 10)


def test_the_log_names_the_node_that_does_not_answer(
    trio: Trio, topic: str, unique: Unique, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(acked_cleanup, "WARN_AFTER_ROUNDS", 2)
    leader = trio.leader(topic)
    silent, other = trio.followers(topic)
    group = group_at(trio, unique, silent)
    commit(trio, group, topic, 10)
    starts_at(trio, topic, 10)
    with trio.client(leader) as client:
        write(client, topic)
    with trio.cut_off(silent):
        clean(trio, leader, topic)
        clean(trio, leader, topic)
        succeeded(trio, leader, other)
    assert f"no node answers for {OFFSETS_TOPIC}-{index_of(group)}" in caplog.text


# --- queues


def queue(trio: Trio, group: str, topic: str) -> QueueDriver:
    leader = trio.leader(topic)
    partition: Partition = trio.replica(leader, topic)
    node = trio.node(leader)
    return trio.run(node.queues.manager.driver(group, partition.group.topic_id, partition))


def accept(trio: Trio, driver: QueueDriver, first: int, last: int) -> None:
    async def work() -> None:
        driver.deliver("member", 1000, 1 << 20)
        await driver.acknowledge("member", [Acknowledgement(first, last, ACCEPT)])

    trio.run(work())


def test_a_queue_counts_with_any_coordinator_and_any_leader(trio: Trio, topic: str, unique: Unique) -> None:
    """It begins at the end of the log, so earlier records do not matter to it."""
    workers = unique("workers")
    driver = queue(trio, workers, topic)
    with trio.client(trio.leader(topic)) as client:
        for _ in range(RECORDS):
            write(client, topic)
    accept(trio, driver, 10, 14)
    starts_at(trio, topic, 15)
    for to in trio.followers(topic):
        for index in range(2):
            hand_over(trio, STATE_TOPIC, to, index)
        hand_over(trio, topic, to)
        assert clean(trio, to, topic) == 15
    driver = queue(trio, workers, topic)
    accept(trio, driver, 15, 19)
    starts_at(trio, topic, 20)


def test_a_queue_reports_only_durable_progress(trio: Trio, topic: str, unique: Unique) -> None:
    leader = trio.leader(topic)
    workers = unique("workers")
    driver = queue(trio, workers, topic)
    for index in range(2):
        hand_over(trio, STATE_TOPIC, leader, index)
    with trio.client(leader) as client:
        write(client, topic)
    states = trio.node(leader).queues.state
    index = states.index_of(driver.key)
    core = trio.call(lambda: states.cores.get(index)).core
    assert (driver.key, 10) in core.start_offsets(None)
    with trio.cut_off(leader):
        trio.call(lambda: driver.deliver("member", 1, 1 << 20))
        trio.call(lambda: driver.acknowledge("member", [Acknowledgement(10, 10, ACCEPT)]))
        trio.eventually(lambda: (driver.key, 11) in core.start_offsets(None))
        with pytest.raises(KafkaError):
            trio.run(states.committed_heads(index))
        succeeded(trio, *(one for one in trio.running if one != leader))
    trio.eventually(lambda: not driver._tasks)  # its pending calls find the new leader


# --- retention that keeps undone messages


@pytest.fixture
def keeping(trio: Trio, unique: Unique) -> tuple[str, str]:
    """A topic with ten records that have expired, each in a segment of its own, and a queue on it."""
    name, workers = unique("keeping"), unique("workers")
    with trio.client(1) as client:
        configs = {
            "retention_ms": "1",
            "internal_segment_bytes": "100",
            "penstock_retention_keep_undone": "true",
        }
        made = create(client, name, **configs)
        assert made.error_code == ErrorCode.NONE, made.error_message
    queue(trio, workers, name)
    with trio.client(trio.leader(name)) as client:
        for _ in range(RECORDS):
            assert write(client, name).error_code == ErrorCode.NONE
    return name, workers


def retain(trio: Trio, node_id: int, topic: str) -> int:
    """The log start after two rounds of housekeeping: the first finds expired records, the second deletes them."""
    for _ in range(2):
        trio.run(trio.node(node_id).housekeeping.tidy())
    return trio.replica(node_id, topic).start_offset


def is_kept_from(trio: Trio, topic: str, offset: int, *, among: tuple[int, ...] = ()) -> None:
    """Returns when retention has deleted all records before; it must not delete more."""

    def is_so() -> bool:
        start = retain(trio, trio.leader(topic, among=among), topic)
        assert start <= offset
        return start == offset

    until(is_so)


def test_retention_keeps_undone_messages_whichever_nodes_lead(trio: Trio, keeping: tuple[str, str]) -> None:
    topic, workers = keeping
    accept(trio, queue(trio, workers, topic), 0, 2)
    is_kept_from(trio, topic, 3)
    for done, to in enumerate(trio.followers(topic), 3):
        for index in range(2):
            hand_over(trio, STATE_TOPIC, to, index)
        hand_over(trio, topic, to)
        is_kept_from(trio, topic, done)
        accept(trio, queue(trio, workers, topic), done, done)
        is_kept_from(trio, topic, done + 1)


def test_nothing_is_deleted_while_the_state_of_queues_is_unreachable(
    trio: Trio, keeping: tuple[str, str]
) -> None:
    """The data's leader knows of no queue by itself: its own driver has ended."""
    topic, workers = keeping
    leader = trio.leader(topic)
    silent, other = trio.followers(topic)
    for index in range(2):
        hand_over(trio, STATE_TOPIC, silent, index)
    hand_over(trio, topic, leader)
    driver = queue(trio, workers, topic)
    accept(trio, driver, 0, 3)
    ended = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the queue was not used for a while")
    trio.call(lambda: driver.end(ended))
    before = trio.replica(leader, topic).start_offset
    with trio.cut_off(silent):
        assert retain(trio, leader, topic) == before
        is_kept_from(trio, topic, 4, among=(leader, other))  # the successor knows the queue


def test_the_next_leader_of_a_killed_one_keeps_undone_messages(trio: Trio, keeping: tuple[str, str]) -> None:
    topic, workers = keeping
    accept(trio, queue(trio, workers, topic), 0, 4)
    is_kept_from(trio, topic, 5)
    first = trio.leader(topic)
    with trio.cut_off(first):
        others = tuple(one for one in trio.running if one != first)
        second = trio.leader(topic, among=others)
        for _ in range(3):
            assert retain(trio, second, topic) <= 5
        retain(trio, first, topic)
        assert trio.replica(first, topic).start_offset == 5
    is_kept_from(trio, topic, 5)
    accept(trio, queue(trio, workers, topic), 5, 9)
    is_kept_from(trio, topic, 10)


def test_the_report_of_any_node_shows_what_a_queue_holds_back(trio: Trio, keeping: tuple[str, str]) -> None:
    topic, workers = keeping
    is_kept_from(trio, topic, 0)
    for node_id in trio.running:
        until(lambda node_id=node_id: is_held_back(trio, node_id, topic, workers))  # type: ignore[misc]


def is_held_back(trio: Trio, node_id: int, topic: str, workers: str) -> bool:
    """Whether this node reports it. While a node's answer is missing, retention deletes nothing and knows no reason."""
    is_kept_from(trio, topic, 0)
    report = trio.run(trio.node(node_id).status.snapshot())
    rows = [(one.queue, one.records) for one in report.held_back if one.topic == topic]
    assert rows in ([], [(workers, RECORDS)])
    return bool(rows)
