"""Requests with very many rows are served in slices: other clients get their turns in between."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import Broker
from penstock.errors import ErrorCode, KafkaError
from penstock.kafka.handlers import offsets, produce, topics
from penstock.kafka.handlers.configs import MAX_CHANGES
from penstock.kafka.handlers.names import Names
from penstock.kafka.handlers.rows import ELEMENTS_ON_LOOP, SLICE_ROWS
from penstock.kafka.wire import ApiKey, Message
from penstock.kafka.wire.messages import alter_configs as plain
from penstock.kafka.wire.messages import alter_replica_log_dirs as moving
from penstock.kafka.wire.messages import alter_share_group_offsets as alter_share
from penstock.kafka.wire.messages import delete_groups as deleting
from penstock.kafka.wire.messages import (
    describe_groups,
    describe_producers,
    describe_quorum,
    list_offsets,
    share_group_describe,
)
from penstock.kafka.wire.messages import describe_share_group_offsets as describe_share
from penstock.kafka.wire.messages import incremental_alter_configs as incremental
from penstock.kafka.wire.messages import produce as producing
from tests.kafka.raw import RawClient
from tests.kafka.requests import ask, produce_request
from tests.kafka.server.test_limits import create

SLICES = 5


class Turns:
    """Counts the calls of a function in each turn of the broker's event loop."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._in_turn = 0
        self.calls = 0
        self.most_in_turn = 0

    def __call__(self, *args: Any) -> Any:
        if not self._in_turn:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._in_turn += 1
        self.calls += 1
        self.most_in_turn = max(self.most_in_turn, self._in_turn)
        return self._function(*args)

    def _next_turn(self) -> None:
        self._in_turn = 0


@pytest.fixture(scope="module")
def client() -> Iterator[RawClient]:
    with Broker(http=None) as broker, RawClient(broker) as client:
        assert create(client, "some") == ErrorCode.NONE
        yield client


def batches(count: int) -> producing.ProduceRequest:
    """So many batches for one partition, in one request."""
    request = produce_request("some", b"v")
    request.topic_data[0].partition_data *= count
    return request


