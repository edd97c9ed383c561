"""Whichever node leads next, readers of committed records end at the same offset and leave out the same records."""

from penstock.batch import EndMarker, Record, build_batch, check_batch
from penstock.node import Partition
from penstock.types import Isolation
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
