"""Working on a queue with the blocking client."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock import Broker
from penstock.client import Client, Closed, Denied, Job, LeaseLost, Queue, Unreachable
from tests.ports import free_ports

SOON = 60.0


def fill(client: Client, topic: str, count: int) -> None:
    for number in range(count):
        client.publish_soon(topic, str(number))
    client.flush()


def take(queue: Queue, count: int) -> list[Job]:
    jobs = []
    while len(jobs) < count:
        job = queue.receive(SOON)
        assert job is not None, f"{len(jobs)} of {count} jobs"
        jobs.append(job)
    return jobs


def test_each_job_is_done_once_when_it_is_acked(client: Client, topic: str, group: str) -> None:
    fill(client, topic, 100)
    with client.queue(topic, group=group) as queue:
        jobs = take(queue, 100)
        assert [job.text() for job in jobs] == [str(number) for number in range(100)]
        for job in jobs:
            job.ack()
    client.publish(topic, b"next")
    with client.queue(topic, group=group) as queue:
        [job] = take(queue, 1)
        assert job.value == b"next"


def test_an_ack_can_be_waited_for(client: Client, topic: str, group: str) -> None:
    fill(client, topic, 1)
    with client.queue(topic, group=group) as queue:
        [job] = take(queue, 1)
        settlement = job.ack()
        settlement.wait(SOON)
        assert settlement.done()
        assert client.admin.queue(group).undone == 0


def test_a_job_has_all_of_its_record(client: Client, topic: str, group: str) -> None:
    stored = client.publish(topic, b'{"a": 1}', key="k", headers={"trace": "t"})
    with client.queue(topic, group=group) as queue:
        [job] = take(queue, 1)
        assert (job.topic, job.partition, job.offset) == (topic, 0, stored.offset)
        assert job.key == b"k"
        assert job.json() == {"a": 1}
        assert job.header("trace") == b"t"
        assert job.header("other") is None
        assert job.timestamp_ms == stored.timestamp_ms
        assert job.deliveries == 1


def test_a_retried_job_comes_again_after_its_delay(client: Client, topic: str, group: str) -> None:
    fill(client, topic, 1)
    with client.queue(topic, group=group) as queue:
        [job] = take(queue, 1)
        began = time.monotonic()
        job.retry(delay=0.3).wait(SOON)
        [again] = take(queue, 1)
        assert time.monotonic() - began >= 0.3
        assert again.deliveries == 2
        again.ack()


def test_a_rejected_job_becomes_a_dead_letter(
    client: Client, topic: str, group: str, unique: Callable[[str], str]
) -> None:
    fill(client, topic, 1)
    with client.queue(topic, group=group) as queue:
        take(queue, 1)[0].reject().wait(SOON)
        assert queue.receive(0.05) is None
    funeral = unique("funeral")
    client.admin.create_queue(funeral)
    names = [one.name for one in client.admin.topics()]
    assert f"{topic}.dlq" in names
    with client.queue(f"{topic}.dlq", group=funeral) as queue:
        [dead] = take(queue, 1)
        assert dead.value == b"0"
        dead.ack()


def test_a_with_block_acks_a_finished_job_and_retries_a_failed_one(
    client: Client, topic: str, group: str
) -> None:
    fill(client, topic, 2)
    with client.queue(topic, group=group) as queue:
        first, second = take(queue, 2)
        with first:
            pass
        with pytest.raises(ZeroDivisionError), second:
            raise ZeroDivisionError
        [again] = take(queue, 1)
        assert again.offset == second.offset
        with again:
            again.reject()  # settled in the block: its end adds nothing
        assert again.settled
        assert queue.flush(SOON)


def test_an_unsettled_job_goes_to_the_next_consumer(client: Client, topic: str, group: str) -> None:
    fill(client, topic, 3)
    with client.queue(topic, group=group) as queue:
        held = take(queue, 3)
        held[0].ack()
    assert held[1].lost
    with pytest.raises((LeaseLost, Closed)):
        held[1].ack().wait(SOON)
    with client.queue(topic, group=group) as queue:
        assert [job.text() for job in take(queue, 2)] == ["1", "2"]


def test_leases_are_renewed_while_jobs_are_unsettled(client: Client, topic: str, group: str) -> None:
    client.admin.alter_queue(group, {"share.record.lock.duration.ms": "15000"})
    fill(client, topic, 1)
    with client.queue(topic, group=group) as slow:
        [job] = take(slow, 1)
        with client.queue(topic, group=group) as other:
            assert other.receive(15.5) is None, "the lease of 15 seconds was not renewed"
        assert not job.lost
        job.ack().wait(SOON)


def test_consumers_share_the_work(client: Client, topic: str, group: str) -> None:
    fill(client, topic, 40)
    with (
        client.queue(topic, group=group, prefetch=10) as one,
        client.queue(topic, group=group, prefetch=10) as two,
    ):
        assert len(take(one, 10)) == 10
        assert len(take(two, 10)) == 10
        assert one.receive(0.05) is None, "it has as many as it asked for"


def test_iterating_ends_when_the_queue_is_empty(client: Client, topic: str, group: str) -> None:
    fill(client, topic, 5)
    with client.queue(topic, group=group, idle_s=0.5) as queue:
        assert queue._driver.wait_for(lambda: len(queue._driver.session.ready) == 5, SOON)
        done = []
        for job in queue:
            done.append(job.text())
            job.ack()
    assert done == ["0", "1", "2", "3", "4"]


def test_iterating_ends_when_another_thread_closes_the_queue(client: Client, topic: str, group: str) -> None:
    queue = client.queue(topic, group=group)
    ended = threading.Event()

    def iterate() -> None:
        for job in queue:
            job.ack()
        ended.set()

    thread = threading.Thread(target=iterate)
    thread.start()
    queue.close()
    thread.join(SOON)
    assert ended.is_set()


def test_threads_may_share_a_queue(client: Client, topic: str, group: str) -> None:
    fill(client, topic, 500)
    done: list[int] = []
    with client.queue(topic, group=group) as queue:

        def work() -> None:
            for job in queue:
                done.append(job.offset)
                job.ack()
                if len(done) == 500:
                    queue.drain()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
    assert sorted(done) == list(range(500))


def test_a_delayed_message_comes_when_it_is_due_and_an_expired_one_never(
    client: Client, topic: str, group: str
) -> None:
    client.publish(topic, b"first")
    with client.queue(topic, group=group) as queue:
        take(queue, 1)  # connections are open now
        for delay in (1.0, 10.0, 60.0):  # a busy machine may need longer for the calls
            due = time.time() + delay
            client.publish_soon(topic, b"later", delay=delay)
            client.publish_soon(topic, b"gone", ttl=0)
            client.publish_soon(topic, b"now")
            first, second = take(queue, 2)
            if first.value == b"now":
                break
            assert time.time() >= due
        assert second.value == b"later"
        assert queue.receive(0.05) is None


def test_a_topic_that_does_not_exist_is_an_error_and_not_a_wait(client: Client, group: str) -> None:
    with client.queue("no-such-topic", group=group) as queue, pytest.raises(Denied, match="no-such-topic"):
        queue.receive(SOON)


def test_a_name_that_a_subscription_uses_is_refused_at_once(client: Client, topic: str, group: str) -> None:
    client.publish(topic, b"1")
    with client.subscribe(topic, name=group, read_old=True) as subscription:
        next(iter(subscription)).ack()
    with client.queue(topic, group=group) as queue, pytest.raises(Denied) as refused:
        queue.receive(SOON)
    assert refused.value.code == "refused"
    assert group in str(refused.value)


def test_a_second_consumer_of_an_exclusive_queue_is_refused_or_stands_by(
    client: Client, topic: str, group: str
) -> None:
    client.admin.alter_queue(group, {"penstock.queue.exclusive": "true"})
    fill(client, topic, 2)
    with client.queue(topic, group=group, prefetch=1) as first:
        [job] = take(first, 1)
        with client.queue(topic, group=group) as second, pytest.raises(Denied):
            second.receive(SOON)
        with client.queue(topic, group=group, standby=True) as heir:
            assert heir.receive(0.05) is None
            job.ack()
            first.close()
            assert take(heir, 1)[0].text() == "1"


def test_iterating_over_a_queue_for_one_consumer_keeps_order_when_a_job_fails(
    client: Client, topic: str, group: str
) -> None:
    client.admin.alter_queue(group, {"penstock.queue.exclusive": "true"})
    fill(client, topic, 3)
    seen: list[str] = []
    with client.queue(topic, group=group) as queue:
        while len(seen) < 4:
            [job] = take(queue, 1)
            seen.append(job.text())
            job.retry(delay=0.05) if seen == ["0"] else job.ack()
    assert seen == ["0", "0", "1", "2"]


def test_an_unreachable_broker_is_an_error_after_the_timeout() -> None:
    [port] = free_ports(1)
    with Client(f"127.0.0.1:{port}", http=f"http://127.0.0.1:{port}", reconnect_timeout_s=0.5) as client:
        queue = client.queue("orders", group="g")
        with pytest.raises(Unreachable, match="no node was reached"):
            queue.receive(SOON)
        with pytest.raises(Unreachable):
            queue.receive(SOON)


@contextmanager
def broker_at(ports: list[int], data_dir: Path) -> Iterator[Broker]:
    kafka, http = (f"127.0.0.1:{port}" for port in ports)
    with Broker(data_dir=data_dir, kafka=kafka, http=http) as running:
        yield running


def test_a_queue_continues_after_a_broker_restart(tmp_path: Path) -> None:
    ports = free_ports(2)
    with broker_at(ports, tmp_path) as broker:
        client = Client(broker.bootstrap_servers)
        client.admin.create_topic("orders")
        client.admin.create_queue("workers")
        fill(client, "orders", 3)
        queue = client.queue("orders", group="workers")
        first, second, third = take(queue, 3)
        first.ack().wait(SOON)
    with pytest.raises(LeaseLost):
        second.ack().wait(SOON)
    with broker_at(ports, tmp_path):
        again = take(queue, 2)
        assert [job.text() for job in again] == ["1", "2"]
        assert third.lost
        for job in again:
            job.ack()
        client.close()


def test_flush_ends_when_returned_jobs_are_answered(client: Client, topic: str, group: str) -> None:
    fill(client, topic, 50)
    with client.queue(topic, group=group) as queue:
        take(queue, 1)
        queue.drain()
        assert queue.flush(None)  # would wait for ever if the answer were missed


def test_prefetched_jobs_do_not_count_as_delivered(client: Client, topic: str, group: str) -> None:
    client.admin.alter_queue(group, {"share.delivery.count.limit": "2"})
    fill(client, topic, 50)
    for number in range(4):  # each takes one, does it, and has had many more
        with client.queue(topic, group=group, prefetch=30) as queue:
            [job] = take(queue, 1)
            assert (job.text(), job.deliveries) == (str(number), 1)
            job.ack()
    with client.queue(topic, group=group, prefetch=30) as queue:
        rest = take(queue, 30)
        assert {job.deliveries for job in rest} == {1}
    assert client.admin.queue(group).undone == 46


def test_waiting_for_a_broker_does_not_count_as_idle_time(tmp_path: Path) -> None:
    ports = free_ports(2)
    with broker_at(ports, tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        client.admin.create_topic("orders")
        client.admin.create_queue("workers")
        fill(client, "orders", 3)
    with Client(f"127.0.0.1:{ports[0]}") as client:
        queue = client.queue("orders", group="workers", idle_s=2.0)
        done: list[str] = []
        thread = threading.Thread(target=lambda: done.extend(job.text() for job in queue))
        thread.start()
        thread.join(3.0)
        assert thread.is_alive()
        with broker_at(ports, tmp_path):
            thread.join(SOON)
            # Only the first is certain: on a busy machine the pause before the next job may be longer than idle_s.
            assert done[:1] == ["0"]
            queue.close()


def test_the_first_settlement_of_a_job_counts(client: Client, topic: str, group: str) -> None:
    client.publish(topic, b"x")
    with client.queue(topic, group=group) as queue:
        job = queue.receive(SOON)
        assert job is not None
        first = job.ack()
        first.wait(SOON)
        assert job.ack() is first
        with pytest.raises(LeaseLost, match="settled it already: accept counts, retry does not"):
            job.retry().wait(SOON)
