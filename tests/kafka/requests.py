"""Requests of a raw client, each about one partition, as one call."""

import time
from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar

from penstock.batch import Record, build_batch
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey, Message
from penstock.kafka.wire.messages import alter_partition_reassignments as moving
from penstock.kafka.wire.messages import create_topics, fetch, list_offsets, metadata, produce
from penstock.kafka.wire.messages import offset_for_leader_epoch as epochs
from tests.kafka.raw import PATIENCE_SECONDS, RawClient

Response = TypeVar("Response", bound=Message)
T = TypeVar("T")

LATEST, EARLIEST = -1, -2
CONSUMER = -1
ELECTION_SECONDS = 60.0
"""Far longer than the nodes of a test need to elect a leader."""
NOT_NOW = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
"""Errors of a node that does not lead, or cannot be sure at the moment that it does."""


def ask(client: RawClient, key: ApiKey, version: int, request: Message, response: type[Response]) -> Response:
    answer = client.call(key, version, request)
    assert isinstance(answer, response)
    return answer


def until_served(question: Callable[[], T], code_of: Callable[[T], Any] = attrgetter("error_code")) -> T:
    """The first answer of a node that can be sure to lead, or the last of one that never is.

    After a machine has stalled, a leader's lease is over until its followers have answered once more. Until then it
    refuses as a follower does, and clients ask again."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while code_of(answer := question()) in NOT_NOW and time.monotonic() < deadline:
        time.sleep(0.02)
    return answer


def produce_request(
    topic: str, value: bytes, *, acks: int = -1, timeout_ms: int = 10_000
) -> produce.ProduceRequest:
    data = produce.PartitionProduceData(index=0, records=build_batch([Record(0, 1, b"k", value, ())]))
    return produce.ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[produce.TopicProduceData(name=topic, partition_data=[data])],
    )


def write(
    client: RawClient,
    topic: str,
    value: bytes = b"v",
    *,
    acks: int = -1,
    timeout_ms: int = 10_000,
    once: bool = False,
) -> produce.PartitionProduceResponse:
    """`once`, here and below: a node that does not lead is not asked again."""
    request = produce_request(topic, value, acks=acks, timeout_ms=timeout_ms)

    def answer() -> produce.PartitionProduceResponse:
        found = ask(client, ApiKey.PRODUCE, 9, request, produce.ProduceResponse)
        return found.responses[0].partition_responses[0]

    return answer() if once else until_served(answer)


def fetch_request(
    topic: str, offset: int, *, epoch: int = -1, replica_id: int = CONSUMER, max_wait_ms: int = 0
) -> fetch.FetchRequest:
    wanted = fetch.FetchPartition(
        partition=0, current_leader_epoch=epoch, fetch_offset=offset, partition_max_bytes=1_000_000
    )
    return fetch.FetchRequest(
        replica_id=replica_id,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        session_epoch=-1,
        topics=[fetch.FetchTopic(topic=topic, partitions=[wanted])],
    )


def read(
    client: RawClient, topic: str, offset: int = 0, *, epoch: int = -1, once: bool = False
) -> fetch.PartitionData:
    request = fetch_request(topic, offset, epoch=epoch)

    def answer() -> fetch.PartitionData:
        found = ask(client, ApiKey.FETCH, 12, request, fetch.FetchResponse)
        return found.responses[0].partitions[0]

    return answer() if once else until_served(answer)


def offset_at(
    client: RawClient,
    topic: str,
    timestamp: int = LATEST,
    *,
    epoch: int = -1,
    version: int = 7,
    once: bool = False,
) -> list_offsets.ListOffsetsPartitionResponse:
    wanted = list_offsets.ListOffsetsPartition(
        partition_index=0, current_leader_epoch=epoch, timestamp=timestamp
    )
    request = list_offsets.ListOffsetsRequest(
        replica_id=CONSUMER, topics=[list_offsets.ListOffsetsTopic(name=topic, partitions=[wanted])]
    )

    def answer() -> list_offsets.ListOffsetsPartitionResponse:
        found = ask(client, ApiKey.LIST_OFFSETS, version, request, list_offsets.ListOffsetsResponse)
        return found.topics[0].partitions[0]

    return answer() if once else until_served(answer)


def end_of_epoch(
    client: RawClient, topic: str, epoch: int, *, current: int = -1, once: bool = False
) -> epochs.EpochEndOffset:
    wanted = epochs.OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
    request = epochs.OffsetForLeaderEpochRequest(
        topics=[epochs.OffsetForLeaderTopic(topic=topic, partitions=[wanted])]
    )
    key = ApiKey.OFFSET_FOR_LEADER_EPOCH

    def answer() -> epochs.EpochEndOffset:
        found = ask(client, key, 4, request, epochs.OffsetForLeaderEpochResponse)
        return found.topics[0].partitions[0]

    return answer() if once else until_served(answer)


def describe(client: RawClient, topic: str) -> metadata.MetadataResponsePartition:
    request = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=topic)])
    answer = ask(client, ApiKey.METADATA, 8, request, metadata.MetadataResponse)
    return answer.topics[0].partitions[0]


def create(
    client: RawClient,
    topic: str,
    *,
    partitions: int = 1,
    replicas: int = 3,
    once: bool = False,
    **configs: str,
) -> create_topics.CreatableTopicResult:
    """Configs are written with underscores for their dots."""
    wish = create_topics.CreatableTopic(
        name=topic,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[
            create_topics.CreatableTopicConfig(name=name.replace("_", "."), value=value)
            for name, value in configs.items()
        ],
    )
    request = create_topics.CreateTopicsRequest(topics=[wish], timeout_ms=30_000)
    made = ask(client, ApiKey.CREATE_TOPICS, 5, request, create_topics.CreateTopicsResponse).topics[0]
    deadline = time.monotonic() + ELECTION_SECONDS
    while not once and made.error_code == ErrorCode.NOT_CONTROLLER and time.monotonic() < deadline:
        # On a busy machine the controller may change meanwhile. Clients retry, and may find that the topic exists.
        time.sleep(0.1)
        made = ask(client, ApiKey.CREATE_TOPICS, 5, request, create_topics.CreateTopicsResponse).topics[0]
        if made.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
            made.error_code, made.error_message = ErrorCode.NONE, None
    return made


def reassign(client: RawClient, topic: str, replicas: list[int] | None, *, partition: int = 0) -> int:
    """The answer's error code. None cancels."""
    row = moving.ReassignablePartition(partition_index=partition, replicas=replicas)
    request = moving.AlterPartitionReassignmentsRequest(
        topics=[moving.ReassignableTopic(name=topic, partitions=[row])], timeout_ms=10_000
    )
    key = ApiKey.ALTER_PARTITION_REASSIGNMENTS
    answer = ask(client, key, 1, request, moving.AlterPartitionReassignmentsResponse)
    return answer.responses[0].partitions[0].error_code