def test_a_produce_of_many_batches_appends_them_in_slices_and_in_order(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns(produce._checked)
    monkeypatch.setattr(produce, "_checked", turns)
    count = SLICES * produce.SLICE_BATCHES
    answer = ask(client, ApiKey.PRODUCE, 9, batches(count), producing.ProduceResponse)
    rows = answer.responses[0].partition_responses
    first = rows[0].base_offset
    assert [row.base_offset for row in rows] == list(range(first, first + count))
    assert (turns.calls, turns.most_in_turn) == (count, produce.SLICE_BATCHES)


def test_a_later_produce_does_not_overtake_one_that_is_appended_in_slices(client: RawClient) -> None:
    client.request(ApiKey.PRODUCE, 9, batches(SLICES * produce.SLICE_BATCHES))
    client.request(ApiKey.PRODUCE, 9, batches(1))
    many, one = (client.answer(ApiKey.PRODUCE, 9)[1] for _ in range(2))
    assert isinstance(many, producing.ProduceResponse)
    assert isinstance(one, producing.ProduceResponse)
    last = many.responses[0].partition_responses[-1].base_offset
    assert one.responses[0].partition_responses[0].base_offset == last + 1


@pytest.mark.parametrize("names", [ELEMENTS_ON_LOOP, ELEMENTS_ON_LOOP + 1], ids=["few", "many"])
def test_a_request_of_very_many_elements_is_decoded_and_merged_off_the_event_loop(
    client: RawClient, monkeypatch: pytest.MonkeyPatch, names: int
) -> None:
    is_off_loop: list[bool] = []

    def noting(*args: Any) -> Any:
        is_off_loop.append(asyncio._get_running_loop() is None)
        return merge(*args)

    merge = Names.merge
    monkeypatch.setattr(Names, "merge", noting)
    request = deleting.DeleteGroupsRequest(groups_names=["missing"] * names)
    answer = ask(client, ApiKey.DELETE_GROUPS, 2, request, deleting.DeleteGroupsResponse)
    assert [row.group_id for row in answer.results] == ["missing"]
    assert is_off_loop == ([False] if names == ELEMENTS_ON_LOOP else [True, False])


def test_a_later_request_does_not_overtake_one_that_is_decoded_off_the_event_loop(client: RawClient) -> None:
    client.request(ApiKey.PRODUCE, 9, batches(ELEMENTS_ON_LOOP + 1))
    client.request(ApiKey.PRODUCE, 9, batches(1))
    many, one = (client.answer(ApiKey.PRODUCE, 9)[1] for _ in range(2))
    assert isinstance(many, producing.ProduceResponse)
    assert isinstance(one, producing.ProduceResponse)
    last = many.responses[0].partition_responses[-1].base_offset
    assert one.responses[0].partition_responses[0].base_offset == last + 1


MANY = SLICES * SLICE_ROWS
NAMES = [f"name-{number}" for number in range(MANY)]
REQUESTS: list[tuple[ApiKey, int, Message]] = [
    (
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        incremental.IncrementalAlterConfigsRequest(
            resources=[incremental.AlterConfigsResource(resource_type=2, resource_name="some")] * MANY
        ),
    ),
    (
        ApiKey.ALTER_CONFIGS,
        2,
        plain.AlterConfigsRequest(
            resources=[plain.AlterConfigsResource(resource_type=2, resource_name="some")] * MANY
        ),
    ),
    (ApiKey.DELETE_GROUPS, 2, deleting.DeleteGroupsRequest(groups_names=NAMES)),
    (ApiKey.DESCRIBE_GROUPS, 6, describe_groups.DescribeGroupsRequest(groups=NAMES)),
    (ApiKey.SHARE_GROUP_DESCRIBE, 1, share_group_describe.ShareGroupDescribeRequest(group_ids=NAMES)),
    (
        ApiKey.DESCRIBE_PRODUCERS,
        0,
        describe_producers.DescribeProducersRequest(
            topics=[describe_producers.TopicRequest(name="missing", partition_indexes=list(range(MANY)))]
        ),
    ),
    (
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        1,
        describe_share.DescribeShareGroupOffsetsRequest(
            groups=[describe_share.DescribeShareGroupOffsetsRequestGroup(group_id=name) for name in NAMES]
        ),
    ),
    (
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        0,
        alter_share.AlterShareGroupOffsetsRequest(
            group_id="g",
            topics=[
                alter_share.AlterShareGroupOffsetsRequestTopic(
                    topic_name="missing",
                    partitions=[
                        alter_share.AlterShareGroupOffsetsRequestPartition(partition_index=index)
                        for index in range(MANY)
                    ],
                )
            ],
        ),
    ),
    (
        ApiKey.DESCRIBE_QUORUM,
        2,
        describe_quorum.DescribeQuorumRequest(
            topics=[
                describe_quorum.RequestTopicData(
                    topic_name="some",
                    partitions=[describe_quorum.RequestPartitionData(partition_index=0)] * MANY,
                )
            ]
        ),
    ),
    (
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        2,
        moving.AlterReplicaLogDirsRequest(
            dirs=[
                moving.AlterReplicaLogDir(
                    path="/", topics=[moving.AlterReplicaLogDirTopic(name="some", partitions=[0] * MANY)]
                )
            ]
        ),
    ),
]


@pytest.mark.parametrize(
    ("key", "version", "request_of_it"),
    REQUESTS,
    ids=lambda value: value.name if isinstance(value, ApiKey) else "",
)
def test_a_request_of_many_rows_that_are_refused_is_answered_in_slices(
    client: RawClient, monkeypatch: pytest.MonkeyPatch, key: ApiKey, version: int, request_of_it: Message
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noting(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", noting)
    client.call(key, version, request_of_it)
    assert pauses.count(0) >= SLICES


def test_more_changes_of_one_resource_than_there_are_configs_are_refused(client: RawClient) -> None:
    changes = [incremental.AlterableConfig(name=name, value="1") for name in NAMES]
    resource = incremental.AlterConfigsResource(resource_type=2, resource_name="some", configs=changes)
    request = incremental.IncrementalAlterConfigsRequest(resources=[resource])
    answer = ask(
        client,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        request,
        incremental.IncrementalAlterConfigsResponse,
    )
    assert answer.responses[0].error_code == ErrorCode.INVALID_REQUEST
    assert str(MAX_CHANGES) in (answer.responses[0].error_message or "")


def test_leaders_are_looked_up_for_the_first_refusals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[int] = []

    class CountingHints:
        def __init__(self, context: object) -> None: ...

        def find(self, code: int, name: str, topic_id: object, index: int) -> None:
            looked_up.append(index)

        def leaders(self) -> list[object]:
            return []

    monkeypatch.setattr(produce, "Hints", CountingHints)
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    rows = [producing.PartitionProduceResponse(index=index, error_code=code) for index in range(5_000)]
    response = producing.ProduceResponse(responses=[producing.TopicProduceResponse(partition_responses=rows)])
    context: Any = None
    assert produce._with_hints(context, response) is response
    assert looked_up == list(range(produce.HINTED_ROWS))


def test_refusals_that_are_kept_for_the_response_hold_no_frames() -> None:
    nothing: Any = None
    change = topics._Change(nothing, nothing)
    with pytest.raises(KafkaError) as refused:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    change.refuse(0, refused.value)
    assert change.errors[0].__traceback__ is None


def test_list_offsets_looks_partitions_up_in_slices(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns(offsets._unflushed)
    monkeypatch.setattr(offsets, "_unflushed", turns)
    answer = ask(client, ApiKey.LIST_OFFSETS, 5, listing(range(SLICES * SLICE_ROWS)), Listed)
    assert [row.error_code for row in answer.topics[0].partitions[:2]] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert (turns.calls, turns.most_in_turn) == (SLICES, 1)


def test_list_offsets_does_not_look_up_partitions_that_it_refuses(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(offsets, "_unflushed", lambda context, rows: asked.extend(rows) or iter(()))
    ask(client, ApiKey.LIST_OFFSETS, 5, listing([7] * 100), Listed)
    assert asked == []


Listed = list_offsets.ListOffsetsResponse


def listing(indexes: Any) -> list_offsets.ListOffsetsRequest:
    rows = [list_offsets.ListOffsetsPartition(partition_index=index, timestamp=-1) for index in indexes]
    topics = [list_offsets.ListOffsetsTopic(name="some", partitions=rows)]
    return list_offsets.ListOffsetsRequest(replica_id=-1, topics=topics)
