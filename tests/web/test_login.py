"""Logins over HTTP and WebSocket, and requests that a page of another site might send."""

import asyncio
import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from starlette.websockets import WebSocket
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from penstock import Broker
from penstock.node.access import logins
from penstock.node.subscriptions.values import FrameSink
from penstock.security.errors import AuthenticationError
from penstock.types import Caller
from penstock.web.api.problems import Problem
from penstock.web.callers import CALLER
from penstock.web.clique_worker import Ended
from penstock.web.login import check_host, read_basic
from penstock.web.websocket_frames import lost_permission
from penstock.web.work_frames import Work
from penstock.web.worker import Worker, WorkersShare

PASSWORDS = {"admin": "admin-password", "alice": "alice:password", "bob": "bob-password"}
PATIENCE_SECONDS = 60
Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logins, "FIRST_DELAY_SECONDS", 0.0)
        with Broker(users=PASSWORDS) as broker:
            yield broker


@pytest.fixture(scope="module")
def admin(broker: Broker) -> AdminClient:
    return AdminClient(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "admin",
            "sasl.password": PASSWORDS["admin"],
        }
    )


def basic(user: str, password: str | None = None) -> dict[str, str]:
    text = f"{user}:{PASSWORDS.get(user) if password is None else password}"
    return {"Authorization": "Basic " + base64.b64encode(text.encode()).decode()}


def ask(
    broker: Broker, path: str, headers: dict[str, str] | None = None, method: str = "GET", body: Any = None
) -> tuple[int, Any, dict[str, str]]:
    host = broker.http_url.removeprefix("http://")
    connection = HTTPConnection(host, timeout=PATIENCE_SECONDS)
    more = {"content-type": "application/json"} if body is not None else {}
    connection.request(method, path, None if body is None else json.dumps(body), {**more, **(headers or {})})
    response = connection.getresponse()
    text = response.read()
    connection.close()
    found = json.loads(text) if text.startswith(b"{") else text
    return response.status, found, {name.lower(): value for name, value in response.getheaders()}


def code(answer: tuple[int, Any, dict[str, str]]) -> tuple[int, str]:
    return answer[0], answer[1]["error"]["code"]


def rule(kind: ResourceType, name: str, operation: AclOperation, user: str) -> AclBinding:
    literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    return AclBinding(kind, name, literal, f"User:{user}", "*", operation, allow)


def allow(admin: AdminClient, *rules: AclBinding) -> None:
    for created in admin.create_acls(list(rules)).values():
        created.result(PATIENCE_SECONDS)


def allow_reading(admin: AdminClient, user: str, topic: str, group: str) -> None:
    allow(
        admin,
        rule(ResourceType.TOPIC, topic, AclOperation.READ, user),
        rule(ResourceType.GROUP, group, AclOperation.READ, user),
    )


