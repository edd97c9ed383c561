"""Users and API tokens over HTTP."""

import json
import logging
from collections.abc import Iterator

import httpx
import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from penstock import Broker
from penstock.config import Limits
from penstock.types import Operation
from penstock.web.operations import operations
from tests.web.api.secured import PASSWORDS, REFUSED, Login, bearer, caller, code, logins, message
from tests.web.conftest import Unique

NEW_PASSWORD = "a password of my own"
STATUS = "status-log"


@pytest.fixture(scope="module")
def secured() -> Iterator[Broker]:
    limits = Limits(max_users=40, max_tokens=30, max_tokens_per_user=3)
    with Broker(users=PASSWORDS, limits=limits, status_topic=STATUS) as broker:
        yield broker


@pytest.fixture
def login(secured: Broker) -> Iterator[Login]:
    with logins(secured) as login:
        yield login


@pytest.fixture
def admin(login: Login) -> httpx.Client:
    return login("admin")


@pytest.fixture
def carol(admin: httpx.Client, unique: Unique) -> str:
    """A user that the test may change."""
    name = unique("carol")
    admin.post("/v1/users", json={"user": name, "password": NEW_PASSWORD}).raise_for_status()
    return name


def kafka(broker: Broker, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, str]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


# --- users


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_a_new_user_logs_in_over_http_and_with_every_mechanism_over_kafka(
    secured: Broker, carol: str, mechanism: str
) -> None:
    with caller(secured, carol, NEW_PASSWORD) as client:
        assert client.get("/v1/topics").json() == {"topics": []}
    kafka_client = AdminClient(kafka(secured, carol, NEW_PASSWORD, mechanism))
    assert kafka_client.list_topics(timeout=60).topics == {}


def test_the_list_has_names_and_mechanisms_and_nothing_of_passwords(admin: httpx.Client, carol: str) -> None:
    answer = admin.get("/v1/users")
    rows = {row["user"]: row for row in answer.json()["users"]}
    assert rows[carol] == {
        "user": carol,
        "principal": f"User:{carol}",
        "mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"],
        "tokens": 0,
        "super_user": False,
    }
    assert rows["admin"]["super_user"] is True


def test_a_user_that_exists_is_not_created_again(admin: httpx.Client, secured: Broker, carol: str) -> None:
    again = admin.post("/v1/users", json={"user": carol, "password": "another password"})
    assert code(again) == (409, "duplicate_resource")
    with caller(secured, carol, NEW_PASSWORD) as client:
        assert client.get("/v1").status_code == 200


@pytest.mark.parametrize("password", ["short", "tab\tand more", "x" * 2000])
def test_a_password_that_clients_could_not_send_is_refused_without_being_quoted(
    admin: httpx.Client, password: str, unique: Unique
) -> None:
    answer = admin.post("/v1/users", json={"user": unique("dave"), "password": password})
    assert answer.status_code == 400
    assert password not in answer.text


def test_users_are_limited_by_limits_max_users(admin: httpx.Client, unique: Unique) -> None:
    while True:
        answer = admin.post("/v1/users", json={"user": unique("many"), "password": NEW_PASSWORD})
        if answer.status_code != 201:
            break
    assert "limits.max_users" in message(answer)
    for row in admin.get("/v1/users").json()["users"]:
        if row["user"].startswith("many"):
            admin.delete(f"/v1/users/{row['user']}").raise_for_status()


def test_a_deleted_user_may_not_log_in_and_the_answer_tells_what_is_left(
    admin: httpx.Client, secured: Broker, carol: str
) -> None:
    rule = {"principal": f"User:{carol}", "operation": "read", "resource_type": "topic", "name": "t"}
    admin.post("/v1/acls", json={"acls": [rule]}).raise_for_status()
    admin.post("/v1/grants", json={"role": "reader", "principal": f"User:{carol}"}).raise_for_status()
    admin.post(f"/v1/users/{carol}/tokens", json={}).raise_for_status()
    deleted = admin.delete(f"/v1/users/{carol}").json()
    assert deleted == {"user": carol, "tokens_deleted": 1, "acls_left": 1, "grants_left": 1}
    with caller(secured, carol, NEW_PASSWORD) as client:
        assert code(client.get("/v1")) == (401, "login_failed")
    assert code(admin.delete(f"/v1/users/{carol}")) == (404, "resource_not_found")


