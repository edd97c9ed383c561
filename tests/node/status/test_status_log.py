"""The status log: events of a broker in a topic."""

import asyncio
import logging
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from confluent_kafka import AcknowledgeType, Consumer, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from penstock import Broker
from penstock.batch import read_records
from penstock.config import GroupSettings, Limits, NodeConfig
from penstock.errors import ConfigError, ErrorCode, KafkaError, NotExecuted
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from penstock.node.calls import LeaderOf, Target
from penstock.node.status import status_log
from penstock.node.status.connection_events import SINGLES
from penstock.node.status.events import KINDS, MAX_TEXT, StatusEvent
from penstock.node.status.status_log import MAX_WAITING, StatusLog
from penstock.types import Caller, NodeId
from tests.kafka.clients.queues import configure, publish, take, worker
from tests.kafka.raw import RawClient
from tests.kafka.trio import Trio
from tests.web.pushing import subscriber

from .status_events import PATIENCE_SECONDS, TOPIC, Event, events_until, has, has_all, told

PAGE = Path(__file__).resolve().parents[3] / "docs" / "status-log.md"
NOW_MS = 1_772_442_847_114


@pytest.fixture
def watched() -> Iterator[Broker]:
    with Broker(status_topic=TOPIC) as running:
        yield running


def admin_of(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


def create(broker: Broker, topic: str, partitions: int = 1, **configs: str) -> None:
    new = NewTopic(topic, partitions, 1, config={key.replace("_", "."): configs[key] for key in configs})
    admin = admin_of(broker)
    admin.create_topics([new])[topic].result(PATIENCE_SECONDS)


def delete(broker: Broker, topic: str) -> None:
    admin = admin_of(broker)
    admin.delete_topics([topic])[topic].result(PATIENCE_SECONDS)


# --- events


def test_events_are_in_order_and_carry_their_fields(watched: Broker) -> None:
    create(watched, "orders", 3, retention_ms="60000")
    delete(watched, "orders")
    events = events_until(watched.bootstrap_servers, has("topic.deleted", topic="orders"))
    kinds = [event["kind"] for event in events if not event["kind"].startswith(("connection.", "audit."))]
    assert kinds == ["broker.started", "broker.ready", "topic.created", "topic.deleted"]
    assert [event["time"] for event in events] == sorted(event["time"] for event in events)
    assert {event["node_id"] for event in events} == {1}
    [started] = told(events, "broker.started")
    assert started["address"] == watched.bootstrap_servers
    [created] = told(events, "topic.created")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", created.pop("time"))
    assert created == {
        "kind": "topic.created",
        "node_id": 1,
        "topic": "orders",
        "partitions": 3,
        "replication_factor": 1,
        "configs": {"retention.ms": "60000"},
    }


def test_connection_events_have_the_clients_address(watched: Broker) -> None:
    host, port = watched.bootstrap_servers.split(":")
    with socket.create_connection((host, int(port))) as client:
        name = "{}:{}".format(*client.getsockname())
        events_until(watched.bootstrap_servers, has("connection.opened", client=name))
    events_until(watched.bootstrap_servers, has("connection.closed", client=name))


def test_a_connection_above_the_limit_is_a_refused_event() -> None:
    with Broker(status_topic=TOPIC, limits=Limits(max_connections=4)) as broker, ExitStack() as held:
        host, port = broker.bootstrap_servers.split(":")
        for _ in range(4):
            held.enter_context(socket.create_connection((host, int(port))))
        one_more = held.enter_context(socket.create_connection((host, int(port))))
        with suppress(ConnectionResetError):
            assert one_more.recv(1) == b""
        held.close()
        events = events_until(broker.bootstrap_servers, has("connection.refused"))
        assert told(events, "connection.refused")[0]["reason"] == "too many connections"


def test_joins_rebalances_and_leaves_of_a_group_are_events(watched: Broker) -> None:
    create(watched, "orders")
    consumer = Consumer(
        {"bootstrap.servers": watched.bootstrap_servers, "group.id": "billing", "client.id": "me"}
    )
    assigned = threading.Event()
    consumer.subscribe(["orders"], on_assign=lambda *_: assigned.set())
    while not assigned.is_set():
        consumer.poll(0.1)
    consumer.close()
    events = events_until(watched.bootstrap_servers, has("group.empty", group="billing"))
    about = [event for event in events if event.get("group") == "billing"]
    kinds = ["group.member_joined", "group.rebalanced", "group.member_left", "group.empty"]
    assert [event["kind"] for event in about] == kinds
    joined, rebalanced, left, _ = about
    assert (joined["client_id"], joined["client"]) == ("me", "127.0.0.1")
    assert (rebalanced["generation"], rebalanced["members"]) == (1, 1)
    assert left["member"] == joined["member"]
    admin = admin_of(watched)
    admin.delete_consumer_groups(["billing"])["billing"].result(PATIENCE_SECONDS)
    events_until(watched.bootstrap_servers, has("group.deleted", group="billing"))


def test_a_member_without_heartbeats_is_an_expired_event_with_the_reason() -> None:
    settings = GroupSettings(min_session_timeout_ms=100)
    with Broker(status_topic=TOPIC, groups=settings) as broker, RawClient(broker) as client:
        join = JoinGroupRequest(
            group_id="billing",
            session_timeout_ms=300,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        answer = client.call(ApiKey.JOIN_GROUP, 2, join)
        assert isinstance(answer, JoinGroupResponse)
        events = events_until(broker.bootstrap_servers, has("group.member_expired"))
    [expired] = told(events, "group.member_expired", group="billing")
    assert expired["member"] == answer.member_id
    assert expired["reason"] == "its session timed out"


def test_a_queue_has_events_from_its_first_consumer_to_its_dead_letter(watched: Broker) -> None:
    servers = watched.bootstrap_servers
    configure(servers, "workers", share_auto_offset_reset="earliest")
    publish(servers, "jobs", ["bad"])
    with worker(servers, "workers", "jobs") as consumer:
        [message] = take(consumer, lambda got: len(got) == 1)
        consumer.acknowledge(message, AcknowledgeType.REJECT)
        consumer.commit_sync()
        events = events_until(servers, has("queue.dead_letter"))
    assert told(events, "group.altered", group="workers", configs={"share.auto.offset.reset": "earliest"})
    assert told(events, "group.member_joined", group="workers")
    assert told(events, "queue.opened", group="workers", topic="jobs", partition=0)
    [dead] = told(events, "queue.dead_letter", group="workers", topic="jobs", partition=0)
    assert (dead["first_offset"], dead["last_offset"]) == (0, 0)
    assert (dead["reason"], dead["deliveries"]) == ("rejected", 1)
    delete(watched, "jobs")
    events_until(servers, has("queue.closed", group="workers", topic="jobs", reason="jobs-0 was deleted"))


def test_a_subscriber_has_events_for_its_begin_and_end(watched: Broker) -> None:
    create(watched, "news")
    with subscriber(watched.http_url) as reader:
        reader.subscribe("paper", "news")
    events = events_until(watched.bootstrap_servers, has("subscription.detached", subscription="paper"))
    [attached] = told(events, "subscription.attached", subscription="paper")
    assert (attached["topics"], attached["resumed"]) == (["news"], False)


def test_a_logged_error_is_one_event_from_any_thread(watched: Broker) -> None:
    def complain() -> None:
        for _ in range(3):
            logging.getLogger("penstock.node").error("disk %s is on fire", "sda")
        logging.getLogger("penstock.node").warning("it is warm")

    thread = threading.Thread(target=complain)
    thread.start()
    thread.join()
    create(watched, "later")
    events = events_until(watched.bootstrap_servers, has("topic.created", topic="later"))
    [error] = told(events, "error")
    assert (error["logger"], error["message"]) == ("penstock.node", "disk sda is on fire")


def test_every_event_matches_the_schema(watched: Broker) -> None:
    create(watched, "orders")
    delete(watched, "orders")
    for event in events_until(watched.bootstrap_servers, has("topic.deleted")):
        msgspec.convert(event, StatusEvent)
        assert event.keys() - {"time", "kind", "node_id"} <= set(KINDS[event["kind"]])


def test_the_manual_has_every_kind_with_its_fields() -> None:
    rows = re.findall(r"^\| `([a-z_]+(?:\.[a-z_]+)?)` \|([^|]*)\|[^|\n]*\|$", PAGE.read_text(), re.MULTILINE)
    manual = {kind: tuple(re.findall(r"`(\w+)`", fields)) for kind, fields in rows}
    assert manual == KINDS
    assert {field for fields in KINDS.values() for field in fields} == set(StatusEvent.__struct_fields__) - {
        "time",
        "kind",
        "node_id",
    }


# --- the topic


def test_the_topic_is_an_ordinary_one_bounded_by_retention(watched: Broker) -> None:
    events_until(watched.bootstrap_servers, has("broker.ready"))
    admin = admin_of(watched)
    shown = admin.list_topics(TOPIC, timeout=PATIENCE_SECONDS).topics[TOPIC]
    assert list(shown.partitions) == [0]
    resource = ConfigResource(ResourceType.TOPIC, TOPIC)
    configs = admin.describe_configs([resource])[resource].result(PATIENCE_SECONDS)
    assert configs["retention.ms"].value == str(7 * 24 * 3600 * 1000)
    assert configs["retention.bytes"].value == str(64 * 1024 * 1024)
    assert configs["cleanup.policy"].value == "delete"


def test_an_existing_topic_is_used_unchanged(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        create(broker, "audit", 2, retention_ms="1234567")
    with Broker(data_dir=tmp_path, status_topic="audit") as broker:
        events_until(broker.bootstrap_servers, has("broker.ready"), "audit")
        assert (
            len(admin_of(broker).list_topics("audit", timeout=PATIENCE_SECONDS).topics["audit"].partitions)
            == 2
        )


def test_an_embedded_broker_has_no_status_log_by_default() -> None:
    with Broker() as broker:
        create(broker, "orders")
        assert list(admin_of(broker).list_topics(timeout=PATIENCE_SECONDS).topics) == ["orders"]


@pytest.mark.parametrize("name", ["__consumer_offsets", "two words", "..", "x" * 250])
def test_an_invalid_topic_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="status_topic"):
        NodeConfig(status_topic=name).validate()


def test_it_continues_after_a_restart_and_ends_with_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_log, "STOP_SECONDS", PATIENCE_SECONDS)
    with Broker(data_dir=tmp_path, status_topic=TOPIC) as broker:
        create(broker, "orders")
    with Broker(data_dir=tmp_path, status_topic=TOPIC) as broker:
        events = events_until(broker.bootstrap_servers, lambda events: len(told(events, "broker.ready")) == 2)
    kinds = [event["kind"] for event in events if event["kind"].split(".")[0] in ("broker", "topic")]
    first = ["broker.started", "broker.ready", "topic.created", "broker.stopping"]
    assert kinds == [*first, "broker.started", "broker.ready"]


def test_a_deleted_status_topic_is_recreated_and_the_deletion_is_its_first_event(watched: Broker) -> None:
    events_until(watched.bootstrap_servers, has("broker.ready"))
    delete(watched, TOPIC)
    events = events_until(watched.bootstrap_servers, has("topic.deleted", topic=TOPIC))
    assert not told(events, "broker.ready")
    assert not told(events, "topic.created")


# --- floods, and a topic that cannot be written


class FakeForwarder:
    """Takes batches as RecordForwarder does, when the test allows it."""

    def __init__(self, *, open: bool = True) -> None:
        self.events: list[Event] = []
        self.can = asyncio.Event()
        self.trouble: Exception | None = None
        self.asked = 0
        if open:
            self.can.set()

    async def topic(
        self, name: str, *, caller: Caller, partitions: int = -1, configs: Mapping[str, str] | None = None
    ) -> Any:
        return name

    async def append(self, topic: Any, index: int, batch: bytes, *, caller: Caller) -> int:
        self.asked += 1
        await self.can.wait()
        if self.trouble is not None:
            raise self.trouble
        self.events += [msgspec.json.decode(record.value or b"") for record in read_records(batch)]
        return 0


class StillClock:
    def wall_ms(self) -> int:
        return NOW_MS


async def at_once() -> None:
    """When the node is ready."""


def new_log() -> StatusLog:
    return StatusLog(TOPIC, node_id=1, clock=StillClock())


def written(*told_first: tuple[str, Mapping[str, object]]) -> list[Event]:
    """The events in the topic after these were reported and the log was stopped."""

    async def run() -> list[Event]:
        log, forwarder = new_log(), FakeForwarder()
        log.start(forwarder, at_once)
        await asyncio.sleep(0)
        for kind, facts in told_first:
            log.tell(kind, **facts)
        await log.stop()
        return forwarder.events

    return asyncio.run(run())


def test_many_simultaneous_connections_are_summed_up_after_the_first() -> None:
    opened = [("connection.opened", {"client": f"10.0.0.1:{port}"}) for port in range(1, 1001)]
    refused = [("connection.refused", {"client": "10.0.0.2:1"})] * 7
    events = written(*opened, ("topic.deleted", {"topic": "orders"}), *refused)
    assert [event["client"] for event in told(events, "connection.opened")] == [
        f"10.0.0.1:{port}" for port in range(1, SINGLES + 1)
    ]
    [summary] = told(events, "connections.summary")
    assert (summary["opened"], summary["refused"]) == (1000 - SINGLES, 7)
    assert told(events, "topic.deleted"), "what is not a connection is told in full"


def test_a_flood_of_real_connections_is_summed_up(watched: Broker) -> None:
    host, port = watched.bootstrap_servers.split(":")
    events_until(watched.bootstrap_servers, has("broker.ready"))
    with ExitStack() as held:
        clients = [held.enter_context(socket.create_connection((host, int(port)))) for _ in range(300)]
        names = {"{}:{}".format(*client.getsockname()) for client in clients}
        events = events_until(watched.bootstrap_servers, lambda events: sum(opened(events, names)) >= 300)
    singly, summed = opened(events, names)
    assert singly < 200 < summed + singly


def opened(events: list[Event], names: set[str]) -> tuple[int, int]:
    """How many connections of these clients have single events, and how many connections of all clients are in sums."""
    singly = [event for event in told(events, "connection.opened") if event["client"] in names]
    return len(singly), sum(event.get("opened", 0) for event in told(events, "connections.summary"))


def test_memory_is_bounded_while_events_cannot_be_written_and_the_loss_is_reported() -> None:
    async def run() -> list[Event]:
        log, forwarder = new_log(), FakeForwarder()
        for number in range(MAX_WAITING + 1234):
            log.tell("topic.deleted", topic=str(number))
        log.start(forwarder, at_once)
        await asyncio.sleep(0)
        await log.stop()
        return forwarder.events

    dropped, *rest = asyncio.run(run())
    assert (dropped["kind"], dropped["count"]) == ("status.dropped", 1234)
    assert [event["topic"] for event in rest] == [str(number) for number in range(1234, MAX_WAITING + 1234)]


def test_failed_writes_are_retried_in_order_and_losses_add_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(status_log, "MAX_WAITING", 3)
    monkeypatch.setattr(status_log, "COLLECT_SECONDS", 0)
    monkeypatch.setattr(status_log, "RETRY_SECONDS", 0)

    async def run() -> list[Event]:
        log, forwarder = new_log(), FakeForwarder()
        forwarder.trouble = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "it has no leader")
        log.start(forwarder, at_once)
        for number in range(10):
            log.tell("topic.deleted", topic=str(number))
            asked = forwarder.asked
            while forwarder.asked < asked + 2:
                await asyncio.sleep(0)
        forwarder.trouble = None
        await log.stop()
        return forwarder.events

    events = asyncio.run(run())
    lost = sum(event["count"] for event in told(events, "status.dropped"))
    kept = [event["topic"] for event in told(events, "topic.deleted")]
    assert kept == [str(number) for number in range(lost, 10)]
    assert lost >= 7


