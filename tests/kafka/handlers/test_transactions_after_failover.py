"""Whichever node leads next, readers of committed records end at the same offset and leave out the same records, and
offsets in open transactions are pending as before."""

from penstock.batch import EndMarker, Record, build_batch, check_batch
from penstock.cluster import OFFSETS_TOPIC
from penstock.errors import ErrorCode
from penstock.groups import CommitRequest, OffsetToCommit
from penstock.node import Node, Partition
from penstock.types import Isolation, Producer, TopicPartition
from tests.kafka.trio import Trio

TransactionFacts = tuple[int, dict[int, int], list[tuple[int, ...]]]


async def write(partition: Partition) -> None:
    """Producer 7 aborts, 8 commits, 9 stays open."""
    for producer_id in (7, 8, 9):
        batch = bytearray(
            build_batch(
                [Record(0, 1, b"k", b"v")],
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=0,
                transactional=True,
            )
        )
        partition.append(batch, check_batch(batch))
    for producer_id, commit in ((7, False), (8, True)):
        appended = partition.append_marker(EndMarker(commit, 3), producer_id=producer_id, producer_epoch=1)
    committed = partition.committed_at(appended)
    if committed is not None:
        await committed


def facts(partition: Partition) -> TransactionFacts:
    transactions = partition.log.transactions
    stable = partition.end_for(Isolation.READ_COMMITTED)
    return stable, dict(transactions.open), [tuple(one) for one in transactions.aborted]


def test_the_next_leader_has_the_same_transactions(trio: Trio, topic: str) -> None:
    leader = trio.leader(topic)
    trio.run(write(trio.replica(leader, topic)))
    expected: TransactionFacts = (2, {9: 2}, [(7, 0, 3, 1)])
    assert trio.call(lambda: facts(trio.replica(leader, topic))) == expected
    successor = trio.followers(topic)[0]
    trio.hand_over(topic, successor)
    assert trio.call(lambda: facts(trio.replica(successor, topic))) == expected
    epochs = {row.producer_id: row for row in trio.replica(successor, topic).log.producers.facts()}
    assert (epochs[7].epoch, epochs[7].coordinator_epoch, epochs[9].transaction_start_offset) == (1, 3, 2)

    async def end() -> int:
        partition = trio.replica(successor, topic)
        appended = partition.append_marker(EndMarker(True, 3), producer_id=9, producer_epoch=0)
        committed = partition.committed_at(appended)
        if committed is not None:
            await committed
        return partition.end_for(Isolation.READ_COMMITTED)

    assert trio.run(end()) == 6


async def commit(node: Node, group_id: str, producer: Producer, where: TopicPartition) -> ErrorCode:
    one = OffsetToCommit(topic=where.topic, partition=where.partition, offset=producer.producer_id)
    request = CommitRequest(group_id=group_id, offsets=(one,), producer=producer)
    return (await node.groups.commit(request)).errors[where]


async def end(node: Node, index: int, producer: Producer, *, commits: bool) -> None:
    appended = node.groups.cores.write_marker(index, EndMarker(commits, 3), producer)
    committed = node.leader(OFFSETS_TOPIC, index).committed_at(appended)
    if committed is not None:
        await committed


def serves(node: Node, index: int) -> bool:
    coordinator = node.groups.cores.loaded().get(index)
    return coordinator is not None and coordinator.serves


def test_the_next_coordinator_has_the_same_pending_offsets(trio: Trio, topic: str) -> None:
    group_id, where = f"readers-of-{topic}", TopicPartition(topic, 0)
    seven, eight = Producer(7, 0), Producer(8, 0)
    trio.run(trio.node(1).groups.cores.ensure_topic())
    index = trio.call(lambda: trio.node(1).groups.cores.index_of(group_id))
    first = trio.leader(OFFSETS_TOPIC, index)
    trio.eventually(lambda: serves(trio.node(first), index))
    for producer in (seven, eight):
        assert trio.run(commit(trio.node(first), group_id, producer, where)) is ErrorCode.NONE
    trio.run(end(trio.node(first), index, seven, commits=True))

    second = trio.followers(OFFSETS_TOPIC, index)[0]
    trio.hand_over(OFFSETS_TOPIC, second, index)
    node = trio.node(second)
    trio.eventually(lambda: serves(node, index))
    assert trio.call(lambda: node.groups.committed(group_id)[where].offset) == 7
    assert trio.call(lambda: set(node.groups.unstable(group_id))) == {where}
    trio.run(end(node, index, eight, commits=True))
    assert trio.call(lambda: node.groups.committed(group_id)[where].offset) == 8
    assert trio.call(lambda: set(node.groups.unstable(group_id))) == set()
