"""Offsets that a consumer group commits with a transaction: they count when the transaction is committed."""

import time
from collections.abc import Callable, Iterator

import pytest

from penstock import Broker
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages import offset_fetch as fetching
from tests.kafka.committed_records import committed_values
from tests.kafka.raw import RawClient
from tests.kafka.requests import ask, create
from tests.kafka.transactional_producer import TransactionalProducer, persist

Unique = Callable[[str], str]
PATIENCE_SECONDS = 60.0
NO_OFFSET = -1


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
def group(unique: Unique) -> str:
    return unique("group")


@pytest.fixture(params=[False, True], ids=["v1", "v2"])
def producer(client: RawClient, unique: Unique, request: pytest.FixtureRequest) -> TransactionalProducer:
    made = TransactionalProducer(client, unique("producer"), v2=request.param)
    made.begin()
    return made


def fetch_offset(client: RawClient, group: str, topic: str, *, require_stable: bool) -> tuple[int, int]:
    """The code and the offset of partition 0."""
    wanted = fetching.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
    request = fetching.OffsetFetchRequest(
        groups=[fetching.OffsetFetchRequestGroup(group_id=group, topics=[wanted])],
        require_stable=require_stable,
    )
    answer = ask(client, ApiKey.OFFSET_FETCH, 9, request, fetching.OffsetFetchResponse)
    assert answer.groups[0].error_code == ErrorCode.NONE
    row = answer.groups[0].topics[0].partitions[0]
    return row.error_code, row.committed_offset


def stable_offset(client: RawClient, group: str, topic: str) -> int:
    """Waits for the end of transactions, as consumers do."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (found := fetch_offset(client, group, topic, require_stable=True))[0]:
        assert found[0] == ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert time.monotonic() < deadline
    return found[1]


def test_offsets_count_when_their_transaction_is_committed(
    client: RawClient, topic: str, group: str, producer: TransactionalProducer
) -> None:
    producer.write(topic, "a")
    producer.commit_offset(group, topic, 7)
    assert fetch_offset(client, group, topic, require_stable=False) == (ErrorCode.NONE, NO_OFFSET)
    unstable = (ErrorCode.UNSTABLE_OFFSET_COMMIT, NO_OFFSET)
    assert fetch_offset(client, group, topic, require_stable=True) == unstable
    producer.finish(commit=True)
    assert stable_offset(client, group, topic) == 7


def test_offsets_of_an_aborted_transaction_do_not_count(
    client: RawClient, topic: str, group: str, producer: TransactionalProducer
) -> None:
    for offset, commit in ((7, True), (9, False)):
        producer.commit_offset(group, topic, offset)
        producer.finish(commit=commit)
    assert stable_offset(client, group, topic) == 7


def test_records_and_offsets_of_many_transactions_agree(
    client: RawClient, topic: str, group: str, producer: TransactionalProducer
) -> None:
    for offset in range(1, 6):
        producer.write(topic, str(offset))
        producer.commit_offset(group, topic, offset)
        producer.finish(commit=offset % 2 == 1)
    assert stable_offset(client, group, topic) == 5
    deadline = time.monotonic() + PATIENCE_SECONDS
    while committed_values(client, topic) != ["1", "3", "5"]:
        assert time.monotonic() < deadline


def test_offsets_of_a_group_that_was_not_added_are_refused(
    client: RawClient, topic: str, group: str, unique: Unique
) -> None:
    producer = TransactionalProducer(client, unique("producer"))
    producer.begin()
    persist(lambda: producer.add(topic))
    assert producer.send_offset(group, topic, 7, version=3) == ErrorCode.INVALID_TXN_STATE
    assert producer.send_offset(group, topic, 7, version=4) == ErrorCode.TRANSACTION_ABORTABLE
    assert fetch_offset(client, group, topic, require_stable=True) == (ErrorCode.NONE, NO_OFFSET)


def test_an_older_producer_of_the_same_id_commits_no_offsets(
    client: RawClient, topic: str, group: str, producer: TransactionalProducer
) -> None:
    successor = TransactionalProducer(client, producer.transactional_id)
    successor.begin()
    assert producer.send_offset(group, topic, 7) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.add_offsets(group, version=1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.add_offsets(group, version=2) == ErrorCode.PRODUCER_FENCED


def test_a_member_that_names_its_generation_must_be_in_the_group(
    client: RawClient, topic: str, group: str, producer: TransactionalProducer
) -> None:
    if not producer.is_v2:
        persist(lambda: producer.add_offsets(group))
    assert producer.send_offset(group, topic, 7, generation=3) == ErrorCode.ILLEGAL_GENERATION


def test_offsets_of_unknown_topics_are_refused_one_by_one(
    client: RawClient, group: str, producer: TransactionalProducer
) -> None:
    code = producer.send_offset(group, "no-such-topic", 7)
    assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
