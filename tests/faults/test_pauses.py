"""A leader that stands still for longer than an election, and then goes on as if nothing had been."""

from pathlib import Path

from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from tests.faults import talk
from tests.faults.clients import create_topic, leader_of, raw
from tests.faults.load import Load
from tests.faults.nodes import Cluster
from tests.faults.verdict import assert_kept

TOPIC = "payments"
SOME = 100


def test_a_paused_leader_neither_acks_nor_answers_from_the_past(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        create_topic(cluster, TOPIC)
        with Load(cluster, TOPIC) as load:
            load.wait_for_more(SOME)
            former = leader_of(cluster, TOPIC)
            with raw(cluster, former) as writer, raw(cluster, former) as reader:
                assert talk.list_latest(reader, TOPIC).error == ErrorCode.NONE
                cluster[former].pause()
                assert leader_of(cluster, TOPIC, other_than=former) != former
                load.wait_for_more(SOME)
                # These wait in its sockets: the first thing that it sees when it wakes up, still a leader as it thinks.
                writer.request(ApiKey.PRODUCE, talk.PRODUCE_VERSION, talk.produce_request(TOPIC, b"late:0"))
                reader.request(
                    ApiKey.LIST_OFFSETS, talk.LIST_OFFSETS_VERSION, talk.list_latest_request(TOPIC)
                )
                reader.request(ApiKey.FETCH, talk.FETCH_VERSION, talk.fetch_request(TOPIC, 0))
                cluster[former].resume()
                assert talk.listed(reader).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
                assert talk.fetched(reader).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
                assert talk.produced(writer).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
            load.wait_for_more(SOME)
        assert_kept(cluster, load)


def test_nothing_acked_is_lost_when_one_node_after_the_other_stands_still(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        create_topic(cluster, TOPIC, 3)
        with Load(cluster, TOPIC, partitions=3) as load:
            for partition in range(2):
                load.wait_for_more(SOME)
                victim = leader_of(cluster, TOPIC, partition)
                cluster[victim].pause()
                leader_of(cluster, TOPIC, partition, other_than=victim)
                load.wait_for_more(SOME)
                cluster[victim].resume()
            load.wait_for_more(SOME)
        assert_kept(cluster, load)
