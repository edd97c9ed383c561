"""The cluster over HTTP: responses, and hints in refusals."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from penstock.errors import ErrorCode, KafkaError
from penstock.node.calls import Calls, Target
from penstock.node.calls.methods import DECOMMISSION_NODE, Method
from penstock.node.calls.methods import REBALANCE as REBALANCE_METHOD
from penstock.types import Caller
from penstock.web.api.cluster import MAX_AT_ONCE, as_cluster_problem
from penstock.web.api.problems import Problem, as_problem
from tests.web.web_trio import WebTrio

Unique = Callable[[str], str]
AS_JSON = {"content-type": "application/json"}
REBALANCE = "/v1/cluster/rebalance"
DECOMMISSION = "/v1/cluster/nodes/3/decommission"


@pytest.fixture(scope="module")
def cluster() -> Iterator[httpx.Client]:
    """A caller of node 2 of three."""
    with WebTrio() as trio, trio.caller(2) as client:
        yield client


def error(answer: httpx.Response) -> tuple[int, str, str | None, str]:
    facts = answer.json()["error"]
    assert list(answer.json()) == ["error"]
    return answer.status_code, facts["code"], facts["field"], facts["message"]


# --- reading


def test_one_response_describes_the_whole_cluster(cluster: httpx.Client) -> None:
    found = cluster.get("/v1/cluster").json()
    assert (found["node_id"], found["alone"], found["controller"] in (1, 2, 3)) == (2, False, True)
    assert [node["node_id"] for node in found["nodes"]] == [1, 2, 3]
    assert found["metadata"]["voters"] == [1, 2, 3]


def test_nodes_and_partitions_have_resources_of_their_own(cluster: httpx.Client, unique: Unique) -> None:
    name = unique("orders")
    cluster.post(
        "/v1/topics", json={"name": name, "partitions": 2, "replication_factor": 3}
    ).raise_for_status()
    assert [node["state"] for node in cluster.get("/v1/cluster/nodes").json()["nodes"]] == ["alive"] * 3
    everything = cluster.get("/v1/cluster/partitions").json()["partitions"]
    found = cluster.get("/v1/cluster/partitions", params={"topic": name}).json()["partitions"]
    assert [(one["topic"], one["partition"]) for one in found] == [(name, 0), (name, 1)]
    assert {one["topic"] for one in everything} >= {name}
    assert sorted(found[0]["replicas"]) == [1, 2, 3]


def test_an_unknown_topic_is_404_with_a_hint(cluster: httpx.Client) -> None:
    status, code, field, message = error(cluster.get("/v1/cluster/partitions", params={"topic": "nope"}))
    assert (status, code, field) == (404, "unknown_topic_or_partition", "topic")
    assert "nope" in message
    assert "GET /v1/topics" in message


# --- changes


def test_a_dry_run_returns_the_moves_and_an_empty_body_means_the_defaults(cluster: httpx.Client) -> None:
    for body in (b'{"dry_run": true, "at_once": 7}', b"{}", b""):
        answer = cluster.post(REBALANCE, content=body, headers=AS_JSON)
        assert answer.status_code == 200, answer.text
        assert set(answer.json()) == {"begun", "handed_over", "moves_left", "leads_left", "under_way"}


def test_a_node_is_decommissioned_with_post_and_kept_with_delete(cluster: httpx.Client) -> None:
    answer = cluster.post(DECOMMISSION, headers=AS_JSON)
    if answer.status_code == 200:  # no topic of three replicas is in the way
        assert answer.json() == {"node_id": 3, "decommissioning": True}
    else:
        assert error(answer)[:2] == (409, "too_few_nodes")
    answer = cluster.delete(DECOMMISSION)
    assert (answer.status_code, answer.json()) == (200, {"node_id": 3, "decommissioning": False})


def test_a_node_whose_replicas_do_not_fit_elsewhere_cannot_be_decommissioned(
    cluster: httpx.Client, unique: Unique
) -> None:
    wanted = {"name": unique("threefold"), "replication_factor": 3}
    cluster.post("/v1/topics", json=wanted).raise_for_status()
    status, code, _, message = error(cluster.post(DECOMMISSION, headers=AS_JSON))
    assert (status, code) == (409, "too_few_nodes")
    assert "start another node" in message


def test_an_unknown_node_is_404(cluster: httpx.Client) -> None:
    for answer in (
        cluster.post("/v1/cluster/nodes/9/decommission", headers=AS_JSON),
        cluster.delete("/v1/cluster/nodes/9/decommission"),
    ):
        status, code, field, message = error(answer)
        assert (status, code, field) == (404, "unknown_node", "node_id")
        assert "/v1/cluster/nodes" in message


def test_the_controller_is_asked_on_behalf_of_the_caller(
    cluster: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Caller] = {}
    ask = Calls.ask

    async def noted(self: Calls, target: Target, method: Method[Any, Any], request: Any, **rest: Any) -> Any:
        asked[method.name] = rest["caller"]
        return await ask(self, target, method, request, **rest)

    monkeypatch.setattr(Calls, "ask", noted)
    cluster.post(REBALANCE, json={"dry_run": True}).raise_for_status()
    cluster.delete(DECOMMISSION).raise_for_status()
    for method in (REBALANCE_METHOD, DECOMMISSION_NODE):
        assert asked[method.name].host == "127.0.0.1"
        assert asked[method.name].client_id.startswith("python-httpx")


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "code", "field"),
    [
        (REBALANCE, b"{}", {}, 415, "unsupported_media_type", None),
        (DECOMMISSION, b"", {"content-type": "text/plain"}, 415, "unsupported_media_type", None),
        (REBALANCE, b"not json", AS_JSON, 400, "invalid_body", None),
        (REBALANCE, b'{"dry-run": true}', AS_JSON, 400, "invalid_field", "dry-run"),
        (REBALANCE, b'{"dry_run": "yes"}', AS_JSON, 400, "invalid_field", "dry_run"),
        (REBALANCE, b'{"at_once": 0}', AS_JSON, 400, "invalid_field", "at_once"),
        (REBALANCE, b'{"at_once": %d}' % (MAX_AT_ONCE + 1), AS_JSON, 400, "invalid_field", "at_once"),
        (REBALANCE, b"\xff\xfe", AS_JSON, 400, "invalid_body", None),
        (DECOMMISSION, b'{"force": true}', AS_JSON, 400, "invalid_field", "force"),
        ("/v1/cluster/nodes/three/decommission", b"", AS_JSON, 400, "invalid_field", "node_id"),
        ("/v1/cluster/nodes/-3/decommission", b"", AS_JSON, 400, "invalid_field", "node_id"),
    ],
)
def test_an_invalid_request_is_refused_in_the_common_error_format(
    http: httpx.Client, path: str, body: bytes, headers: Any, status: int, code: str, field: str | None
) -> None:
    found = error(http.post(path, content=body, headers=headers))
    assert found[:3] == (status, code, field)
    assert found[3]


@pytest.mark.parametrize("path", [REBALANCE, DECOMMISSION])
def test_a_lone_node_has_nothing_to_move(http: httpx.Client, path: str) -> None:
    status, code, _, message = error(http.post(path, headers=AS_JSON))
    assert (status, code) == (409, "no_cluster")
    assert "--seeds" in message


@pytest.mark.parametrize(
    ("refusal", "status", "code", "advice"),
    [
        (KafkaError(ErrorCode.NOT_CONTROLLER, "no controller"), 503, "not_controller", "majority"),
        (
            KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, "no node 3"),
            404,
            "unknown_node",
            "/v1/cluster/nodes",
        ),
        (KafkaError(ErrorCode.INVALID_REQUEST, "the last one"), 409, "too_few_nodes", "another node"),
        (KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "3"), 409, "too_few_nodes", "fewer replicas"),
    ],
)
def test_a_refusal_by_the_controller_says_what_to_do(
    refusal: KafkaError, status: int, code: str, advice: str
) -> None:
    found = as_cluster_problem(refusal)
    problem = found if isinstance(found, Problem) else as_problem(refusal)
    assert (problem.status, problem.code) == (status, code)
    assert refusal.message in problem.message
    assert advice in problem.message
