"""Administration: topics, queues and groups."""

import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from penstock.client import Client, DeadLetter, Denied, Refused
from penstock.errors import ErrorCode

SOON = 60.0
Unique = Callable[[str], str]


def test_topics_are_created_listed_altered_and_deleted(client: Client, unique: Unique) -> None:
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


def test_existing_and_missing_topics_may_be_allowed(client: Client, topic: str, unique: Unique) -> None:
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


def test_an_invalid_config_is_refused_with_its_name(client: Client, topic: str) -> None:
    with pytest.raises(Refused, match=r"retention\.ms"):
        client.admin.alter_topic(topic, {"retention.ms": "soon"})


def test_a_queue_has_settings_and_counts(client: Client, topic: str, unique: Unique) -> None:
    group = unique("workers")
    settings = {"share.auto.offset.reset": "earliest"}
    client.admin.alter_queue(
        group, settings, lease=timedelta(minutes=1), max_deliveries=9, key_ordered=True, backoff=2
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
        with pytest.raises(Refused, match="NON_EMPTY_GROUP"):  # it would store its position again
            client.admin.delete_group(name)
    assert name in client.admin.groups()
    assert client.admin.group(name).offsets == {(topic, 0): 1}
    assert client.admin.delete_group(name)
    assert name not in client.admin.groups()
    assert client.admin.delete_group(name, missing_ok=True) is False


def test_a_created_queue_exists_before_its_first_consumer(client: Client, topic: str, unique: Unique) -> None:
    client.publish(topic, b"x")
    group = unique("created")
    assert client.admin.create_queue(group, topic=topic, lease=7)
    assert group in client.admin.queues()
    info = client.admin.queue(group)
    assert [one.topic for one in info.partitions] == [topic]
    assert (info.undone, info.configs["share.record.lock.duration.ms"]) == (1, "7000")
    assert not client.admin.create_queue(group, topic=topic, lease=8)
    assert client.admin.queue_configs(group)["share.record.lock.duration.ms"] == "8000"


def test_a_queue_without_a_topic_is_on_the_topic_of_its_name_which_keeps_undone_jobs(
    client: Client, topic: str, unique: Unique
) -> None:
    assert client.admin.create_queue(topic)
    assert topic in client.admin.queues()
    new = unique("new")
    assert client.admin.create_queue(new)
    assert client.admin.topic_configs(new)["penstock.retention.keep.undone"] == "true"
    assert not client.admin.create_queue(new)


def test_a_queue_can_be_purged_and_deleted(client: Client, topic: str, unique: Unique) -> None:
    group = unique("cleared")
    client.admin.create_queue(group, topic=topic)
    client.publish(topic, b"x")
    assert client.admin.purge_queue(group) == 1
    assert client.admin.queue(group).undone == 0
    assert client.admin.delete_queue(group)
    assert not client.admin.delete_queue(group, missing_ok=True)
    with pytest.raises(Denied, match="unknown_queue"):
        client.admin.delete_queue(group)


def first_dead_letter(client: Client, group: str) -> DeadLetter:
    """Polls: a rejection is durable before the dead letter is in its topic, and no event announces that."""
    deadline = time.monotonic() + SOON
    while time.monotonic() < deadline:
        for letter in client.admin.dead_letters(group, limit=1):
            return letter
        time.sleep(0.02)
    raise TimeoutError(group)


def test_dead_letters_are_listed_and_sent_back(client: Client, topic: str, unique: Unique) -> None:
    group = unique("dying")
    client.admin.create_queue(group, topic=topic)
    client.publish(topic, b"\xff\x00", key=b"k")
    with client.queue(topic, group=group) as queue:
        job = queue.receive(SOON)
        assert job is not None
        job.reject().wait(SOON)
        letter = first_dead_letter(client, group)
        assert (letter.key, letter.value, letter.from_topic) == (b"k", b"\xff\x00", topic)
        assert client.admin.send_back(group, [letter]) == 1
        again = queue.receive(SOON)
        assert again is not None
        assert again.value == b"\xff\x00"
        again.reject().wait(SOON)
        first_dead_letter(client, group)
        assert client.admin.send_back(group) == 1
    assert client.admin.dead_letters(group) == []