def test_a_stopping_node_does_not_wait_for_a_topic_without_a_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(status_log, "STOP_SECONDS", 0.05)

    async def run() -> None:
        log, forwarder = new_log(), FakeForwarder(open=False)
        log.start(forwarder, at_once)
        log.tell("broker.stopping")
        await log.stop()
        assert not forwarder.events

    asyncio.run(asyncio.wait_for(run(), PATIENCE_SECONDS))


def test_a_node_that_is_not_ready_does_not_wait_at_all_when_it_stops() -> None:
    async def run() -> None:
        log, forwarder = new_log(), FakeForwarder()
        log.start(forwarder, asyncio.Event().wait)  # type: ignore[arg-type]
        log.tell("broker.started")
        await asyncio.sleep(0)
        await log.stop()
        assert forwarder.asked == 0

    asyncio.run(asyncio.wait_for(run(), PATIENCE_SECONDS))


def test_the_status_log_creates_no_events_about_itself() -> None:
    own: list[tuple[str, Mapping[str, object]]] = [
        ("topic.created", {"topic": TOPIC}),
        ("leader.elected", {"topic": TOPIC, "partition": 0}),
    ]
    others = [("topic.created", {"topic": "orders"}), ("topic.deleted", {"topic": TOPIC})]
    events = written(*own, *others)
    assert [(event["kind"], event["topic"]) for event in events] == [
        ("topic.created", "orders"),
        ("topic.deleted", TOPIC),
    ]


