"""Transactions as producers ask for them, in both dialects: V1 (EndTxn up to 4) and V2 (EndTxn 5, Produce 12)."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Broker
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages import add_partitions_to_txn as adding
from penstock.kafka.wire.messages import delete_topics as deleting
from penstock.kafka.wire.messages import produce as producing
from penstock.kafka.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.node import Node
from penstock.node.calls import methods
from penstock.node.calls.messages.transactions import JoinTransaction
from penstock.node.transactions.marker_sender import MarkerSender
from penstock.transactions import Dialect, EndRequest, Producer
from penstock.types import Caller
from tests.kafka.committed_records import committed_values, last_stable_offset
from tests.kafka.raw import RawClient
from tests.kafka.requests import ask, create, write
from tests.kafka.transactional_producer import TransactionalProducer, persist
from tests.kafka.waiting import wait_until

Unique = Callable[[str], str]
BOTH_DIALECTS = pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker) as connected:
        yield connected


@pytest.fixture
def topic(client: RawClient, unique: Unique) -> str:
    name = unique("payments")
    create(client, name, replicas=1)
    return name


@pytest.fixture
def producer(client: RawClient, unique: Unique) -> TransactionalProducer:
    """V1."""
    made = TransactionalProducer(client, unique("producer"))
    made.begin()
    return made


# --- commit and abort


@BOTH_DIALECTS
def test_readers_of_committed_records_see_committed_transactions_only(
    client: RawClient, topic: str, unique: Unique, v2: bool
) -> None:
    producer = TransactionalProducer(client, unique("producer"), v2=v2)
    producer.begin()
    for value, commit in (("a", True), ("b", False), ("c", True)):
        producer.write(topic, value)
        producer.finish(commit=commit)
    wait_until(lambda: last_stable_offset(client, topic) == 6)
    assert committed_values(client, topic) == ["a", "c"]


@BOTH_DIALECTS
def test_a_transaction_over_several_topics_appears_everywhere(
    client: RawClient, unique: Unique, v2: bool
) -> None:
    topics = [unique(name) for name in ("orders", "stock", "mail")]
    producer = TransactionalProducer(client, unique("producer"), v2=v2)
    producer.begin()
    for name in topics:
        create(client, name, replicas=1)
        producer.write(name, "x", "y")
    assert [committed_values(client, name) for name in topics] == [[], [], []]
    producer.finish(commit=True)
    for name in topics:
        wait_until(lambda name=name: committed_values(client, name) == ["x", "y"])


def test_an_end_of_the_newer_dialect_raises_the_epoch_and_may_be_repeated(
    client: RawClient, topic: str, unique: Unique
) -> None:
    producer = TransactionalProducer(client, unique("producer"), v2=True)
    producer.begin()
    producer.write(topic, "a")
    before = producer.producer_id, producer.epoch
    producer.finish(commit=True)
    after = producer.producer_id, producer.epoch
    assert after == (before[0], before[1] + 1)
    wait_until(lambda: committed_values(client, topic) == ["a"])
    producer.producer_id, producer.epoch = before
    producer.finish(commit=True)
    assert (producer.producer_id, producer.epoch) == after


def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(
    client: RawClient, topic: str, unique: Unique
) -> None:
    producer = TransactionalProducer(client, unique("producer"))
    producer.begin()
    persist(lambda: producer.init(timeout_ms=1))
    persist(lambda: producer.add(topic))
    may_come_in_time = {ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS}
    code = persist(lambda: producer.send(topic, "late"), may_come_in_time)
    assert code == ErrorCode.INVALID_PRODUCER_EPOCH
    wait_until(lambda: last_stable_offset(client, topic) == write(client, topic).base_offset)
    assert "late" not in committed_values(client, topic)
    assert producer.end(commit=True) in {ErrorCode.PRODUCER_FENCED, ErrorCode.CONCURRENT_TRANSACTIONS}


def test_a_transaction_ends_although_one_of_its_topics_was_deleted(
    client: RawClient, topic: str, producer: TransactionalProducer, unique: Unique
) -> None:
    gone = unique("gone")
    create(client, gone, replicas=1)
    producer.write(gone, "a")
    producer.write(topic, "a")
    delete = deleting.DeleteTopicsRequest(
        topics=[deleting.DeleteTopicState(name=gone)], topic_names=[gone], timeout_ms=10_000
    )
    ask(client, ApiKey.DELETE_TOPICS, 5, delete, deleting.DeleteTopicsResponse)
    producer.finish(commit=True)
    wait_until(lambda: committed_values(client, topic) == ["a"])
    producer.write(topic, "b")


# --- what is part of a transaction


@pytest.mark.parametrize(
    ("version", "code"), [(10, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)]
)
def test_the_first_batch_on_a_partition_that_was_not_added_is_refused(
    client: RawClient, topic: str, producer: TransactionalProducer, unique: Unique, version: int, code: int
) -> None:
    other = unique("other")
    create(client, other, replicas=1)
    producer.write(topic, "a")
    assert producer.send(other, "b", version=version) == code
    assert last_stable_offset(client, other) == 0


def test_a_batch_that_comes_after_the_end_of_its_transaction_does_not_begin_one(
    client: RawClient, topic: str, producer: TransactionalProducer
) -> None:
    producer.write(topic, "a")
    producer.finish(commit=False)
    wait_until(lambda: last_stable_offset(client, topic) == 2)
    not_heard_yet = {ErrorCode.NOT_ENOUGH_REPLICAS}  # the coordinator, of the marker
    code = persist(lambda: producer.send(topic, "late"), not_heard_yet)
    assert code == ErrorCode.TRANSACTION_ABORTABLE
    assert last_stable_offset(client, topic) == 2


def test_batches_that_wait_for_the_coordinator_keep_their_order(
    client: RawClient, topic: str, producer: TransactionalProducer
) -> None:
    assert producer.add(topic) == ErrorCode.NONE
    for value in "abcde":
        client.request(ApiKey.PRODUCE, 11, producer.send_request(topic, value))
        producer.sequences[topic, 0] = producer.sequences.get((topic, 0), 0) + 1
    for offset in range(5):
        _, answer = client.answer(ApiKey.PRODUCE, 11)
        assert isinstance(answer, producing.ProduceResponse)
        row = answer.responses[0].partition_responses[0]
        assert (row.error_code, row.base_offset) == (ErrorCode.NONE, offset)
    producer.finish(commit=True)
    wait_until(lambda: committed_values(client, topic) == list("abcde"))


def test_transactional_batches_need_a_request_with_a_transactional_id(
    client: RawClient, topic: str, producer: TransactionalProducer
) -> None:
    producer.add(topic)
    request = producer.send_request(topic, "a")
    request.transactional_id = None
    answer = ask(client, ApiKey.PRODUCE, 11, request, producing.ProduceResponse)
    code = answer.responses[0].partition_responses[0].error_code
    assert code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_plain_batch_within_a_transaction_is_refused(
    client: RawClient, topic: str, producer: TransactionalProducer
) -> None:
    producer.write(topic, "a")
    request = producer.send_request(topic, "b", transactional=False)
    answer = ask(client, ApiKey.PRODUCE, 11, request, producing.ProduceResponse)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize(
    ("other", "code"),
    [
        ("no-such-topic", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("__transaction_state", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ],
)
def test_partitions_are_added_all_or_none(
    client: RawClient, topic: str, producer: TransactionalProducer, other: str, code: int
) -> None:
    assert producer.add(other, topic) == code
    assert producer.add(topic, other) == ErrorCode.OPERATION_NOT_ATTEMPTED
    assert producer.end(commit=True) == ErrorCode.INVALID_TXN_STATE, "there is no transaction"


def test_brokers_verify_and_add_partitions_for_many_transactions_at_once(
    client: RawClient, topic: str, producer: TransactionalProducer
) -> None:
    def join(*, verify_only: bool) -> int:
        transaction = adding.AddPartitionsToTxnTransaction(
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            verify_only=verify_only,
            topics=[adding.AddPartitionsToTxnTopic(name=topic, partitions=[0])],
        )
        request = adding.AddPartitionsToTxnRequest(transactions=[transaction])
        answer = ask(client, ApiKey.ADD_PARTITIONS_TO_TXN, 5, request, adding.AddPartitionsToTxnResponse)
        row = answer.results_by_transaction[0].topic_results[0].results_by_partition[0]
        return row.partition_error_code

    assert join(verify_only=True) == ErrorCode.TRANSACTION_ABORTABLE
    assert join(verify_only=False) == ErrorCode.NONE
    assert join(verify_only=True) == ErrorCode.NONE


# --- fencing


def test_an_older_producer_of_the_same_id_is_fenced_with_the_code_that_its_version_knows(
    client: RawClient, topic: str, producer: TransactionalProducer
) -> None:
    successor = TransactionalProducer(client, producer.transactional_id)
    producer.write(topic, "zombie")
    successor.begin()
    assert (successor.producer_id, successor.epoch > producer.epoch) == (producer.producer_id, True)
    wait_until(lambda: last_stable_offset(client, topic) == 2)
    assert producer.add(topic, version=1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.add(topic, version=2) == ErrorCode.PRODUCER_FENCED
    assert producer.end(commit=True, version=1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.end(commit=True, version=2) == ErrorCode.PRODUCER_FENCED
    assert producer.init(version=3, resume=True) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.init(version=4, resume=True) == ErrorCode.PRODUCER_FENCED
    assert producer.send(topic, "zombie") == ErrorCode.INVALID_PRODUCER_EPOCH
    successor.write(topic, "a")
    successor.finish(commit=True)
    wait_until(lambda: committed_values(client, topic) == ["a"])


def test_a_producer_that_names_half_of_its_identity_is_refused(
    client: RawClient, producer: TransactionalProducer
) -> None:
    producer.epoch = -1
    assert producer.init(resume=True) == ErrorCode.INVALID_REQUEST


def test_a_longer_timeout_than_the_broker_allows_is_refused(producer: TransactionalProducer) -> None:
    assert producer.init(timeout_ms=900_001) == ErrorCode.INVALID_TRANSACTION_TIMEOUT


# --- the dialect


def test_clients_are_told_to_speak_the_newer_dialect(client: RawClient) -> None:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    answer = ask(client, ApiKey.API_VERSIONS, 4, request, ApiVersionsResponse)
    finalised = {one.name: one.max_version_level for one in answer.finalized_features}
    supported = {one.name: (one.min_version, one.max_version) for one in answer.supported_features}
    assert (finalised["transaction.version"], supported["transaction.version"]) == (2, (0, 2))


# --- races


def test_a_marker_that_overtakes_the_coordinators_answer_leaves_no_transaction_open() -> None:
    """The coordinator says that the partition is part of the transaction, and ends it before the leader hears that."""
    with Broker(http=None) as broker, RawClient(broker) as client:
        create(client, "t", replicas=1)
        producer = TransactionalProducer(client, "p")
        producer.begin()
        assert producer.add("t") == ErrorCode.NONE
        service: Any = broker._thread.service
        asked = end_before_the_first_answer(service.node, producer)
        assert producer.send("t", "late") == ErrorCode.TRANSACTION_ABORTABLE
        assert len(asked) == 2, "the first answer did not count any more"
        assert last_stable_offset(client, "t") == 1
        assert committed_values(client, "t") == []


def test_a_batch_does_not_overtake_one_that_waits_for_the_coordinator() -> None:
    """The answer about the first batch comes after the second batch could have asked, too."""
    with Broker(http=None) as broker, RawClient(broker) as client:
        create(client, "t", replicas=1)
        producer = TransactionalProducer(client, "p")
        producer.begin()
        assert producer.add("t") == ErrorCode.NONE
        service: Any = broker._thread.service
        questions = answer_the_first_question_last(service.node)
        for sequence in range(2):
            producer.sequences["t", 0] = sequence
            client.request(ApiKey.PRODUCE, 11, producer.send_request("t", str(sequence)))
        for offset in range(2):
            _, answer = client.answer(ApiKey.PRODUCE, 11)
            assert isinstance(answer, producing.ProduceResponse)
            row = answer.responses[0].partition_responses[0]
            assert (row.error_code, row.base_offset) == (ErrorCode.NONE, offset)
        assert len(questions) == 1, "the second batch belongs to a transaction that is open"


def answer_the_first_question_last(node: Node) -> list[JoinTransaction]:
    """The first answer waits for another question, which should not come. Returns the questions."""
    handlers, number = node.calls._handlers, methods.JOIN_TRANSACTION.number
    answer_now = handlers[number]
    asked: list[JoinTransaction] = []

    async def answer_late(caller: Caller, request: JoinTransaction) -> Any:
        asked.append(request)
        for _ in range(30):
            if len(asked) == 1:
                await asyncio.sleep(0.01)
        if len(asked) > 1 and request is asked[0]:
            await asyncio.sleep(0.05)
        return await answer_now(caller, request)

    handlers[number] = answer_late
    return asked


def end_before_the_first_answer(node: Node, producer: TransactionalProducer) -> list[JoinTransaction]:
    """Aborts the transaction after the coordinator's first answer, and passes the answer on when the marker is there.
    Returns the questions."""
    handlers, number = node.calls._handlers, methods.JOIN_TRANSACTION.number
    answer_now = handlers[number]
    asked: list[JoinTransaction] = []

    async def answer_late(caller: Caller, request: JoinTransaction) -> Any:
        answer = await answer_now(caller, request)
        asked.append(request)
        if len(asked) == 1:
            current = Producer(producer.producer_id, producer.epoch)
            await node.transactions.end(
                EndRequest(transactional_id="p", producer=current, commit=False, dialect=Dialect.V1)
            )
            host = node.transactions.cores.get(node.transactions.cores.index_of("p"))
            while (found := host.core.describe("p")) is None or found.state.title != "CompleteAbort":
                await asyncio.sleep(0.01)
        return answer

    handlers[number] = answer_late
    return asked


def test_while_its_coordinator_loads_a_client_waits_and_looks_for_no_other() -> None:
    """NOT_COORDINATOR would send it from node to node, and INVALID_PRODUCER_ID_MAPPING would end it."""
    with Broker(http=None) as broker, RawClient(broker) as client:
        create(client, "t", replicas=1)
        producer = TransactionalProducer(client, "p")
        producer.begin()
        producer.write("t", "a")
        service: Any = broker._thread.service
        cores = service.node.transactions.cores
        host = cores.get(cores.index_of("p"))
        host.is_ready, host.is_loading = False, True
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert [producer.init(), producer.add("t"), producer.end(commit=True)] == [loading] * 3
        host.is_ready, host.is_loading = True, False
        producer.finish(commit=True)
        wait_until(lambda: committed_values(client, "t") == ["a"])


# --- restarts


@BOTH_DIALECTS
def test_an_open_transaction_outlives_a_restart_of_the_node(tmp_path: Path, v2: bool) -> None:
    with Broker(data_dir=tmp_path, http=None) as broker, RawClient(broker) as client:
        create(client, "t", replicas=1)
        before = TransactionalProducer(client, "p", v2=v2)
        before.begin()
        before.write("t", "a")
    with Broker(data_dir=tmp_path, http=None) as broker, RawClient(broker) as client:
        assert committed_values(client, "t") == []
        producer = TransactionalProducer(client, "p", v2=v2)
        producer.producer_id, producer.epoch = before.producer_id, before.epoch
        producer.sequences = before.sequences
        persist(producer.find_coordinator)
        producer.write("t", "b")
        producer.finish(commit=True)
        wait_until(lambda: committed_values(client, "t") == ["a", "b"])


def test_a_transaction_that_was_decided_before_a_restart_gets_its_markers_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker(data_dir=tmp_path, http=None) as broker, RawClient(broker) as client:
        create(client, "t", replicas=1)
        producer = TransactionalProducer(client, "p")
        producer.begin()
        producer.write("t", "a")
        monkeypatch.setattr(MarkerSender, "_send_all", lambda self: None)  # as if it was killed before
        producer.finish(commit=True)
        assert committed_values(client, "t") == []
    monkeypatch.undo()
    with Broker(data_dir=tmp_path, http=None) as broker, RawClient(broker) as client:
        wait_until(lambda: committed_values(client, "t") == ["a"])
