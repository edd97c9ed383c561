"""Every API asks `Resources` before it acts or answers, with the operations that its row in the registry states.

The decision is replaced by one that refuses everything: each API must then answer with an authorization error, or leave
everything out of its listing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast
from uuid import UUID, uuid4

import msgspec
import pytest

from penstock import Broker
from penstock.batch import Record, build_batch
from penstock.errors import ErrorCode
from penstock.kafka.handlers.context import Api
from penstock.kafka.handlers.registry import advertised, find_api
from penstock.kafka.wire import ApiKey, Message, decode_response, encode_request, join, request_class
from penstock.kafka.wire.messages import describe_configs, fetch, offset_commit, share_fetch
from penstock.kafka.wire.messages import describe_topic_partitions as paging
from penstock.kafka.wire.messages import share_group_heartbeat as heartbeats
from penstock.kafka.wire.messages.find_coordinator import FindCoordinatorRequest
from penstock.kafka.wire.messages.init_producer_id import InitProducerIdRequest
from penstock.kafka.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from penstock.kafka.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from penstock.kafka.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.kafka.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from penstock.kafka.wire.messages.produce import ProduceRequest
from penstock.kafka.wire.schema import ARRAY, INT32, RECORDS, STRING, STRUCT, UUID16
from penstock.node.access import Access
from penstock.node.calls import Calls
from penstock.node.calls.methods import CREATE_TOPIC
from penstock.node.resources import Resources
from penstock.types import Caller, Operation, ResourceType
from tests.kafka.raw import RawClient
from tests.kafka.requests import create, write

AUTHORIZATION_ERRORS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
SECRET = "a-secret-that-is-stored"
TOPIC_CONFIG, BROKER_CONFIG, GROUP_CONFIG = 2, 4, 32
LOWEST_PRODUCE = 3
TRANSACTIONAL_ID = "a-transactional-id"
BROKERS_SINCE_VERSION = 4

Asked = set[tuple[Operation, ResourceType]]


class ExistingResources(NamedTuple):
    """A topic with a record, a group with a committed offset, and a share group with a member and a session."""

    client: RawClient
    topic: str
    topic_id: UUID
    group: str
    member: str


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker) as client:
        yield client


@pytest.fixture
def existing(client: RawClient, unique: Callable[[str], str]) -> ExistingResources:
    existing = ExistingResources(client, unique("topic"), UUID(int=0), unique("group"), str(uuid4()))
    create(client, existing.topic, replicas=1)
    described = client.call(
        ApiKey.METADATA, 12, MetadataRequest(topics=[MetadataRequestTopic(name=existing.topic)])
    )
    assert isinstance(described, MetadataResponse)
    existing = existing._replace(topic_id=described.topics[0].topic_id)
    write(client, existing.topic, SECRET.encode())
    client.call(ApiKey.FIND_COORDINATOR, 4, filled(ApiKey.FIND_COORDINATOR, existing))
    commit = cast(offset_commit.OffsetCommitRequest, filled(ApiKey.OFFSET_COMMIT, existing))
    commit.topics[0].partitions[0].committed_metadata = SECRET
    commit.member_id, commit.generation_id_or_member_epoch = "", -1
    client.call(ApiKey.OFFSET_COMMIT, 10, commit)
    return existing


# --- requests that name everything they can


GROUP_FIELDS = {"group_id", "groups", "groups_names", "group_ids", "key", "coordinator_keys"}
TRANSACTION_FIELDS = {"transactional_id", "v3_and_below_transactional_id", "transactional_ids"}
TOPIC_FIELDS = {"name", "topic", "topic_name", "topic_names", "subscribed_topic_names"}
NUMBERS = {
    "acks": -1,
    "session_epoch": -1,
    "session_timeout_ms": 10_000,
    "timeout_ms": 1000,
    "count": 2,
    "max_bytes": 1 << 20,
    "partition_max_bytes": 1 << 20,
    "endpoint_type": 1,
    "response_partition_limit": 10,
    "num_partitions": 1,
    "replication_factor": 1,
    "generation_id_or_member_epoch": 1,
    "replica_id": -1,
    "current_leader_epoch": -1,
}


def filled(key: ApiKey, existing: ExistingResources) -> Message:
    """A request that names the existing topic and group in all its fields that can."""
    request = _filled(request_class(key), existing)
    if (adapt := ADAPTATIONS.get(key)) is not None:
        adapt(request, existing)
    return request


def _filled(cls: type[Message], existing: ExistingResources) -> Message:
    values: dict[str, Any] = {}
    for field in cls.SCHEMA:
        if field.kind == STRUCT:
            continue  # options that no API here needs
        one = _value(
            field.name, field.struct if isinstance(field.of, type) else field.of or field.kind, existing
        )
        if one is not None:
            values[field.name] = [one] if field.kind == ARRAY else one
    return cls(**values)


def _value(name: str, kind: str | type[Message], existing: ExistingResources) -> object:
    if isinstance(kind, type):
        return _filled(kind, existing)
    if kind == UUID16:
        return existing.topic_id
    if kind == RECORDS:
        return build_batch([Record(0, 1, b"k", b"v", ())])
    if kind == STRING:
        texts = {"member_id": existing.member, "path": "memory", "protocol_type": "consumer"}
        texts |= dict.fromkeys(TRANSACTION_FIELDS, TRANSACTIONAL_ID)
        texts |= dict.fromkeys(GROUP_FIELDS, existing.group) | dict.fromkeys(TOPIC_FIELDS, existing.topic)
        return texts.get(name)
    if kind == INT32 and name in ("partitions", "partition_indexes"):
        return 0
    return NUMBERS.get(name)


def _all_configs(request: Any, existing: ExistingResources) -> None:
    resources = ((TOPIC_CONFIG, existing.topic), (GROUP_CONFIG, existing.group), (BROKER_CONFIG, ""))
    row = request.resources[0]
    request.resources = [
        msgspec.structs.replace(row, resource_type=kind, resource_name=name) for kind, name in resources
    ]
    for resource in request.resources:
        if isinstance(resource, describe_configs.DescribeConfigsResource):
            resource.configuration_keys = None
        else:
            resource.configs = []


def _no_assignments(request: Any, existing: ExistingResources) -> None:
    request.topics[0].assignments = [] if hasattr(request.topics[0], "configs") else None
    if hasattr(request.topics[0], "configs"):
        request.topics[0].configs = []
        request.topics[0].name += "-new"


def _open_session(request: Any, existing: ExistingResources) -> None:
    request.topics[0].partitions[0].acknowledgement_batches = []
    request.forgotten_topics_data = []


def _acknowledge(request: Any, existing: ExistingResources) -> None:
    """A session must exist before an acknowledgement in it."""
    existing.client.call(ApiKey.SHARE_FETCH, 1, filled(ApiKey.SHARE_FETCH, existing))
    request.share_session_epoch = 1
    request.topics[0].partitions[0].acknowledgement_batches[0].acknowledge_types = [1]


def _join_share_group(request: Any, existing: ExistingResources) -> None:
    joining = cast(heartbeats.ShareGroupHeartbeatRequest, filled(ApiKey.SHARE_GROUP_HEARTBEAT, existing))
    existing.client.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, joining)


def _join_and_leave_share_group(request: Any, existing: ExistingResources) -> None:
    """Only the offsets of an empty group may be altered."""
    _join_share_group(request, existing)
    leaving = heartbeats.ShareGroupHeartbeatRequest(
        group_id=_own_group(existing), member_id=existing.member, member_epoch=-1
    )
    existing.client.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, leaving)
    request.group_id = _own_group(existing)


def _own_group(existing: ExistingResources) -> str:
    return f"{existing.group}-shared"


def _as_share_group(request: Any, existing: ExistingResources) -> None:
    request.group_id = _own_group(existing)


def _describe_share_group(request: Any, existing: ExistingResources) -> None:
    _join_share_group(request, existing)
    if hasattr(request, "group_ids"):
        request.group_ids = [_own_group(existing)]
    else:
        request.groups[0].group_id = _own_group(existing)


def _as_consumer_group(request: Any, existing: ExistingResources) -> None:
    """A member joins a group that has no other members."""
    request.group_id, request.member_id = f"{existing.group}-consumer", existing.member
    request.member_epoch, request.rebalance_timeout_ms, request.topic_partitions = 0, 60_000, []


def _describe_consumer_group(request: Any, existing: ExistingResources) -> None:
    joining = filled(ApiKey.CONSUMER_GROUP_HEARTBEAT, existing)
    existing.client.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, joining)
    request.group_ids = [f"{existing.group}-consumer"]


def _not_transactional(request: Any, existing: ExistingResources) -> None:
    request.transactional_id = None


def _make_transactional_id(request: Any, existing: ExistingResources) -> None:
    """There is something to list."""
    for key, version, made in transactional_requests(existing)[:2]:
        existing.client.call(key, version, made)


def _cancel_move(request: Any, existing: ExistingResources) -> None:
    request.topics[0].partitions[0].replicas = None


ADAPTATIONS: dict[ApiKey, Callable[[Any, ExistingResources], None]] = {
    ApiKey.DESCRIBE_CONFIGS: _all_configs,
    ApiKey.ALTER_CONFIGS: _all_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _all_configs,
    ApiKey.CREATE_TOPICS: _no_assignments,
    ApiKey.CREATE_PARTITIONS: _no_assignments,
    ApiKey.SHARE_FETCH: _open_session,
    ApiKey.SHARE_ACKNOWLEDGE: _acknowledge,
    ApiKey.SHARE_GROUP_HEARTBEAT: _as_share_group,
    ApiKey.SHARE_GROUP_DESCRIBE: _describe_share_group,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _as_consumer_group,
    ApiKey.CONSUMER_GROUP_DESCRIBE: _describe_consumer_group,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: _describe_share_group,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: _join_and_leave_share_group,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: _join_and_leave_share_group,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _cancel_move,
    ApiKey.INIT_PRODUCER_ID: _not_transactional,
    ApiKey.LIST_TRANSACTIONS: _make_transactional_id,
}


# --- decisions


@contextmanager
def deciding(allow: bool) -> Iterator[Asked]:
    """All callers are allowed everything, or nothing; records the permission checks."""
    asked: Asked = set()

    def decide(
        self: Resources, caller: Caller, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        assert caller == Caller("User:ANONYMOUS", "127.0.0.1", "raw")
        asked.add((operation, resource_type))
        return allow

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Resources, "_allows", decide)
        patch.setattr(Access, "allows_any", lambda self, *asked: allow)
        yield asked


def stated(key: ApiKey, version: int) -> Asked:
    api = served(key)
    needs = (
        (api.on_topic, ResourceType.TOPIC),
        (api.on_group, ResourceType.GROUP),
        (api.on_cluster, ResourceType.CLUSTER),
        (api.on_transactional_id, ResourceType.TRANSACTIONAL_ID),
    )
    return {
        (operation, kind)
        for operation, kind in needs
        if operation is not Operation.UNKNOWN and kind not in unnamed(key, version)
    }


def unnamed(key: ApiKey, version: int) -> set[ResourceType]:
    """Resources that requests of this API may name, and the one of this test does not."""
    if (
        key == ApiKey.ADD_PARTITIONS_TO_TXN
    ):  # from version 4 on it is for brokers, which have checked their clients
        if version < BROKERS_SINCE_VERSION:
            return {ResourceType.CLUSTER}
        return {ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID}
    if key == ApiKey.DESCRIBE_TRANSACTIONS:  # there is no transaction, so it has no topics
        return {ResourceType.TOPIC}
    plain = (ApiKey.PRODUCE, ApiKey.INIT_PRODUCER_ID, ApiKey.FIND_COORDINATOR)
    return {ResourceType.TRANSACTIONAL_ID} if key in plain else set()


def implied(key: ApiKey, version: int) -> Asked:
    """Who may read a group may describe it: calls to other nodes for that are checked again."""
    reads = served(key).on_group is Operation.READ
    return {(Operation.DESCRIBE, ResourceType.GROUP)} - stated(key, version) if reads else set()


def error_codes(value: object) -> set[int]:
    """All error codes in a response."""
    if isinstance(value, list):
        return set().union(*map(error_codes, value))
    if not isinstance(value, Message):
        return set()
    codes = {getattr(value, name) for name in value.__struct_fields__ if name.endswith("error_code")}
    return codes.union(*(error_codes(getattr(value, name)) for name in value.__struct_fields__))


def served(key: int) -> Api:
    api = find_api(key)
    assert api is not None
    return api


def versions(key: int) -> list[int]:
    low, high = served(key).min_version, served(key).max_version
    return sorted({max(low, LOWEST_PRODUCE) if key == ApiKey.PRODUCE else low, high})


EVERY_API = [
    pytest.param(ApiKey(row.api_key), version, id=f"{ApiKey(row.api_key).name}-v{version}")
    for row in advertised()
    for version in versions(row.api_key)
]


@pytest.mark.parametrize(("key", "version"), EVERY_API)
def test_a_caller_without_permissions_learns_and_changes_nothing(
    existing: ExistingResources, key: ApiKey, version: int
) -> None:
    request = filled(key, existing)
    sent = join(encode_request(key, version, 1, "raw", request))
    with deciding(allow=False) as asked_in_vain:
        existing.client.send(sent)
        received = existing.client.read_frame()
    codes = error_codes(decode_response(key, version, memoryview(received))[1])
    for secret in (
        SECRET.encode(),
        existing.topic.encode(),
        existing.topic_id.bytes,
        existing.group.encode(),
    ):
        assert secret in sent or secret not in received
    if not stated(key, version):
        assert asked_in_vain == set()
    elif key in (ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS) or (
        key == ApiKey.DESCRIBE_LOG_DIRS and version < 3
    ):
        assert asked_in_vain == stated(key, version)  # no field for an error: the listing is empty
    else:
        assert codes & AUTHORIZATION_ERRORS
        assert codes <= AUTHORIZATION_ERRORS | {ErrorCode.NONE}

    with deciding(allow=True) as asked:
        existing.client.call(key, version, request)
    if key == ApiKey.DESCRIBE_TOPIC_PARTITIONS:  # its responses always list all allowed operations
        assert stated(key, version) <= asked
    else:
        assert (asked | asked_in_vain) - implied(key, version) == stated(key, version)


def test_a_refused_caller_reads_no_record_and_a_refused_producer_writes_none(
    existing: ExistingResources,
) -> None:
    with deciding(allow=False):
        assert write(existing.client, existing.topic).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with deciding(allow=True):
        answer = existing.client.call(ApiKey.FETCH, 12, filled(ApiKey.FETCH, existing))
    assert isinstance(answer, fetch.FetchResponse)
    assert answer.responses[0].partitions[0].high_watermark == 1


def test_a_topic_is_created_on_behalf_of_the_caller_that_uses_it(existing: ExistingResources) -> None:
    callers: list[Caller] = []
    ask = Calls.ask

    async def noted(self: Calls, target: Any, method: Any, request: Any, **rest: Any) -> Any:
        if method is CREATE_TOPIC:
            callers.append(rest["caller"])
        return await ask(self, target, method, request, **rest)

    request = MetadataRequest(topics=[MetadataRequestTopic(name=f"{existing.topic}-used")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Calls, "ask", noted)
        answer = existing.client.call(ApiKey.METADATA, 12, request)
    assert isinstance(answer, MetadataResponse)
    assert answer.topics[0].error_code == ErrorCode.NONE
    assert callers == [Caller("User:ANONYMOUS", "127.0.0.1", "raw")]


# --- listings


def test_listings_of_a_refused_caller_are_empty(existing: ExistingResources) -> None:
    everything: list[tuple[ApiKey, int, Message]] = [
        (ApiKey.METADATA, 12, MetadataRequest(topics=None)),
        (ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, paging.DescribeTopicPartitionsRequest()),
        (ApiKey.LIST_GROUPS, 5, ListGroupsRequest()),
    ]
    with deciding(allow=False):
        answers = [existing.client.call(*asked) for asked in everything]
    metadata, pages, groups = answers
    assert isinstance(metadata, MetadataResponse)
    assert metadata.topics == []
    assert isinstance(pages, paging.DescribeTopicPartitionsResponse)
    assert pages.topics == []
    assert isinstance(groups, ListGroupsResponse)
    assert groups.groups == []


def test_offsets_of_hidden_topics_are_left_out_of_all_offsets_of_a_group(existing: ExistingResources) -> None:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=existing.group, topics=None)])

    def groups_only(self: Resources, *asked: Any) -> bool:
        return asked[2] is ResourceType.GROUP

    for version in (8, 10):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Resources, "_allows", groups_only)
            answer: Any = existing.client.call(ApiKey.OFFSET_FETCH, version, request)
        assert (answer.groups[0].error_code, answer.groups[0].topics) == (ErrorCode.NONE, [])
        answer = existing.client.call(ApiKey.OFFSET_FETCH, version, request)
        assert answer.groups[0].topics[0].partitions[0].metadata == SECRET


def test_a_share_session_of_an_allowed_group_reads_no_hidden_topic(existing: ExistingResources) -> None:
    def groups_only(self: Resources, *asked: Any) -> bool:
        return asked[2] is ResourceType.GROUP

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Resources, "_allows", groups_only)
        answer: Any = existing.client.call(ApiKey.SHARE_FETCH, 1, filled(ApiKey.SHARE_FETCH, existing))
    assert isinstance(answer, share_fetch.ShareFetchResponse)
    row = answer.responses[0].partitions[0]
    assert (row.error_code, row.records) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, b"")


def test_the_bit_fields_of_a_refused_caller_are_empty(existing: ExistingResources) -> None:
    request = MetadataRequest(topics=[], include_cluster_authorized_operations=True)
    with deciding(allow=False):
        answer = existing.client.call(ApiKey.METADATA, 10, request)
    assert isinstance(answer, MetadataResponse)
    assert answer.cluster_authorized_operations == 0


# --- transactional ids


def test_a_caller_without_rights_on_a_transactional_id_is_told_so(existing: ExistingResources) -> None:
    refused = {ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
    for key, version, request in transactional_requests(existing):
        with deciding(allow=False):
            codes = error_codes(existing.client.call(key, version, request))
        assert codes <= {*AUTHORIZATION_ERRORS, ErrorCode.NONE}, key.name
        with deciding_on(ResourceType.TRANSACTIONAL_ID) as asked:
            codes = error_codes(existing.client.call(key, version, request))
        assert codes - {ErrorCode.NONE} == refused, key.name
        assert asked == {served(key).on_transactional_id}


def transactional_requests(existing: ExistingResources) -> list[tuple[ApiKey, int, Message]]:
    """Requests that name transactional ids only if they are about transactions."""
    find = cast(FindCoordinatorRequest, filled(ApiKey.FIND_COORDINATOR, existing))
    find.key_type, find.coordinator_keys = 1, [TRANSACTIONAL_ID]
    init = cast(InitProducerIdRequest, filled(ApiKey.INIT_PRODUCER_ID, existing))
    init.transactional_id, init.transaction_timeout_ms = TRANSACTIONAL_ID, 1000
    write = cast(ProduceRequest, filled(ApiKey.PRODUCE, existing))
    write.transactional_id = TRANSACTIONAL_ID
    write.topic_data[0].partition_data[0].records = build_batch(
        [Record(0, 1, b"k", b"v", ())], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
    )
    return [
        (ApiKey.FIND_COORDINATOR, 6, find),
        (ApiKey.INIT_PRODUCER_ID, 5, init),
        (ApiKey.PRODUCE, 11, write),
        (ApiKey.PRODUCE, 12, write),
    ]


def test_transactional_ids_that_the_caller_may_not_see_are_not_listed(existing: ExistingResources) -> None:
    for key, version, request in transactional_requests(existing)[:2]:
        existing.client.call(key, version, request)
    request = ListTransactionsRequest()
    every = existing.client.call(ApiKey.LIST_TRANSACTIONS, 2, request)
    assert isinstance(every, ListTransactionsResponse)
    assert TRANSACTIONAL_ID in {one.transactional_id for one in every.transaction_states}
    with deciding_on(ResourceType.TRANSACTIONAL_ID) as asked:
        none = existing.client.call(ApiKey.LIST_TRANSACTIONS, 2, request)
    assert isinstance(none, ListTransactionsResponse)
    assert (none.error_code, none.transaction_states) == (ErrorCode.NONE, [])
    assert asked == {Operation.DESCRIBE}


@contextmanager
def deciding_on(refused: ResourceType) -> Iterator[set[Operation]]:
    """Callers are allowed everything but resources of this type; yields the operations that are asked for on those."""
    asked: set[Operation] = set()

    def decide(
        self: Resources, caller: Caller, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        if resource_type is refused:
            asked.add(operation)
        return resource_type is not refused

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Resources, "_allows", decide)
        yield asked
