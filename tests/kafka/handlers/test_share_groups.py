"""Share groups as clients see them: heartbeats, descriptions, lists, deletions and configs."""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from confluent_kafka import Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from penstock import Broker
from penstock.cluster import offsets_partition
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages import alter_configs as plain
from penstock.kafka.wire.messages import delete_groups as deleting
from penstock.kafka.wire.messages import describe_configs as asking
from penstock.kafka.wire.messages import describe_groups as classic
from penstock.kafka.wire.messages import find_coordinator as finding
from penstock.kafka.wire.messages import list_config_resources as resources
from penstock.kafka.wire.messages import list_groups as listing
from penstock.kafka.wire.messages import metadata
from penstock.kafka.wire.messages import share_group_describe as describing
from penstock.kafka.wire.messages import share_group_heartbeat as heartbeats
from penstock.kafka.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tests.kafka.raw import RawClient
from tests.kafka.requests import ask, create, until_served
from tests.kafka.trio import Trio

Unique = Callable[[str], str]
PATIENCE_SECONDS = 60.0
GROUP = 32
OFFSETS_TOPIC = "__consumer_offsets"
LOCK = "share.record.lock.duration.ms"


class Member:
    """A share consumer that only reports."""

    def __init__(self, client: RawClient, group: str, *topics: str) -> None:
        self.client = client
        self.group = group
        self.member_id = str(uuid4())
        self.topics = list(topics)
        self.epoch = 0

    def reports(self) -> heartbeats.ShareGroupHeartbeatResponse:
        return self._sends(self.epoch, self.topics if self.epoch == 0 else None)

    def leaves(self) -> heartbeats.ShareGroupHeartbeatResponse:
        return self._sends(-1, None)

    def joined(self) -> heartbeats.Assignment:
        """Joins as clients do: with retries while there is no coordinator yet."""
        answer = until_served(self.reports)
        assert answer.error_code == ErrorCode.NONE
        assert answer.assignment is not None
        return answer.assignment

    def _sends(self, epoch: int, topics: list[str] | None) -> heartbeats.ShareGroupHeartbeatResponse:
        request = heartbeats.ShareGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=epoch, subscribed_topic_names=topics
        )
        key = ApiKey.SHARE_GROUP_HEARTBEAT
        answer = ask(self.client, key, 1, request, heartbeats.ShareGroupHeartbeatResponse)
        self.epoch = max(0, answer.member_epoch)
        return answer


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker) as connected:
        yield connected


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


@pytest.fixture
def orders(client: RawClient, unique: Unique) -> str:
    name = unique("orders")
    create(client, name, partitions=3, replicas=1)
    return name


def describe(client: RawClient, group: str) -> describing.DescribedGroup:
    request = describing.ShareGroupDescribeRequest(group_ids=[group], include_authorized_operations=True)
    key = ApiKey.SHARE_GROUP_DESCRIBE
    return ask(client, key, 1, request, describing.ShareGroupDescribeResponse).groups[0]


def listed(client: RawClient, **filters: list[str]) -> dict[str, tuple[str, str, str]]:
    answer = ask(
        client, ApiKey.LIST_GROUPS, 5, listing.ListGroupsRequest(**filters), listing.ListGroupsResponse
    )
    return {row.group_id: (row.group_type, row.protocol_type, row.group_state) for row in answer.groups}


def delete(client: RawClient, group: str) -> int:
    request = deleting.DeleteGroupsRequest(groups_names=[group])
    return ask(client, ApiKey.DELETE_GROUPS, 2, request, deleting.DeleteGroupsResponse).results[0].error_code


def describe_as_classic(client: RawClient, group: str, version: int) -> classic.DescribedGroup:
    request = classic.DescribeGroupsRequest(groups=[group])
    return ask(client, ApiKey.DESCRIBE_GROUPS, version, request, classic.DescribeGroupsResponse).groups[0]


def topic_id(client: RawClient, topic: str) -> UUID:
    request = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=topic)])
    return ask(client, ApiKey.METADATA, 12, request, metadata.MetadataResponse).topics[0].topic_id


# --- members


def test_a_member_is_assigned_all_partitions_of_its_topics(
    client: RawClient, orders: str, unique: Unique
) -> None:
    assignment = Member(client, unique("workers"), orders, "no-such-topic").joined()
    (row,) = assignment.topic_partitions
    assert (row.topic_id, row.partitions) == (topic_id(client, orders), [0, 1, 2])


