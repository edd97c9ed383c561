"""Transactions over HTTP, for operators: which are open, and aborting one. Real producers have opened them."""

import asyncio
import queue
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import httpx
import pytest
from confluent_kafka import KafkaException, Producer

from penstock import Broker
from penstock.errors import ErrorCode, Unanswered
from penstock.node.calls import methods, retry
from penstock.node.calls.messages.transactions import AbortTransaction
from penstock.node.calls.methods import Method
from penstock.transactions.states import COMPLETE_ABORT
from penstock.types import Caller
from tests.web.api.secured import PASSWORDS, caller, code

Unique = Callable[[str], str]
SECONDS = 60
STATUS_TOPIC = "penstock.status"


def begin(broker: Broker, name: str, topic: str) -> Producer:
    """A producer whose transaction has one record."""
    producer = Producer({**broker.client_settings(), "transactional.id": name})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(topic, b"value")
    producer.flush(SECONDS)
    return producer


def open_ids(http: httpx.Client) -> list[str]:
    rows = http.get("/v1/transactions").raise_for_status().json()["transactions"]
    return [row["transactional_id"] for row in rows]


def until_gone(http: httpx.Client, name: str) -> None:
    """A commit is answered before its markers are written."""
    end = time.monotonic() + SECONDS
    while name in open_ids(http):
        assert time.monotonic() < end, f"{name} is still open"
        time.sleep(0.02)


def test_an_open_transaction_is_listed_until_it_is_committed(
    broker: Broker, http: httpx.Client, unique: Unique
) -> None:
    name, topic = unique("billing"), unique("orders")
    producer = begin(broker, name, topic)
    shown = http.get(f"/v1/transactions/{name}").json()
    assert (shown["state"], shown["topics"]) == ("Ongoing", [{"topic": topic, "partitions": [0]}])
    assert shown["start_ms"] > 0
    assert shown["open_ms"] >= 0
    assert name in open_ids(http)
    producer.commit_transaction(SECONDS)
    until_gone(http, name)
    every = http.get("/v1/transactions", params={"state": "any"}).json()["transactions"]
    assert [row["start_ms"] for row in every if row["transactional_id"] == name] == [None]


def test_an_aborted_transaction_is_gone_and_its_producer_is_fenced(
    broker: Broker, http: httpx.Client, unique: Unique
) -> None:
    name = unique("billing")
    producer = begin(broker, name, unique("orders"))
    start_ms = http.get(f"/v1/transactions/{name}").json()["start_ms"]
    other = http.post(f"/v1/transactions/{name}/abort", json={"start_ms": start_ms - 1})
    assert code(other) == (409, "another_transaction")
    http.post(f"/v1/transactions/{name}/abort", json={"start_ms": start_ms}).raise_for_status()
    assert name not in open_ids(http)
    with pytest.raises(KafkaException):
        producer.commit_transaction(SECONDS)
    assert code(http.post(f"/v1/transactions/{name}/abort", json={})) == (409, "not_open")


def hold(broker: Broker, monkeypatch: pytest.MonkeyPatch, method: Method[Any, Any]) -> "Held":
    """Calls of this method wait before they are carried out."""
    service: Any = broker._thread.service
    handlers, number = service.node.calls._handlers, method.number
    held = Held(asyncio.Event(), queue.Queue())

    async def wait(handle: Any, caller: Caller, request: Any) -> Any:
        held.calls.put(partial(asyncio.get_running_loop().call_soon_threadsafe, held.may_go_on.set))
        await held.may_go_on.wait()
        return await handle(caller, request)

    monkeypatch.setitem(handlers, number, partial(wait, handlers[number]))
    return held


class Held(NamedTuple):
    may_go_on: asyncio.Event
    calls: "queue.Queue[Callable[[], object]]"

    def until_called(self) -> Callable[[], object]:
        """What lets the calls go on."""
        release = self.calls.get(timeout=SECONDS)
        self.calls.put(release)
        return release


