"""Administration of a cluster through any node, independent of which one is the controller."""

from collections.abc import Callable

import pytest

from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages import alter_partition_reassignments as moving
from penstock.kafka.wire.messages import describe_configs as configs
from penstock.kafka.wire.messages import describe_log_dirs as folders
from penstock.kafka.wire.messages import describe_quorum as quorum
from penstock.kafka.wire.messages import elect_leaders as electing
from penstock.kafka.wire.messages import incremental_alter_configs as altering
from penstock.kafka.wire.messages import list_partition_reassignments as moves
from penstock.kafka.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from penstock.kafka.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from penstock.kafka.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from penstock.kafka.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from penstock.kafka.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tests.kafka.raw import RawClient
from tests.kafka.requests import ask, create, describe, read, write
from tests.kafka.trio import Trio

Unique = Callable[[str], str]
NODES = [1, 2, 3]
TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1
PREFERRED, UNCLEAN = 0, 1


@pytest.mark.parametrize("node_id", NODES)
def test_any_node_creates_grows_and_deletes_topics(trio: Trio, unique: Unique, node_id: int) -> None:
    name = unique("made")
    with trio.client(node_id) as client:
        made = create(client, name)
        assert (made.error_code, made.replication_factor) == (ErrorCode.NONE, 3)
        grow = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=name, count=3, assignments=None)], timeout_ms=10_000
        )
        grown = ask(client, ApiKey.CREATE_PARTITIONS, 3, grow, CreatePartitionsResponse)
        assert grown.results[0].error_code == ErrorCode.NONE
        assert all(trio.leader(name, index) for index in range(3))
        # Elections may move leaders at any time: the first replicas are the nodes that should lead.
        assigned = trio.node(trio.controller()).metadata.state.topics[name].assignments
        assert sorted(each.replicas[0] for each in assigned) == NODES
        drop = DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000)
        dropped = ask(client, ApiKey.DELETE_TOPICS, 4, drop, DeleteTopicsResponse)
        assert dropped.responses[0].error_code == ErrorCode.NONE
    trio.eventually(lambda: all(name not in trio.node(one).metadata.state.topics for one in NODES))


def test_all_nodes_describe_one_cluster(trio: Trio) -> None:
    told = []
    for node_id in NODES:
        with trio.client(node_id) as client:
            request = DescribeClusterRequest()
            told.append(ask(client, ApiKey.DESCRIBE_CLUSTER, 1, request, DescribeClusterResponse))
    assert told[0] == told[1] == told[2]
    rows = [(row.broker_id, (row.host, row.port), row.rack) for row in told[0].brokers]
    assert rows == [(one, trio.address(one), f"rack-{one}") for one in NODES]
    assert told[0].controller_id == trio.controller()


@pytest.mark.parametrize("node_id", NODES)
def test_any_node_describes_the_quorum(trio: Trio, node_id: int) -> None:
    wanted = quorum.RequestTopicData(
        topic_name="__cluster_metadata", partitions=[quorum.RequestPartitionData(partition_index=0)]
    )
    with trio.client(node_id) as client:
        request = quorum.DescribeQuorumRequest(topics=[wanted])
        answer = ask(client, ApiKey.DESCRIBE_QUORUM, 2, request, quorum.DescribeQuorumResponse)
    found = answer.topics[0].partitions[0]
    assert (found.error_code, found.leader_id) == (ErrorCode.NONE, trio.controller())
    assert [voter.replica_id for voter in found.current_voters] == NODES
    assert [one.node_id for one in answer.nodes] == NODES


def test_a_controller_that_is_cut_off_redirects_clients_to_the_next_one(trio: Trio, unique: Unique) -> None:
    old, name = trio.controller(), unique("late")
    with trio.client(old) as client, trio.cut_off(old):
        assert create(client, name, once=True).error_code == ErrorCode.NOT_CONTROLLER
        new = trio.eventually(
            lambda: next((one for one in NODES if one != old and trio.node(one).metadata.is_controller), None)
        )
        with trio.client(new) as other:
            assert create(other, name).error_code == ErrorCode.NONE
    trio.leader(name)
    trio.eventually(lambda: trio.node(old).view.controller_id == new)


def test_producer_ids_are_unique_across_nodes(trio: Trio) -> None:
    ids = []
    for node_id in NODES * 2:
        with trio.client(node_id) as client:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
            answer = ask(client, ApiKey.INIT_PRODUCER_ID, 4, request, InitProducerIdResponse)
            assert answer.error_code == ErrorCode.NONE
            ids.append(answer.producer_id)
    assert len(set(ids)) == len(ids)


