"""Topics, leaders, offsets, groups and producer ids, asked of an embedded broker."""

import pickle
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient

from penstock import Broker
from penstock.client import Refused
from penstock.client.wire import EARLIEST, LATEST, MAX_TIMESTAMP, Cluster, FoundOffset
from penstock.config import GroupSettings
from penstock.errors import ConfigError, ErrorCode
from penstock.types import TopicPartition
from tests.client.wire.conftest import Connect, impatient
from tests.client.wire.records import append, append_numbers, make_batch

Unique = Callable[[str], str]


def test_topics_are_found_by_name_and_missing_ones_are_absent(cluster: Cluster, unique: Unique) -> None:
    name, missing = unique("orders"), unique("missing")
    cluster.create_topic(name, 3)
    found = cluster.topics([name, missing])
    assert list(found) == [name]
    assert found[name].partitions == (0, 1, 2)
    assert not found[name].internal
    assert found[name].topic_id.int != 0
    assert missing not in cluster.topics(), "asking must not create"


def test_all_topics_are_listed_internal_ones_marked(cluster: Cluster, unique: Unique) -> None:
    name = unique("orders")
    cluster.create_topic(name)
    cluster.commit(unique("group"), {TopicPartition(name, 0): 0})
    topics = cluster.topics()
    assert name in topics
    assert topics["__consumer_offsets"].internal


def test_creating_a_topic_twice_leaves_the_first(cluster: Cluster, unique: Unique) -> None:
    name = unique("orders")
    cluster.create_topic(name, 2)
    cluster.create_topic(name, 5)
    assert len(cluster.topics([name])[name].partitions) == 2


def test_a_created_topic_has_its_configs(cluster: Cluster, unique: Unique) -> None:
    with pytest.raises(Refused, match=r"creating topic 'bad'.*INVALID_CONFIG") as refused:
        cluster.create_topic("bad", configs={"retention.ms": "soon"})
    assert refused.value.code == ErrorCode.INVALID_CONFIG
    cluster.create_topic(unique("good"), configs={"retention.ms": "100000"})


def test_a_partition_has_a_leader_with_a_connection(cluster: Cluster, unique: Unique) -> None:
    tp = TopicPartition(unique("orders"), 0)
    cluster.create_topic(tp.topic)
    leader = cluster.leader_of(tp)
    assert cluster.connect_once(leader) is cluster.connect_once(leader)
    cluster.connect_once(leader).close()
    assert not cluster.connect_once(leader).closed
    cluster.forget_leaders([tp.topic])
    assert cluster.leader_of(tp) == leader


@pytest.mark.parametrize("name", ["missing", "existing"])
def test_a_missing_topic_or_partition_is_reported_soon(broker: Broker, connect: Connect, name: str) -> None:
    cluster = connect(broker.bootstrap_servers, retry_for_ms=30)
    if name == "existing":
        cluster.create_topic(name)
    with pytest.raises(Refused, match=rf"{name}-9: UNKNOWN_TOPIC_OR_PARTITION.*tried ") as refused:
        cluster.leader_of(TopicPartition(name, 9))
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ("no such topic" in str(refused.value)) == (name == "missing")
    with pytest.raises(Refused, match="UNKNOWN_TOPIC"):
        cluster.offsets({TopicPartition(name, 9): LATEST})


def test_an_unknown_broker_id_is_reported(broker: Broker, connect: Connect) -> None:
    cluster = connect(broker.bootstrap_servers, retry_for_ms=0)
    assert not cluster.connect_once(1).closed, "one that was not heard of before is asked for"
    with pytest.raises(Refused, match=r"broker 99.*not in the cluster"):
        cluster.connect_once(99)


