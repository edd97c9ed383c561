"""APIs and versions that the client suites do not reach by themselves."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from crc32c import crc32c

from penstock import Broker
from penstock.batch import Record, build_batch, iter_headers, read_records
from penstock.errors import ErrorCode
from penstock.kafka.handlers.registry import advertised, find_api
from penstock.kafka.wire import ApiKey, Message, schema_range
from penstock.kafka.wire.messages import alter_configs as plain
from penstock.kafka.wire.messages import incremental_alter_configs as incremental
from penstock.kafka.wire.messages.api_versions import ApiVersionsRequest
from penstock.kafka.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.kafka.wire.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from penstock.kafka.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from penstock.kafka.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from penstock.kafka.wire.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from penstock.kafka.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from penstock.kafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.kafka.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.kafka.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.kafka.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.kafka.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.kafka.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from penstock.kafka.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from penstock.kafka.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.kafka.raw import RawClient

Unique = Callable[[str], str]
T = TypeVar("T", bound=Message)
TIME_MS = 1_700_000_000_000


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker) as connected:
        yield connected


def ask(client: RawClient, kind: type[T], api: ApiKey, version: int, request: Message) -> T:
    answer = client.call(api, version, request)
    assert isinstance(answer, kind)
    return answer


def create(client: RawClient, name: str, partitions: int = 1, **configs: str) -> CreateTopicsResponse:
    rows = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=-1, configs=rows)
    return ask(client, CreateTopicsResponse, ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic]))


def produce(
    client: RawClient, topic: str, *records: Record, version: int = 9, **batch: int
) -> ProduceResponse:
    data = PartitionProduceData(index=0, records=bytearray(build_batch(list(records), **batch)))
    request = ProduceRequest(
        acks=-1, timeout_ms=20_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )
    return ask(client, ProduceResponse, ApiKey.PRODUCE, version, request)


def code_of(response: ProduceResponse) -> int:
    return response.responses[0].partition_responses[0].error_code


def fetch(client: RawClient, topic: str, offset: int = 0) -> list[Record]:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=[FetchTopic(topic=topic, partitions=[wanted])]
    )
    answer = ask(client, FetchResponse, ApiKey.FETCH, 12, request)
    stored = bytes(answer.responses[0].partitions[0].records or b"")
    return [row for position, _ in iter_headers(stored) for row in read_records(stored, position)]


def record(
    value: bytes | None = b"v", key: bytes | None = b"k", offset: int = 0, time_ms: int = TIME_MS
) -> Record:
    return Record(offset, time_ms, key, value, ())


# --- advertised APIs


def test_every_advertised_api_has_a_handler_and_the_codec_knows_its_versions() -> None:
    for key, low, high in advertised():
        assert find_api(key) is not None
        known_low, known_high = schema_range(ApiKey(key))
        assert known_low <= low <= high <= known_high, ApiKey(key)


@pytest.mark.parametrize("version", range(6))
def test_api_versions_is_answered_in_every_version(client: RawClient, version: int) -> None:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    client.request(ApiKey.API_VERSIONS, version, request)
    assert client.answer(ApiKey.API_VERSIONS, version)[0] == 1


# --- topics


def test_creating_only_to_validate_creates_nothing(client: RawClient, unique: Unique) -> None:
    name = unique("dry")
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=3, replication_factor=1)], validate_only=True
    )
    answer = ask(client, CreateTopicsResponse, ApiKey.CREATE_TOPICS, 7, request)
    assert (answer.topics[0].error_code, answer.topics[0].num_partitions) == (ErrorCode.NONE, 3)
    assert metadata_code(client, name) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def metadata_code(client: RawClient, name: str) -> int:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    return ask(client, MetadataResponse, ApiKey.METADATA, 12, request).topics[0].error_code


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "x" * 250, "ä"])
def test_a_topic_name_that_kafka_would_refuse_is_refused(client: RawClient, name: str) -> None:
    answer = create(client, name)
    assert answer.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert answer.topics[0].error_message


def test_a_request_that_names_a_topic_twice_does_not_create_it(client: RawClient, unique: Unique) -> None:
    name = unique("twice")
    topics = [CreatableTopic(name=name, num_partitions=count, replication_factor=1) for count in (1, 2)]
    answer = ask(client, CreateTopicsResponse, ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=topics))
    assert {row.error_code for row in answer.topics} == {ErrorCode.INVALID_REQUEST}
    assert metadata_code(client, name) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_three_replicas_on_one_node_are_refused_with_the_number_of_nodes(
    client: RawClient, unique: Unique
) -> None:
    topic = CreatableTopic(name=unique("three"), num_partitions=1, replication_factor=3)
    answer = ask(client, CreateTopicsResponse, ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic]))
    assert answer.topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert "1 node" in (answer.topics[0].error_message or "")


def test_a_topic_can_be_deleted_by_id_and_its_name_used_again(client: RawClient, unique: Unique) -> None:
    name = unique("again")
    first = create(client, name).topics[0].topic_id
    produce(client, name, record(b"old"))
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=first)])
    answer = ask(client, DeleteTopicsResponse, ApiKey.DELETE_TOPICS, 6, request)
    assert (answer.responses[0].error_code, answer.responses[0].name) == (ErrorCode.NONE, name)
    second = create(client, name).topics[0].topic_id
    assert second != first
    assert fetch(client, name) == []
    again = ask(client, DeleteTopicsResponse, ApiKey.DELETE_TOPICS, 6, request)
    assert again.responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_an_internal_topic_takes_no_records_from_clients(client: RawClient) -> None:
    request = FindCoordinatorRequest(key="any", key_type=0)
    ask(client, FindCoordinatorResponse, ApiKey.FIND_COORDINATOR, 2, request)
    assert code_of(produce(client, "__consumer_offsets", record())) == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_partitions_are_described_page_by_page(client: RawClient, unique: Unique) -> None:
    name = unique("pages")
    create(client, name, partitions=5)
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name=name)], response_partition_limit=2)
    seen: list[int] = []
    for _ in range(3):
        page = ask(client, DescribeTopicPartitionsResponse, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request)
        seen += [row.partition_index for row in page.topics[0].partitions]
        request.cursor = page.next_cursor
    assert seen == [0, 1, 2, 3, 4]
    assert request.cursor is None


# --- topic rules on records


def test_a_compacted_topic_requires_keys(client: RawClient, unique: Unique) -> None:
    name = unique("keys")
    create(client, name, cleanup_policy="compact")
    assert code_of(produce(client, name, record(key=None))) == ErrorCode.INVALID_RECORD
    assert code_of(produce(client, name, record())) == ErrorCode.NONE


def test_log_append_time_is_the_brokers_and_is_returned_to_the_producer(
    client: RawClient, unique: Unique
) -> None:
    name = unique("stamped")
    create(client, name, message_timestamp_type="LogAppendTime")
    answer = produce(client, name, record(time_ms=5))
    stamp_ms = answer.responses[0].partition_responses[0].log_append_time_ms
    assert stamp_ms > TIME_MS
    assert [row.timestamp for row in fetch(client, name)] == [stamp_ms]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_a_topics_own_codec_is_applied_to_produced_batches(
    client: RawClient, unique: Unique, codec: str
) -> None:
    name = unique("codec")
    create(client, name, compression_type=codec)
    assert (
        code_of(produce(client, name, record(b"x" * 500), record(b"y", offset=1), compression=1))
        == ErrorCode.NONE
    )
    assert [row.value for row in fetch(client, name)] == [b"x" * 500, b"y"]


def test_a_decompression_bomb_is_refused_by_a_topic_that_has_to_unpack_it(
    client: RawClient, unique: Unique
) -> None:
    for rule in ({"compression_type": "gzip"}, {"cleanup_policy": "compact"}):
        name = unique("bomb")
        create(client, name, **rule)
        bomb = record(b"\0" * 40_000_000)
        assert code_of(produce(client, name, bomb, compression=4)) == ErrorCode.MESSAGE_TOO_LARGE
        assert code_of(produce(client, name, record(), compression=4)) == ErrorCode.NONE


def test_a_codec_of_the_topics_own_does_not_lift_its_limit_on_size(client: RawClient, unique: Unique) -> None:
    name = unique("grown")
    create(client, name, compression_type="uncompressed", max_message_bytes="1000")
    grown = record(b"x" * 5000)
    assert code_of(produce(client, name, grown, compression=4)) == ErrorCode.MESSAGE_TOO_LARGE


def test_a_count_of_records_that_no_codec_could_pack_is_refused(client: RawClient, unique: Unique) -> None:
    name = unique("lie")
    create(client, name)
    batch = bytearray(build_batch([record()], compression=4))
    struct.pack_into(">i", batch, 57, 2**31 - 1)
    struct.pack_into(">i", batch, 23, 2**31 - 2)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    data = PartitionProduceData(index=0, records=batch)
    topics = [TopicProduceData(name=name, partition_data=[data])]
    request = ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=topics)
    answer = ask(client, ProduceResponse, ApiKey.PRODUCE, 9, request)
    assert code_of(answer) == ErrorCode.INVALID_RECORD


def test_timestamps_too_far_ahead_or_behind_are_refused(client: RawClient, unique: Unique) -> None:
    name = unique("times")
    create(client, name, message_timestamp_before_max_ms="1000", message_timestamp_after_max_ms="1000")
    assert code_of(produce(client, name, record(time_ms=TIME_MS))) == ErrorCode.INVALID_TIMESTAMP
    assert code_of(produce(client, name, record(time_ms=TIME_MS * 2))) == ErrorCode.INVALID_TIMESTAMP


def test_zstd_from_a_client_too_old_to_read_it_is_refused(client: RawClient, unique: Unique) -> None:
    name = unique("zstd")
    create(client, name)
    assert (
        code_of(produce(client, name, record(), version=6, compression=4))
        == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    )


def test_acks_all_is_refused_if_min_insync_replicas_exceeds_the_replicas(
    client: RawClient, unique: Unique
) -> None:
    name = unique("insync")
    create(client, name, min_insync_replicas="2")
    assert code_of(produce(client, name, record())) == ErrorCode.NOT_ENOUGH_REPLICAS


@pytest.mark.parametrize("version", [0, 1, 2])
def test_produce_versions_with_the_old_record_formats_are_answered_with_an_error(
    client: RawClient, unique: Unique, version: int
) -> None:
    name = unique("old")
    create(client, name)
    assert code_of(produce(client, name, record(), version=version)) == ErrorCode.UNSUPPORTED_VERSION


# --- idempotent producers


def test_a_repeated_batch_is_stored_once_and_answered_with_its_first_offset(
    client: RawClient, unique: Unique
) -> None:
    name = unique("once")
    create(client, name)
    answer = ask(client, InitProducerIdResponse, ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest())
    producer = {"producer_id": answer.producer_id, "producer_epoch": 0}
    first = produce(client, name, record(b"a"), base_sequence=0, **producer)
    produce(client, name, record(b"b"), base_sequence=1, **producer)
    again = produce(client, name, record(b"a"), base_sequence=0, **producer)
    assert code_of(again) == ErrorCode.NONE
    offsets = [row.responses[0].partition_responses[0].base_offset for row in (first, again)]
    assert offsets == [0, 0]
    gap = produce(client, name, record(b"d"), base_sequence=5, **producer)
    assert code_of(gap) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [row.value for row in fetch(client, name)] == [b"a", b"b"]


def test_sequences_are_remembered_by_a_broker_that_was_restarted(tmp_path: Path) -> None:
    producer = {"producer_id": 7, "producer_epoch": 0}
    with Broker(data_dir=tmp_path, http=None) as broker, RawClient(broker) as client:
        create(client, "t")
        produce(client, "t", record(b"a"), base_sequence=0, **producer)
    with Broker(data_dir=tmp_path, http=None) as broker, RawClient(broker) as client:
        again = produce(client, "t", record(b"a"), base_sequence=0, **producer)
        assert again.responses[0].partition_responses[0].base_offset == 0
        after = produce(client, "t", record(b"b"), base_sequence=1, **producer)
        assert after.responses[0].partition_responses[0].base_offset == 1
        gap = produce(client, "t", record(b"x"), base_sequence=9, **producer)
        assert code_of(gap) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_producer_ids_are_never_given_twice_not_even_after_a_restart(tmp_path: Path) -> None:
    seen: list[int] = []
    for _ in range(2):
        with Broker(data_dir=tmp_path, http=None) as broker, RawClient(broker) as client:
            for _ in range(3):
                answer = ask(
                    client, InitProducerIdResponse, ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest()
                )
                seen.append(answer.producer_id)
    assert len(set(seen)) == 6


# --- offsets and epochs


@pytest.mark.parametrize(
    ("timestamp", "offset"),
    [(-2, 0), (-1, 3), (-3, 1), (-4, 0), (-5, -1), (TIME_MS + 1, 1), (TIME_MS * 2, -1)],
)
def test_list_offsets_supports_every_special_timestamp(
    client: RawClient, unique: Unique, timestamp: int, offset: int
) -> None:
    name = unique("list")
    create(client, name)
    for time_ms in (TIME_MS, TIME_MS + 50, TIME_MS + 10):
        produce(client, name, record(time_ms=time_ms))
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=name, partitions=[wanted])])
    answer = ask(client, ListOffsetsResponse, ApiKey.LIST_OFFSETS, 9, request)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
    assert answer.topics[0].partitions[0].offset == offset


def test_the_leader_epoch_grows_with_every_start_and_old_epochs_end_where_the_next_began(
    tmp_path: Path,
) -> None:
    for _ in range(3):
        with Broker(data_dir=tmp_path, http=None) as broker, RawClient(broker) as client:
            create(client, "t")
            produce(client, "t", record())
    with Broker(data_dir=tmp_path, http=None) as broker, RawClient(broker) as client:
        ends = [end_of_epoch(client, epoch) for epoch in range(5)]
    assert ends == [(0, 1), (1, 2), (2, 3), (3, 3), (-1, -1)]


def end_of_epoch(client: RawClient, epoch: int) -> tuple[int, int]:
    wanted = OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=[wanted])])
    answer = ask(client, OffsetForLeaderEpochResponse, ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, request)
    row = answer.topics[0].partitions[0]
    return row.leader_epoch, row.end_offset


@pytest.mark.parametrize(("epoch", "code"), [(5, ErrorCode.UNKNOWN_LEADER_EPOCH), (-1, ErrorCode.NONE)])
def test_a_client_with_another_epoch_gets_an_epoch_error(
    client: RawClient, unique: Unique, epoch: int, code: ErrorCode
) -> None:
    name = unique("epoch")
    create(client, name)
    wanted = FetchPartition(partition=0, current_leader_epoch=epoch, partition_max_bytes=100)
    request = FetchRequest(max_wait_ms=0, topics=[FetchTopic(topic=name, partitions=[wanted])])
    answer = ask(client, FetchResponse, ApiKey.FETCH, 12, request)
    assert answer.responses[0].partitions[0].error_code == code


def test_offsets_of_an_unknown_group_are_minus_one_without_an_error(
    client: RawClient, unique: Unique
) -> None:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=unique("missing"), topics=None)])
    answer = ask(client, OffsetFetchResponse, ApiKey.OFFSET_FETCH, 8, request)
    assert answer.groups[0].error_code == ErrorCode.NONE
    assert answer.groups[0].topics == []


# --- configs and cluster


def test_an_empty_list_of_config_names_means_all(client: RawClient, unique: Unique) -> None:
    name = unique("configs")
    create(client, name)
    for names in (None, []):
        resource = DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=names)
        request = DescribeConfigsRequest(
            resources=[resource], include_synonyms=True, include_documentation=True
        )
        answer = ask(client, DescribeConfigsResponse, ApiKey.DESCRIBE_CONFIGS, 4, request)
        configs = {row.name: row for row in answer.results[0].configs}
        assert len(configs) > 25
        assert configs["retention.ms"].documentation
        assert configs["segment.bytes"].synonyms


def test_a_brokers_defaults_change_at_run_time_and_reach_its_topics(
    client: RawClient, unique: Unique
) -> None:
    name = unique("dynamic")
    create(client, name)
    assert alter_broker(client, "log.retention.ms", "12345") == ErrorCode.NONE
    resource = DescribeConfigsResource(
        resource_type=2, resource_name=name, configuration_keys=["retention.ms"]
    )
    request = DescribeConfigsRequest(resources=[resource])
    answer = ask(client, DescribeConfigsResponse, ApiKey.DESCRIBE_CONFIGS, 4, request)
    assert answer.results[0].configs[0].value == "12345"
    assert alter_broker(client, "log.retention.ms", None, operation=1) == ErrorCode.NONE
    assert alter_broker(client, "num.partitions", "7") == ErrorCode.INVALID_REQUEST
    assert alter_broker(client, "no.such.config", "7") == ErrorCode.INVALID_REQUEST


def alter_broker(client: RawClient, name: str, value: str | None, operation: int = 0) -> int:
    change = incremental.AlterableConfig(name=name, config_operation=operation, value=value)
    resource = incremental.AlterConfigsResource(resource_type=4, resource_name="1", configs=[change])
    request = incremental.IncrementalAlterConfigsRequest(resources=[resource])
    answer = ask(
        client,
        incremental.IncrementalAlterConfigsResponse,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        request,
    )
    return answer.responses[0].error_code


def test_alter_configs_replaces_all_set_configs(client: RawClient, unique: Unique) -> None:
    name = unique("replace")
    create(client, name, retention_ms="1000")
    configs = [plain.AlterableConfig(name="segment.bytes", value="2000000")]
    resource = plain.AlterConfigsResource(resource_type=2, resource_name=name, configs=configs)
    request = plain.AlterConfigsRequest(resources=[resource])
    answer = ask(client, plain.AlterConfigsResponse, ApiKey.ALTER_CONFIGS, 2, request)
    assert answer.responses[0].error_code == ErrorCode.NONE
    asked = DescribeConfigsResource(
        resource_type=2, resource_name=name, configuration_keys=["retention.ms", "segment.bytes"]
    )
    described = ask(
        client,
        DescribeConfigsResponse,
        ApiKey.DESCRIBE_CONFIGS,
        4,
        DescribeConfigsRequest(resources=[asked]),
    )
    values = {row.name: row.value for row in described.results[0].configs}
    assert values == {"retention.ms": "604800000", "segment.bytes": "2000000"}


def test_cluster_and_log_sizes_are_described(client: RawClient, unique: Unique) -> None:
    name = unique("sizes")
    create(client, name)
    produce(client, name, record())
    cluster = ask(client, DescribeClusterResponse, ApiKey.DESCRIBE_CLUSTER, 1, DescribeClusterRequest())
    assert [row.broker_id for row in cluster.brokers] == [1]
    assert cluster.cluster_id
    request = DescribeLogDirsRequest(topics=None)
    dirs = ask(client, DescribeLogDirsResponse, ApiKey.DESCRIBE_LOG_DIRS, 4, request)
    sizes = {topic.name: topic.partitions[0].partition_size for topic in dirs.results[0].topics}
    assert sizes[name] > 61
