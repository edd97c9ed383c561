"""The cluster at a glance: the summary, the samples of nodes as those of the cluster, and the caller."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from penstock import Broker
from penstock.node.calls.messages.status import ALL_GROUPS, Sample, TopicFigures
from penstock.node.status import samples
from penstock.node.status.samples import Samples
from penstock.web.api import overview
from penstock.web.api.overview import add_up
from tests.web.browsing import scan

PATIENCE_SECONDS = 60


def sample(at_ms: int, messages: int, lag: int = 0) -> Sample:
    return Sample(
        time_ms=at_ms,
        bytes_in=messages * 100,
        bytes_out=0,
        messages=messages,
        requests=0,
        connections=1,
        lag=lag,
        ready=0,
        leased=0,
        delayed=0,
    )


def test_rates_and_figures_of_nodes_are_added_up() -> None:
    one = [sample(5_000, 0), sample(10_000, 50, lag=7), sample(15_000, 150)]
    other = [sample(5_000, 1_000), sample(10_000, 1_100, lag=1)]
    rows = [
        (row.time_ms, row.nodes, row.message_rate, row.bytes_in_rate, row.lag) for row in add_up([one, other])
    ]
    assert rows == [(10_000, 2, 30.0, 3_000.0, 8), (15_000, 1, 20.0, 2_000.0, 0)]


def test_a_node_that_leads_fewer_partitions_than_before_has_no_negative_rate() -> None:
    [row] = add_up([[sample(5_000, 1_000), sample(10_000, 10)]])
    assert row.message_rate == 0.0


def test_a_sample_shows_the_lag_of_the_group_that_was_asked_for_only() -> None:
    full = Sample(**{**dict.fromkeys(Sample.__struct_fields__, 0), "lags": {"a": 1, "b": 2}})
    assert full.only(None).lags == {}
    assert full.only("b").lags == {"b": 2}
    assert full.only("c").lags == {}
    assert full.only(ALL_GROUPS).lags == {"a": 1, "b": 2}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (samples, overview):
        monkeypatch.setattr(module, "SAMPLE_MS", 200)


@pytest.mark.usefixtures("quick")
def test_the_ring_keeps_the_last_samples_and_the_groups_that_are_farthest_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(samples, "RING_SAMPLES", 4)
    monkeypatch.setattr(samples, "MAX_GROUPS", 1)
    with Broker() as broker, httpx.Client(base_url=broker.http_url, timeout=PATIENCE_SECONDS) as http:
        http.post("/v1/topics", json={"name": "orders"}).raise_for_status()
        http.post("/v1/topics/orders/records", json={"records": [{"value": 1}] * 9}).raise_for_status()
        for group, offset in (("far", 2), ("near", 8)):
            body = {"topic": "orders", "to": offset}
            http.post(f"/v1/groups/{group}/offsets", json=body).raise_for_status()
        far = until(lambda: http.get("/v1/groups/far/samples").json()["samples"])
        assert {row["lag"] for row in far} == {7}
        assert http.get("/v1/groups/near/samples").json()["samples"] == []
        until(lambda: len(http.get("/v1/cluster/samples").json()["samples"]) == 3)
        assert http.get("/v1/cluster/samples").json()["samples"][-1]["lag"] == 8


@pytest.mark.usefixtures("quick")
def test_topics_have_sizes_and_rates_of_the_last_sample() -> None:
    with Broker() as broker, httpx.Client(base_url=f"{broker.http_url}/v1/", timeout=60) as http:
        for name in ("busy", "quiet"):
            http.post("topics", json={"name": name, "partitions": 3}).raise_for_status()

        def figures(query: str = "?figures=true") -> dict[str, tuple[int | None, float | None]]:
            rows = http.get(f"topics{query}").json()["topics"]
            return {row["name"]: (row.get("size_bytes"), row.get("message_rate")) for row in rows}

        records = [{"value": "x" * 100, "partition": number % 3} for number in range(90)]

        def rate_while_publishing() -> float:
            http.post("topics/busy/records", json={"records": records}).raise_for_status()
            return figures()["busy"][1] or 0

        until(lambda: rate_while_publishing() > 0)
        size, rate = until(lambda: found if (found := figures()["busy"])[1] == 0 else None)
        assert (size > 9_000, rate) == (True, 0)
        assert figures()["quiet"] == (0, 0)
        assert figures("") == dict.fromkeys(("busy", "quiet"), (None, None))


def test_topics_with_figures_ask_the_nodes_once_for_all_callers_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []
    may_answer = threading.Event()
    latest_topics = Samples.latest_topics

    async def counted(samples: Samples) -> dict[str, TopicFigures]:
        asked.append(samples)
        while not may_answer.is_set():
            await asyncio.sleep(0.01)
        return await latest_topics(samples)

    monkeypatch.setattr(Samples, "latest_topics", counted)
    with Broker() as broker, ThreadPoolExecutor(10) as callers:
        path = f"{broker.http_url}/v1/topics?figures=true"
        statuses = [callers.submit(lambda: httpx.get(path, timeout=60).status_code) for _ in range(10)]
        until(lambda: asked)
        threading.Event().wait(0.5)
        may_answer.set()
        assert [status.result() for status in statuses] == [200] * 10
    assert len(asked) < 10


@pytest.mark.usefixtures("quick")
def test_records_over_http_and_websockets_are_in_the_bytes_per_second() -> None:
    with Broker() as broker, httpx.Client(base_url=f"{broker.http_url}/v1/", timeout=60) as http:
        http.post("topics", json={"name": "orders"}).raise_for_status()

        def most(name: str) -> float:
            return max((row[name] for row in http.get("cluster/samples").json()["samples"]), default=0.0)

        until(lambda: http.get("cluster/samples").json()["samples"])  # a rate needs a sample before it
        http.post("topics/orders/records", json={"records": [{"value": "x" * 500_000}]}).raise_for_status()
        until(lambda: most("bytes_in_rate") > 10_000)
        assert most("bytes_out_rate") < 10_000
        http.get("topics/orders/partitions/0/records").raise_for_status()
        until(lambda: most("bytes_out_rate") > 10_000)
        node = broker._thread.service.node
        assert node is not None
        sent = node.metrics.http_bytes_out
        with scan(broker.http_url, "orders") as one:
            one.until("end")
        assert node.metrics.http_bytes_out > sent + 10_000


def until(look: Callable[[], object]):
    """The first answer that is not empty."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not (found := look()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


