"""The group coordinator shows a queue as a share group, however its messages are consumed."""

from collections.abc import Callable, Iterator

import httpx
import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock import Broker
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages import delete_groups as deleting
from penstock.kafka.wire.messages import join_group as joining
from penstock.kafka.wire.messages import list_groups as listing
from penstock.kafka.wire.messages import offset_commit as committing
from penstock.kafka.wire.messages import share_group_describe as describing
from tests.kafka.raw import RawClient
from tests.kafka.requests import ask
from tests.web.workers import working

Unique = Callable[[str], str]


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker) as connected:
        yield connected


@pytest.fixture
def topic(http: httpx.Client, unique: Unique) -> str:
    name = unique("mail")
    http.post("/v1/topics", json={"name": name}).raise_for_status()
    return name


@pytest.fixture
def queue(http: httpx.Client, unique: Unique) -> str:
    """It was created and never used."""
    name = unique("work")
    http.post("/v1/queues", json={"queue": name}).raise_for_status()
    return name


@pytest.fixture
def group(broker: Broker, topic: str, unique: Unique) -> str:
    """A consumer group that has committed an offset, and has no members."""
    name = unique("readers")
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": name})
    consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    consumer.close()
    return name


def listed(client: RawClient, name: str) -> tuple[str, str] | None:
    answer = ask(client, ApiKey.LIST_GROUPS, 5, listing.ListGroupsRequest(), listing.ListGroupsResponse)
    found = {row.group_id: (row.group_type, row.group_state) for row in answer.groups}
    return found.get(name)


def described(client: RawClient, name: str) -> tuple[int, str, int]:
    request = describing.ShareGroupDescribeRequest(group_ids=[name])
    answer = ask(client, ApiKey.SHARE_GROUP_DESCRIBE, 1, request, describing.ShareGroupDescribeResponse)
    [row] = answer.groups
    return row.error_code, row.group_state, len(row.members)


def delete(client: RawClient, name: str) -> int:
    request = deleting.DeleteGroupsRequest(groups_names=[name])
    return ask(client, ApiKey.DELETE_GROUPS, 2, request, deleting.DeleteGroupsResponse).results[0].error_code


def is_an_empty_share_group(client: RawClient, name: str) -> bool:
    return listed(client, name) == ("share", "Empty") and described(client, name) == (0, "Empty", 0)


# --- listed and described


def test_a_queue_that_was_created_is_listed_and_described_as_a_share_group(
    client: RawClient, queue: str
) -> None:
    assert is_an_empty_share_group(client, queue)


def test_a_queue_that_is_used_only_over_http_is_a_share_group(
    http: httpx.Client, client: RawClient, topic: str, unique: Unique
) -> None:
    name = unique("work")
    http.post(f"/v1/queues/{name}/receive", json={"topics": [topic]}).raise_for_status()
    assert is_an_empty_share_group(client, name)


def test_a_queue_that_is_used_only_over_websocket_is_a_share_group(
    broker: Broker, client: RawClient, topic: str, unique: Unique
) -> None:
    name = unique("work")
    with working(broker.http_url, name, topic) as worker:
        worker.hear("working")
        assert is_an_empty_share_group(client, name)


def test_a_create_that_fails_leaves_no_group(http: httpx.Client, client: RawClient, unique: Unique) -> None:
    name = unique("work")
    answer = http.post("/v1/queues", json={"queue": name, "replication_factor": 9})
    assert answer.status_code == 400, answer.text
    assert listed(client, name) is None


def test_sending_back_dead_letters_leaves_no_group(http: httpx.Client, client: RawClient, queue: str) -> None:
    http.post(f"/v1/topics/{queue}/records", json={"records": [{"value": 1}]}).raise_for_status()
    [job] = http.post(f"/v1/queues/{queue}/receive", json={"wait_ms": 30_000}).json()["jobs"]
    http.post(f"/v1/queues/{queue}/settle", json={"reject": [job["receipt"]]}).raise_for_status()
    while not http.post(f"/v1/queues/{queue}/dead-letters/send-back", json={"all": True}).json()["sent_back"]:
        pass
    answer = ask(client, ApiKey.LIST_GROUPS, 5, listing.ListGroupsRequest(), listing.ListGroupsResponse)
    assert not [row.group_id for row in answer.groups if row.group_id.startswith("__")]


# --- deleted


def test_deleting_the_group_erases_the_queue(http: httpx.Client, client: RawClient, queue: str) -> None:
    http.post(f"/v1/topics/{queue}/records", json={"records": [{"value": 1}]}).raise_for_status()
    assert delete(client, queue) == ErrorCode.NONE
    assert http.get(f"/v1/queues/{queue}").status_code == 404
    assert listed(client, queue) is None
    assert delete(client, queue) == ErrorCode.GROUP_ID_NOT_FOUND


