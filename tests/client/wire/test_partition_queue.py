"""The order of a partition's batches, without any broker."""

from penstock.batch import Record, read_header, read_records
from penstock.client.wire.partition_queue import Batch, Identity, PartitionQueue, batch_of
from penstock.types import TopicPartition

FIRST, SECOND = Identity(1, 0), Identity(2, 0)
LAST_SEQUENCE = 2**31 - 1


def queue_of(*sizes: int, start: int = 0) -> PartitionQueue:
    queue = PartitionQueue(TopicPartition("t", 0), FIRST)
    queue.next_sequence = start
    for rows in sizes:
        records = [Record(0, 5, b"k", b"%d" % number) for number in range(rows)]
        data = batch_of(records, 0, FIRST, queue.next_sequence)
        queue.add(Batch(data=data, rows=rows, sequence=queue.next_sequence, deadline_s=0.0))
    return queue


def sequences(queue: PartitionQueue) -> list[int]:
    found = []
    while queue.has_work():
        batch = queue.take(1)
        assert read_header(batch.data).base_sequence == batch.sequence
        found.append(batch.sequence)
        queue.acked()
    return found


def test_sequence_numbers_wrap_to_zero() -> None:
    assert sequences(queue_of(3, 2, 4, start=LAST_SEQUENCE - 2)) == [LAST_SEQUENCE - 2, 0, 2]
    assert sequences(queue_of(2, 3, 1, start=LAST_SEQUENCE)) == [LAST_SEQUENCE, 1, 4]


def test_at_most_five_are_in_flight() -> None:
    queue = queue_of(*[1] * 7)
    for _ in range(5):
        queue.take(1)
    assert not queue.has_work()
    queue.acked()
    assert queue.has_work()


def test_failed_batches_are_resent_first_and_only_when_none_is_in_flight() -> None:
    queue = queue_of(1, 1, 1, 1)
    for _ in range(3):
        queue.take(1)
    queue.failed()
    assert not queue.has_work()
    queue.failed()
    assert not queue.has_work()
    queue.acked()  # written after all: the answer to the one before it was lost
    assert sequences(queue) == [0, 1, 3]


def test_a_new_leader_gets_no_batch_while_the_old_one_has_some_in_flight() -> None:
    queue = queue_of(1, 1)
    queue.take(1)
    assert queue.may_go_to(1)
    assert not queue.may_go_to(2)
    queue.acked()
    assert queue.may_go_to(2)


def test_a_restart_numbers_all_batches_from_zero() -> None:
    queue = queue_of(2, 3, 1, start=77)
    queue.take(1)
    queue.failed()
    queue.restart(SECOND)
    assert read_header(queue.head.data).producer_id == SECOND.producer_id
    assert sequences(queue) == [0, 2, 5]


def test_halves_carry_the_numbers_and_records_of_the_whole() -> None:
    queue = queue_of(5, 1, start=LAST_SEQUENCE)
    whole = queue.take(1)
    grown = queue.failed_too_large()
    first = queue.take(1)
    second = queue.take(1)
    assert (first.sequence, second.sequence) == (LAST_SEQUENCE, 1)
    assert grown == len(first.data) + len(second.data) - len(whole.data)
    values = [record.value for part in (first, second) for record in read_records(part.data)]
    assert values == [record.value for record in read_records(whole.data)]
