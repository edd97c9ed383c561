"""Deduplication across leader changes: the next leader knows stored ids, and does not know truncated ones."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Message, Producer

from penstock.batch import Record, build_batch, iter_headers, read_records
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages import produce
from penstock.node.dedup import deduplication
from tests.kafka.raw import RawClient
from tests.kafka.requests import ask, create, read, until_served
from tests.kafka.trio import Trio

Unique = Callable[[str], str]
NAME = "penstock-message-id"
PATIENCE_SECONDS = 60


@pytest.fixture
def once(trio: Trio, unique: Unique) -> str:
    """A topic that stores each message once, on all three nodes."""
    name = unique("once")
    with trio.client(1) as client:
        create(client, name, dedup_window_ms="600000")
    trio.leader(name)
    return name


def request(topic: str, *ids: str, acks: int = -1, timeout_ms: int = 10_000) -> produce.ProduceRequest:
    now_ms = time.time_ns() // 1_000_000
    rows = [Record(i, now_ms, b"k", one.encode(), ((NAME, one.encode()),)) for i, one in enumerate(ids)]
    data = produce.PartitionProduceData(index=0, records=build_batch(rows))
    return produce.ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[produce.TopicProduceData(name=topic, partition_data=[data])],
    )


def send(client: RawClient, topic: str, *ids: str, **wishes: int) -> produce.PartitionProduceResponse:
    answer = ask(client, ApiKey.PRODUCE, 9, request(topic, *ids, **wishes), produce.ProduceResponse)
    return answer.responses[0].partition_responses[0]


def told(client: RawClient, topic: str, *ids: str) -> int:
    """The offset in the response to the producer."""
    row = until_served(lambda: send(client, topic, *ids))
    assert row.error_code == ErrorCode.NONE, row.error_message
    return row.base_offset


def stored(client: RawClient, topic: str) -> list[str]:
    values: list[str] = []
    offset = 0
    while (data := read(client, topic, offset)).high_watermark > offset:
        assert isinstance(data.records, bytes | bytearray | memoryview)
        chunk = bytes(data.records)
        for position, header in iter_headers(chunk):
            values += [(row.value or b"").decode() for row in read_records(chunk, position)]
            offset = header.next_offset
    return values


def others(trio: Trio, node_id: int) -> tuple[int, ...]:
    return tuple(one for one in trio.running if one != node_id)


def test_the_next_leader_knows_the_stored_ids(trio: Trio, once: str) -> None:
    leader = trio.leader(once)
    with trio.client(leader) as client:
        assert [told(client, once, one) for one in ("a", "b", "a")] == [0, 1, 0]
    for successor in (*others(trio, leader), leader):
        trio.hand_over(once, successor)
        with trio.client(successor) as client:
            assert [told(client, once, one) for one in ("b", "a")] == [1, 0]
            assert stored(client, once) == ["a", "b"]


def test_a_leader_that_is_not_confirmed_yet_stores_no_duplicate(trio: Trio, once: str) -> None:
    leader = trio.leader(once)
    with trio.client(leader) as client:
        told(client, once, "a")
    successor = others(trio, leader)[0]
    trio.hand_over(once, successor)
    trio.run(trio.node(successor).dedup.stop())
    with trio.client(successor) as client, trio.unconfirmed(successor, once):
        assert told(client, once, "a") == 0


def test_only_leaders_keep_the_index(trio: Trio, once: str) -> None:
    leader = trio.leader(once)
    with trio.client(leader) as client:
        told(client, once, "a")
    trio.hand_over(once, others(trio, leader)[0])
    trio.eventually(lambda: not trio.replica(leader, once).leads)
    trio.eventually(lambda: trio.replica(leader, once) not in trio.node(leader).dedup._partitions)


def test_truncated_messages_are_not_in_the_index(trio: Trio, once: str) -> None:
    leader = trio.leader(once)
    with trio.client(leader) as client, trio.cut_off(leader):
        told_early = send(client, once, "lost", "sent again", acks=1)
        assert told_early.error_code == ErrorCode.NONE  # acks=1: it was written, and no other node has it
        again = send(client, once, "lost", "sent again", timeout_ms=30_000)
        # It waited for a commit that never came.
        assert again.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        successor = trio.leader(once, among=others(trio, leader))
        with trio.client(successor) as other:
            assert told(other, once, "sent again") == 0
    trio.eventually(lambda: trio.replica(leader, once).high_watermark == 1)
    trio.hand_over(once, leader)
    with trio.client(leader) as client:
        assert told(client, once, "sent again") == 0
        assert told(client, once, "lost") == 1
        assert stored(client, once) == ["sent again", "lost"]


def test_a_pipelining_producer_waits_in_order_while_a_new_leader_loads_its_index(
    trio: Trio, once: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = trio.leader(once)
    with trio.client(leader) as client:
        for number in range(30):
            told(client, once, f"id {number}")
    successor = others(trio, leader)[0]
    trio.hand_over(once, successor)
    trio.run(trio.node(successor).dedup.stop())
    monkeypatch.setattr(deduplication, "RECORDS_PER_TURN", 1)
    with trio.client(successor) as client:
        for number in range(28, 33):
            client.request(ApiKey.PRODUCE, 9, request(once, f"id {number}"))
        rows: list[Any] = [client.answer(ApiKey.PRODUCE, 9)[1] for _ in range(5)]
        answers = [row.responses[0].partition_responses[0] for row in rows]
        assert [(row.error_code, row.base_offset) for row in answers] == [
            (ErrorCode.NONE, offset) for offset in (28, 29, 30, 31, 32)
        ]


@pytest.mark.parametrize("idempotent", [False, True])
def test_real_producers_that_retry_after_a_leader_failure_store_nothing_twice(
    trio: Trio, once: str, idempotent: bool
) -> None:
    ids = [f"id {number}" for number in range(10)]

    def send_all() -> list[int]:
        offsets: list[int] = []

        def delivered(error: object, message: Message) -> None:
            assert error is None, error
            offsets.append(message.offset() or 0)

        producer = Producer(
            {
                "bootstrap.servers": trio.bootstrap_servers,
                "enable.idempotence": idempotent,
                "acks": "all",
                "retry.backoff.ms": 20,
                "log_level": 0,
            }
        )
        for one in ids:
            producer.produce(once, one, headers={NAME: one.encode()}, on_delivery=delivered)
            assert producer.flush(PATIENCE_SECONDS) == 0
        return offsets

    assert send_all() == list(range(10))
    leader = trio.leader(once)
    trio.stop(leader)
    try:
        assert send_all() == list(range(10))
        with trio.client(trio.leader(once)) as client:
            assert stored(client, once) == ids
    finally:
        trio.start(leader)
