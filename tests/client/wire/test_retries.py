"""Which errors are retried, which are sent to another broker, and which are final, with a scripted broker."""

import pytest

from penstock.client import Garbled, Refused, Unreachable
from penstock.client.wire import LATEST, Cluster, FoundOffset
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey, Message
from penstock.kafka.wire.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from penstock.kafka.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from penstock.kafka.wire.messages.init_producer_id import InitProducerIdResponse
from penstock.kafka.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.kafka.wire.messages.metadata import MetadataResponse
from penstock.kafka.wire.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from penstock.kafka.wire.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from penstock.types import TopicPartition
from tests.client.wire.conftest import Connect
from tests.client.wire.fake import (
    HANG_UP,
    NODE_ID,
    SILENCE,
    TOPIC,
    Answer,
    FakeBroker,
    Raw,
    Request,
    in_turn,
    versions,
)

PLACE = TopicPartition(TOPIC, 0)


def latest(offset: int = 0, code: int = 0, partition: int = 0) -> Message:
    row = ListOffsetsPartitionResponse(partition_index=partition, error_code=code, offset=offset)
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=TOPIC, partitions=[row])])


def committed_as(code: int) -> Message:
    row = OffsetCommitResponsePartition(partition_index=0, error_code=code)
    return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name=TOPIC, partitions=[row])])


# --- leaders


