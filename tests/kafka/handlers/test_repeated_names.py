"""Names that a request repeats are answered once, and the rows of a response are bounded and built in slices."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from penstock import Broker
from penstock.config import Limits
from penstock.errors import ErrorCode, KafkaError
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.names import Names
from penstock.kafka.handlers.registry import advertised, find_api
from penstock.kafka.handlers.rows import ROW_BYTES, SLICE_ROWS, ResponseRows, count_rows, encode_off_loop
from penstock.kafka.wire import ApiKey, Message, RequestHeader, encode_response
from penstock.kafka.wire.apis import request_class
from penstock.kafka.wire.messages import (
    create_topics,
    describe_configs,
    describe_groups,
    fetch,
    find_coordinator,
    incremental_alter_configs,
    list_offsets,
    metadata,
    offset_fetch,
)
from penstock.kafka.wire.schema import ARRAY
from penstock.node.limits.memory import MemoryBudget, Reservation, unlimited
from tests.kafka.raw import RawClient
from tests.kafka.requests import ask
from tests.kafka.server.test_limits import create

TIMES = 5_000
PARTITIONS = 20
MOST_ROWS = 100
TOPIC_RESOURCE = 2

REFUSED_BY_HANDLERS = {
    ApiKey.LIST_OFFSETS,
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.ALTER_CONFIGS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
}
NOT_ANSWERED_BY_NAME = {
    ApiKey.PRODUCE: "each element carries records",
    ApiKey.JOIN_GROUP: "protocols, bounded by limits.max_group_protocols",
    ApiKey.LEAVE_GROUP: "each member leaves once, and the second time is an error",
    ApiKey.SYNC_GROUP: "assignments become a dict",
    ApiKey.ALTER_REPLICA_LOG_DIRS: "each is refused",
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: "each is a change",
    ApiKey.DESCRIBE_QUORUM: "answers for one topic",
    ApiKey.LIST_CONFIG_RESOURCES: "types become a set",
    ApiKey.CREATE_ACLS: "rules become a set; bounded by limits.max_acls",
    ApiKey.DELETE_ACLS: "filters, at most MAX_FILTERS",
    ApiKey.DESCRIBE_CLIENT_QUOTAS: "a type twice is an error",
    ApiKey.ALTER_CLIENT_QUOTAS: "entities, at most MAX_ENTRIES; one quota twice is an error",
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: "changes, at most MAX_CHANGES; one mechanism twice is an error",
    ApiKey.SHARE_FETCH: "acknowledgements; partitions are bounded by the session",
    ApiKey.SHARE_ACKNOWLEDGE: "acknowledgements",
}


@pytest.fixture(scope="module")
def client() -> Iterator[RawClient]:
    with (
        Broker(http=None, limits=Limits(max_response_rows=MOST_ROWS)) as broker,
        RawClient(broker) as client,
    ):
        for name in ("some", "other"):
            assert create(client, name, PARTITIONS) == ErrorCode.NONE
        assert create(client, "wide", MOST_ROWS + 1) == ErrorCode.NONE
        yield client


def test_every_api_with_a_list_of_names_states_how_repeated_names_are_handled() -> None:
    for row in advertised():
        key = ApiKey(row.api_key)
        api = find_api(key)
        assert api is not None
        has_lists = any(field.kind == ARRAY for field in request_class(key).SCHEMA)
        handled = bool(api.names) + (key in REFUSED_BY_HANDLERS) + (key in NOT_ANSWERED_BY_NAME)
        assert handled == has_lists, f"{key.name}: names of its lists"


def test_the_lists_of_the_table_are_in_the_requests() -> None:
    for row in advertised():
        api = find_api(row.api_key)
        assert api is not None
        for names in api.names:
            check_fields(names, request_class(row.api_key))


def check_fields(names: Names, cls: type[Message]) -> None:
    field = next(one for one in cls.SCHEMA if one.name == names.field)
    if not names.key:
        assert isinstance(field.of, str), f"{cls.__name__}.{names.field} has structs: state their key"
        return
    assert set(names.key) <= {one.name for one in field.struct.SCHEMA}
    if names.inner is not None:
        check_fields(names.inner, field.struct)


def test_a_topic_that_metadata_names_often_is_answered_once(client: RawClient) -> None:
    names = ["some", "other", *["some"] * TIMES, *["missing"] * TIMES]
    topics = [metadata.MetadataRequestTopic(name=name) for name in names]
    request = metadata.MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    answer = ask(client, ApiKey.METADATA, 12, request, metadata.MetadataResponse)
    assert [topic.name for topic in answer.topics] == ["some", "other", "missing"]
    assert [len(topic.partitions) for topic in answer.topics] == [PARTITIONS, PARTITIONS, 0]


def test_a_topic_whose_partitions_exceed_the_limit_is_refused_and_the_others_answered(
    client: RawClient,
) -> None:
    topics = [metadata.MetadataRequestTopic(name=name) for name in ("wide", "some")]
    answer = ask(
        client, ApiKey.METADATA, 12, metadata.MetadataRequest(topics=topics), metadata.MetadataResponse
    )
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert [len(topic.partitions) for topic in answer.topics] == [0, PARTITIONS]


def test_a_partition_that_fetch_names_often_is_read_once_from_the_last_position(client: RawClient) -> None:
    topics = [
        fetch.FetchTopic(topic="some", partitions=[fetch.FetchPartition(partition=0, fetch_offset=offset)])
        for offset in (*[7] * TIMES, 0)
    ]
    request = fetch.FetchRequest(max_wait_ms=0, min_bytes=0, session_epoch=-1, topics=topics)
    answer = ask(client, ApiKey.FETCH, 11, request, fetch.FetchResponse)
    rows = [(row.partition_index, row.error_code) for topic in answer.responses for row in topic.partitions]
    assert rows == [(0, ErrorCode.NONE)]  # offset 7 is out of range


def test_list_offsets_refuses_a_partition_that_is_named_twice_as_kafka_does(client: RawClient) -> None:
    indexes = (0, 1, 0)
    partitions = [list_offsets.ListOffsetsPartition(partition_index=one, timestamp=-1) for one in indexes]
    topics = [list_offsets.ListOffsetsTopic(name="some", partitions=partitions)]
    answer = ask(
        client,
        ApiKey.LIST_OFFSETS,
        5,
        list_offsets.ListOffsetsRequest(replica_id=-1, topics=topics),
        list_offsets.ListOffsetsResponse,
    )
    codes = [row.error_code for row in answer.topics[0].partitions]
    assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE, ErrorCode.INVALID_REQUEST]


def test_groups_that_are_named_often_are_answered_once(client: RawClient) -> None:
    keys = ["g", "h", *["g"] * TIMES]
    found = ask(
        client,
        ApiKey.FIND_COORDINATOR,
        4,
        find_coordinator.FindCoordinatorRequest(coordinator_keys=keys),
        find_coordinator.FindCoordinatorResponse,
    )
    assert [row.key for row in found.coordinators] == ["g", "h"]
    described = ask(
        client,
        ApiKey.DESCRIBE_GROUPS,
        5,
        describe_groups.DescribeGroupsRequest(groups=keys),
        describe_groups.DescribeGroupsResponse,
    )
    assert [row.group_id for row in described.groups] == ["g", "h"]
    topic = offset_fetch.OffsetFetchRequestTopics(name="some", partition_indexes=[0, 1, 0])
    groups = [offset_fetch.OffsetFetchRequestGroup(group_id=one, topics=[topic]) for one in keys]
    fetched = ask(
        client,
        ApiKey.OFFSET_FETCH,
        8,
        offset_fetch.OffsetFetchRequest(groups=groups),
        offset_fetch.OffsetFetchResponse,
    )
    assert [row.group_id for row in fetched.groups] == ["g", "h"]
    assert [row.partition_index for row in fetched.groups[0].topics[0].partitions] == [0, 1]


def test_described_configs_are_merged_and_bounded(client: RawClient) -> None:
    resources = [
        describe_configs.DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=keys
        )
        for name, keys in (("some", ["cleanup.policy"]), ("some", ["retention.ms"]), *[("other", None)] * 99)
    ]
    answer = ask(
        client,
        ApiKey.DESCRIBE_CONFIGS,
        4,
        describe_configs.DescribeConfigsRequest(resources=resources),
        describe_configs.DescribeConfigsResponse,
    )
    assert [row.resource_name for row in answer.results] == ["some", "other"]
    assert {row.name for row in answer.results[0].configs} == {"cleanup.policy", "retention.ms"}
    many = [
        describe_configs.DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=None
        )
        for name in ("some", "other", "wide", "__consumer_offsets")
    ]
    answer = ask(
        client,
        ApiKey.DESCRIBE_CONFIGS,
        4,
        describe_configs.DescribeConfigsRequest(resources=many),
        describe_configs.DescribeConfigsResponse,
    )
    assert sum(len(row.configs) for row in answer.results) <= MOST_ROWS
    refused = [row for row in answer.results if row.error_code == ErrorCode.INVALID_REQUEST]
    assert refused
    assert "limits.max_response_rows" in (refused[0].error_message or "")


def test_a_resource_that_is_altered_twice_in_one_request_is_refused(client: RawClient) -> None:
    change = incremental_alter_configs.AlterableConfig(name="retention.ms", config_operation=0, value="5")
    resources = [
        incremental_alter_configs.AlterConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=name, configs=[change]
        )
        for name in ("some", "other", "some")
    ]
    answer = ask(
        client,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        incremental_alter_configs.IncrementalAlterConfigsRequest(resources=resources),
        incremental_alter_configs.IncrementalAlterConfigsResponse,
    )
    codes = [row.error_code for row in answer.responses]
    assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE, ErrorCode.INVALID_REQUEST]


def rows_of_at_most(most: int, memory: Reservation | None = None) -> ResponseRows:
    config = SimpleNamespace(limits=Limits(max_response_rows=most))
    context = SimpleNamespace(node=SimpleNamespace(config=config), memory=memory or unlimited())
    return ResponseRows(cast(RequestContext, context))


def test_only_a_response_of_more_than_one_slice_waits_for_memory() -> None:
    async def run() -> None:
        budget = MemoryBudget("limits.max_client_memory_bytes", 1 << 30)
        holder, memory = budget.reserve(1 << 30), budget.reserve()
        rows = rows_of_at_most(10 * SLICE_ROWS, memory)
        assert len(await rows.build(str, range(SLICE_ROWS - 1))) == SLICE_ROWS - 1
        building = asyncio.ensure_future(rows.build(str, range(5 * SLICE_ROWS)))
        while not budget.first_turns:
            await asyncio.sleep(0)
        assert memory.bytes == 0
        holder.release()
        assert len(await building) == 5 * SLICE_ROWS
        assert memory.bytes == budget.used == 10 * SLICE_ROWS * ROW_BYTES

    asyncio.run(run())


def test_rows_are_built_in_slices_that_let_others_run() -> None:
    built: list[int] = []
    seen_by_others: list[int] = []

    async def look() -> None:
        while len(built) < 4 * SLICE_ROWS:
            seen_by_others.append(len(built))
            await asyncio.sleep(0)

    async def run() -> None:
        other = asyncio.create_task(look())
        await rows_of_at_most(10 * SLICE_ROWS).build(built.append, range(4 * SLICE_ROWS))
        await other

    asyncio.run(run())
    assert {SLICE_ROWS, 2 * SLICE_ROWS, 3 * SLICE_ROWS} <= set(seen_by_others)


def test_no_row_is_built_if_not_all_have_room() -> None:
    built: list[int] = []
    rows = rows_of_at_most(10)
    with pytest.raises(KafkaError, match="max_response_rows=10") as refused:
        asyncio.run(rows.build(built.append, range(11)))
    assert refused.value.code == ErrorCode.INVALID_REQUEST
    assert not built
    asyncio.run(rows.build(built.append, range(10)))
    assert len(built) == 10


def test_a_large_response_is_encoded_as_a_small_one_is() -> None:
    partitions = [metadata.MetadataResponsePartition(partition_index=one) for one in range(SLICE_ROWS)]
    topic = metadata.MetadataResponseTopic(name="t", partitions=partitions)
    response = metadata.MetadataResponse(topics=[topic])
    assert count_rows(response) == SLICE_ROWS + 1
    header = RequestHeader(ApiKey.METADATA, 9, 5, None, 0)
    assert asyncio.run(encode_off_loop(header, response)) == encode_response(ApiKey.METADATA, 9, 5, response)


def test_topics_whose_configs_have_no_room_in_the_response_are_created_without_them(
    client: RawClient,
) -> None:
    names = [f"roomy-{number}" for number in range(4)]
    topics = [
        create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names
    ]
    request = create_topics.CreateTopicsRequest(topics=topics)
    answer = ask(client, ApiKey.CREATE_TOPICS, 7, request, create_topics.CreateTopicsResponse)
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.NONE] * 4
    described = [topic.configs is not None for topic in answer.topics]
    assert described == sorted(described, reverse=True)
    assert 0 < sum(len(topic.configs or ()) for topic in answer.topics) <= MOST_ROWS
    assert answer.topics[-1].topic_config_error_code == ErrorCode.INVALID_REQUEST
