"""Any node of a cluster answers any call, whichever nodes lead, coordinate or control."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NoReturn

import httpx
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.batch import EndMarker, Record, build_batch, check_batch
from penstock.cluster import offsets_partition
from penstock.errors import ErrorCode, KafkaError, Unanswered
from penstock.kafka.handlers.inner_client import InnerClient
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from penstock.kafka.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from penstock.node import Partition
from penstock.node.calls import BROKER, methods, retry
from penstock.node.calls import remote as remote_calls
from penstock.node.calls.messages.kafka import KafkaRequest
from penstock.types import Caller
from penstock.web.api import publishing
from tests.web.web_trio import WebTrio

Unique = Callable[[str], str]
NODES = (1, 2, 3)


@pytest.fixture(scope="module")
def trio() -> Iterator[WebTrio]:
    with WebTrio() as running:
        yield running


@pytest.fixture
def callers(trio: WebTrio) -> Iterator[dict[int, httpx.Client]]:
    with ExitStack() as stack:
        yield {node: stack.enter_context(trio.caller(node)) for node in NODES}


def make(trio: WebTrio, callers: dict[int, httpx.Client], name: str, at: int = 1, partitions: int = 3) -> str:
    """A topic whose partition n is led by node n + 1."""
    wish = {"name": name, "partitions": partitions, "replication_factor": 3}
    answer = callers[at].post("/v1/topics", json=wish)
    assert answer.status_code == 201, answer.text
    for index in range(partitions):
        trio.hand_over(name, index % 3 + 1, index)
        trio.leader(name, index)
    return name


@pytest.fixture
def topic(trio: WebTrio, callers: dict[int, httpx.Client], unique: Unique) -> str:
    return make(trio, callers, unique("spread"))


def read(client: httpx.Client, topic: str, partition: int, **query: Any) -> Any:
    answer = client.get(f"/v1/topics/{topic}/partitions/{partition}/records", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def transact(partition: Partition) -> None:
    """Producer 7 aborts, 8 commits, 9 stays open: one record each, then the two markers."""
    for producer_id in (7, 8, 9):
        rows = [Record(0, 1, None, b"%d" % producer_id)]
        batch = bytearray(
            build_batch(rows, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)
        )
        partition.append(batch, check_batch(batch))
    for producer_id, commit in ((7, False), (8, True)):
        marker = EndMarker(commit, 1)
        appended = partition.append_marker(marker, producer_id=producer_id, producer_epoch=0)
    committed = partition.committed_at(appended)
    if committed is not None:
        await committed


@pytest.mark.parametrize("partition", [0, 1, 2])
def test_every_node_reads_committed_records_of_any_leader(
    trio: WebTrio, callers: dict[int, httpx.Client], topic: str, partition: int
) -> None:
    trio.run(transact(trio.replica(partition + 1, topic, partition)))
    for client in callers.values():
        committed = read(client, topic, partition, isolation="read_committed", encoding="text")
        assert [(row["offset"], row["value"]) for row in committed["records"]] == [(1, "8")]
        assert (committed["next_offset"], committed["last_stable_offset"]) == (2, 2)
        latest = read(client, topic, partition, isolation="read_committed", offset="latest")
        assert latest["next_offset"] == 2
        assert len(read(client, topic, partition)["records"]) == 3


def read_all(client: httpx.Client, topic: str) -> list[Any]:
    """The values in partition 0, page by page: a page may end at a leader change."""
    values: list[Any] = []
    page = {"next_offset": 0, "high_watermark": 1}
    while page["next_offset"] < page["high_watermark"]:
        page = read(client, topic, 0, offset=page["next_offset"])
        values += [row["value"] for row in page["records"]]
    return values


def test_every_node_adds_up_the_sizes_and_rates_of_topics(
    trio: WebTrio, callers: dict[int, httpx.Client], topic: str
) -> None:
    now_ms = trio.node(1).clock.wall_ms()

    def sample(at_ms: int) -> None:
        for node in NODES:
            trio.run(trio.node(node).samples.take(at_ms))

    sample(now_ms - 2_000)
    records = [{"value": "x" * 1_000, "partition": number % 3} for number in range(30)]
    callers[1].post(f"/v1/topics/{topic}/records", json={"records": records}).raise_for_status()
    sample(now_ms)
    for client in callers.values():
        listed = client.get("/v1/topics?figures=true").json()["topics"]
        [row] = [one for one in listed if one["name"] == topic]
        assert row["message_rate"] == 15  # each message counts once, and not once for each replica
        assert row["size_bytes"] > 60_000  # of two of three replicas at least


# --- every call on every node


@pytest.mark.parametrize("at", NODES)
def test_topics_are_created_altered_grown_and_deleted_on_any_node(
    trio: WebTrio, callers: dict[int, httpx.Client], unique: Unique, at: int
) -> None:
    name = make(trio, callers, unique("everywhere"), at)
    here = callers[at]
    described = here.get(f"/v1/topics/{name}").json()
    assert [row["leader"] for row in described["partitions"]] == [1, 2, 3]
    assert [row["leader_address"] for row in described["partitions"]] == trio.bootstrap_servers.split(",")
    assert all(sorted(row["replicas"]) == [1, 2, 3] for row in described["partitions"])
    assert all(row["latest_offset"] == 0 for row in described["partitions"])
    changed = here.patch(f"/v1/topics/{name}/configs", json={"set": {"retention.ms": 5000}})
    assert changed.json()["configs"]["retention.ms"] == {"value": "5000", "inherited": False}
    assert here.post(f"/v1/topics/{name}/partitions", json={"count": 4}).status_code == 200
    assert len(here.get(f"/v1/topics/{name}").json()["partitions"]) == 4
    assert here.delete(f"/v1/topics/{name}").status_code == 204
    assert here.get(f"/v1/topics/{name}").status_code == 404


@pytest.mark.parametrize("at", NODES)
def test_records_are_published_and_read_on_any_node(
    trio: WebTrio, callers: dict[int, httpx.Client], topic: str, at: int
) -> None:
    records = [{"value": number, "partition": number % 3} for number in range(9)]
    answer = callers[at].post(f"/v1/topics/{topic}/records", json={"records": records})
    assert answer.status_code == 200, answer.text
    told = [(row["partition"], row["offset"]) for row in answer.json()["records"]]
    assert told == [(number % 3, number // 3) for number in range(9)]
    for node in NODES:
        for partition in range(3):
            found = read(callers[node], topic, partition)
            assert [row["value"] for row in found["records"]] == [partition, partition + 3, partition + 6]
            assert found["next_offset"] == found["high_watermark"] == 3
    ends = [row["latest_offset"] for row in callers[at].get(f"/v1/topics/{topic}").json()["partitions"]]
    assert ends == [3, 3, 3]


def test_kafka_clients_and_callers_of_any_node_read_each_others_records(
    trio: WebTrio, callers: dict[int, httpx.Client], topic: str
) -> None:
    for node in NODES:
        callers[node].post(f"/v1/topics/{topic}/records", json={"records": [{"value": node, "partition": 0}]})
    producer = Producer({"bootstrap.servers": trio.bootstrap_servers, "enable.idempotence": True})
    producer.produce(topic, b"4", partition=0)
    assert producer.flush(20) == 0
    consumer = Consumer({"bootstrap.servers": trio.bootstrap_servers, "group.id": "any"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert [one.value() for one in consumer.consume(4, 20)] == [b"1", b"2", b"3", b"4"]
    consumer.close()
    for node in NODES:
        assert [row["value"] for row in read(callers[node], topic, 0)["records"]] == [1, 2, 3, 4]


@pytest.mark.parametrize("at", NODES)
def test_a_reader_may_wait_at_a_node_that_does_not_lead(
    callers: dict[int, httpx.Client], topic: str, at: int
) -> None:
    found: list[Any] = []
    reader = threading.Thread(target=lambda: found.append(read(callers[at], topic, 0, wait_ms=30_000)))
    reader.start()
    callers[2].post(f"/v1/topics/{topic}/records", json={"records": [{"value": "come", "partition": 0}]})
    reader.join(60)
    assert [row["value"] for row in found[0]["records"]] == ["come"]


def test_a_reader_that_may_not_wait_at_the_leader_still_gets_the_next_record(
    trio: WebTrio, callers: dict[int, httpx.Client], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = trio.leader(topic, 0)
    at = next(node for node in NODES if node != leader)
    remote: Any = trio.node(at).calls._remote
    monkeypatch.setattr(remote._share(leader), "most_polls", 0)
    monkeypatch.setattr(remote_calls, "POLL_PAUSE_SECONDS", 0.01)
    asked, acquired = threading.Semaphore(0), remote_calls._acquired

    async def counted(semaphore: asyncio.Semaphore, wait_ms: int) -> bool:
        asked.release()
        return await acquired(semaphore, wait_ms)

    monkeypatch.setattr(remote_calls, "_acquired", counted)
    found: list[Any] = []
    reader = threading.Thread(target=lambda: found.append(read(callers[at], topic, 0, wait_ms=30_000)))
    reader.start()
    for _ in range(2):  # the first request was answered, with no record
        assert asked.acquire(timeout=60)
    callers[leader].post(f"/v1/topics/{topic}/records", json={"records": [{"value": "come", "partition": 0}]})
    reader.join(60)
    assert [row["value"] for row in found[0]["records"]] == ["come"]


@pytest.mark.parametrize("at", NODES)
def test_groups_are_listed_described_reset_and_deleted_on_any_node(
    trio: WebTrio, callers: dict[int, httpx.Client], topic: str, unique: Unique, at: int
) -> None:
    here = callers[at]
    records = [{"value": number, "partition": number % 3} for number in range(9)]
    here.post(f"/v1/topics/{topic}/records", json={"records": records}).raise_for_status()
    groups = [unique("group") for _ in range(4)]
    for group in groups:
        moved = here.post(f"/v1/groups/{group}/offsets", json={"topic": topic, "to": 1})
        assert moved.status_code == 200, moved.text
    for node in NODES:
        listed = callers[node].get("/v1/groups").json()
        assert set(groups) <= {row["group"] for row in listed["groups"]}
        assert listed["unanswered"] == []
        facts = callers[node].get(f"/v1/groups/{groups[0]}").json()
        assert facts["lag"] == 6
        assert facts["coordinator"] == coordinator_of(trio, groups[0])
    for group in groups:
        assert here.delete(f"/v1/groups/{group}").status_code == 204
    assert not set(groups) & {row["group"] for row in here.get("/v1/groups").json()["groups"]}


def coordinator_of(trio: WebTrio, group: str) -> int:
    count = trio.node(1).metadata.state.topics["__consumer_offsets"].partitions
    return trio.leader("__consumer_offsets", offsets_partition(group, count))


def test_a_topic_is_auto_created_also_through_a_node_that_is_not_the_controller(
    trio: WebTrio, callers: dict[int, httpx.Client], unique: Unique
) -> None:
    at = next(node for node in NODES if node != trio.controller())
    name = unique("used")
    answer = callers[at].post(f"/v1/topics/{name}/records", json={"records": [{"value": 1}]})
    assert answer.status_code == 200, answer.text


# --- when nodes do not answer


def test_a_leader_that_moves_is_found_again(
    trio: WebTrio, callers: dict[int, httpx.Client], topic: str
) -> None:
    for to in (2, 3, 1):
        trio.hand_over(topic, to)
        answer = callers[1].post(
            f"/v1/topics/{topic}/records", json={"records": [{"value": to, "partition": 0}]}
        )
        assert answer.status_code == 200, answer.text
    assert read_all(callers[2], topic) == [2, 3, 1]


def test_a_node_without_a_majority_answers_with_what_to_do(
    trio: WebTrio, callers: dict[int, httpx.Client], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.1)
    hurry(monkeypatch)
    monkeypatch.setattr(publishing, "COMMIT_MS", 200)
    with trio.cut_off(1):
        for partition in (0, 1):
            records = {"records": [{"value": 1, "partition": partition}]}
            refused = callers[1].post(f"/v1/topics/{topic}/records", json=records)
            assert refused.status_code == 503, refused.text
            assert refused.headers["retry-after"] == "1"
            assert refused.json()["error"]["message"]
    for index in range(3):
        trio.leader(topic, index)


def test_a_publish_whose_leader_never_answers_has_an_unknown_outcome(
    trio: WebTrio, callers: dict[int, httpx.Client], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    monkeypatch.setattr(publishing, "COMMIT_MS", 0)
    handlers = trio.node(2).calls._handlers
    monkeypatch.setitem(handlers, methods.KAFKA_REQUEST.number, _silence)
    refused = callers[1].post(f"/v1/topics/{topic}/records", json={"records": [{"value": 1, "partition": 1}]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "outcome_unknown")
    assert "may have been done" in refused.json()["error"]["message"]


async def _silence(caller: Caller, request: KafkaRequest) -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes wait a moment only for each other's Kafka responses."""
    for name in ("KAFKA_REQUEST", "KAFKA_QUERY"):
        monkeypatch.setattr(methods, name, getattr(methods, name)._replace(answer_ms=200))


