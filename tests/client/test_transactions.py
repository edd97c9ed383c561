"""Transactions of the blocking client: messages, offsets and jobs count together, or not at all."""

import threading
from collections.abc import Callable
from contextlib import suppress

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock import Broker
from penstock.client import (
    Client,
    ClientError,
    Job,
    ProducerFenced,
    Queue,
    Refused,
    TransactionFailed,
    base,
    transactional_ids,
)
from penstock.client.wire.transactions import TransactionAdmin
from penstock.errors import ErrorCode
from tests.client.committed import committed_values
from tests.faults.waiting import eventually

SOON = 60.0


fails = pytest.raises
"""Around a transaction, which has several statements."""


class Failure(Exception):
    pass


@pytest.fixture
def results(client: Client, unique: Callable[[str], str]) -> str:
    """A second topic, for results."""
    name = unique("results")
    client.admin.create_topic(name, partitions=1)
    return name


def take(queue: Queue, count: int = 1) -> list[Job]:
    jobs: list[Job] = []
    while len(jobs) < count:
        job = queue.receive(SOON)
        assert job is not None, f"{len(jobs)} of {count} jobs"
        jobs.append(job)
    return jobs


def fill(client: Client, topic: str, *values: str) -> None:
    for value in values:
        client.publish_soon(topic, value)
    client.flush()


def eventually_committed(broker: Broker, topic: str, *values: str) -> None:
    """Markers come some milliseconds after the commit was answered."""
    wanted = list(values)
    eventually(lambda: committed_values(broker.bootstrap_servers, topic) == wanted, f"{wanted} in {topic}")


# --- publishing


def test_a_second_commit_does_not_call_a_committed_transaction_aborted(
    broker: Broker, client: Client, topic: str
) -> None:
    with client.transaction("billing") as transaction:
        transaction.publish(topic, "order")
        transaction.commit()
        with pytest.raises(ClientError, match="it has ended") as refused:
            transaction.commit()
    assert not isinstance(refused.value, TransactionFailed)
    eventually_committed(broker, topic, "order")


def test_messages_to_several_topics_are_visible_when_the_block_ends(
    broker: Broker, client: Client, topic: str, results: str
) -> None:
    with client.transaction("billing") as transaction:
        transaction.publish(topic, "order", key="k", headers={"trace": "t"})
        transaction.publish(results, json={"total": 1})
        assert committed_values(broker.bootstrap_servers, topic) == []
    eventually_committed(broker, topic, "order")
    eventually_committed(broker, results, '{"total":1}')


def test_a_block_that_raises_aborts_and_the_error_comes_through(
    broker: Broker, client: Client, topic: str, unique: Callable[[str], str]
) -> None:
    name = unique("billing")
    with fails(Failure), client.transaction(name) as transaction:
        transaction.publish(topic, "lost")
        raise Failure
    with client.transaction(name) as transaction:
        transaction.publish(topic, "kept")
    eventually_committed(broker, topic, "kept")


def test_an_abort_within_the_block_ends_the_transaction(broker: Broker, client: Client, topic: str) -> None:
    with client.transaction("billing") as transaction:
        transaction.publish(topic, "lost")
        transaction.abort()
        with pytest.raises(ClientError, match="it has ended"):
            transaction.publish(topic, "late")
    with client.transaction("billing") as transaction:
        transaction.publish(topic, "kept")
    eventually_committed(broker, topic, "kept")


def test_many_transactions_of_one_id_follow_each_other(broker: Broker, client: Client, topic: str) -> None:
    for number in range(20):
        with client.transaction("billing") as transaction:
            transaction.publish(topic, str(number))
    eventually_committed(broker, topic, *map(str, range(20)))


def test_a_transaction_may_be_larger_than_the_buffer(broker: Broker, client: Client, topic: str) -> None:
    with client.transaction("billing") as transaction:
        for number in range(40):
            transaction.publish(topic, f"{number}".ljust(50_000))
    eventually(
        lambda: (
            [one.strip() for one in committed_values(broker.bootstrap_servers, topic)]
            == [str(number) for number in range(40)]
        ),
        "all records",
    )