def forbid(admin: AdminClient, user: str, kind: ResourceType, name: str) -> None:
    wanted = AclBindingFilter(
        kind,
        name,
        ResourcePatternType.LITERAL,
        f"User:{user}",
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert admin.delete_acls([wanted])[wanted].result(PATIENCE_SECONDS)


# --- who it is


def test_probes_need_no_login_and_everything_else_does(broker: Broker) -> None:
    assert ask(broker, "/health")[0] == 200
    assert ask(broker, "/ready")[0] == 200
    for path in ("/metrics", "/", "/v1", "/v1/topics", "/v1/openapi.json", "/nothing-here"):
        answer = ask(broker, path)
        assert code(answer) == (401, "login_required"), path
        assert answer[2]["www-authenticate"].startswith("Basic")


def test_a_user_logs_in_with_its_password(broker: Broker) -> None:
    assert ask(broker, "/metrics", basic("admin"))[0] == 200
    assert ask(broker, "/v1/topics", basic("alice"))[0] == 200
    assert ask(broker, "/v1/cluster", basic("admin"))[0] == 200


@pytest.mark.parametrize(
    "header",
    [
        basic("admin", "wrong"),
        basic("nobody", "secret"),
        basic("", ""),
        {"Authorization": "Basic ???"},
        {"Authorization": "Basic " + base64.b64encode(b"no-colon").decode()},
        {"Authorization": "Basic " + base64.b64encode(b"\xff:\xff").decode()},
        {"Authorization": "Bearer abc"},
        {"Authorization": "Digest x"},
        {"Authorization": "Basic " + "A" * 13_000},
    ],
)
def test_wrong_credentials_get_one_and_the_same_answer(broker: Broker, header: dict[str, str]) -> None:
    answer = ask(broker, "/v1/topics", header)
    assert code(answer) == (401, "login_failed")
    assert answer[1]["error"]["message"] == "invalid credentials"


def test_a_login_does_not_make_the_broker_forget_failures_of_its_address(broker: Broker) -> None:
    """Otherwise somebody with an account could guess the passwords of others without delay."""
    node = broker._thread.service.node
    assert node is not None
    ask(broker, "/v1/topics", basic("admin", "wrong"))
    failures = node.logins._failures["127.0.0.1"]
    assert ask(broker, "/v1/topics", basic("alice"))[0] == 200
    assert node.logins._failures.get("127.0.0.1") == failures


def test_metrics_can_be_opened(unique: Unique) -> None:
    from penstock.config import Address, NodeConfig
    from penstock.embedded import _BrokerThread

    config = NodeConfig(
        memory=True,
        kafka=Address("127.0.0.1", 0),
        http=Address("127.0.0.1", 0),
        status_topic="",
        require_login=True,
        metrics_without_login=True,
    )
    thread = _BrokerThread(config, None)
    thread.start_and_wait()
    try:
        host = str(thread.service.http_address)
        connection = HTTPConnection(host, timeout=PATIENCE_SECONDS)
        connection.request("GET", "/metrics")
        assert connection.getresponse().status == 200
        connection.close()
    finally:
        thread.stop_and_wait()


def test_a_user_may_do_what_rules_allow_and_is_told_what_is_missing(
    broker: Broker, admin: AdminClient, unique: Unique
) -> None:
    topic = unique("topic")
    admin.create_topics([NewTopic(topic, 1)])[topic].result(PATIENCE_SECONDS)
    path = f"/v1/topics/{topic}"
    answer = ask(broker, path, basic("alice"))
    assert code(answer) == (403, "topic_authorization_failed")
    assert "User:alice has no DESCRIBE permission on topic" in answer[1]["error"]["message"]
    assert topic not in json.dumps(ask(broker, "/v1/topics", basic("alice"))[1])
    allow_reading(admin, "alice", topic, "any")
    assert ask(broker, path, basic("alice"))[0] == 200
    assert code(ask(broker, path, basic("alice"), "DELETE"))[0] == 403


# --- pages of other sites


@pytest.mark.parametrize("host", ["evil.example.org", "evil.example.org:8080", "127.0.0.1.evil.example.org"])
def test_a_name_that_is_not_this_nodes_is_refused(broker: Broker, host: str) -> None:
    assert code(ask(broker, "/v1/topics", {**basic("admin"), "Host": host})) == (421, "unknown_host")


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:1", "[::1]:8080", "penstock", "broker.example.org."]
)
def test_addresses_known_names_and_names_without_a_dot_are_accepted(host: str) -> None:
    check_host(host, {"broker.example.org"})
    with pytest.raises(Problem):
        check_host("other.example.org", {"broker.example.org"})
    check_host("other.example.org", {"*"})


def test_requests_that_pages_of_other_sites_make_are_refused(broker: Broker) -> None:
    answer = ask(broker, "/v1/topics", {**basic("admin"), "Sec-Fetch-Site": "cross-site"})
    assert code(answer) == (403, "foreign_site")
    assert ask(broker, "/v1/topics", {**basic("admin"), "Sec-Fetch-Site": "same-origin"})[0] == 200


def test_an_open_broker_refuses_foreign_hosts_too() -> None:
    with Broker() as broker:
        assert code(ask(broker, "/v1/topics", {"Host": "evil.example.org"})) == (421, "unknown_host")
        assert ask(broker, "/v1/topics")[0] == 200