def test_an_event_without_a_schema_affects_no_other() -> None:
    events = written(
        ("topic.deleted", {"topic": "a"}),
        ("topic.deleted", {"colour": "red"}),
        ("topic.deleted", {"topic": object()}),
        ("topic.deleted", {"topic": "b"}),
    )
    assert [event["topic"] for event in events] == ["a", "b"]


def test_a_long_text_is_truncated() -> None:
    [event] = written(("error", {"message": "x" * 5000}))
    assert event["message"] == "x" * MAX_TEXT


def test_producers_and_admins_do_not_wait_when_the_status_topic_has_no_leader(watched: Broker) -> None:
    events_until(watched.bootstrap_servers, has("broker.ready"))
    node = watched._thread.service.node
    assert node is not None
    directory: Any = node.calls._directory
    find = directory.find
    tried = threading.Event()

    def find_no_leader(target: Target) -> NodeId:
        if not isinstance(target, LeaderOf):
            return NodeId(find(target))
        tried.set()
        raise NotExecuted(ErrorCode.LEADER_NOT_AVAILABLE, "no leader")

    directory.find = find_no_leader
    create(watched, "orders")
    assert tried.wait(PATIENCE_SECONDS), "the log is trying, in vain"
    producer = Producer(
        {"bootstrap.servers": watched.bootstrap_servers, "enable.idempotence": True, "acks": "all"}
    )
    for number in range(100):
        producer.produce("orders", str(number).encode())
    assert producer.flush(PATIENCE_SECONDS) == 0
    directory.find = find
    events_until(watched.bootstrap_servers, has("topic.created", topic="orders"))


