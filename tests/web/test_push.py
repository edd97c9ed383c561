"""Subscribers over WebSocket: which messages they get, in which order, and where they resume."""

import json
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from penstock import Broker
from penstock.batch import iter_headers, read_records
from penstock.node.subscriptions import page_reader
from tests.web.pushing import PATIENCE_SECONDS, committed, create, produce, subscriber, values

Unique = Callable[[str], str]
ACK_TIMEOUT_MS = 12_000
"""Longer than a busy machine holds up a test."""


@pytest.fixture
def topic(broker: Broker, unique: Unique) -> str:
    name = unique("push")
    create(broker.bootstrap_servers, name)
    return name


# --- order


def test_messages_come_in_the_order_of_the_log(broker: Broker, topic: str, unique: Unique) -> None:
    produce(broker.bootstrap_servers, topic, range(500))
    with subscriber(broker.http_url) as one:
        one.subscribe(unique("in-order"), topic, read_old=True, credit=1000)
        produce(broker.bootstrap_servers, topic, range(500, 1000))
        got = one.take(1000)
    assert values(got) == list(range(1000))
    assert [message["offset"] for message in got] == list(range(1000))


def test_each_partition_keeps_its_order_and_one_subscriber_reads_many_topics(
    broker: Broker, unique: Unique
) -> None:
    topics = [unique("many") for _ in range(3)]
    for name in topics:
        create(broker.bootstrap_servers, name, 4)
        for partition in range(4):
            produce(broker.bootstrap_servers, name, range(50), partition=partition)
    with subscriber(broker.http_url) as one:
        said = one.subscribe(unique("reader"), *topics, read_old=True, credit=1000)
        got = one.take(600)
    assert len(said["positions"]) == 12
    for name in topics:
        for partition in range(4):
            of_it = [m for m in got if (m["topic"], m["partition"]) == (name, partition)]
            assert values(of_it) == list(range(50))


def test_messages_have_all_fields_of_their_records(broker: Broker, topic: str, unique: Unique) -> None:
    produce(
        broker.bootstrap_servers,
        topic,
        ['{"n": 1}'],
        key=b"k",
        headers=[("h", b"v")],
        timestamp=1_700_000_000_123,
    )
    with subscriber(broker.http_url) as one:
        one.subscribe(unique("whole"), topic, read_old=True)
        [message] = one.take(1)
    assert message == {
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp_ms": 1_700_000_000_123,
        "key": "k",
        "key_encoding": "text",
        "value": {"n": 1},
        "value_encoding": "json",
        "headers": [{"name": "h", "value": "v", "encoding": "text"}],
    }


def test_a_subscriber_may_receive_stored_batches_unchanged(
    broker: Broker, topic: str, unique: Unique
) -> None:
    produce(broker.bootstrap_servers, topic, range(10))
    with subscriber(broker.http_url) as one:
        one.subscribe(unique("batch"), topic, read_old=True, encoding="batch", credit=4)
        frame = one.socket.recv(timeout=PATIENCE_SECONDS)
    assert isinstance(frame, bytes)
    length = int.from_bytes(frame[:4], "big")
    head, data = json.loads(frame[4 : 4 + length]), frame[4 + length :]
    assert head == {"type": "messages", "topic": topic, "partition": 0, "offsets": [[0, 3]]}
    records = [record for position, _ in iter_headers(data) for record in read_records(data, position)]
    assert [record.value for record in records[:4]] == [b"0", b"1", b"2", b"3"]


# --- start position


def test_without_read_old_only_messages_after_subscribing_are_pushed(
    broker: Broker, topic: str, unique: Unique
) -> None:
    produce(broker.bootstrap_servers, topic, ["old"])
    with subscriber(broker.http_url) as one:
        said = one.subscribe(unique("new-only"), topic)
        produce(broker.bootstrap_servers, topic, ["new"])
        assert values(one.take(1)) == ["new"]
    assert said["resumed"] is False
    assert said["positions"] == [{"topic": topic, "partition": 0, "offset": 1}]


def test_messages_between_subscribing_and_the_first_ack_are_kept_for_a_subscriber_that_disconnects(
    broker: Broker, topic: str, unique: Unique
) -> None:
    name = unique("leaves")
    with subscriber(broker.http_url) as one:
        one.subscribe(name, topic)
    produce(broker.bootstrap_servers, topic, ["meanwhile"])
    with subscriber(broker.http_url) as one:
        assert one.subscribe(name, topic, take_over=True)["resumed"] is True
        assert values(one.take(1)) == ["meanwhile"]


