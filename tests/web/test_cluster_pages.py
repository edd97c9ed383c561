"""The cluster over HTTP: what is answered, and how a refusal helps."""

import asyncio
import json
from typing import Any

import pytest
import uvloop
from starlette.applications import Starlette

from penstock.errors import ErrorCode, KafkaError
from penstock.node.peers import CallFailed
from penstock.node.peers.rpc import CallProblem
from penstock.node.status.cluster_status import PartitionStatus
from penstock.web import cluster
from penstock.web.app import build_app
from penstock.web.metrics import render
from penstock.web.source import take_snapshot

from .fakes import FakeNode

JSON = {"content-type": "application/json"}
DECOMMISSION = "/v1/cluster/nodes/3/decommission"
NO_ROOM = KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "orders-0 has 3 replicas")


def ask(
    node: FakeNode,
    method: str,
    path: str,
    body: bytes = b"",
    headers: dict[str, str] = JSON,
    *,
    endless: bool = False,
) -> tuple[int, Any]:
    """One request to the application, without a socket. `endless`: the body never ends."""

    async def scenario() -> tuple[int, Any]:
        return await _call(build_app(node), method, path, body, headers, endless)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(scenario())


async def _call(
    app: Starlette, method: str, path: str, body: bytes, headers: dict[str, str], endless: bool
) -> tuple[int, Any]:
    where, _, query = path.partition("?")
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": where,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    parts = [body]
    said: list[Any] = []

    async def receive() -> dict[str, Any]:
        if not parts:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": parts.pop(), "more_body": endless}

    async def send(message: Any) -> None:
        said.append(message)

    await app(scope, receive, send)
    text = b"".join(message.get("body", b"") for message in said[1:])
    return said[0]["status"], json.loads(text)


def partition(topic: str, number: int) -> PartitionStatus:
    return PartitionStatus(
        topic=topic,
        partition=number,
        leader=1,
        term=0,
        replicas=(1,),
        in_sync=(1,),
        adding=(),
        removing=(),
        under_replicated=False,
        lag=0,
    )


def test_the_whole_picture_is_json() -> None:
    node = FakeNode()
    node.status.held = [partition("orders", 0)]
    status, picture = ask(node, "GET", "/v1/cluster")
    assert status == 200
    assert (picture["cluster_id"], picture["controller"], picture["healthy"]) == ("test-cluster", 1, True)
    assert picture["partitions"][0]["replicas"] == [1]


def test_nodes_and_partitions_have_pages_of_their_own() -> None:
    node = FakeNode()
    node.status.held = [partition("orders", 0), partition("users", 0)]
    assert ask(node, "GET", "/v1/cluster/nodes") == (200, {"nodes": []})
    assert len(ask(node, "GET", "/v1/cluster/partitions")[1]["partitions"]) == 2
    _, found = ask(node, "GET", "/v1/cluster/partitions?topic=users")
    assert [one["topic"] for one in found["partitions"]] == ["users"]


def test_a_topic_that_is_not_there_is_404_with_where_to_look() -> None:
    status, said = ask(FakeNode(), "GET", "/v1/cluster/partitions?topic=nope")
    assert status == 404
    assert "nope" in said["error"]
    assert "topics list" in said["hint"]


def test_a_rebalance_moves_as_much_at_once_as_the_node_is_configured() -> None:
    node = FakeNode()
    status, said = ask(node, "POST", "/v1/cluster/rebalance")
    assert (status, said["moves_left"]) == (200, [])
    assert node.controller.asked == [("rebalance", node.config.replication.max_moves, False)]


def test_a_dry_run_is_passed_on_as_one() -> None:
    node = FakeNode()
    ask(node, "POST", "/v1/cluster/rebalance", b'{"dry_run": true, "at_once": 7}')
    assert node.controller.asked == [("rebalance", 7, True)]