def test_an_abort_waits_for_its_markers(
    broker: Broker, http: httpx.Client, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = unique("billing")
    producer = begin(broker, name, unique("orders"))
    markers = hold(broker, monkeypatch, methods.WRITE_MARKERS)
    with ThreadPoolExecutor(1) as thread:
        aborted = thread.submit(http.post, f"/v1/transactions/{name}/abort", json={})
        release = markers.until_called()
        assert http.get(f"/v1/transactions/{name}").json()["state"] == "PrepareAbort"
        assert not aborted.done()
        release()
        assert (aborted.result().status_code, aborted.result().json()) == (200, {"transactional_id": name})
    assert http.get(f"/v1/transactions/{name}").json()["state"] == "CompleteAbort"
    with pytest.raises(KafkaException):
        producer.commit_transaction(SECONDS)


def test_an_abort_whose_markers_cannot_be_written_says_where(
    broker: Broker, http: httpx.Client, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, topic = unique("billing"), unique("orders")
    begin(broker, name, topic)
    markers = hold(broker, monkeypatch, methods.WRITE_MARKERS)
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.2)
    refused = http.post(f"/v1/transactions/{name}/abort", json={})
    markers.until_called()()
    assert code(refused) == (503, "concurrent_transactions")
    assert f"the transaction of '{name}' is aborted" in refused.json()["error"]["message"]
    assert f"{topic}: [0]" in refused.json()["error"]["message"]
    until_gone(http, name)


def test_an_abort_does_not_claim_a_commit_that_came_first(
    broker: Broker, http: httpx.Client, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction was open when it was looked at."""
    name = unique("billing")
    producer = begin(broker, name, unique("orders"))
    abort = hold(broker, monkeypatch, methods.ABORT_TRANSACTION)
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(http.post, f"/v1/transactions/{name}/abort", json={})
        release = abort.until_called()
        producer.commit_transaction(SECONDS)
        until_gone(http, name)
        release()
        assert code(answer.result()) == (409, "not_open")
    assert http.get(f"/v1/transactions/{name}").json()["state"] == "CompleteCommit"


def test_an_abort_does_not_end_the_next_transaction(
    broker: Broker, http: httpx.Client, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, topic = unique("billing"), unique("orders")
    producer = begin(broker, name, topic)
    abort = hold(broker, monkeypatch, methods.ABORT_TRANSACTION)
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(http.post, f"/v1/transactions/{name}/abort", json={})
        release = abort.until_called()
        producer.commit_transaction(SECONDS)
        until_gone(http, name)
        producer.begin_transaction()
        producer.produce(topic, b"next")
        producer.flush(SECONDS)
        release()
        assert code(answer.result()) == (409, "another_transaction")
    producer.commit_transaction(SECONDS)


def test_an_abort_while_a_commit_is_written_is_refused(
    broker: Broker, http: httpx.Client, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = unique("billing")
    producer = begin(broker, name, unique("orders"))
    abort = hold(broker, monkeypatch, methods.ABORT_TRANSACTION)
    markers = hold(broker, monkeypatch, methods.WRITE_MARKERS)
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(http.post, f"/v1/transactions/{name}/abort", json={})
        release = abort.until_called()
        producer.commit_transaction(SECONDS)  # answered before the markers are written
        write = markers.until_called()
        release()
        assert code(answer.result()) == (409, "not_open")
        assert "PrepareCommit" in answer.result().json()["error"]["message"]
    write()
    until_gone(http, name)


@pytest.mark.parametrize("has_ended", [False, True])
def test_an_abort_whose_answer_is_lost_is_asked_again_and_aborts_no_other_transaction(
    broker: Broker, http: httpx.Client, unique: Unique, monkeypatch: pytest.MonkeyPatch, has_ended: bool
) -> None:
    name = unique("billing")
    begin(broker, name, unique("orders"))
    service: Any = broker._thread.service
    handlers, number = service.node.calls._handlers, methods.ABORT_TRANSACTION.number
    handle, asked = handlers[number], 0
    markers = None if has_ended else hold(broker, monkeypatch, methods.WRITE_MARKERS)

    async def lose(caller: Caller, request: AbortTransaction) -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            if markers is not None:
                markers.may_go_on.set()
            core = service.node.transactions.cores.find(name).core
            while has_ended and core.describe(name).state is not COMPLETE_ABORT:
                await asyncio.sleep(0)
        await handle(caller, request)
        if asked == 1:
            raise Unanswered(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no answer came", may_be_done=True)

    monkeypatch.setitem(handlers, number, lose)
    assert http.post(f"/v1/transactions/{name}/abort", json={}).status_code == 200
    assert asked >= 2
    assert http.get(f"/v1/transactions/{name}").json()["state"] == "CompleteAbort"


def test_an_unknown_id_is_refused(http: httpx.Client, unique: Unique) -> None:
    for answer in (
        http.get(f"/v1/transactions/{unique('none')}"),
        http.post(f"/v1/transactions/{unique('none')}/abort", json={}),
    ):
        assert code(answer) == (404, "transactional_id_not_found")


@pytest.fixture(scope="module")
def secured() -> Iterator[Broker]:
    with Broker(users=PASSWORDS, status_topic=STATUS_TOPIC) as broker:
        yield broker


def test_what_a_caller_may_do_is_told(secured: Broker) -> None:
    with caller(secured, "admin", PASSWORDS["admin"]) as admin:
        grant = {"role": "reader", "principal": "User:alice", "name": "orders.", "pattern_type": "prefixed"}
        admin.post("/v1/grants", json=grant).raise_for_status()
        every = admin.get("/v1/me/operations", params={"resource_type": "cluster"}).json()["operations"]
        assert {"alter", "describe"} <= set(every)
    with caller(secured, "alice", PASSWORDS["alice"]) as alice:
        for name, expected in (("orders.new", ["read", "describe", "describe_configs"]), ("other", [])):
            params = {"resource_type": "topic", "name": name}
            assert alice.get("/v1/me/operations", params=params).json()["operations"] == expected
        for params, expected in (({}, []), ({"some": "true"}, ["read", "describe", "describe_configs"])):
            told = alice.get("/v1/me/operations", params={"resource_type": "topic", **params}).json()
            assert told["operations"] == expected
        both = alice.get("/v1/me/operations", params={"resource_type": "topic", "name": "a", "some": "true"})
        assert (both.status_code, both.json()["error"]["field"]) == (400, "some")
        cluster = alice.get("/v1/me/operations", params={"resource_type": "cluster"}).json()
        assert cluster == {"resource_type": "cluster", "name": "kafka-cluster", "operations": []}


def test_a_caller_is_not_told_that_it_may_change_the_status_log(
    secured: Broker,
) -> None:
    rule = {"principal": "User:carol", "operation": "all", "resource_type": "topic", "name": "*"}
    with caller(secured, "admin", PASSWORDS["admin"]) as admin:
        admin.post("/v1/users", json={"user": "carol", "password": "carols secret"}).raise_for_status()
        admin.post("/v1/acls", json={"acls": [rule]}).raise_for_status()
    with caller(secured, "carol", "carols secret") as carol:

        def operations(name: str) -> set[str]:
            params = {"resource_type": "topic", "name": name}
            return set(carol.get("/v1/me/operations", params=params).raise_for_status().json()["operations"])

        changes = {"write", "create", "delete", "alter", "alter_configs"}
        assert changes <= operations("orders")
        assert "read" in operations(STATUS_TOPIC)
        assert not changes & operations(STATUS_TOPIC)
        assert carol.delete(f"/v1/topics/{STATUS_TOPIC}").status_code == 403


def test_all_rules_of_a_principal_are_shown_with_the_roles_that_made_them(secured: Broker) -> None:
    rules = [
        {"principal": principal, "operation": "write", "resource_type": "topic", "name": "news"}
        for principal in ("User:bob", "User:*")
    ]
    with caller(secured, "admin", PASSWORDS["admin"]) as admin:
        admin.post("/v1/acls", json={"acls": rules}).raise_for_status()
        admin.post("/v1/grants", json={"role": "reader", "principal": "User:bob"}).raise_for_status()
        shown = admin.get("/v1/acls/effective", params={"principal": "User:bob"}).json()
        assert shown["super_user"] is False
        assert {(row["rule"]["principal"], row["source"]) for row in shown["rules"]} == {
            ("User:bob", None),
            ("User:*", None),
            ("User:bob", "role reader"),
        }
        own = admin.get("/v1/acls/effective", params={"principal": "User:admin"}).json()
        assert own["super_user"] is True
        assert admin.get("/v1/acls/effective", params={"principal": "bob"}).status_code == 400


def test_without_login_everybody_may_do_everything(http: httpx.Client) -> None:
    told = http.get("/v1/me/operations", params={"resource_type": "topic"}).json()
    assert {"read", "write", "delete"} <= set(told["operations"])
    assert code(http.get("/v1/acls/effective", params={"principal": "User:a"})) == (409, "security_disabled")
