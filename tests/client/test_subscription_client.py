"""Subscriptions with the blocking client."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Broker
from penstock.client import Client, Denied, LeaseLost, Message, Subscription
from tests.ports import free_ports

SOON = 60.0
Unique = Callable[[str], str]


def fill(client: Client, topic: str, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        client.publish_soon(topic, str(number))
    client.flush()


def take(subscription: Subscription, count: int) -> list[Message]:
    messages = []
    while len(messages) < count:
        message = subscription.receive(SOON)
        assert message is not None, f"{len(messages)} of {count} messages"
        messages.append(message)
    return messages


def test_it_continues_after_its_last_ack(client: Client, topic: str, unique: Unique) -> None:
    name = unique("billing")
    fill(client, topic, 10)
    with client.subscribe(topic, name=name, read_old=True) as subscription:
        messages = take(subscription, 10)
        assert [message.text() for message in messages] == [str(number) for number in range(10)]
        messages[6].ack()
        assert not subscription.resumed
    with client.subscribe(topic, name=name) as subscription:
        assert [message.text() for message in take(subscription, 3)] == ["7", "8", "9"]
        assert subscription.resumed


def test_a_new_subscription_may_begin_with_new_messages(client: Client, topic: str, unique: Unique) -> None:
    fill(client, topic, 3)
    with client.subscribe(topic, name=unique("tail")) as subscription:
        first = None
        while first is None:  # messages published before it is attached are not new to it
            client.publish(topic, b"new")
            first = subscription.receive(0.1)
        assert first.value == b"new"


def test_an_ack_can_be_waited_for_and_shows_in_the_group(client: Client, topic: str, unique: Unique) -> None:
    name = unique("billing")
    fill(client, topic, 4)
    with client.subscribe(topic, name=name, read_old=True) as subscription:
        take(subscription, 4)[2].ack().wait(SOON)
    group = client.admin.group(name)
    assert group.offsets == {(topic, 0): 3}
    assert group.total_lag == 1


def test_the_broker_sends_no_more_than_the_credit(client: Client, topic: str, unique: Unique) -> None:
    fill(client, topic, 5)
    with client.subscribe(topic, name=unique("slow"), read_old=True, prefetch=2) as subscription:
        _first, second = take(subscription, 2)
        assert subscription.receive(0.1) is None
        second.ack()
        assert [message.text() for message in take(subscription, 2)] == ["2", "3"]


def test_one_subscription_may_have_many_topics(client: Client, unique: Unique) -> None:
    topics = [unique("a"), unique("b")]
    for topic in topics:
        client.admin.create_topic(topic, partitions=2)
        fill(client, topic, 10)
    with client.subscribe(topics, name=unique("all"), read_old=True) as subscription:
        messages = take(subscription, 20)
    assert {message.topic for message in messages} == set(topics)
    for topic_partition in {message.topic_partition for message in messages}:
        offsets = [message.offset for message in messages if message.topic_partition == topic_partition]
        assert offsets == list(range(len(offsets)))


def test_a_name_in_use_is_refused_unless_it_is_taken_over(client: Client, topic: str, unique: Unique) -> None:
    name = unique("billing")
    fill(client, topic, 1)
    with client.subscribe(topic, name=name, read_old=True) as first:
        take(first, 1)
        with client.subscribe(topic, name=name) as second, pytest.raises(Denied) as refused:
            second.receive(SOON)
        assert refused.value.code == "already_active"
        with client.subscribe(topic, name=name, take_over=True) as heir:
            assert take(heir, 1)[0].text() == "0"
            with pytest.raises(Denied) as sent_away:
                first.receive(SOON)
            assert sent_away.value.code == "taken_over"


@pytest.mark.parametrize("times", [1, 2, 4])
def test_slow_work_is_not_handed_out_twice(client: Client, topic: str, unique: Unique, times: int) -> None:
    """The broker disconnects the subscriber for its missing ack; it reconnects by itself, and its late ack counts."""
    fill(client, topic, 3)
    with client.subscribe(topic, name=unique("slow"), read_old=True, ack_timeout=0.2) as subscription:
        [message] = take(subscription, 1)
        assert subscription._driver.wait_for(lambda: subscription.times_inactive >= times, SOON)
        message.ack()
        texts = []
        while len(texts) < 2:
            [message] = take(subscription, 1)
            message.ack()
            texts.append(message.text())
        assert texts == ["1", "2"]


def test_iterating_ends_after_the_idle_time(client: Client, topic: str, unique: Unique) -> None:
    fill(client, topic, 3)
    with client.subscribe(topic, name=unique("quiet"), read_old=True, idle_s=0.5) as subscription:
        driver = subscription._driver
        assert driver.wait_for(lambda: len(driver.session.ready) == 3, SOON)
        assert [message.text() for message in subscription] == ["0", "1", "2"]


def test_unsubscribing_deletes_the_position(client: Client, topic: str, unique: Unique) -> None:
    name = unique("billing")
    fill(client, topic, 2)
    subscription = client.subscribe(topic, name=name, read_old=True)
    take(subscription, 2)[1].ack().wait(SOON)
    subscription.unsubscribe()
    with client.subscribe(topic, name=name, read_old=True) as again:
        assert take(again, 1)[0].text() == "0"


def test_a_deferred_message_does_not_delay_closing(client: Client, topic: str, unique: Unique) -> None:
    client.publish(topic, b"later", delay=3600)
    client.publish(topic, b"now")
    subscription = client.subscribe(topic, name=unique("late"), read_old=True)
    [message] = take(subscription, 1)
    assert message.value == b"now"
    message.ack()
    assert subscription.flush(SOON), "the ack behind the deferred message is durable, and told"
    subscription.close()


def test_it_continues_after_a_broker_restart(tmp_path: Path) -> None:
    kafka, http = (f"127.0.0.1:{port}" for port in free_ports(2))
    with Broker(data_dir=tmp_path, kafka=kafka, http=http):
        client = Client(kafka)
        client.admin.create_topic("orders")
        fill(client, "orders", 3)
        subscription = client.subscribe("orders", name="billing", read_old=True)
        first, second, third = take(subscription, 3)
        first.ack().wait(SOON)
    with pytest.raises(LeaseLost):
        second.ack().wait(SOON)
    with Broker(data_dir=tmp_path, kafka=kafka, http=http):
        client.publish("orders", b"3")
        assert [message.text() for message in take(subscription, 2)] == ["2", "3"], (
            "the second one was acked here"
        )
        assert third.text() == "2"
        client.close()


def test_closing_from_another_thread_ends_the_iteration(client: Client, topic: str, unique: Unique) -> None:
    subscription = client.subscribe(topic, name=unique("ends"))
    thread = threading.Thread(target=lambda: list(subscription))
    thread.start()
    subscription.close()
    thread.join(SOON)
    assert not thread.is_alive()