@pytest.mark.parametrize(
    "trouble",
    [
        latest(code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        latest(code=ErrorCode.FENCED_LEADER_EPOCH),
        latest(code=ErrorCode.OFFSET_NOT_AVAILABLE),
        HANG_UP,
        Raw(b"\0\0\1\0half"),
        SILENCE,
    ],
    ids=["not the leader", "fenced", "not available", "hang-up", "half an answer", "silence"],
)
def test_a_transient_error_is_retried_after_a_metadata_refresh(connect: Connect, trouble: Answer) -> None:
    with FakeBroker({ApiKey.LIST_OFFSETS: in_turn(trouble, latest(42))}) as fake:
        cluster = connect(fake.address, request_timeout_ms=2_000 if trouble is SILENCE else 60_000)
        assert cluster.offsets({PLACE: LATEST}) == {PLACE: FoundOffset(42, -1)}
        assert len(fake.asked(ApiKey.METADATA)) == 2
        assert len(fake.asked(ApiKey.LIST_OFFSETS)) == 2


def test_a_partition_without_a_leader_is_waited_for(connect: Connect) -> None:
    with FakeBroker() as fake:
        fake.teach(
            ApiKey.METADATA, in_turn(fake.metadata(leader=-1), fake.metadata(leader=-1), fake.metadata())
        )
        assert connect(fake.address).leader_of(PLACE) == NODE_ID
        assert len(fake.asked(ApiKey.METADATA)) == 3


def test_a_leader_that_moves_is_followed(connect: Connect) -> None:
    with FakeBroker({ApiKey.LIST_OFFSETS: in_turn(latest(42))}) as new, FakeBroker() as old:
        old.teach(ApiKey.METADATA, in_turn(old.metadata(), old.metadata(port=new.port)))
        old.teach(ApiKey.LIST_OFFSETS, in_turn(latest(code=ErrorCode.NOT_LEADER_OR_FOLLOWER)))
        assert connect(old.address).offsets({PLACE: LATEST})[PLACE].offset == 42
        assert len(new.asked(ApiKey.LIST_OFFSETS)) == 1


def test_a_lasting_failure_is_reported_with_the_attempts(connect: Connect) -> None:
    with FakeBroker({ApiKey.LIST_OFFSETS: in_turn(latest(code=ErrorCode.NOT_LEADER_OR_FOLLOWER))}) as fake:
        cluster = connect(fake.address, retry_for_ms=40)
        with pytest.raises(
            Refused, match=r"fake-0: NOT_LEADER.*\(tried (?:once|\d+ times) in \d+.\d s; retry_for_ms=40\)"
        ):
            cluster.offsets({PLACE: LATEST})


def test_a_final_error_is_not_retried(connect: Connect) -> None:
    with FakeBroker(
        {ApiKey.LIST_OFFSETS: in_turn(latest(code=ErrorCode.TOPIC_AUTHORIZATION_FAILED))}
    ) as fake:
        with pytest.raises(Refused, match="TOPIC_AUTHORIZATION_FAILED"):
            connect(fake.address).offsets({PLACE: LATEST})
        assert len(fake.asked(ApiKey.LIST_OFFSETS)) == 1


def test_an_answer_about_another_partition_is_garbled(connect: Connect) -> None:
    wrong = in_turn(latest(42, partition=1))
    with FakeBroker({ApiKey.LIST_OFFSETS: wrong}) as fake, pytest.raises(Garbled, match="other partitions"):
        connect(fake.address).offsets({PLACE: LATEST})


def test_a_missing_topic_is_retried_for_less_time_than_a_missing_leader(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "penstock.client.retriable_codes._RETRY_FOR_MS", {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 20}
    )
    with (
        FakeBroker({ApiKey.METADATA: in_turn(MetadataResponse())}) as fake,
        pytest.raises(Refused, match=r"no such topic \(tried (?:once|\d+ times) in \d+.\d s"),
    ):
        connect(fake.address, retry_for_ms=3_600_000).leader_of(PLACE)


def test_a_new_topic_that_one_broker_does_not_know_yet_is_waited_for(connect: Connect) -> None:
    with FakeBroker() as fake:
        fake.teach(ApiKey.METADATA, in_turn(MetadataResponse(), fake.metadata()))
        assert connect(fake.address).leader_of(PLACE) == NODE_ID


# --- metadata


def test_metadata_is_asked_without_creating_topics(connect: Connect) -> None:
    with FakeBroker() as fake:
        connect(fake.address).topics([TOPIC])
        request = fake.asked(ApiKey.METADATA)[0]
        assert not request.message.allow_auto_topic_creation  # type: ignore[attr-defined]


def test_a_broker_too_old_to_ask_without_creating_is_refused(connect: Connect) -> None:
    old = versions(metadata=(0, 3))
    told = pytest.raises(Refused, match=r"METADATA.*versions 0 to 3, this client 4")
    with FakeBroker({ApiKey.API_VERSIONS: lambda _: old}) as fake, told:
        connect(fake.address).topics([TOPIC])


def test_metadata_errors_are_retried_or_raised(connect: Connect) -> None:
    with FakeBroker() as fake:
        passing, final = fake.metadata(), fake.metadata()
        passing.topics[0].error_code = ErrorCode.LEADER_NOT_AVAILABLE
        final.topics[0].error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        fake.teach(ApiKey.METADATA, in_turn(passing, fake.metadata(), final, MetadataResponse(error_code=-1)))
        cluster = connect(fake.address)
        assert list(cluster.topics([TOPIC])) == [TOPIC]
        with pytest.raises(Refused, match=f"'{TOPIC}': TOPIC_AUTHORIZATION_FAILED"):
            cluster.topics([TOPIC])
        with pytest.raises(Refused, match="UNKNOWN_SERVER_ERROR"):
            cluster.topics([TOPIC])


def test_unreachable_servers_are_reported_with_all_addresses(connect: Connect) -> None:
    with FakeBroker({ApiKey.API_VERSIONS: in_turn(HANG_UP)}) as fake:
        cluster = connect(f"{fake.address},127.0.0.1:1", retry_for_ms=30)
        with pytest.raises(Unreachable, match=r"no broker answers.*tried (?:once|\d+ times)") as lost:
            cluster.topics()
        assert fake.address in str(lost.value)
        assert "127.0.0.1:1: Connection refused" in str(lost.value)


def test_a_name_that_does_not_exist_is_not_tried_again(connect: Connect) -> None:
    with pytest.raises(Unreachable, match="cannot be resolved") as lost:
        connect("no-such-host.invalid:9092", retry_for_ms=60_000).topics()
    assert "tried" not in str(lost.value)


def test_another_service_at_the_port_is_reported_at_once(connect: Connect) -> None:
    with FakeBroker({ApiKey.API_VERSIONS: in_turn(Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n"))}) as fake:
        with pytest.raises(Garbled, match="another service"):
            connect(fake.address).topics()
        assert fake.connections == 1


# --- coordinators


def coordinator(fake: FakeBroker, code: int = 0) -> Message:
    """Both shapes of the answer; the codec picks what the version has."""
    here = Coordinator(key="g", node_id=NODE_ID, host="127.0.0.1", port=fake.port, error_code=code)
    return FindCoordinatorResponse(
        node_id=NODE_ID, host="127.0.0.1", port=fake.port, error_code=code, coordinators=[here]
    )


def test_a_coordinator_that_moves_or_loads_is_found_again(connect: Connect) -> None:
    with FakeBroker() as fake:
        fake.teach(
            ApiKey.FIND_COORDINATOR,
            in_turn(coordinator(fake, ErrorCode.COORDINATOR_NOT_AVAILABLE), coordinator(fake)),
        )
        trouble = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NONE)
        fake.teach(ApiKey.OFFSET_COMMIT, in_turn(*map(committed_as, trouble)))
        connect(fake.address).commit("g", {PLACE: 1})
        assert len(fake.asked(ApiKey.FIND_COORDINATOR)) == 4
        assert len(fake.asked(ApiKey.OFFSET_COMMIT)) == 3


def test_a_group_with_members_refuses_commits_from_outside(connect: Connect) -> None:
    with FakeBroker() as fake:
        fake.teach(ApiKey.FIND_COORDINATOR, in_turn(coordinator(fake)))
        fake.teach(ApiKey.OFFSET_COMMIT, in_turn(committed_as(ErrorCode.UNKNOWN_MEMBER_ID)))
        with pytest.raises(Refused, match=r"fake-0 for group 'g': UNKNOWN_MEMBER_ID"):
            connect(fake.address).commit("g", {PLACE: 1})
        assert len(fake.asked(ApiKey.OFFSET_COMMIT)) == 1


@pytest.mark.parametrize(("first", "used"), [(2, 4), (5, 9)], ids=["can expire", "cannot"])
def test_a_commit_that_expires_uses_a_version_that_can_say_so_if_there_is_one(
    connect: Connect, first: int, used: int
) -> None:
    with FakeBroker({ApiKey.API_VERSIONS: lambda _: versions(offset_commit=(first, 9))}) as fake:
        fake.teach(ApiKey.FIND_COORDINATOR, in_turn(coordinator(fake)))
        fake.teach(ApiKey.OFFSET_COMMIT, in_turn(committed_as(ErrorCode.NONE)))
        connect(fake.address).commit("g", {PLACE: 1}, retention_ms=60_000)
        (request,) = fake.asked(ApiKey.OFFSET_COMMIT)
        assert request.version == used


@pytest.mark.parametrize(("fetch_version", "find_version"), [(2, 0), (7, 3), (9, 6)])
def test_committed_offsets_are_read_in_every_shape(
    connect: Connect, fetch_version: int, find_version: int
) -> None:
    ranges = {"offset_fetch": (1, fetch_version), "find_coordinator": (0, find_version)}
    with FakeBroker({ApiKey.API_VERSIONS: lambda _: versions(**ranges)}) as fake:
        fake.teach(ApiKey.FIND_COORDINATOR, in_turn(coordinator(fake)))
        fake.teach(ApiKey.OFFSET_FETCH, in_turn(_fetched(ErrorCode.NOT_COORDINATOR), _fetched(0)))
        assert connect(fake.address).committed("g") == {PLACE: 5}


def test_a_group_that_does_not_exist_has_committed_nothing(connect: Connect) -> None:
    with FakeBroker() as fake:
        fake.teach(ApiKey.FIND_COORDINATOR, in_turn(coordinator(fake)))
        group = OffsetFetchResponseGroup(group_id="g", error_code=ErrorCode.GROUP_ID_NOT_FOUND)
        fake.teach(ApiKey.OFFSET_FETCH, in_turn(OffsetFetchResponse(groups=[group])))
        assert connect(fake.address).committed("g") == {}


def _fetched(code: int) -> Message:
    """Partition 1 has no committed offset."""
    old = [OffsetFetchResponsePartition(partition_index=i, committed_offset=5 - 6 * i) for i in (0, 1)]
    new = [OffsetFetchResponsePartitions(partition_index=i, committed_offset=5 - 6 * i) for i in (0, 1)]
    topics = [OffsetFetchResponseTopics(name=TOPIC, partitions=new)]
    return OffsetFetchResponse(
        error_code=code,
        topics=[OffsetFetchResponseTopic(name=TOPIC, partitions=old)],
        groups=[OffsetFetchResponseGroup(group_id="g", error_code=code, topics=topics)],
    )


# --- the rest


def test_a_producer_id_is_requested_until_there_is_one(connect: Connect) -> None:
    loading = InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    there = InitProducerIdResponse(producer_id=9, producer_epoch=1)
    with FakeBroker({ApiKey.INIT_PRODUCER_ID: in_turn(loading, there)}) as fake:
        assert connect(fake.address).init_producer_id() == (9, 1)


def test_a_topic_is_created_once_the_controller_is_found(connect: Connect) -> None:
    def created(code: int) -> Message:
        return CreateTopicsResponse(topics=[CreatableTopicResult(name=TOPIC, error_code=code)])

    with FakeBroker() as fake:
        without_controller, leaderless = fake.metadata(), fake.metadata(leader=-1)
        without_controller.controller_id = -1
        fake.teach(
            ApiKey.METADATA,
            in_turn(
                without_controller,
                fake.metadata(),
                fake.metadata(),
                MetadataResponse(),
                leaderless,
                fake.metadata(),
            ),
        )
        codes = (ErrorCode.NOT_CONTROLLER, ErrorCode.TOPIC_ALREADY_EXISTS)
        fake.teach(ApiKey.CREATE_TOPICS, in_turn(*map(created, codes)))
        connect(fake.address).create_topic(TOPIC)
        assert len(fake.asked(ApiKey.CREATE_TOPICS)) == 2
        assert len(fake.asked(ApiKey.METADATA)) == 6


def test_no_retry_means_one_try(connect: Connect) -> None:
    def answer(_: Request) -> Answer:
        return HANG_UP

    with FakeBroker({ApiKey.METADATA: answer}) as fake:
        cluster: Cluster = connect(fake.address, retry_for_ms=0)
        with pytest.raises(Unreachable, match="tried once"):
            cluster.topics()
        assert len(fake.asked(ApiKey.METADATA)) == 1
