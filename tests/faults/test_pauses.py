"""A leader that is paused for longer than an election, and then resumes."""

from pathlib import Path

from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from tests.faults import raw_requests
from tests.faults.checks import assert_kept
from tests.faults.clients import create_topic, leader_of, raw
from tests.faults.load import Load
from tests.faults.nodes import Cluster
from tests.faults.waiting import eventually

TOPIC = "payments"
SOME = 100


def test_a_paused_leader_neither_acks_nor_serves_old_data(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        create_topic(cluster, TOPIC)
        with Load(cluster, TOPIC) as load:
            load.wait_for_more(SOME)
            former = leader_of(cluster, TOPIC)
            with raw(cluster, former) as writer, raw(cluster, former) as reader:
                eventually(
                    lambda: raw_requests.list_latest(reader, TOPIC).error == ErrorCode.NONE,
                    "a leader with a lease",
                )
                cluster[former].pause()
                assert leader_of(cluster, TOPIC, other_than=former) != former
                load.wait_for_more(SOME)
                # These wait in its sockets: it sees them first when it resumes, and still believes that it leads.
                writer.request(
                    ApiKey.PRODUCE,
                    raw_requests.PRODUCE_VERSION,
                    raw_requests.produce_request(TOPIC, b"late:0"),
                )
                reader.request(
                    ApiKey.LIST_OFFSETS,
                    raw_requests.LIST_OFFSETS_VERSION,
                    raw_requests.list_latest_request(TOPIC),
                )
                reader.request(ApiKey.FETCH, raw_requests.FETCH_VERSION, raw_requests.fetch_request(TOPIC, 0))
                cluster[former].resume()
                assert raw_requests.listed(reader).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
                assert raw_requests.fetched(reader).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
                assert raw_requests.produced(writer).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
            load.wait_for_more(SOME)
        assert_kept(cluster, load)


def test_nothing_acked_is_lost_when_nodes_are_paused_one_after_the_other(tmp_path: Path) -> None:
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