def test_deleting_the_queue_deletes_the_group(http: httpx.Client, client: RawClient, queue: str) -> None:
    assert http.delete(f"/v1/queues/{queue}").status_code == 204
    assert listed(client, queue) is None
    assert described(client, queue)[0] == ErrorCode.GROUP_ID_NOT_FOUND


def test_the_group_is_not_deleted_under_a_worker_that_is_connected(
    http: httpx.Client, broker: Broker, client: RawClient, queue: str
) -> None:
    with working(broker.http_url, queue, queue, credit=0) as worker:
        worker.hear("working")
        assert delete(client, queue) == ErrorCode.NON_EMPTY_GROUP
        assert http.get(f"/v1/queues/{queue}").status_code == 200
    while delete(client, queue) == ErrorCode.NON_EMPTY_GROUP:
        pass
    assert http.get(f"/v1/queues/{queue}").status_code == 404


def test_a_queue_that_begins_again_after_its_deletion_is_listed_again(
    http: httpx.Client, client: RawClient, queue: str
) -> None:
    http.post(f"/v1/queues/{queue}/receive", json={}).raise_for_status()
    assert delete(client, queue) == ErrorCode.NONE
    http.post(f"/v1/queues/{queue}/receive", json={"topics": [queue]}).raise_for_status()
    assert is_an_empty_share_group(client, queue)


def test_a_group_whose_topic_was_deleted_can_be_deleted_over_http(
    http: httpx.Client, client: RawClient, queue: str
) -> None:
    assert http.delete(f"/v1/groups/{queue}").status_code == 404, "a queue is deleted as one"
    assert http.delete(f"/v1/topics/{queue}").status_code == 204
    assert http.get(f"/v1/queues/{queue}").status_code == 404
    assert http.delete(f"/v1/groups/{queue}").status_code == 204
    assert listed(client, queue) is None
    assert http.delete(f"/v1/groups/{queue}").status_code == 404


# --- one name, one kind


def test_no_consumer_group_begins_under_a_queues_name(client: RawClient, queue: str) -> None:
    protocol = joining.JoinGroupRequestProtocol(name="range", metadata=b"")
    request = joining.JoinGroupRequest(
        group_id=queue,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[protocol],
    )
    answer = ask(client, ApiKey.JOIN_GROUP, 9, request, joining.JoinGroupResponse)
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    row = committing.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
    commit = committing.OffsetCommitRequest(
        group_id=queue, topics=[committing.OffsetCommitRequestTopic(name=queue, partitions=[row])]
    )
    told = ask(client, ApiKey.OFFSET_COMMIT, 9, commit, committing.OffsetCommitResponse)
    assert told.topics[0].partitions[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert is_an_empty_share_group(client, queue)


def test_resetting_a_queue_as_a_group_is_refused_because_it_is_a_queue(
    http: httpx.Client, queue: str
) -> None:
    answer = http.post(f"/v1/groups/{queue}/offsets", json={"topic": queue, "to": "earliest"})
    assert answer.status_code == 404
    assert "is a queue" in answer.json()["error"]["message"]


def test_a_queue_is_not_created_under_a_consumer_groups_name_and_leaves_no_topic(
    http: httpx.Client, group: str
) -> None:
    answer = http.post("/v1/queues", json={"queue": group, "lease_ms": 5000})
    facts = answer.json()["error"]
    assert (answer.status_code, facts["field"]) == (409, "queue")
    assert "consumer group" in facts["message"]
    assert http.get(f"/v1/topics/{group}").status_code == 404
    assert http.delete(f"/v1/groups/{group}").status_code == 204
    made = http.post("/v1/queues", json={"queue": group})
    assert made.status_code == 201
    assert made.json()["settings"]["lease_ms"] == 30_000


def test_a_queue_does_not_begin_under_a_consumer_groups_name_over_http(
    http: httpx.Client, group: str, topic: str
) -> None:
    answer = http.post(f"/v1/queues/{group}/receive", json={"topics": [topic], "wait_ms": 30_000})
    assert answer.status_code == 409
    assert "consumer group" in answer.json()["error"]["message"]
    assert http.get(f"/v1/queues/{group}").status_code == 404


def test_a_queue_does_not_begin_under_a_consumer_groups_name_over_websocket(
    http: httpx.Client, broker: Broker, group: str, topic: str
) -> None:
    with working(broker.http_url, group, topic) as worker:
        said, _ = worker.ending()
    assert said["type"] == "error"
    assert "consumer group" in said["message"]
    assert http.get(f"/v1/queues/{group}").status_code == 404
