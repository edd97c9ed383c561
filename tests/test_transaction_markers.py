"""Markers own offsets and hold no record: every reader of the package passes over them, wherever they are."""

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.request import urlopen

import pytest

from penstock import Broker
from penstock.batch import iter_headers, read_records
from penstock.client import Client
from penstock.client.wire import ClientSettings, Cluster, fetch_range
from penstock.types import Isolation, TopicPartition
from tests.transactional import ALL, COMMITTED, END, PATIENCE_SECONDS, TransactionalTopic

Unique = Callable[[str], str]
EVERY_VALUE = list(ALL.values())


@pytest.fixture
def topic(broker: Broker, unique: Unique) -> TransactionalTopic:
    made = TransactionalTopic(broker, unique("marked"))
    made.fill()
    return made


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.bootstrap_servers) as made:
        yield made


def read_http(broker: Broker, topic: str, offset: int, **params: int) -> dict[str, Any]:
    query = "".join(f"&{name}={value}" for name, value in params.items())
    url = f"{broker.http_url}/v1/topics/{topic}/partitions/0/records?offset={offset}{query}"
    with urlopen(url, timeout=PATIENCE_SECONDS) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found


@pytest.mark.parametrize("max_bytes", [1, 200, 100_000])
def test_http_reads_skip_them_and_go_on_behind_them(
    broker: Broker, topic: TransactionalTopic, max_bytes: int
) -> None:
    offset, seen = 0, {}
    while offset < END:
        found = read_http(broker, topic.name, offset, max_bytes=max_bytes)
        seen |= {record["offset"]: record["value"] for record in found["records"]}
        assert found["next_offset"] > offset
        offset = found["next_offset"]
    assert (offset, seen) == (END, ALL)


@pytest.mark.parametrize(("start", "end"), [(0, END), (0, 1), (5, 6), (3, 8), (9, END), (10, END)])
@pytest.mark.parametrize("fetch_bytes", [1, 1 << 20])
def test_ranges_that_begin_or_end_with_markers_are_covered(
    broker: Broker, topic: TransactionalTopic, start: int, end: int, fetch_bytes: int
) -> None:
    with Cluster(ClientSettings(bootstrap_servers=broker.bootstrap_servers)) as cluster:
        where = TopicPartition(topic.name, 0)
        chunks = list(fetch_range(cluster, where, start, end, fetch_bytes=fetch_bytes))
    found = [
        record.offset
        for chunk in chunks
        for position, header in iter_headers(chunk)
        if not header.control
        for record in read_records(chunk, position)
    ]
    assert [offset for offset in found if start <= offset < end] == [at for at in ALL if start <= at < end]


@pytest.mark.parametrize(("start", "end"), [(0, END), (4, 5), (5, 7), (4, 8), (6, 9), (10, END)])
@pytest.mark.parametrize("fetch_bytes", [1, 1 << 20])
def test_ranges_of_committed_records_leave_out_aborted_ones_and_end(
    broker: Broker, topic: TransactionalTopic, start: int, end: int, fetch_bytes: int
) -> None:
    with Cluster(ClientSettings(bootstrap_servers=broker.bootstrap_servers)) as cluster:
        where = TopicPartition(topic.name, 0)
        chunks = fetch_range(
            cluster, where, start, end, fetch_bytes=fetch_bytes, isolation=Isolation.READ_COMMITTED
        )
        found = [
            record.offset
            for chunk in chunks
            for position, header in iter_headers(chunk)
            if not header.control
            for record in read_records(chunk, position)
        ]
    assert [at for at in found if start <= at < end] == [at for at in COMMITTED if start <= at < end]