# --- permissions


def test_users_without_permissions_change_no_other_user(login: Login, carol: str) -> None:
    alice = login("alice")
    attempts = [
        alice.get("/v1/users"),
        alice.post("/v1/users", json={"user": "eve", "password": NEW_PASSWORD}),
        alice.delete(f"/v1/users/{carol}"),
        alice.delete("/v1/users/alice"),
        alice.put(f"/v1/users/{carol}/password", json={"password": "taken over!"}),
        alice.get(f"/v1/users/{carol}/tokens"),
        alice.post(f"/v1/users/{carol}/tokens", json={}),
        alice.delete(f"/v1/users/{carol}/tokens/any"),
    ]
    assert [code(answer) for answer in attempts] == [REFUSED] * len(attempts)


def test_a_user_sets_its_own_password(secured: Broker, carol: str) -> None:
    with caller(secured, carol, NEW_PASSWORD) as client:
        changed = client.put(f"/v1/users/{carol}/password", json={"password": "the next password"})
        assert (changed.status_code, changed.content) == (204, b"")
        assert code(client.get("/v1")) == (401, "login_failed")
    with caller(secured, carol, "the next password") as client:
        assert client.get("/v1").status_code == 200


def test_an_administrator_sets_a_password_of_users_that_exist(admin: httpx.Client, carol: str) -> None:
    assert admin.put(f"/v1/users/{carol}/password", json={"password": "set by admin"}).status_code == 204
    missing = admin.put("/v1/users/nobody/password", json={"password": "set by admin"})
    assert code(missing) == (404, "resource_not_found")


def test_a_token_does_not_make_tokens_or_set_the_password_of_its_user(secured: Broker, carol: str) -> None:
    """A stolen token that expires could make one that does not."""
    with caller(secured, carol, NEW_PASSWORD) as client:
        token = client.post(f"/v1/users/{carol}/tokens", json={"lifetime_ms": 60_000}).json()["token"]
    with bearer(secured, token) as thief:
        assert thief.get("/v1/topics").status_code == 200
        assert code(thief.post(f"/v1/users/{carol}/tokens", json={})) == REFUSED
        assert code(thief.put(f"/v1/users/{carol}/password", json={"password": "taken over!"})) == REFUSED


def test_every_operation_of_administrators_is_refused_to_others(login: Login, secured: Broker) -> None:
    """The rows of the table about users, rules and roles, whatever is added to it."""
    node = secured._thread.service.node
    assert node is not None
    rows = [
        row
        for row in operations(node)
        if row.path.split("/")[2:3] in (["users"], ["acls"], ["roles"], ["grants"])
    ]
    assert len(rows) >= 17
    alice = login("alice")
    for row in rows:
        assert row.operation in (Operation.ALTER, Operation.DESCRIBE)
        path = row.path.format(user="bob", role="r", token_id="t")
        query = {"role": "r", "principal": "User:bob", "operation": "read", "resource_type": "cluster"}
        wanted = {name: query[name] for name in query if name in row.params.__struct_fields__}
        answer = alice.request(
            row.method,
            path,
            params={name: value for name, value in wanted.items() if f"{{{name}}}" not in row.path},
            json=BODIES.get((row.method, row.path.split("/")[-1]), {}) if row.body else None,
        )
        assert code(answer) == REFUSED, row


RULE = {"principal": "User:bob", "operation": "read", "resource_type": "cluster"}
BODIES = {
    ("POST", "users"): {"user": "eve", "password": NEW_PASSWORD},
    ("PUT", "password"): {"password": NEW_PASSWORD},
    ("POST", "acls"): {"acls": [RULE]},
    ("PUT", "{role}"): {"permissions": [{"resource_type": "topic", "operations": ["read"]}]},
    ("POST", "grants"): {"role": "admin", "principal": "User:alice"},
}


# --- tokens