def test_basic_keeps_colons_of_the_password() -> None:
    assert read_basic(base64.b64encode(b"alice:a:b").decode()) == ("alice", "a:b")
    with pytest.raises(AuthenticationError):
        read_basic("")


# --- rights that end


def socket_url(broker: Broker, path: str) -> str:
    return broker.http_url.replace("http://", "ws://") + path


@pytest.mark.parametrize("path", ["/v1/push", "/v1/work"])
def test_a_websocket_needs_a_login(broker: Broker, path: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(socket_url(broker, path))
    assert refused.value.response.status_code == 401
    with connect(socket_url(broker, path), additional_headers=basic("alice")):
        pass


def received(socket: ClientConnection) -> Iterator[str | bytes]:
    """All frames until the broker closes the connection."""
    with suppress(ConnectionClosed):
        while True:
            yield socket.recv(PATIENCE_SECONDS)


FIRST_FRAMES = {
    "/v1/push": lambda topic, group: {"type": "subscribe", "subscription": group, "topics": [topic]},
    "/v1/work": lambda topic, group: {"type": "work", "queue": group, "topics": [topic], "credit": 1},
}


@pytest.mark.parametrize("kind", [ResourceType.TOPIC, ResourceType.GROUP])
@pytest.mark.parametrize("path", FIRST_FRAMES)
def test_a_websocket_ends_with_its_permission(
    broker: Broker, admin: AdminClient, unique: Unique, path: str, kind: ResourceType
) -> None:
    topic, group = unique("topic"), unique("group")
    admin.create_topics([NewTopic(topic, 1)])[topic].result(PATIENCE_SECONDS)
    first = json.dumps(FIRST_FRAMES[path](topic, group))
    with connect(socket_url(broker, path), additional_headers=basic("bob")) as socket:
        socket.send(first)
        assert json.loads(socket.recv(PATIENCE_SECONDS))["code"] in (
            "group_authorization_failed",
            "topic_authorization_failed",
        )
    allow_reading(admin, "bob", topic, group)
    with connect(socket_url(broker, path), additional_headers=basic("bob")) as socket:
        socket.send(first)
        assert json.loads(socket.recv(PATIENCE_SECONDS))["type"] in ("subscribed", "working")
        forbid(admin, "bob", kind, topic if kind is ResourceType.TOPIC else group)
        frames = [json.loads(text) for text in received(socket)]
    assert any(frame.get("code", "").endswith("authorization_failed") for frame in frames)


Answer = tuple[int, Any, dict[str, str]]


@contextmanager
def receiving(
    broker: Broker, login: dict[str, str], group: str, topics: list[str] | None
) -> Iterator[list[Answer]]:
    """A request for jobs that waits; its answer, from the end of the block on."""
    answers: list[Answer] = []
    body = {"wait_ms": 30_000, **({"topics": topics} if topics is not None else {})}

    def receive() -> None:
        answers.append(ask(broker, f"/v1/queues/{group}/receive", login, "POST", body))

    waiting = threading.Thread(target=receive)
    waiting.start()
    node = broker._thread.service.node
    assert node is not None
    while not any(len(one._consumers) for one in node.queues.manager.drivers() if one.key.group_id == group):
        waiting.join(0.05)
        assert not answers, answers
    yield answers
    waiting.join(PATIENCE_SECONDS)


def new_queue(broker: Broker, unique: Unique) -> tuple[str, str]:
    """A topic and a queue on it."""
    topic, group = unique("topic"), unique("group")
    body = {"queue": group, "topic": topic}
    assert ask(broker, "/v1/queues", basic("admin"), "POST", body)[0] == 201
    return topic, group


@pytest.mark.parametrize("names_topics", [True, False])
@pytest.mark.parametrize("kind", [ResourceType.TOPIC, ResourceType.GROUP])
def test_a_long_poll_ends_with_its_permission(
    broker: Broker, admin: AdminClient, unique: Unique, kind: ResourceType, names_topics: bool
) -> None:
    topic, group = new_queue(broker, unique)
    allow_reading(admin, "bob", topic, group)
    with receiving(broker, basic("bob"), group, [topic] if names_topics else None) as answers:
        forbid(admin, "bob", kind, topic if kind is ResourceType.TOPIC else group)
    assert code(answers[0]) == (403, f"{kind.name.lower()}_authorization_failed")


def test_a_long_poll_ends_with_its_user(broker: Broker, admin: AdminClient, unique: Unique) -> None:
    topic, group = new_queue(broker, unique)
    user = {"user": unique("carol"), "password": "carols-password"}
    assert ask(broker, "/v1/users", basic("admin"), "POST", user)[0] == 201
    allow_reading(admin, user["user"], topic, group)
    with receiving(broker, basic(**user), group, None) as answers:
        assert ask(broker, f"/v1/users/{user['user']}", basic("admin"), "DELETE")[0] == 200
    assert code(answers[0]) == (401, "login_failed")


def test_a_long_poll_ends_with_its_token(broker: Broker, admin: AdminClient, unique: Unique) -> None:
    topic, group = new_queue(broker, unique)
    allow_reading(admin, "bob", topic, group)
    made = ask(broker, "/v1/users/bob/tokens", basic("bob"), "POST", {})[1]
    with receiving(broker, {"Authorization": f"Bearer {made['token']}"}, group, None) as answers:
        revoked = ask(broker, f"/v1/users/bob/tokens/{made['token_id']}", basic("bob"), "DELETE")
        assert revoked[0] == 204
    assert code(answers[0]) == (401, "login_failed")


def test_a_change_that_takes_the_callers_own_rights_is_answered(broker: Broker, unique: Unique) -> None:
    """It was made: an error would be wrong, and would lead to another attempt."""
    user = {"user": unique("dave"), "password": "daves-password"}
    assert ask(broker, "/v1/users", basic("admin"), "POST", user)[0] == 201
    grant = {"role": "admin", "principal": f"User:{user['user']}"}
    assert ask(broker, "/v1/grants", basic("admin"), "POST", grant)[0] == 201
    assert ask(broker, f"/v1/users/{user['user']}", basic(**user), "DELETE")[0] == 200


def test_a_permission_that_is_lost_while_a_subscriber_attaches_ends_its_websocket(broker: Broker) -> None:
    node = broker._thread.service.node
    assert node is not None
    caller = Caller("User:bob", "127.0.0.1")
    socket = WebSocket({"type": "websocket", CALLER: caller}, receive=no_frames, send=no_frames)
    losing = lost_permission(node, socket, "not-bobs", ["not-bobs"])
    lost = asyncio.run(asyncio.wait_for(losing, PATIENCE_SECONDS))
    assert lost.code == "group_authorization_failed"


def test_a_worker_that_finds_its_topic_forbidden_says_so(broker: Broker) -> None:
    """It looks at its partitions each second, and may notice a lost permission before `lost_permission` does. It is
    sent no frame before it looks."""
    node = broker._thread.service.node
    assert node is not None

    async def work() -> None:
        caller = Caller("User:bob", "127.0.0.1")
        worker = Worker(node, Work(queue="any", topics=["not-bobs"]), caller, "127.0.0.1:1", WorkersShare())
        await asyncio.wait_for(worker.run(cast(FrameSink, None)), PATIENCE_SECONDS)

    with pytest.raises(Ended) as ended:
        asyncio.run(work())
    assert ended.value.code == "topic_authorization_failed"


async def no_frames(*arguments: Any) -> Any:
    raise AssertionError("no frame is sent or received")


# --- queues that name their users


def rules_of(admin: AdminClient, name: str) -> set[tuple[str, str, str]]:
    wanted = AclBindingFilter(
        ResourceType.ANY,
        name,
        ResourcePatternType.LITERAL,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    found = admin.describe_acls(wanted).result(PATIENCE_SECONDS)
    return {(one.restype.name, one.principal, one.operation.name) for one in found}


def test_a_queue_names_who_may_produce_and_consume(
    broker: Broker, admin: AdminClient, unique: Unique
) -> None:
    queue = unique("queue")
    body = {"queue": queue, "point_to_point": True, "producers": ["alice"], "consumers": ["User:bob"]}
    assert code(ask(broker, "/v1/queues", basic("alice"), "POST", body))[0] == 403
    assert ask(broker, "/v1/queues", basic("admin"), "POST", body)[0] == 201
    assert rules_of(admin, queue) == {
        ("TOPIC", "User:alice", "WRITE"),
        ("TOPIC", "User:bob", "READ"),
        ("GROUP", "User:bob", "READ"),
    }
    records = {"records": [{"value": "a job"}]}
    path = f"/v1/topics/{queue}/records"
    assert code(ask(broker, path, basic("bob"), "POST", records))[0] == 403
    assert ask(broker, path, basic("alice"), "POST", records)[0] == 200
    receive = f"/v1/queues/{queue}/receive"
    assert code(ask(broker, receive, basic("alice"), "POST", {"wait_ms": 0}))[0] == 403
    status, received, _ = ask(broker, receive, basic("bob"), "POST", {"wait_ms": 30_000})
    assert status == 200
    assert [job["value"] for job in received["jobs"]] == ["a job"]


def test_a_queue_with_a_wrong_principal_is_not_created(broker: Broker, unique: Unique) -> None:
    body = {"queue": unique("queue"), "producers": ["Robot:x"]}
    answer = ask(broker, "/v1/queues", basic("admin"), "POST", body)
    assert (answer[0], answer[1]["error"]["field"]) == (400, "producers")
    assert ask(broker, f"/v1/queues/{body['queue']}", basic("admin"))[0] == 404


def test_names_mean_nothing_where_no_login_is_required(unique: Unique) -> None:
    with Broker() as broker:
        answer = ask(broker, "/v1/queues", {}, "POST", {"queue": unique("queue"), "consumers": ["bob"]})
    assert code(answer) == (409, "security_disabled")


# --- what the broker does by itself


def letters_go_to(broker: Broker, user: str, queue: str, target: str) -> tuple[int, str]:
    answer = ask(broker, f"/v1/queues/{queue}", basic(user), "PATCH", {"dead_letter_topic": target})
    return (answer[0], "") if answer[0] == 200 else code(answer)


def test_dead_letters_carry_no_record_past_the_rules(
    broker: Broker, admin: AdminClient, unique: Unique
) -> None:
    """The broker writes them: who names their topic must be allowed to write there, and to read the queue."""
    queue, secret, mine, new = unique("queue"), unique("secret"), unique("mine"), unique("new")
    for created in admin.create_topics([NewTopic(queue, 1), NewTopic(secret, 1), NewTopic(mine, 1)]).values():
        created.result(PATIENCE_SECONDS)
    assert ask(broker, "/v1/queues", basic("admin"), "POST", {"queue": queue})[0] == 201
    rules = [
        rule(ResourceType.GROUP, queue, AclOperation.ALTER_CONFIGS, "alice"),
        rule(ResourceType.GROUP, queue, AclOperation.DESCRIBE, "alice"),
        rule(ResourceType.TOPIC, mine, AclOperation.WRITE, "alice"),
    ]
    for created in admin.create_acls(rules).values():
        created.result(PATIENCE_SECONDS)
    assert letters_go_to(broker, "alice", queue, mine)[0] == 403, "it may not read the queue"
    allow_reading(admin, "alice", queue, queue)
    assert letters_go_to(broker, "alice", queue, mine)[0] == 200
    assert letters_go_to(broker, "alice", queue, secret) == (403, "topic_authorization_failed")
    assert letters_go_to(broker, "alice", queue, new) == (403, "topic_authorization_failed")
    created = rule(ResourceType.TOPIC, new, AclOperation.WRITE, "alice")
    admin.create_acls([created])[created].result(PATIENCE_SECONDS)
    assert letters_go_to(broker, "alice", queue, new)[0] == 403, "it may not create the topic"


def test_dead_letters_as_kafka_writes_them_carry_no_record_past_the_rules(
    broker: Broker, admin: AdminClient, unique: Unique
) -> None:
    """Kafka's config names their topic, too; with the other one the broker copies keys and values there."""
    queue, target = unique("queue"), f"dlq.{unique('mine')}"
    assert ask(broker, "/v1/queues", basic("admin"), "POST", {"queue": queue})[0] == 201
    group = [AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE]
    allow(admin, *(rule(ResourceType.GROUP, queue, operation, "alice") for operation in group))
    alice = AdminClient(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": PASSWORDS["alice"],
        }
    )
    topic, copies = "errors.deadletterqueue.topic.name", "errors.deadletterqueue.copy.record.enable"

    def refusal(name: str, value: str) -> int | None:
        over_http = ask(broker, f"/v1/queues/{queue}", basic("alice"), "PATCH", {"configs": {name: value}})
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.GROUP, queue, incremental_configs=[entry])
        try:
            alice.incremental_alter_configs([resource])[resource].result(PATIENCE_SECONDS)
        except KafkaException as refused:
            assert over_http[0] == 403
            return int(refused.args[0].code())
        assert over_http[0] == 200
        return None

    assert refusal(topic, target) == KafkaError.GROUP_AUTHORIZATION_FAILED, "it may not read the queue"
    assert refusal(copies, "true") is None, "no topic is named"
    assert refusal(copies, "false") is None
    changes = {"configs": {topic: target}}
    assert ask(broker, f"/v1/queues/{queue}", basic("admin"), "PATCH", changes)[0] == 200
    assert refusal(copies, " TRUE ") == KafkaError.GROUP_AUTHORIZATION_FAILED, "it may not read the queue"
    assert refusal(copies, "false") is None, "less is copied"
    allow_reading(admin, "alice", queue, queue)
    assert refusal(copies, "true") == KafkaError.TOPIC_AUTHORIZATION_FAILED, "it may not write there"
    allow(admin, rule(ResourceType.TOPIC, target, AclOperation.WRITE, "alice"))
    assert refusal(topic, target) == KafkaError.TOPIC_AUTHORIZATION_FAILED, "it may not create the topic"
    allow(admin, rule(ResourceType.TOPIC, target, AclOperation.CREATE, "alice"))
    assert refusal(topic, target) is None
    assert refusal(copies, "true") is None


