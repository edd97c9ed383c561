"""The audit log of the HTTP port: changes, refusals and failed logins."""

import base64
import json
from collections.abc import Iterator
from http.client import HTTPConnection

import httpx
import pytest

from penstock import Broker
from penstock.config import Address, NodeConfig
from penstock.embedded import _BrokerThread
from penstock.node.access import logins
from penstock.web.api.routing import HttpOperation
from penstock.web.operations import operations
from tests.node.status.status_events import TOPIC, events_until, has, told

PASSWORDS = {"admin": "admin-password", "alice": "alice-password"}
PATIENCE_SECONDS = 60
ADMIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "admin",
    "sasl.password": PASSWORDS["admin"],
}


LOOKS = {
    "/v1/cluster/rebalance": {"dry_run": True},
    "/v1/cluster/recover": {},
    "/v1/groups/readers/offsets": {"topic": "orders", "to": 0, "dry_run": True},
    "/v1/queues/jobs/reset": {"to": "earliest", "dry_run": True},
}
"""Requests that ask what a change would do, and are no changes."""


@pytest.fixture
def broker() -> Iterator[Broker]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logins, "FIRST_DELAY_SECONDS", 0.0)
        with Broker(users=PASSWORDS, status_topic=TOPIC) as broker:
            yield broker


def call(
    broker: Broker,
    method: str,
    path: str,
    user: str,
    password: str = "",
    body: object = None,
) -> int:
    assert broker.http_url is not None
    login = base64.b64encode(f"{user}:{password or PASSWORDS[user]}".encode()).decode()
    headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
    connection = HTTPConnection(broker.http_url.removeprefix("http://"), timeout=PATIENCE_SECONDS)
    connection.request(method, path, json.dumps(body or {}) if method != "GET" else None, headers)
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status


@pytest.mark.parametrize(
    ("trusted", "told_by_proxy", "seen"),
    [
        ((), "192.0.2.7", "127.0.0.1"),
        (("10.0.0.0/8",), "192.0.2.7", "127.0.0.1"),
        (("127.0.0.1",), "192.0.2.7", "192.0.2.7"),
        (("127.0.0.1",), "not an address", "127.0.0.1"),
    ],
)
def test_only_a_trusted_proxy_says_where_a_request_comes_from(
    trusted: tuple[str, ...], told_by_proxy: str, seen: str
) -> None:
    anywhere = Address("127.0.0.1", 0)
    config = NodeConfig(
        memory=True, kafka=anywhere, http=anywhere, status_topic=TOPIC, http_trusted_proxies=trusted
    )
    thread = _BrokerThread(config, None)
    thread.start_and_wait()
    try:
        url = f"http://{thread.service.http_address}/v1/topics"
        made = httpx.post(url, json={"name": "orders"}, headers={"X-Forwarded-For": told_by_proxy})
        assert made.status_code == 201
        found = events_until(str(thread.service.kafka_address), has("audit.changed"))
        assert [event["client"] for event in told(found, "audit.changed")] == [seen]
    finally:
        thread.stop_and_wait()


def test_changes_refusals_and_failed_logins_over_http_are_events(broker: Broker) -> None:
    orders = {"name": "orders", "partitions": 1}
    assert call(broker, "POST", "/v1/topics", "admin", body=orders) == 201
    assert call(broker, "POST", "/v1/topics", "admin", body=orders) == 409
    assert call(broker, "POST", "/v1/queues", "admin", body={"queue": "jobs", "topic": "orders"}) == 201
    assert call(broker, "POST", "/v1/queues/jobs/purge", "admin") == 200
    for path, look in LOOKS.items():
        assert call(broker, "POST", path, "admin", body=look) in (
            200,
            409,
        )  # a node that is alone moves nothing
    assert call(broker, "DELETE", "/v1/topics/orders", "alice") == 403
    assert call(broker, "GET", "/v1/topics", "alice", "not-the-password") == 401
    refused = has("audit.login", outcome="refused", protocol="http", client="127.0.0.1")
    found = events_until(broker.bootstrap_servers, refused, settings=ADMIN)
    changes = told(found, "audit.changed", principal="User:admin", client="127.0.0.1")
    assert [(one["operation"], one["name"], one["outcome"]) for one in changes] == [
        ("create_topic", "orders", "allowed"),
        ("create_topic", "orders", "failed"),
        ("create_queue", "jobs", "allowed"),
        ("purge_queue", "jobs", "allowed"),
    ]
    assert changes[1]["reason"] == "topic_already_exists"
    assert told(found, "audit.refused", principal="User:alice", operation="delete", name="orders")
    text = json.dumps(found)
    assert not any(secret in text for secret in [*PASSWORDS.values(), "not-the-password"])