def test_a_member_is_assigned_added_partitions(client: RawClient, orders: str, unique: Unique) -> None:
    member = Member(client, unique("workers"), orders)
    member.joined()
    assert member.reports().assignment is None
    grow = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=orders, count=5, assignments=None)], timeout_ms=10_000
    )
    ask(client, ApiKey.CREATE_PARTITIONS, 3, grow, CreatePartitionsResponse)
    assignment = member.reports().assignment
    assert assignment is not None
    assert assignment.topic_partitions[0].partitions == [0, 1, 2, 3, 4]


def test_an_invalid_heartbeat_is_refused_with_the_reason(client: RawClient, unique: Unique) -> None:
    answer = Member(client, unique("workers")).reports()
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert "SubscribedTopicNames" in (answer.error_message or "")
    stranger = Member(client, unique("workers"), "orders")
    stranger.epoch = 7
    assert stranger.reports().error_code == ErrorCode.UNKNOWN_MEMBER_ID


# --- administration


def test_a_group_is_described_with_its_members(client: RawClient, orders: str, unique: Unique) -> None:
    member = Member(client, unique("workers"), orders)
    member.joined()
    group = describe(client, member.group)
    assert (group.error_code, group.group_state, group.assignor_name) == (ErrorCode.NONE, "Stable", "simple")
    assert group.group_epoch == group.assignment_epoch == member.epoch
    assert group.authorized_operations > 0
    (row,) = group.members
    assert (row.member_id, row.member_epoch, row.client_id) == (member.member_id, member.epoch, "raw")
    assert row.client_host == "/127.0.0.1"
    assert row.subscribed_topic_names == [orders]
    (assigned,) = row.assignment.topic_partitions
    assert (assigned.topic_name, assigned.partitions) == (orders, [0, 1, 2])


def test_a_missing_group_is_described_as_dead(client: RawClient, unique: Unique) -> None:
    group = describe(client, unique("missing"))
    assert (group.error_code, group.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")


def test_groups_are_listed_by_type_and_state(client: RawClient, orders: str, unique: Unique) -> None:
    busy, idle = Member(client, unique("busy"), orders), Member(client, unique("idle"), orders)
    busy.joined(), idle.joined()
    assert idle.leaves().member_epoch == -1
    assert listed(client)[busy.group] == ("share", "share", "Stable")
    stable = listed(client, types_filter=["Share"], states_filter=["Stable"])
    assert busy.group in stable
    assert idle.group not in stable
    assert listed(client, types_filter=["share"], states_filter=["empty"])[idle.group][2] == "Empty"
    assert not {busy.group, idle.group} & listed(client, types_filter=["classic"]).keys()


def test_requests_for_consumer_groups_do_not_return_share_groups(
    client: RawClient, orders: str, unique: Unique
) -> None:
    member = Member(client, unique("workers"), orders)
    member.joined()
    found = describe_as_classic(client, member.group, 6)
    assert (found.error_code, found.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    assert "share group" in (found.error_message or "")
    older = describe_as_classic(client, member.group, 5)
    assert (older.error_code, older.group_state) == (ErrorCode.NONE, "Dead")


def test_an_empty_group_can_be_deleted(client: RawClient, orders: str, unique: Unique) -> None:
    member = Member(client, unique("workers"), orders)
    member.joined()
    assert delete(client, member.group) == ErrorCode.NON_EMPTY_GROUP
    member.leaves()
    assert delete(client, member.group) == ErrorCode.NONE
    assert delete(client, member.group) == ErrorCode.GROUP_ID_NOT_FOUND
    assert member.group not in listed(client)


def test_a_group_survives_a_restart(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker, RawClient(broker) as client:
        create(client, "orders", replicas=1)
        member = Member(client, "workers", "orders")
        member.joined()
    with Broker(data_dir=tmp_path) as broker, RawClient(broker) as client:
        member.client = client
        told = member.epoch
        assert listed(client) == {"workers": ("share", "share", "Empty")}
        assert member.reports().error_code == ErrorCode.UNKNOWN_MEMBER_ID
        member.epoch = 0
        member.joined()
        assert member.epoch > told


# --- configs


def entry(name: str, value: str | None, operation: AlterConfigOpType = AlterConfigOpType.SET) -> ConfigEntry:
    return ConfigEntry(name, value, incremental_operation=operation)


def alter(admin: AdminClient, group: str, *entries: ConfigEntry) -> None:
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=list(entries))
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_SECONDS)


def configs(admin: AdminClient, group: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(ResourceType.GROUP, group)
    found: dict[str, ConfigEntry] = admin.describe_configs([resource])[resource].result(PATIENCE_SECONDS)
    return found


def test_a_groups_configs_are_set_shown_and_unset(admin: AdminClient, unique: Unique) -> None:
    group = unique("workers")
    alter(admin, group, entry(LOCK, "60000"), entry("penstock.queue.order", "key"))
    shown = configs(admin, group)
    assert (shown[LOCK].value, shown[LOCK].is_default) == ("60000", False)
    assert (shown["share.session.timeout.ms"].value, shown["share.session.timeout.ms"].is_default) == (
        "45000",
        True,
    )
    alter(admin, group, entry(LOCK, None, AlterConfigOpType.DELETE))
    shown = configs(admin, group)
    assert (shown[LOCK].value, shown["penstock.queue.order"].value) == ("30000", "key")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (LOCK, "1", "expected a whole number from 1000"),
        ("streams.session.timeout.ms", "45000", "there is no streams group protocol here"),
        ("share.lock.ms", "1000", "Unknown group config name: share.lock.ms"),
        ("share.session.timeout.ms", "5000", "not below share.session.timeout.ms"),
    ],
)
def test_an_invalid_config_is_refused_with_a_message(
    admin: AdminClient, unique: Unique, name: str, value: str, words: str
) -> None:
    with pytest.raises(Exception, match=words):
        alter(admin, unique("workers"), entry(name, value))


