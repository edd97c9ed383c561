"""Users, tokens and roles over HTTP, asked of nodes that are not the controller."""

from collections.abc import Iterator

import httpx
import pytest

from tests.web.web_trio import WebTrio

PASSWORD = "a password of my own"


@pytest.fixture(scope="module")
def trio() -> Iterator[WebTrio]:
    trio = WebTrio()
    try:
        yield trio
    finally:
        trio.close()


def callers(trio: WebTrio) -> dict[bool, int]:
    """A node that is the controller, and one that is not."""
    controller = trio.node(1).view.controller_id
    return {True: controller, False: next(node for node in (1, 2, 3) if node != controller)}


@pytest.mark.parametrize("at_controller", [True, False])
def test_any_node_makes_and_deletes_users_and_tokens(trio: WebTrio, at_controller: bool) -> None:
    user = f"alice-{at_controller}"
    with trio.caller(callers(trio)[at_controller]) as http:
        assert http.post("/v1/users", json={"user": user, "password": PASSWORD}).status_code == 201
        assert [row["user"] for row in users(http)] == [user]
        assert http.put(f"/v1/users/{user}/password", json={"password": "another one"}).status_code == 204
        made = http.post(f"/v1/users/{user}/tokens", json={"description": "import"}).json()
        [row] = http.get(f"/v1/users/{user}/tokens").json()["tokens"]
        assert row["token_id"] == made["token_id"]
        assert http.delete(f"/v1/users/{user}/tokens/{row['token_id']}").status_code == 204
        assert http.delete(f"/v1/users/{user}").json()["tokens_deleted"] == 0
        assert users(http) == []
        assert http.delete(f"/v1/users/{user}").status_code == 404


def users(http: httpx.Client) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = http.get("/v1/users").json()["users"]
    return rows