def test_a_worker_whose_heartbeat_creates_the_queue_of_a_clique_is_named_once(broker: Broker) -> None:
    rules = [
        {"principal": "User:alice", "operation": "read", "resource_type": kind, "name": name}
        for kind, name in (("group", "pricing"), ("topic", "orders"))
    ]
    assert call(broker, "POST", "/v1/acls", "admin", body={"acls": rules}) == 201
    assert call(broker, "POST", "/v1/topics", "admin", body={"name": "orders"}) == 201
    for sequence in (1, 2):
        heartbeat = {"member_id": "a" * 32, "sequence": sequence, "streams": ["orders"]}
        assert call(broker, "PUT", "/v1/cliques/pricing/members/w1", "alice", body=heartbeat) == 200
    assert call(broker, "DELETE", "/v1/topics/orders", "admin") == 204
    ended = has("audit.changed", operation="delete_topic")
    found = events_until(broker.bootstrap_servers, ended, settings=ADMIN)
    [created] = told(found, "audit.changed", principal="User:alice")
    assert [created[name] for name in ("operation", "resource", "name")] == [
        "create_clique",
        "group",
        "pricing",
    ]


def test_changes_of_users_roles_and_rules_name_them(broker: Broker) -> None:
    """As changes over Kafka do. A permission on the cluster is what such a request needs, and not what it changes."""
    new, other = "bob-password", "bob-password-2"
    assert call(broker, "POST", "/v1/users", "admin", body={"user": "bob", "password": new}) == 201
    assert call(broker, "PUT", "/v1/users/bob/password", "bob", new, body={"password": other}) == 204
    assert call(broker, "POST", "/v1/users/bob/tokens", "bob", other) == 201
    readers = {"permissions": [{"resource_type": "topic", "operations": ["read"]}]}
    assert call(broker, "PUT", "/v1/roles/readers", "admin", body=readers) == 200
    grant = {"role": "readers", "principal": "User:bob", "name": "orders.", "pattern_type": "prefixed"}
    assert call(broker, "POST", "/v1/grants", "admin", body=grant) == 201
    rule = {"principal": "User:bob", "operation": "read", "resource_type": "topic", "name": "orders"}
    assert call(broker, "POST", "/v1/acls", "admin", body={"acls": [rule]}) == 201
    assert call(broker, "DELETE", "/v1/acls?principal=User:bob", "admin") == 200
    assert call(broker, "DELETE", "/v1/roles/readers", "admin") == 409
    assert call(broker, "DELETE", "/v1/users/bob", "admin") == 200
    deleted = has("audit.changed", operation="delete_user")
    found = events_until(broker.bootstrap_servers, deleted, settings=ADMIN)
    changes = told(found, "audit.changed", client="127.0.0.1")
    assert [(one["operation"], one["resource"], one["name"], one["outcome"]) for one in changes] == [
        ("create_user", "user", "bob", "allowed"),
        ("set_password", "user", "bob", "allowed"),
        ("create_token", "user", "bob", "allowed"),
        ("put_role", "role", "readers", "allowed"),
        ("grant_role", "role", "readers for User:bob on orders.*", "allowed"),
        ("add_acls", "cluster", "allow User:bob read topic orders", "allowed"),
        ("remove_acls", "cluster", "any User:bob any any any", "allowed"),
        ("delete_role", "role", "readers", "failed"),
        ("delete_user", "user", "bob", "allowed"),
    ]
    assert not any(secret in json.dumps(found) for secret in (new, other))


def test_every_change_of_users_and_roles_names_them(broker: Broker) -> None:
    node = broker._thread.service.node
    assert node is not None
    named = {"users": "user", "roles": "role", "grants": "role"}
    changes = [row for row in operations(node) if row.is_audited and row.tag in named]
    assert changes
    assert [row.name for row in changes if row.changes != named[row.tag]] == []


def test_only_normal_work_is_left_out(broker: Broker) -> None:
    node = broker._thread.service.node
    assert node is not None

    def is_left_out(row: HttpOperation) -> bool:
        return row.method != "GET" and not row.is_audited

    left_out = {row.handler.__name__ for row in operations(node) if is_left_out(row)}
    of_attempts = {"lend_attempt", "renew_attempts", "commit_version", "rollback_version"}
    assert left_out == {"publish", "receive_jobs", "settle_jobs", "send_heartbeat", *of_attempts}