def test_a_group_without_a_name_has_no_configs(client: RawClient) -> None:
    request = plain.AlterConfigsRequest(
        resources=[plain.AlterConfigsResource(resource_type=GROUP, resource_name="", configs=[])]
    )
    answer = ask(client, ApiKey.ALTER_CONFIGS, 2, request, plain.AlterConfigsResponse)
    assert answer.responses[0].error_code == ErrorCode.INVALID_REQUEST
    question = asking.DescribeConfigsRequest(
        resources=[asking.DescribeConfigsResource(resource_type=GROUP, resource_name="")]
    )
    found = ask(client, ApiKey.DESCRIBE_CONFIGS, 4, question, asking.DescribeConfigsResponse)
    assert found.results[0].error_code == ErrorCode.INVALID_REQUEST


def test_all_configs_may_be_replaced_at_once(admin: AdminClient, client: RawClient, unique: Unique) -> None:
    group = unique("workers")
    for name, value in (("share.delivery.count.limit", "9"), (LOCK, "3000")):
        row = plain.AlterableConfig(name=name, value=value)
        resource = plain.AlterConfigsResource(resource_type=GROUP, resource_name=group, configs=[row])
        request = plain.AlterConfigsRequest(resources=[resource])
        answer = ask(client, ApiKey.ALTER_CONFIGS, 2, request, plain.AlterConfigsResponse)
        assert answer.responses[0].error_code == ErrorCode.NONE
    shown = configs(admin, group)
    assert (shown[LOCK].value, shown["share.delivery.count.limit"].value) == ("3000", "5")


def test_groups_with_configs_are_listed_as_resources(
    admin: AdminClient, client: RawClient, unique: Unique
) -> None:
    group = unique("workers")
    request = resources.ListConfigResourcesRequest(resource_types=[GROUP])

    def names() -> list[str]:
        key = ApiKey.LIST_CONFIG_RESOURCES
        answer = ask(client, key, 1, request, resources.ListConfigResourcesResponse)
        assert all(row.resource_type == GROUP for row in answer.config_resources)
        return [row.resource_name for row in answer.config_resources]

    assert group not in names()
    alter(admin, group, entry(LOCK, "60000"))
    assert group in names()
    alter(admin, group, entry(LOCK, None, AlterConfigOpType.DELETE))
    assert group not in names()