# --- acks


def test_the_offset_moves_on_ack_and_on_nothing_else(broker: Broker, topic: str, unique: Unique) -> None:
    name = unique("acks")
    produce(broker.bootstrap_servers, topic, range(10))
    with subscriber(broker.http_url) as one:
        one.subscribe(name, topic, read_old=True)
        got = one.take(10)
        assert committed(broker.bootstrap_servers, name, topic) == 0
        one.ack_durably(got[3])
        assert committed(broker.bootstrap_servers, name, topic) == 4
    with subscriber(broker.http_url) as one:
        said = one.subscribe(name, topic, take_over=True)
        assert said["resumed"] is True
        assert said["positions"] == [{"topic": topic, "partition": 0, "offset": 4}]
        assert values(one.take(6)) == [4, 5, 6, 7, 8, 9]


def test_an_ack_in_flight_when_the_subscriber_disconnects_counts(
    broker: Broker, topic: str, unique: Unique
) -> None:
    name = unique("leaves")
    produce(broker.bootstrap_servers, topic, range(5))
    with subscriber(broker.http_url) as one:
        one.subscribe(name, topic, read_old=True)
        one.ack(one.take(5)[-1])
        one.say(type="ping")
        one.hear_of("pong")
    with subscriber(broker.http_url) as one:
        assert one.subscribe(name, topic, take_over=True)["positions"][0]["offset"] == 5


def test_no_more_than_the_credit_is_unacked(broker: Broker, topic: str, unique: Unique) -> None:
    produce(broker.bootstrap_servers, topic, range(20))
    with subscriber(broker.http_url) as one:
        one.subscribe(unique("credit"), topic, read_old=True, credit=3)
        got = one.take(3)
        assert one.nothing_more()
        one.ack(got[1])
        assert values(one.take(2)) == [3, 4]
        assert one.nothing_more()
        one.say(type="credit", credit=10)
        assert values(one.take(7)) == [5, 6, 7, 8, 9, 10, 11]
        assert one.nothing_more()


def test_a_missed_ack_makes_the_subscriber_inactive_and_it_resumes_after_its_last_ack(
    broker: Broker, topic: str, unique: Unique
) -> None:
    name = unique("inactive")
    produce(broker.bootstrap_servers, topic, range(5))
    with subscriber(broker.http_url) as one:
        one.subscribe(name, topic, read_old=True)
        one.ack_durably(one.take(5)[1])
    with subscriber(broker.http_url) as one:
        one.subscribe(name, topic, ack_timeout_ms=200, take_over=True)
        assert one.hear_of("inactive")["reason"] == "ack_timeout"
        assert one.closed() == (4408, "inactive")
    with subscriber(broker.http_url) as one:
        one.subscribe(name, topic)
        assert values(one.take(3)) == [2, 3, 4]


def test_a_subscriber_that_acks_in_time_stays(broker: Broker, topic: str, unique: Unique) -> None:
    with subscriber(broker.http_url) as one:
        one.subscribe(unique("stays"), topic, ack_timeout_ms=ACK_TIMEOUT_MS)
        began = time.monotonic()
        while time.monotonic() < began + 1.1 * ACK_TIMEOUT_MS / 1000:
            produce(broker.bootstrap_servers, topic, ["x"])
            one.ack_durably(one.take(1)[0])
            time.sleep(1)
        assert one.nothing_more()


# --- one at a time


def test_a_second_subscriber_is_refused_and_the_first_stays(
    broker: Broker, topic: str, unique: Unique
) -> None:
    name = unique("one")
    with subscriber(broker.http_url) as first, subscriber(broker.http_url) as second:
        first.subscribe(name, topic)
        assert second.subscribe(name, topic)["code"] == "already_active"
        assert second.closed() == (4409, "already_active")
        produce(broker.bootstrap_servers, topic, ["x"])
        assert values(first.take(1)) == ["x"]


def test_a_subscriber_that_takes_over_resumes_after_the_acks_of_the_first(
    broker: Broker, topic: str, unique: Unique
) -> None:
    name = unique("over")
    produce(broker.bootstrap_servers, topic, range(6))
    with subscriber(broker.http_url) as first, subscriber(broker.http_url) as second:
        first.subscribe(name, topic, read_old=True)
        first.ack(first.take(6)[2])
        first.say(type="ping")
        first.hear_of("pong")
        second.subscribe(name, topic, take_over=True)
        assert values(second.take(3)) == [3, 4, 5]
        assert first.hear_of("error")["code"] == "taken_over"
        assert first.closed() == (4409, "taken_over")