# --- configs


def describe_broker(client: RawClient, name: str, config: str) -> tuple[int, list[str | None]]:
    wanted = configs.DescribeConfigsResource(
        resource_type=BROKER, resource_name=name, configuration_keys=[config]
    )
    request = configs.DescribeConfigsRequest(resources=[wanted])
    result = ask(client, ApiKey.DESCRIBE_CONFIGS, 4, request, configs.DescribeConfigsResponse).results[0]
    return result.error_code, [row.value for row in result.configs]


def alter(client: RawClient, kind: int, resource: str, name: str, operation: int, value: str | None) -> int:
    change = altering.AlterableConfig(name=name, config_operation=operation, value=value)
    wanted = altering.AlterConfigsResource(resource_type=kind, resource_name=resource, configs=[change])
    request = altering.IncrementalAlterConfigsRequest(resources=[wanted])
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    return ask(client, key, 1, request, altering.IncrementalAlterConfigsResponse).responses[0].error_code


def test_a_node_describes_its_own_configs_and_no_other_nodes(trio: Trio) -> None:
    for node_id in NODES:
        with trio.client(node_id) as client:
            assert describe_broker(client, str(node_id), "node.id") == (ErrorCode.NONE, [str(node_id)])
            other = node_id % 3 + 1
            assert describe_broker(client, str(other), "node.id") == (ErrorCode.INVALID_REQUEST, [])


def test_any_node_changes_the_configs_of_another(trio: Trio) -> None:
    with trio.client(1) as asked, trio.client(3) as changed:
        assert alter(asked, BROKER, "3", "log.retention.ms", SET, "123456") == ErrorCode.NONE
        trio.eventually(lambda: 3 in trio.node(3).metadata.state.node_configs)
        assert describe_broker(changed, "3", "log.retention.ms") == (ErrorCode.NONE, ["123456"])
        assert describe_broker(asked, "1", "log.retention.ms") == (ErrorCode.NONE, [None])
        assert alter(asked, BROKER, "3", "log.retention.ms", DELETE, None) == ErrorCode.NONE
        assert alter(asked, BROKER, "9", "log.retention.ms", SET, "1") == ErrorCode.INVALID_REQUEST


def test_a_config_that_cannot_be_set_may_be_deleted(trio: Trio, topic: str) -> None:
    """kafka-reassign-partitions --verify clears the throttles that it might have set."""
    with trio.client(2) as client:
        throttle = "leader.replication.throttled.rate"
        assert alter(client, BROKER, "1", throttle, DELETE, None) == ErrorCode.NONE
        assert alter(client, BROKER, "1", throttle, SET, "1000") == ErrorCode.INVALID_REQUEST
        throttled = "leader.replication.throttled.replicas"
        assert alter(client, TOPIC, topic, throttled, DELETE, None) == ErrorCode.NONE
        assert alter(client, TOPIC, topic, "no.such.config", DELETE, None) == ErrorCode.NONE


# --- leaders


def elect(client: RawClient, kind: int, topic: str | None) -> dict[str, list[int]]:
    wanted = None if topic is None else [electing.TopicPartitions(topic=topic, partitions=[0])]
    request = electing.ElectLeadersRequest(election_type=kind, topic_partitions=wanted, timeout_ms=10_000)
    answer = ask(client, ApiKey.ELECT_LEADERS, 2, request, electing.ElectLeadersResponse)
    assert answer.error_code == ErrorCode.NONE
    return {
        row.topic: [one.error_code for one in row.partition_result] for row in answer.replica_election_results
    }


def test_the_preferred_leader_leads_when_the_election_is_answered(trio: Trio, topic: str) -> None:
    with trio.client(trio.controller()) as client:
        preferred = describe(client, topic).replica_nodes[0]
        trio.hand_over(topic, next(one for one in NODES if one != preferred))
        assert elect(client, PREFERRED, topic) == {topic: [ErrorCode.NONE]}
        assert describe(client, topic).leader_id == preferred
        assert elect(client, PREFERRED, topic) == {topic: [ErrorCode.ELECTION_NOT_NEEDED]}


def test_an_election_of_all_partitions_names_those_that_needed_one(trio: Trio, topic: str) -> None:
    with trio.client(next(one for one in NODES if one != trio.controller())) as client:
        preferred = describe(client, topic).replica_nodes[0]
        trio.hand_over(topic, next(one for one in NODES if one != preferred))
        assert elect(client, PREFERRED, None)[topic] == [ErrorCode.NONE]
        assert topic not in elect(client, PREFERRED, None)
    assert trio.leader(topic) == preferred