@pytest.mark.parametrize(
    ("level", "wanted"),
    [("read_uncommitted", list(ALL.values())), ("read_committed", list(COMMITTED.values()))],
)
def test_a_queue_delivers_no_marker_and_has_nothing_left(
    client: Client, topic: TransactionalTopic, unique: Unique, level: str, wanted: list[str]
) -> None:
    group = unique("workers")
    client.admin.alter_queue(group, {"share.auto.offset.reset": "earliest", "share.isolation.level": level})
    with client.queue(topic.name, group=group) as queue:
        for value in wanted:
            job = queue.receive(PATIENCE_SECONDS)
            assert job is not None
            assert job.text() == value
            job.ack().wait(PATIENCE_SECONDS)
        assert client.admin.queue(group).undone == 0
        topic.end(1, commit=True)
        topic.plain("behind")
        last = queue.receive(PATIENCE_SECONDS)
        assert last is not None
        assert (last.offset, last.text()) == (END + 1, "behind")


def test_a_queue_of_committed_records_waits_for_the_end_of_a_transaction(
    client: Client, topic: TransactionalTopic, unique: Unique
) -> None:
    group = unique("workers")
    settings = {"share.auto.offset.reset": "latest", "share.isolation.level": "read_committed"}
    client.admin.alter_queue(group, settings)
    with client.queue(topic.name, group=group) as queue:
        topic.plain("first")
        while (job := queue.receive(0.5)) is None:  # records from before it began are not its own
            topic.plain("first")
        topic.send(1, "x3")
        topic.send(2, "b2")
        topic.end(1, commit=False)
        topic.end(2, commit=True)
        while job is not None and job.text() == "first":
            job.ack()
            job = queue.receive(PATIENCE_SECONDS)
        assert job is not None
        assert job.text() == "b2"


def test_a_subscription_gets_no_marker_and_its_acks_pass_them(
    client: Client, topic: TransactionalTopic, unique: Unique
) -> None:
    name = unique("billing")
    with client.subscribe(topic.name, name=name, read_old=True) as subscription:
        for value in EVERY_VALUE:
            message = subscription.receive(PATIENCE_SECONDS)
            assert message is not None
            assert message.text() == value
            acked = message.ack()
        topic.plain("behind")
        message = subscription.receive(PATIENCE_SECONDS)
        assert message is not None
        assert message.text() == "behind"
        acked = message.ack()
        acked.wait(PATIENCE_SECONDS)
    assert client.admin.group(name).total_lag == 0


def test_a_subscription_of_committed_records_waits_for_open_transactions_and_gets_no_aborted_record(
    client: Client, topic: TransactionalTopic, unique: Unique
) -> None:
    topic.send(1, "later")
    topic.send(2, "never")
    name = unique("billing")
    with client.subscribe(topic.name, name=name, read_old=True, isolation="read_committed") as subscription:

        def receive() -> str:
            message = subscription.receive(PATIENCE_SECONDS)
            assert message is not None
            message.ack().wait(PATIENCE_SECONDS)
            return message.text()

        assert [receive() for _ in COMMITTED] == list(COMMITTED.values())
        topic.end(2, commit=False)
        topic.end(1, commit=True)
        assert receive() == "later"
        topic.plain("behind")
        assert receive() == "behind"
    assert client.admin.group(name).total_lag == 0


def test_a_subscription_with_another_level_is_refused_by_name(
    client: Client, topic: TransactionalTopic
) -> None:
    with pytest.raises(
        ValueError, match="isolation='serializable': expected read_uncommitted or read_committed"
    ):
        client.subscribe(topic.name, name="billing", isolation="serializable")  # type: ignore[arg-type]


def test_message_ids_of_other_batches_are_remembered_across_markers(
    broker: Broker, client: Client, unique: Unique
) -> None:
    """Records of transactions have no message ids for the broker: those of an aborted one must be sent again."""
    topic = TransactionalTopic(broker, unique("ids"), dedup_window_ms="600000")
    first = client.publish(topic.name, b"v", message_id="one")
    topic.send(1, "x1")
    topic.end(1, commit=False)
    assert client.publish(topic.name, b"v", message_id="one").offset == first.offset
    assert client.publish(topic.name, b"v", message_id="two").offset > 2
