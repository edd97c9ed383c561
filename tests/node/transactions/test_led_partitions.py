"""Partitions that take part in transactions: each marker is stored once, and answers of coordinators may be late."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.batch import EndMarker, Record, build_batch, check_batch
from penstock.cluster import decisions
from penstock.config import Address, NodeConfig
from penstock.errors import ErrorCode, KafkaError
from penstock.node import Node, Partition
from penstock.node.calls import BROKER, AtNode, methods
from penstock.node.calls.messages.transactions import Marker, WriteMarkers
from penstock.node.transactions import led_partitions
from penstock.transactions import Producer
from penstock.types import ANONYMOUS

PRODUCER = Producer(7, 0)
TERM = 3
"""Of the coordinator."""

Act = Callable[[Node, Partition], Coroutine[None, None, None]]


def play(act: Act) -> None:
    async def run() -> None:
        node = Node(NodeConfig(memory=True, http=None, kafka=Address("127.0.0.1", 1)))
        await node.start()
        try:
            await node.controller.create_topic("t", caller=BROKER)
            await node.settled()
            await act(node, node.leader("t", 0))
        finally:
            await node.stop()

    asyncio.run(run())


def send(partition: Partition, sequence: int) -> None:
    """A batch of the producer's transaction, which begins one if none is open."""
    batch = bytearray(
        build_batch(
            [Record(0, 1, b"k", b"v")],
            producer_id=PRODUCER.producer_id,
            producer_epoch=PRODUCER.epoch,
            base_sequence=sequence,
            transactional=True,
        )
    )
    partition.append(batch, check_batch(batch))


def marker(partition: Partition, markers_id: int, *, coordinator_term: int = TERM, **changes: Any) -> Marker:
    fields = {
        "group": partition.group,
        "leader_term": partition.term,
        "producer_id": PRODUCER.producer_id,
        "producer_epoch": PRODUCER.epoch,
        "commit": True,
        "coordinator_term": coordinator_term,
        "markers_id": markers_id,
    }
    return Marker(**{**fields, **changes})


async def write(node: Node, *markers: Marker) -> list[int]:
    request = WriteMarkers(list(markers))
    answer = await node.calls.ask(AtNode(node.node_id), methods.WRITE_MARKERS, request, caller=BROKER)
    return answer.codes


def is_open(partition: Partition) -> bool:
    return partition.log.producers.has_transaction(*PRODUCER)


# --- markers


def test_a_repeated_marker_is_stored_once() -> None:
    async def act(node: Node, partition: Partition) -> None:
        send(partition, 0)
        first = marker(partition, 1)
        assert await write(node, first, first) == [ErrorCode.NONE, ErrorCode.NONE]
        assert await write(node, first) == [ErrorCode.NONE]
        assert partition.high_watermark == 2

    play(act)


def test_a_marker_that_was_delayed_does_not_end_the_next_transaction() -> None:
    """In V1 the next transaction has the same producer and epoch."""

    async def act(node: Node, partition: Partition) -> None:
        send(partition, 0)
        delayed = marker(partition, 1)
        assert await write(node, delayed) == [ErrorCode.NONE]
        send(partition, 1)
        assert await write(node, delayed) == [ErrorCode.NONE], "it was written before"
        assert is_open(partition)
        assert await write(node, marker(partition, 2)) == [ErrorCode.NONE]
        send(partition, 2)
        assert await write(node, delayed) == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
        assert is_open(partition)

    play(act)


def test_the_numbers_of_markers_begin_again_with_the_next_coordinator() -> None:
    async def act(node: Node, partition: Partition) -> None:
        send(partition, 0)
        assert await write(node, marker(partition, 9)) == [ErrorCode.NONE]
        send(partition, 1)
        assert await write(node, marker(partition, 1, coordinator_term=TERM + 1)) == [ErrorCode.NONE]
        assert not is_open(partition)
        code = ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert await write(node, marker(partition, 10)) == [code], "of the coordinator before"

    play(act)