@pytest.mark.usefixtures("quick")
def test_the_list_of_groups_has_their_lag() -> None:
    with Broker() as broker, httpx.Client(base_url=f"{broker.http_url}/v1/", timeout=60) as http:
        http.post("topics", json={"name": "orders"}).raise_for_status()
        http.post(
            "topics/orders/records", json={"records": [{"value": n} for n in range(9)]}
        ).raise_for_status()
        for group, offset in (("billing", 2), ("shipping", 9)):
            http.post(f"groups/{group}/offsets", json={"topic": "orders", "to": offset}).raise_for_status()
        deadline = time.monotonic() + PATIENCE_SECONDS
        lags: dict[str, int | None] = {}
        while lags != {"billing": 7, "shipping": 0}:
            assert time.monotonic() < deadline, lags
            lags = {one["group"]: one["lag"] for one in http.get("groups").json()["groups"]}


def test_the_summary_counts_topics_and_names_nodes(http: httpx.Client, unique: Callable[[str], str]) -> None:
    before = http.get("/v1/cluster/summary").json()
    http.post("/v1/topics", json={"name": unique("counted"), "partitions": 3}).raise_for_status()
    after = http.get("/v1/cluster/summary").json()
    assert after["topics"] >= before["topics"] + 1
    assert [node["state"] for node in after["nodes"]] == ["alive"]
    assert after["troubles"] == []


def test_the_caller_of_a_broker_without_login(http: httpx.Client) -> None:
    me = http.get("/v1/me").json()
    assert (me["login_required"], me["user"], me["token_id"]) == (False, None, None)
