"""Administration: topics, queues and groups."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from penstock.client import Client, Denied, Refused
from penstock.errors import ErrorCode

SOON = 15.0
Unique = Callable[[str], str]


def test_topics_are_made_listed_changed_and_deleted(client: Client, unique: Unique) -> None:
    name = unique("made")
    assert client.admin.create_topic(name, partitions=3, configs={"retention.ms": "60000"})
    [info] = [one for one in client.admin.topics() if one.name == name]
    assert (info.partitions, info.replication_factor, info.leaders) == (3, 1, {0: 1, 1: 1, 2: 1})
    assert client.admin.topic_configs(name)["retention.ms"] == "60000"
    client.admin.alter_topic(name, {"retention.ms": None, "max.message.bytes": "5000"})
    configs = client.admin.topic_configs(name)
    assert (configs["retention.ms"], configs["max.message.bytes"]) == ("604800000", "5000")
    assert client.admin.delete_topic(name)
    assert name not in [one.name for one in client.admin.topics()]


def test_what_is_there_or_not_there_may_be_fine(client: Client, topic: str, unique: Unique) -> None:
    with pytest.raises(Refused) as taken:
        client.admin.create_topic(topic)
    assert taken.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert client.admin.create_topic(topic, exist_ok=True) is False
    with pytest.raises(Refused) as missing:
        client.admin.delete_topic(unique("none"))
    assert missing.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.admin.delete_topic(unique("none"), missing_ok=True) is False


def test_the_brokers_own_topics_are_shown_on_request(client: Client, topic: str, group: str) -> None:
    with client.queue(topic, group=group) as queue:
        client.publish(topic, b"x")
        job = queue.receive(SOON)
        assert job is not None
        job.ack().wait(SOON)
    own = [one.name for one in client.admin.topics(internal=True) if one.name.startswith("__")]
    assert own
    assert not set(own) & {one.name for one in client.admin.topics()}


def test_a_mistake_in_a_config_is_told_with_its_name(client: Client, topic: str) -> None:
    with pytest.raises(Refused, match=r"retention\.ms"):
        client.admin.alter_topic(topic, {"retention.ms": "soon"})


def test_a_queue_has_settings_and_tells_what_it_holds(client: Client, topic: str, unique: Unique) -> None:
    group = unique("workers")
    client.admin.create_queue(
        group, lease=timedelta(minutes=1), max_deliveries=9, key_ordered=True, backoff=2
    )
    configs = client.admin.queue_configs(group)
    assert configs["share.record.lock.duration.ms"] == "60000"
    assert configs["share.delivery.count.limit"] == "9"
    assert configs["penstock.queue.order"] == "key"
    assert configs["penstock.retry.backoff.ms"] == "2000"
    assert configs["share.auto.offset.reset"] == "earliest"
    with pytest.raises(Denied) as unknown:
        client.admin.queue(group)
    assert unknown.value.code == "unknown_queue"
    for number in range(3):
        client.publish(topic, str(number), key=str(number))
    with client.queue(topic, group=group, prefetch=1) as queue:
        assert queue.receive(SOON) is not None
        info = client.admin.queue(group)
        assert info.undone == 3
        assert [(one.topic, one.leased) for one in info.partitions] == [(topic, 1)]
        assert info.configs == configs
    assert group in client.admin.queues()


def test_groups_are_listed_described_and_deleted(client: Client, topic: str, unique: Unique) -> None:
    name = unique("billing")
    client.publish(topic, b"x")
    with client.subscribe(topic, name=name, read_old=True) as subscription:
        message = subscription.receive(SOON)
        assert message is not None
        message.ack()
    assert name in client.admin.groups()
    assert client.admin.group(name).offsets == {(topic, 0): 1}
    assert client.admin.delete_group(name)
    assert name not in client.admin.groups()
    assert client.admin.delete_group(name, missing_ok=True) is False
