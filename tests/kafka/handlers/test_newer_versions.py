"""The versions of APIs that Kafka 4.4 added."""

from collections.abc import Callable, Iterator

import pytest

from penstock import Broker
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages import api_versions, delete_groups, metadata
from penstock.kafka.wire.messages import describe_log_dirs as folders
from penstock.kafka.wire.messages import offset_commit as committing
from penstock.kafka.wire.schema import NO_UUID
from tests.kafka.handlers.test_transactional_offsets import stable_offset
from tests.kafka.raw import RawClient
from tests.kafka.requests import ask, create
from tests.kafka.transactional_producer import TransactionalProducer, persist

Unique = Callable[[str], str]
OTHER_NODE = 77


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker) as connected:
        yield connected


@pytest.fixture
def topic(client: RawClient, unique: Unique) -> str:
    name = unique("payments")
    create(client, name, replicas=1)
    return name


def describe(client: RawClient, topic: str) -> metadata.MetadataResponse:
    request = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=topic)])
    return ask(client, ApiKey.METADATA, 12, request, metadata.MetadataResponse)


# --- ApiVersions 5


def versions_for(
    client: RawClient, cluster_id: str | None = None, node_id: int = -1, *, version: int = 5
) -> api_versions.ApiVersionsResponse:
    request = api_versions.ApiVersionsRequest(
        client_software_name="test", client_software_version="1", cluster_id=cluster_id, node_id=node_id
    )
    return ask(client, ApiKey.API_VERSIONS, version, request, api_versions.ApiVersionsResponse)


def test_a_client_that_reaches_the_node_it_looks_for_gets_the_versions(client: RawClient, topic: str) -> None:
    known = describe(client, topic)
    answer = versions_for(client, known.cluster_id, known.brokers[0].node_id)
    assert (answer.error_code, bool(answer.api_keys)) == (ErrorCode.NONE, True)


def test_a_client_without_metadata_gets_the_versions(client: RawClient) -> None:
    assert versions_for(client).error_code == ErrorCode.NONE


def test_a_client_that_looks_for_another_node_or_cluster_starts_again_from_its_bootstrap_servers(
    client: RawClient, topic: str
) -> None:
    known = describe(client, topic)
    node_id = known.brokers[0].node_id
    for cluster, node in ((known.cluster_id, OTHER_NODE), ("elsewhere", node_id)):
        answer = versions_for(client, cluster, node)
        assert (answer.error_code, answer.api_keys) == (ErrorCode.REBOOTSTRAP_REQUIRED, [])
    assert versions_for(client, "elsewhere", OTHER_NODE, version=4).error_code == ErrorCode.NONE


def test_a_cluster_without_a_node_or_a_node_without_a_cluster_is_refused(client: RawClient) -> None:
    assert versions_for(client, cluster_id="some").error_code == ErrorCode.INVALID_REQUEST
    assert versions_for(client, node_id=OTHER_NODE).error_code == ErrorCode.INVALID_REQUEST


# --- DescribeLogDirs 5


def test_no_log_dir_is_cordoned(client: RawClient, topic: str) -> None:
    request = folders.DescribeLogDirsRequest(topics=None)
    answer = ask(client, ApiKey.DESCRIBE_LOG_DIRS, 5, request, folders.DescribeLogDirsResponse)
    assert [row.is_cordoned for row in answer.results] == [False]
    assert topic in {row.name for row in answer.results[0].topics}


# --- DeleteGroups 3


def test_a_group_that_is_not_deleted_has_a_reason(client: RawClient, unique: Unique, topic: str) -> None:
    missing, known = unique("missing"), unique("known")
    assert commit(client, known, topic, generation=-1, version=9) == ErrorCode.NONE
    request = delete_groups.DeleteGroupsRequest(groups_names=[missing, known])
    answer = ask(client, ApiKey.DELETE_GROUPS, 3, request, delete_groups.DeleteGroupsResponse)
    assert [(row.error_code, row.error_message) for row in answer.results] == [
        (ErrorCode.GROUP_ID_NOT_FOUND, f"{missing}: there is no such group"),
        (ErrorCode.NONE, None),
    ]


# --- commits for groups that are gone


def commit(client: RawClient, group: str, topic: str, *, generation: int, version: int) -> int:
    row = committing.OffsetCommitRequestPartition(partition_index=0, committed_offset=3)
    request = committing.OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        topics=[committing.OffsetCommitRequestTopic(name=topic, partitions=[row])],
    )
    answer = ask(client, ApiKey.OFFSET_COMMIT, version, request, committing.OffsetCommitResponse)
    return answer.topics[0].partitions[0].error_code


def test_a_member_of_a_group_that_is_gone_hears_it_in_the_words_of_its_version(
    client: RawClient, unique: Unique, topic: str
) -> None:
    group = unique("group")
    assert commit(client, group, topic, generation=4, version=8) == ErrorCode.ILLEGAL_GENERATION
    assert commit(client, group, topic, generation=4, version=9) == ErrorCode.GROUP_ID_NOT_FOUND
    producer = TransactionalProducer(client, unique("producer"), v2=True)
    producer.begin()
    topic_id = describe(client, topic).topics[0].topic_id
    older = producer.send_offset(group, topic, 7, version=5, generation=4)
    newer = producer.send_offset(group, topic, 7, version=6, generation=4, topic_id=topic_id)
    assert (older, newer) == (ErrorCode.ILLEGAL_GENERATION, ErrorCode.GROUP_ID_NOT_FOUND)


# --- TxnOffsetCommit 6


def test_offsets_of_a_transaction_are_committed_by_topic_id(
    client: RawClient, unique: Unique, topic: str
) -> None:
    group, topic_id = unique("group"), describe(client, topic).topics[0].topic_id
    producer = TransactionalProducer(client, unique("producer"), v2=True)
    producer.begin()
    persist(lambda: producer.send_offset(group, "", 7, version=6, topic_id=topic_id))
    producer.finish(commit=True)
    assert stable_offset(client, group, topic) == 7


def test_offsets_of_an_unknown_topic_id_are_refused(client: RawClient, unique: Unique, topic: str) -> None:
    producer = TransactionalProducer(client, unique("producer"), v2=True)
    producer.begin()
    unknown = describe(client, topic).topics[0].topic_id.int ^ 1
    for topic_id in (type(NO_UUID)(int=unknown), NO_UUID):
        code = producer.send_offset(unique("group"), topic, 7, version=6, topic_id=topic_id)
        assert code == ErrorCode.UNKNOWN_TOPIC_ID
