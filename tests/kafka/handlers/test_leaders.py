"""Responses of nodes about partitions that they lead, led, or never had."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from penstock.batch import Record, build_batch
from penstock.errors import ErrorCode
from penstock.kafka.handlers import metadata
from penstock.kafka.handlers.topics import ALL_RECORDS
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages import fetch, produce
from penstock.kafka.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from penstock.node.metadata import new_partitions
from penstock.node.replication.replica import ReplicaFacts
from penstock.types import Offset
from tests.kafka.raw import RawClient
from tests.kafka.requests import (
    EARLIEST,
    LATEST,
    ask,
    create,
    describe,
    end_of_epoch,
    fetch_request,
    offset_at,
    produce_request,
    read,
    until_served,
    write,
)
from tests.kafka.trio import PATIENCE_SECONDS, Trio

Unique = Callable[[str], str]


def others(trio: Trio, node_id: int) -> tuple[int, ...]:
    return tuple(one for one in trio.running if one != node_id)


# --- leaders and other nodes


def test_only_the_leader_serves_writes_and_reads(trio: Trio, topic: str) -> None:
    leader = trio.leader(topic)
    with trio.client(leader) as client:
        assert write(client, topic).error_code == ErrorCode.NONE
        assert read(client, topic).error_code == ErrorCode.NONE
    for follower in others(trio, leader):
        with trio.client(follower) as client:
            assert write(client, topic, once=True).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert write(client, topic, acks=1, once=True).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert read(client, topic, once=True).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert offset_at(client, topic, once=True).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert end_of_epoch(client, topic, 0, once=True).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_fetch_session_hears_that_its_partition_has_moved(trio: Trio, topic: str) -> None:
    leader = trio.leader(topic)
    successor = others(trio, leader)[0]
    with trio.client(leader) as client:
        request = fetch_request(topic, 0)
        request.session_epoch = 0
        opened = until_served(
            lambda: ask(client, ApiKey.FETCH, 12, request, fetch.FetchResponse),
            lambda answer: answer.responses[0].partitions[0].error_code,
        )
        assert opened.responses[0].partitions[0].error_code == ErrorCode.NONE
        going_on = fetch.FetchRequest(
            max_wait_ms=600_000, min_bytes=1, session_id=opened.session_id, session_epoch=1
        )
        client.request(ApiKey.FETCH, 12, going_on)
        trio.hand_over(topic, successor)
        _, moved = client.answer(ApiKey.FETCH, 12)
    assert isinstance(moved, fetch.FetchResponse)
    assert moved.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_every_node_returns_the_same_leader_and_replicas(trio: Trio, topic: str) -> None:
    leader = trio.leader(topic)
    trio.eventually(lambda: len(trio.replica(leader, topic).replica.in_sync_nodes()) == 3)
    trio.eventually(lambda: all(_in_sync(trio, one, topic) == {1, 2, 3} for one in (1, 2, 3)))
    told = []
    for node_id in trio.running:
        with trio.client(node_id) as client:
            told.append(describe(client, topic))
    assert [row.leader_id for row in told] == [leader] * 3
    assert told[0] == told[1] == told[2]
    assert (sorted(told[0].replica_nodes), told[0].offline_replicas) == ([1, 2, 3], [])


def _in_sync(trio: Trio, node_id: int, topic: str) -> set[int]:
    node = trio.node(node_id)
    return set(node.view.partition(node.metadata.state.topics[topic], 0).in_sync)


@pytest.mark.parametrize("node_id", [1, 2, 3])
def test_the_first_metadata_response_for_an_auto_created_topic_has_its_leader(
    trio: Trio, unique: Unique, node_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (metadata, new_partitions):  # a busy machine may need more than a second for an election
        monkeypatch.setattr(module, "LEADERS_WITHIN_SECONDS", PATIENCE_SECONDS)
    with trio.client(node_id) as client:
        made = describe(client, unique("used"))
    assert made.error_code == ErrorCode.NONE
    assert made.leader_id in made.replica_nodes
    assert sorted(made.replica_nodes) == [1, 2, 3]


def test_an_old_or_unknown_epoch_is_refused(trio: Trio, topic: str) -> None:
    first = trio.leader(topic)
    old = trio.replica(first, topic).term
    trio.hand_over(topic, others(trio, first)[0])
    leader = trio.leader(topic)
    now = trio.replica(leader, topic).term
    assert now > old
    with trio.client(leader) as client:
        for question in (
            lambda epoch: read(client, topic, epoch=epoch),
            lambda epoch: offset_at(client, topic, epoch=epoch),
            lambda epoch: end_of_epoch(client, topic, 0, current=epoch),
        ):
            assert [question(epoch).error_code for epoch in (-1, old, now, now + 1)] == [
                ErrorCode.NONE,
                ErrorCode.FENCED_LEADER_EPOCH,
                ErrorCode.NONE,
                ErrorCode.UNKNOWN_LEADER_EPOCH,
            ]
    trio.eventually(lambda: trio.replica(first, topic).leader is not None)
    with trio.client(first) as client:
        assert read(client, topic, epoch=old).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert read(client, topic, epoch=now, once=True).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_refusal_names_the_leader(trio: Trio, topic: str) -> None:
    leader = trio.leader(topic)
    term = trio.replica(leader, topic).term
    topic_id = trio.node(leader).metadata.state.topics[topic].topic_id
    with trio.client(others(trio, leader)[0]) as client:
        request = produce_request(topic, b"v")
        written = ask(client, ApiKey.PRODUCE, 10, request, produce.ProduceResponse)
        request.topic_data[0].topic_id = topic_id
        by_id = ask(client, ApiKey.PRODUCE, 13, request, produce.ProduceResponse)
        wanted = fetch_request(topic, 0)
        wanted.topics[0].topic_id = topic_id
        fetched = ask(client, ApiKey.FETCH, 16, wanted, fetch.FetchResponse)
    hints = [
        written.responses[0].partition_responses[0].current_leader,
        by_id.responses[0].partition_responses[0].current_leader,
        fetched.responses[0].partitions[0].current_leader,
    ]
    assert [(hint.leader_id, hint.leader_epoch) for hint in hints if hint is not None] == [(leader, term)] * 3
    for answer in (written, by_id, fetched):
        assert [(one.node_id, (one.host, one.port)) for one in answer.node_endpoints] == [
            (leader, trio.address(leader))
        ]


def test_a_success_carries_no_hints(trio: Trio, topic: str) -> None:
    with trio.client(trio.leader(topic)) as client:
        written = ask(client, ApiKey.PRODUCE, 10, produce_request(topic, b"v"), produce.ProduceResponse)
    row = written.responses[0].partition_responses[0]
    assert row.error_code == ErrorCode.NONE
    assert (row.current_leader, written.node_endpoints) in ((None, []), (produce.LeaderIdAndEpoch(), []))


@pytest.mark.parametrize("version", [12, 14, 17])
def test_a_client_cannot_fetch_as_a_replica(trio: Trio, topic: str, version: int) -> None:
    leader = trio.leader(topic)
    request = fetch_request(topic, 0, replica_id=2)
    request.replica_state = fetch.ReplicaState(replica_id=2) if version >= 15 else None
    request.topics[0].topic_id = trio.node(leader).metadata.state.topics[topic].topic_id
    with trio.client(leader) as client:
        write(client, topic)
        answer = ask(client, ApiKey.FETCH, version, request, fetch.FetchResponse)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert answer.responses[0].partitions[0].error_code == ErrorCode.INVALID_REQUEST
        assert read(client, topic).error_code == ErrorCode.NONE


# --- losing the lead


def test_a_leader_that_is_cut_off_acknowledges_nothing_and_soon_refuses_all_requests(
    trio: Trio, topic: str
) -> None:
    old = trio.leader(topic)
    with trio.client(old) as client, trio.cut_off(old):
        refused = write(client, topic, b"lost", timeout_ms=30_000, once=True)
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        new = trio.leader(topic, among=others(trio, old))
        with trio.client(new) as other:
            assert write(other, topic, b"kept").error_code == ErrorCode.NONE
            assert offset_at(other, topic).offset == 1
        assert offset_at(client, topic, once=True).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert read(client, topic, once=True).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert describe(client, topic).error_code == ErrorCode.LEADER_NOT_AVAILABLE
    trio.leader(topic)
    trio.eventually(lambda: trio.replica(old, topic).high_watermark == 1)
    replica = trio.replica(old, topic)
    stored = trio.call(lambda: replica.read(Offset(0), 10_000, end=replica.high_watermark, at_least_one=True))
    assert b"kept" in stored
    assert b"lost" not in stored


def test_a_waiting_fetch_is_answered_when_its_node_stops_leading(trio: Trio, topic: str) -> None:
    leader = trio.leader(topic)
    with trio.client(leader) as client:
        client.request(ApiKey.FETCH, 12, fetch_request(topic, 0, max_wait_ms=60_000))
        trio.hand_over(topic, others(trio, leader)[0])
        _, answer = client.answer(ApiKey.FETCH, 12)
    assert isinstance(answer, fetch.FetchResponse)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_connection_with_acks_0_is_closed_by_a_node_that_does_not_lead(trio: Trio, topic: str) -> None:
    with trio.client(others(trio, trio.leader(topic))[0]) as client:
        client.request(ApiKey.PRODUCE, 9, produce_request(topic, b"v", acks=0))
        assert client.is_closed_by_broker()


def test_an_unflushed_majority_is_answered_as_timed_out(trio: Trio, topic: str) -> None:
    """The followers are there, so the leader keeps its lease; but it alone has the record."""
    leader = trio.leader(topic)
    one, other = others(trio, leader)
    with trio.client(leader) as client:
        with unflushed(trio, one), unflushed(trio, other):
            assert write(client, topic, timeout_ms=20, once=True).error_code == ErrorCode.REQUEST_TIMED_OUT
            assert offset_at(client, topic).offset == 0
        trio.eventually(lambda: trio.replica(leader, topic).high_watermark == 1)


def test_a_leader_whose_term_is_not_confirmed_returns_no_offsets(trio: Trio, topic: str) -> None:
    leader = trio.leader(topic)
    with trio.client(leader) as client:
        write(client, topic)
        with trio.unconfirmed(leader, topic):
            assert (
                offset_at(client, topic, LATEST, version=5, once=True).error_code
                == ErrorCode.OFFSET_NOT_AVAILABLE
            )
            assert (
                offset_at(client, topic, LATEST, version=4, once=True).error_code
                == ErrorCode.LEADER_NOT_AVAILABLE
            )
            assert read(client, topic, once=True).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert offset_at(client, topic).offset == 1


def test_offsets_and_epochs_show_where_a_log_was_truncated(trio: Trio, topic: str) -> None:
    """The check of a consumer after a failover: do the records that it has read still exist?"""
    ends = []
    for _ in range(3):
        leader = trio.leader(topic)
        with trio.client(leader) as client:
            written = write(client, topic)
        ends.append((trio.replica(leader, topic).term, written.base_offset + 1))
        trio.hand_over(topic, others(trio, leader)[0])
    leader = trio.leader(topic)
    latest = trio.replica(leader, topic).term
    with trio.client(leader) as client:
        for term, end in ends:
            found = end_of_epoch(client, topic, term)
            assert (found.leader_epoch, found.end_offset) == (term, end)
        own, unknown = end_of_epoch(client, topic, latest), end_of_epoch(client, topic, latest + 1)
    assert (own.leader_epoch, own.end_offset) == (latest, 3)
    assert (unknown.error_code, unknown.leader_epoch, unknown.end_offset) == (ErrorCode.NONE, -1, -1)


def test_a_new_leader_never_has_a_lower_high_watermark_than_the_one_before(trio: Trio, topic: str) -> None:
    shown = [0]
    for _ in range(6):
        leader = trio.leader(topic)
        with trio.client(leader) as client:
            shown += [read(client, topic, shown[-1]).high_watermark, offset_at(client, topic).offset]
            write(client, topic)
        trio.hand_over(topic, others(trio, leader)[0])
    assert shown == sorted(shown)
    assert shown[-1] == 5


# --- in-sync replicas


def test_acks_all_needs_min_insync_replicas(trio: Trio, unique: Unique) -> None:
    name = unique("strict")
    with trio.client(1) as client:
        create(client, name, min_insync_replicas="3")
    leader = trio.leader(name)
    away = others(trio, leader)[0]
    trio.eventually(lambda: len(trio.replica(leader, name).replica.in_sync_nodes()) == 3)
    with trio.client(leader) as client:
        write_to_all(trio, client, leader, name)
        flushed = trio.call(lambda: [row.lag for row in trio.replica(leader, name).replica.progress()])
        assert flushed == [0, 0, 0]
        with trio.cut_off(away):
            # A majority has it, so it is kept; but it is not on three disks.
            late = write(client, name, timeout_ms=30_000)
            assert late.error_code in (
                ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
                ErrorCode.NOT_ENOUGH_REPLICAS,
            )
            trio.eventually(lambda: len(trio.replica(leader, name).replica.in_sync_nodes()) == 2)
            assert write(client, name).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
            assert write(client, name, acks=1).error_code == ErrorCode.NONE
            trio.eventually(lambda: _in_sync(trio, leader, name) == {1, 2, 3} - {away})
        write_to_all(trio, client, leader, name)


def write_to_all(trio: Trio, client: RawClient, leader: int, topic: str) -> None:
    """A write that is acknowledged when three replicas have it. A node that just returned may fall behind once more, as
    all do on a machine that stalls. Then the leader answers with an error: no producer waits while all are there."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        trio.eventually(lambda: len(trio.replica(leader, topic).replica.in_sync_nodes()) == 3)
        if (code := write(client, topic).error_code) == ErrorCode.NONE:
            return
        assert code in (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        assert time.monotonic() < deadline, "it falls behind for ever"


@contextmanager
def unflushed(trio: Trio, node_id: int) -> Iterator[None]:
    """The node's flushes wait until this ends."""
    thread: Any = trio.node(node_id).storage.flusher._cycle._thread
    submit, held = thread.submit, list[Any]()
    trio.call(lambda: setattr(thread, "submit", held.append))

    def go_on() -> None:
        thread.submit = submit
        for job in held:
            submit(job)

    try:
        yield
    finally:
        trio.call(go_on)


def send_to_all(trio: Trio, client: RawClient, leader: int, topic: str) -> None:
    """A write with acks=all, which all followers have flushed when this returns."""

    async def followers_have_it() -> None:
        replica = trio.replica(leader, topic)
        while not (
            replica.high_watermark
            and all(row.lag == 0 for row in replica.replica.progress() if is_other(row))
        ):
            await asyncio.sleep(0)

    def is_other(row: ReplicaFacts) -> bool:
        return row.node_id != leader

    client.request(ApiKey.PRODUCE, 9, produce_request(topic, b"v"))
    trio.run(followers_have_it())


def code_of_answer(client: RawClient) -> int:
    _, answer = client.answer(ApiKey.PRODUCE, 9)
    assert isinstance(answer, produce.ProduceResponse)
    return answer.responses[0].partition_responses[0].error_code


@pytest.fixture
def strict_topic(trio: Trio, unique: Unique) -> str:
    """A topic that needs three replicas in sync, and has them."""
    name = unique("strict")
    with trio.client(1) as client:
        create(client, name, min_insync_replicas="3")
    leader = trio.leader(name)
    trio.eventually(lambda: len(trio.replica(leader, name).replica.in_sync_nodes()) == 3)
    return name


def test_acks_all_is_answered_also_when_the_leader_itself_is_the_last_to_flush(
    trio: Trio, strict_topic: str
) -> None:
    leader = trio.leader(strict_topic)
    with trio.client(leader) as client:
        with unflushed(trio, leader):
            send_to_all(trio, client, leader, strict_topic)
        assert code_of_answer(client) == ErrorCode.NONE


def test_acks_all_is_answered_when_min_insync_replicas_is_lowered_meanwhile(
    trio: Trio, strict_topic: str
) -> None:
    leader = trio.leader(strict_topic)
    replica = trio.replica(leader, strict_topic)
    fewer = msgspec.structs.replace(replica.config, min_insync_replicas=2)
    with trio.client(leader) as client, unflushed(trio, leader):
        send_to_all(trio, client, leader, strict_topic)
        trio.call(lambda: replica.reconfigure(fewer))
        assert code_of_answer(client) == ErrorCode.NONE


def test_more_replicas_than_nodes_are_refused(trio: Trio, unique: Unique) -> None:
    with trio.client(2) as client:
        refused = create(client, unique("wide"), replicas=4)
    assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert "3 nodes" in (refused.error_message or "")


# --- the log's start


def test_deleted_records_do_not_come_back_with_the_next_leader(trio: Trio, topic: str) -> None:
    leader = trio.leader(topic)
    with trio.client(leader) as client:
        assert [write(client, topic).error_code for _ in range(5)] == [ErrorCode.NONE] * 5
        assert delete_before(client, topic, 3) == (ErrorCode.NONE, 3)
    trio.eventually(lambda: {int(trio.replica(one, topic).start_offset) for one in (1, 2, 3)} == {3})
    for successor in others(trio, leader):
        trio.hand_over(topic, successor)
        with trio.client(successor) as client:
            assert offset_at(client, topic, EARLIEST).offset == 3
            assert read(client, topic, 2).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("before", [1, ALL_RECORDS])
def test_records_are_deleted_also_when_the_leader_itself_is_the_last_to_flush_them(
    trio: Trio, topic: str, before: int
) -> None:
    leader = trio.leader(topic)
    with trio.client(leader) as client, trio.client(leader) as deleting:
        with unflushed(trio, leader):
            send_to_all(trio, client, leader, topic)
            deleting.request(ApiKey.DELETE_RECORDS, 1, delete_request(topic, before))
            trio.eventually(lambda: bool(trio.replica(leader, topic)._pending._flushes))
        assert code_of_answer(client) == ErrorCode.NONE
        _, answer = deleting.answer(ApiKey.DELETE_RECORDS, 1)
        assert result_of(answer) == (ErrorCode.NONE, 1)


def delete_before(client: RawClient, topic: str, offset: int) -> tuple[int, int]:
    request = delete_request(topic, offset)
    return until_served(
        lambda: result_of(ask(client, ApiKey.DELETE_RECORDS, 1, request, DeleteRecordsResponse)),
        lambda result: result[0],
    )


def delete_request(topic: str, offset: int) -> DeleteRecordsRequest:
    wanted = DeleteRecordsTopic(
        name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)]
    )
    return DeleteRecordsRequest(topics=[wanted], timeout_ms=30_000)


def result_of(answer: object) -> tuple[int, int]:
    assert isinstance(answer, DeleteRecordsResponse)
    row = answer.topics[0].partitions[0]
    return row.error_code, row.low_watermark


def test_a_leader_that_may_have_been_deposed_refuses_no_sequence(trio: Trio, topic: str) -> None:
    """Its successor may have accepted more batches; for clients, a sequence error is final (Redpanda #3039)."""
    leader = trio.leader(topic)

    def send(sequence: int) -> ErrorCode:
        rows = [Record(0, 1, None, b"v", ())]
        batch = build_batch(rows, producer_id=77, producer_epoch=0, base_sequence=sequence)
        data = produce.PartitionProduceData(index=0, records=batch)
        request = produce.ProduceRequest(
            acks=1, topic_data=[produce.TopicProduceData(name=topic, partition_data=[data])]
        )
        with trio.client(leader) as client:
            answer = ask(client, ApiKey.PRODUCE, 9, request, produce.ProduceResponse)
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    assert send(0) == ErrorCode.NONE
    assert until_served(lambda: send(5), lambda code: code) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    with trio.unconfirmed(leader, topic):
        assert send(5) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert send(1) == ErrorCode.NONE