# --- a cluster


def test_all_nodes_write_to_one_topic_and_a_leader_change_is_an_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Trio(status_topic=TOPIC) as trio:
        events_until(
            trio.bootstrap_servers,
            lambda events: {event["node_id"] for event in told(events, "broker.ready")} == {1, 2, 3},
        )
        orders = f"orders-{uuid4().hex[:6]}"
        admin = AdminClient({"bootstrap.servers": trio.bootstrap_servers})
        admin.create_topics([NewTopic(orders, 1, 3)])[orders].result(PATIENCE_SECONDS)
        first = trio.leader(orders)
        # Each node writes by itself: the order of events of different nodes says nothing.
        events_until(
            trio.bootstrap_servers,
            has_all(
                has("leader.elected", topic=orders, node_id=first),
                has("topic.created", topic=orders),
                has("controller.elected"),
                lambda events: {event["node"] for event in told(events, "node.joined")} == {1, 2, 3},
            ),
        )
        with monkeypatch.context() as patch:
            patch.setattr(status_log, "STOP_SECONDS", 30.0)
            trio.stop(first)
        second = trio.leader(orders)
        events = events_until(
            trio.bootstrap_servers,
            has_all(
                has("leader.elected", topic=orders, node_id=second),
                has("broker.stopping", node_id=first),
            ),
        )
        assert not told(events, "leader.elected", topic=TOPIC)
        assert len(told(events, "topic.created", topic=orders)) == 1, "only the controller tells it"