def test_keys_choose_the_same_partition_as_without_a_transaction(
    client: Client, unique: Callable[[str], str], broker: Broker
) -> None:
    name = unique("keyed")
    client.admin.create_topic(name, partitions=8)
    places = {client.publish(name, "plain", key=key).partition: key for key in "abcdef"}
    with client.transaction("billing") as transaction:
        for partition, key in places.items():
            transaction.publish(name, f"{partition}", key=key)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": unique("reader"),
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(name, index, 0) for index in range(8)])
    found: dict[str, int | None] = {}
    while len(found) < len(places):
        message = consumer.poll(SOON)
        assert message is not None
        if message.error() is None and message.value() != b"plain":
            found[(message.value() or b"").decode()] = message.partition()
    consumer.close()
    assert found == {str(partition): partition for partition in places}


def test_an_empty_transaction_commits(client: Client) -> None:
    for _ in range(2):
        with client.transaction("billing"):
            pass


def test_an_id_has_one_transaction_at_a_time_in_a_client(client: Client, topic: str) -> None:
    with client.transaction("billing") as transaction:
        with pytest.raises(ClientError, match="is open in this client"), client.transaction("billing"):
            pass
        with client.transaction("shipping") as other:
            other.publish(topic, "other")
        transaction.publish(topic, "one")


def test_a_topic_that_does_not_exist_fails_the_publish(client: Client, unique: Callable[[str], str]) -> None:
    with pytest.raises(ClientError, match="no such name!"), client.transaction("billing") as transaction:
        transaction.publish("no such name!", "lost")


# --- fencing and timeouts


@pytest.mark.parametrize(
    ("name", "timeout", "setting"),
    [
        ("billing", 10_000, "transactions.max_timeout_ms"),
        ("b" * 5_000, 60, "limits.max_transactional_id_bytes"),
    ],
)
def test_a_refusal_names_the_setting_that_it_comes_from(
    client: Client, name: str, timeout: int, setting: str
) -> None:
    with pytest.raises(Refused, match=setting), client.transaction(name, timeout=timeout):
        pass


def test_a_client_that_uses_the_id_later_fences_the_one_before(
    broker: Broker, client: Client, topic: str, unique: Callable[[str], str]
) -> None:
    name = unique("billing")
    with Client(broker.bootstrap_servers) as zombie:
        with fails(TransactionFailed) as failed, zombie.transaction(name) as transaction:
            transaction.publish(topic, "zombie")
            with client.transaction(name) as newer:
                newer.publish(topic, "newer")
        assert failed.value.outcome == "aborted"
        for _ in range(2):
            with pytest.raises(ProducerFenced, match="another client"), zombie.transaction(name):
                pass
    with client.transaction(name) as newer:
        newer.publish(topic, "again")
    eventually_committed(broker, topic, "newer", "again")


def test_a_transaction_that_takes_too_long_is_aborted_and_the_next_one_works(
    broker: Broker, client: Client, topic: str, unique: Callable[[str], str]
) -> None:
    name = unique("slow")
    with fails(TransactionFailed) as failed, client.transaction(name, timeout=0.2) as transaction:
        transaction.publish(topic, "slow")
        with suppress(ClientError):  # it may be over already
            transaction._store()
        _wait_until_not_open(client, name)
    assert failed.value.outcome == "aborted"
    with client.transaction(name) as transaction:
        transaction.publish(topic, "next")
    eventually_committed(broker, topic, "next")


def _wait_until_not_open(client: Client, transactional_id: str) -> None:
    with client._new_cluster() as cluster:
        admin = TransactionAdmin(cluster)
        eventually(lambda: not admin.describe(transactional_id).is_open, "the end of the transaction")


# --- offsets of groups


def test_offsets_of_a_group_are_committed_with_the_transaction(
    broker: Broker, client: Client, topic: str, results: str, unique: Callable[[str], str]
) -> None:
    group = unique("readers")
    with fails(Failure), client.transaction("billing") as transaction:
        transaction.commit_offsets(group, {(topic, 0): 7})
        raise Failure
    with client.transaction("billing") as transaction:
        transaction.publish(results, "done")
        transaction.commit_offsets(group, {(topic, 0): 5})
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    try:
        eventually(
            lambda: [one.offset for one in consumer.committed([TopicPartition(topic, 0)], SOON)] == [5],
            "the committed offset",
        )
    finally:
        consumer.close()