def test_a_token_acts_as_its_user_until_it_is_revoked(
    admin: httpx.Client, secured: Broker, carol: str
) -> None:
    with caller(secured, carol, NEW_PASSWORD) as client:
        made = client.post(f"/v1/users/{carol}/tokens", json={"description": "nightly import"})
        assert made.status_code == 201
        token = made.json()["token"]
        admin.post("/v1/grants", json={"role": "operator", "principal": f"User:{carol}"}).raise_for_status()
        with bearer(secured, token) as program:
            assert program.post("/v1/topics", json={"name": f"of-{carol}"}).status_code == 201
            [row] = client.get(f"/v1/users/{carol}/tokens").json()["tokens"]
            assert row == {
                "token_id": token.split("_")[1],
                "user": carol,
                "description": "nightly import",
                "created_ms": row["created_ms"],
                "expires_ms": None,
            }
            assert client.delete(f"/v1/users/{carol}/tokens/{row['token_id']}").status_code == 204
            assert code(program.get("/v1/topics")) == (401, "login_failed")
        again = client.delete(f"/v1/users/{carol}/tokens/{row['token_id']}")
        assert code(again) == (404, "resource_not_found")


def test_a_token_ends_with_its_user_and_when_it_expires(
    admin: httpx.Client, secured: Broker, carol: str
) -> None:
    lasting = admin.post(f"/v1/users/{carol}/tokens", json={}).json()["token"]
    brief = admin.post(f"/v1/users/{carol}/tokens", json={"lifetime_ms": 1}).json()["token"]
    with bearer(secured, brief) as late:
        assert code(late.get("/v1")) == (401, "login_failed")
    with bearer(secured, lasting) as program:
        assert program.get("/v1").status_code == 200
        admin.delete(f"/v1/users/{carol}").raise_for_status()
        assert code(program.get("/v1")) == (401, "login_failed")


def test_the_tokens_of_a_user_are_limited(admin: httpx.Client, carol: str) -> None:
    for _ in range(3):
        assert admin.post(f"/v1/users/{carol}/tokens", json={}).status_code == 201
    refused = admin.post(f"/v1/users/{carol}/tokens", json={})
    assert code(refused) == (409, "policy_violation")
    assert "limits.max_tokens_per_user" in message(refused)


@pytest.mark.parametrize("token", ["pst_", "pst_a_b", f"pst_{'a' * 16}_{'b' * 32}"])
def test_a_token_that_was_never_made_is_refused(secured: Broker, token: str) -> None:
    with bearer(secured, token) as client:
        assert code(client.get("/v1")) == (401, "login_failed")


# --- secrets


def test_secrets_appear_in_no_log_event_or_answer_but_the_one_that_makes_a_token(
    secured: Broker, admin: httpx.Client, carol: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with caller(secured, carol, NEW_PASSWORD) as client:
        answers = [client.put(f"/v1/users/{carol}/password", json={"password": "the second one"})]
    token = admin.post(f"/v1/users/{carol}/tokens", json={}).json()["token"]
    with bearer(secured, token) as program, bearer(secured, token[:-1] + "a") as wrong:
        answers += [program.get("/v1/users"), wrong.get("/v1")]
    with caller(secured, carol, "a wrong password") as wrong:
        answers += [wrong.get("/v1")]
    answers += [
        admin.post("/v1/users", content=b'{"user": "x", "password": "broken json!'),
        admin.post("/v1/users", json={"user": "x", "password": ["not a text at all"]}),
        admin.post("/v1/users", json={"user": "x:y", "password": "a name with a colon"}),
        admin.get("/v1/users"),
        admin.get(f"/v1/users/{carol}/tokens"),
    ]
    secrets = [NEW_PASSWORD, "the second one", token.split("_")[2], "a wrong password", "broken json!"]
    secrets += ["not a text at all", "a name with a colon"]
    shown = caplog.text + "".join(answer.text for answer in answers) + status_events(secured, carol)
    assert [secret for secret in secrets if secret in shown] == []


def status_events(broker: Broker, user: str) -> str:
    """Everything in the status log up to the failed login of this test."""
    consumer = Consumer(
        {**kafka(broker, "admin", PASSWORDS["admin"]), "group.id": "reader", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([STATUS])
    found = ""
    try:
        while True:
            record = consumer.poll(30)
            assert record is not None, "the failed login is in the status log"
            assert record.error() is None
            found += record.value().decode()
            if f"wrong password for User:{user}" in json.loads(record.value()).get("reason", ""):
                return found
    finally:
        consumer.close()