def test_a_node_is_decommissioned_with_post_and_kept_with_delete() -> None:
    node = FakeNode()
    assert ask(node, "POST", DECOMMISSION) == (200, {"node_id": 3, "decommissioning": True})
    assert ask(node, "DELETE", DECOMMISSION) == (200, {"node_id": 3, "decommissioning": False})
    assert node.controller.asked == [("decommission", 3, True), ("decommission", 3, False)]


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "said"),
    [
        ("/v1/cluster/rebalance", b"{}", {}, 415, "application/json"),
        (DECOMMISSION, b"", {"content-type": "text/plain"}, 415, "application/json"),
        ("/v1/cluster/rebalance", b"{" + b" " * cluster.MAX_BODY_BYTES, JSON, 413, "small"),
        ("/v1/cluster/rebalance", b"not json", JSON, 400, "dry_run"),
        ("/v1/cluster/rebalance", b'{"dry-run": true}', JSON, 400, "dry_run"),
        ("/v1/cluster/rebalance", b'{"dry_run": "yes"}', JSON, 400, "dry_run"),
        ("/v1/cluster/rebalance", b'{"at_once": 0}', JSON, 400, "leave it out"),
        ("/v1/cluster/rebalance", b'{"at_once": 101}', JSON, 400, "leave it out"),
        ("/v1/cluster/rebalance", b"\xff\xfe", JSON, 400, "JSON object"),
        (DECOMMISSION, b'{"force": true}', JSON, 400, "no fields"),
        ("/v1/cluster/nodes/three/decommission", b"", JSON, 400, "cluster status"),
        ("/v1/cluster/nodes/-3/decommission", b"", JSON, 400, "cluster status"),
    ],
)
def test_a_wrong_request_is_refused_with_what_to_send_instead(
    path: str, body: bytes, headers: dict[str, str], status: int, said: str
) -> None:
    node = FakeNode()
    found, answer = ask(node, "POST", path, body, headers)
    assert found == status
    assert answer["error"]
    assert said in answer["hint"]
    assert node.controller.asked == []


def test_a_body_that_never_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "BODY_SECONDS", 0.05)
    assert ask(FakeNode(), "POST", "/v1/cluster/rebalance", b"{", endless=True)[0] == 408


@pytest.mark.parametrize(
    ("trouble", "status", "hint"),
    [
        (KafkaError(ErrorCode.NOT_CONTROLLER, "there is no controller"), 503, "majority"),
        (KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "there is no node 3; nodes: 1, 2"), 404, "status"),
        (NO_ROOM, 409, "another node"),
        (KafkaError(ErrorCode.INVALID_REQUEST, "the last one that can hold data"), 409, "another node"),
        (CallFailed(CallProblem.TIMED_OUT, "node 2 did not answer within 10000 ms"), 503, "again"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_what_the_controller_refuses_is_told_with_what_to_do(
    trouble: KafkaError, status: int, hint: str
) -> None:
    node = FakeNode()
    node.controller.refuses = trouble
    found, said = ask(node, "POST", DECOMMISSION)
    assert (found, said["error"]) == (status, getattr(trouble, "message", str(trouble)))
    assert hint in said["hint"]


@pytest.mark.parametrize("path", ["/v1/cluster/rebalance", DECOMMISSION])
def test_a_node_that_is_alone_has_nothing_to_move(path: str) -> None:
    node = FakeNode(is_alone=True)
    status, said = ask(node, "POST", path)
    assert status == 409
    assert "--seeds" in said["hint"]


@pytest.mark.parametrize("path", ["/v1/cluster", "/v1/cluster/nodes", "/v1/cluster/partitions"])
def test_a_node_that_has_no_cluster_yet_says_so(path: str) -> None:
    status, said = ask(FakeNode(ready=False), "GET", path)
    assert status == 503
    assert "log" in said["hint"]


def test_the_metrics_show_the_cluster() -> None:
    text = render(take_snapshot(FakeNode())).decode()
    assert 'penstock_members{state="alive"} 1.0' in text
    assert "penstock_is_controller 1.0" in text
    assert "penstock_leaders 1.0" in text