def test_a_consumer_group_with_members_is_no_subscription(broker: Broker, topic: str, unique: Unique) -> None:
    name = unique("group")
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": name,
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    produce(broker.bootstrap_servers, topic, ["x"])
    assert consumer.poll(60) is not None
    try:
        with subscriber(broker.http_url) as one:
            assert one.subscribe(name, topic)["code"] == "group_in_use"
    finally:
        consumer.close()
    with subscriber(broker.http_url) as one:  # it has no members any more, so its position is taken over
        assert one.subscribe(name, topic)["resumed"] is True


def test_no_consumer_joins_the_group_of_a_subscription_that_is_in_use(
    broker: Broker, topic: str, unique: Unique
) -> None:
    name = unique("taken")
    refused: list[KafkaError] = []
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": name, "error_cb": refused.append}
    with subscriber(broker.http_url) as one:
        one.subscribe(name, topic)
        consumer = Consumer(settings)
        consumer.subscribe([topic])
        try:
            while not refused:
                message = consumer.poll(0.1)
                if message is not None and message.error():
                    refused.append(message.error())
        finally:
            consumer.close()
        assert refused[0].code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL
        produce(broker.bootstrap_servers, topic, ["x"])
        assert values(one.take(1)) == ["x"]


def test_messages_deleted_by_retention_are_reported(
    broker: Broker, topic: str, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_reader, "CACHE_SECONDS", 0)
    name = unique("late")
    produce(broker.bootstrap_servers, topic, range(10))
    with subscriber(broker.http_url) as one:
        one.subscribe(name, topic, read_old=True, credit=1)
        one.take(1)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    [deleted] = admin.delete_records([TopicPartition(topic, 0, 6)]).values()
    deleted.result(PATIENCE_SECONDS)
    with subscriber(broker.http_url) as one:
        one.subscribe(name, topic, take_over=True)
        told = one.hear_of("skipped")
        assert (told["first"], told["last"]) == (0, 5)
        assert values(one.take(4)) == [6, 7, 8, 9]


def test_unsubscribing_deletes_the_position(broker: Broker, topic: str, unique: Unique) -> None:
    name = unique("ends")
    produce(broker.bootstrap_servers, topic, range(3))
    with subscriber(broker.http_url) as one:
        one.subscribe(name, topic, read_old=True)
        one.ack_durably(one.take(3)[1])
        one.say(type="unsubscribe")
        one.hear_of("unsubscribed")
        assert one.closed() == (1000, "unsubscribed")
    assert committed(broker.bootstrap_servers, name, topic) < 0
    with subscriber(broker.http_url) as one:
        assert one.subscribe(name, topic, read_old=True)["resumed"] is False
        assert values(one.take(3)) == [0, 1, 2]


# --- many


def test_many_subscribers_of_one_topic_each_get_all_of_it(broker: Broker, topic: str, unique: Unique) -> None:
    with ExitStack() as stack:
        crowd = [stack.enter_context(subscriber(broker.http_url)) for _ in range(30)]
        for one in crowd:
            one.subscribe(unique("crowd"), topic, credit=1000)
        produce(broker.bootstrap_servers, topic, range(200))
        for one in crowd:
            assert values(one.take(200)) == list(range(200))


def test_the_first_subscribers_may_connect_at_the_same_time() -> None:
    """The topic of committed offsets does not exist yet, and one of them creates it."""
    with Broker() as fresh, ExitStack() as stack:
        create(fresh.bootstrap_servers, "t")
        crowd = [stack.enter_context(subscriber(fresh.http_url)) for _ in range(20)]
        for number, one in enumerate(crowd):
            one.say(type="subscribe", subscription=f"one-{number}", topics=["t"])
        assert {one.hear()["type"] for one in crowd} == {"subscribed"}


def test_a_subscriber_that_does_not_read_does_not_hold_up_another(
    broker: Broker, topic: str, unique: Unique
) -> None:
    big = "x" * 20_000
    with subscriber(broker.http_url, max_queue=1) as slow, subscriber(broker.http_url) as fast:
        slow.subscribe(unique("slow"), topic, credit=100_000)
        fast.subscribe(unique("fast"), topic, credit=100_000)
        produce(broker.bootstrap_servers, topic, [big] * 1000)  # 20 MB: more than any buffer
        assert len(fast.take(1000)) == 1000
        assert values(slow.take(1000)) == [big] * 1000  # it gets all of them when it reads again