def test_members_get_the_heartbeat_interval_of_their_group(
    admin: AdminClient, client: RawClient, orders: str, unique: Unique
) -> None:
    member = Member(client, unique("workers"), orders)
    member.joined()
    alter(admin, member.group, entry("share.heartbeat.interval.ms", "1500"))
    assert member.reports().heartbeat_interval_ms == 1_500


# --- a real client


def receive(broker: Broker, group: str, topic: str, count: int) -> list[bytes]:
    """The messages of a share consumer that acknowledges all of them and leaves."""
    consumer = ShareConsumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    consumer.subscribe([topic])
    values: list[bytes] = []
    while len(values) < count:
        messages = consumer.poll(PATIENCE_SECONDS)
        assert messages, f"{len(values)} of {count} in {PATIENCE_SECONDS} s"
        values += [message.value() or b"" for message in messages]
    consumer.commit_sync(PATIENCE_SECONDS)
    consumer.close()
    return sorted(values)


def test_a_deleted_group_starts_over(
    broker: Broker, admin: AdminClient, client: RawClient, orders: str, unique: Unique
) -> None:
    group, sent = unique("workers"), [b"%d" % number for number in range(10)]
    alter(admin, group, entry("share.auto.offset.reset", "earliest"))
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
    for value in sent:
        producer.produce(orders, value)
    producer.flush(PATIENCE_SECONDS)
    assert receive(broker, group, orders, len(sent)) == sent
    assert describe(client, group).group_state == "Empty"
    assert delete(client, group) == ErrorCode.NONE
    assert receive(broker, group, orders, len(sent)) == sent


# --- a cluster


def coordinator_of(trio: Trio, group: str) -> int:
    with trio.client(1) as client:
        request = finding.FindCoordinatorRequest(key=group)
        ask(client, ApiKey.FIND_COORDINATOR, 2, request, finding.FindCoordinatorResponse)
    return trio.leader(OFFSETS_TOPIC, partition_of(trio, group))


def partition_of(trio: Trio, group: str) -> int:
    return offsets_partition(group, trio.node(1).metadata.state.topics[OFFSETS_TOPIC].partitions)


def test_only_the_coordinator_answers(trio: Trio, topic: str, unique: Unique) -> None:
    group = unique("workers")
    at = coordinator_of(trio, group)
    for node_id in trio.running:
        with trio.client(node_id) as client:
            member = Member(client, group, topic)
            if node_id == at:
                member.joined()
                described = until_served(lambda: describe(client, group))
                assert described.error_code == ErrorCode.NONE
            else:
                assert member.reports().error_code == ErrorCode.NOT_COORDINATOR
                assert describe(client, group).error_code == ErrorCode.NOT_COORDINATOR


def test_its_members_are_counted_in_the_metrics(trio: Trio, topic: str, unique: Unique) -> None:
    group = unique("workers")
    at = coordinator_of(trio, group)
    with trio.client(at) as client:
        Member(client, group, topic).joined()
    counts = {row.group_id: row.member_count for row in trio.node(at).groups.summaries()}
    assert counts[group] == 1


def test_the_next_coordinator_knows_the_group_and_its_members_rejoin(
    trio: Trio, topic: str, unique: Unique
) -> None:
    group = unique("workers")
    before = coordinator_of(trio, group)
    with trio.client(before) as client:
        member = Member(client, group, topic)
        member.joined()
    after = next(one for one in trio.running if one != before)
    trio.hand_over(OFFSETS_TOPIC, after, partition_of(trio, group))
    with trio.client(after) as client:
        member.client, told = client, member.epoch
        trio.eventually(lambda: trio.node(after).queues.share_groups.is_known(group))
        assert until_served(lambda: describe(client, group)).group_state == "Empty"
        member.epoch = told
        assert until_served(member.reports).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        member.epoch = 0
        member.joined()
        assert member.epoch > told


@pytest.mark.parametrize("node_id", [1, 2, 3])
def test_any_node_accepts_a_groups_configs_and_all_nodes_know_them(
    trio: Trio, unique: Unique, node_id: int
) -> None:
    group = unique("workers")
    host, port = trio.address(node_id)
    alter(AdminClient({"bootstrap.servers": f"{host}:{port}"}), group, entry(LOCK, "60000"))
    nodes = [trio.node(one) for one in trio.running]
    trio.eventually(
        lambda: all(node.resources.queue_config(group).record_lock_duration_ms == 60_000 for node in nodes)
    )
