"""Access rules, roles and grants over HTTP."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from penstock import Broker
from penstock.config import Limits
from tests.web.api.secured import PASSWORDS, Login, code, logins, message
from tests.web.conftest import Unique


@pytest.fixture(scope="module")
def secured() -> Iterator[Broker]:
    with Broker(users=PASSWORDS, limits=Limits(max_acls=60, max_roles=3, max_role_grants=5)) as broker:
        yield broker


@pytest.fixture
def login(secured: Broker) -> Iterator[Login]:
    with logins(secured) as login:
        yield login


@pytest.fixture
def admin(login: Login) -> Iterator[httpx.Client]:
    """Leaves no rules, roles or grants behind."""
    admin = login("admin")
    yield admin
    admin.delete("/v1/acls", params={"host": "*"}).raise_for_status()
    for grant in admin.get("/v1/grants").json()["grants"]:
        assert admin.delete("/v1/grants", params=grant).status_code == 204
    for role in admin.get("/v1/roles").json()["roles"]:
        if not role["built_in"]:
            assert admin.delete(f"/v1/roles/{role['role']}").status_code == 204


@pytest.fixture
def alice(login: Login) -> httpx.Client:
    return login("alice")


@pytest.fixture
def topic(admin: httpx.Client, unique: Unique) -> str:
    name = unique("orders")
    admin.post("/v1/topics", json={"name": name}).raise_for_status()
    return name


def rule(name: str | None, operation: str = "read", **more: str) -> dict[str, Any]:
    given = {"principal": "User:alice", "operation": operation, "resource_type": "topic", **more}
    return given if name is None else {**given, "name": name}


def whole(given: dict[str, Any]) -> dict[str, Any]:
    return {"pattern_type": "literal", "host": "*", "permission": "allow", **given}


def add(admin: httpx.Client, *rules: dict[str, Any]) -> None:
    admin.post("/v1/acls", json={"acls": list(rules)}).raise_for_status()


def listed(admin: httpx.Client, **wanted: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = admin.get("/v1/acls", params=wanted).json()["acls"]
    return rows


def check(admin: httpx.Client, name: str, operation: str = "read", **more: str) -> Any:
    return admin.get("/v1/acls/check", params=rule(name, operation, **more)).json()


# --- rules


def test_a_rule_takes_effect_when_its_request_is_answered_and_until_it_is_removed(
    admin: httpx.Client, alice: httpx.Client, topic: str
) -> None:
    assert code(alice.get(f"/v1/topics/{topic}")) == (403, "topic_authorization_failed")
    add(admin, rule(topic, "describe"), rule(topic, "describe_configs"))
    assert alice.get(f"/v1/topics/{topic}").status_code == 200
    removed = admin.delete("/v1/acls", params={"name": topic, "operation": "describe"})
    assert removed.json()["acls"] == [whole(rule(topic, "describe"))]
    assert code(alice.get(f"/v1/topics/{topic}")) == (403, "topic_authorization_failed")


def test_rules_are_kafkas_own(admin: httpx.Client, secured: Broker) -> None:
    add(admin, rule("orders.", "write", pattern_type="prefixed", host="10.1.0.0/16", permission="deny"))
    kafka = AdminClient(
        {
            "bootstrap.servers": secured.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "admin",
            "sasl.password": PASSWORDS["admin"],
        }
    )
    everything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    [found] = kafka.describe_acls(everything).result(60)
    assert (found.restype, found.name, found.resource_pattern_type, found.principal) == (
        ResourceType.TOPIC,
        "orders.",
        ResourcePatternType.PREFIXED,
        "User:alice",
    )
    assert (found.host, found.operation, found.permission_type) == (
        "10.1.0.0/16",
        AclOperation.WRITE,
        AclPermissionType.DENY,
    )
    admin.delete("/v1/acls", params={"name": "orders."}).raise_for_status()


def test_filters_select_rules(admin: httpx.Client) -> None:
    add(
        admin,
        rule("orders.eu"),
        rule("orders.", pattern_type="prefixed"),
        rule("orders.eu", principal="User:bob"),
        rule(None, "alter", resource_type="cluster"),
    )
    assert len(listed(admin)) == 4
    assert [row["principal"] for row in listed(admin, name="orders.eu")] == ["User:alice", "User:bob"]
    assert {row["name"] for row in listed(admin, name="orders.eu", pattern_type="match")} == {
        "orders.",
        "orders.eu",
    }
    assert [row["name"] for row in listed(admin, resource_type="cluster")] == ["kafka-cluster"]
    assert listed(admin, operation="write") == []


def test_removing_needs_a_filter(admin: httpx.Client) -> None:
    add(admin, rule("orders"))
    assert code(admin.delete("/v1/acls")) == (400, "invalid_field")
    assert len(listed(admin)) == 1


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (rule("t", operation="peek"), "acls[0].operation"),
        (rule("t", resource_type="table"), "acls[0].resource_type"),
        (rule(None), "acls[0].name"),
        (rule("t", principal="alice"), "acls[0]"),
        (rule("t", host="example.org"), "acls[0]"),
    ],
)
def test_a_wrong_rule_is_refused_with_what_was_expected(
    admin: httpx.Client, wrong: dict[str, Any], field: str
) -> None:
    answer = admin.post("/v1/acls", json={"acls": [wrong]})
    assert answer.status_code == 400
    assert answer.json()["error"]["field"] == field
    assert "expected" in message(answer)


def test_rules_are_limited(admin: httpx.Client) -> None:
    refused = admin.post("/v1/acls", json={"acls": [rule(f"t{number}") for number in range(61)]})
    assert code(refused) == (409, "policy_violation")
    assert "limits.max_acls" in message(refused)
    too_many = admin.post("/v1/acls", json={"acls": [rule("t")] * 1001})
    assert code(too_many) == (400, "invalid_field")


# --- decisions


def test_a_check_names_the_rule_that_decides(admin: httpx.Client) -> None:
    add(admin, rule("orders", "write"), rule("orders", permission="deny", host="10.0.0.0/8"))
    allowed = check(admin, "orders", "describe")
    assert allowed["allowed"] is True
    assert allowed["rule"] == whole(rule("orders", "write"))
    assert "WRITE implies DESCRIBE" in allowed["reason"]
    denied = check(admin, "orders", host="10.1.2.3")
    assert (denied["allowed"], denied["rule"]["permission"], denied["host"]) == (False, "deny", "10.1.2.3")
    nothing = check(admin, "payments")
    assert (nothing["allowed"], nothing["rule"], nothing["reason"]) == (False, None, "no rule allows it")
    admin.delete("/v1/acls", params={"principal": "User:alice"}).raise_for_status()


def test_a_check_knows_super_users_groups_and_roles(admin: httpx.Client) -> None:
    assert check(admin, "orders", principal="User:admin")["reason"] == "User:admin is a super user"
    admin.post("/v1/grants", json={"role": "reader", "principal": "Group:ops"}).raise_for_status()
    by_group = check(admin, "orders", groups="Group:staff, Group:ops")
    assert (by_group["allowed"], by_group["source"]) == (True, "role reader")
    assert not check(admin, "orders")["allowed"]


# --- roles


def test_a_role_is_given_for_a_pattern_and_taken_away(
    admin: httpx.Client, alice: httpx.Client, topic: str
) -> None:
    grant = {"role": "reader", "principal": "User:alice", "name": "orders", "pattern_type": "prefixed"}
    assert admin.post("/v1/grants", json=grant).status_code == 201
    assert alice.get(f"/v1/topics/{topic}").status_code == 200
    assert admin.get("/v1/grants", params={"principal": "User:alice"}).json() == {
        "grants": [{**grant, "host": "*"}]
    }
    other = admin.delete("/v1/grants", params={"role": "reader", "principal": "User:alice"})
    assert code(other) == (404, "resource_not_found")
    assert admin.delete("/v1/grants", params=grant).status_code == 204
    assert code(alice.get(f"/v1/topics/{topic}")) == (403, "topic_authorization_failed")


def test_a_role_of_ones_own_is_made_changed_and_deleted(admin: httpx.Client) -> None:
    permissions = [{"resource_type": "topic", "operations": ["delete", "describe"]}]
    made = admin.put("/v1/roles/cleaner", json={"permissions": permissions}).json()
    assert (made["role"], made["built_in"], made["grants"]) == ("cleaner", False, 0)
    admin.post("/v1/grants", json={"role": "cleaner", "principal": "User:alice"}).raise_for_status()
    assert check(admin, "orders", "delete")["source"] == "role cleaner"
    changed = [{"resource_type": "topic", "operations": ["read"]}]
    assert admin.put("/v1/roles/cleaner", json={"permissions": changed}).json()["grants"] == 1
    assert not check(admin, "orders", "delete")["allowed"]
    assert code(admin.delete("/v1/roles/cleaner")) == (409, "policy_violation")


def test_a_viewer_looks_at_everything_and_changes_nothing(
    admin: httpx.Client, alice: httpx.Client, topic: str, unique: Unique
) -> None:
    queue = unique("packers")
    admin.post("/v1/queues", json={"queue": queue, "topic": topic}).raise_for_status()
    record = {"records": [{"value": "a job"}]}
    admin.post(f"/v1/topics/{topic}/records", json=record).raise_for_status()
    admin.post("/v1/grants", json={"role": "viewer", "principal": "User:alice"}).raise_for_status()
    of_queue, of_topic = f"/v1/queues/{queue}", f"/v1/topics/{topic}"
    for path in (
        *(
            "/v1/topics",
            of_topic,
            f"{of_topic}/partitions/0/records?offset=earliest",
            "/v1/groups",
            "/v1/users",
        ),
        *("/v1/queues", of_queue, f"{of_queue}/peek", f"{of_queue}/dead-letters", f"{of_queue}/diagnosis"),
        *("/v1/cluster", "/v1/cluster/summary", "/v1/transactions", "/v1/subscriptions", "/v1/cliques"),
    ):
        assert alice.get(path).status_code == 200, path
    changes: list[tuple[str, str, Any]] = [
        ("POST", f"{of_queue}/purge", {}),
        ("POST", f"{of_queue}/reset", {"to": "earliest"}),
        ("POST", f"{of_queue}/receive", {}),
        ("POST", f"{of_queue}/dead-letters/send-back", {"all": True}),
        ("DELETE", of_queue, None),
        ("POST", f"/v1/groups/{unique('group')}/offsets", {"topic": topic, "to": "earliest"}),
        ("POST", f"{of_topic}/records", record),
        ("DELETE", of_topic, None),
        ("POST", "/v1/topics", {"name": unique("more")}),
        ("POST", "/v1/cluster/rebalance", {}),
    ]
    for method, path, body in changes:
        assert alice.request(method, path, json=body).status_code == 403, path
    assert len(alice.get(f"{of_queue}/peek").json()["messages"]) == 1


def test_built_in_roles_are_listed_and_cannot_be_changed(admin: httpx.Client) -> None:
    names = [row["role"] for row in admin.get("/v1/roles").json()["roles"] if row["built_in"]]
    assert names == ["viewer", "reader", "writer", "operator", "admin"]
    permissions = [{"resource_type": "topic", "operations": ["all"]}]
    refused = admin.put("/v1/roles/reader", json={"permissions": permissions})
    assert refused.status_code == 400
    assert "built in" in message(refused)
    assert code(admin.delete("/v1/roles/nothing")) == (404, "resource_not_found")


def test_roles_and_grants_are_limited(admin: httpx.Client) -> None:
    permissions = [{"resource_type": "topic", "operations": ["read"]}]
    made = [admin.put(f"/v1/roles/r{number}", json={"permissions": permissions}) for number in range(4)]
    assert [answer.status_code for answer in made] == [200, 200, 200, 409]
    assert "limits.max_roles" in message(made[-1])
    given = [
        admin.post("/v1/grants", json={"role": "r0", "principal": f"User:u{number}"}) for number in range(6)
    ]
    assert [answer.status_code for answer in given] == [201] * 5 + [409]
    assert "limits.max_role_grants" in message(given[-1])


# --- without login


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/acls", None),
        ("POST", "/v1/acls", {"acls": [rule("t")]}),
        ("DELETE", "/v1/acls?principal=User:alice", None),
        ("GET", "/v1/acls/check?principal=User:a&operation=read&resource_type=cluster", None),
        ("GET", "/v1/roles", None),
        ("PUT", "/v1/roles/r", {"permissions": [{"resource_type": "topic", "operations": ["read"]}]}),
        ("DELETE", "/v1/roles/r", None),
        ("GET", "/v1/grants", None),
        ("POST", "/v1/grants", {"role": "reader", "principal": "User:alice"}),
        ("DELETE", "/v1/grants?role=reader&principal=User:alice", None),
    ],
)
def test_without_login_there_are_no_rules(http: httpx.Client, method: str, path: str, body: Any) -> None:
    assert code(http.request(method, path, json=body)) == (409, "security_disabled")