def test_a_marker_for_a_leader_of_another_term_is_refused() -> None:
    """It may have been delayed since the leader's last term; the leader between has taken others meanwhile."""

    async def act(node: Node, partition: Partition) -> None:
        send(partition, 0)
        for term in (partition.term - 1, partition.term + 1):
            wrong = marker(partition, 1, leader_term=term)
            assert await write(node, wrong) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        assert is_open(partition)

    play(act)


def test_one_refused_marker_does_not_keep_others_from_being_written() -> None:
    async def act(node: Node, partition: Partition) -> None:
        send(partition, 0)
        codes = await write(node, marker(partition, 1, leader_term=99), marker(partition, 1))
        assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE]

    play(act)


def test_a_bounded_number_of_markers_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(led_partitions, "MAX_PRODUCERS", 3)

    async def act(node: Node, partition: Partition) -> None:
        many = [marker(partition, 1, producer_id=number) for number in range(5)]
        assert await write(node, *many) == [ErrorCode.NONE] * 5
        assert list(node.led_transactions._of(partition).markers) == [2, 3, 4]

    play(act)


def test_the_markers_of_a_deleted_topic_are_forgotten() -> None:
    async def act(node: Node, partition: Partition) -> None:
        assert await write(node, marker(partition, 1)) == [ErrorCode.NONE]
        assert list(node.led_transactions._led) == [partition.group]
        await node.metadata.change(lambda state: decisions.delete_topic(state, "t"))
        await node.settled()
        assert not node.led_transactions._led

    play(act)


# --- answers of coordinators


def test_only_the_producer_that_began_a_transaction_continues_it_without_a_question() -> None:
    """In V2 a client has its next epoch before the markers of its last transaction are written."""

    async def act(node: Node, partition: Partition) -> None:
        send(partition, 0)
        has_transaction = partition.log.producers.has_transaction
        assert has_transaction(PRODUCER.producer_id, PRODUCER.epoch)
        assert not has_transaction(PRODUCER.producer_id, PRODUCER.epoch + 1)
        assert not has_transaction(PRODUCER.producer_id + 1, PRODUCER.epoch)
        assert await write(node, marker(partition, 1)) == [ErrorCode.NONE]
        assert not has_transaction(PRODUCER.producer_id, PRODUCER.epoch)

    play(act)


def test_an_answer_counts_until_a_marker_of_that_producer_comes() -> None:
    async def act(node: Node, partition: Partition) -> None:
        led = node.led_transactions
        asked = led.admission(partition, PRODUCER.producer_id)
        assert await write(node, marker(partition, 1, producer_id=8)) == [ErrorCode.NONE]
        assert led.is_valid(partition, PRODUCER.producer_id, asked), "another producer's"
        assert await write(node, marker(partition, 1)) == [ErrorCode.NONE]
        assert not led.is_valid(partition, PRODUCER.producer_id, asked)

    play(act)


def test_an_answer_does_not_count_after_the_marker_of_an_operator() -> None:
    async def act(node: Node, partition: Partition) -> None:
        led = node.led_transactions
        assert await write(node, marker(partition, 1)) == [ErrorCode.NONE]
        asked = led.admission(partition, PRODUCER.producer_id)
        led.write_marker(partition, PRODUCER, EndMarker(False, TERM))
        assert not led.is_valid(partition, PRODUCER.producer_id, asked)
        with pytest.raises(KafkaError):
            led.write_marker(partition, PRODUCER, EndMarker(False, TERM), (TERM, 0))

    play(act)


def test_a_leader_does_not_wait_for_a_coordinator_where_no_producer_was_initialised() -> None:
    async def act(node: Node, partition: Partition) -> None:
        codes = await node.led_transactions.ask(
            "nobody", PRODUCER, [partition.name], adds=False, caller=ANONYMOUS
        )
        assert codes == [ErrorCode.COORDINATOR_NOT_AVAILABLE]

    play(act)
