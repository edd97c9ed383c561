"""APIs about placement on one node, permissions, and fetches that decline sessions in their own way."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from penstock import Broker
from penstock.batch import Record, build_batch, iter_headers
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey, Message
from penstock.kafka.wire.messages import describe_quorum as quorum
from penstock.kafka.wire.messages import produce
from penstock.kafka.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.kafka.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from penstock.kafka.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from penstock.kafka.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from penstock.kafka.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from penstock.kafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.kafka.wire.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from penstock.kafka.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from penstock.kafka.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.kafka.raw import RawClient

Unique = Callable[[str], str]
Response = TypeVar("Response", bound=Message)
NODE = 1


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker) as connected:
        yield connected


@pytest.fixture
def topic(client: RawClient, unique: Unique) -> str:
    """A topic with one partition and one record."""
    name = unique("placed")
    ask(
        client,
        ApiKey.METADATA,
        8,
        MetadataRequest(topics=[MetadataRequestTopic(name=name)]),
        MetadataResponse,
    )
    data = produce.PartitionProduceData(index=0, records=build_batch([Record(0, 1, b"k", b"v", ())]))
    request = produce.ProduceRequest(
        acks=-1, timeout_ms=10_000, topic_data=[produce.TopicProduceData(name=name, partition_data=[data])]
    )
    ask(client, ApiKey.PRODUCE, 9, request, produce.ProduceResponse)
    return name


def ask(client: RawClient, key: ApiKey, version: int, request: Message, response: type[Response]) -> Response:
    answer = client.call(key, version, request)
    assert isinstance(answer, response)
    return answer


# --- Fetch


@pytest.mark.parametrize(("session_id", "epoch"), [(-1, -1), (7, -1), (0, 0), (7, 0)])
def test_a_full_fetch_is_answered_with_any_session_id(
    client: RawClient, topic: str, session_id: int, epoch: int
) -> None:
    answer = ask(client, ApiKey.FETCH, 11, fetch(topic, session_id, epoch), FetchResponse)
    assert (answer.error_code, answer.session_id > 0) == (ErrorCode.NONE, epoch == 0)
    records = answer.responses[0].partitions[0].records
    assert isinstance(records, memoryview)
    assert [header.record_count for _, header in iter_headers(records)] == [1]


def test_an_incremental_fetch_gets_an_unknown_session_error(client: RawClient, topic: str) -> None:
    answer = ask(client, ApiKey.FETCH, 11, fetch(topic, 7, 1), FetchResponse)
    assert (answer.error_code, answer.responses) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])


def fetch(topic: str, session_id: int, epoch: int) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=100,
        min_bytes=1,
        session_id=session_id,
        session_epoch=epoch,
        topics=[
            FetchTopic(topic=topic, partitions=[FetchPartition(partition=0, partition_max_bytes=10_000)])
        ],
    )


# --- placement


def test_no_election_is_needed_on_a_single_node(client: RawClient, topic: str) -> None:
    wanted = [TopicPartitions(topic=topic, partitions=[0, 5])]
    request = ElectLeadersRequest(election_type=0, topic_partitions=wanted)
    answer = ask(client, ApiKey.ELECT_LEADERS, 2, request, ElectLeadersResponse)
    codes = [row.error_code for row in answer.replica_election_results[0].partition_result]
    assert codes == [ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    everywhere = ElectLeadersRequest(election_type=0, topic_partitions=None)
    answer = ask(client, ApiKey.ELECT_LEADERS, 2, everywhere, ElectLeadersResponse)
    assert (answer.error_code, answer.replica_election_results) == (ErrorCode.NONE, [])


@pytest.mark.parametrize(
    ("partition", "replicas", "code"),
    [
        (0, [NODE], ErrorCode.NONE),
        (0, [NODE, 2], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (9, [NODE], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_on_a_single_node_a_partition_can_only_be_assigned_to_that_node(
    client: RawClient, topic: str, partition: int, replicas: list[int] | None, code: ErrorCode
) -> None:
    row = ReassignablePartition(partition_index=partition, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=topic, partitions=[row])])
    key = ApiKey.ALTER_PARTITION_REASSIGNMENTS
    answer = ask(client, key, 1, request, AlterPartitionReassignmentsResponse)
    assert answer.responses[0].partitions[0].error_code == code
    listed = ask(
        client,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        0,
        ListPartitionReassignmentsRequest(),
        ListPartitionReassignmentsResponse,
    )
    assert (listed.error_code, listed.topics) == (ErrorCode.NONE, [])


def test_a_replica_stays_in_the_only_log_folder(client: RawClient, topic: str) -> None:
    rows = [AlterReplicaLogDirTopic(name=topic, partitions=[0, 9])]
    request = AlterReplicaLogDirsRequest(
        dirs=[AlterReplicaLogDir(path=path, topics=rows) for path in ("memory", "/elsewhere")]
    )
    answer = ask(client, ApiKey.ALTER_REPLICA_LOG_DIRS, 2, request, AlterReplicaLogDirsResponse)
    assert [[row.error_code for row in result.partitions] for result in answer.results] == [
        [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [ErrorCode.LOG_DIR_NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
    ]


def test_the_quorum_is_the_node_itself(client: RawClient, topic: str) -> None:
    wanted = quorum.RequestTopicData(
        topic_name="__cluster_metadata", partitions=[quorum.RequestPartitionData(partition_index=0)]
    )
    request = quorum.DescribeQuorumRequest(topics=[wanted])
    answer = ask(client, ApiKey.DESCRIBE_QUORUM, 2, request, quorum.DescribeQuorumResponse)
    partition = answer.topics[0].partitions[0]
    assert (partition.error_code, partition.leader_id) == (ErrorCode.NONE, NODE)
    assert [voter.replica_id for voter in partition.current_voters] == [NODE]
    assert 0 < partition.high_watermark <= partition.current_voters[0].log_end_offset
    assert [node.node_id for node in answer.nodes] == [NODE]


# --- configs and permissions


def test_config_resources_are_listed_by_type(client: RawClient, topic: str) -> None:
    key, kinds = ApiKey.LIST_CONFIG_RESOURCES, ListConfigResourcesRequest
    everything = ask(client, key, 1, kinds(), ListConfigResourcesResponse).config_resources
    assert {(2, topic), (4, str(NODE))} <= {(row.resource_type, row.resource_name) for row in everything}
    brokers = ask(client, key, 1, kinds(resource_types=[4]), ListConfigResourcesResponse).config_resources
    assert [row.resource_name for row in brokers] == [str(NODE)]
    assert ask(client, key, 0, kinds(), ListConfigResourcesResponse).config_resources == []
    refused = ask(client, key, 1, kinds(resource_types=[99]), ListConfigResourcesResponse)
    assert refused.error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize("asked", [True, False])
def test_authorized_operations_are_returned_on_request(client: RawClient, topic: str, asked: bool) -> None:
    """The figures are those of Kafka without an authorizer."""
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic)],
        include_topic_authorized_operations=asked,
        include_cluster_authorized_operations=asked,
    )
    answer = ask(client, ApiKey.METADATA, 8, request, MetadataResponse)
    unknown = -(2**31)
    assert answer.topics[0].topic_authorized_operations == (3576 if asked else unknown)
    assert answer.cluster_authorized_operations == (8096 if asked else unknown)
    cluster = DescribeClusterRequest(include_cluster_authorized_operations=asked)
    described = ask(client, ApiKey.DESCRIBE_CLUSTER, 1, cluster, DescribeClusterResponse)
    assert described.cluster_authorized_operations == (8096 if asked else unknown)
    group = DescribeGroupsRequest(groups=["missing"], include_authorized_operations=asked)
    groups = ask(client, ApiKey.DESCRIBE_GROUPS, 5, group, DescribeGroupsResponse)
    assert groups.groups[0].authorized_operations == (3400 if asked else unknown)