# --- limits between nodes


def test_calls_to_one_node_are_limited_so_that_the_clusters_own_calls_still_fit(trio: WebTrio) -> None:
    client = InnerClient(trio.node(1), BROKER)
    remote: Any = trio.node(1).calls._remote

    async def scenario() -> list[bool]:
        share = remote._share(2)
        began, share.calls = share.calls, share.most
        with pytest.raises(Unanswered, match="requests of clients already wait for node 2") as refused:
            await client.ask(ApiKey.LIST_GROUPS, ListGroupsRequest(), ListGroupsResponse, to=2)
        share.calls = share.most - 1
        await client.ask(ApiKey.LIST_GROUPS, ListGroupsRequest(), ListGroupsResponse, to=2)
        left, share.calls = share.calls, began
        return [refused.value.may_be_done, left == share.most - 1]

    assert trio.run(scenario()) == [False, True]


@pytest.mark.parametrize(("node", "what"), [(1, "a request"), (3, "a response")])
def test_a_request_too_large_for_the_inter_node_limit_is_refused_by_name(
    trio: WebTrio, monkeypatch: pytest.MonkeyPatch, node: int, what: str
) -> None:
    client = InnerClient(trio.node(1), BROKER)
    monkeypatch.setattr(trio.node(node).calls._remote, "_max_bytes", 1 if node == 1 else 10)

    async def scenario() -> None:
        await client.ask(ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest(), DescribeConfigsResponse, to=3)

    with pytest.raises(KafkaError, match=what) as refused:
        trio.run(scenario())
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_a_node_that_is_not_ready_does_not_answer_others(trio: WebTrio) -> None:
    client = InnerClient(trio.node(1), BROKER)

    async def scenario() -> None:
        trio.node(3).ready = False
        try:
            await client.ask(ApiKey.LIST_GROUPS, ListGroupsRequest(), ListGroupsResponse, to=3)
        finally:
            trio.node(3).ready = True

    with pytest.raises(KafkaError, match="starting or stopping"):
        trio.run(scenario())


def test_a_list_of_groups_names_the_nodes_that_did_not_answer(
    trio: WebTrio, callers: dict[int, httpx.Client]
) -> None:
    def set_ready(ready: bool) -> None:
        trio.node(3).ready = ready

    trio.call(lambda: set_ready(False))
    try:
        assert callers[1].get("/v1/groups").json()["unanswered"] == [3]
    finally:
        trio.call(lambda: set_ready(True))


def test_after_a_node_is_lost_the_others_serve_its_partitions(unique: Unique) -> None:
    with WebTrio() as trio, ExitStack() as stack:
        callers = {node: stack.enter_context(trio.caller(node)) for node in NODES}
        topic = make(trio, callers, unique("inherited"))
        publish_to_all = {"records": [{"value": number, "partition": number} for number in range(3)]}
        assert callers[3].post(f"/v1/topics/{topic}/records", json=publish_to_all).status_code == 200
        trio.stop(3)
        for node in (1, 2):
            answer = callers[node].post(f"/v1/topics/{topic}/records", json=publish_to_all)
            assert answer.status_code == 200, answer.text
        assert read(callers[1], topic, 2)["high_watermark"] == 3
        refused = callers[3].get("/v1/topics")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
