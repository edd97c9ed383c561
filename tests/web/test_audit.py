"""The audit log of the HTTP port: changes, refusals and failed logins."""

import base64
import json
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from penstock import Broker
from penstock.node.access import logins
from penstock.web.api.routing import HttpOperation
from penstock.web.operations import operations
from tests.node.status.status_events import TOPIC, events_until, has, told

PASSWORDS = {"admin": "admin-password", "alice": "alice-password"}
PATIENCE_SECONDS = 40
ADMIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "admin",
    "sasl.password": PASSWORDS["admin"],
}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logins, "FIRST_DELAY_SECONDS", 0.0)
        with Broker(users=PASSWORDS, status_topic=TOPIC) as broker:
            yield broker


def call(broker: Broker, method: str, path: str, user: str, password: str = "", body: object = None) -> int:
    assert broker.http_url is not None
    login = base64.b64encode(f"{user}:{password or PASSWORDS[user]}".encode()).decode()
    headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
    connection = HTTPConnection(broker.http_url.removeprefix("http://"), timeout=PATIENCE_SECONDS)
    connection.request(method, path, json.dumps(body or {}) if method != "GET" else None, headers)
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status


def test_changes_refusals_and_failed_logins_over_http_are_events(broker: Broker) -> None:
    orders = {"name": "orders", "partitions": 1}
    assert call(broker, "POST", "/v1/topics", "admin", body=orders) == 201
    assert call(broker, "POST", "/v1/topics", "admin", body=orders) == 409
    assert call(broker, "POST", "/v1/queues", "admin", body={"queue": "jobs", "topic": "orders"}) == 201
    assert call(broker, "POST", "/v1/queues/jobs/purge", "admin") == 200
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


def test_only_normal_work_is_left_out(broker: Broker) -> None:
    node = broker._thread.service.node
    assert node is not None

    def is_left_out(row: HttpOperation) -> bool:
        return row.method != "GET" and not row.is_audited

    left_out = {row.handler.__name__ for row in operations(node) if is_left_out(row)}
    assert left_out == {"publish", "receive_jobs", "settle_jobs", "send_beat"}
