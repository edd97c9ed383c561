"""Consumer groups in a cluster: their coordinators, and coordinator changes."""

import asyncio
from collections.abc import Callable

import pytest

from penstock.cluster import offsets_partition
from penstock.errors import ErrorCode, KafkaError
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages import find_coordinator as finding
from penstock.kafka.wire.messages import join_group as joining
from penstock.kafka.wire.messages import list_groups as listing
from penstock.kafka.wire.messages import offset_commit as committing
from penstock.kafka.wire.messages import offset_fetch as fetching
from penstock.kafka.wire.messages import sync_group as syncing
from penstock.kafka.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.node.calls import BROKER
from penstock.node.coordination import core_host
from penstock.types import TopicPartition
from tests.kafka.raw import RawClient
from tests.kafka.requests import ask, until_served
from tests.kafka.trio import Trio

Unique = Callable[[str], str]
OFFSETS_TOPIC = "__consumer_offsets"
GONE = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)


def partition_of(trio: Trio, group: str) -> int:
    return offsets_partition(group, trio.node(1).metadata.state.topics[OFFSETS_TOPIC].partitions)


def find_coordinator(client: RawClient, group: str) -> finding.FindCoordinatorResponse:
    return ask(
        client,
        ApiKey.FIND_COORDINATOR,
        2,
        finding.FindCoordinatorRequest(key=group),
        finding.FindCoordinatorResponse,
    )


@pytest.fixture
def group(trio: Trio, unique: Unique) -> str:
    """A name whose coordinator is running."""
    name = unique("group")
    with trio.client(1) as client:
        find_coordinator(client, name)
    trio.leader(OFFSETS_TOPIC, partition_of(trio, name))
    return name


def coordinator_of(trio: Trio, group: str) -> int:
    return trio.leader(OFFSETS_TOPIC, partition_of(trio, group))


def move(trio: Trio, group: str) -> int:
    """Lets another node coordinate the group."""
    to = next(one for one in trio.running if one != coordinator_of(trio, group))
    trio.hand_over(OFFSETS_TOPIC, to, partition_of(trio, group))
    return to


def commit(client: RawClient, group: str, topic: str, offset: int, *, once: bool = False) -> int:
    """`once`, here and below: a node that is not the coordinator is not asked again."""
    row = committing.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata="m"
    )
    request = committing.OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[committing.OffsetCommitRequestTopic(name=topic, partitions=[row])],
    )

    def code() -> int:
        answer = ask(client, ApiKey.OFFSET_COMMIT, 8, request, committing.OffsetCommitResponse)
        return answer.topics[0].partitions[0].error_code

    return code() if once else until_served(code, int)


def committed(client: RawClient, group: str, topic: str, version: int = 8) -> tuple[int, int]:
    """The error of the group, or the offset."""
    return until_served(lambda: committed_now(client, group, topic, version), lambda found: found[0])


def committed_now(client: RawClient, group: str, topic: str, version: int = 8) -> tuple[int, int]:
    if version < 8:
        row = fetching.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])
        one = fetching.OffsetFetchRequest(group_id=group, topics=[row])
        found = ask(client, ApiKey.OFFSET_FETCH, version, one, fetching.OffsetFetchResponse)
        return found.error_code, found.topics[0].partitions[0].committed_offset
    wanted = fetching.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
    request = fetching.OffsetFetchRequest(
        groups=[fetching.OffsetFetchRequestGroup(group_id=group, topics=[wanted])]
    )
    answer = ask(client, ApiKey.OFFSET_FETCH, version, request, fetching.OffsetFetchResponse).groups[0]
    if answer.error_code:
        return answer.error_code, -1
    return answer.error_code, answer.topics[0].partitions[0].committed_offset


