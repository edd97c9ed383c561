"""Users, tokens and roles over HTTP, asked of the controller and of a node that is not."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from penstock.errors import ErrorCode, KafkaError
from penstock.node.calls import BROKER, CONTROLLER, methods
from penstock.node.calls.messages.access import (
    CreateToken,
    DeleteRole,
    DeleteUser,
    GrantRole,
    PutRole,
    RevokeRole,
    RevokeToken,
    SetPasswords,
)
from penstock.node.calls.methods import METHODS, Method
from penstock.security.roles import RoleGrant
from penstock.security.tokens import TOKEN_RANDOM_BYTES, make_token
from penstock.types import Caller
from tests.web.api.secured import REFUSED, code
from tests.web.web_trio import WebTrio

PASSWORDS = {"admin": "admin-password-1", "alice": "alice-password-1", "bob": "bob-password-1"}
ALICE = Caller("User:alice", "127.0.0.1", "test")


@pytest.fixture(scope="module")
def trio() -> Iterator[WebTrio]:
    trio = WebTrio({"require_login": True})
    try:
        node = trio.node(trio.controller())
        trio.eventually(lambda: "admin" in node.metadata.state.access.users or None)
        trio.run(node.access_admin.set_password("admin", PASSWORDS["admin"], caller=BROKER))
        for user in ("alice", "bob"):
            trio.run(node.access_admin.create_user(user, PASSWORDS[user], caller=BROKER))
        yield trio
    finally:
        trio.close()


@pytest.fixture(params=["the controller", "another node"])
def asked(trio: WebTrio, request: pytest.FixtureRequest) -> int:
    """The node that is asked. It has applied the users."""
    controller = trio.controller()
    others = [node for node in (1, 2, 3) if node != controller]
    asked = controller if request.param == "the controller" else others[0]
    trio.eventually(lambda: {"alice", "bob"} <= trio.node(asked).metadata.state.access.users.keys() or None)
    return asked


@contextmanager
def login(trio: WebTrio, asked: int, user: str, password: str = "") -> Iterator[httpx.Client]:
    auth = (user, password or PASSWORDS[user])
    with httpx.Client(base_url=trio.url(asked), auth=auth, timeout=30) as client:
        yield client


def test_any_node_makes_users_tokens_rules_and_roles(trio: WebTrio, asked: int) -> None:
    user = f"carol-{asked}"
    with login(trio, asked, "admin") as http:
        assert http.post("/v1/users", json={"user": user, "password": "a password"}).status_code == 201
        assert user in [row["user"] for row in http.get("/v1/users").json()["users"]]
        made = http.post(f"/v1/users/{user}/tokens", json={"description": "import"}).json()
        [row] = http.get(f"/v1/users/{user}/tokens").json()["tokens"]
        assert row["token_id"] == made["token_id"]
        assert http.delete(f"/v1/users/{user}/tokens/{row['token_id']}").status_code == 204
        grant = {"role": "reader", "principal": f"User:{user}"}
        assert http.post("/v1/grants", json=grant).status_code == 201
        query = {"principal": f"User:{user}", "operation": "read", "resource_type": "topic", "name": "t"}
        assert http.get("/v1/acls/check", params=query).json()["source"] == "role reader"
        assert http.delete("/v1/grants", params=grant).status_code == 204
        assert http.post("/v1/acls", json={"acls": [query]}).status_code == 201
        assert http.get("/v1/acls/check", params=query).json()["allowed"] is True
        assert len(http.delete("/v1/acls", params={"principal": f"User:{user}"}).json()["acls"]) == 1
        assert http.delete(f"/v1/users/{user}").json()["tokens_deleted"] == 0
        assert http.delete(f"/v1/users/{user}").status_code == 404


def test_users_manage_themselves_and_no_others_through_any_node(trio: WebTrio, asked: int) -> None:
    with login(trio, asked, "alice") as alice:
        assert code(alice.put("/v1/users/bob/password", json={"password": "taken over"})) == REFUSED
        assert alice.put("/v1/users/alice/password", json={"password": "another one"}).status_code == 204
    with login(trio, asked, "alice", "another one") as alice:
        made = alice.post("/v1/users/alice/tokens", json={}).json()
        assert alice.delete(f"/v1/users/alice/tokens/{made['token_id']}").status_code == 204
        back = alice.put("/v1/users/alice/password", json={"password": PASSWORDS["alice"]})
        assert back.status_code == 204


def test_any_node_resets_the_password_of_admin_and_makes_the_user_again_if_it_is_gone(
    trio: WebTrio, asked: int
) -> None:
    node = trio.node(asked)
    try:
        for before in ("set", "deleted"):
            if before == "deleted":
                trio.run(node.access_admin.delete_user("admin", caller=BROKER))
            user, password = trio.run(node.access_admin.reset_first_user())
            with login(trio, asked, user, password) as admin:
                assert admin.get("/v1/users").status_code == 200
    finally:
        trio.run(node.access_admin.set_password("admin", PASSWORDS["admin"], caller=BROKER))


def test_any_node_sets_and_removes_quotas(trio: WebTrio, asked: int) -> None:
    user = f"quota-{asked}"
    with login(trio, asked, "admin") as http:
        body = {"user": user, "quotas": {"producer_byte_rate": 1000}}
        assert http.patch("/v1/quotas", json=body).json()["quotas"] == {"producer_byte_rate": 1000}
        assert [row["user"] for row in http.get("/v1/quotas").json()["quotas"]] == [user]
        assert http.delete("/v1/quotas", params={"user": user}).status_code == 200
        assert http.get("/v1/quotas").json()["quotas"] == []


GRANT = RoleGrant("admin", "User:alice")
ATTEMPTS: list[tuple[Method[Any, None], object]] = [
    (methods.CREATE_USER, SetPasswords("eve", {})),
    (methods.SET_PASSWORDS, SetPasswords("bob", {})),
    (methods.DELETE_USER, DeleteUser("bob")),
    (methods.CREATE_TOKEN, CreateToken(make_token(bytes(TOKEN_RANDOM_BYTES), "bob", 1)[1])),
    (methods.REVOKE_TOKEN, RevokeToken("bob", "some")),
    (methods.PUT_ROLE, PutRole("mine", ())),
    (methods.DELETE_ROLE, DeleteRole("mine")),
    (methods.GRANT_ROLE, GrantRole(GRANT)),
    (methods.REVOKE_ROLE, RevokeRole(GRANT)),
]


@pytest.mark.parametrize(
    ("method", "request_"), ATTEMPTS, ids=lambda value: value.name if isinstance(value, Method) else ""
)
def test_the_controller_refuses_what_the_node_in_front_should_have_refused(
    trio: WebTrio, asked: int, method: Method[Any, None], request_: object
) -> None:
    with pytest.raises(KafkaError) as refused:
        trio.run(trio.node(asked).calls.ask(CONTROLLER, method, request_, caller=ALICE))
    assert refused.value.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_every_method_about_users_and_roles_is_among_the_attempts() -> None:
    """A new one without a test of its permission fails here."""
    module = SetPasswords.__module__
    known = {method.name for method in METHODS.values() if method.request.__module__ == module}
    assert known == {method.name for method, _ in ATTEMPTS}