def test_a_member_that_the_group_does_not_know_cannot_commit_offsets(
    client: Client, topic: str, unique: Callable[[str], str]
) -> None:
    with fails(Refused) as refused, client.transaction("billing") as transaction:
        transaction.commit_offsets(unique("readers"), {(topic, 0): 7}, generation=5, member_id="gone")
    assert refused.value.code is ErrorCode.ILLEGAL_GENERATION


# --- jobs of queues


def test_a_job_and_its_result_are_done_together(
    broker: Broker, client: Client, topic: str, group: str, results: str
) -> None:
    fill(client, topic, "1", "2")
    with client.queue(topic, group=group) as queue:
        for job in take(queue, 2):
            with client.transaction("billing") as transaction:
                transaction.publish(results, job.text() * 2)
                transaction.ack(job)
        eventually(lambda: client.admin.queue(group).undone == 0, "both jobs to be done")
    eventually_committed(broker, results, "11", "22")


def test_an_abort_gives_the_job_back_and_drops_its_result(
    broker: Broker, client: Client, topic: str, group: str, results: str
) -> None:
    fill(client, topic, "1")
    with client.queue(topic, group=group) as queue:
        [job] = take(queue)
        with fails(Failure), client.transaction("billing") as transaction:
            transaction.publish(results, "lost")
            transaction.ack(job).wait(SOON)
            raise Failure
        [again] = take(queue)
        assert (again.text(), again.deliveries) == ("1", 2)
        with client.transaction("billing") as transaction:
            transaction.publish(results, "kept")
            transaction.ack(again)
        eventually(lambda: client.admin.queue(group).undone == 0, "the job to be done")
    eventually_committed(broker, results, "kept")


def test_a_job_stays_leased_while_its_transaction_is_open(
    broker: Broker, client: Client, topic: str, group: str
) -> None:
    client.admin.alter_queue(group, {"share.record.lock.duration.ms": "6000"})
    fill(client, topic, "held", "free")
    transaction = client.transaction("billing")
    with client.queue(topic, group=group, prefetch=1) as queue:
        [job] = take(queue)
        transaction.__enter__()
        transaction.ack(job).wait(SOON)
    with client.queue(topic, group=group) as queue:
        [other] = take(queue)
        assert other.text() == "free"
        other.ack().wait(SOON)
        assert queue.receive(6.5) is None, "the lease of a consumer would be over, and it has gone"
        assert client.admin.queue(group).undone == 1
        transaction.abort()
        assert take(queue)[0].text() == "held"


def test_jobs_of_a_transaction_that_times_out_come_again(
    client: Client, topic: str, group: str, unique: Callable[[str], str]
) -> None:
    fill(client, topic, "1")
    with client.queue(topic, group=group) as queue:
        [job] = take(queue)
        with (
            fails(TransactionFailed),
            client.transaction(unique("slow"), timeout=0.2) as transaction,
        ):
            transaction.ack(job)
            [again] = take(queue)
            again.ack().wait(SOON)


def test_a_zombie_cannot_settle_a_job(
    broker: Broker, client: Client, topic: str, group: str, unique: Callable[[str], str]
) -> None:
    name = unique("billing")
    fill(client, topic, "1", "2")
    with Client(broker.bootstrap_servers) as zombie, zombie.queue(topic, group=group) as queue:
        first, second = take(queue, 2)
        with fails(TransactionFailed), zombie.transaction(name) as transaction:
            transaction.ack(first).wait(SOON)
            with client.transaction(name) as newer:
                newer.publish(topic, "3")
            with pytest.raises(ClientError):
                transaction.ack(second).wait(SOON)
        assert sorted(job.text() for job in take(queue, 3)) == ["1", "2", "3"]


