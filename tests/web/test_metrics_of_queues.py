"""The metrics of queues and of push: their values are correct."""

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType
from prometheus_client.parser import text_string_to_metric_families

from penstock import Broker
from penstock.config import Limits
from penstock.node.queues import driver
from penstock.node.queues.stats import QueueFigures, QueueStatsTable
from penstock.node.subscriptions.stats import PushFigures
from penstock.queue import Backlog
from penstock.queue.values import AckKind, Acknowledgement, Acquired
from penstock.types import Isolation, Offset, Term, TopicPartition
from tests.kafka.clients.queues import configure, publish, take, worker
from tests.web.pushing import subscriber
from tests.web.workers import working

from .test_metrics import labelled, scrape, snapshot

PATIENCE_SECONDS = 60.0

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def samples(broker: Broker) -> Samples:
    with urllib.request.urlopen(broker.http_url + "/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scraped_until(broker: Broker, enough: Callable[[Samples], bool]) -> Samples:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not enough(found := samples(broker)):
        assert time.monotonic() < deadline, f"waited in vain; there were {found}"
        time.sleep(0.02)
    return found


def ask(broker: Broker, method: str, path: str, body: Any = None) -> None:
    request = urllib.request.Request(broker.http_url + path, method=method)
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(
        request, None if body is None else json.dumps(body).encode(), timeout=30
    ) as answer:
        answer.read()


def of(found: Samples, name: str, queue: str = "workers", topic: str = "jobs", **more: str) -> float:
    return found[labelled(f"penstock_queue_{name}", queue=queue, topic=topic, **more)]


# --- queues of a real broker


def test_a_share_consumer_changes_every_metric_of_its_queue(broker: Broker) -> None:
    servers = broker.bootstrap_servers
    configure(servers, "workers", share_auto_offset_reset="earliest", share_delivery_count_limit="2")
    publish(servers, "jobs", [str(number) for number in range(10)])
    with worker(servers, "workers", "jobs") as consumer:
        messages = take(consumer, lambda got: len(got) == 10)
        found = samples(broker)
        assert (of(found, "available"), of(found, "leased")) == (0, 10)
        assert (of(found, "workers"), of(found, "deliveries_total")) == (1, 10)
        assert (of(found, "redeliveries_total"), of(found, "dead_letters_total")) == (0, 0)
        kinds = [AcknowledgeType.ACCEPT] * 6 + [AcknowledgeType.RELEASE] * 3 + [AcknowledgeType.REJECT]
        for message, kind in zip(messages, kinds, strict=True):
            consumer.acknowledge(message, kind)
        consumer.commit_sync()
        again = take(consumer, lambda got: len(got) == 3)
        for message in again:
            consumer.acknowledge(message, AcknowledgeType.ACCEPT)
        consumer.commit_sync()
        found = scraped_until(broker, lambda found: of(found, "dead_letters_total") == 1)
    assert of(found, "settlements_total", outcome="accepted") == 9
    assert of(found, "settlements_total", outcome="released") == 3
    assert of(found, "settlements_total", outcome="rejected") == 1
    assert (of(found, "deliveries_total"), of(found, "redeliveries_total")) == (13, 3)
    assert (of(found, "available"), of(found, "leased"), of(found, "dying")) == (0, 0, 0)
    scraped_until(broker, lambda found: of(found, "workers") == 0)


def test_a_worker_over_websocket_is_counted_and_messages_that_are_not_due_are_deferred(
    broker: Broker,
) -> None:
    ask(broker, "POST", "/v1/queues", {"queue": "workers", "topic": "jobs"})
    publish(broker.bootstrap_servers, "jobs", ["a", "b", "c", "d"])
    with working(broker.http_url, "workers", "jobs", credit=1) as one:
        jobs = one.jobs(1)
        one.say(type="credit", credit=0)
        one.settle(jobs, "retry", delay_ms=600_000)
        ask(broker, "PATCH", "/v1/queues/workers", {"lease_ms": 3000})
        while one.hear("working")["lease_ms"] != 3000:
            pass
        one.say(type="credit", credit=3)
        one.jobs(3)
        one.say(type="credit", credit=0)
        found = samples(broker)
        assert (of(found, "workers"), of(found, "deferred")) == (1, 1)
        assert of(found, "settlements_total", outcome="released") == 1
        # The others are not settled: their leases run out.
        found = scraped_until(broker, lambda found: of(found, "leased") == 0)
        assert of(found, "expired_leases_total") == 3
    found = scraped_until(broker, lambda found: of(found, "workers") == 0)
    assert (of(found, "available"), of(found, "deferred")) == (3, 1)


def test_returned_jobs_are_counted(broker: Broker) -> None:
    ask(broker, "POST", "/v1/queues", {"queue": "workers", "topic": "jobs"})
    publish(broker.bootstrap_servers, "jobs", ["a", "b"])
    with working(broker.http_url, "workers", "jobs", credit=2) as one:
        jobs = one.jobs(2)
        one.say(type="credit", credit=0)
        one.settle(jobs, "return")
        found = samples(broker)
    assert (of(found, "returns_total"), of(found, "deliveries_total")) == (2, 2)
    assert (of(found, "available"), of(found, "expired_leases_total")) == (2, 0)


def test_partitions_of_a_topic_are_counted_together(broker: Broker) -> None:
    ask(broker, "POST", "/v1/queues", {"queue": "workers", "topic": "jobs", "partitions": 4})
    publish(broker.bootstrap_servers, "jobs", [str(number) for number in range(40)])
    with working(broker.http_url, "workers", "jobs", credit=0) as one:
        one.hear("working")
        found = samples(broker)
    assert (of(found, "available"), of(found, "workers")) == (40, 1)


def test_a_backlog_without_consumers_stays_in_the_metrics(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(broker, "POST", "/v1/queues", {"queue": "workers", "topic": "jobs"})
    publish(broker.bootstrap_servers, "jobs", ["a", "b", "c"])
    node: Any = broker._thread.service.node
    monkeypatch.setattr(driver, "IDLE_SECONDS", -1.0)
    asyncio.run_coroutine_threadsafe(node.queues.tidy(), node.storage.flusher._cycle._loop).result(
        PATIENCE_SECONDS
    )
    monkeypatch.undo()
    assert not list(node.queues.manager.drivers()), "it is not driven any more"
    publish(broker.bootstrap_servers, "jobs", ["d"])
    assert of(samples(broker), "available") == 4
    with working(broker.http_url, "workers", "jobs", credit=1) as one:
        one.jobs(1)
        found = samples(broker)
    assert (of(found, "available"), of(found, "leased")) == (3, 1)


def test_deleting_a_topic_removes_its_queues_from_the_metrics(broker: Broker) -> None:
    ask(broker, "POST", "/v1/queues", {"queue": "workers", "topic": "jobs"})
    name = labelled("penstock_queue_available", queue="workers", topic="jobs")
    assert name in samples(broker)
    ask(broker, "DELETE", "/v1/topics/jobs")
    found = scraped_until(broker, lambda found: name not in found)
    assert labelled("penstock_queue_deliveries_total", queue="workers", topic="jobs") not in found


# --- push of a real broker


def test_a_subscriber_is_counted_with_its_pushed_and_acked_messages(broker: Broker) -> None:
    publish(broker.bootstrap_servers, "news", [str(number) for number in range(7)])
    with subscriber(broker.http_url) as reader:
        reader.subscribe("paper", "news", read_old=True)
        messages = reader.take(7)
        reader.ack_durably(messages[2])
        reader.ack_durably(messages[6])
        found = samples(broker)
        assert found[labelled("penstock_push_subscribers")] == 1
        assert found[labelled("penstock_push_messages_total")] == 7
        assert found[labelled("penstock_push_acks_total")] == 2
    found = scraped_until(broker, lambda found: found[labelled("penstock_push_subscribers")] == 0)
    assert found[labelled("penstock_push_ended_total", reason="closed")] == 1


def test_a_subscriber_that_does_not_ack_is_counted_as_inactive(broker: Broker) -> None:
    publish(broker.bootstrap_servers, "news", ["a"])
    with subscriber(broker.http_url) as reader:
        reader.subscribe("paper", "news", read_old=True, ack_timeout_ms=100)
        reader.hear_of("inactive")
    name = labelled("penstock_push_ended_total", reason="inactive")
    scraped_until(broker, lambda found: found[name] == 1)


def test_a_subscriber_that_does_not_read_is_counted_as_too_slow() -> None:
    with (
        Broker(limits=Limits(slow_drain_timeout_ms=200)) as broker,
        subscriber(broker.http_url, max_queue=1) as reader,
    ):
        publish(broker.bootstrap_servers, "news", ["x" * 200_000 for _ in range(60)])
        reader.subscribe("paper", "news", read_old=True, credit=100_000)
        name = labelled("penstock_push_ended_total", reason="too_slow")
        found = scraped_until(broker, lambda found: found[name] == 1)
        assert found[labelled("penstock_push_subscribers")] == 0


# --- how they are shown


def figures(queue: str = "workers", backlog: Backlog | None = None) -> QueueFigures:
    return QueueFigures(
        group_id=queue,
        topic="jobs",
        backlog=backlog,
        workers=2,
        delivered=9,
        redelivered=4,
        expired=3,
        returned=1,
        dead=5,
        deleted=8,
        settled={"accepted": 7, "released": 6, "rejected": 0, "gap": 0},
    )


def test_every_number_has_its_own_name() -> None:
    push = PushFigures(subscribers=21, pushed=22, acks=23, ended={"closed": 24})
    found = scrape(snapshot(queues=(figures(backlog=Backlog(11, 12, 13, 14, 15)),), push=push))
    gauges = ("available", "leased", "deferred", "waiting", "dying", "workers")
    assert [of(found, name) for name in gauges] == [11, 12, 13, 14, 15, 2]
    counters = ("deliveries", "redeliveries", "returns", "expired_leases", "dead_letters")
    assert [of(found, f"{name}_total") for name in counters] == [9, 4, 1, 3, 5]
    assert of(found, "settlements_total", outcome="accepted") == 7
    assert found[labelled("penstock_push_subscribers")] == 21
    assert found[labelled("penstock_push_messages_total")] == 22
    assert found[labelled("penstock_push_acks_total")] == 23
    assert found[labelled("penstock_push_ended_total", reason="closed")] == 24


def test_an_unknown_count_is_omitted_and_not_shown_as_zero() -> None:
    found = scrape(snapshot(queues=(figures(backlog=None),)))
    assert labelled("penstock_queue_available", queue="workers", topic="jobs") not in found
    assert of(found, "deliveries_total") == 9


# --- how they are counted


class FakeLed:
    def __init__(self, partition: int = 0) -> None:
        self.name = TopicPartition("jobs", partition)
        self.serves = True
        self.term = Term(3)
        self.start_offset = Offset(0)
        self.high_watermark = Offset(100)

    def end_for(self, isolation: Isolation) -> Offset:
        return self.high_watermark


def test_queues_beyond_the_limit_are_counted_together_under_no_name() -> None:
    table = QueueStatsTable(most=2)
    for number in range(4):
        table.open(f"queue-{number}", TopicPartition("jobs", 0)).count_delivered([Acquired(0, 9, 1)])
    counted = {stats.group_id: stats.delivered for stats in table}
    assert counted == {"queue-0": 10, "queue-1": 10, "": 20}


def test_an_idle_queue_makes_room_for_an_active_one() -> None:
    table = QueueStatsTable(most=2)
    first = table.open("first", TopicPartition("jobs", 0))
    table.open("second", TopicPartition("jobs", 0))
    table.close(first)
    table.open("third", TopicPartition("jobs", 0))
    assert [stats.group_id for stats in table] == ["second", "third"]


def test_partitions_share_a_tally_until_the_last_of_them_ends() -> None:
    table = QueueStatsTable(most=1)
    one = table.open("workers", TopicPartition("jobs", 0))
    assert table.open("workers", TopicPartition("jobs", 1)) is one
    table.close(one)
    assert table.open("other", TopicPartition("jobs", 0)).group_id == "", "workers is active"


def test_a_range_is_counted_by_its_kinds() -> None:
    stats = QueueStatsTable().open("workers", TopicPartition("jobs", 0))
    kinds = bytes([AckKind.ACCEPT, AckKind.REJECT, AckKind.RENEW])
    stats.count_settled([Acknowledgement(0, 99, bytes([AckKind.ACCEPT])), Acknowledgement(100, 102, kinds)])
    assert stats.kinds[AckKind.ACCEPT] == 101
    assert stats.kinds[AckKind.REJECT] == 1
    assert stats.kinds[AckKind.RENEW] == 1


def test_the_backlog_of_an_idle_queue_includes_new_messages() -> None:
    stats, led = QueueStatsTable().open("workers", TopicPartition("jobs", 0)), FakeLed()
    stats.add_idle(led, Isolation.READ_UNCOMMITTED, Backlog(available=5, deferred=2))
    led.high_watermark = Offset(130)
    [idle] = stats.idle.values()
    assert idle.now == Backlog(available=35, deferred=2)


def test_the_backlog_is_unknown_after_another_leader_may_have_changed_it() -> None:
    stats, led, lost = QueueStatsTable().open("workers", TopicPartition("jobs", 0)), FakeLed(), FakeLed(1)
    stats.add_idle(led, Isolation.READ_UNCOMMITTED, Backlog(available=5))
    stats.add_idle(lost, Isolation.READ_UNCOMMITTED, Backlog(available=5))
    lost.term = Term(4)
    stats.drop_outdated()
    assert list(stats.idle) == [0]


def test_an_idle_queue_that_is_driven_again_is_not_counted_twice() -> None:
    table = QueueStatsTable()
    stats = table.open("workers", TopicPartition("jobs", 0))
    stats.add_idle(FakeLed(), Isolation.READ_UNCOMMITTED, Backlog(available=5))
    table.close(stats)
    assert not table.open("workers", TopicPartition("jobs", 0)).idle