def test_an_unclean_election_is_refused(trio: Trio, topic: str) -> None:
    with trio.client(2) as client:
        assert elect(client, UNCLEAN, topic) == {topic: [ErrorCode.ELECTION_NOT_NEEDED]}
        assert elect(client, UNCLEAN, None) == {}


# --- replicas


def reassign(client: RawClient, topic: str, replicas: list[int] | None) -> int:
    row = moving.ReassignablePartition(partition_index=0, replicas=replicas)
    request = moving.AlterPartitionReassignmentsRequest(
        topics=[moving.ReassignableTopic(name=topic, partitions=[row])], timeout_ms=10_000
    )
    key = ApiKey.ALTER_PARTITION_REASSIGNMENTS
    answer = ask(client, key, 1, request, moving.AlterPartitionReassignmentsResponse)
    return answer.responses[0].partitions[0].error_code


def ongoing(client: RawClient, topic: str) -> list[tuple[list[int], list[int], list[int]]]:
    wanted = moves.ListPartitionReassignmentsTopics(name=topic, partition_indexes=[0])
    request = moves.ListPartitionReassignmentsRequest(topics=[wanted], timeout_ms=10_000)
    key = ApiKey.LIST_PARTITION_REASSIGNMENTS
    answer = ask(client, key, 0, request, moves.ListPartitionReassignmentsResponse)
    assert answer.error_code == ErrorCode.NONE
    return [
        (sorted(row.replicas), row.adding_replicas, row.removing_replicas)
        for found in answer.topics
        for row in found.partitions
    ]


def test_a_partition_moves_with_its_records(trio: Trio, unique: Unique) -> None:
    name = unique("moved")
    with trio.client(1) as client:
        create(client, name, replicas=1)
        old = trio.leader(name)
        with trio.client(old) as writer:
            assert write(writer, name, b"travels").error_code == ErrorCode.NONE
        new = old % 3 + 1
        assert reassign(client, name, [new]) == ErrorCode.NONE
        trio.eventually(lambda: trio.node(1).metadata.state.topics[name].assignments[0].replicas == (new,))
        assert ongoing(client, name) == []
    assert trio.leader(name) == new
    with trio.client(new) as reader, trio.client(old) as gone:
        found = read(reader, name)
        assert found.high_watermark == 1
        assert b"travels" in bytes(found.records)  # type: ignore[arg-type]
        assert read(gone, name, once=True).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_stalled_move_is_listed_and_can_be_cancelled(trio: Trio, unique: Unique) -> None:
    name = unique("stuck")
    with trio.client(1) as asked:
        create(asked, name, replicas=1)
    old = trio.leader(name)
    new = next(one for one in NODES if one not in (old, trio.controller()))
    with trio.client(trio.controller()) as client, trio.cut_off(new):
        assert ongoing(client, name) == []
        assert reassign(client, name, [new]) == ErrorCode.NONE
        assert ongoing(client, name) == [(sorted([old, new]), [new], [old])]
        shown = describe(client, name)
        assert (sorted(shown.replica_nodes), shown.isr_nodes) == (sorted([old, new]), [old])
        assert reassign(client, name, None) == ErrorCode.NONE
        assert ongoing(client, name) == []
        assert reassign(client, name, None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        assert describe(client, name).replica_nodes == [old]
    with trio.client(trio.leader(name)) as client:
        assert write(client, name).error_code == ErrorCode.NONE


def test_each_node_describes_the_folders_of_its_own_replicas(trio: Trio, unique: Unique) -> None:
    name = unique("folders")
    with trio.client(1) as client:
        create(client, name, replicas=1)
    holder = trio.leader(name)
    for node_id in NODES:
        with trio.client(node_id) as client:
            wanted = [folders.DescribableLogDirTopic(topic=name, partitions=[0])]
            request = folders.DescribeLogDirsRequest(topics=wanted)
            answer = ask(client, ApiKey.DESCRIBE_LOG_DIRS, 4, request, folders.DescribeLogDirsResponse)
            held = [row.name for row in answer.results[0].topics]
            assert held == ([name] if node_id == holder else [])
            move = AlterReplicaLogDirsRequest(
                dirs=[
                    AlterReplicaLogDir(
                        path="memory", topics=[AlterReplicaLogDirTopic(name=name, partitions=[0])]
                    )
                ]
            )
            moved = ask(client, ApiKey.ALTER_REPLICA_LOG_DIRS, 2, move, AlterReplicaLogDirsResponse)
            code = moved.results[0].partitions[0].error_code
            assert code == (ErrorCode.NONE if node_id == holder else ErrorCode.REPLICA_NOT_AVAILABLE)