def test_offsets_are_found_by_end_and_by_time(cluster: Cluster, unique: Unique) -> None:
    full, empty = (TopicPartition(unique(name), 0) for name in ("full", "empty"))
    for tp in (full, empty):
        cluster.create_topic(tp.topic)
    append_numbers(cluster, full, 25)
    append(cluster, full, make_batch([b"late"], timestamp=9_000))
    assert cluster.offsets({full: EARLIEST, empty: EARLIEST})[full].offset == 0
    ends = cluster.offsets({full: LATEST, empty: LATEST})
    assert (ends[full].offset, ends[empty].offset) == (26, 0)
    assert cluster.offsets({full: 5_000})[full] == FoundOffset(25, 9_000)
    assert cluster.offsets({full: 9_001})[full].offset == -1
    assert cluster.offsets({full: MAX_TIMESTAMP})[full] == FoundOffset(25, 9_000)
    assert cluster.offsets({}) == {}


def test_many_topics_are_searched_at_once(cluster: Cluster, unique: Unique) -> None:
    partitions = [TopicPartition(unique("many"), 0) for _ in range(5)]
    for tp in partitions:
        cluster.create_topic(tp.topic)
    fresh = Cluster(cluster.settings)
    with fresh:
        assert set(fresh.offsets(dict.fromkeys(partitions, LATEST))) == set(partitions)


def test_committed_offsets_are_read_back(cluster: Cluster, unique: Unique) -> None:
    group, first, second = unique("group"), TopicPartition(unique("a"), 0), TopicPartition(unique("b"), 1)
    cluster.create_topic(first.topic)
    cluster.create_topic(second.topic, 2)
    assert cluster.committed(group) == {}
    cluster.commit(group, {first: 5, second: 7}, metadata="why")
    cluster.commit(group, {first: 6})
    cluster.commit(group, {})
    assert cluster.committed(group) == {first: 6, second: 7}


def test_offsets_that_are_committed_for_a_time_expire_and_their_group_with_them(
    connect: Connect, unique: Unique
) -> None:
    with Broker(groups=GroupSettings(offsets_retention_check_interval_ms=50)) as broker:
        cluster = connect(broker.bootstrap_servers)
        group, tp = unique("group"), TopicPartition(unique("orders"), 0)
        cluster.create_topic(tp.topic)
        cluster.commit(group, {tp: 5}, retention_ms=3_600_000)
        assert cluster.committed(group) == {tp: 5}
        cluster.commit(group, {tp: 6}, retention_ms=1)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        while group in {each.group_id for each in admin.list_consumer_groups().result(60).valid}:
            assert cluster.committed(group) in ({tp: 6}, {})


def test_committing_for_a_topic_that_is_missing_is_refused(broker: Broker, connect: Connect) -> None:
    cluster = connect(broker.bootstrap_servers, retry_for_ms=30)
    with pytest.raises(Refused, match=r"missing-0 for group 'g': UNKNOWN_TOPIC_OR_PARTITION"):
        cluster.commit("g", {TopicPartition("missing", 0): 1})


def test_every_producer_id_is_new(cluster: Cluster) -> None:
    first, second = cluster.init_producer_id(), cluster.init_producer_id()
    assert first[0] != second[0]
    assert first[1] == second[1] == 0


def test_a_second_server_serves_when_the_first_is_down(broker: Broker, connect: Connect) -> None:
    assert isinstance(connect(f"127.0.0.1:1,{broker.bootstrap_servers}").topics(), dict)


def test_wrong_settings_are_refused_before_connecting() -> None:
    with pytest.raises(ConfigError, match="bootstrap_servers"):
        Cluster(impatient("nowhere"))


def test_errors_survive_pickling() -> None:
    refused = Refused(6, "the leader of t-0")
    refused.add_effort("tried once")
    copy = pickle.loads(pickle.dumps(refused))
    assert str(copy) == str(refused)
    assert copy.code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_an_unknown_error_code_is_shown_as_a_number() -> None:
    refused = Refused(999, "something")
    assert "error code 999" in str(refused)
    assert not refused.retriable