def test_metrics_are_for_those_who_may_describe_the_cluster(
    broker: Broker, admin: AdminClient, unique: Unique
) -> None:
    assert code(ask(broker, "/metrics", basic("bob"))) == (403, "cluster_authorization_failed")
    allowed = rule(ResourceType.BROKER, "kafka-cluster", AclOperation.DESCRIBE, "bob")
    admin.create_acls([allowed])[allowed].result(PATIENCE_SECONDS)
    assert ask(broker, "/metrics", basic("bob"))[0] == 200


def test_the_status_log_is_changed_by_the_broker_alone() -> None:
    with Broker(users=PASSWORDS, status_topic="our.status") as own:
        settings = {
            "bootstrap.servers": own.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "admin",
            "sasl.password": PASSWORDS["admin"],
        }
        everything = AclBinding(
            ResourceType.TOPIC,
            "*",
            ResourcePatternType.LITERAL,
            "User:alice",
            "*",
            AclOperation.ALL,
            AclPermissionType.ALLOW,
        )
        admin = AdminClient(settings)
        admin.create_acls([everything])[everything].result(PATIENCE_SECONDS)
        records = {"records": [{"value": "forged"}]}
        for topic, status in (("orders", 200), ("our.status", 403)):
            ask(own, "/v1/topics", basic("admin"), "POST", {"name": topic})
            path = f"/v1/topics/{topic}"
            assert ask(own, f"{path}/records", basic("alice"), "POST", records)[0] == status
            assert ask(own, path, basic("alice"))[0] == 200, "it may be read"
        assert code(ask(own, "/v1/topics/our.status", basic("alice"), "DELETE"))[0] == 403