def join_request(group: str, member_id: str = "") -> joining.JoinGroupRequest:
    return joining.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[joining.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def join(client: RawClient, group: str, member_id: str = "") -> joining.JoinGroupResponse:
    request = join_request(group, member_id)
    return until_served(lambda: ask(client, ApiKey.JOIN_GROUP, 3, request, joining.JoinGroupResponse))


# --- finding them


def test_every_node_finds_the_same_coordinator_and_only_that_one_commits(
    trio: Trio, topic: str, group: str
) -> None:
    at = coordinator_of(trio, group)
    for node_id in trio.running:
        with trio.client(node_id) as client:
            found = find_coordinator(client, group)
            assert (found.error_code, found.node_id, (found.host, found.port)) == (
                ErrorCode.NONE,
                at,
                trio.address(at),
            )
            expected = ErrorCode.NONE if node_id == at else ErrorCode.NOT_COORDINATOR
            assert commit(client, group, topic, 1, once=node_id != at) == expected


@pytest.mark.parametrize("version", [1, 7, 8, 9])
def test_every_node_fetches_committed_offsets_from_the_coordinator(
    trio: Trio, topic: str, group: str, version: int
) -> None:
    """librdkafka's consumer does not ask again when it hears NOT_COORDINATOR."""
    with trio.client(coordinator_of(trio, group)) as client:
        assert commit(client, group, topic, 7) == ErrorCode.NONE
    for node_id in trio.running:
        with trio.client(node_id) as client:
            assert committed(client, group, topic, version) == (ErrorCode.NONE, 7)


def test_requests_for_many_groups_or_for_everything_are_not_forwarded(
    trio: Trio, topic: str, group: str, unique: Unique
) -> None:
    """Each group could take ten seconds, and the answers of tools are large."""
    at = coordinator_of(trio, group)
    other = next(node_id for node_id in trio.running if node_id != at)
    wanted = fetching.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
    by_name = fetching.OffsetFetchRequestGroup(group_id=group, topics=[wanted])
    another = fetching.OffsetFetchRequestGroup(group_id=unique("another"), topics=[wanted])
    everything = fetching.OffsetFetchRequestGroup(group_id=group, topics=None)
    wanted = fetching.OffsetFetchRequestTopics(name=topic, partition_indexes=list(range(10_001)))
    much = fetching.OffsetFetchRequestGroup(group_id=group, topics=[wanted])
    with trio.client(other) as client:
        for groups in ([by_name, another], [everything], [much]):
            request = fetching.OffsetFetchRequest(groups=groups)
            answer = ask(client, ApiKey.OFFSET_FETCH, 8, request, fetching.OffsetFetchResponse)
            assert answer.groups[0].error_code == ErrorCode.NOT_COORDINATOR


def test_a_client_waits_for_its_offsets_until_there_is_a_coordinator(
    trio: Trio, topic: str, group: str
) -> None:
    at = coordinator_of(trio, group)
    with trio.client(at) as client:
        assert commit(client, group, topic, 7) == ErrorCode.NONE
    other = next(node_id for node_id in trio.running if node_id != at)
    with trio.cut_off(at), trio.client(other) as client:
        assert committed(client, group, topic) == (ErrorCode.NONE, 7)


def test_groups_are_listed_by_their_coordinators(trio: Trio, topic: str, unique: Unique, group: str) -> None:
    names = [unique("listed") for _ in range(6)]
    for name in names:
        with trio.client(coordinator_of(trio, name)) as client:
            assert commit(client, name, topic, 1) == ErrorCode.NONE
    listed: list[str] = []
    for node_id in trio.running:
        with trio.client(node_id) as client:
            answer = ask(
                client, ApiKey.LIST_GROUPS, 4, listing.ListGroupsRequest(), listing.ListGroupsResponse
            )
            assert answer.error_code == ErrorCode.NONE
            listed += [row.group_id for row in answer.groups]
    assert len(listed) == len(set(listed))
    assert set(names) <= set(listed)


# --- moving


def test_offsets_survive_a_coordinator_change(trio: Trio, topic: str, group: str) -> None:
    for offset in range(3):
        with trio.client(coordinator_of(trio, group)) as client:
            assert commit(client, group, topic, offset) == ErrorCode.NONE
        with trio.client(move(trio, group)) as client:
            assert committed(client, group, topic) == (ErrorCode.NONE, offset)


def test_waiting_joins_are_redirected_when_the_coordinator_moves(trio: Trio, group: str) -> None:
    at = coordinator_of(trio, group)
    with trio.client(at) as first, trio.client(at) as second, trio.client(at) as third:
        joined = join(first, group)
        assert joined.error_code == ErrorCode.NONE
        second.request(ApiKey.JOIN_GROUP, 3, join_request(group))  # waits for the first one to join again
        third.request(ApiKey.JOIN_GROUP, 3, join_request(group))
        trio.eventually(lambda: _member_count(trio, at, group) == 3)
        move(trio, group)
        for client in (second, third):
            _, answer = client.answer(ApiKey.JOIN_GROUP, 3)
            assert isinstance(answer, joining.JoinGroupResponse)
            assert answer.error_code == ErrorCode.NOT_COORDINATOR
        heartbeat = HeartbeatRequest(
            group_id=group, generation_id=joined.generation_id, member_id=joined.member_id
        )
        answered = ask(first, ApiKey.HEARTBEAT, 3, heartbeat, HeartbeatResponse)
        assert answered.error_code == ErrorCode.NOT_COORDINATOR


def _member_count(trio: Trio, node_id: int, group: str) -> int:
    described = trio.node(node_id).groups.describe(group)
    return len(described.members) if described is not None else 0


def test_a_waiting_sync_is_redirected_when_the_coordinator_moves(trio: Trio, group: str) -> None:
    at = coordinator_of(trio, group)
    with trio.client(at) as first, trio.client(at) as second:
        joined = join(first, group)
        second.request(ApiKey.JOIN_GROUP, 3, join_request(group))
        trio.eventually(lambda: _member_count(trio, at, group) == 2)
        again = join(first, group, joined.member_id)
        _, follower = second.answer(ApiKey.JOIN_GROUP, 3)
        assert isinstance(follower, joining.JoinGroupResponse)
        request = syncing.SyncGroupRequest(
            group_id=group, generation_id=again.generation_id, member_id=follower.member_id
        )
        second.request(ApiKey.SYNC_GROUP, 3, request)
        trio.eventually(lambda: _waits(trio, at, group))
        move(trio, group)
        _, answer = second.answer(ApiKey.SYNC_GROUP, 3)
    assert isinstance(answer, syncing.SyncGroupResponse)
    assert answer.error_code == ErrorCode.NOT_COORDINATOR


def _waits(trio: Trio, node_id: int, group: str) -> bool:
    driver = trio.node(node_id).groups.cores.get(partition_of(trio, group))
    return bool(driver._asked)


def test_members_continue_with_the_next_coordinator(trio: Trio, group: str) -> None:
    with trio.client(coordinator_of(trio, group)) as client:
        joined = join(client, group)
        request = syncing.SyncGroupRequest(
            group_id=group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[syncing.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine")],
        )
        synced = until_served(lambda: ask(client, ApiKey.SYNC_GROUP, 3, request, syncing.SyncGroupResponse))
        assert synced.assignment == b"mine"
    with trio.client(move(trio, group)) as client:
        heartbeat = HeartbeatRequest(
            group_id=group, generation_id=joined.generation_id, member_id=joined.member_id
        )
        answer = until_served(lambda: ask(client, ApiKey.HEARTBEAT, 3, heartbeat, HeartbeatResponse))
        assert answer.error_code == ErrorCode.NONE


def test_a_coordinator_that_is_cut_off_returns_no_old_offsets(trio: Trio, topic: str, group: str) -> None:
    old = coordinator_of(trio, group)
    index = partition_of(trio, group)
    with trio.client(old) as client:
        assert commit(client, group, topic, 1) == ErrorCode.NONE
        with trio.cut_off(old):
            others = tuple(one for one in trio.running if one != old)
            new = trio.leader(OFFSETS_TOPIC, index, among=others)
            with trio.client(new) as other:
                assert commit(other, group, topic, 2) == ErrorCode.NONE
            assert committed_now(client, group, topic)[0] in GONE
            assert commit(client, group, topic, 3, once=True) in GONE
    with trio.client(coordinator_of(trio, group)) as client:
        assert committed(client, group, topic) == (ErrorCode.NONE, 2)


# --- loading


def test_a_coordinator_answers_that_it_is_loading_until_it_has_loaded_all_groups(
    trio: Trio, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_host, "LOAD_AT_ONCE_BYTES", 0)
    monkeypatch.setattr(core_host, "RECORDS_PER_TURN", 1)
    with trio.client(coordinator_of(trio, group)) as client:
        for offset in range(50):
            commit(client, group, topic, offset)
    at = coordinator_of(trio, group)
    to = next(one for one in trio.running if one != at)
    seen = trio.run(_ask_until_loaded(trio, group, topic, at, to))
    assert seen[-2:] == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 49]
    assert set(seen[:-2]) <= {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, *GONE}
    assert coordinator_of(trio, group) == to


async def _ask_until_loaded(trio: Trio, group: str, topic: str, at: int, to: int) -> list[int]:
    """The error codes of the next coordinator, turn by turn."""
    partition = trio.replica(at, OFFSETS_TOPIC, partition_of(trio, group))
    await trio.node(at).controller.hand_over(partition.group, at, to, caller=BROKER)
    seen: list[int] = []
    wanted = TopicPartition(topic, 0)
    while True:
        await asyncio.sleep(0)
        try:
            return [*seen, trio.node(to).groups.committed(group, [wanted])[wanted].offset]
        except KafkaError as refused:
            if not seen or seen[-1] != refused.code:
                seen.append(refused.code)