# --- delay and expiry headers


def test_a_delayed_message_comes_when_it_is_due_and_not_again_after_a_restart(
    broker: Broker, topic: str, unique: Unique
) -> None:
    name = unique("later")
    produce(broker.bootstrap_servers, topic, ["now-1"])
    produce(broker.bootstrap_servers, topic, ["later"], headers=[("penstock-delay-ms", b"12000")])
    produce(broker.bootstrap_servers, topic, ["now-2", "now-3"])
    with subscriber(broker.http_url) as one:
        one.subscribe(name, topic, read_old=True)
        got = one.take(3)
        assert values(got) == ["now-1", "now-2", "now-3"]
        one.ack(got[-1])
        assert one.hear_of("acked")["positions"] == [
            {"topic": topic, "partition": 0, "offset": 1, "done": [[2, 3]]}
        ]
    with subscriber(broker.http_url) as one:
        one.subscribe(name, topic, take_over=True)
        [late] = one.take(1)
        assert late["value"] == "later"
        one.ack(late)
        while one.hear_of("acked")["positions"] != [{"topic": topic, "partition": 0, "offset": 4}]:
            pass
        assert one.nothing_more()


def test_many_messages_that_are_due_later_all_come_once_and_none_too_early(
    broker: Broker, topic: str, unique: Unique
) -> None:
    produce(broker.bootstrap_servers, topic, range(3000), headers=[("penstock-delay-ms", b"1500")])
    with subscriber(broker.http_url) as one:
        one.subscribe(unique("many-later"), topic, read_old=True, credit=500)
        seen: list[int] = []
        while len(seen) < 3000:
            [message] = one.take(1)
            assert time.time() * 1000 >= message["timestamp_ms"] + 1500
            seen.append(message["value"])
            one.ack(message)
    assert sorted(seen) == list(range(3000))


def test_a_message_is_not_pushed_before_its_time(broker: Broker, topic: str, unique: Unique) -> None:
    due_ms = int(time.time() * 1000) + 700
    produce(broker.bootstrap_servers, topic, ["at"], headers=[("penstock-deliver-at", str(due_ms).encode())])
    with subscriber(broker.http_url) as one:
        one.subscribe(unique("at"), topic, read_old=True)
        assert values(one.take(1)) == ["at"]
        assert time.time() * 1000 >= due_ms


def test_expired_messages_are_not_pushed(broker: Broker, topic: str, unique: Unique) -> None:
    produce(
        broker.bootstrap_servers,
        topic,
        ["stale"],
        headers=[("penstock-ttl-ms", b"1")],
        timestamp=1_700_000_000_000,
    )
    produce(broker.bootstrap_servers, topic, ["fresh"], headers=[("penstock-ttl-ms", b"600000")])
    with subscriber(broker.http_url) as one:
        one.subscribe(unique("ttl"), topic, read_old=True)
        assert values(one.take(1)) == ["fresh"]


# --- topics that change


def test_an_added_partition_is_read_from_its_beginning(broker: Broker, topic: str, unique: Unique) -> None:
    with subscriber(broker.http_url) as one:
        one.subscribe(unique("grows"), topic)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        [grown] = admin.create_partitions([NewPartitions(topic, 2)]).values()
        grown.result(PATIENCE_SECONDS)
        produce(broker.bootstrap_servers, topic, ["there"], partition=1)
        [message] = one.take(1)
    assert (message["partition"], message["value"]) == (1, "there")


def test_deleting_one_topic_does_not_stop_the_others(broker: Broker, topic: str, unique: Unique) -> None:
    doomed = unique("doomed")
    create(broker.bootstrap_servers, doomed)
    with subscriber(broker.http_url) as one:
        one.subscribe(unique("both"), topic, doomed)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        [deleted] = admin.delete_topics([doomed]).values()
        deleted.result(PATIENCE_SECONDS)
        assert one.hear_of("gone")["topic"] == doomed
        produce(broker.bootstrap_servers, topic, ["on"])
        assert values(one.take(1)) == ["on"]
        [deleted] = admin.delete_topics([topic]).values()
        deleted.result(PATIENCE_SECONDS)
        assert one.hear_of("error")["code"] == "unknown_topic"