def test_retries_and_rejections_count_with_the_commit(client: Client, topic: str, group: str) -> None:
    client.admin.alter_queue(group, dead_letters=True)
    fill(client, topic, "again", "dead")
    with client.queue(topic, group=group) as queue:
        again, dead = take(queue, 2)
        with client.transaction("billing") as transaction:
            transaction.retry(again, delay=0)
            transaction.reject(dead, error="no good")
        [retried] = take(queue)
        assert (retried.text(), retried.deliveries) == ("again", 2)
        retried.ack().wait(SOON)
        eventually(lambda: len(list(client.admin.dead_letters(group))) == 1, "the dead letter")
        [letter] = client.admin.dead_letters(group)
        assert (letter.value, letter.error_text) == (b"dead", "no good")


def test_a_lost_lease_aborts_the_transaction(
    broker: Broker, client: Client, topic: str, group: str, results: str
) -> None:
    fill(client, topic, "1")
    queue = client.queue(topic, group=group)
    [job] = take(queue)
    queue.close()
    with fails(TransactionFailed) as failed, client.transaction("billing") as transaction:
        transaction.publish(results, "lost")
        transaction.ack(job)
    assert failed.value.outcome == "aborted"
    with client.transaction("billing") as transaction:
        transaction.publish(results, "kept")
    eventually_committed(broker, results, "kept")


def test_a_job_that_is_settled_cannot_be_settled_in_a_transaction(
    client: Client, topic: str, group: str
) -> None:
    fill(client, topic, "1")
    with client.queue(topic, group=group) as queue, client.transaction("billing") as transaction:
        [job] = take(queue)
        job.ack()
        with pytest.raises(ClientError, match="settled it already"):
            transaction.ack(job)


def test_later_jobs_of_a_key_wait_for_the_transaction(client: Client, topic: str, group: str) -> None:
    client.admin.alter_queue(group, {"penstock.queue.order": "key"})
    for value in ("a1", "a2"):
        client.publish(topic, value, key="a")
    with client.queue(topic, group=group) as queue:
        [job] = take(queue)
        with client.transaction("billing") as transaction:
            transaction.ack(job).wait(SOON)
            assert queue.receive(0.2) is None
        assert take(queue)[0].text() == "a2"


def test_an_exclusive_queue_goes_on_after_the_transaction(client: Client, topic: str, group: str) -> None:
    client.admin.alter_queue(group, {"penstock.queue.exclusive": "true"})
    fill(client, topic, "1", "2", "3")
    done = []
    with client.queue(topic, group=group) as queue:
        for _ in range(3):
            [job] = take(queue)
            with client.transaction("billing") as transaction:
                transaction.ack(job)
            done.append(job.text())
    assert done == ["1", "2", "3"]


def test_threads_have_transactions_of_their_own_ids(
    broker: Broker, client: Client, topic: str, group: str, results: str
) -> None:
    fill(client, topic, *map(str, range(40)))
    with client.queue(topic, group=group, idle_s=5) as queue:

        def work(name: str) -> None:
            for job in queue:
                with client.transaction(name) as transaction:
                    transaction.publish(results, job.text())
                    transaction.ack(job)
                if client.admin.queue(group).undone == 0:
                    queue.drain()

        threads = [threading.Thread(target=work, args=(f"worker-{number}",)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
    eventually(
        lambda: (
            sorted(committed_values(broker.bootstrap_servers, results), key=int) == [*map(str, range(40))]
        ),
        "each result once",
    )


# --- clients


def test_a_commit_without_an_answer_has_an_unknown_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    with Client(broker.bootstrap_servers) as before, before.transaction("billing") as first:
        first.publish("orders", "0")  # from now on there are coordinators
    monkeypatch.setattr(base, "TRANSACTION_RETRY_MS", 300)
    with Client(broker.bootstrap_servers) as client:
        with fails(TransactionFailed) as failed, client.transaction("billing") as transaction:
            transaction.publish("orders", "1")
            transaction._store()
            broker.close()
        assert failed.value.outcome == "unknown"


def test_the_connections_of_few_ids_are_kept(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactional_ids, "IDLE_MAX", 2)
    for name in ("one", "two", "three"):
        with client.transaction(name):
            pass
    assert list(client._transactional_ids._idle) == ["two", "three"]


def test_a_closed_client_has_no_transactions(broker: Broker) -> None:
    client = Client(broker.bootstrap_servers)
    transaction = client.transaction("billing")
    client.close()
    with pytest.raises(ClientError, match="closed"), transaction:
        pass
